"""Handles: closed, read-only, stamped, retired, forked, and results that outlive them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmtrie.capacity import Capacity
from shmtrie.errors import (
    SegmentIncompatible,
    SegmentNotFound,
    SegmentPermission,
    SegmentRetired,
    StaleHandle,
)
from shmtrie.events import EventBatch, KvCacheEvent, RouterEvent
from shmtrie.index import Index
from shmtrie.writer import Writer
from tests.backends import pairs, segment_name
from tests.system.index_tools import (
    SMALL,
    assert_valid,
    changed,
    contents,
    details,
    open_index,
    scores,
    status_of,
)

QUERY = np.array([1, 2, 3], np.uint64)
CLEARED = RouterEvent(1, KvCacheEvent(0, "cleared"))
HERE = {(1, 0): 3}


@pytest.fixture
def index() -> Iterator[Index]:
    """Rank 1 holds the query."""
    with open_index() as made:
        with made.writer() as writer:
            writer.store(1, None, [1, 2, 3], [11, 12, 13])
        yield made


READS: dict[str, Callable[[Index], Any]] = {
    "find_matches": lambda i: i.find_matches(QUERY),
    "find_matches early": lambda i: i.find_matches(QUERY, early_exit=True),
    "find_matches list": lambda i: i.find_matches([1, 2, 3]),
    "find_match_details": lambda i: i.find_match_details(QUERY),
    "find_matches_batch": lambda i: i.find_matches_batch(QUERY, [0, 3]),
    "best_match": lambda i: i.best_match(QUERY),
    "best_match among": lambda i: i.best_match(QUERY, among=[1]),
    "best_matches": lambda i: i.best_matches(QUERY, 2),
    "workers": lambda i: i.workers(),
    "stats": lambda i: i.stats(),
    "verify": lambda i: i.verify(),
    "dump_events": lambda i: i.dump_events(),
    "retired": lambda i: i.retired,
    "segment": lambda i: i.segment,
    "flush": lambda i: i.flush(),
}
WRITES: dict[str, Callable[[Index], Any]] = {
    "writer": lambda i: i.writer(),
    "apply_event": lambda i: i.apply_event(CLEARED),
    "remove_worker": lambda i: i.remove_worker(1),
    "load_events": lambda i: i.load_events([CLEARED]),
}
UPKEEP: dict[str, Callable[[Index], Any]] = {
    "recover": lambda i: i.recover(),
    "resize": lambda i: i.resize(SMALL),
}
WRITER_CALLS: dict[str, Callable[[Writer], Any]] = {
    "store": lambda w: w.store(1, 13, [4], [14]),
    "remove": lambda w: w.remove(1, [13]),
    "clear": lambda w: w.clear(1),
    "apply_event": lambda w: w.apply_event(CLEARED),
    "apply_events": lambda w: w.apply_events([CLEARED]),
    "apply_batch": lambda w: w.apply_batch(EventBatch.from_events([CLEARED])),
    "remove_worker": lambda w: w.remove_worker(1),
    "release": lambda w: w.release(1),
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_tables_name_every_method() -> None:
    covered = {name.split(" ")[0] for name in READS | WRITES | UPKEEP}
    assert public(Index) - covered == {"attach", "create", "unlink", "list", "close", "name"}
    assert public(Writer) - WRITER_CALLS.keys() == {"close", "lane"}


# ----------------------------------------------------------------------------------------------------- closed
@pytest.mark.parametrize("name", READS | WRITES | UPKEEP)
def test_closed_index(index: Index, name: str) -> None:
    with Index.attach(index.name, read_only=False) as handle:
        if name in READS:
            READS[name](handle)
        for _ in range(2):
            handle.close()
            with pytest.raises(StaleHandle, match=f"{index.name}.*closed: attach anew|closed: attach anew"):
                (READS | WRITES | UPKEEP)[name](handle)
        assert "closed" in repr(handle) and handle.name == index.name
    assert scores(index, QUERY) == HERE


@pytest.mark.parametrize("name", WRITER_CALLS)
def test_closed_writer(index: Index, name: str) -> None:
    writer = index.writer()
    lane = writer.lane
    for _ in range(2):
        writer.close()
        with pytest.raises(StaleHandle, match=f"the writer of lane {lane} of .*{index.name}.* was closed"):
            WRITER_CALLS[name](writer)
    assert scores(index, QUERY) == HERE and writer.lane == lane
    with index.writer() as other:
        assert other.lane == lane


def test_closing_in_any_order(index: Index) -> None:
    """An index closed before its writer: the writer goes on, or says StaleHandle, but not now this, now that;
    then its lane and ranks are free.
    """
    handle = Index.attach(index.name, read_only=False)
    writer = handle.writer()
    writer.store(2, None, [1], [1])
    handle.close()
    said = {status_of(call, writer) for call in WRITER_CALLS.values()}
    said |= {status_of(writer.store, 2, None, [1, 2], [1, 2]), status_of(writer.remove, 2, [2])}
    assert said in ({"StaleHandle"}, {"ok"}), said
    writer.close()
    handle.close()
    with index.writer() as other:
        assert other.lane == writer.lane
        other.store(2, None, [1, 2], [1, 2])
    assert_valid(index)


def test_dropped_handles_free_their_lane() -> None:
    with open_index(Capacity(blocks=100, workers=4, lanes=1)) as index:
        for k in range(3):
            writer = index.writer()
            writer.store(1, None, range(k + 1), range(k + 1))
            del writer
            gc.collect()
        own = Index.attach(index.name, read_only=False)
        own.apply_event(CLEARED)
        assert status_of(index.writer) == "LaneUnavailable"
        own.close()
        with index.writer() as again:
            again.store(1, None, [1], [1])
        assert scores(index, [1]) == {(1, 0): 1}
        assert_valid(index)


def test_results_own_their_data(index: Index) -> None:
    handle = Index.attach(index.name)
    one, early = handle.find_matches(QUERY), handle.find_matches(QUERY, early_exit=True)
    detailed, many = (
        handle.find_match_details(QUERY),
        handle.find_matches_batch(np.tile(QUERY, 5), range(0, 16, 3)),
    )
    best, workers = handle.best_match(QUERY), handle.workers()
    views = [one.workers, one.depths, detailed.last_hashes, many.workers, many.depths]
    copies = [v.copy() for v in views]
    assert all(not v.flags.writeable for v in views[:3])

    def check() -> None:
        for result in (one, early, detailed, *many):
            assert pairs(result) == HERE == result.scores and len(result) == 1
        assert detailed.last_hashes.tolist() == [13] and best == ((1, 0), 3)
        assert workers[0].blocks == 3
        assert all(bool((v == c).all()) for v, c in zip(views, copies, strict=True))

    with index.writer() as writer:
        writer.store(2, None, range(50), range(50))
        for k in range(5):
            scores(handle, range(50)), details(handle, range(50)), handle.find_matches_batch(range(9), [0, 9])
            writer.clear(1)
            writer.store(1, None, [1, 2, k], [1, 2, k + 3])
            check()
        writer.remove_worker(1)
        check()
    handle.close()
    del handle
    gc.collect()
    check()


# ------------------------------------------------------------------------------------------ read-only, stamps
def test_read_only(index: Index) -> None:
    before = contents(index, [QUERY.tolist()])
    with Index.attach(index.name) as reader:
        assert "(read-only)" in repr(reader) and not reader.segment.header.flags.writeable
        for name, call in (WRITES | UPKEEP).items():
            with pytest.raises(SegmentPermission, match="read-only: attach for writing"):
                call(reader)
                pytest.fail(name)
        for call in READS.values():
            call(reader)
        assert scores(reader, QUERY) == HERE
        with index.writer() as writer:
            assert changed(before, contents(index, [QUERY.tolist()])) == []
            writer.store(1, 13, [4], [14])
            assert scores(reader, [1, 2, 3, 4]) == {(1, 0): 4}


def test_stamps() -> None:
    with open_index(block_size=16, model="meta/llama") as index:
        for stamps in (
            {},
            {"block_size": 16},
            {"model": "meta/llama"},
            {"block_size": 16, "model": "meta/llama"},
        ):
            with Index.attach(index.name, **stamps) as reader:
                assert scores(reader, [1]) == {}
            Index.create(index.name, SMALL, exist_ok=True, **stamps).close()
        for wrong in ({"block_size": 32}, {"model": "meta"}, {"block_size": 16, "model": "x"}):
            for call in (Index.attach, lambda name, **w: Index.create(name, SMALL, exist_ok=True, **w)):
                with pytest.raises(SegmentIncompatible, match=index.name):
                    call(index.name, **wrong)
        for kind, bad in ((TypeError, {"block_size": "16"}), (ValueError, {"block_size": 0})):
            with pytest.raises(kind):
                Index.attach(index.name, **bad)
        assert (index.segment.block_size, index.segment.model) == (16, "meta/llama")


def test_missing() -> None:
    name = segment_name("missing")
    for call in (Index.attach, Index.unlink):
        with pytest.raises(SegmentNotFound, match=name):
            call(name)


# ---------------------------------------------------------------------------------------------------- retired
@pytest.mark.parametrize("renewed", [False, True], ids=["gone", "another one has the name"])
def test_unlinked(index: Index, renewed: bool) -> None:
    """Readers go on, writers of every age are told, also when the name has come back."""
    name = index.name
    with Index.attach(name) as reader, index.writer() as writer:
        assert not index.retired and not reader.retired
        before = contents(index, [QUERY.tolist()])
        Index.unlink(name)
        assert name not in Index.list()
        if renewed:
            Index.create(name, SMALL).close()
        for handle in (index, reader):
            assert (
                handle.retired and scores(handle, QUERY) == HERE and handle.best_match(QUERY) == ((1, 0), 3)
            )
            for call in READS.values():
                call(handle)
        said: dict[str, Any] = {}
        for called, write in WRITER_CALLS.items():
            try:
                said[called] = write(writer)
            except SegmentRetired as error:
                assert name in str(error) and "attach anew" in str(error)
                said[called] = SegmentRetired
        batch = [said.pop("apply_events"), said.pop("apply_batch")]
        assert all(b is SegmentRetired or b.tolist() == [8] for b in batch)
        assert {k for k, v in said.items() if v is not SegmentRetired} == set()
        for call in (WRITES | UPKEEP).values():
            with pytest.raises(SegmentRetired, match="attach anew"):
                call(index)
        assert changed(before, contents(index, [QUERY.tolist()])) == []
    if not renewed:
        with pytest.raises(SegmentNotFound):
            Index.attach(name)


def test_unknown_ranks_of_a_retired_segment(index: Index) -> None:
    """Also what needs no look at the table: nothing that a writer says is "ok" may be lost."""
    with index.writer() as writer:
        Index.unlink(index.name)
        calls: list[Callable[[], None]] = [
            lambda: writer.store(5, None, [1], [1]),
            lambda: writer.store(5, None, [], []),
            lambda: writer.remove(5, [1]),
            lambda: writer.clear(5),
            lambda: writer.remove_worker(5),
        ]
        for call in calls:
            with pytest.raises(SegmentRetired):
                call()
        assert [info.worker for info in index.workers()] == [(1, 0)]


def test_name_removed_by_hand(index: Index) -> None:
    """Like a container that is cleaned up: nobody marked the segment, but a new writer is told."""
    (Path("/dev/shm") / index.name).unlink()
    assert index.retired and scores(index, QUERY) == HERE
    with pytest.raises(SegmentRetired):
        index.writer().close()
