"""Races that show what single safety mechanisms are for: without one of them its test here fails. Which it is
stands in ``scripts/mutations.py``, next to the other tests' mechanisms.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shmtrie.kernels import hooks
from shmtrie.kernels.hooks import Site
from tests.concurrency.stage import MOST, Stage, race, read_race
from tests.differential import expect
from tests.reference import OK, Rank

pytestmark = pytest.mark.race

POINTS = (Site.READER_LOADED, Site.READER_NODE, Site.READER_CHECK)


def test_a_planned_split_of_what_has_been_split(stage: Stage) -> None:
    """The node is another by the time that its gate is taken: the plan is made anew."""
    sites = race(
        stage,
        "S 1 1-6; S 2 1-6; S 3 1-6",
        "S 1 1-4,9",
        "S 2 1,2,8",
        "Q 1-6 = 1:6 2:6 3:6; Q 1-4,9 = 1:5 2:4 3:4; Q 1,2,8 = 1:2 2:3 3:2; E 1,1,2,2,2",
        site=Site.STORE_PLANNED,
        busy=False,
    )
    assert sites


def test_a_planned_split_of_a_node_that_is_another_one(stage: Stage) -> None:
    """Its blocks are gone by then, and its id is that of a node with others."""
    race(
        stage,
        "S 2 1-6",
        "S 1 1-4,9",
        "R 2 1-6; S 2 51-56",
        "Q 1-4,9 = 1:5; Q 51-56 = 2:6; Q 51-54,9 = 2:4; N 1 5; N 2 6",
        site=Site.STORE_PLANNED,
        busy=False,
    )


@pytest.mark.parametrize(("path", "others"), [("1-6", "2:6 3:3"), ("1-3,9,8", "2:3 3:5")])
def test_a_store_over_several_nodes_comes_as_a_whole(stage: Stage, path: str, others: str) -> None:
    """Its words are set one by one, and a reader counts all of them or none."""

    def watch(stage: Stage, at: int) -> None:
        query = stage.path_of(path)
        for found in (stage.scores(query), stage.reader.find(query)):
            expect(found.get((1, 0), 0) in (0, len(query)), "a part of the store:", found, Site(at))

    blocks = 6 if path == "1-6" else 5
    race(
        stage,
        "S 2 1-6; S 3 1-3,9; S 3 1-3,9 + 8",
        f"S 1 {path}",
        "S 3 7",
        f"Q {path} = 1:{blocks} {others}; N 1 {blocks}",
        watch=watch,
    )


def test_a_clear_follows_suffixes_that_are_new(stage: Stage) -> None:
    """In a new segment: the suffix gets an id beyond those that the sweep goes through."""
    sites = race(
        stage,
        "S 1 1-6; S 2 1-6",
        "C 1",
        "S 2 1-3,9",
        "Q 1-6 = 2:6; Q 1-3,9 = 2:4; N 1 0",
        site=Site.SWEEP_NODE,
    )
    assert sites == {Site.SWEEP_NODE}


def test_a_moved_hash_above_a_parent_that_is_not_gated(stage: Stage) -> None:
    """The store changes the parent's child alone, so nothing says that the parent is another node by now."""
    race(
        stage,
        "; ".join(f"X {rank} . + 1:901,2:902,3:903,4:904" for rank in (1, 2))
        + "; X 2 #904 + 5:905; X 2 #904 + 7:907",
        "X 1 #904 + 7:903",
        "X 2 . + 1:901,9:909",
        "Q 1-4 = 1:4 2:4; Q 1-4,7 = 1:4 2:5; N 1 4",
    )


def test_a_slot_that_another_lane_has_by_now(make_stage: Callable[[dict[Rank, int]], Stage]) -> None:
    """Its rank's places are not in this lane's lookup: those of the lane's next rank have to be entered."""
    stage = make_stage({(7, 0): 1})
    stage.play("S 1 8")
    assert stage.writers[1].apply(("remove_worker", 1)) == OK
    stage.note(("remove_worker", 1))
    stage.play("S 7 1-4; S 4 1-4; S 4 1-4 + 5")
    stage.expect("Q 1-5 = 4:5 7:4; Q 8 =")
    stage.settle()
    stage.drain()


def _list(more: str) -> str:
    """Eight ranks on one node: the list of its words is full."""
    return "; ".join(f"S {rank} 1-4" for rank in range(1, 9)) + more


#: name: setup, query, what happens meanwhile
CHANGES = {
    "a list becomes an array and is used again": (_list(""), "1-4", "S 9 1-4; S 12 51-54; S 15 61-64"),
    # the ids, and the spaces that they own, come back in another tree: [7, 8] is where [1, 2] was
    "another parent in the same place": (
        "S 1 1,2,4; S 4 1,2,3",
        "1-3",
        "R 4 1,2,3; R 1 1,2,4; S 1 7,8,5; S 1 7,8,3; R 1 7,8,3; R 1 7,8,5; S 1 7,8,5; S 1 7,8,3",
    ),
    "another child of the same id": ("S 3 1,2; S 3 1,4; S 6 1", "1,2", "R 3 1,2 @ 2; S 6 1,5"),
    "another tail of the same length": ("S 1 1-2; S 2 1-4", "1-4", "R 2 1-4 @ 3,4; S 1 1-2 + 8,9"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_readers_see_one_moment(stage: Stage, change: str) -> None:
    """As the test of that name in test_races_readers.py."""
    setup, query, script = CHANGES[change]
    assert read_race(stage, setup, query, script, POINTS) >= len(POINTS)


def test_a_reader_that_begins_in_the_middle_of_a_split(stage: Stage) -> None:
    """It has the shorter tail and still the longer edge, whose extent is another's when it reads the hash of
    its last block.
    """
    reader, pauses = stage.reader, 0
    for countdown in range(1, MOST):
        stage.begin()
        stage.play("S 1 1-40; S 2 1-40")
        asked = stage.path_of("1,2")
        (op,) = stage.ops("S 2 1,2,99")
        actor = stage.actor(op)
        begun = actor.pause_at(hooks.ANY_SITE, countdown, "apply", op) is not None
        waits = begun and reader.pause_at(Site.READER_NODE, 1, "find_details", asked) is not None
        if begun:
            actor.resume_pause()
        outcome, _ = actor.outcome()
        stage.note(op, outcome)
        if begun:
            stage.play("S 2 201-238; S 2 301-338")
            if waits:
                pauses += 1
                reader.resume_pause()
            found = reader.end()
            own = stage.oracle.own_hash((1, 0), asked, 2)
            expect(
                found[1, 0] == (2, own),
                "details",
                found[1, 0],
                "not",
                (2, own),
                "after a pause at",
                countdown,
            )
        stage.settle()
        stage.drain()
        if not begun:
            break
    assert pauses
