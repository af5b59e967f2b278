"""The builtin `find` and its plain fallback: the same answers to everything, and nothing leaks."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import tracemalloc
import weakref
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from shmtrie import fastcall
from shmtrie.capacity import Capacity
from shmtrie.index import Index
from shmtrie.layout import MAX_STORE
from shmtrie.pyapi import F_ENTERED
from shmtrie.scores import OverlapScores
from tests.backends import pairs
from tests.system.index_tools import HALF, TOP, in_threads, open_index
from tests.system.test_index_input import FORMS, LOCAL, WRONG

RANKS = {(TOP, 2**32 - 1): 4, (2, 0): 3, (HALF, 1): 1}
U64 = np.array([*LOCAL, 9, 9], np.uint64)

pytestmark = pytest.mark.skipif(not fastcall.available(), reason="no builtins on this interpreter")


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    """Three ranks along one chain."""
    with open_index(Capacity(blocks=5_000, workers=300, lanes=2), "fastcall") as made, made.writer() as w:
        for rank, depth in RANKS.items():
            w.store(rank, None, LOCAL[:depth], [(rank[0] + k) % 2**64 for k in range(depth)])
        yield made


@pytest.fixture(scope="module")
def fast(index: Index) -> tuple[Any, Any, object]:
    """(find, find with early exit, what keeps them alive)."""
    return fastcall.fast_finds(index.segment)


@pytest.fixture(scope="module")
def plain(index: Index) -> tuple[Any, Any, object]:
    """The fallback."""
    return fastcall.plain_finds(index.segment)


@pytest.fixture
def indexes(index: Index, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Index, Index]]:
    """Two handles of the segment, one with the builtin and one without."""
    with Index.attach(index.name) as builtin, monkeypatch.context() as patch:
        patch.setattr(fastcall, "available", lambda: False)
        with Index.attach(index.name) as fallback:
            yield builtin, fallback


def raised(call: Callable[[], Any]) -> Any:
    """The result of a call, or (type, text) of its exception."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


# ----------------------------------------------------------------------------------------------- same answers
def test_arrays(fast: Any, plain: Any) -> None:
    for n in range(len(U64) + 1):
        for query in (U64[:n], U64[:n].view(np.int64)):
            for kind in (0, 1):
                raw = fast[kind](query)
                assert type(raw) is bytes and raw == plain[kind](query)
            expected = {rank: min(n, depth) for rank, depth in RANKS.items()} if n else {}
            assert pairs(OverlapScores(fast[0](query))) == expected
    assert fast[0](np.array([5], np.uint64)) == b"" == plain[0](np.array([5], np.uint64))


def test_padding_is_zero(fast: Any) -> None:
    """Equal results are equal bytes."""
    raw = np.frombuffer(fast[0](U64), np.uint32)[: 3 * 4].reshape(3, 4)
    assert not raw[:, 3].any() and fast[0](U64) == fast[0](U64.copy())


@pytest.mark.parametrize("form", FORMS)
def test_every_form(indexes: tuple[Index, Index], fast: Any, plain: Any, form: str) -> None:
    query = FORMS[form]
    raws = [find(query) for find in (fast[0], plain[0]) if find(query) is not None]
    assert all(OverlapScores(raw) == OverlapScores(fast[0](U64[:4])) for raw in raws)
    one, other = (index.find_matches(query) for index in indexes)
    assert one == other and pairs(one) == RANKS
    one, other = (index.find_matches(query, early_exit=True) for index in indexes)
    assert one == other and one.scores.keys() == RANKS.keys()


@pytest.mark.parametrize("name", WRONG)
def test_every_wrong_argument(indexes: tuple[Index, Index], fast: Any, plain: Any, name: str) -> None:
    value, error = WRONG[name]
    assert [find(value) for find in (*fast[:2], *plain[:2])] == [None] * 4
    for early in (False, True):
        one, other = (raised(partial(i.find_matches, value, early_exit=early)) for i in indexes)
        assert one == other and issubclass(one[0], error)


