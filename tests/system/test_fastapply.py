"""The builtin `apply` of a writer and the way around it: the same answers, no check lost, no leak."""

from __future__ import annotations

import gc
import random
import resource
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from shmtrie import fastapply
from shmtrie.capacity import Capacity
from shmtrie.errors import ParentBlockNotFound
from shmtrie.events import KIND_CLEAR, KIND_REMOVE, KIND_STORE, KvCacheEvent, KvCacheRemoveData, RouterEvent
from shmtrie.fastapply import DONE, NOT_DONE
from shmtrie.index import Index
from shmtrie.pyapi import LIST_ROOM
from shmtrie.scores import WorkerWithDpRank
from shmtrie.writer import Writer
from tests.backends import as_signed
from tests.system.index_tools import HALF, TOP, assert_valid, open_index, scores

pytestmark = pytest.mark.skipif(not fastapply.available(), reason="no builtins on this interpreter")

LOCAL = [0, 5, TOP, HALF]
U64 = np.array(LOCAL, np.uint64)


@pytest.fixture
def index() -> Iterator[Index]:
    """Ends valid."""
    with open_index(Capacity(blocks=50_000, workers=8, lanes=3), "fastapply") as made:
        yield made
        assert_valid(made)


@pytest.fixture
def writer(index: Index) -> Iterator[Writer]:
    """Rank (1, 0) holds LOCAL under the same hashes."""
    with index.writer() as made:
        made.store(1, None, U64, U64)
        yield made


@contextmanager
def no_builtins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(fastapply, "available", lambda: False)
        yield


def said(call: Callable[[], Any]) -> Any:
    """The result of a call, or (type, text) of its exception."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


FORMS: tuple[Callable[[list[int]], Any], ...] = (
    lambda v: np.array(v, np.uint64),
    lambda v: np.array(v, np.uint64).view(np.int64),
    list,
    tuple,
    lambda v: [as_signed(x) for x in v],
    lambda v: array("Q", v),
    lambda v: np.repeat(np.array(v, np.uint64), 2)[::2],
)


def test_random_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses, messages, answers, ranks and counters are those of the way around."""
    capacity = Capacity(blocks=3_000, workers=5, lanes=2)
    with ExitStack() as stack:
        one, two = (stack.enter_context(open_index(capacity, "same")) for _ in range(2))
        fast = stack.enter_context(one.writer())
        with no_builtins(monkeypatch):
            plain = stack.enter_context(two.writer())
        assert plain._apply is fastapply._not_done is not fast._apply
        rng, taken = random.Random(8), 0
        apply = fast._apply

        def counted(*arguments: Any) -> int:
            nonlocal taken
            done = apply(*arguments)
            taken += done != NOT_DONE
            return done

        fast._apply = counted
        for step in range(2_500):
            worker = rng.choice([1, (1, 1), 2, WorkerWithDpRank(TOP, 2**32 - 1), (3, 0), 4, (5, 9)])
            form = rng.choice(FORMS)
            path = [rng.choice([0, 7, TOP, HALF]) for _ in range(rng.randrange(1, 7))]
            names = [hash((tuple(path[: k + 1]), worker)) % 2**64 for k in range(len(path))]
            at = rng.randrange(len(path))
            parent = names[at - 1] if at else None
            if parent is not None and rng.random() < 0.5:
                parent = as_signed(parent)
            kind = rng.random()
            for w in (fast, plain):
                call: Callable[[], Any]
                if kind < 0.6:
                    call = partial(w.store, worker, parent, form(path[at:]), form(names[at:]))
                elif kind < 0.9:
                    call = partial(w.remove, worker, form(names[at:]))
                elif kind < 0.95:
                    call = partial(w.clear, worker)
                else:
                    data = KvCacheRemoveData(names[at:])
                    call = partial(w.apply_event, RouterEvent(2, KvCacheEvent(step, data)))
                if w is fast:
                    result = said(call)
                else:
                    expected = said(call)
            where = str(two.name)
            if isinstance(expected, tuple):
                expected = expected[0], expected[1].replace(where, one.name)
            assert result == expected, step
            assert scores(one, path) == scores(two, path)
        assert taken > 1_000
        assert one.workers() == two.workers()
        first, second = one.segment.view("lanes")["counters"], two.segment.view("lanes")["counters"]
        assert first.tolist() == second.tolist()
        assert_valid(one)
        assert_valid(two)


