"""Unlucky hashes and sizes: the ends of the 64-bit range, repeats, nothing at all, and the longest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from shmtrie.capacity import Capacity
from shmtrie.errors import InvalidBlockSequence, ParentBlockNotFound
from shmtrie.events import EventBatch
from shmtrie.index import Index
from shmtrie.layout import MAX_EDGE, MAX_STORE
from tests.backends import pairs
from tests.system.index_tools import (
    HALF,
    TOP,
    assert_valid,
    changed,
    claimed,
    contents,
    details,
    open_index,
    scores,
    shown,
)

# 2**64 - 1 and its neighbours, the sign bit, single bits, small ones: nobody may take one of them for "none".
UNLUCKY = [0, TOP, 1, TOP - 1, HALF, HALF - 1, 1 << 32, (1 << 32) - 1, 1 << 63 | 1, 1 << 31, 2]


@pytest.fixture
def index() -> Iterator[Index]:
    """A small index that ends valid."""
    with open_index() as made:
        yield made
        assert_valid(made)


# ----------------------------------------------------------------------------------------------------- values
@pytest.mark.parametrize("local", [0, TOP, HALF])
@pytest.mark.parametrize("external", [0, TOP, HALF])
def test_one_block(index: Index, local: int, external: int) -> None:
    """Every pair of extreme hashes as first block, as parent, in a remove and beside an alias."""
    with index.writer() as w:
        w.store(1, None, [local], [external])
        w.store(2, None, [local], [external ^ 5])
        w.store(1, external, [local], [external ^ 1])
        w.store(2, external ^ 5, [local], [external])
        assert details(index, [local] * 3) == {(1, 0): (2, external ^ 1), (2, 0): (2, external)}
        w.remove(1, [external ^ 1])
        w.remove(2, [external])
        assert details(index, [local] * 3) == {(1, 0): (1, external), (2, 0): (1, external ^ 5)}
        w.remove(1, [external])
        w.remove(2, [external ^ 5])
        assert scores(index, [local]) == {} and claimed(index) == (0, 0, 0)


@pytest.mark.parametrize("local", UNLUCKY)
def test_unlucky_chains_and_branches(index: Index, local: int) -> None:
    others = [h for h in UNLUCKY if h != local]
    with index.writer() as w:
        w.store(1, None, [local, *others], UNLUCKY)
        for i, other in enumerate(others):  # a branch at every depth, with the same first hash as the query
            w.store((2, i), None, [local, *others[:i], local], [TOP - j for j in range(i + 2)])
            assert scores(index, [local, *others[:i], local])[2, i] == i + 2
            assert scores(index, [local, *others[: i + 1]])[2, i] == i + 1
            assert other not in [local, *others[:i]]
            w.clear((2, i))
            w.remove_worker(2)
        assert details(index, [local, *others]) == {(1, 0): (len(UNLUCKY), UNLUCKY[-1])}
        for i in reversed(range(len(UNLUCKY))):
            w.remove(1, [UNLUCKY[i]])
            assert scores(index, [local, *others]).get((1, 0), 0) == i


@pytest.mark.parametrize("worker", [(0, 0), (TOP, 0), (TOP, 2**32 - 1), (0, 2**32 - 1), (HALF, HALF >> 32)])
def test_extreme_ranks(index: Index, worker: tuple[int, int]) -> None:
    with index.writer() as w:
        w.store((1, 1), None, [1, 2], [1, 2])
        w.store(worker, None, [1, 2, 3], [1, 2, 3])
        assert scores(index, [1, 2, 3]) == {(1, 1): 2, worker: 3}
        assert index.best_match([1, 2, 3]) == (worker, 3) == index.best_match([1, 2, 3], among=[worker])
        assert worker in {info.worker for info in index.workers()}
        w.remove(worker, [2])
        w.release(worker)
        w.store(worker, 1, [2], [2])
        w.remove_worker(worker[0])
        assert scores(index, [1, 2, 3]) == {(1, 1): 2}


# ---------------------------------------------------------------------------------------------------- repeats
def test_repeated_local_hashes(index: Index) -> None:
    with index.writer() as w:
        w.store(1, None, [1, 1, 1, 1], [11, 12, 13, 14])
        w.store(2, None, [1, 1], [21, 22])
        w.store(3, None, [1], [31])
        w.store(3, 31, [2, 1, 1], [32, 33, 34])
        for n in range(8):
            expected = {(1, 0): min(n, 4), (2, 0): min(n, 2), (3, 0): min(n, 1)} if n else {}
            assert scores(index, [1] * n) == expected
        assert scores(index, [1, 2, 1, 1, 1]) == {(1, 0): 1, (2, 0): 1, (3, 0): 4}
        w.store(2, 22, [1, 1, 1], [23, 24, 25])
        assert details(index, [1] * 9) == {(1, 0): (4, 14), (2, 0): (5, 25), (3, 0): (1, 31)}
        w.remove(1, [13])
        w.store(1, 12, [1], [13])
        assert scores(index, [1] * 4) == {(1, 0): 3, (2, 0): 4, (3, 0): 1}


@pytest.mark.parametrize("length", [MAX_EDGE - 1, MAX_EDGE, MAX_EDGE + 1, 3 * MAX_EDGE + 7])
def test_long_repeats_across_nodes(index: Index, length: int) -> None:
    """One local hash all along: every child entry and every comparison sees the same value."""
    with index.writer() as w:
        w.store(1, None, [7] * length, range(length))
        w.store(2, None, [7] * (length // 2), range(length // 2))
        w.store(2, length // 2 - 1, [8], [TOP])
        assert scores(index, [7] * (length + 9)) == {(1, 0): length, (2, 0): length // 2}
        assert scores(index, [7] * (length // 2) + [8]) == {(1, 0): length // 2, (2, 0): length // 2 + 1}
        w.store(1, length - 1, [7, 7], [length, length + 1])
        assert scores(index, [7] * (length + 9))[1, 0] == length + 2


REPEATS: list[tuple[int | None, list[int]]] = [
    (None, [1, 1]),
    (None, [0, 1, 2, 0]),
    (None, [TOP, -1]),
    (None, [*range(3000), 2999]),
    (12, [12]),
    (12, [20, 21, 12]),
    (12, [20, 20]),
    (12, [11]),
    (12, [20, 11, 21]),
    (13, [20, 12]),
]


@pytest.mark.parametrize(("parent", "external"), REPEATS, ids=lambda v: str(v)[:20])
def test_invalid_sequences_change_nothing(index: Index, parent: int | None, external: list[int]) -> None:
    queries = [[1, 2, 3, *range(50, 60)], [*range(50, 60)]]
    with index.writer() as w:
        w.store(1, None, [1, 2, 3], [11, 12, 13])
        before = contents(index, queries)
        local = range(50, 50 + len(external))
        with pytest.raises(InvalidBlockSequence, match=r"rank \(1, 0\)"):
            w.store(1, parent, local, external)
        assert changed(before, contents(index, queries)) == []
        with pytest.raises((InvalidBlockSequence, ParentBlockNotFound)):
            w.store(2, parent, local, external)  # ... and an unknown rank stays unknown
        assert changed(before, contents(index, queries)) == []


def test_moved_hash(index: Index) -> None:
    """An external hash that the rank holds off the path moves: it is removed there first."""
    with index.writer() as w:
        w.store(1, None, [1, 2, 3], [11, 12, 13])
        w.store(1, 11, [5, 6], [13, 16])
        assert details(index, [1, 2, 3]) == {(1, 0): (2, 12)}
        assert details(index, [1, 5, 6]) == {(1, 0): (3, 16)}
        w.store(1, None, [9], [12])
        assert details(index, [1, 2, 3]) == {(1, 0): (1, 11)}
        assert details(index, [9]) == {(1, 0): (1, 12)}
        w.store(1, None, [9], [99])  # a covered place gets another name: the old one is unknown now
        w.remove(1, [12])
        assert details(index, [9]) == {(1, 0): (1, 99)}
        with pytest.raises(ParentBlockNotFound):
            w.store(1, 12, [10], [100])


# ------------------------------------------------------------------------------------------------------ sizes
def test_nothing_at_all(index: Index) -> None:
    empty = np.empty(0, np.uint64)
    assert scores(index, []) == {} == scores(index, empty, early_exit=True)
    assert len(index.find_match_details(())) == 0 and index.best_match([]) is None
    assert index.best_matches(empty, 5) == [] and len(index.find_matches_batch([], [0])) == 0
    assert [len(r) for r in index.find_matches_batch([], [0, 0, 0])] == [0, 0]
    with index.writer() as w:
        fresh = contents(index)
        w.store(1, None, [], [])
        w.clear(1)
        assert changed(fresh, contents(index)) == [] and index.workers() == []
        w.store(1, None, [1, 2], [11, 12])
        before = contents(index, [[1, 2, 3]])
        w.store(1, None, empty, [])
        w.store(1, 12, [], empty)
        w.remove(1, [])
        assert len(w.apply_events([])) == 0 and len(w.apply_batch(EventBatch.from_events([]))) == 0
        for rank, parent in ((1, 13), (2, 12)):
            with pytest.raises(ParentBlockNotFound):
                w.store(rank, parent, [], [])
        after = contents(index, [[1, 2, 3]])
        assert changed(before, after) == []
        w.remove(1, [12])
        with pytest.raises(ParentBlockNotFound):  # beyond the coverage
            w.store(1, 12, [], [])
        assert scores(index, []) == {}


def test_a_hundred_thousand_blocks() -> None:
    n = 100_000
    rng = np.random.default_rng(5)
    local, external = rng.integers(0, 2**64, (2, n), np.uint64)
    with open_index(Capacity(blocks=2 * n + 10_000, workers=4, lanes=2)) as index, index.writer() as w:
        w.store(1, None, local, external)
        w.store(2, None, local[: n // 2], external[: n // 2] ^ np.uint64(1))
        assert details(index, local) == {
            (1, 0): (n, int(external[-1])),
            (2, 0): (n // 2, int(external[n // 2 - 1]) ^ 1),
        }
        assert pairs(index.find_matches_batch(np.tile(local, 3), [0, n, 2 * n, 3 * n])[2])[1, 0] == n
        other = local.copy()
        other[70_000] ^= np.uint64(1)
        assert scores(index, other) == {(1, 0): 70_000, (2, 0): n // 2}
        w.store(1, external[69_999], other[70_000:], external[70_000:] ^ np.uint64(3))
        assert scores(index, other)[1, 0] == n == scores(index, local)[1, 0]
        assert_valid(index)
        w.remove(1, external[::-1])
        w.remove(1, external ^ np.uint64(3))
        w.remove(2, rng.permutation(external ^ np.uint64(1)))
        assert scores(index, local) == scores(index, other) == {} and claimed(index) == (0, 0, 0)


def test_the_longest() -> None:
    """2**20 blocks in one store, query and remove; one more is an error that touches nothing."""
    n = MAX_STORE
    blocks = np.arange(n + 1, dtype=np.uint64)
    with open_index(Capacity(blocks=n + 10_000, workers=4, lanes=2)) as index, index.writer() as w:
        w.store(1, None, blocks[:n], blocks[:n])
        assert details(index, blocks[:n]) == {(1, 0): (n, n - 1)}
        assert index.best_match(blocks[:n]) == ((1, 0), n)
        w.store(1, n - 1, [n], [n])
        assert_valid(index)
        queries = [blocks[:n].tolist()[:100], [0, 5]]
        before = contents(index, queries)
        two = EventBatch(
            np.array([1, 1]),
            np.array([1, 1], np.uint64),
            np.zeros(2, np.uint32),
            np.zeros(2, np.uint8),
            np.zeros(2, np.uint64),
            np.array([0, 1, n + 2]),
            np.append(blocks[:1], blocks),
            np.append(blocks[:1], blocks),
            np.zeros(2, np.uint64),
        )
        for call in (
            lambda: index.find_matches(blocks),
            lambda: index.find_matches(blocks, early_exit=True),
            lambda: index.find_matches(blocks.tolist()),
            lambda: index.find_match_details(blocks),
            lambda: index.find_matches_batch(np.append(blocks, blocks), [0, 1, n + 2]),
            lambda: index.best_match(blocks),
            lambda: index.best_matches(blocks, 1),
            lambda: w.store(1, None, blocks, blocks),
            lambda: w.remove(1, blocks),
            lambda: w.apply_batch(two),
        ):
            with pytest.raises(ValueError, match=str(MAX_STORE)):
                call()
        assert changed(before, contents(index, queries)) == []
        w.remove(1, [n])
        w.remove(1, blocks[:n])
        assert claimed(index) == (0, 0, 0) and shown(index, [[0]])["answers"] == [{}]
