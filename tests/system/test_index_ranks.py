"""Who writes a rank: ownership, release, adoption by another lane, removal of workers, slots used again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from shmtrie.capacity import Capacity
from shmtrie.errors import BlockNotFound, ParentBlockNotFound, RankOwnedElsewhere
from shmtrie.index import Index
from shmtrie.writer import Writer
from tests.differential import Differential
from tests.reference import Op, Oracle, Rank
from tests.removals import ANY, LEAF_FIRST
from tests.system.children import Child
from tests.system.index_tools import (
    assert_valid,
    changed,
    claimed,
    contents,
    details,
    open_index,
    scores,
    status_of,
)
from tests.workload import Workload


@pytest.fixture
def index() -> Iterator[Index]:
    """A small index that ends valid."""
    with open_index() as made:
        yield made
        assert_valid(made)


def lanes(index: Index) -> dict[Rank, int]:
    """Lane of every known rank."""
    return {tuple(info.worker): info.lane for info in index.workers()}  # type: ignore[misc]


# ------------------------------------------------------------------------------------------------------ owned
def test_owned_elsewhere(index: Index) -> None:
    with index.writer() as a, index.writer() as b:
        a.store((1, 2), None, [1, 2], [1, 2])
        before = contents(index, [[1, 2]])
        named = rf"rank \(1, 2\): belongs to lane {a.lane}: process {os.getpid()}: .*release"
        calls: list[Callable[[], None]] = [
            lambda: b.store((1, 2), None, [3], [3]),
            lambda: b.store((1, 2), 2, [3], [3]),
            lambda: b.store((1, 2), 77, [3], [3]),
            lambda: b.store((1, 2), None, [3, 3], [3, 3]),
            lambda: b.remove((1, 2), [1]),
            lambda: b.remove((1, 2), []),
            lambda: b.clear((1, 2)),
        ]
        for call in calls:
            with pytest.raises(RankOwnedElsewhere, match=named):
                call()
        b.release((1, 2))  # not its own: left alone
        b.release((9, 9))
        assert changed(before, contents(index, [[1, 2]])) == [] and lanes(index) == {(1, 2): a.lane}
        b.store((1, 0), None, [1], [1])  # another rank of that worker
        assert lanes(index) == {(1, 0): b.lane, (1, 2): a.lane}


def test_owned_by_another_process(index: Index) -> None:
    def body(connection: Connection) -> None:
        with index.writer() as writer:
            writer.store(1, None, [1, 2], [1, 2])
            connection.send(writer.lane)
            connection.recv()
            writer.release(1)
            connection.send("released")
            connection.recv()

    with index.writer() as mine, Child(body) as child:
        lane = child.hear()
        with pytest.raises(RankOwnedElsewhere, match=f"lane {lane}: process {child.pid}"):
            mine.store(1, 2, [3], [3])
        child.say()
        child.hear()
        mine.store(1, 2, [3], [3])
        assert scores(index, [1, 2, 3]) == {(1, 0): 3} and lanes(index) == {(1, 0): mine.lane}
        child.say()
        assert child.wait() == 0
        assert lanes(index) == {(1, 0): mine.lane}


def test_released_rank_is_nobodys_until_its_next_event(index: Index) -> None:
    with index.writer() as a, index.writer() as b:
        a.store(1, None, [1, 2], [1, 2])
        a.release(1)
        a.release(1)
        assert lanes(index) == {(1, 0): -1} and scores(index, [1, 2]) == {(1, 0): 2}
        assert status_of(b.store, 1, 99, [3], [3]) == "ParentBlockNotFound"  # also a refused one takes it
        assert status_of(a.store, 1, 2, [3], [3]) == "RankOwnedElsewhere"
        b.release(1)
        b.remove(1, [])
        assert lanes(index) == {(1, 0): b.lane}
        b.release(1)
        a.clear(1)
        assert lanes(index) == {(1, 0): a.lane} and scores(index, [1, 2]) == {}


# --------------------------------------------------------------------------------------------------- adoption
def prepare(w: Writer) -> None:
    """Rank 1 with the edges' own hashes, rank 2 with others, over a long chain, branches and splits."""
    long = np.arange(5_000)
    w.store(1, None, long, long)
    w.store(2, None, long[:4_500], long[:4_500] + 50_000)
    for at in (10, 2_047, 2_048, 2_049, 4_000):
        w.store(1, at, [7, at], [100_000 + at, 200_000 + at])
        w.store(2, 50_000 + at, [8, at], [300_000 + at, 400_000 + at])


