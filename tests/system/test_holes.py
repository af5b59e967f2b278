"""Segments with exact holes: what is kept, what it costs in nodes, what happens where space lacks."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from shmtrie.capacity import Capacity
from shmtrie.errors import InvalidBlockSequence
from shmtrie.index import Index
from shmtrie.writer import Writer
from tests.system.index_tools import assert_valid, claimed, details, open_index, scores

ROOMY = Capacity(blocks=20_000, workers=16, lanes=4)
CHAIN = list(range(1, 9))


@pytest.fixture
def index() -> Iterator[Index]:
    """A small index with exact holes that ends valid and, once everything is removed, empty."""
    with open_index(ROOMY, exact_holes=True) as made:
        yield made
        assert_valid(made)
        with made.writer() as writer:
            for info in made.workers():
                writer.clear(info.worker)
        assert claimed(made) == (0, 0, 0)


def entries(writer: Writer) -> tuple[int, int]:
    """Entries of the lane's lookups."""
    return writer._work.context.entries


def nodes(index: Index) -> int:
    """Nodes beside the root."""
    return index.stats().nodes


def test_a_block_in_the_middle(index: Index) -> None:
    """One split; what is behind comes back with the block."""
    with index.writer() as w:
        w.store(1, None, CHAIN, CHAIN)
        w.store(2, None, CHAIN, CHAIN)
        w.remove(1, [4])
        assert scores(index, CHAIN) == {(1, 0): 3, (2, 0): 8}
        assert nodes(index) == 2 and index.workers()[0].blocks == 7
        w.remove(1, [2])
        assert scores(index, CHAIN) == {(1, 0): 1, (2, 0): 8} and nodes(index) == 3
        w.store(1, 1, [2], [2])
        assert scores(index, CHAIN) == {(1, 0): 3, (2, 0): 8}
        w.store(1, 3, [4], [4])
        assert scores(index, CHAIN) == {(1, 0): 8, (2, 0): 8}
        w.store(1, 8, [9], [9])  # the part behind is no less a parent
        assert scores(index, [*CHAIN, 9])[1, 0] == 9
        assert index.stats().cut_short == 0 and not index.workers()[0].degraded


def test_a_parent_behind_a_hole(index: Index) -> None:
    """Held but cut: the store is applied, in the same edge or below it."""
    with index.writer() as w:
        w.store(1, None, CHAIN, CHAIN)
        w.remove(1, [1, 2])
        w.store(1, 8, [9, 10], [9, 10])
        assert nodes(index) == 1
        w.store(1, 5, [77], [77])
        assert scores(index, CHAIN) == {}
        w.store(1, None, [1, 2], [1, 2])
        assert scores(index, [*CHAIN, 9, 10]) == {(1, 0): 10}
        assert scores(index, [*CHAIN[:5], 77]) == {(1, 0): 6}


@pytest.mark.parametrize("length", [16, 256, 2_048, 4_096])
def test_head_first_eviction(index: Index, length: int) -> None:
    """A window that slides block by block: no splits, no growth, nothing left."""
    chain = np.arange(1, length + 1)
    with index.writer() as w:
        w.store(1, None, chain, chain)
        w.store(2, None, chain[:5], chain[:5])
        before = nodes(index)
        for k in range(length):
            w.remove(1, chain[k : k + 1])
            if k < 8 or k % 500 == 0:
                assert scores(index, chain) == {(2, 0): 5}
                assert index.workers()[0].blocks == length - k - 1
        assert nodes(index) <= before and index.stats().splits == 0
        assert entries(w) == (5, 0)
        w.remove(2, chain[:5])
        assert claimed(index) == (0, 0, 0) and entries(w) == (0, 0)


@pytest.mark.parametrize("order", [[8, 7, 6, 5], [5, 6, 7, 8], [7, 5, 8, 6]])
def test_an_event_that_takes_the_tail_splits_nothing(index: Index, order: list[int]) -> None:
    with index.writer() as w:
        w.store(1, None, CHAIN, CHAIN)
        w.remove(1, order)
        assert nodes(index) == 1 and scores(index, CHAIN) == {(1, 0): 4}


