"""Two stores at once, the first paused at each of its points in turn.

R numbers are those of the races that are named for trees of this kind.
"""

from __future__ import annotations

import pytest

from shmtrie.kernels.hooks import Site
from tests.concurrency.stage import Stage, race

pytestmark = pytest.mark.race

TAILS = "Q 1-6 = 1:6 2:4; Q 1-4,7,8 = 1:4 2:6; E 2,2,4; N 1 6; N 2 6"
REUSE = "Q 1-6 = 3:6 1:6 2:3; Q 1-3,7,8 = 3:3 1:3 2:5; E 2,3,3"


def test_r1_different_tails_of_one_leaf(stage: Stage) -> None:
    """One extends, the other splits what was extended or hangs a child (scenario 18)."""
    sites = race(stage, "S 1 1-4; S 2 1-4", "S 1 1-4 + 5,6", "S 2 1-4 + 7,8", TAILS)
    assert {Site.GATE_EXCLUSIVE, Site.STORE_PLANNED, Site.STORE_PREPARED, Site.REDO_SET} <= sites
    assert stage.busy > 0


def test_r2_the_same_tail_of_one_leaf(stage: Stage) -> None:
    """Stays one node (scenario 19)."""
    race(stage, "S 1 1-4; S 2 1-4", "S 1 1-4 + 5,6", "S 2 1-4 + 5,6", "Q 1-6 = 1:6 2:6; E 6; N 1 6; N 2 6")


@pytest.mark.parametrize("order", ["reuse first", "split first"])
def test_r3_suffix_reuse_and_a_diverging_split(stage: Stage, order: str) -> None:
    """Scenario 20."""
    one, two = "S 1 1-3 + 4-6", "S 2 1-3 + 7,8"
    first, second = (one, two) if order == "reuse first" else (two, one)
    sites = race(stage, "S 3 1-6; S 1 1-3; S 2 1-3", first, second, REUSE)
    assert order == "reuse first" or {Site.SPLIT_PREPARED, Site.SPLIT_DONE, Site.TAIL_PUBLISHED} & sites


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_r4_a_plan_from_before_a_split(stage: Stage, depth: int) -> None:
    """Nothing is held while a store plans: the split goes through, and the plan is made anew."""
    before = stage.index.stats().replans
    sites = race(
        stage,
        "S 2 1-6; S 3 1-6",
        "S 1 1-6",
        f"S 2 1-{depth} + 9",
        f"Q 1-6 = 1:6 2:6 3:6; Q 1-{depth},9 = 1:{depth} 2:{depth + 1} 3:{depth}",
        site=Site.STORE_PLANNED,
        busy=False,
    )
    assert sites == {Site.STORE_PLANNED}
    assert stage.index.stats().replans > before


def test_r4_a_plan_to_cover_less_than_the_split_leaves(stage: Stage) -> None:
    """The splitter promotes the rank's own prefix meanwhile: no credit behind it."""
    race(
        stage,
        "S 2 1-6; S 1 1,2",
        "S 1 1,2 + 3,4",
        "S 2 1-3 + 9",
        "Q 1-6 = 1:4 2:6; Q 1-3,9 = 1:3 2:4",
        site=Site.STORE_PLANNED,
        busy=False,
    )


def test_r5_a_split_above_the_planned_parent(stage: Stage) -> None:
    """The child lands under the suffix, where the parent block is now."""
    setup = "S 1 1-6; S 2 1-6; S 3 1-6; S 3 1-6 + 7; S 3 1-6 + 8"
    sites = race(
        stage,
        setup,
        "S 1 1-6 + 5",
        "S 2 1-3 + 9",
        "Q 1-6,5 = 1:7 2:6 3:6; Q 1-3,9 = 1:3 2:4 3:3; E 1,1,1,1,3,3",
        site=Site.STORE_PLANNED,
        busy=False,
    )
    assert sites
    race(stage, setup, "S 2 1-3 + 9", "S 1 1-6 + 5", "Q 1-6,5 = 1:7 2:6 3:6; E 1,1,1,1,3,3")


