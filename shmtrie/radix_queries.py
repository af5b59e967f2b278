"""The questions that a `RadixTree` answers; all of them come down to one walk of `Nodes.match`."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise
from typing import Any

from .arguments import as_count, as_ranks, hash_array, offset_array
from .errors import EventStatus, StaleHandle
from .event_types import RouterEvent
from .radix_nodes import Found, Nodes, TreeStats
from .scores import BatchScores, Match, OverlapScores, WorkerInfo

__all__ = ["TreeQueries"]


class TreeQueries:
    """Read methods of `RadixTree`.

    Parameters
    ----------
    tree : Nodes
        The tree to ask; None once the handle is closed.
    """

    def __init__(self, tree: Nodes) -> None:
        self._tree: Nodes | None = tree
        self._rejected: Counter[EventStatus] = Counter()
        self._lock = threading.RLock()

    def find_matches(self, local_hashes: Any, early_exit: bool = False) -> OverlapScores:
        """Count, per rank, the leading blocks of a query that it holds.

        Parameters
        ----------
        local_hashes : array or sequence of 64-bit ints, shape (n,)
            Local hashes of the query from its first block on.
        early_exit : bool
            Stop once a single rank is left; its score is then a lower bound.

        Returns
        -------
        OverlapScores
            Blocks, for every rank with at least one.
        """
        return _scores(self._match(local_hashes, early_exit))

    def find_match_details(self, local_hashes: Any) -> OverlapScores:
        """Like `find_matches`, with each rank's own external hash of its last matched block.

        Parameters
        ----------
        local_hashes : array or sequence of 64-bit ints, shape (n,)
            The query.

        Returns
        -------
        OverlapScores
            With `last_hashes`.
        """
        return _scores(self._match(local_hashes), details=True)

    def find_matches_batch(self, local_hashes: Any, offsets: Any) -> BatchScores:
        """Answer many queries.

        Parameters
        ----------
        local_hashes : array or sequence of 64-bit ints, shape (m,)
            The queries' local hashes, one query behind the other.
        offsets : array or sequence of ints, shape (n + 1,)
            Query i is ``local_hashes[offsets[i]:offsets[i + 1]]``.

        Returns
        -------
        BatchScores
            n results.
        """
        local = hash_array(local_hashes)
        cuts = offset_array(offsets, len(local))
        with self._lock:
            return BatchScores.join([self.find_matches(local[a:b]) for a, b in pairwise(cuts)])

    def best_match(self, local_hashes: Any, among: Any = None) -> Match | None:
        """Find the rank that holds most of a query.

        Parameters
        ----------
        local_hashes : array or sequence of 64-bit ints, shape (n,)
            The query.
        among : iterable of int or (int, int), or ndarray of WORKER_DTYPE, optional
            Consider these ranks only.

        Returns
        -------
        Match or None
            The deepest; of several the one with the fewest blocks, then the lowest (worker_id, dp_rank). None
            if no rank holds the first block.
        """
        best = self.best_matches(local_hashes, 1, among)
        return best[0] if best else None

    def best_matches(self, local_hashes: Any, k: int, among: Any = None) -> list[Match]:
        """Find the `k` ranks that hold most of a query.

        Parameters
        ----------
        local_hashes, among
            As in `best_match`.
        k : int
            At most so many, >= 0.

        Returns
        -------
        list of Match
            Best first, in the order of `best_match`.
        """
        k = as_count(k)
        allowed = None if among is None else set(as_ranks(among))
        with self._lock:
            order = [
                (-found.depth, len(found.rank.places), found.rank.worker)
                for found in self._match(local_hashes)
                if allowed is None or found.rank.worker in allowed
            ]
        return [Match(worker, -depth) for depth, _, worker in sorted(order)[:k]]

    def workers(self) -> list[WorkerInfo]:
        """List the known ranks, also those without blocks, in the order of (worker_id, dp_rank)."""
        with self._lock:
            ranks = self._open().ranks
            return [
                WorkerInfo(w, len(r.places), "active", -1, r.last_event_id, r.degraded)
                for w, r in sorted(ranks.items(), key=lambda item: item[0])
            ]

    def dump_events(self) -> list[RouterEvent]:
        """Return store events that rebuild the same scores in an empty index.

        Returns
        -------
        list of RouterEvent
            Per rank one for each maximal unbranched run of what it can reach, parents first, with ids 0, 1,
            ...; equal trees give equal lists. Blocks behind a hole are left out, events cannot express them.
        """
        with self._lock:
            return self._open().dump()

    def stats(self) -> TreeStats:
        """Return sizes and counters as of now."""
        with self._lock:
            return self._open().stats(self._rejected)

    def _match(self, local_hashes: Any, early_exit: bool = False) -> list[Found]:
        local = hash_array(local_hashes).tolist()
        with self._lock:
            return self._open().match(local, early_exit)

    def _open(self) -> Nodes:
        if self._tree is None:
            raise StaleHandle("this RadixTree was closed: make a new one and load a dump into it")
        return self._tree


def _scores(found: list[Found], details: bool = False) -> OverlapScores:
    workers = [f.rank.worker for f in found]
    hashes = [f.last_hash for f in found] if details else None
    return OverlapScores.pack(workers, [f.depth for f in found], hashes)
