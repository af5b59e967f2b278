"""What `apply` looks at before it writes: the seat, the segment, whose turn it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from shmtrie import fastapply
from shmtrie.capacity import Capacity
from shmtrie.errors import ForkedHandle, LaneLost, SegmentRetired, ShmtrieError, StaleHandle
from shmtrie.events import KIND_CLEAR, KIND_STORE
from shmtrie.fastapply import DONE, NOT_DONE
from shmtrie.index import Index
from shmtrie.writer import Writer
from tests.system.children import Child, outcome
from tests.system.index_tools import HALF, TOP, assert_valid, in_threads, open_index, scores

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


CALLS: dict[str, Callable[[Writer], Any]] = {
    "store": lambda w: w.store(1, HALF, [9], [9]),
    "store arrays": lambda w: w.store(1, None, U64, U64),
    "remove": lambda w: w.remove(1, U64),
    "clear": lambda w: w.clear(1),
}


def refused(writer: Writer, error: type[ShmtrieError]) -> None:
    """Every call is refused, and the builtin did not do it."""
    for call in CALLS.values():
        with pytest.raises(error):
            call(writer)
    assert writer._apply(KIND_CLEAR, 1, None, None, None, None) == NOT_DONE


def test_closed_writer(index: Index, writer: Writer) -> None:
    writer.close()
    refused(writer, StaleHandle)
    with index.writer() as next_:  # may get the number of the old descriptor
        refused(writer, StaleHandle)
        next_.store(1, HALF, [9], [9])


def test_closed_index(index: Index) -> None:
    with Index.attach(index.name, read_only=False) as handle, handle.writer() as writer:
        writer.store(1, None, U64, U64)
        handle.close()
        refused(writer, StaleHandle)
    assert scores(index, LOCAL) == {(1, 0): 4}


def test_retired_segment() -> None:
    with open_index(hint="retired") as index, index.writer() as writer:
        writer.store(1, None, U64, U64)
        Index.unlink(index.name)
        refused(writer, SegmentRetired)
        assert scores(index, LOCAL) == {(1, 0): 4}


def test_lost_seat(index: Index) -> None:
    """The descriptor was closed, or another holder has been active since."""
    writer = index.writer()
    writer.store(1, None, U64, U64)
    generation = index.segment.view("lanes")["generation"]
    generation[writer.lane] += 1
    refused(writer, LaneLost)
    generation[writer.lane] -= 1
    writer.store(1, HALF, [9], [9])
    os.close(writer._work.seat._file.descriptor)
    refused(writer, LaneLost)
    writer.close()
    with index.writer() as heir:
        heir.remove(1, [9])
    assert scores(index, LOCAL) == {(1, 0): 4}


def test_forked_child(index: Index, writer: Writer) -> None:
    def body(_: Connection) -> list[Any]:
        names = [outcome(partial(call, writer)) for call in CALLS.values()]
        return [*names, writer._apply(KIND_CLEAR, 1, None, None, None, None)]

    with Child(body) as child:
        assert child.hear() == [ForkedHandle.__name__] * len(CALLS) + [NOT_DONE]
    writer.store(1, HALF, [9], [9])
    assert scores(index, [*LOCAL, 9]) == {(1, 0): 5}


def test_nothing_is_done_in_the_turn_of_another_thread(index: Index, writer: Writer) -> None:
    with writer._work.alone(), writer._work.turn():
        assert writer._apply(KIND_CLEAR, 1, None, None, None, None) == NOT_DONE
    assert writer._apply(KIND_STORE, 1, None, U64, U64, None) == DONE
    with suppress(KeyboardInterrupt), writer._work.alone(), writer._work.turn():
        raise KeyboardInterrupt
    assert writer._apply(KIND_STORE, 1, None, U64, U64, None) == DONE


def test_threads(index: Index) -> None:
    """Whatever the threads do, each event is applied whole or refused by a RuntimeError."""
    with index.writer() as writer:
        writer.store(1, None, [1], [1])
        done = [0] * 4

        def run(i: int) -> None:
            own = np.array([10 + i], np.uint64)
            for _ in range(3_000):
                with suppress(RuntimeError):
                    writer.store(1, 1, own, own)
                    writer.remove(1, memoryview(own) if i % 2 else own)
                    done[i] += 1
            while True:
                with suppress(RuntimeError):
                    writer.store(1, 1, own, own)
                    return

        in_threads(4, run)
        assert all(done)
        for i in range(4):
            assert scores(index, [1, 10 + i]) == {(1, 0): 2}
        writer.store(1, 1, [30], [30])