def test_r6_the_leaf_grows_and_a_deeper_child_begins_alike(stage: Stage) -> None:
    """Planned under a tail that is no tail any more: not into the deeper child of the same first hash."""
    race(
        stage,
        "S 1 1-3; S 2 1-3; S 3 1-3",
        "S 1 1-3 + 7,8",
        "S 2 1-3 + 4-6; S 3 1-3 + 4-6; S 2 1-6 + 9; S 3 1-6 + 7,8",
        "Q 1-3,7,8 = 1:5 2:3 3:3; Q 1-6,7,8 = 1:3 2:6 3:8; E 1,2,2,3,3",
        site=Site.STORE_PLANNED,
        busy=False,
    )


@pytest.mark.parametrize(
    ("setup", "above", "edges"),
    [
        ("", "", "2"),
        ("S 3 1,2; S 3 1,2 + 9; S 3 1,2 + 8; S 1 1,2; S 2 1,2", "1,2 + ", "1,1,2,2"),
        ("S 3 1,2; S 1 1,2; S 2 1,2", "1,2 + ", "4"),
    ],
    ids=["root", "internal", "leaf"],
)
def test_r7_one_child_key(stage: Stage, setup: str, above: str, edges: str) -> None:
    """Both find it free: one node."""
    top = 0 if not above else 2
    query = "5,6" if not above else "1,2,5,6"
    third = "" if not above else " 3:2"
    result = f"Q {query} = 1:{top + 2} 2:{top + 2}{third}; E {edges}"
    sites = race(stage, setup, f"S 1 {above}5,6", f"S 2 {above}5,6", result)
    assert edges == "4" or {Site.SPACE_LOCKED, Site.CHILD_ENTERED, Site.SPACE_UNLOCKED} <= sites


def test_r7_one_child_key_different_tails(stage: Stage) -> None:
    """The second one splits the new child."""
    race(
        stage,
        "S 3 1,2; S 3 1,2 + 9; S 3 1,2 + 8; S 1 1,2; S 2 1,2",
        "S 1 1,2 + 5,6",
        "S 2 1,2 + 5,7",
        "Q 1,2,5,6 = 1:4 2:3 3:2; Q 1,2,5,7 = 1:3 2:4 3:2; E 1,1,1,1,1,2",
    )


@pytest.mark.parametrize("order", ["promotion first", "split first"])
def test_r8_a_promotion_and_a_split(stage: Stage, order: str) -> None:
    """The rank is on both halves, or on neither."""
    one, two = "S 1 1-6", "S 2 1-3 + 9"
    first, second = (one, two) if order == "promotion first" else (two, one)
    race(
        stage, "S 2 1-6; S 3 1-4", first, second, "Q 1-6 = 1:6 2:6 3:4; Q 1-3,9 = 1:3 2:4 3:3; E 1,3,3; N 1 6"
    )


def test_r20_words_of_one_node_in_every_form(stage: Stage) -> None:
    """Two ranks get words where the inline ones, then those of the list, have just run out."""
    seen = set()
    for others in (2, 3, 6, 7, 8):
        setup = "; ".join(f"S {3 * i} 1-4" for i in range(1, others + 1))
        scores = " ".join(f"{3 * i}:4" for i in range(1, others + 1))
        seen |= race(stage, setup, "S 1 1-4", "S 2 1-3", f"Q 1-4 = 1:4 2:3 {scores}; E 4")
    assert {Site.WORD_ENTERED, Site.HEAD_PUBLISHED} <= seen


def test_four_ranks_add_their_own_tails(stage: Stage) -> None:
    """Scenario 76: no rank ever more than its own, edges 2,2,2,2,4."""
    setup = "; ".join(f"S {r} 1-4" for r in (1, 2, 3, 5))
    result = "; ".join(
        f"Q 1-4,{r}0,{r}1 = " + " ".join(f"{x}:{6 if x == r else 4}" for x in (1, 2, 3, 5))
        for r in (1, 2, 3, 5)
    )
    race(
        stage,
        setup,
        "S 1 1-4 + 10,11",
        "S 2 1-4 + 20,21; S 3 1-4 + 30,31; S 5 1-4 + 50,51",
        result + "; E 2,2,2,2,4",
    )
