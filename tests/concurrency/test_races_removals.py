"""Removals beside splits, stores and one another: the first operation pauses at each of its points in turn.

R numbers are those of the races that are named for trees of this kind.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shmtrie.kernels.hooks import Site
from tests.concurrency.stage import Stage, race
from tests.reference import Rank

pytestmark = pytest.mark.race


@pytest.mark.parametrize("split", [1, 2, 3])
def test_a_removal_finds_what_a_split_takes_away(stage: Stage, split: int) -> None:
    """The block's node is known, then a split gives the block to a suffix: it is removed there."""
    path = ",".join(map(str, range(1, split + 1)))
    sites = race(
        stage,
        "S 1 1-4; S 2 1-4",
        "R 1 1-4 @ 4",
        f"S 2 {path},9",
        f"Q 1-4 = 1:3 2:4; N 1 3; Q {path},9 = 1:{split} 2:{split + 1}",
    )
    assert {Site.PLACE_FOUND, Site.REMOVE_GATED} <= sites


def test_a_parent_that_a_split_takes_away_is_found(stage: Stage) -> None:
    """The parent block moves into a suffix while it is looked up."""
    sites = race(stage, "S 1 1-4; S 2 1-4", "S 1 1-4 + 5", "S 2 1,2 + 9", "Q 1-5 = 1:5 2:4; N 1 5")
    assert Site.PLACE_FOUND in sites


def test_a_moved_hash_that_a_split_takes_away_is_found(stage: Stage) -> None:
    """The place that a store takes the hash from moves into a suffix meanwhile."""
    sites = race(
        stage,
        "X 1 . + 1:901,2:902,3:903,4:904; X 2 . + 1:901,2:902,3:903,4:904",
        "X 1 . + 7:904",
        "X 2 . + 1:901,9:909",
        "Q 1-4 = 1:3 2:4; Q 7 = 1:1; N 1 4",
    )
    assert Site.PLACE_FOUND in sites


def test_a_moved_hash_at_the_parent_or_above(stage: Stage) -> None:
    """Refused, also when a split comes between the two looks at the parent and at the place."""
    sites = race(
        stage,
        "X 1 . + 1:901,2:902,3:903,4:904; X 2 . + 1:901,2:902,3:903,4:904",
        "X 1 #904 + 7:903",
        "X 2 . + 1:901,9:909",
        "Q 1-4 = 1:4 2:4; Q 1-4,7 = 1:4 2:4; N 1 4",
    )
    assert Site.PLACE_FOUND in sites


@pytest.mark.parametrize("order", ["split first", "removal first"])
def test_r9_a_split_and_a_removal_of_what_it_moves(stage: Stage, order: str) -> None:
    """Then the block comes back: the full score."""
    one, two = "S 2 1,2,9", "R 1 1-4 @ 3,4; S 1 1-2 + 3,4"
    if order == "split first":
        race(stage, "S 1 1-4; S 2 1-4", one, two, "Q 1-4 = 1:4 2:4; Q 1,2,9 = 1:2 2:3; N 1 4")
    else:
        race(stage, "S 1 1-4; S 2 1-4", "R 1 1-4 @ 3,4", one, "Q 1-4 = 1:2 2:4; Q 1,2,9 = 1:2 2:3; N 1 2")


def test_r10_one_ranks_removal_leaves_anothers_children(stage: Stage) -> None:
    """The other rank's score does not move while the first removes everything above."""

    def watch(stage: Stage, at: int) -> None:
        assert stage.scores(stage.path_of("1-6"))[2, 0] == 6
        assert stage.reader.find(stage.path_of("1-6"))[2, 0] == 6

    race(
        stage,
        "S 1 1-3; S 2 1-6; S 3 1-3,9; S 1 1-6",
        "R 1 1-6",
        "S 3 1-3,9 + 8",
        "Q 1-6 = 2:6 3:3; Q 1-3,9,8 = 2:3 3:5; N 2 6",
        watch=watch,
    )


@pytest.mark.parametrize("kept", [1, 3], ids=["partly moved", "wholly moved"])
def test_r11_r12_a_batch_that_a_split_moves(stage: Stage, kept: int) -> None:
    """Blocks 3 to 6 go in one event, while a split moves some or all of them."""
    path = ",".join(map(str, range(1, kept + 1)))
    for order in ("6,5,4,3", "3-6", "5,3,6,4"):
        race(
            stage,
            "S 1 1-6; S 2 1-6",
            f"R 1 1-6 @ {order}",
            f"S 2 {path},9",
            f"Q 1-6 = 1:2 2:6; N 1 2; Q {path},9 = 1:{min(kept, 2)} 2:{kept + 1}",
        )