@pytest.mark.parametrize("how", ["release", "close", "death"])
def test_adopted_rank_works_exactly(how: str) -> None:
    """The heir's lookup is rebuilt: parents, removes, names and moves of every block, of own hashes too."""
    with open_index(Capacity(blocks=30_000, workers=8, lanes=4)) as index, ExitStack() as stack:
        if how == "death":

            def body(connection: Connection) -> None:
                prepare(index.writer())
                connection.send(None)
                connection.recv()

            with Child(body) as child:
                child.hear()
                child.kill()
        else:
            first = stack.enter_context(index.writer())
            prepare(first)
            if how == "close":
                first.close()
            else:
                first.release(1)
                first.release(2)
        w = stack.enter_context(index.writer())
        for rank, base, n in ((1, 0, 5_000), (2, 50_000, 4_500)):
            for k in (1, 11, 2_048, 4_500):
                assert details(index, range(k))[rank, 0] == (k, base + k - 1)
            for at in (0, 9, 10, 11, 2_046, 2_047, 2_048, 2_049, 3_000, n - 1):
                w.store(rank, base + at, [9], [500_000 + base + at])  # every parent is found
                assert details(index, [*range(at + 1), 9])[rank, 0] == (at + 2, 500_000 + base + at)
                w.remove(rank, [500_000 + base + at])
            branch = {1: (7, 100_000), 2: (8, 300_000)}[rank]
            w.store(rank, branch[1] + 102_048, [6], [600_000])
            assert scores(index, [*range(2_049), branch[0], 2_048, 6])[rank, 0] == 2_052
            w.store(rank, base + n - 1, [5], [600_000])  # moves
            assert scores(index, [*range(2_049), branch[0], 2_048, 6])[rank, 0] == 2_051
            assert details(index, [*range(n), 5])[rank, 0] == (n + 1, 600_000)
            assert status_of(w.store, rank, base + n - 1, [4], [base + 3]) == "InvalidBlockSequence"
            w.store(rank, base + 99, [100], [700_000 + rank])  # another name for a covered place
            assert details(index, range(101))[rank, 0] == (101, 700_000 + rank)
            assert status_of(w.store, rank, base + 100, [4], [3]) == "ParentBlockNotFound"
            w.remove(rank, [base + 50])
            assert scores(index, range(5_000))[rank, 0] == 50
            w.store(rank, base + 49, range(50, 60), np.arange(50, 60) + 800_000)
            assert details(index, range(60))[rank, 0] == (60, 800_059)
        assert_valid(index)
        w.clear(1)
        w.remove_worker(2)
        assert claimed(index) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["clean", "alias", "collide", "chaos"])
def test_ranks_that_wander(index: Index, kind: str) -> None:
    """A rank changes lanes before nearly every event, by release or by the end of its writer."""
    with ExitStack() as stack:
        wandering = Wandering(index, stack)
        oracle = Oracle()
        check = Differential(wandering, oracle, exact=kind in ("clean", "alias"), heavy_every=100)
        ops: list[Op] = []
        removals = ANY if kind == "chaos" else LEAF_FIRST
        for op in Workload(oracle, 5, kind, removals, steps=150, ranks=4):
            ops.append(op)
            check.apply(op)
        assert len(ops) > 150 and claimed(index) == (0, 0, 0)


