"""Best matches, batches of queries, and many threads that ask at once."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shmtrie.capacity import Capacity
from shmtrie.index import Index
from shmtrie.scores import WORKER_DTYPE
from tests.backends import pairs
from tests.reference import Rank
from tests.system.index_tools import TOP, assert_valid, details, in_threads, open_index, scores


@pytest.fixture
def index() -> Iterator[Index]:
    """A small index that ends valid."""
    with open_index(Capacity(blocks=2_000, workers=16, lanes=4)) as made:
        yield made
        assert_valid(made)


def ranked(found: list[Any]) -> list[tuple[Rank, int]]:
    return [(tuple(m.worker), m.depth) for m in found]


# ------------------------------------------------------------------------------------------------------- best
def test_order_of_matches(index: Index) -> None:
    """Deepest first; then fewest blocks; then the lowest (worker_id, dp_rank), unsigned."""
    with index.writer() as w:
        for rank in [(5, 1), (TOP, 0), (5, 0), (2**63, 7), (1, 2**32 - 1), (1, 9)]:
            w.store(rank, None, [1, 2], [1, 2])
        equal = [(1, 9), (1, 2**32 - 1), (5, 0), (5, 1), (2**63, 7), (TOP, 0)]
        assert ranked(index.best_matches([1, 2, 3], 99)) == [(r, 2) for r in equal]
        w.store((1, 9), None, [50, 51], [50, 51])  # has more blocks now, elsewhere
        w.store((5, 0), None, [60], [60])
        w.store((TOP, 0), 2, [3], [3])  # deeper, whatever it has
        w.store((TOP, 0), None, range(70, 90), range(70, 90))
        w.store(7, None, [1], [1])  # fewest of all, but not as deep
        order = [
            ((TOP, 0), 3),
            *[(r, 2) for r in ((1, 2**32 - 1), (5, 1), (2**63, 7), (5, 0), (1, 9))],
            ((7, 0), 1),
        ]
        for k in range(10):
            assert ranked(index.best_matches([1, 2, 3, 4], k)) == order[:k]
        assert ranked([index.best_match([1, 2, 3, 4])]) == order[:1]
        assert ranked([index.best_match([1, 2])]) == [((1, 2**32 - 1), 2)]
        w.remove((1, 9), [50])
        w.clear((1, 2**32 - 1))
        assert ranked(index.best_matches([1, 2], 3)) == [((1, 9), 2), ((5, 1), 2), ((2**63, 7), 2)]


def test_among(index: Index) -> None:
    with index.writer() as w:
        for worker in range(6):
            for dp in range(2):
                w.store((worker, dp), None, range(worker + 1), range(worker + 1))
        query = range(9)
        among: list[tuple[Any, list[tuple[Rank, int]]]] = [
            ([3], [((3, 0), 4)]),  # an int is dp_rank 0
            ([(3, 1), (3, 1), 2], [((3, 1), 4), ((2, 0), 3)]),
            ({(1, 0), (4, 1)}, [((4, 1), 5), ((1, 0), 2)]),
            ((r for r in (0, 1)), [((1, 0), 2), ((0, 0), 1)]),
            ([], []),
            ([77, (3, 5), TOP], []),
            (np.array([0, 2], np.uint64), [((2, 0), 3), ((0, 0), 1)]),
            (np.array([(2, 1)], WORKER_DTYPE), [((2, 1), 3)]),
            (index.find_matches(query).workers[:0], []),
        ]
        for choice, expected in among:
            again = list(choice) if not isinstance(choice, np.ndarray) else choice
            assert ranked(index.best_matches(query, 99, among=again)) == expected
            best = index.best_match(query, among=again)
            assert (best is None and not expected) or ranked([best]) == expected[:1]
        deepest = index.find_matches(query)
        everyone = index.best_matches(query, 99, among=deepest.workers)
        assert everyone == index.best_matches(query, 99) and len(everyone) == 12
        assert index.best_match([99]) is None and index.best_matches([99], 3, among=[1]) == []


# ----------------------------------------------------------------------------------------------- many queries
def test_batches_with_growing_results() -> None:
    """The room for results grows on the way: nothing of the first ones may be lost."""
    with open_index(Capacity(blocks=5_000, workers=300, lanes=2)) as index, index.writer() as w:
        for worker in range(300):
            w.store(worker, None, range(1 + worker % 40), range(1 + worker % 40))
        rng = np.random.default_rng(1)
        queries = [list(range(n)) for n in rng.integers(0, 45, 400)]
        for i in range(0, 400, 7):
            queries[i] = [10**6 + i]  # nothing is found
        queries[-200:] = [list(range(40))] * 200
        no_hashes: list[list[int]] = [[]] * 9
        for some in (queries, queries[::-1], queries[:1], [[0]] * 5, no_hashes, queries[-1:]):
            flat = np.array([v for q in some for v in q], np.uint64)
            cuts = np.cumsum([0, *map(len, some)])
            found = index.find_matches_batch(flat, cuts)
            assert len(found) == len(some) and found.offsets.dtype == np.int64
            assert found.offsets[0] == 0 and found.offsets[-1] == len(found.depths) == len(found.workers)
            for query, one in zip(some, found, strict=True):
                assert one == index.find_matches(query)
        assert sum(map(len, found)) == 300


def test_batches_of_overlapping_and_skipped_parts(index: Index) -> None:
    """Offsets cut one array; parts before the first and behind the last are nobody's."""
    with index.writer() as w:
        w.store(1, None, [1, 2, 3], [1, 2, 3])
        found = index.find_matches_batch([9, 9, 1, 2, 3, 1, 2, 1], [2, 5, 5, 7])
        assert [pairs(one) for one in found] == [{(1, 0): 3}, {}, {(1, 0): 2}]
        n = 50_000
        many = index.find_matches_batch(np.tile(np.array([1, 2], np.uint64), n), np.arange(0, 2 * n + 1, 2))
        assert len(many) == n and bool((many.depths == 2).all()) and len(many.depths) == n