@pytest.mark.parametrize("kept", [1, 2, 3, 4, 5])
def test_r19_a_grouped_removal_of_a_chain_that_is_restored_in_part(stage: Stage, kept: int) -> None:
    """Block 2 was removed and came back with 3: what the event names behind it counts no more, and nothing
    of it comes back, wherever another lane splits the edge meanwhile.
    """
    path = ",".join(map(str, range(1, kept + 1)))
    for order in ("3-6", "6,3", "5,3,6", "4,2"):
        left = 1 if "2" in order else 2
        # block 3 stays held behind the hole where the split gave it to the suffix first
        count = "" if "2" in order else f"; N 1 {left}"
        race(
            stage,
            "S 1 1-6; S 2 1-6; R 1 1-6 @ 2; S 1 1-1 + 2,3",
            f"R 1 1-6 @ {order}",
            f"S 2 {path},9",
            f"Q 1-6 = 1:{left} 2:6; Q {path},9 = 1:{min(kept, left)} 2:{kept + 1}{count}",
        )


def test_r13_a_tail_first_eviction_over_a_moved_edge(stage: Stage) -> None:
    """One repair, then every entry is right."""
    stage.play("S 1 1-8; S 2 1-8; S 2 1-2,9")
    before = stage.index.stats().repairs
    for block in range(8, 0, -1):
        stage.play(f"R 1 1-8 @ {block}")
    assert stage.index.stats().repairs == before + 1
    stage.settle()
    stage.drain()


def test_r14_a_stale_parent_is_repaired_once(stage: Stage) -> None:
    """Then the leaf extension goes into the suffix."""
    stage.play("S 1 1-6; S 2 1-6; S 2 1-2,9")
    before = stage.index.stats().repairs
    stage.play("S 1 1-6 + 7; S 1 1-7 + 8")
    assert stage.index.stats().repairs == before + 1
    stage.expect("Q 1-8 = 1:8 2:6; E 1,2,4|1,2,6")
    stage.settle()
    stage.drain()


def test_r15_a_parent_that_is_there_but_not_covered(stage: Stage) -> None:
    """Refused at once, at any point of the other rank's split."""
    race(
        stage,
        "S 1 1-6; S 2 1-6; R 1 1-6 @ 4-6",
        "S 1 1-5 + 9",
        "S 2 1,2,8",
        "Q 1-6 = 1:3 2:6; N 1 3",
    )


def test_r16_a_parent_whose_node_is_gone(stage: Stage) -> None:
    """Reclaimed, and its id used by another chain: refused."""
    race(
        stage,
        "S 1 1-3; S 1 1-3 + 4; S 2 1-3; S 2 1-3 + 5; R 1 1-4; S 2 7-9; S 2 7-9 + 4",
        "S 1 1-4 + 6",
        "S 2 1-3,8",
        "Q 1-4,6 = 2:3; N 1 0",
    )


def test_r17_a_removal_after_a_split_and_the_end_of_its_children(stage: Stage) -> None:
    """Nothing is left of the rank, in the index or in its lookup."""
    race(
        stage,
        "S 1 1-4; S 2 1-4; S 2 1-2,9",
        "R 1 1-4 @ 4,3,2,1",
        "R 2 1-2,9; R 2 1-4",
        "Q 1-4 = ; Q 1-2,9 = ; N 1 0; N 2 0; E ",
    )


def test_r18_a_repair_brings_nothing_back(make_stage: Callable[[dict[Rank, int]], Stage]) -> None:
    """Two ranks of one lane: what one has given up stays so when the other's entries are repaired."""
    stage = make_stage({(1, 0): 0, (4, 0): 0, (2, 0): 1})
    stage.play("S 1 1-6; S 4 1-6; S 2 1-6; R 4 1-6 @ 5,6; S 2 1-2,9; S 1 1-6 + 7")
    stage.play("R 4 1-6 @ 6")
    stage.expect("Q 1-7 = 1:7 2:6 4:4")
    (op,) = stage.ops("S 4 1-6 + 8")
    assert stage.lane_of((4, 0)).apply(op) == "ParentBlockNotFound"
    stage.note(op, "ParentBlockNotFound")
    stage.settle()
    stage.drain()


