"""Full tables, one by one: the error names the table, nothing has changed, and the space comes back."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from shmtrie.capacity import Capacity
from shmtrie.errors import CapacityExceeded, LaneUnavailable
from shmtrie.layout import MAX_EDGE, SPAN_LINES
from shmtrie.writer import Writer
from tests.system.index_tools import (
    TOP,
    assert_valid,
    changed,
    claimed,
    contents,
    details,
    open_index,
    scores,
    shown,
    status_of,
)

Put = Callable[[Writer, int], list[int]]


def refused(call: Callable[[], Any], table: str) -> tuple[int, int]:
    """Check that a call is refused for a full table and return what the error says of it: (used, of)."""
    with pytest.raises(CapacityExceeded, match=rf"segment '.*', rank \(.*\): {table}.* full") as caught:
        call()
    found = re.search(r"full \((\d+) of (\d+)\): remove blocks, or resize", str(caught.value))
    assert found, str(caught.value)
    return int(found[1]), int(found[2])


def fill(writer: Writer, put: Put) -> list[list[int]]:
    """Store until it is refused; the chains stored."""
    chains: list[list[int]] = []
    try:
        while True:
            chains.append(put(writer, len(chains)))
    except CapacityExceeded:
        return chains


def empty(writer: Writer, chains: list[list[int]], order: int) -> None:
    """Remove all that puts stored, in one of several orders; external hashes are put * 10,000 + i."""
    every = [np.arange(len(c), dtype=np.uint64) + np.uint64(i * 10_000) for i, c in enumerate(chains)]
    if order == 0:
        writer.clear(1)
    elif order == 1:
        for hashes in every[::-1]:
            writer.remove(1, hashes)
    elif order == 2:
        writer.remove(1, np.random.default_rng(2).permutation(np.concatenate(every)))
    else:
        writer.remove_worker(1)


# ------------------------------------------------------------------------------------------------------ nodes
@pytest.mark.parametrize("nodes", [1, 2, 15, 16, 17])
def test_nodes(nodes: int) -> None:
    """Node ids end at no round number; every way to need one more is refused."""
    with open_index(Capacity(blocks=100, workers=4, lanes=2, nodes=nodes)) as index, index.writer() as w:
        for rank in (2, 3):
            w.store(rank, None, [5], [5])
            w.clear(rank)
        for k in range(nodes):
            w.store(1, None, [k, 100], [2 * k, 2 * k + 1])
        queries = [[k, 100, 200] for k in range(nodes)] + [[0, 7], [99]]
        before = contents(index, queries)
        calls: list[Callable[[], Any]] = [
            lambda: w.store(1, None, [99], [900]),
            lambda: w.store(1, None, range(9_000), range(1_000, 10_000)),
            lambda: w.store(1, 0, [7], [901]),  # a split
            lambda: w.store(2, None, [0, 7], [902, 903]),  # a split by another rank
            lambda: w.store(1, None, [99, 98], [1, 904]),  # with a hash that would move
            lambda: w.store(3, None, [99], [905]),
        ]
        for call in calls:
            assert refused(call, "nodes") == (nodes, nodes)
            assert changed(before, contents(index, queries)) == []
        assert_valid(index)
        w.store(1, 1, [200], [906])  # what needs no node goes on: an edge that grows, another rank
        w.store(2, None, [0, 100], [0, 1])
        assert details(index, queries[0]) == {(1, 0): (3, 906), (2, 0): (2, 1)}
        w.remove(1, [2 * nodes - 2])
        w.store(3, None, [0 if nodes == 1 else 99], [905])
        assert_valid(index)


# ---------------------------------------------------------------------------------------------------- extents
LINES = 8 * SPAN_LINES
LENGTHS = {"short": (4, 4), "long": (MAX_EDGE, MAX_EDGE), "very long": (5_000, 5_000), "mixed": (1, 120)}


def put_chain(length: str) -> Put:
    """Chains from the root, of lengths between two bounds."""
    low, high = LENGTHS[length]

    def put(writer: Writer, i: int) -> list[int]:
        n = low if low == high else int(np.random.default_rng(i).integers(low, high))
        chain = [i, *range(1, n)]
        writer.store(1, None, chain, np.arange(n, dtype=np.uint64) + np.uint64(i * 10_000))
        return chain

    return put


@pytest.mark.parametrize("length", LENGTHS)
def test_extents(length: str) -> None:
    """Fill, empty and fill again with the same: as many fit each time, whatever was removed how."""
    capacity = Capacity(blocks=4_000, workers=4, lanes=2, nodes=9_000, extents=LINES)
    with open_index(capacity) as index, index.writer() as w:
        put, counts = put_chain(length), []
        for order in (0, 1, 2, 3, 0):
            chains = fill(w, put)
            counts.append(len(chains))
            before = contents(index, chains[-40:])
            used, total = refused(lambda: put(w, counts[-1]), "extents")
            assert used == claimed(index)[1] and total == LINES
            assert changed(before, contents(index, chains[-40:])) == []
            assert [scores(index, c) for c in chains] == [{(1, 0): len(c)} for c in chains]
            assert_valid(index)
            empty(w, chains, order)
            assert claimed(index) == (0, 0, 0), f"after emptying in order {order}"
        # Of edges of many lengths a few less may fit: what was freed when decides which extents share a span.
        assert min(counts) >= counts[0] * (0.9 if length == "mixed" else 1), counts
        assert sum(map(len, chains)) > LINES * 4 * (0.4 if length == "mixed" else 0.7)


def test_shift_of_edge_lengths() -> None:
    """A segment that was full of edges of one length is full of another one's next, in any order."""
    capacity = Capacity(blocks=4_000, workers=4, lanes=2, nodes=9_000, extents=LINES)
    first: dict[str, int] = {}
    with open_index(capacity) as index, index.writer() as w:
        for round_, length in enumerate([*LENGTHS, *reversed(LENGTHS), "short", "very long", "mixed"]):
            chains = fill(w, put_chain(length))
            assert len(chains) >= first.setdefault(length, len(chains)) * (0.9 if length == "mixed" else 1)
            empty(w, chains, round_ % 4)
            assert claimed(index) == (0, 0, 0)


