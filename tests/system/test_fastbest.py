"""Best matches and lists of ints through the builtins, and through their plain fallback."""

from __future__ import annotations

import inspect
import random
import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from shmtrie import fastcall
from shmtrie.arguments import as_ranks
from shmtrie.capacity import Capacity
from shmtrie.fastcall import Finds
from shmtrie.index import Index
from shmtrie.pyapi import LIST_ROOM
from shmtrie.workers import Match, WorkerWithDpRank, known_matches, rank_records
from tests.backends import pairs
from tests.system.index_tools import HALF, TOP, assert_no_leak, open_index
from tests.system.ranked import LOCAL, RANKS, U64, raised, ranked_index

pytestmark = pytest.mark.skipif(not fastcall.available(), reason="no builtins on this interpreter")


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    """Three ranks along one chain."""
    with ranked_index("fastbest") as made:
        yield made


@pytest.fixture(scope="module")
def fast(index: Index) -> Finds:
    """The builtins."""
    return fastcall.fast_finds(index.segment)


@pytest.fixture(scope="module")
def plain(index: Index) -> Finds:
    """The fallback."""
    return fastcall.plain_finds(index.segment)


def test_best(fast: Finds, plain: Finds) -> None:
    """The same bytes from both; the order is that of depth here."""
    everyone = sorted(RANKS, key=lambda rank: -RANKS[rank])
    choices: list[tuple[Any, list[Any]]] = [
        (None, everyone),
        (everyone, everyone),
        ([(HALF, 1), (7, 7), (2, 0)], everyone[1:]),
        ([(2, 1), (3, 0)], []),
        ([], []),
    ]
    for among, expected in choices:
        chosen = None if among is None else rank_records(as_ranks(among))
        for n in range(len(U64) + 1):
            for k in range(5):
                found = fast.best(U64[:n], k, chosen)
                assert type(found) is tuple and found == plain.best(U64[:n], k, chosen)
                assert all(type(match) is Match for match in found)
                if n >= 4:
                    assert [tuple(match.worker) for match in found] == expected[:k]
                assert all(match.depth == min(n, RANKS[match.worker]) for match in found)
    assert fast.best(LOCAL, 3, None) == fast.best(tuple(LOCAL), 3, None) == fast.best(U64, 3, None)


def test_wrong_calls_of_best(fast: Finds) -> None:
    """What the builtin does not know it leaves to its caller; bytes are taken by whole ranks."""
    best: Any = fast.best
    for call in ((), (U64,), (U64, 1), (U64, 1, None, None), (U64, -1, None), (U64, True, None)):
        assert best(*call) is None
    for call in ((U64, 2**64, None), (U64, 1.0, None), (U64, 1, "x"), (U64, 1, [1]), (U64, 1, bytearray(16))):
        assert best(*call) is None
    assert best(U64, 2**62, None) == best(U64, 3, None) != () and best(U64, 1, b"x" * 15) == ()
    assert best(U64, 0, None) == () == best(U64[:0], 3, None)


def test_ways_to_call_best_match(fast: Finds, plain: Finds) -> None:
    """Arguments by place and by name; all that is wrong raises what the fallback raises."""
    right = Match(WorkerWithDpRank(TOP, 2**32 - 1), 4)
    for finds in (fast, plain):
        call = finds.best_match
        for query in (U64, LOCAL, tuple(LOCAL), array("Q", LOCAL), np.repeat(U64, 2)[::2], U64.astype(">u8")):
            assert call(query) == right == call(query, None) == call(local_hashes=query, among=None)
            assert call(query, [right.worker, 3]) == right == call(query, among=iter([right.worker]))
            assert call(query, among=[2]) == Match(WorkerWithDpRank(2, 0), 3)
            assert call(query, []) is None and call(query, [77]) is None
        assert call([]) is None and call([5]) is None and call(U64[:0]) is None

    def failing() -> Iterator[int]:
        yield 2
        raise LookupError("not known")

    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        ((U64, None, None), {}),
        ((U64,), {"local_hashes": U64}),
        ((U64,), {"early_exit": True}),
        ((U64, 5), {}),
        ((U64, ["x"]), {}),
        (("x",), {}),
        (([2**64],), {}),
        ((np.ones(3),), {"among": [2]}),
    ]
    for arguments, names in wrong:
        ours, theirs = (raised(partial(f.best_match, *arguments, **names)) for f in (fast, plain))
        assert type(ours) is tuple and ours == theirs, (arguments, names)
    for finds in (fast, plain):
        with pytest.raises(LookupError):
            finds.best_match(U64, failing())