def test_what_is_taken(writer: Writer) -> None:
    """What is common is, in every spelling; what is not is left to the caller, with nothing done."""
    apply = writer._apply
    for worker in (1, (1, 0), WorkerWithDpRank(1)):
        for hashes in (U64, U64.view(np.int64), LOCAL, tuple(LOCAL), [as_signed(x) for x in LOCAL]):
            assert apply(KIND_STORE, worker, None, hashes, hashes, None) == DONE
            assert apply(KIND_STORE, worker, None, U64, hashes, 5) == DONE
            assert apply(KIND_REMOVE, worker, None, None, hashes, None) == DONE
    assert apply(KIND_STORE, 1, None, U64, U64, TOP) == DONE
    assert apply(KIND_STORE, 1, as_signed(HALF), [9], [9], 0) == DONE
    assert apply(KIND_STORE, 1, 9, [], [], 0) == DONE == apply(KIND_CLEAR, 1, None, None, None, None)


NOT_TAKEN: dict[str, tuple[Any, ...]] = {
    "nothing": (),
    "five": (KIND_STORE, 1, None, U64, U64),
    "seven": (KIND_STORE, 1, None, U64, U64, None, None),
    "kind 0": (0, 1, None, U64, U64, None),
    "kind 4": (4, 1, None, U64, U64, None),
    "kind None": (None, 1, None, U64, U64, None),
    "kind True": (True, 1, None, U64, U64, None),
    "rank True": (KIND_STORE, True, None, U64, U64, None),
    "rank -1": (KIND_STORE, -1, None, U64, U64, None),
    "rank 2**64": (KIND_STORE, 2**64, None, U64, U64, None),
    "rank list": (KIND_STORE, [1, 0], None, U64, U64, None),
    "rank of one": (KIND_STORE, (1,), None, U64, U64, None),
    "rank of three": (KIND_STORE, (1, 0, 0), None, U64, U64, None),
    "rank of floats": (KIND_STORE, (1.0, 0), None, U64, U64, None),
    "dp -1": (KIND_STORE, (1, -1), None, U64, U64, None),
    "dp 2**32": (KIND_STORE, (1, 2**32), None, U64, U64, None),
    "dp 2**63": (KIND_STORE, (1, 2**63), None, U64, U64, None),
    "unknown rank": (KIND_STORE, (1, 1), None, U64, U64, None),
    "parent True": (KIND_STORE, 1, False, U64, U64, None),
    "parent str": (KIND_STORE, 1, "0", U64, U64, None),
    "parent 2**64": (KIND_STORE, 1, 2**64, U64, U64, None),
    "parent too low": (KIND_STORE, 1, -(2**63) - 1, U64, U64, None),
    "parent numpy": (KIND_STORE, 1, np.uint64(5), U64, U64, None),
    "lengths": (KIND_STORE, 1, None, U64, U64[:3], None),
    "more local": (KIND_STORE, 1, None, U64[:3], U64, None),
    "no local": (KIND_STORE, 1, None, None, U64, None),
    "no external": (KIND_STORE, 1, None, U64, None, None),
    "strided": (KIND_STORE, 1, None, U64, np.repeat(U64, 2)[::2], None),
    "strided local": (KIND_STORE, 1, None, np.repeat(U64, 2)[::2], U64, None),
    "int32": (KIND_STORE, 1, None, U64, np.ones(4, np.int32), None),
    "float": (KIND_STORE, 1, None, U64, np.ones(4), None),
    "objects": (KIND_REMOVE, 1, None, None, np.array(LOCAL, object), None),
    "two dimensions": (KIND_REMOVE, 1, None, None, U64.reshape(2, 2), None),
    "scalar": (KIND_REMOVE, 1, None, None, np.array(5, np.uint64), None),
    "big-endian": (KIND_REMOVE, 1, None, None, U64.astype(">u8"), None),
    "memoryview": (KIND_REMOVE, 1, None, None, memoryview(U64), None),
    "subclass": (KIND_REMOVE, 1, None, None, U64.view(np.recarray), None),
    "bool in a list": (KIND_REMOVE, 1, None, None, [5, True], None),
    "float in a list": (KIND_REMOVE, 1, None, None, [5, 1.0], None),
    "None in a list": (KIND_REMOVE, 1, None, None, [None], None),
    "2**64 in a list": (KIND_REMOVE, 1, None, None, [2**64], None),
    "2**200 in a list": (KIND_REMOVE, 1, None, None, (5, -(2**200)), None),
    "long list": (KIND_REMOVE, 1, None, None, [5] * (LIST_ROOM + 1), None),
    "long array": (KIND_REMOVE, 1, None, None, np.zeros(LIST_ROOM + 1, np.uint64), None),
    "event id": (KIND_REMOVE, 1, None, None, U64, 2**64),
    "str": (KIND_REMOVE, 1, None, None, "abcd", None),
}


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_what_is_not_taken(index: Index, writer: Writer, name: str) -> None:
    arguments = NOT_TAKEN[name]
    counters = index.segment.view("lanes")["op_counter"]
    counted = [sys.getrefcount(item) for item in (U64, None, *arguments)]
    before = int(counters[writer.lane])
    for _ in range(50):
        assert writer._apply(*arguments) == NOT_DONE
    # an unknown rank is seen before the operation begins, like everything else
    assert counters[writer.lane] == before and sys.exc_info() == (None, None, None)
    after = [sys.getrefcount(item) for item in (U64, None, *arguments)]
    assert [abs(a - b) < 20 for a, b in zip(after, counted, strict=True)] == [True] * len(after)
    assert scores(index, LOCAL) == {(1, 0): 4}


