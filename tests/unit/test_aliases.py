"""Ranks with external hashes of their own, where that strains the lane's private tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from shmtrie import Capacity, CapacityExceeded, Index, ParentBlockNotFound
from shmtrie.kernels.plan import MAX_CUTS

N = 2_000


@pytest.fixture
def index(segment_name: Callable[[], str]) -> Iterator[Index]:
    name = segment_name()
    with Index.create(name, Capacity(blocks=20_000, workers=64, lanes=3, aliases=200_000)) as made:
        yield made
        Index.unlink(name)


def test_one_renamed_block_gives_the_whole_edge_names_of_its_own(index: Index) -> None:
    """The alias table has to take all blocks that the rank covers in the node, not only the store's."""
    local = np.arange(1, N + 1, dtype=np.uint64)
    external = local + np.uint64(10_000)
    with index.writer() as writer:
        writer.store(1, None, local, external)
        writer.store(1, None, local[:1], [77])
        with pytest.raises(ParentBlockNotFound):
            writer.store(1, int(external[0]), [5], [6])
        details = index.find_match_details(local)
        assert details.last_hashes.tolist() == [int(external[-1])]
        for k in (1, N // 2, N - 1):  # every other block goes by its old name
            writer.store(1, int(external[k]), [10**6 + k], [2 * 10**6 + k])
        writer.remove(1, [77])
        assert index.find_matches(local).scores == {}
        writer.remove(1, external[1:])
        writer.clear(1)
        assert index.stats().nodes == 0
        assert index.verify().ok


def test_many_ranks_with_a_seed_each_on_one_prompt(index: Index) -> None:
    """Every rank's own hashes work for parents, removes and details; all space comes back."""
    local = np.arange(1, 301, dtype=np.uint64)
    ranks = range(1, 41)
    with index.writer() as writer:
        for rank in ranks:
            writer.store(rank, None, local, local + np.uint64(rank * 1_000_000))
        assert index.find_matches(local).scores == {(rank, 0): 300 for rank in ranks}
        details = index.find_match_details(local)
        last = {
            int(w["worker_id"]): int(h) for w, h in zip(details.workers, details.last_hashes, strict=True)
        }
        assert last == {rank: 300 + rank * 1_000_000 for rank in ranks}
        for rank in ranks:
            writer.remove(rank, [300 - rank + rank * 1_000_000])
        assert index.find_matches(local).scores == {(rank, 0): 299 - rank for rank in ranks}
        report = index.verify()
        assert report.ok, report
        for rank in ranks:
            writer.remove(rank, (local + np.uint64(rank * 1_000_000))[::-1].copy())
        stats = index.stats()
        assert (stats.nodes, stats.blocks) == (0, 0)
        assert index.verify().ok


@pytest.mark.parametrize("n", [400, MAX_CUTS])
def test_a_store_that_takes_hashes_from_many_nodes(segment_name: Callable[[], str], n: int) -> None:
    """Each of its blocks had a place in another node, under a hash of the rank's own: more changes than the
    record's lists hold by themselves.
    """
    name = segment_name()
    with Index.create(name, Capacity(blocks=20_000, workers=8, lanes=2, nodes=9_000)) as index:
        try:
            with index.writer() as writer:
                for k in range(n):
                    writer.store(1, None, [k], [1_000_000 + k])
                    writer.store(2, None, [k], [2_000_000 + k])
                chain = [5_000 + k for k in range(n)]
                writer.store(2, None, chain, [2_000_000 + k for k in range(n)])
                assert index.find_matches(chain).scores == {(2, 0): n}
                assert index.find_matches([3]).scores == {(1, 0): 1}
                report = index.verify()
                assert report.ok and not report.unsettled, report
                writer.remove(2, [2_000_000 + k for k in range(n)])
                writer.clear(1)
            assert index.verify().counts["nodes"] == 0
        finally:
            Index.unlink(name)


def test_a_store_that_takes_too_many_hashes_changes_nothing(segment_name: Callable[[], str]) -> None:
    name = segment_name()
    n = MAX_CUTS + 1
    with Index.create(name, Capacity(blocks=20_000, workers=8, lanes=2, nodes=9_000)) as index:
        try:
            with index.writer() as writer:
                for k in range(n):
                    writer.store(2, None, [k], [2_000_000 + k])
                with pytest.raises(CapacityExceeded, match="record"):
                    writer.store(2, None, [5_000 + k for k in range(n)], [2_000_000 + k for k in range(n)])
                assert index.find_matches([5_000]).scores == {}
                assert index.find_matches([n - 1]).scores == {(2, 0): 1}
                writer.store(2, None, [7], [7])
            assert index.verify().ok
        finally:
            Index.unlink(name)