@pytest.mark.parametrize("order", [[1, 2, 3], [3, 1, 2]])
def test_an_event_that_takes_the_head_splits_nothing(index: Index, order: list[int]) -> None:
    with index.writer() as w:
        w.store(1, None, CHAIN, CHAIN)
        w.remove(1, order)
        assert nodes(index) == 1 and scores(index, CHAIN) == {}
        w.store(1, None, [1, 2, 3], [1, 2, 3])
        assert nodes(index) == 1 and scores(index, CHAIN) == {(1, 0): 8}


def test_a_store_in_front_of_what_is_kept(index: Index) -> None:
    """It does not touch it: a split between the two."""
    with index.writer() as w:
        w.store(1, None, CHAIN, CHAIN)
        w.remove(1, [1, 2, 3, 4])
        w.store(1, None, [1, 2], [1, 2])
        assert scores(index, CHAIN) == {(1, 0): 2} and nodes(index) == 2
        w.store(1, 2, [3, 4], [3, 4])
        assert scores(index, CHAIN) == {(1, 0): 8} and index.workers()[0].blocks == 8


def test_divergence_inside_a_kept_suffix(index: Index) -> None:
    with index.writer() as w:
        w.store(1, None, CHAIN, CHAIN)
        w.remove(1, [2])
        w.store(2, None, [*CHAIN[:5], 99], [*CHAIN[:5], 99])
        assert scores(index, CHAIN) == {(1, 0): 1, (2, 0): 5}
        w.store(1, 1, [2], [2])
        assert scores(index, CHAIN) == {(1, 0): 8, (2, 0): 5}


def test_a_hash_that_moves_out_of_the_middle(index: Index) -> None:
    """As a removal of that place alone."""
    with index.writer() as w:
        w.store(1, None, CHAIN, CHAIN)
        w.store(1, None, [50, 51, 52], [3, 60, 6])
        assert scores(index, CHAIN) == {(1, 0): 2} and scores(index, [50, 51, 52]) == {(1, 0): 3}
        w.store(1, 2, [3], [1_003])
        assert scores(index, CHAIN) == {(1, 0): 5}
        w.store(1, 5, [6], [1_006])
        assert scores(index, CHAIN) == {(1, 0): 8}
        assert details(index, CHAIN)[1, 0] == (8, 8)
        with pytest.raises(InvalidBlockSequence):
            w.store(1, 8, [9], [4])


def test_aliases_around_holes(index: Index) -> None:
    """Each rank's own hashes work, whatever part of the edge it has."""
    with index.writer() as w, index.writer() as other:
        for rank, writer in ((1, w), (2, w), (3, other)):
            writer.store(rank, None, CHAIN, [100 * rank + b for b in CHAIN])
        w.remove(2, [203, 206])
        other.remove(3, [301, 302])
        assert scores(index, CHAIN) == {(1, 0): 8, (2, 0): 2}
        w.store(2, 202, [3], [903])
        assert details(index, CHAIN) == {(1, 0): (8, 108), (2, 0): (5, 205)}
        other.store(3, None, [1, 2], [311, 312])
        assert details(index, CHAIN)[3, 0] == (8, 308)
        w.remove(2, [903])
        w.store(2, 202, [3], [203])
        assert scores(index, CHAIN)[2, 0] == 5
        for rank, writer, names in (
            (1, w, [101, 102, 103, 104, 105, 106, 107, 108]),
            (2, w, [201, 202, 203, 204, 205, 207, 208]),
            (3, other, [311, 312, 303, 304, 305, 306, 307, 308]),
        ):
            random.Random(rank).shuffle(names)
            for name in names:
                writer.remove(rank, [name])
            assert (rank, 0) not in {info.worker for info in index.workers() if info.blocks}
        assert claimed(index) == (0, 0, 0)
        assert entries(w) == entries(other) == (0, 0)


