"""`resize`: everything is in the copy, whoever dies; writers are told, readers go on."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmtrie import cli
from shmtrie import resize as module
from shmtrie.capacity import Capacity
from shmtrie.errors import (
    Busy,
    CapacityExceeded,
    EventStatus,
    ParentBlockNotFound,
    SegmentCorrupt,
    SegmentExists,
    SegmentNoSpace,
    SegmentNotFound,
    SegmentRetired,
    ShmtrieError,
)
from shmtrie.events import (
    KvCacheEvent,
    KvCacheRemoveData,
    KvCacheStoreData,
    KvCacheStoredBlockData,
    RouterEvent,
    split_event,
)
from shmtrie.index import Index
from shmtrie.layout import RETIRED, SLOT_ACTIVE, SLOT_DYING, SUCCEEDING
from shmtrie.recovery import LaneRecovery
from shmtrie.segment import Segment
from shmtrie.shmfile import successor_name
from shmtrie.succession import Succession
from tests.differential import run_stream
from tests.hooks import die
from tests.removals import ANY, LEAF_FIRST, MIDDLE
from tests.system.children import Child
from tests.system.doomed import Doomed
from tests.system.index_tools import assert_valid, changed, contents, details, open_index, scores
from tests.system.steps import STEPS, stop_at
from tests.system.test_index_handles import WRITER_CALLS
from tests.workload import KINDS

SHM = Path("/dev/shm")
CAPACITY = Capacity(blocks=2_000, workers=8, lanes=4)
LARGER = Capacity(blocks=9_000, workers=70, lanes=6)
QUERY = [1, 2, 3]
HERE = {(1, 0): 3}


@contextmanager
def tidied(index: Index) -> Iterator[None]:
    """What has the name at the end goes, and what is left of a successor."""
    try:
        yield
    finally:
        for name in (index.name, successor_name(index.name)):
            with suppress(SegmentNotFound):
                Index.unlink(name)


@pytest.fixture
def index() -> Iterator[Index]:
    """Rank 1 holds the query."""
    with open_index(CAPACITY, block_size=16, model="m", mode=0o640) as made, tidied(made):
        with made.writer() as writer:
            writer.store(1, None, QUERY, [11, 12, 13])
        yield made


@contextmanager
def successor(index: Index) -> Iterator[Index]:
    """What has the name now, for writing."""
    with Index.attach(index.name, read_only=False) as new:
        assert not new.retired and new.segment.uuid != index.segment.uuid
        yield new
        assert_valid(new)


def ranks(index: Index) -> list[Any]:
    """What is known of the ranks, but for their lanes."""
    return [info._replace(lane=-1) for info in index.workers()]


# ------------------------------------------------------------------------------------------------ content
class Resized:
    """An index that is resized again and again, beside a twin that is not: both have to be alike."""

    SIZES = (LARGER, CAPACITY, Capacity(blocks=2_500, workers=8, lanes=2, aliases=500))

    def __init__(self, stack: ExitStack, every: int, exact_holes: bool) -> None:
        self._twin = stack.enter_context(open_index(CAPACITY, exact_holes=exact_holes))
        self._twin_writer = stack.enter_context(self._twin.writer())
        first = stack.enter_context(open_index(CAPACITY, exact_holes=exact_holes))
        stack.enter_context(tidied(first))
        self._stack, self._every, self._n = stack, every, 0
        self._index, self._writer = first, first.writer()
        stack.callback(lambda: self._writer.close())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def find_match_details(self, query: Any) -> Any:
        assert details(self._index, query) == details(self._twin, query)
        return self._index.find_match_details(query)

    def _both(self, name: str, *arguments: Any) -> None:
        self._n += 1
        if self._n % self._every == 0:
            self._resize()
        said: list[Exception | None] = []
        for writer in (self._writer, self._twin_writer):
            try:
                said.append(getattr(writer, name)(*arguments))
            except ShmtrieError as error:
                said.append(error)
        assert type(said[0]) is type(said[1])
        assert ranks(self._index) == ranks(self._twin)
        if said[0] is not None:
            raise said[0]

    def _resize(self) -> None:
        old = self._index
        old.resize(self.SIZES[self._n // self._every % len(self.SIZES)])
        with pytest.raises(SegmentRetired):
            self._writer.store(1, None, [1], [1])
        self._writer.close()
        self._index = Index.attach(old.name, read_only=False)
        self._stack.callback(self._index.close)
        self._writer = self._index.writer()
        assert_valid(self._index)
        for field in ("blocks", "unique_blocks", "nodes", "ranks"):
            assert getattr(self._index.stats(), field) == getattr(self._twin.stats(), field), field
        assert ranks(self._index) == ranks(old) and self._index.dump_events() == old.dump_events()
        old.close()

    def store(self, *arguments: Any) -> None:
        self._both("store", *arguments)

    def remove(self, *arguments: Any) -> None:
        self._both("remove", *arguments)

    def clear(self, *arguments: Any) -> None:
        self._both("clear", *arguments)

    def remove_worker(self, *arguments: Any) -> None:
        self._both("remove_worker", *arguments)


@pytest.mark.parametrize(
    ("removals", "exact_holes"),
    [(LEAF_FIRST, False), (ANY, False), (MIDDLE, True)],
    ids=["leaf-first", "any", "exact-holes"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_streams(kind: str, removals: str, exact_holes: bool) -> None:
    """Later events find what they would have found, behind cuts too: the copy has the same nodes."""

    @contextmanager
    def opened() -> Iterator[Resized]:
        with ExitStack() as stack:
            yield Resized(stack, 23, exact_holes)

    for seed in range(2):
        # dumps are reloaded at the end only
        run_stream(opened, seed, kind, removals, exact_holes, heavy_every=10**9, steps=100)


def test_many_ranks_on_one_path() -> None:
    """Lists and arrays of coverage, cut short and with hashes of their own; the copy has fewer slots."""
    generator = random.Random(5)
    local = list(range(1, 41))
    with open_index(Capacity(blocks=9_000, workers=300, lanes=2, aliases=9_000)) as index, tidied(index):
        with index.writer() as writer:
            for worker in range(150):
                if worker % 3 == 0:
                    writer.store(1_000 + worker, None, local, local)
                own = 1_000 * (worker + 1) if worker % 4 == 0 else 0
                hashes = [own + h for h in local]
                writer.store(worker, None, local, hashes)
                writer.remove(worker, hashes[generator.randrange(1, 41) :])
                if worker % 5 == 0:
                    writer.store(worker, None, [1, 2, 100 + worker], [own + 1, own + 2, own + 100 + worker])
            for worker in range(150):
                writer.remove_worker(1_000 + worker)
        queries = [local, *([1, 2, 100 + worker] for worker in range(0, 150, 5))]
        answers = [details(index, query) for query in queries]
        index.resize(Capacity(blocks=4_000, workers=151, lanes=2, aliases=4_000))
        with successor(index) as new:
            assert [details(new, query) for query in queries] == answers
            assert ranks(new) == ranks(index) and len(answers[0]) == 150
            with new.writer() as writer:
                for worker in range(150):
                    own = 1_000 * (worker + 1) if worker % 4 == 0 else 0
                    writer.remove(worker, [own + h for h in local])
                    writer.remove(worker, [own + 100 + worker])
            assert new.stats().blocks == new.stats().nodes == 0


def test_arrays_of_several_spans() -> None:
    with open_index(Capacity(blocks=1_000, workers=17_000, lanes=1, extents=8_192)) as index, tidied(index):
        with index.writer() as writer:
            for worker in range(16_500):
                writer.store(worker, None, [1], [1])
        index.resize(Capacity(blocks=1_000, workers=20_000, lanes=1, extents=16_384))
        with successor(index) as new:
            assert new.find_matches([1]).depths.tolist() == [1] * 16_500
            with new.writer() as writer:
                writer.store(77_777, None, [1], [1])
                assert len(new.find_matches([1]).depths) == 16_501


def test_what_is_behind_a_cut(index: Index) -> None:
    """It counts again when the chain above is stored again, and no sooner."""
    with index.writer() as writer:
        writer.store(2, None, [1, 2, 9], [11, 12, 19])  # splits: [1, 2], then [3]
        writer.remove(1, [12])
    assert scores(index, QUERY) == {(1, 0): 1, (2, 0): 2}
    index.resize(LARGER)
    with successor(index) as new, new.writer() as writer:
        assert scores(new, QUERY) == {(1, 0): 1, (2, 0): 2}
        writer.store(1, 11, [2], [12])
        assert scores(new, QUERY) == {(1, 0): 3, (2, 0): 2}


def test_event_ids_and_degraded_ranks(index: Index) -> None:
    with index.writer() as writer:
        writer.store(2, None, [1], [21])
        writer.apply_event(RouterEvent(2, KvCacheEvent(77, KvCacheRemoveData([21]))))
        with pytest.raises(ShmtrieError):
            writer.store(1, 999, [4], [14])
    before = ranks(index)
    assert [(i.last_event_id, i.degraded, i.blocks) for i in before] == [(None, True, 3), (77, False, 0)]
    index.resize(LARGER)
    with successor(index) as new:
        assert ranks(new) == before and {info.lane for info in new.workers()} == {-1}
        with new.writer() as writer:  # a rank without blocks is known
            writer.remove(2, [5])
            writer.clear(1)
        assert not new.workers()[0].degraded


def test_handles(index: Index) -> None:
    """The old one goes on answering, and says that it is retired; stamps and mode stay."""
    with Index.attach(index.name) as reader, index.writer() as writer:
        index.resize(LARGER)
        for handle in (index, reader):
            assert handle.retired and scores(handle, QUERY) == HERE
        assert int(index.segment.header["retired"]) == RETIRED
        for call in (*WRITER_CALLS.values(), lambda _: index.writer(), lambda _: index.resize(CAPACITY)):
            with pytest.raises(SegmentRetired, match="attach anew"):
                call(writer)
    with successor(index) as new:
        segment = new.segment
        assert segment.capacity == LARGER.resolved()
        assert (segment.block_size, segment.model, segment.exact_holes) == (16, "m", False)
        assert int(segment.header["retired"]) == 0
        assert (SHM / index.name).stat().st_mode & 0o777 == 0o640
        assert scores(new, QUERY) == HERE
    assert not (SHM / successor_name(index.name)).exists()


@pytest.mark.parametrize(
    ("capacity", "table"),
    [
        (Capacity(blocks=9_000, workers=2, lanes=1), "ranks full .3 of 2"),
        (Capacity(blocks=9_000, workers=8, lanes=1, nodes=300), "nodes full .401 of 300"),
        (Capacity(blocks=9_000, workers=8, lanes=1, nodes=9_000, extents=1_024), "extents full"),
    ],
)
def test_too_small(index: Index, capacity: Capacity, table: str) -> None:
    """The old one stays in force, and its writers need not even attach anew."""
    with index.writer() as writer:
        for k in range(400):
            writer.store(2 + k % 2, None, [k + 100, *range(8)], [9 * k + 100 + j for j in range(9)])
        before = contents(index, [QUERY, [100, 0, 1]])
        with pytest.raises(CapacityExceeded, match=table):
            index.resize(capacity)
        assert changed(before, contents(index, [QUERY, [100, 0, 1]])) == []
        assert not index.retired and int(index.segment.header["retired"]) == 0
        assert not (SHM / successor_name(index.name)).exists()
        writer.store(1, 13, [4], [14])
        assert_valid(index)


def test_no_memory(index: Index) -> None:
    with pytest.raises(SegmentNoSpace):
        index.resize(Capacity(blocks=2_000, workers=8, lanes=4, extents=(1 << 32) - 2_048))
    with pytest.raises(TypeError):
        index.resize(2_000)  # type: ignore[arg-type]
    with index.writer() as writer:
        writer.store(1, 13, [4], [14])
    assert not (SHM / successor_name(index.name)).exists()


def test_name_of_the_successor(index: Index) -> None:
    """A segment of somebody's that happens to be called so is left alone; the longest name has one, too."""
    other = successor_name(index.name)
    with Index.create(other, CAPACITY) as mine:
        with pytest.raises(SegmentExists, match=other):
            index.resize(LARGER)
        assert mine.segment.named and not index.retired
        Index.unlink(other)
    index.resize(LARGER)
    assert len(successor_name("n" * 255)) < 255 and successor_name("n" * 254) != successor_name("m" * 254)