def test_best_match_of_an_index(index: Index) -> None:
    """The builtin itself, with a signature; a subclass has its own say."""
    assert index.best_match is index._best_match and index.best_match.__doc__
    for call in (index.best_match, Index.best_match):
        assert list(inspect.signature(call).parameters)[-2:] == ["local_hashes", "among"]
    assert Index.best_match(index, U64, [2]) == index.best_match(U64, [2])

    class Doubting(Index):
        def best_match(self, local_hashes: Any, among: Any = None) -> Match | None:
            return super().best_match(local_hashes[:1], among)

    with Doubting.attach(index.name) as other:
        match = other.best_match(U64)
        assert match is not None and match.depth == 1


@pytest.mark.parametrize("query", [U64, LOCAL, np.repeat(U64, 2)[::2], "x", U64[:0]], ids=str)
@pytest.mark.parametrize("known", [True, False])
def test_no_leak_of_matches(fast: Finds, query: Any, known: bool) -> None:
    """Matches that were made before, and those that have to be made."""

    def repeat() -> None:
        for _ in range(2_000):
            with suppress(TypeError):
                fast.best_match(query)
                fast.best_match(query, [2])
                fast.best(query, 2, None)
            if not known:
                known_matches.clear()

    counted = (query, None, False, b"", (), known_matches, fast.best_match, Match, WorkerWithDpRank)
    assert_no_leak(repeat, counted)


@pytest.mark.parametrize("ranks", [7, 300])
@pytest.mark.parametrize("builtin", [True, False])
def test_best_of_many(ranks: int, builtin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random ranks in list and in dense coverage, any number of results, against sorting them all."""
    rng = random.Random(ranks)
    if not builtin:
        monkeypatch.setattr(fastcall, "available", lambda: False)
    with open_index(Capacity(blocks=20_000, workers=310, lanes=2), "best") as index, index.writer() as w:
        held: dict[Any, int] = {}
        path = np.array([5, 6, 7, 8], np.uint64)
        for worker in rng.sample(range(2**62), ranks):
            rank, depth = (worker * 4 + 3, rng.randrange(3)), rng.choice([1, 1, 1, 2, 2, 3, 4])
            w.store(rank, None, path[:depth], path[:depth])
            held[rank] = depth
            if rng.random() < 0.3:
                w.store(rank, None, [90], [90])
        blocks = {tuple(info.worker): info.blocks for info in index.workers()}
        for n in range(1, 5):
            order = sorted(held, key=lambda rank: (-min(n, held[rank]), blocks[rank], rank))
            for choice in (None, order[::3], [order[-1], (1, 1)], rng.sample(order, 5)):
                expected = [r for r in order if choice is None or r in choice]
                for k in (0, 1, 2, 9, 32, 33, 1_000):
                    found = index.best_matches(path[:n], k, among=choice)
                    assert [match.worker for match in found] == expected[:k]
                    assert [match.depth for match in found] == [min(n, held[r]) for r in expected[:k]]
                best = index.best_match(path[:n], among=choice)
                assert best is not None and best.worker == expected[0]
        # nothing of the calls is left in the scratch
        assert pairs(index.find_matches(path)) == held


def test_lists(fast: Finds, plain: Finds) -> None:
    """Ints of every size in a list or tuple; what holds anything else is converted, or raises."""
    find = fast.find
    for values in (LOCAL, [v - 2**64 if v >= HALF else v for v in LOCAL]):
        assert find(values) == find(tuple(values)) == find(U64[:4]) and find(values)
    assert not find([]) and not find(())

    class Int(int):
        pass

    wrong: tuple[Any, ...] = (True, False, 1.0, None, "5", Int(5), np.uint64(5), 2**64, -(2**63) - 1, 2**999)
    for value in (*wrong, -(2**999), object()):
        for values in ([value], [*LOCAL, value], [value, *LOCAL]):
            for given in (values, tuple(values)):
                with suppress(TypeError, ValueError):
                    found = find(given)
                    assert type(value) in (Int, np.uint64) and found == plain.find(given)
    assert not find([5] * LIST_ROOM) and not find([5] * (LIST_ROOM + 1))
    assert sys.exc_info() == (None, None, None)


def test_items_that_ask_the_index(index: Index) -> None:
    """A conversion that runs Python code changes the list and asks the same index."""
    query: list[Any] = []

    class Asking:
        def __index__(self) -> int:
            query.clear()
            assert pairs(index.find_matches(LOCAL)) == RANKS
            return LOCAL[0]

    for _ in range(50):
        query[:] = [Asking(), *LOCAL[1:]]
        with suppress(TypeError, ValueError, IndexError):
            index.find_matches(query)
    assert pairs(index.find_matches(LOCAL)) == RANKS