# ---------------------------------------------------------------------------------------------------- threads
def test_reads_from_many_threads(index: Index) -> None:
    """Each thread asks its own queries by every method; a writer changes other ranks all the while."""
    with index.writer() as w:
        for worker in range(6):
            w.store(worker, None, [0, worker, *range(100, 140)], range(worker * 1_000, worker * 1_000 + 42))
        queries = [np.array([0, worker, *range(100, 145)], np.uint64) for worker in range(6)]
        turn = 0

        def churn() -> None:
            nonlocal turn
            turn += 1
            w.store(7, None, [0, turn % 6, *range(100, 100 + turn % 30)], range(10**6, 10**6 + 2 + turn % 30))
            if turn % 3 == 0:
                w.remove_worker(7)

        def fixed(found: dict[Rank, int]) -> dict[Rank, int]:
            return {rank: depth for rank, depth in found.items() if rank != (7, 0)}

        def ask(i: int) -> None:
            worker = i % 6
            query, others = queries[worker], {(k, 0): 1 for k in range(6)}
            expected = others | {(worker, 0): 42}
            among = [(worker, 0), (7, 0), (worker - 1, 0) if worker else (1, 0)]
            for _ in range(60):
                assert fixed(scores(index, query)) == expected
                assert fixed(scores(index, query.tolist())) == expected
                last = details(index, query)[worker, 0]
                assert last == (42, worker * 1_000 + 41)
                batch = index.find_matches_batch(np.concatenate(queries), np.arange(7) * 47)
                assert [pairs(one)[k, 0] for k, one in enumerate(batch)] == [42] * 6
                assert index.best_match(query) == ((worker, 0), 42)
                assert index.best_matches(query, 1, among) == [((worker, 0), 42)]
                assert scores(index, query, early_exit=True)[worker, 0] >= 1

        in_threads(8, ask, churn)
        assert turn > 1
        w.remove_worker(7)


def test_a_writer_for_each_thread() -> None:
    """Ranks of several lanes, written from threads of one process at the same time."""
    with open_index(Capacity(blocks=30_000, workers=16, lanes=8)) as index:
        writers = [index.writer(patience=5.0) for _ in range(4)]

        def write(i: int) -> None:
            w, base = writers[i], i * 10**6
            for turn in range(150):
                chain = [turn % 10, turn % 7, 1, 2, turn % 3, i]
                names = [base + turn * 10 + k for k in range(6)]
                w.store(i, None, chain, names)
                assert scores(index, chain)[i, 0] == 6
                if turn % 2:
                    w.remove(i, names[::-1][:3])
                    assert 3 <= scores(index, chain)[i, 0] < 6

        in_threads(4, write)
        assert_valid(index)
        for i, w in enumerate(writers):
            w.clear(i)
            w.close()
        assert index.stats().nodes == 0


def test_threads_that_end_leave_nothing() -> None:
    """A server that answers each request in a thread of its own must not grow."""
    with open_index(Capacity(blocks=100, workers=20_000, lanes=1)) as index, index.writer() as w:
        w.store(1, None, [1], [1])

        def ask() -> None:
            assert index.best_match([1]) == ((1, 0), 1) and details(index, [1]) == {(1, 0): (1, 1)}

        ask()
        tracemalloc.start()
        try:
            for n in range(40):
                thread = threading.Thread(target=ask)
                thread.start()
                thread.join()
                if n == 3:
                    before = tracemalloc.get_traced_memory()[0]
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert grown < 4 * 20_000 * 44, f"{grown} bytes in 36 threads"