@pytest.mark.parametrize("damage", ["entry", "head"])
def test_damaged_content(index: Index, damage: str) -> None:
    """What cannot be reached would be lost without a word."""
    view = index.segment.view
    node = int(np.flatnonzero(view("node_claims"))[1])
    with index.writer() as writer:
        writer.store(2, None, [1, 2, 9], [11, 12, 19])
    if damage == "entry":
        view("nodes")["start"][node] += 7
    else:
        view("nodes")["coverage"][node] = (8 << 40) | (1 << 32) | 0xFFFF_FFF0
    with pytest.raises(SegmentCorrupt, match="rebuild"):
        index.resize(LARGER)
    assert not index.retired and not (SHM / successor_name(index.name)).exists()


# ------------------------------------------------------------------------------------------ other writers
def test_beside_a_stopped_writer(index: Index) -> None:
    """Busy, who it is, and nothing has happened."""
    with Doomed(index.name, 3) as stopped:
        stopped.stop_at("STORE_PREPARED")
        with pytest.raises(Busy, match=f"process {stopped.process.pid}, stopped"):
            index.resize(LARGER, patience=0.05)
        assert int(index.segment.header["retired"]) == 0 and scores(index, QUERY) == {**HERE, (3, 0): 1}
        with index.writer() as writer:
            writer.store(1, 13, [4], [14])
        assert stopped.resume() == "ok"
        index.resize(LARGER)
        with successor(index) as new:
            assert scores(new, [310, 311]) == {(3, 0): 2}
            assert scores(new, [*QUERY, 4]) == {(1, 0): 4, (3, 0): 1}


