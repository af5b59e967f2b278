"""Clears, removals of workers and the slots they free, beside splits and stores of other lanes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shmtrie.kernels import hooks
from shmtrie.kernels.hooks import Site
from tests.concurrency.actor import Fleet
from tests.concurrency.stage import Stage, mentions, race
from tests.reference import OK, Rank

pytestmark = pytest.mark.race


@pytest.mark.parametrize("split", [1, 2, 3])
def test_r21_a_clear_reaches_suffixes(stage: Stage, split: int) -> None:
    """Whatever id a suffix has that a split makes while the sweep is under way."""
    path = ",".join(map(str, range(1, split + 1)))
    sites = race(
        stage,
        "S 2 8; S 2 8 + 7; S 1 1-4; S 2 1-4; S 1 5,6; R 2 8,7",
        "C 1",
        f"S 2 {path},9",
        f"Q 1-4 = 2:4; Q {path},9 = 2:{split + 1}; Q 5,6 = ; N 1 0",
    )
    assert {Site.SWEEP_NODE, Site.SWEEP_CUT} <= sites


def test_r21_a_clear_and_two_splits_of_one_node(stage: Stage) -> None:
    """The chain of suffixes grows in front of the sweep and behind it."""
    race(
        stage,
        "S 1 1-6; S 2 1-6; S 3 1-6",
        "C 1",
        "S 2 1-4,9; S 3 1,2,9",
        "Q 1-6 = 2:6 3:6; Q 1-4,9 = 2:5 3:4; Q 1,2,9 = 2:2 3:3; N 1 0",
    )


@pytest.mark.parametrize("order", ["clear first", "split first"])
def test_r22_a_split_copies_nothing_that_was_cleared(stage: Stage, order: str) -> None:
    """Then the head is stored again: nothing behind it comes back."""
    split, clear = "S 2 1-2,9", "C 1"
    if order == "clear first":
        race(stage, "S 1 1-4; S 2 1-4", clear, split, "Q 1-4 = 2:4; Q 1-2,9 = 2:3; N 1 0")
    else:
        race(stage, "S 1 1-4; S 2 1-4", split, clear + "; S 1 1-2", "Q 1-4 = 1:2 2:4; N 1 2")


def test_r23_the_ranks_of_a_worker(stage: Stage) -> None:
    """A clear is for one rank, a removal for all of the worker's."""
    race(stage, "S 1 1-3; S 1/1 1-3; S 2 1-3", "C 1/1", "S 2 1-2,9", "Q 1-3 = 1:3 2:3; N 1 3; N 1/1 0")
    race(stage, "S 1 1-3; S 1/1 1-3; S 2 1-3", "W 1", "S 2 1-2,9", "Q 1-3 = 2:3; Q 1-2,9 = 2:3")


def test_r24_a_removal_beside_a_split(stage: Stage) -> None:
    """At every point of the removal: the split's suffix keeps nothing of it."""
    race(stage, "S 1 1-4; S 2 1-4; S 2 5,6", "W 1", "S 2 1-2,9", "Q 1-4 = 2:4; Q 1-2,9 = 2:3")


@pytest.mark.parametrize("owner", ["S 1 1-4 + 5,6", "R 1 1-4 @ 2-4", "C 1", "S 1 1-2,9"])
def test_a_removal_beside_its_ranks_own_lane(stage: Stage, owner: str) -> None:
    """The lane that owns the rank is in the middle of something: the removal hides the rank at once, and
    frees the slot when that lane is through. What the lane then does finds no rank.
    """
    remover = stage.writers[1]
    for countdown in range(1, 500):
        stage.begin()
        stage.play("S 1 1-4; S 2 1-4")
        (op,) = stage.ops(owner)
        actor = stage.actor(op)
        at = actor.pause_at(hooks.ANY_SITE, countdown, "apply", op)
        if at is None:
            actor.end()
            assert countdown > 3
            return
        assert remover.apply(("remove_worker", 1)) == OK
        assert (1, 0) not in stage.scores(stage.path_of("1-4"))
        assert (1, 0) not in stage.reader.find(stage.path_of("1-4"))
        actor.resume_pause()
        actor.outcome()
        # either way the rank can be stored anew, and nothing of before is there
        assert remover.apply(("remove_worker", 1)) == OK
        assert stage.scores(stage.path_of("1-4")) == {(2, 0): 4}, Site(at)
        again = stage.ops("S 1 1")[0]
        assert actor.apply(again) == OK
        assert stage.scores(stage.path_of("1-4")) == {(2, 0): 4, (1, 0): 1}, Site(at)
        stage.oracle.apply(("clear", (1, 0)), OK)
        stage.oracle.apply(again, OK)
        stage.settle()
        stage.drain()
    raise AssertionError("an operation with too many points")


