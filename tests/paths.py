"""Short names for scenarios on a `RadixTree`: store, remove and query by path.

`ext` names the last block of a path the way a well-behaved engine would, so that different paths have
different external hashes; a `seed` gives a rank names of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmtrie.events import KvCacheStoreData
from shmtrie.radix_tree import RadixTree

TOP = (1 << 64) - 1


def ext(path: Sequence[int], seed: int = 0) -> int:
    """External hash of the last block of a path; a mixing step per block."""
    h = seed
    for local in path:
        h = ((h ^ (local + 1)) * 0x9E3779B97F4A7C15 + 0x123456789) & TOP
    return h


def exts(prefix: Sequence[int], blocks: Sequence[int], seed: int = 0) -> list[int]:
    return [ext([*prefix, *blocks[: i + 1]], seed) for i in range(len(blocks))]


def S(tree: RadixTree, worker: Any, prefix: Sequence[int], blocks: Sequence[int] = (), seed: int = 0) -> None:
    """With `blocks`: store them behind `prefix`. Without: store `prefix` from the root."""
    if blocks:
        tree.store(worker, ext(prefix, seed), blocks, exts(prefix, blocks, seed))
    else:
        tree.store(worker, None, prefix, exts((), prefix, seed))


def R(tree: RadixTree, worker: Any, path: Sequence[int], *positions: int, seed: int = 0) -> None:
    """Remove 1-based positions of a path."""
    tree.remove(worker, [ext(path[:i], seed) for i in positions])


def Q(tree: RadixTree, path: Sequence[int]) -> dict[int, int]:
    scores = tree.find_matches(path).scores
    assert all(dp_rank == 0 for _, dp_rank in scores)
    return {worker_id: depth for (worker_id, _), depth in scores.items()}


def n(tree: RadixTree, worker: int) -> int:
    return {info.worker: info.blocks for info in tree.workers()}[(worker, 0)]  # type: ignore[index]


def dumped(tree: RadixTree) -> list[tuple[int, int | None, list[int]]]:
    """The dump as (worker, external hash of the parent, local hashes)."""
    out = []
    for event in tree.dump_events():
        data = event.event.data
        assert isinstance(data, KvCacheStoreData)
        out.append((event.worker_id, data.parent_hash, [b.tokens_hash for b in data.blocks]))
    return out


def assert_dump_rebuilds(tree: RadixTree, *queries: Sequence[int]) -> None:
    again = RadixTree()
    assert again.load_events(tree.dump_events()) == len(tree.dump_events())
    assert again.dump_events() == tree.dump_events()
    for query in queries:
        assert again.find_match_details(query) == tree.find_match_details(query)


def assert_drains(tree: RadixTree) -> None:
    """Removing every block, here from the shallow ends, leaves nothing behind."""
    for event in tree.dump_events():
        data = event.event.data
        assert isinstance(data, KvCacheStoreData)
        tree.remove((event.worker_id, event.event.dp_rank), [b.block_hash for b in data.blocks])
    assert tree.stats()[:3] == (0, 0, 0)
