"""radix_tree.py, the calls: events and their statuses, wrong arguments, closed handles, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from shmtrie.errors import (
    BlockNotFound,
    EventStatus,
    ParentBlockNotFound,
    ShmtrieError,
    StaleHandle,
)
from shmtrie.events import (
    EventBatch,
    KvCacheEvent,
    KvCacheRemoveData,
    KvCacheStoreData,
    KvCacheStoredBlockData,
    RouterEvent,
    encode_event,
)
from shmtrie.radix_tree import RadixTree
from tests.paths import TOP, Q, R, S


@pytest.fixture(params=[False, True], ids=["default", "exact_holes"])
def tree(request: pytest.FixtureRequest) -> Iterator[RadixTree]:
    with RadixTree(exact_holes=request.param) as tree:
        yield tree


# --- events -----------------------------------------------------------------------------------------


def stored(
    worker: int, event_id: int, parent: int | None, *blocks: tuple[int, int], tier: str = "device"
) -> Any:
    data = KvCacheStoreData(parent, [KvCacheStoredBlockData(external, local) for local, external in blocks])
    return RouterEvent(worker, KvCacheEvent(event_id, data), tier)


def removed(worker: int, event_id: int, *external: int) -> RouterEvent:
    return RouterEvent(worker, KvCacheEvent(event_id, KvCacheRemoveData(list(external))))


def test_events_and_their_json(tree: RadixTree) -> None:
    assert tree.apply_event(stored(1, 10, None, (1, 11), (2, 12))) is EventStatus.OK
    assert tree.apply_event(encode_event(stored(1, 11, 12, (3, -1)))) is EventStatus.OK
    assert Q(tree, [1, 2, 3]) == {1: 3}
    tree.apply_event(removed(1, 12, TOP))
    assert Q(tree, [1, 2, 3]) == {1: 2}
    info = tree.workers()[0]
    assert info == ((1, 0), 2, "active", -1, 12, False)
    tree.apply_event(RouterEvent(1, KvCacheEvent(13, "cleared")))
    assert Q(tree, [1]) == {}
    assert tree.workers()[0].last_event_id == 13


def test_refused_and_skipped_events(tree: RadixTree) -> None:
    with pytest.raises(BlockNotFound):
        tree.apply_event(removed(1, 1, 11))
    assert tree.apply_event(stored(1, 2, None, (1, 11), tier="disk")) is EventStatus.UNSUPPORTED
    assert tree.workers() == []
    tree.apply_event(stored(1, 3, None, (1, 11)))
    assert tree.apply_event(stored(1, 4, None, (2, 12), tier="disk")) is EventStatus.UNSUPPORTED
    assert not tree.workers()[0].degraded
    with pytest.raises(ParentBlockNotFound):
        tree.apply_event(stored(1, 5, 999, (2, 12)))
    assert tree.workers()[0].degraded
    assert tree.workers()[0].last_event_id == 3
    tree.clear(1)
    assert not tree.workers()[0].degraded
    assert tree.stats().rejected == {
        EventStatus.BLOCK_NOT_FOUND: 1,
        EventStatus.UNSUPPORTED: 2,
        EventStatus.PARENT_BLOCK_NOT_FOUND: 1,
    }


def test_many_events_one_status_each(tree: RadixTree) -> None:
    events = [
        removed(1, 1, 5),
        stored(1, 2, None, (1, 11)),
        stored(1, 3, 999, (2, 12)),
        stored(1, 4, None, (3, 13), (4, 13)),
        stored(1, 5, None, (3, 13), tier="host_pinned"),
        encode_event(stored(1, 6, 11, (2, 12))),
        removed(1, 7, 999),
    ]
    want = [2, 0, 1, 3, 9, 0, 0]
    statuses = tree.apply_events(events)
    assert statuses.dtype == np.uint8
    assert statuses.tolist() == want
    assert Q(tree, [1, 2]) == {1: 2}
    twin = RadixTree()
    assert twin.apply_batch(EventBatch.from_events(events)).tolist() == want
    assert twin.dump_events() == tree.dump_events()
    assert tree.apply_events([]).dtype == np.uint8


def test_no_event_of_a_call_with_a_wrong_one_is_applied(tree: RadixTree) -> None:
    cases: list[tuple[Any, type[Exception]]] = [
        (b"{", ValueError),
        (7, TypeError),
        (stored(1, 3, None, (1, TOP + 1)), ValueError),
    ]
    for wrong, error in cases:
        with pytest.raises(error, match="event 1"):
            tree.apply_events([stored(1, 2, None, (1, 11)), wrong])
        with pytest.raises(error):
            tree.apply_event(wrong)
    assert tree.workers() == []


# --- wrong arguments and the handle -----------------------------------------------------------------

BAD_HASHES: list[tuple[Any, type[Exception]]] = [
    (None, TypeError),
    (5, TypeError),
    ("1", TypeError),
    ([1.0], TypeError),
    ([True], TypeError),
    (np.array([1.0]), TypeError),
    (np.array([1], np.int32), TypeError),
    ([TOP + 1], ValueError),
    (np.zeros((1, 1), np.uint64), ValueError),
]


@pytest.mark.parametrize(("bad", "error"), BAD_HASHES)
def test_wrong_hashes(tree: RadixTree, bad: Any, error: type[Exception]) -> None:
    for call in (
        lambda: tree.store(1, None, bad, [1]),
        lambda: tree.store(1, None, [1], bad),
        lambda: tree.remove(1, bad),
        lambda: tree.find_matches(bad),
        lambda: tree.find_match_details(bad),
        lambda: tree.find_matches_batch(bad, [0, 1]),
        lambda: tree.best_match(bad),
        lambda: tree.best_matches(bad, 1),
    ):
        with pytest.raises(error):
            call()
    assert tree.workers() == []


@pytest.mark.parametrize(
    ("worker", "error"),
    [
        (None, TypeError),
        ("1", TypeError),
        (True, TypeError),
        ([1, 0], TypeError),
        (-1, ValueError),
        ((1,), ValueError),
    ],
)
def test_wrong_workers(tree: RadixTree, worker: Any, error: type[Exception]) -> None:
    calls: list[Callable[[], object]] = [
        lambda: tree.store(worker, None, [1], [1]),
        lambda: tree.remove(worker, [1]),
        lambda: tree.clear(worker),
        lambda: tree.best_match([1], among=[worker]),
    ]
    for call in calls:
        with pytest.raises(error):
            call()
    with pytest.raises((TypeError, ValueError)):
        tree.remove_worker(worker)
    assert tree.workers() == []


def test_other_wrong_arguments(tree: RadixTree) -> None:
    with pytest.raises(ValueError, match="as many"):
        tree.store(1, None, [1, 2], [1])
    for parent in ("1", 1.0, True):
        with pytest.raises(TypeError):
            tree.store(1, parent, [1], [1])
    with pytest.raises(ValueError):
        tree.store(1, TOP + 1, [1], [1])
    with pytest.raises(TypeError):
        tree.remove_worker((1, 0))  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        tree.best_matches([1], -1)
    with pytest.raises(TypeError):
        tree.best_matches([1], 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        tree.best_match([1], among=5)
    for offsets in ([0, 2], [1, 0], []):
        with pytest.raises(ValueError):
            tree.find_matches_batch([1], offsets)
    for not_a_batch in (None, [], [stored(1, 1, None, (1, 1))]):
        with pytest.raises(TypeError):
            tree.apply_batch(not_a_batch)  # type: ignore[arg-type]
    assert tree.workers() == []


def test_strided_and_signed_arrays(tree: RadixTree) -> None:
    both = np.array([[1, -1], [2, -2], [3, -3]], np.int64)
    tree.store(1, None, both[:, 0], both[:, 1])
    assert Q(tree, both[:, 0]) == {1: 3}  # type: ignore[arg-type]
    tree.remove(1, both[::-1, 1][:1])
    assert Q(tree, [1, 2, 3]) == {1: 2}


def test_closed_handles_say_so() -> None:
    tree = RadixTree()
    S(tree, 1, [1])
    events = tree.dump_events()
    tree.close()
    tree.close()
    for call in (
        lambda: S(tree, 1, [1]),
        lambda: tree.remove(1, [1]),
        lambda: tree.clear(1),
        lambda: tree.remove_worker(1),
        lambda: tree.apply_event(events[0]),
        lambda: tree.apply_events(events),
        lambda: tree.load_events(events),
        lambda: tree.find_matches([1]),
        lambda: tree.find_match_details([1]),
        lambda: tree.find_matches_batch([1], [0, 1]),
        lambda: tree.best_match([1]),
        lambda: tree.workers(),
        lambda: tree.dump_events(),
        lambda: tree.stats(),
        lambda: tree.flush(),
    ):
        with pytest.raises(StaleHandle):
            call()


def test_threads_take_turns() -> None:
    """A rank stored and cleared by one thread is seen whole or not at all by another."""
    tree = RadixTree()
    chain = list(range(50))
    failures: list[object] = []

    def churn() -> None:
        try:
            for _ in range(200):
                S(tree, 1, chain)
                R(tree, 1, chain, 1)
        except ShmtrieError as error:
            failures.append(error)

    writer = threading.Thread(target=churn)
    S(tree, 2, chain)
    writer.start()
    while writer.is_alive():
        seen = Q(tree, chain)
        if seen not in ({2: 50}, {1: 50, 2: 50}):
            failures.append(seen)
            break
    writer.join()
    assert not failures
    assert tree.flush() == 0