@pytest.mark.parametrize("site", [Site.SLOT_MARKED, Site.SWEEP_NODE, Site.WORD_CUT, Site.SWEEP_CUT])
def test_r29_one_removal_at_a_time(stage: Stage, site: Site) -> None:
    """Another lane that removes the same worker, or registers a rank, waits for the first removal and is
    refused when that is stopped; nothing is stuck afterwards, and the slot is freed once.
    """
    stage.play("S 1 1-4; S 1/1 1-3; S 2 1-4")
    remover, other = stage.writers[0], stage.writers[1]
    assert remover.pause_at(site, 1, "apply", ("remove_worker", 1)) is not None
    outcome, message = other.call("apply", ("remove_worker", 1))
    assert outcome == "Busy" and mentions(message, remover), message
    (stored,) = stage.ops("S 2 8")  # who needs no slot and none of its gates goes on
    assert other.apply(stored) == OK
    remover.resume_pause()
    assert remover.outcome()[0] == OK
    assert other.apply(("remove_worker", 1)) == OK
    for op in (stored, ("remove_worker", 1)):
        stage.note(op)
    assert stage.index.segment.header["epoch"] & 0xFFFF == 0
    assert [w.worker for w in stage.index.workers()] == [(2, 0)]
    stage.expect("Q 1-4 = 2:4; Q 8 = 2:1")
    stage.play("S 1 1-3; S 7 1-3")
    stage.settle()
    stage.drain()


def test_r26_a_slot_that_goes_to_another_rank(make_stage: Callable[[dict[Rank, int]], Stage]) -> None:
    """A lane that goes on after its rank was removed writes nothing into a slot that others have by then."""
    stage = make_stage({(7, 0): 1})
    for countdown in range(1, 500):
        stage.begin()
        stage.play("S 1 1-4; S 2 1-4")
        (op,) = stage.ops("S 1 1-4 + 5")
        at = stage.lane_of((1, 0)).pause_at(hooks.ANY_SITE, countdown, "apply", op)
        if at is None:
            stage.lane_of((1, 0)).end()
            return
        stage.writers[1].apply(("remove_worker", 1))
        new = stage.ops("S 7 8")[0]
        assert stage.writers[1].apply(new) == OK
        stage.lane_of((1, 0)).resume_pause()
        stage.lane_of((1, 0)).outcome()
        stage.writers[1].apply(("remove_worker", 1))
        assert stage.scores(stage.path_of("1-5")) == {(2, 0): 4}, Site(at)
        assert stage.scores(stage.path_of("8")) == {(7, 0): 1}, Site(at)
        stage.oracle.apply(("remove_worker", 1), OK)
        stage.oracle.apply(new, OK)
        stage.settle()
        stage.drain()
    raise AssertionError("an operation with too many points")


def test_a_removal_beside_a_stopped_lane(stage: Stage, cast: Fleet) -> None:
    """The slot stays hidden, the call returns, and a later one frees it."""
    stage.play("S 1 1-4; S 2 1-4")
    (op,) = stage.ops("S 1 1-4 + 5")
    owner, remover = stage.lane_of((1, 0)), stage.writers[1]
    assert owner.pause_at(Site.GATE_EXCLUSIVE, 1, "apply", op) is not None
    owner.stop()
    try:
        assert remover.apply(("remove_worker", 1)) == OK
        assert stage.scores(stage.path_of("1-5")) == {(2, 0): 4}
        assert stage.index.segment.header["epoch"] & 0xFFFF == 1
        # the node that it holds is busy, and says who is in the way; others are not
        (busy,) = stage.ops("S 2 1-4 + 6")
        outcome, message = remover.call("apply", busy)
        assert outcome == "Busy" and mentions(message, owner)
        (free,) = stage.ops("S 2 8")
        assert remover.apply(free) == OK
        stage.note(free)
    finally:
        owner.resume()
        owner.resume_pause()
    owner.outcome()
    assert remover.apply(("remove_worker", 1)) == OK
    assert stage.index.segment.header["epoch"] & 0xFFFF == 0
    stage.note(("remove_worker", 1))
    assert stage.scores(stage.path_of("1-5")) == {(2, 0): 4}
    stage.settle()
    stage.drain()
