"""Arguments of the shared-memory index: every form of hashes that is right, and every one that is wrong.

A wrong argument is a TypeError or ValueError before anything is touched.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from shmtrie.index import Index
from shmtrie.writer import Writer
from tests.system.index_tools import HALF, TOP, assert_valid, changed, contents, details, open_index, scores

LOCAL = [0, 5, TOP, HALF]  # held by the rank 1 of every test
EXTERNAL = [TOP, 1, 0, HALF - 1]
U64 = np.array(LOCAL, np.uint64)


class Number:
    """An int in disguise."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Refusing:
    """Its conversion fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __index__(self) -> int:
        raise self.error


@dataclass(frozen=True)
class Bench:
    """An index with one chain, and a writer of it."""

    index: Index
    writer: Writer

    def __iter__(self) -> Iterator[Any]:
        return iter((self.index, self.writer))


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """Rank 1 holds LOCAL."""
    with open_index(hint="input") as index, index.writer() as writer:
        writer.store(1, None, LOCAL, EXTERNAL)
        yield Bench(index, writer)
        assert scores(index, LOCAL) == {(1, 0): 4}
        assert_valid(index)


def reads(index: Index, query: Any) -> dict[str, Callable[[], Any]]:
    """Every way to ask for a query."""
    return {
        "find_matches": lambda: index.find_matches(query),
        "early_exit": lambda: index.find_matches(query, early_exit=True),
        "find_match_details": lambda: index.find_match_details(query),
        "find_matches_batch": lambda: index.find_matches_batch(query, [0, 4]),
        "best_match": lambda: index.best_match(query),
        "best_matches": lambda: index.best_matches(query, 3),
        "among": lambda: index.best_match(query, among=[1]),
    }


def writes(writer: Writer, hashes: Any) -> dict[str, Callable[[], Any]]:
    """Every write call with the hashes in every place."""
    return {
        "local": lambda: writer.store(1, EXTERNAL[-1], hashes, [7, 8, 9, 10]),
        "external": lambda: writer.store(1, EXTERNAL[-1], [7, 8, 9, 10], hashes),
        "remove": lambda: writer.remove(1, hashes),
    }


# ------------------------------------------------------------------------------------------------ right forms
def unaligned() -> Any:
    return np.frombuffer(b"x" + U64.tobytes(), np.uint64, 4, 1)


def read_only() -> Any:
    fixed = U64.copy()
    fixed.flags.writeable = False
    return fixed


class Subclass(np.ndarray[Any, Any]):
    """As frameworks have them."""


FORMS: dict[str, Any] = {
    "uint64": U64,
    "int64": U64.view(np.int64),
    "big endian": U64.astype(">u8"),
    "big endian signed": U64.view(np.int64).astype(">i8"),
    "longlong": U64.astype(np.ulonglong),
    "every third": np.repeat(U64, 3)[::3],
    "reversed": U64[::-1].copy()[::-1],
    "column": np.stack([U64, U64], axis=1)[:, 1],
    "unaligned": unaligned(),
    "unaligned strided": np.frombuffer(b"x" + np.repeat(U64, 2).tobytes(), np.uint64, 8, 1)[::2],
    "read only": read_only(),
    "fortran": np.asfortranarray(U64),
    "subclass": U64.view(Subclass),
    "object": np.array(LOCAL, object),
    "list": LOCAL,
    "tuple": tuple(LOCAL),
    "deque": deque(LOCAL),
    "signed": [0, 5, -1, -HALF],
    "numpy scalars": [np.uint8(0), np.int16(5), np.uint64(TOP), np.int64(-HALF)],
    "__index__": [Number(v) for v in LOCAL],
    "array Q": array("Q", LOCAL),
    "array q": array("q", [0, 5, -1, -HALF]),
    "memoryview": U64.data,
    "memoryview of array": memoryview(array("Q", LOCAL)),
    "memoryview backwards": memoryview(array("Q", LOCAL[::-1]))[::-1],
    "cast bytes": memoryview(U64.tobytes()).cast("Q"),
    "ctypes": (ctypes.c_uint64 * 4)(*LOCAL),
    "ctypes signed": (ctypes.c_int64 * 4)(0, 5, -1, -HALF),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_queries(bench: Bench, form: str) -> None:
    query, index = FORMS[form], bench.index
    assert scores(index, query) == {(1, 0): 4}
    assert scores(index, query, early_exit=True) == {(1, 0): 4}
    assert details(index, query) == {(1, 0): (4, EXTERNAL[-1])}
    assert [len(r) for r in index.find_matches_batch(query, [0, 0, 1, 4])] == [0, 1, 0]
    assert index.best_match(query) == index.best_matches(query, 2)[0] == ((1, 0), 4)


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_stores_and_removes(bench: Bench, form: str) -> None:
    hashes, (index, writer) = FORMS[form], bench
    writer.store(2, None, hashes, [v ^ 99 for v in LOCAL])
    assert scores(index, LOCAL) == {(1, 0): 4, (2, 0): 4}
    writer.store(3, None, [1, 2, 3, 4], hashes)
    assert details(index, [1, 2, 3, 4]) == {(3, 0): (4, LOCAL[-1])}
    writer.store(3, LOCAL[3] - 2**64, [5], [77])  # the signed spelling of a parent
    assert scores(index, [1, 2, 3, 4, 5]) == {(3, 0): 5}
    writer.remove(3, hashes)
    assert scores(index, [1, 2, 3, 4]) == {}
    writer.clear(2)


def test_offsets_and_numbers_in_disguise(bench: Bench) -> None:
    index = bench.index
    cuts: list[Any] = [[0, 4, 4], (0, 4, 4), np.array([0, 4, 4]), np.array([0, 4, 4], np.uint64)]
    cuts += [np.array([0, 9, 4, 9, 4])[::2], array("q", [0, 4, 4]), [Number(0), Number(4), 4]]
    for offsets in cuts:
        found = index.find_matches_batch(U64, offsets)
        assert [len(r) for r in found] == [1, 0] and found.offsets.tolist() == [0, 1, 1]
    assert len(index.find_matches_batch(U64, [2])) == 0
    numbers: list[Any] = [np.int8(1), np.uint64(1), Number(1)]
    assert [len(index.best_matches(U64, k)) for k in numbers] == [1, 1, 1]
    assert index.best_matches(U64, 0) == []


def test_workers_in_disguise(bench: Bench) -> None:
    index, writer = bench
    writer.store(np.uint64(6), None, [1], [1])
    writer.store((np.int16(6), np.uint8(1)), None, [1], [1])
    assert scores(index, [1]) == {(6, 0): 1, (6, 1): 1}
    assert index.best_match(U64, among=[Number(1), (2, Number(0))]) == ((1, 0), 4)
    writer.store((Number(6), Number(2)), None, [1], [1])
    writer.remove_worker(Number(6))
    assert scores(index, [1]) == {}


# ------------------------------------------------------------------------------------------------ wrong forms
WRONG_TYPES: dict[str, Any] = {
    "None": None,
    "int": 5,
    "float": 1.5,
    "str": "abcd",
    "bytes": b"12345678",
    "bytearray": bytearray(32),
    "byte memoryview": memoryview(bytes(32)),
    "set": {1, 2, 3, 4},
    "dict": {1: 2, 2: 3, 3: 4, 4: 5},
    "iterator": iter([1, 2, 3, 4]),
    "generator function": reads,
    "floats": [1.0, 2.0, 3.0, 4.0],
    "one float": [1, 2, 3, 4.0],
    "bools": [True, False, True, True],
    "one bool": (1, 2, 3, True),
    "numpy bool": [1, 2, 3, np.True_],
    "bool behind negative": [-1, 2, 3, True],
    "strings": ["1", "2", "3", "4"],
    "None inside": [1, 2, 3, None],
    "nested": [[1, 2], [3, 4]],
    "float64": np.ones(4),
    "float of 8 bytes in a buffer": array("d", [1.0] * 4),
    "bool array": np.ones(4, bool),
    "int32": np.ones(4, np.int32),
    "uint16": np.ones(4, np.uint16),
    "array I": array("I", [1] * 4),
    "complex": np.ones(4, complex),
    "dates": np.ones(4, "M8[s]"),
    "spans": np.ones(4, "m8[s]"),
    "text array": np.array(list("abcd")),
    "bytes of 8": np.array([b"12345678"] * 4),
    "void of 8": np.zeros(4, "V8"),
    "record of 8": np.zeros(4, [("a", "<u8")]),
    "object floats": np.array([1.0, 2, 3, 4], object),
    "object bools": np.array([True, 2, 3, 4], object),
    "ctypes double": (ctypes.c_double * 4)(),
    "__index__ of a str": [1, 2, 3, Refusing(TypeError("no"))],
}
WRONG_VALUES: dict[str, Any] = {
    "2**64": [1, 2, 3, TOP + 1],
    "-2**63 - 1": [1, 2, 3, -HALF - 1],
    "huge": [1, 2, 3, 10**40],
    "__index__ of 2**64": [1, 2, 3, Number(TOP + 1)],
    "object 2**64": np.array([1, 2, 3, TOP + 1], object),
    "two dimensions": np.zeros((2, 2), np.uint64),
    "two dimensions signed": np.zeros((4, 1), np.int64),
    "two dimensions buffer": memoryview(bytes(32)).cast("Q", (2, 2)),
    "no dimension": np.array(5, np.uint64),
    "numpy int": np.uint64(5),
}
WRONG: dict[str, tuple[Any, type[Exception]]] = {f"type: {k}": (v, TypeError) for k, v in WRONG_TYPES.items()}
WRONG |= {f"value: {k}": (v, ValueError) for k, v in WRONG_VALUES.items()}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_hashes(bench: Bench, name: str) -> None:
    value, error = WRONG[name]
    before = contents(bench.index, [LOCAL])
    for way, call in (reads(bench.index, value) | writes(bench.writer, value)).items():
        with pytest.raises(error):
            call()
            pytest.fail(way)
    assert changed(before, contents(bench.index, [LOCAL])) == []


@pytest.mark.parametrize("error", [ZeroDivisionError, MemoryError, KeyError, ValueError, StopIteration])
def test_index_that_raises_comes_through(bench: Bench, error: type[Exception]) -> None:
    before = contents(bench.index, [LOCAL])
    value = [1, 2, 3, Refusing(error("of the test"))]
    for call in (reads(bench.index, value) | writes(bench.writer, value)).values():
        with pytest.raises(error, match="of the test"):
            call()
    assert changed(before, contents(bench.index, [LOCAL])) == []


@pytest.mark.parametrize("how", ["clear", "shrink", "grow", "replace"])
def test_index_that_changes_its_list(bench: Bench, how: str) -> None:
    """What comes of it is not specified; a write is applied as a whole or not at all."""
    actions: dict[str, Callable[[list[Any]], None]] = {
        "clear": lambda values: values.clear(),
        "shrink": lambda values: values.pop() and None,
        "grow": lambda values: values.append(9) if len(values) < 50 else None,
        "replace": lambda values: values.__setitem__(slice(1, None), ["no"] * 3),
    }

    class Changing:
        def __init__(self, values: list[Any]) -> None:
            self.values = values

        def __index__(self) -> int:
            actions[how](self.values)
            return 3

    index, writer = bench
    for way in reads(index, None) | writes(writer, None):
        values: list[Any] = []
        values[:] = [Changing(values), 11, 12, 14]
        with suppress(TypeError, ValueError, IndexError):
            (reads(index, values) | writes(writer, values))[way]()
        writer.clear(1)
        writer.store(1, None, LOCAL, EXTERNAL)
    assert scores(index, LOCAL) == {(1, 0): 4}


def test_index_that_uses_the_index(bench: Bench) -> None:
    """Conversions come first, so a call inside a call finds everything in order."""
    index, writer = bench

    class Asking:
        def __index__(self) -> int:
            assert scores(index, LOCAL) == {(1, 0): 4}
            assert index.best_match(LOCAL, among=[1]) == ((1, 0), 4)
            writer.store(4, None, [1], [1])
            writer.remove(4, [1])
            return 0

    for way, call in reads(index, [Asking(), *LOCAL[1:]]).items():
        assert call(), way
    writer.store(5, None, [Asking(), 1], [1, Asking()])
    assert scores(index, [0, 1]) == {(1, 0): 1, (5, 0): 2}
    writer.remove_worker(5)
    writer.remove_worker(4)