def test_what_another_rank_holds_further_on_keeps_no_place(index: Index) -> None:
    """Both begin in one edge, one behind the other: a place that neither holds is in the lookup no more."""
    with index.writer() as w:
        w.store(1, None, CHAIN, CHAIN)
        w.store(2, None, CHAIN, CHAIN)
        w.remove(2, [1, 2, 3, 4])
        assert entries(w) == (8, 0)
        w.remove(1, [1])
        assert entries(w) == (7, 0)
        w.remove(1, [2, 3])
        assert entries(w) == (5, 0) and nodes(index) == 1
        assert [info.blocks for info in index.workers()] == [5, 4]
        w.remove(2, CHAIN[4:])
        w.remove(1, CHAIN[3:])
        assert claimed(index) == (0, 0, 0) and entries(w) == (0, 0)


def test_another_lane_takes_over(index: Index) -> None:
    """The lookup is rebuilt with the holes in it."""
    with index.writer() as w:
        w.store(1, None, CHAIN, CHAIN)
        w.remove(1, [1, 2, 5])
    with index.writer() as w:
        w.remove(1, [])
        assert entries(w) == (5, 0)
        w.store(1, 4, [5], [5])
        w.store(1, None, [1, 2], [1, 2])
        assert scores(index, CHAIN) == {(1, 0): 8}
        for block in (3, 1, 8, 5, 2, 7, 4, 6):
            w.remove(1, [block])
        assert claimed(index) == (0, 0, 0) and entries(w) == (0, 0)


def test_no_room_for_a_split() -> None:
    """The rank loses what is behind, says so, and never more than it held is counted."""
    with open_index(Capacity(blocks=64, workers=8, lanes=2, nodes=4), exact_holes=True) as index:
        fits = index.segment.capacity.nodes
        with index.writer() as w:
            w.store(1, None, CHAIN, CHAIN)
            for k in range(1, fits):
                w.store(2, None, [100 + k], [100 + k])
            w.remove(1, [4])
            assert scores(index, CHAIN) == {(1, 0): 3}
            assert index.workers()[0].degraded and index.stats().cut_short == 1
            assert index.workers()[0].blocks == 3
            w.store(1, 3, [4, 5, 6], [4, 5, 6])
            w.store(1, None, [101], [2])  # a hash out of the middle
            assert scores(index, CHAIN) == {(1, 0): 1} and index.stats().cut_short == 2
            assert scores(index, [101]) == {(1, 0): 1, (2, 0): 1}
            w.clear(1)
            assert not index.workers()[0].degraded
            assert_valid(index)


@pytest.mark.parametrize("length", [16, 64, 300])
def test_nodes_never_exceed_what_is_held_or_above_it(index: Index, length: int) -> None:
    rng = random.Random(length)
    chain = np.arange(1, length + 1)
    left = list(range(1, length + 1))
    with index.writer() as w:
        w.store(1, None, chain, chain)
        while left:
            gone = rng.sample(left, min(len(left), rng.randint(1, 3)))
            w.remove(1, np.array(gone))
            left = [b for b in left if b not in gone]
            assert nodes(index) <= max(left, default=0)
        assert claimed(index) == (0, 0, 0) and entries(w) == (0, 0)


def test_a_hash_that_has_left_an_alias_extent(index: Index) -> None:
    """It still stands there, in front of where the rank begins; one event removes it where it is now, too."""
    with index.writer() as w:
        w.store(2, None, [50, 51], [900, 101])
        w.store(2, None, CHAIN, [200 + b for b in CHAIN])
        w.store(1, None, CHAIN, [100 + b for b in CHAIN])
        w.store(1, None, [50, 51], [900, 101])
        assert scores(index, [50, 51]) == {(1, 0): 2, (2, 0): 2} and scores(index, CHAIN) == {(2, 0): 8}
        w.remove(1, [102, 103, 104, 105, 106, 107, 108, 101, 900])
        assert scores(index, [50, 51]) == {(2, 0): 2}
        assert {info.worker.worker_id: info.blocks for info in index.workers()} == {1: 0, 2: 10}
