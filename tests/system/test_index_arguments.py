"""Wrong workers, parents, offsets, events and batches: TypeError or ValueError, and nothing is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from shmtrie.events import KvCacheEvent, KvCacheStoreData, KvCacheStoredBlockData, RouterEvent
from shmtrie.index import Index
from shmtrie.writer import Writer
from tests.system.index_tools import HALF, TOP, assert_valid, changed, contents, open_index

LOCAL = [0, 5, TOP, HALF]
U64 = np.array(LOCAL, np.uint64)
Bench = tuple[Index, Writer]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """Rank 1 holds LOCAL; nothing may change that."""
    with open_index(hint="arguments") as index, index.writer() as writer:
        writer.store(1, None, LOCAL, [TOP, 1, 0, HALF - 1])
        before = contents(index, [LOCAL])
        yield index, writer
        assert changed(before, contents(index, [LOCAL])) == []
        assert_valid(index)


WRONG_WORKERS: list[tuple[Any, type[Exception]]] = [
    *[(v, TypeError) for v in (None, "1", 1.0, True, np.True_, [1, 2], (1, "0"), (1.5, 0), (None, 0), b"1")],
    *[(v, ValueError) for v in (-1, TOP + 1, (1, -1), (1, 1 << 32), (-1, 0), (1,), (1, 2, 3), ())],
]


@pytest.mark.parametrize(("worker", "error"), WRONG_WORKERS, ids=lambda v: repr(v)[:30])
def test_wrong_workers(bench: Bench, worker: Any, error: type[Exception]) -> None:
    index, writer = bench
    before = contents(index, [LOCAL])
    calls: list[Callable[[], Any]] = [
        lambda: writer.store(worker, None, [1], [1]),
        lambda: writer.remove(worker, [TOP]),
        lambda: writer.clear(worker),
        lambda: writer.release(worker),
        lambda: index.best_match(LOCAL, among=[1, worker]),
        lambda: index.best_matches(LOCAL, 1, among=[1, worker]),
    ]
    for call in calls:
        with pytest.raises(error):
            call()
    with pytest.raises((TypeError, ValueError)):
        writer.remove_worker(worker)
    with pytest.raises((TypeError, ValueError)):
        index.remove_worker(worker)
    assert changed(before, contents(index, [LOCAL])) == []


def event(worker: Any = 1, hashes: Any = (1,), event_id: Any = 1, dp_rank: Any = 0) -> RouterEvent:
    blocks = [KvCacheStoredBlockData(h, h) for h in hashes]
    return RouterEvent(worker, KvCacheEvent(event_id, KvCacheStoreData(None, blocks), dp_rank))


def wrong_calls(index: Index, writer: Writer) -> Iterator[tuple[type[Exception], Callable[[], Any]]]:
    """Calls with the error that each must raise."""
    many: dict[Callable[[Any], Any], tuple[list[Any], list[Any]]] = {
        lambda k: index.best_matches(U64, k): ([None, 1.0, True, "1"], [-1, -HALF, TOP + 1]),
        lambda a: index.best_match(U64, among=a): ([5, "ab", [None], [[1, 2]]], [[-1], [(1, 2, 3)]]),
        lambda o: index.find_matches_batch(U64, o): (
            [None, "01", [0.0], np.ones(2)],
            [[], [0, 3, 2], [-1, 2], [0, 5]],
        ),
        writer.apply_event: (
            [None, 5, {}, event("1"), event(1, [1.5]), event(event_id=None), event(True)],
            [b"", b"{", b"[]", b"{}", "null", b"\xff", event(-1), event(dp_rank=1 << 32)],
        ),
        lambda e: writer.apply_event(e): (
            [event(dp_rank="0"), event(dp_rank=True), event(1, [None]), event(1, 5 * [True])],
            [event(event_id=TOP + 1), event(1, [-TOP]), event(1 << 64), event(1, [1, TOP + 1])],
        ),
        writer.apply_batch: ([None, [], [event()], np.zeros(1, np.uint8)], []),
        writer.apply_events: (
            [5, [event(6), 5], [event(6), None]],
            [[event(6), b"{}"], [event(-1), event(6)]],
        ),
        lambda p: index.writer(patience=p): (["1", None], [-1.0, float("nan")]),
    }
    for call, (types, values) in many.items():
        for error, arguments in ((TypeError, types), (ValueError, values)):
            for argument in arguments:
                yield error, partial(call, argument)


def test_other_wrong_arguments(bench: Bench) -> None:
    index, writer = bench
    before = contents(index, [LOCAL])
    parents: list[Any] = [True, 1.0, "1", [1], b"1"]
    for parent in parents:
        with pytest.raises(TypeError):
            writer.store(1, parent, [1], [1])
    for parent in (TOP + 1, -HALF - 1):
        with pytest.raises(ValueError):
            writer.store(1, parent, [1], [1])
    with pytest.raises(ValueError, match="2 local hashes, 1 external"):
        writer.store(1, None, [1, 2], [1])
    for i, (error, call) in enumerate(wrong_calls(index, writer)):
        with pytest.raises(error):
            call()
            pytest.fail(f"call {i}")
    assert changed(before, contents(index, [LOCAL])) == []


def test_missing_and_surplus_arguments(bench: Bench) -> None:
    find: Any = bench[0].find_matches
    for arguments, named in (((), {}), ((U64, False, 1), {}), ((U64,), {"details": True})):
        with pytest.raises(TypeError):
            find(*arguments, **named)