def test_lengths_at_the_limit(indexes: tuple[Index, Index], fast: Any, plain: Any) -> None:
    blocks = np.resize(U64, MAX_STORE + 1)
    assert fast[0](blocks) is None and plain[0](blocks) is None
    assert fast[0](blocks[:-1]) == plain[0](blocks[:-1]) == fast[0](U64)
    for index in indexes:
        with pytest.raises(ValueError, match=f"{MAX_STORE} blocks, got {MAX_STORE + 1}"):
            index.find_matches(blocks)


def test_empty_buffers(fast: Any, plain: Any) -> None:
    odd = np.frombuffer(bytes(9), np.uint8)[1:1].view(np.uint64)
    for empty in (U64[:0], U64[::2][:0], odd, array("Q"), memoryview(array("q"))):
        assert fast[0](empty) in (b"", None) and plain[0](empty) in (b"", None)
    for wrong in (np.empty(0), np.empty((0, 2), np.uint64), np.empty(0, np.int32), b"", array("d")):
        assert fast[0](wrong) is None and plain[0](wrong) is None


def test_many_ranks(index: Index, indexes: tuple[Index, Index], fast: Any, plain: Any) -> None:
    """Results longer than any of the other tests, from list and dense coverage."""
    writer = indexes[0]
    with Index.attach(index.name, read_only=False) as other, other.writer() as w:
        for n in (3, 20, 150, 280):
            for worker in range(10_000, 10_000 + n):
                w.store(worker, None, [77, 78, worker], [1, 2, 3])
            query = np.array([77, 78, 10_001], np.uint64)
            assert fast[0](query) == plain[0](query) and len(fast[0](query)) == 20 * n
            assert fast[1](query) == plain[1](query)
            assert pairs(writer.find_matches(query))[10_001, 0] == 3
        for worker in range(10_000, 10_000 + n):
            w.remove_worker(worker)
        assert fast[0](query) == b"" == plain[0](query)


# ------------------------------------------------------------------------------------------------------ calls
def test_wrong_calls(fast: Any) -> None:
    """No number of arguments crashes; what the builtin does not know it leaves to its caller."""
    for find in fast[:2]:
        assert find() is None and find(U64, U64) is None and find(*[U64] * 300) is None
        with pytest.raises(TypeError):
            find(U64, early_exit=True)
        with pytest.raises(TypeError):
            find(hashes=U64)
        assert find(U64) is not None


def test_no_exception_is_left_behind(fast: Any) -> None:
    """A failed conversion is not reported by whatever runs next."""
    released = memoryview(array("Q", LOCAL))
    released.release()
    for value in (released, U64[::2], U64[::-1], np.zeros((2, 2), np.uint64), 5, "x", object(), type, None):
        assert fast[0](value) is None
        assert list(map(int, "12")) == [1, 2] and sys.exc_info() == (None, None, None)


def test_builtin_outlives_its_index(index: Index) -> None:
    """What keeps the builtin alive keeps the mapping alive."""
    handle = Index.attach(index.name)
    find, early, _, kept = fastcall.fast_finds(handle.segment)
    segment = weakref.ref(handle.segment)
    handle.close()
    del handle
    gc.collect()
    assert segment() is None
    assert pairs(OverlapScores(find(U64) or b"")) == RANKS and early(U64) and kept


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