def test_long_events_go_the_other_way(index: Index, writer: Writer) -> None:
    long = np.arange(100, LIST_ROOM + 200, dtype=np.uint64)
    writer.store(1, HALF, long, long)
    assert scores(index, [*LOCAL, *long.tolist()]) == {(1, 0): 4 + len(long)}
    writer.remove(1, long)
    assert scores(index, [*LOCAL, 100]) == {(1, 0): 4}


def test_arguments_that_call_the_writer(index: Index, writer: Writer) -> None:
    """Items whose conversion runs Python code: that changes the list, and stores with the same writer."""
    items: list[Any] = []

    class Calling:
        def __index__(self) -> int:
            items.clear()
            writer.store(1, HALF, [70], [70])
            writer.store(1, HALF, np.array([71], np.uint64), [71])
            gc.collect()
            return 72

    for _ in range(20):
        items[:] = [5, Calling(), 6]
        with suppress(TypeError, ValueError, IndexError):
            writer.remove(1, items)
        with pytest.raises(ParentBlockNotFound, match="72"):
            writer.store(1, Calling(), [1], [1])
        writer.clear((Calling(), Calling()))
    assert scores(index, [*LOCAL, 70]) == {(1, 0): 5}
    assert scores(index, [*LOCAL, 71]) == {(1, 0): 5}


def test_subclasses_of_int_and_list(index: Index, writer: Writer) -> None:
    class Int(int):
        def __index__(self) -> int:
            raise AssertionError("an int needs none")

    class Ints(list[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([9])

    writer.store(Int(1), Int(HALF), [Int(9)], [Int(9)])
    assert scores(index, [*LOCAL, 9]) == {(1, 0): 5}
    assert writer._apply(KIND_REMOVE, 1, None, None, Ints([9]), None) == NOT_DONE


def test_no_leak_of_references_or_memory(writer: Writer) -> None:
    worker, parent, hashes = (1, 0), 2**40 + 1, [2**40 + 2, 2**40 + 3]
    writer.store(worker, HALF, [1], [parent])
    items = np.array(hashes, np.uint64)
    unknown = [2**41 + k for k in range(3)]

    def work(n: int) -> None:
        apply = writer._apply
        for _ in range(n):
            apply(KIND_STORE, worker, parent, hashes, items, 2**41)
            apply(KIND_REMOVE, worker, None, None, hashes, None)
            apply(KIND_REMOVE, worker, None, None, items, None)
            apply(KIND_STORE, worker, unknown[0], unknown, unknown, None)  # refused
            apply(KIND_STORE, worker, None, items, unknown, None)  # not taken

    counted = (worker, parent, hashes, hashes[0], items, unknown, unknown[1], None, int, list, np.ndarray)
    work(500)
    before = [sys.getrefcount(item) for item in counted]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work(60_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 4_096  # KiB
    after = [sys.getrefcount(item) for item in counted]
    assert [abs(a - b) < 200 for a, b in zip(after, before, strict=True)] == [True] * len(counted)
    items.resize(3, refcheck=False)  # no export is left
