"""The builtin `find_matches` and its plain fallback: the same answers to everything, and nothing leaks."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import weakref
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from shmtrie import fastcall, pyframe
from shmtrie.capacity import Capacity
from shmtrie.errors import StaleHandle
from shmtrie.fastcall import Finds
from shmtrie.index import Index
from shmtrie.layout import MAX_STORE
from shmtrie.pyapi import F_UINT64
from shmtrie.scores import OverlapScores
from tests.backends import pairs
from tests.system.index_tools import in_threads, open_index
from tests.system.ranked import ALONE, LOCAL, RANKS, U64, raised, ranked_index
from tests.system.test_index_input import FORMS, WRONG

NOTHING = OverlapScores(b"")

pytestmark = pytest.mark.skipif(not fastcall.available(), reason="no builtins on this interpreter")


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    """Three ranks along one chain."""
    with ranked_index("fastcall") as made:
        yield made


@pytest.fixture(scope="module")
def fast(index: Index) -> Finds:
    """The builtins."""
    return fastcall.fast_finds(index.segment)


@pytest.fixture(scope="module")
def plain(index: Index) -> Finds:
    """The fallback."""
    return fastcall.plain_finds(index.segment)


@pytest.fixture
def indexes(index: Index, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Index, Index]]:
    """Two handles of the segment, one with the builtin and one without."""
    with Index.attach(index.name) as builtin, monkeypatch.context() as patch:
        patch.setattr(fastcall, "available", lambda: False)
        with Index.attach(index.name) as fallback:
            yield builtin, fallback


# ----------------------------------------------------------------------------------------------- same answers
def test_arrays(fast: Any, plain: Any) -> None:
    for n in range(len(U64) + 1):
        for query in (U64[:n], U64[:n].view(np.int64)):
            for early in (False, True):
                found = fast.find(query, early)
                assert type(found) is OverlapScores and found._raw == plain.find(query, early)._raw
                assert repr(found) == repr(plain.find(query, early)) and not found.frequencies
            expected = {rank: min(n, depth) for rank, depth in RANKS.items()} if n else {}
            assert pairs(fast.find(query)) == expected == fast.find(query).scores
    assert fast.find(np.array([5], np.uint64)) == NOTHING == plain.find(np.array([5], np.uint64))


def test_padding_is_zero(fast: Any) -> None:
    """Equal results are equal bytes."""
    raw = np.frombuffer(fast.find(U64)._raw, np.uint32)[: 3 * 4].reshape(3, 4)
    assert not raw[:, 3].any() and fast.find(U64)._raw == fast.find(U64.copy())._raw


@pytest.mark.parametrize("form", FORMS)
def test_every_form(indexes: tuple[Index, Index], fast: Any, plain: Any, form: str) -> None:
    query = FORMS[form]
    assert fast.find(query) == plain.find(query) == fast.find(U64[:4])
    one, other = (index.find_matches(query) for index in indexes)
    assert one == other and pairs(one) == RANKS
    one, other = (index.find_matches(query, early_exit=True) for index in indexes)
    assert one == other and one.scores.keys() == RANKS.keys()


def test_arrays_of_a_numpy_that_is_not_known(
    index: Index, fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are taken as buffers then."""
    monkeypatch.setattr(pyframe, "_knows_arrays", lambda: False)
    other = fastcall.fast_finds(index.segment)
    frames: list[Any] = [find.find.__self__ for find in (fast, other)]
    assert [bool(frame[F_UINT64 // 8]) for frame in frames] == [True, False]
    for query in (U64, U64.view(np.int64), U64[:0], U64[1:], U64[::2], U64.astype(">u8")):
        assert other.find(query)._raw == fast.find(query)._raw


@pytest.mark.parametrize("name", WRONG)
def test_every_wrong_argument(indexes: tuple[Index, Index], fast: Any, plain: Any, name: str) -> None:
    value, error = WRONG[name]
    ours, theirs = raised(lambda: fast.find(value)), raised(lambda: plain.find(value))
    assert ours == theirs and issubclass(ours[0], error)
    for early in (False, True):
        one, other = (raised(partial(i.find_matches, value, early_exit=early)) for i in indexes)
        assert one == other and issubclass(one[0], error)


def test_lengths_at_the_limit(indexes: tuple[Index, Index], fast: Any, plain: Any) -> None:
    blocks = np.resize(U64, MAX_STORE + 1)
    assert fast.find(blocks[:-1]) == plain.find(blocks[:-1]) == fast.find(U64)
    for index in indexes:
        with pytest.raises(ValueError, match=f"{MAX_STORE} blocks, got {MAX_STORE + 1}"):
            index.find_matches(blocks)


def test_empty_buffers(fast: Any, plain: Any) -> None:
    odd = np.frombuffer(bytes(9), np.uint8)[1:1].view(np.uint64)
    for empty in (U64[:0], U64[::2][:0], odd, array("Q"), memoryview(array("q"))):
        assert fast.find(empty) == NOTHING == plain.find(empty)
    for wrong in (np.empty(0), np.empty((0, 2), np.uint64), np.empty(0, np.int32), b"", array("d")):
        assert raised(partial(fast.find, wrong)) == raised(partial(plain.find, wrong)) != NOTHING


def test_many_ranks(index: Index, indexes: tuple[Index, Index], fast: Any, plain: Any) -> None:
    """Results longer than any of the other tests, from list and dense coverage."""
    writer = indexes[0]
    with Index.attach(index.name, read_only=False) as other, other.writer() as w:
        for n in (3, 20, 150, 280):
            for worker in range(10_000, 10_000 + n):
                w.store(worker, None, [77, 78, worker], [1, 2, 3])
            query = np.array([77, 78, 10_001], np.uint64)
            assert fast.find(query)._raw == plain.find(query)._raw and len(fast.find(query)) == n
            assert fast.find(query, True)._raw == plain.find(query, early_exit=True)._raw
            assert pairs(writer.find_matches(query))[10_001, 0] == 3
        for worker in range(10_000, 10_000 + n):
            w.remove_worker(worker)
        assert fast.find(query) == NOTHING == plain.find(query)


# ------------------------------------------------------------------------------------------------------ calls
def test_ways_to_call(indexes: tuple[Index, Index], fast: Any, plain: Any) -> None:
    """Arguments by place and by name; anything true is true."""
    query = np.array(ALONE, np.uint64)
    whole, early = OverlapScores.pack([(1_001, 0), (1_002, 0)], [3, 1]), fast.find(query, True)
    assert early == OverlapScores.pack([(1_001, 0), (1_002, 0)], [2, 1])
    for find in (fast.find, plain.find, *(index.find_matches for index in indexes)):
        for value in (True, 1, 2**70, "x", [0], np.True_, np.ones(1, bool)):
            assert find(query, value) == find(query, early_exit=value) == early
            assert find(early_exit=value, local_hashes=query) == find(ALONE, value) == early
        for value in (False, 0, 0.0, "", None, [], np.False_):
            assert find(query, value) == find(query, early_exit=value) == whole
        assert find(local_hashes=query) == find(query) == find(ALONE) == whole
    # a subclass has the method, and may have its own
    assert Index.find_matches(indexes[0], query, True) == early


def test_wrong_calls(fast: Any, plain: Any) -> None:
    """No number of arguments crashes, and all that is wrong raises what the fallback raises."""

    class Undecided:
        def __bool__(self) -> bool:
            raise LookupError("not known")

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        ((U64, U64), {}),
        ((U64, True, 1), {}),
        ((U64,) * 300, {}),
        ((U64,), {"local_hashes": U64}),
        ((U64,), {"hashes": U64}),
        ((), {"early_exit": True}),
        ((), {str(k): k for k in range(100)}),
        ((U64, Undecided()), {}),
        ((U64,), {"early_exit": Undecided()}),
    ]
    for arguments, names in calls:
        ours, theirs = (raised(partial(f.find, *arguments, **names)) for f in (fast, plain))
        assert type(ours) is tuple and ours == theirs, (arguments, names)
    assert fast.find(U64) == plain.find(U64)


def test_what_it_says_of_itself(index: Index) -> None:
    """Tools see the name, the arguments and the text."""
    for find in (index.find_matches, index._find):
        assert list(inspect.signature(find).parameters) == ["local_hashes", "early_exit"]
    assert inspect.signature(index.find_matches).parameters["early_exit"].default is False
    assert index.find_matches.__name__ == "find_matches" and index.find_matches.__doc__


def test_a_subclass_has_its_own_say(index: Index) -> None:
    class Doubting(Index):
        def find_matches(self, local_hashes: Any, early_exit: bool = False) -> OverlapScores:
            return super().find_matches(local_hashes[:1], early_exit)

    with Doubting.attach(index.name) as other:
        assert pairs(other.find_matches(U64)) == dict.fromkeys(RANKS, 1)
        assert pairs(index.find_matches(U64)) == RANKS


def test_a_closed_handle(indexes: tuple[Index, Index]) -> None:
    """Whatever is asked of it, kept calls included."""
    for index in indexes:
        find, best = index.find_matches, index._best
        index.close()
        calls: list[Callable[[Any], Any]] = [index.find_matches, find, index.best_match]
        calls += [lambda q: find(q, early_exit=True), lambda q: find(), lambda q: best(q, 1, None)]  # noqa: B023
        for call in calls:
            for value in (U64, LOCAL, "x", None):
                with pytest.raises(StaleHandle):
                    call(value)


def test_no_exception_is_left_behind(fast: Any) -> None:
    """A failed conversion is not reported by whatever runs next."""
    released = memoryview(array("Q", LOCAL))
    released.release()
    assert fast.find(np.repeat(U64, 2)[::2]) == fast.find(U64) and sys.exc_info() == (None, None, None)
    for value in (released, np.ones(4), np.zeros((2, 2), np.uint64), 5, "x", object(), type, None):
        with pytest.raises((TypeError, ValueError)):
            fast.find(value)
        assert list(map(int, "12")) == [1, 2] and sys.exc_info() == (None, None, None)


def test_builtin_outlives_its_index(index: Index) -> None:
    """A builtin keeps the mapping alive, and all else that it needs."""
    handle = Index.attach(index.name)
    find, best = handle.find_matches, handle._best
    segment = weakref.ref(handle.segment)
    del handle
    gc.collect()
    assert segment() is None
    for query in (U64, LOCAL, np.repeat(U64, 2)[::2]):
        assert pairs(find(query)) == RANKS and find(query, early_exit=True)
    assert best(U64, 1, None)


def test_nothing_is_left_of_a_handle(index: Index) -> None:
    """Its mapping goes with its last reference, without the collector."""

    def mapped() -> int:
        with open("/proc/self/maps") as file:
            return sum(index.name.strip("/") in line for line in file)

    gc.collect()
    gc.disable()
    try:
        before = mapped()
        handle = Index.attach(index.name)
        assert mapped() == before + 1 and handle.find_matches(U64)
        del handle
        assert mapped() == before
    finally:
        gc.enable()


COLLECTED = """
import gc, sys
from shmtrie.index import Index

class Holder: pass

for _ in range(5):
    holder = Holder()
    holder.index = Index.attach(sys.argv[1], read_only=False)
    holder.writer = holder.index.writer()
    holder.writer.store(1, None, [1], [1])
    holder.index.holder = holder.writer.holder = holder
    holder.writer.close()
    del holder
    gc.collect()
print("done")
"""


def test_handles_that_are_collected_in_a_cycle() -> None:
    """Whatever of them goes first. Freed memory is overwritten there, so that who still reads it crashes."""
    with open_index(Capacity(blocks=100, workers=4, lanes=2)) as made:
        done = subprocess.run(
            [sys.executable, "-c", COLLECTED, made.name],
            env=os.environ | {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "2"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_buffers_are_given_back(fast: Any) -> None:
    """No export is left: arrays can grow, memoryviews can be released."""
    growing, data = array("Q", LOCAL), bytearray(U64.tobytes())
    view = memoryview(data).cast("Q")
    for _ in range(1_000):
        assert fast.find(growing) and fast.find(view) and not fast.find(view[1::2])
        for wrong in (data, array("d", [1.0])):
            with suppress(TypeError):
                assert not fast.find(wrong)
    growing.append(9)
    view.release()
    data.append(0)


def test_threads_take_turns(fast: Any, plain: Any) -> None:
    """The builtin has one context for all threads, behind the GIL."""
    queries = [U64[:n] for n in range(1, 5)]
    expected = [plain.find(q) for q in queries]
    wrong: list[int] = []

    def run(i: int) -> None:
        query, right = queries[i % 4], expected[i % 4]
        for _ in range(20_000):
            if fast.find(query) != right:
                wrong.append(i)
        for _ in range(300):
            if plain.find(query) != right:
                wrong.append(i)

    in_threads(8, run)
    assert wrong == []