def test_a_query_while_another_one_takes_its_hashes(index: Index, fast: Any) -> None:
    """Taking a buffer may run Python code, and other threads then: they are answered, too."""
    with Index.attach(index.name) as handle:
        frames = [frame for context in handle._kept for frame, _, _ in context.kept]
        for frame in frames:
            frame[F_ENTERED // 8] = 1
        for query in (U64, list(U64.tolist()), array("Q", LOCAL), memoryview(U64), U64[::1], tuple(LOCAL)):
            assert handle.find_matches(query) == OverlapScores(fast[0](U64))
            assert pairs(handle.find_matches(query, early_exit=True)).keys() == RANKS.keys()
            best = handle.best_match(query)
            assert best is not None and best.worker == (TOP, 2**32 - 1)
        assert [int(frame[F_ENTERED // 8]) for frame in frames] == [1] * 3


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no buffers by Python code")
def test_a_buffer_that_asks_the_same_index(index: Index) -> None:
    class Odd:
        def __buffer__(self, flags: int) -> memoryview:
            inner.append(pairs(index.find_matches(U64)))
            return memoryview(U64)

        def __release_buffer__(self, view: memoryview) -> None:
            inner.append(pairs(index.find_matches(U64)))

    inner: list[Any] = []
    assert pairs(index.find_matches(Odd())) == RANKS and inner == [RANKS] * len(inner) and inner


def test_buffers_are_given_back(fast: Any) -> None:
    """No export is left: arrays can grow, memoryviews can be released."""
    growing, data = array("Q", LOCAL), bytearray(U64.tobytes())
    view = memoryview(data).cast("Q")
    for _ in range(1_000):
        assert fast[0](growing) and fast[0](view) and fast[0](view[::2]) is None
        assert fast[0](data) is None and fast[0](array("d", [1.0])) is None
    growing.append(9)
    view.release()
    data.append(0)


# ------------------------------------------------------------------------------------------------------ leaks
def repeat(find: Any, value: Any, n: int) -> None:
    for _ in range(n):
        find(value)


# An array, a buffer, something of a wrong kind, and no buffer at all.
LEAKS: dict[str, Any] = {
    "array": U64,
    "int64 array": U64.view(np.int64),
    "no match": np.array([5, 5], np.uint64),
    "empty": U64[:0],
    "array Q": array("Q", LOCAL),
    "strided": U64[::2],
    "float array": np.ones(4),
    "int32 array": np.ones(4, np.int32),
    "list": list(LOCAL),
    "tuple": tuple(LOCAL),
    "list with a float": [*LOCAL, 1.0],
    "list with a large int": [*LOCAL, 2**70],
    "str": "a text of this test",
    "bytes": bytes(U64),
    "object": object(),
}


@pytest.mark.parametrize("name", LEAKS)
def test_no_leak_of_references_or_memory(fast: Any, name: str) -> None:
    """A million calls, or fewer: the argument, None and b"" keep their counts, memory does not grow."""
    value, find = LEAKS[name], fast[0]
    n = 1_000_000 if name in ("array", "list") else 100_000
    repeat(find, value, 1_000)
    counted = (value, None, b"", find, type(value))
    before = [sys.getrefcount(item) for item in counted]
    tracemalloc.start()
    try:
        repeat(find, value, 2_000)
        gc.collect()
        base = tracemalloc.get_traced_memory()[0]
        repeat(find, value, 2_000)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - base < 2_000
    finally:
        tracemalloc.stop()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    repeat(find, value, n)
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 8_192
    )  # KiB; one byte a call would be 1 MiB
    after = [sys.getrefcount(item) for item in counted]
    assert [abs(a - b) < 200 for a, b in zip(after, before, strict=True)] == [True] * len(counted), (
        before,
        after,
    )
    assert find is fast[0]


def test_no_leak_of_kept_results(fast: Any) -> None:
    """Results are plain bytes of their own: freed when dropped, never shared with a later call."""
    kept = [fast[0](U64[: k % 7]) for k in range(10_000)]
    assert len({id(raw) for raw in kept if raw}) == sum(bool(raw) for raw in kept)
    assert all(sys.getrefcount(raw) <= 4 for raw in kept if raw)
    assert all(raw == kept[k % 7] for k, raw in enumerate(kept))


def test_threads_take_turns(fast: Any, plain: Any) -> None:
    """The builtin has one context for all threads, behind the GIL."""
    queries = [U64[:n] for n in range(1, 5)]
    expected = [plain[0](q) for q in queries]
    wrong: list[int] = []

    def run(i: int) -> None:
        query, right = queries[i % 4], expected[i % 4]
        for _ in range(20_000):
            if fast[0](query) != right:
                wrong.append(i)
        for _ in range(300):
            if plain[0](query) != right:
                wrong.append(i)

    in_threads(8, run)
    assert wrong == []
