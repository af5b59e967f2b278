"""Stores over many nodes, and random streams in segments too small for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from shmtrie.capacity import Capacity
from shmtrie.errors import CapacityExceeded
from shmtrie.index import Index
from shmtrie.layout import SPAN_LINES
from shmtrie.writer import Writer
from tests.differential import run_stream
from tests.removals import ANY, LEAF_FIRST
from tests.system.index_tools import assert_valid, changed, claimed, contents, open_index, scores


def comb(writer: Writer, teeth: int) -> None:
    """A path of nodes of one block each: a branch below every one makes it internal."""
    for i in range(teeth):
        writer.store(1, None if i == 0 else i - 1, [7], [i])
        writer.store(1, i, [8], [100_000 + i])


def room(teeth: int, spans: int) -> Capacity:
    """A comb fits, and so many spans."""
    return Capacity(blocks=40_000, workers=4, lanes=2, nodes=2 * teeth + 10, extents=spans * SPAN_LINES)


@pytest.mark.parametrize("teeth", [4_090, 4_096, 4_100, 9_000])
def test_a_store_over_many_nodes(teeth: int) -> None:
    """More nodes than a lane's record lists at once: stored as a whole."""
    with open_index(room(teeth, 240)) as index, index.writer() as w:
        comb(w, teeth)
        assert claimed(index)[0] == 2 * teeth - 1
        w.store(2, None, [7] * teeth, np.arange(teeth))
        w.store(3, None, [7] * teeth, np.arange(teeth) + 500_000)  # all of them by other names
        assert scores(index, [7] * (teeth + 1)) == {(r, 0): teeth for r in (1, 2, 3)}
        assert_valid(index)
        w.remove(2, np.arange(teeth))
        w.clear(3)
        assert scores(index, [7] * teeth) == {(1, 0): teeth}
        w.clear(1)
        assert claimed(index) == (0, 0, 0)


def test_no_room_for_a_long_record() -> None:
    """The lists of a long store go on in extents; where those lack nothing has changed, and parts fit."""
    teeth = 4_500
    with open_index(room(teeth, 24)) as index, index.writer() as w:
        comb(w, teeth)
        w.store(3, None, [5], [5])
        queries = [[7] * 5_000, [7] * 2_000 + [8], [5, 7]]
        before = contents(index, queries)
        for _ in range(3):
            with pytest.raises(CapacityExceeded, match="extents"):
                w.store(3, None, [7] * teeth, np.arange(teeth) + 500_000)
            assert changed(before, contents(index, queries)) == []
        assert_valid(index)
        for first in range(0, teeth, 500):  # in parts
            parent = None if first == 0 else first + 499_999
            w.store(3, parent, [7] * 500, np.arange(first, first + 500) + 500_000)
        assert scores(index, [7] * teeth) == {(1, 0): teeth, (3, 0): teeth}
        assert_valid(index)


@pytest.mark.parametrize("deep", [1, 3, 4, 40, 150])
def test_the_few_that_go_on_behind_a_split(deep: int) -> None:
    """Of 200 ranks on a node some cover its end: the suffix pays for those, not for all ranks there are."""
    path = list(range(1, 9))
    with open_index(Capacity(blocks=9_000, workers=300, lanes=2)) as index, index.writer() as w:
        for rank in range(200):
            end = 8 if rank < deep else 4
            w.store(rank, None, path[:end], path[:end])
            if rank % 3 == 0 and rank < deep:  # some with names of their own
                w.store(rank, None, path, np.arange(8) + 1_000 * (rank + 1))
        before = index.stats().sections["extents"].used
        w.store(250, None, [*path[:6], 99], [*path[:6], 99])
        grown = index.stats().sections["extents"].used - before
        assert deep > 40 or grown < 64 * 12 + 60 * deep
        wanted = {(r, 0): 8 if r < deep else 4 for r in range(200)}
        assert scores(index, path) == wanted | {(250, 0): 6}
        assert_valid(index)
        for rank in range(deep):
            w.remove(rank, [8 if rank % 3 else 1_000 * (rank + 1) + 7])
        assert scores(index, path) == {r: min(n, 7) for r, n in wanted.items()} | {(250, 0): 6}
        for rank in (*range(200), 250):
            w.clear(rank)
        assert_valid(index)
        assert claimed(index) == (0, 0, 0)


# ----------------------------------------------------------------------------------------------- all together
TINY = {
    "nodes": Capacity(blocks=100, workers=64, lanes=4, nodes=6),
    "extents": Capacity(blocks=100, workers=64, lanes=4, nodes=500, extents=1),
    "ranks": Capacity(blocks=2_000, workers=3, lanes=4),
}


@pytest.mark.parametrize("kind", ["clean", "alias", "chaos"])
@pytest.mark.parametrize("table", TINY)
def test_streams_in_a_tiny_segment(table: str, kind: str) -> None:
    """Random streams beside the oracle: refused stores change nothing, and there is room again later."""
    is_first = True

    @contextmanager
    def opened() -> Iterator[Any]:
        nonlocal is_first
        capacity, is_first = TINY[table] if is_first else Capacity(blocks=9_000, workers=64, lanes=4), False
        with open_index(capacity) as index, index.writer() as writer:
            yield Both(index, writer)

    outcomes = run_stream(
        opened,
        11,
        kind,
        LEAF_FIRST if kind == "clean" else ANY,
        tolerate=["CapacityExceeded"],
        steps=150,
        shrink_seconds=0.0,
    )
    assert outcomes["store", "ok"] > 30
    assert outcomes["store", "CapacityExceeded"] > 0 or table == "extents"


class Both:
    """An index that writes through one writer."""

    def __init__(self, index: Index, writer: Writer) -> None:
        self._index, self._writer = index, writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer if hasattr(type(self._writer), name) else self._index, name)