@pytest.mark.parametrize("longest", [40, 200, 3_000])
def test_planned_blocks_fit(longest: int) -> None:
    """A segment planned for some blocks holds them, whatever the mixture of edge lengths."""
    lengths = np.random.default_rng(1).integers(1, longest, 9_000)
    with open_index(Capacity(blocks=100_000, workers=4, lanes=2)) as index, index.writer() as w:
        stored = 0
        for i, n in enumerate(map(int, lengths)):
            if stored + n > 100_000:
                break
            hashes = np.arange(n, dtype=np.uint64) + np.uint64(i * 10_000)
            assert status_of(w.store, 1, None, hashes, hashes) == "ok", f"full at {stored} blocks"
            stored += n


def extents_full(w: Writer) -> int:
    """Take every line that is left for one-line edges; the number of puts."""
    return len(fill(w, put_chain("short")))


def test_every_need_for_an_extent() -> None:
    """Growing edges, splits, other ranks' hashes, longer lists of ranks: each is refused without a trace."""
    capacity = Capacity(blocks=4_000, workers=40, lanes=2, nodes=4_000, extents=1)
    with open_index(capacity) as index, index.writer() as w:
        for rank in range(2, 5):  # three ranks fit a node without a list
            w.store(rank, None, [TOP, 2, 3, 4], [71, 72, 73, 74])
        for rank in (5, 6):
            w.store(rank, None, [5], [5])
            w.clear(rank)
        n = extents_full(w)
        queries = [*([i, 1, 2, 3, 4] for i in range(n - 50, n)), [TOP, 2, 3, 4, 5], [TOP, 2, 9]]
        calls: dict[str, Callable[[], Any]] = {
            "append": lambda: w.store(2, 74, [5, 6, 7, 8, 9], [75, 76, 77, 78, 79]),
            "fourth rank": lambda: w.store(5, None, [TOP, 2, 3, 4], [71, 72, 73, 74]),
            "own hashes": lambda: w.store(6, None, [0, 1, 2, 3], [81, 82, 83, 84]),
            "renamed": lambda: w.store(2, None, [TOP], [91]),
            "new": lambda: w.store(2, None, [1, 9], [91, 92]),
            "moved": lambda: w.store(2, None, [TOP - 1, 1], [91, 72]),
        }
        for name, call in calls.items():
            before = contents(index, queries)
            used, total = refused(call, "extents")
            assert (used, total) == (claimed(index)[1], SPAN_LINES), name
            assert changed(before, contents(index, queries)) == [], name
            assert_valid(index)
        w.remove(1, [*range(10_000, 10_004), *range(20_000, 20_004)])  # the hashes, and who has them
        calls["own hashes"]()
        assert details(index, [0, 1, 2, 3]) == {(1, 0): (4, 3), (6, 0): (4, 84)}
        assert_valid(index)


def test_a_split_may_stay() -> None:
    """A store that is refused behind its split: the split stays, and shows in no answer."""
    capacity = Capacity(blocks=4_000, workers=4, lanes=2, nodes=4_000, extents=1)
    with open_index(capacity) as index, index.writer() as w:
        w.store(2, None, range(4), range(4))
        n = extents_full(w)
        w.remove(1, [(n - 1) * 10_000 + i for i in range(4)])  # room for one extent: the suffix's
        queries = [[0, 1, 2, 3, 4], [0, 1, 9], [n - 1, 1]]
        before = shown(index, queries)
        refused(lambda: w.store(2, 1, [9], [9]), "extents")
        assert shown(index, queries) == before
        assert_valid(index)
        w.remove(2, range(4))
        w.clear(1)
        assert claimed(index) == (0, 0, 0)