class Wandering:
    """Three writers; each event goes to the next one, which takes its rank over first."""

    def __init__(self, index: Index, stack: ExitStack) -> None:
        self._index, self._stack, self._turn = index, stack, 0
        self._writers = [stack.enter_context(index.writer()) for _ in range(3)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def _next(self, worker: Any) -> Writer:
        self._turn += 1
        if self._turn % 7 == 0:  # its ranks are anybody's
            self._writers[0].close()
            self._writers[0] = self._stack.enter_context(self._index.writer())
        for writer in self._writers:
            writer.release(worker)
        return self._writers[self._turn % 3]

    def store(self, worker: Any, *arguments: Any) -> None:
        self._next(worker).store(worker, *arguments)

    def remove(self, worker: Any, hashes: Any) -> None:
        self._next(worker).remove(worker, hashes)

    def clear(self, worker: Any) -> None:
        self._next(worker).clear(worker)

    def remove_worker(self, worker_id: int) -> None:
        self._turn += 1
        self._writers[self._turn % 3].remove_worker(worker_id)


# ---------------------------------------------------------------------------------------------------- removal
def test_remove_worker_of_every_lane(index: Index) -> None:
    """Ranks of one worker on three lanes, one of them released, go in one call; nobody else notices."""
    with index.writer() as a, index.writer() as b, index.writer() as c:
        for dp, w in enumerate((a, b, c, b)):
            w.store((1, dp), None, [1, 2, dp], [1, 2, 3 + dp])
        b.release((1, 3))
        c.store(2, None, [1, 2], [1, 2])
        a.remove_worker(1)
        assert lanes(index) == {(2, 0): c.lane}
        for q in range(4):
            assert scores(index, [1, 2, q]) == {(2, 0): 2}
        for dp, w in enumerate((a, b, c, b)):
            with pytest.raises(BlockNotFound):
                w.remove((1, dp), [1])
            with pytest.raises(ParentBlockNotFound):
                w.store((1, dp), 2, [9], [9])
            w.clear((1, dp))
        assert lanes(index) == {(2, 0): c.lane}
        c.store((1, 0), None, [1], [5])  # anew, on another lane
        assert details(index, [1]) == {(1, 0): (1, 5), (2, 0): (1, 1)}
        assert status_of(a.store, (1, 0), 5, [2], [6]) == "RankOwnedElsewhere"
        for w in (a, b, a):
            w.remove_worker(77)
            w.remove_worker(1)
        assert scores(index, [1]) == {(2, 0): 1}


def test_slots_are_used_again(index: Index) -> None:
    """Workers come and go on all lanes, in the same few slots; every answer is about the present ones."""
    with index.writer() as a, index.writer() as b:
        writers = (a, b)
        for turn in range(300):
            worker, w = 1_000 + turn, writers[turn % 2]
            w.store((worker, 0), None, [1, 2, turn], [1, 2, 3])
            w.store((worker, 1), None, [1, 9], [4, 5])
            if turn >= 3:
                writers[turn // 2 % 2].remove_worker(worker - 3)
            present = range(max(1_000, worker - 2), worker + 1)
            assert scores(index, [1, 2]) == {(p, 0): 2 for p in present} | {(p, 1): 1 for p in present}
            assert details(index, [1, 2, turn])[worker, 0] == (3, 3)
            assert len(index.workers()) == 2 * len(present)
            assert index.best_match([1, 2, turn]) == ((worker, 0), 3)
        slots = index.segment.view("rank_states")["state"] & np.uint64(0xFF)
        assert np.count_nonzero(slots) == 6 and int(index.segment.header["epoch"]) & 0xFFFF == 0


def test_slot_of_a_lane_that_was_not_told(index: Index) -> None:
    """One lane's rank is removed by another, its slot goes to a third's; then the rank comes back."""
    with index.writer() as a, index.writer() as b, index.writer() as c:
        for turn in range(20):
            a.store(1, None, [1, 2, 3], [1, 2, 3])
            b.remove_worker(1)
            c.store(2, None, [1, 2], [2, 1])
            assert status_of(a.store, 1, 3, [4], [4]) == "ParentBlockNotFound"
            a.store(1, None, [1], [turn + 5])
            assert details(index, [1, 2, 3]) == {(1, 0): (1, turn + 5), (2, 0): (2, 1)}
            a.store(1, turn + 5, [2, 3], [2, 3])
            c.remove(2, [1])
            assert details(index, [1, 2, 3]) == {(1, 0): (3, 3), (2, 0): (1, 2)}
            a.remove_worker(2)
            b.remove_worker(1)
            assert claimed(index) == (0, 0, 0) and index.workers() == []


def test_ids_that_come_and_go_leave_nothing() -> None:
    """A lane keeps nothing of ranks that others removed: new worker ids for ever."""
    with (
        open_index(Capacity(blocks=1_000, workers=4, lanes=2)) as index,
        index.writer() as a,
        index.writer() as b,
    ):
        sizes = []
        for turn in range(3_000):
            a.store(turn, None, [1], [1])
            b.remove_worker(turn)
            if turn in (999, 2_999):
                sizes.append(sum(area.nbytes for area in a._work.context.owners()))
        assert sizes[0] == sizes[1] and len(a._work.context._mapped) <= 4