def test_without_the_wait_a_store_is_lost(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a store that was said to be done is not in the copy."""
    monkeypatch.setattr(module, "_come_to_rest", lambda *_: None)
    with Doomed(index.name, 3) as stopped:
        stopped.stop_at("STORE_PREPARED")
        index.resize(LARGER)
        assert stopped.resume() == "ok"
        with Index.attach(index.name) as new:
            assert scores(index, [310, 311]) == {(3, 0): 2} and scores(new, [310, 311]) == {}


@pytest.mark.parametrize("site", ["SPACE_LOCKED", "STORE_PREPARED", "REDO_SET", "RELEASE_SET"])
def test_beside_a_dead_writer(index: Index, site: str) -> None:
    """Its record is settled first."""
    with Doomed(index.name, 3) as doomed:
        doomed.die_at(site)
    index.resize(LARGER)
    with successor(index) as new:
        assert scores(new, [310, 311]) == ({(3, 0): 2} if site in ("REDO_SET", "RELEASE_SET") else {})
        assert scores(new, [1, 300]) == {(1, 0): 1, (3, 0): 2}


def test_a_stopped_resizer(index: Index) -> None:
    """Writers are told that it is being resized, readers notice nothing; then it goes on."""
    with index.writer() as writer, Child(resizer(index.name, "copy", signal.SIGSTOP)) as child:
        child.wait_stopped()
        assert not index.retired and scores(index, QUERY) == HERE
        assert int(index.segment.header["retired"]) == SUCCEEDING
        before = contents(index, [QUERY])
        for call in WRITER_CALLS.values():
            with pytest.raises(SegmentRetired, match="being resized"):
                call(writer)
        with pytest.raises(SegmentRetired, match="being resized"):
            index.writer()
        assert index.recover(patience=0.01).resize_cleared is False
        assert changed(before, contents(index, [QUERY])) == []
        child.resume()
        assert child.hear() == "done"
        with pytest.raises(SegmentRetired, match="is retired"):
            writer.store(1, 13, [4], [14])
    with successor(index) as new:
        assert scores(new, QUERY) == HERE


def stored(worker: int) -> RouterEvent:
    """A store of one block."""
    return RouterEvent(worker, KvCacheEvent(5, KvCacheStoreData(None, [KvCacheStoredBlockData(77, 78)])))


def test_nothing_moves_under_a_resizer(index: Index) -> None:
    """Sweeps, reclaims, removals and recoveries that come beside it leave the segment as it is."""
    states, count = index.segment.view("rank_states")["state"], index.segment.view("nodes")["count"]
    with index.writer() as writer:
        leaving, dead = index.writer(patience=0), index.writer(patience=0)
        for one, worker in ((leaving, 5), (dead, 6)):
            one.store(worker, None, [worker * 10], [worker * 10])
        count[0] |= np.uint64(40 << 32)  # the root's space is locked: both have to leave a node for later
        leaving.remove(5, [50])
        dead.remove(6, [60])
        count[0] &= np.uint64(2**32 - 1)
        index.segment.view("lanes")["op_counter"][dead.lane] += 1
        die(dead)
        writer.store(2, None, [1, 2, 9], [11, 12, 19])
        slot = next(int(k) for k in np.flatnonzero(index.segment.view("rank_records")["worker_id"] == 2))
        states[slot] += SLOT_DYING - SLOT_ACTIVE
        index.segment.header["epoch"] += (1 << 16) + 1
        assert index.verify().counts["nodes"] == 5
        writer.store(7, None, [1], [71])  # a rank that needs no registration
        known, new = (split_event(stored(worker)) for worker in (7, 9))
        with Succession(index.name) as succession, writer._work.turn():
            succession.mark()
            before = contents(index, [QUERY])
            for parts in (known, new):  # past the look at the door already
                assert writer._work.settle(parts, True) == EventStatus.SEGMENT_RETIRED
            assert LaneRecovery(index.segment, 1.0).recover_lane(dead.lane)
            writer._work.ranks.sweep_dying()
            with pytest.raises(SegmentRetired):
                writer._work.ranks.remove_worker(1)
            leaving._work.end()
            after = contents(index, [QUERY])
            assert changed(before, after) == ["workers", "rank_states"]  # ranks were let go
            assert int(states[slot]) & 0xFF == SLOT_DYING and index.verify().counts["nodes"] == 5
        assert index.recover().ok
        # the split that rank 2 had made stays
        assert int(states[slot]) & 0xFF != SLOT_DYING and index.verify().counts["nodes"] == 2


# ------------------------------------------------------------------------------------------------ deaths
def resizer(name: str, step: str, number: int) -> Callable[[Connection], str]:
    """Body of a process that resizes, and gets a signal before a step."""

    def body(connection: Connection) -> str:
        with Index.attach(name, read_only=False) as index:
            stop_at(step, number)
            try:
                index.resize(LARGER)
            except ShmtrieError as error:
                return type(error).__name__
        return "done"

    return body


AFTER = {"old retired", "new in force"}  # steps that come after the rename


@pytest.mark.parametrize("settled_by", ["writer", "newcomer", "recover", "resize"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step(index: Index, step: str, settled_by: str) -> None:
    """One of the two is in force, whole, and nobody has to clean up for that."""
    with index.writer() as writer:
        writer.store(2, None, [1], [21])
        with Child(resizer(index.name, step, signal.SIGKILL)) as child:
            assert child.wait() == -signal.SIGKILL
        if step in AFTER:
            assert index.retired
            with pytest.raises(SegmentRetired):
                writer.store(1, 13, [4], [14])
        else:
            assert not index.retired
            if settled_by == "writer":
                writer.store(1, 13, [4], [14])
    with Index.attach(index.name, read_only=False) as now:
        assert (now.segment.uuid == index.segment.uuid) == (step not in AFTER)
        assert scores(now, [1, 2]) == {(1, 0): 2, (2, 0): 1}
        if settled_by == "newcomer":
            with now.writer() as writer:
                writer.store(2, 21, [2], [22])
        elif settled_by == "recover":
            was_left = (SHM / successor_name(index.name)).exists() or int(now.segment.header["retired"]) != 0
            report = now.recover()
            assert report.ok and report.resize_cleared == was_left
            assert not (SHM / successor_name(index.name)).exists()
            assert int(now.segment.header["retired"]) == 0
        now.resize(Capacity(blocks=5_000, workers=8, lanes=4))
        assert not (SHM / successor_name(index.name)).exists()
    with Index.attach(index.name, read_only=False) as last:
        more = (settled_by == "writer" and step not in AFTER, settled_by == "newcomer")
        expected = {(1, 0): 4 if more[0] else 3, (2, 0): 2 if more[1] else 1}
        assert scores(last, [1, 2, 3, 4]) == expected
        assert_valid(last)
        with last.writer() as writer:
            writer.store(5, None, [1], [51])


def test_a_writer_left_by_a_dead_resizer_goes_on_mid_batch(index: Index) -> None:
    """The mark is void: one that a kernel meets, too."""
    with index.writer() as writer:
        with writer._work.turn():
            index.segment.header["retired"] = SUCCEEDING  # after the look at the door
            parts = split_event(RouterEvent(1, KvCacheEvent(5, KvCacheRemoveData([13]))))
            assert int(writer._work.settle(parts, True)) == 0
        assert scores(index, QUERY) == {(1, 0): 2} and int(index.segment.header["retired"]) == 0


def test_a_refusal_that_a_resizer_has_not_seen(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is degraded too late for the copy: its event is for the copy, it was not refused."""
    with index.writer() as writer, Succession(index.name) as succession:
        original = writer._work.ranks.refused

        def refused(*arguments: Any) -> None:
            original(*arguments)
            succession.mark()

        with pytest.raises(ParentBlockNotFound):
            writer.store(1, 999, [4], [14])
        monkeypatch.setattr(writer._work.ranks, "refused", refused)
        with pytest.raises(SegmentRetired):
            writer.store(1, 999, [4], [14])


# ------------------------------------------------------------------------------------------------ load
def busy_writer(name: str, worker: int) -> Callable[[Connection], tuple[int, int]]:
    """Body of a writer that stores block after block, and attaches anew when it is told to.

    What it was told is done has to be there: (blocks of its chain, segments it has seen). A worker of its
    own comes and goes beside it.
    """

    def body(connection: Connection) -> tuple[int, int]:
        done, seen, guest, is_there = 0, 0, worker + 1_000, False
        connection.send(None)
        while not connection.poll():
            try:
                with Index.attach(name, read_only=False) as index, index.writer(patience=5.0) as writer:
                    seen += 1
                    while not connection.poll():
                        parent = None if done == 0 else worker << 20 | done
                        writer.store(worker, parent, [done + 1], [worker << 20 | done + 1])
                        done += 1
                        if is_there:
                            writer.remove_worker(guest)
                        else:
                            writer.store(guest, None, [1, 2, done], [1, 2, done + 2])
                        is_there = not is_there
            except SegmentRetired:
                continue
        if is_there:
            with Index.attach(name, read_only=False) as index, index.writer(patience=5.0) as writer:
                writer.remove_worker(guest)
        return done, seen

    return body


def test_nothing_is_lost_under_load(index: Index) -> None:
    """What was said to be done is in the copy; a rank that nobody touches never dips."""
    name, sizes = index.name, (Capacity(blocks=400_000, workers=12, lanes=4), LARGER)
    with ExitStack() as stack:
        children = [stack.enter_context(Child(busy_writer(name, worker))) for worker in (3, 4)]
        for child in children:
            child.hear()
        for turn in range(12):
            with Index.attach(name, read_only=False) as now:
                for _ in range(50):
                    assert scores(now, QUERY)[1, 0] == 3
                blocks = int(now.stats().unique_blocks)
                now.resize(sizes[0] if turn < 11 or blocks > 5_000 else sizes[1], patience=20.0)
                assert scores(now, QUERY)[1, 0] == 3
        for child in children:
            child.say()
        for worker, child in zip((3, 4), children, strict=True):
            done, seen = child.hear()
            with Index.attach(name) as now:
                assert scores(now, range(1, done + 10))[worker, 0] == done
                assert_valid(now)
            assert done > 0 and seen > 1
        with Index.attach(name) as now:
            assert {info.worker.worker_id for info in now.workers()} == {1, 3, 4}


def test_two_resizers(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """One wins, the other is told by what."""
    with Child(resizer(index.name, "copy", signal.SIGSTOP)) as child:
        child.wait_stopped()
        monkeypatch.setattr("shmtrie.succession._WAIT", 0.01)
        with pytest.raises(Busy, match="resized or rebuilt by another process"):
            index.resize(CAPACITY)
        child.resume()
        assert child.hear() == "done"
    with pytest.raises(SegmentRetired):
        index.resize(CAPACITY)
    with successor(index) as new:
        assert new.segment.capacity == LARGER.resolved() and scores(new, QUERY) == HERE


def test_many_resizers_at_once(index: Index) -> None:
    """However they meet, one by one or not at all: the content is there once, whole."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(resizer(index.name, "none", 0))) for _ in range(os.cpu_count() or 2)
        ]
        children += [stack.enter_context(Child(resizer(index.name, "none", 0))) for _ in range(4)]
        said = [child.hear() for child in children]
    assert said.count("done") >= 1 and set(said) <= {"done", "Busy", "SegmentRetired"}
    with successor(index) as new:
        assert scores(new, QUERY) == HERE
    assert Segment.list().count(successor_name(index.name)) == 0


# ------------------------------------------------------------------------------------------------ command
def test_command(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["resize", index.name, "--blocks", "9000", "--lanes", "2"]) == 0
    assert "3 blocks of 1 ranks" in capsys.readouterr().out
    with successor(index) as new:
        assert new.segment.capacity == Capacity(blocks=9_000, workers=8, lanes=2).resolved()
    assert cli.main(["resize", index.name, "--blocks", "1"]) == 0
    assert cli.main(["resize", index.name]) == 0
    with Index.attach(index.name) as last:
        assert last.segment.capacity.blocks == 1 and scores(last, QUERY) == HERE
    assert cli.main(["resize", index.name + "-none"]) == cli.EXIT_ERROR


@pytest.mark.parametrize(("step", "state"), [("mark", "unfinished"), ("rename", "ok")])
def test_what_is_left_is_listed_and_goes(
    index: Index, step: str, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with the old segment, when that is unlinked."""
    left = successor_name(index.name)
    for by in ("recover", "unlink"):
        with Child(resizer(index.name, step, signal.SIGKILL)) as child:
            assert child.wait() == -signal.SIGKILL
        assert cli.main(["list", "--json"]) == 0
        states = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)}
        assert states[left] == state and states[index.name] == "ok"
        assert cli.main([by, index.name]) == 0
        assert by == "unlink" or "died half-way was taken back" in capsys.readouterr().out
        assert left not in Index.list()