# --------------------------------------------------------------------------------------------------- children
def test_children() -> None:
    """The bucket of the child table that keys of bad luck share; others still have room."""
    rng = np.random.default_rng(3)
    with open_index(Capacity(blocks=100, workers=4, lanes=2, nodes=16)) as index, index.writer() as w:
        w.store(2, None, [1], [1])
        w.clear(2)
        bucket, kept = index.segment.view("children")[0], list[int]()
        for _ in range(3):
            for local in map(int, rng.integers(0, 2**64, 4_000, np.uint64)):
                before = contents(index, [[k, 2] for k in kept])
                was = int(np.count_nonzero(bucket))
                if status_of(w.store, 1, None, [local, 2], [local, local ^ 1]) != "ok":
                    break
                if np.count_nonzero(bucket) > was:
                    kept.append(local)
                else:
                    w.remove(1, [local])
            else:
                pytest.fail("the bucket never got full")
            assert changed(before, contents(index, [[k, 2] for k in kept])) == []
            used, total = refused(lambda: w.store(2, None, [local, 2], [8, 9]), "children")  # noqa: B023
            assert used == len(kept) == 8 and total == 32
            assert changed(before, contents(index, [[k, 2] for k in kept])) == []
            assert_valid(index)
            assert [scores(index, [k, 2]) for k in kept] == [{(1, 0): 2}] * 8
            w.remove(1, [kept.pop()])
            w.store(1, None, [local, 2], [local, local ^ 1])  # a key keeps its two buckets
            w.clear(1)
            kept.clear()
            assert claimed(index) == (0, 0, 0)


# ------------------------------------------------------------------------------------------------------ ranks
def test_ranks() -> None:
    with open_index(Capacity(blocks=1_000, workers=3, lanes=2)) as index, index.writer() as w:
        for round_ in range(70):
            ranks = [(round_ * 10 + k // 2, k % 2) for k in range(3)]
            for rank in ranks:
                w.store(rank, None, [1, 2], [3, 4])
            before = contents(index, [[1, 2]])
            if round_ % 10 == 0:
                assert refused(lambda: w.store(TOP, None, [1], [3]), "ranks") == (3, 3)
                assert refused(lambda: w.store((0, 5), None, range(3_000), range(3_000)), "ranks") == (3, 3)
                assert changed(before, contents(index, [[1, 2]])) == []
                assert status_of(w.remove, TOP, [3]) == "BlockNotFound"
                assert_valid(index)
            assert scores(index, [1, 2]) == dict.fromkeys(ranks, 2)
            w.clear(ranks[0])  # a cleared rank keeps its slot
            if round_ % 10 == 1:
                assert refused(lambda: w.store(TOP, None, [1], [3]), "ranks") == (3, 3)
            for worker in {r[0] for r in ranks}:
                w.remove_worker(worker)
            assert index.workers() == [] and claimed(index) == (0, 0, 0)


def test_refused_store_takes_no_slot() -> None:
    """A store that is refused for another table leaves its rank unknown and the rank table as it was."""
    with open_index(Capacity(blocks=100, workers=2, lanes=2, nodes=1)) as index, index.writer() as w:
        w.store(1, None, [1], [1])
        for worker in range(2, 8):
            assert refused(lambda: w.store(worker, None, [2], [2]), "nodes") == (1, 1)  # noqa: B023
            assert status_of(w.remove, worker, [2]) == "BlockNotFound"
        assert [info.worker for info in index.workers()] == [(1, 0)]
        w.store(8, None, [1], [1])
        assert scores(index, [1]) == {(1, 0): 1, (8, 0): 1}


# ------------------------------------------------------------------------------------------------------ lanes
def test_lanes() -> None:
    with open_index(Capacity(blocks=100, workers=4, lanes=3)) as index, ExitStack() as stack:
        for _ in range(3):
            writers = [index.writer() for _ in range(3)]
            assert sorted(w.lane for w in writers) == [0, 1, 2]
            before = contents(index)
            for _ in range(2):
                with pytest.raises(LaneUnavailable, match=r"all 3 lanes.*lane 2: process.*close a writer"):
                    index.writer()
            assert changed(before, contents(index)) == []
            writers[1].close()
            writers[1] = stack.enter_context(index.writer())
            assert writers[1].lane == 1
            writers[1].store(1, None, [1], [1])
            for w in writers:
                w.close()
        assert scores(index, [1]) == {(1, 0): 1}
