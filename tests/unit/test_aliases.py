"""Ranks with external hashes of their own, where that strains the lane's private tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from shmtrie import Capacity, Index, ParentBlockNotFound

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
