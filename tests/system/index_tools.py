"""Small shared-memory indexes for tests, and everything that one shows, for "nothing has changed"."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from shmtrie.capacity import Capacity
from shmtrie.errors import SegmentNotFound, ShmtrieError
from shmtrie.index import Index
from tests.backends import pairs, segment_name
from tests.reference import Rank

TOP, HALF = 2**64 - 1, 2**63
SMALL = Capacity(blocks=2_000, workers=8, lanes=4)

# What a refused event may leave in a rank's state: that there was one.
_STATE_FIELDS = ("state", "blocks", "last_event_id", "has_event_id", "known")
# Versions are bumped by a roll-back, gates come and go; the rest of a claimed node stays.
_NODE_FIELDS = ("tail", "start", "edge", "coverage", "inline", "suffix", "shape_gate", "count", "alias")


@contextmanager
def open_index(capacity: Capacity = SMALL, hint: str = "", **stamps: Any) -> Iterator[Index]:
    """Make an index under a name of its own; its name, where it still has it, goes at the end."""
    name = segment_name(hint)
    index = Index.create(name, capacity, **stamps)
    try:
        yield index
    finally:
        index.close()
        with suppress(SegmentNotFound):
            Index.unlink(name)


def scores(index: Index, query: Any, **options: Any) -> dict[Rank, int]:
    """What `find_matches` says, as plain dict."""
    return pairs(index.find_matches(query, **options))


def details(index: Index, query: Any) -> dict[Rank, tuple[int, int]]:
    """Per rank (blocks, its external hash of the last one)."""
    found = index.find_match_details(query)
    return {
        rank: (depth, int(last))
        for (rank, depth), last in zip(pairs(found).items(), found.last_hashes, strict=True)
    }


def claimed(index: Index) -> tuple[int, int, int]:
    """Nodes beside the root, extents and child entries in use."""
    view = index.segment.view
    return (
        int(np.count_nonzero(view("node_claims")[1:])),
        int(np.count_nonzero(view("line_claims"))),
        int(np.count_nonzero(view("children"))),
    )


def shown(index: Index, queries: Iterable[Sequence[int]]) -> dict[str, Any]:
    """All answers to the queries, and the ranks; `degraded` aside."""
    return {
        "answers": [details(index, query) for query in queries],
        "workers": [info._replace(degraded=False) for info in index.workers()],
    }


def contents(index: Index, queries: Iterable[Sequence[int]] = ()) -> dict[str, Any]:
    """What it shows, and every word of the segment that a refused event may not change.

    Left out: lane records (counters, the log of the operation), size classes and counts of spans, free
    nodes and the unclaimed parts of extents, `degraded`, and the mark up to which node ids were ever used.
    """
    view = index.segment.view
    nodes = np.flatnonzero(view("node_claims"))
    return shown(index, queries) | {
        "node_claims": view("node_claims").tobytes(),
        "line_claims": view("line_claims").tobytes(),
        "children": view("children").tobytes(),
        "rank_records": view("rank_records").tobytes(),
        "rank_states": [view("rank_states")[field].tobytes() for field in _STATE_FIELDS],
        "nodes": [view("nodes")[field][nodes].tobytes() for field in _NODE_FIELDS],
        "epoch": int(index.segment.header["epoch"]),
    }


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of the parts in which two contents differ; short enough for a failed assert."""
    return [name for name in before if before[name] != after[name]]


def status_of(call: Any, *arguments: Any) -> str:
    """Name of the error that a call raises, "ok" if none."""
    try:
        call(*arguments)
    except ShmtrieError as error:
        return type(error).__name__
    return "ok"


def assert_valid(index: Index) -> None:
    """The segment's invariants hold."""
    report = index.verify()
    assert report.ok, report.broken


def in_threads(count: int, body: Callable[[int], None], meanwhile: Callable[[], None] | None = None) -> None:
    """Run a body in many threads at once; the first error of any of them is raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(i: int) -> None:
        try:
            start.wait()
            body(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        while meanwhile is not None and any(t.is_alive() for t in threads):
            meanwhile()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(before)
    if errors:
        raise errors[0]


def interrupted(call: Callable[[], object], steps: int) -> bool:
    """Run a call, interrupted after so many lines of it; whether it has as many."""
    left = steps

    def interrupt(*event: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return left <= 0


@contextmanager
def references_kept(counted: Sequence[object]) -> Iterator[None]:
    """Some hundred references more, or fewer, to each of these are the body's doing."""
    _collect()
    before = [sys.getrefcount(item) for item in counted]
    yield
    _collect()
    after = [sys.getrefcount(item) for item in counted]
    assert [abs(a - b) < 200 for a, b in zip(after, before, strict=True)] == [True] * len(counted), (
        before,
        after,
    )


def _collect() -> None:
    """Until nothing is left: what other tests have left refers to None, and goes bit by bit."""
    for _ in range(10):
        if gc.collect() == 0:
            return


def assert_no_leak(repeat: Callable[[], object], counted: Sequence[object]) -> None:
    """Some thousand calls more leave no memory, and the reference counts of what they touch."""
    repeat()
    with references_kept(counted):
        tracemalloc.start()
        try:
            repeat()
            _collect()
            base = tracemalloc.get_traced_memory()[0]
            repeat()
            _collect()
            assert tracemalloc.get_traced_memory()[0] - base < 2_000
        finally:
            tracemalloc.stop()