@pytest.mark.parametrize("order", ["removal first", "store first"])
def test_r27_a_cleanup_and_a_store_that_revives(stage: Stage, order: str) -> None:
    """The last holder goes while another rank stores the same chain: 5 either way."""
    one, two = "R 1 1-5 @ 3-5", "S 2 1-2 + 3-5"
    first, second = (one, two) if order == "removal first" else (two, one)
    race(stage, "S 1 1-5; S 2 1-2; S 3 1-2", first, second, "Q 1-5 = 1:2 2:5 3:2; N 2 5; E 5|2,3")


@pytest.mark.parametrize("order", ["removal first", "store first"])
def test_r27_the_last_node_goes_and_comes(stage: Stage, order: str) -> None:
    """The whole chain is given up while another rank stores it."""
    first, second = ("R 1 1-5", "S 2 1-5") if order == "removal first" else ("S 2 1-5", "R 1 1-5")
    sites = race(stage, "S 1 1-5", first, second, "Q 1-5 = 2:5; N 1 0; N 2 5; E 5")
    assert order == "store first" or Site.RECLAIM_GATED in sites


def test_r28_a_cleanup_never_reopens_an_edge(stage: Stage) -> None:
    """A node that has had a child gets children, and is not extended."""
    race(
        stage,
        "S 1 1-3; S 2 1-3; S 3 1-3; S 3 1-3 + 4; S 1 1-3 + 5; R 3 1-4 @ 4",
        "R 1 1-3,5 @ 4",
        "S 2 1-3 + 6,7",
        "Q 1-3,6,7 = 1:3 2:5 3:3; E 2,3",
    )


def test_two_last_holders_leave_at_once(stage: Stage) -> None:
    """One of them tidies."""
    race(stage, "S 1 1-5; S 2 1-5", "R 1 1-5", "R 2 1-5", "Q 1-5 = ; E ")
    race(stage, "S 1 1-5; S 2 1-5", "R 1 1-5 @ 3-5", "R 2 1-5 @ 3-5", "Q 1-5 = 1:2 2:2; E 2")


def test_a_parent_is_split_while_its_last_child_goes(stage: Stage) -> None:
    """Nobody covers the parent's tail: whoever owns the child's space at the end tidies it."""
    race(
        stage,
        "S 3 1-2; S 1 1-4; S 1 1-4 + 5; S 2 1-2; R 1 1-4 @ 3",
        "R 1 1-5 @ 5",
        "S 2 1,9",
        "Q 1-5 = 1:2 2:2 3:2; Q 1,9 = 1:1 2:2 3:1; E 1,1,1",
    )


def test_a_chain_of_empty_parents_goes_upward(stage: Stage) -> None:
    """All of it, whatever another rank does beside it."""
    race(
        stage,
        "S 1 1; S 1 1 + 2; S 2 1; S 2 1 + 3; S 1 1,2 + 4; S 2 1,2; S 2 1,2 + 5; R 1 1-2; R 2 1,2,5; R 2 1,3",
        "R 1 1,2,4 @ 3",
        "S 2 7",
        "Q 7 = 2:1; Q 1,2,4 = ; E 1",
    )


@pytest.mark.parametrize("split", [3, 4, 5])
def test_a_run_of_removals_is_split(stage: Stage, split: int) -> None:
    """Planned as one cut of one node; then a split takes a part of the run away, before the gate is taken."""
    path = ",".join(map(str, range(1, split + 1)))
    sites = race(
        stage,
        "S 1 1-6; S 2 1-6",
        "R 1 1-6 @ 6,5,4,3",
        f"S 2 {path},9",
        f"Q 1-6 = 1:2 2:6; N 1 2; Q {path},9 = 1:2 2:{split + 1}",
        site=Site.REMOVE_PLANNED,
        busy=False,
    )
    assert sites == {Site.REMOVE_PLANNED}


@pytest.mark.parametrize("kind", ["own hashes", "the edge's"])
def test_several_moved_hashes_of_one_node_are_split(stage: Stage, kind: str) -> None:
    """A store takes three hashes from one node; a split gives some of their places to a suffix meanwhile."""
    second = 900 if kind == "the edge's" else 800
    chain = ",".join(f"{k}:{second + k}" for k in range(1, 5))
    sites = race(
        stage,
        f"X 2 . + {chain}; X 1 . + 1:901,2:902,3:903,4:904",
        "X 1 . + 7:902,8:903,6:904",
        f"X 2 #{second + 2} + 9:999",
        "Q 1-4 = 1:1 2:4; Q 7,8,6 = 1:3; N 1 4",
    )
    assert Site.STORE_PLANNED in sites and (kind == "own hashes" or Site.PLACE_FOUND in sites)
