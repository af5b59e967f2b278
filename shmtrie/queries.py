"""The questions that an `Index` answers. They take no lock, write nothing and leave no trace in the
segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from . import fastcall
from .arguments import as_count, as_ranks, hash_array, offset_array, query_array
from .contexts import Context, SpareContexts
from .dump import dump_events
from .errors import StaleHandle
from .events import RouterEvent
from .kernels import context as c
from .kernels import query
from .kernels.build import ensure
from .layout import MAX_STORE, SLOT_ACTIVE, SLOT_OWNER
from .scores import (
    WORKER_DTYPE,
    BatchScores,
    Match,
    OverlapScores,
    WorkerInfo,
    WorkerWithDpRank,
)
from .segment import Segment
from .stats import IndexStats, index_stats
from .verify import VerifyReport, verify
from .workers import matches_in, rank_records

__all__ = ["IndexQueries"]

_FEW = 32  # best matches that are chosen one by one; more are sorted


class IndexQueries:
    """Read methods of `Index`; they may be called from any thread.

    Parameters
    ----------
    segment : Segment
        Attached.
    """

    def __init__(self, segment: Segment) -> None:
        ensure()
        self._segment = segment
        self._spare = SpareContexts(segment)
        make = fastcall.fast_finds if fastcall.available() else fastcall.plain_finds
        self._find, self._best_match, self._best, self._find_contexts = make(segment)
        if type(self).find_matches is IndexQueries.find_matches:
            # The builtin itself, where there is one: a method around it would take as long as most queries.
            self.find_matches = self._find  # type: ignore[method-assign]
        if type(self).best_match is IndexQueries.best_match:
            self.best_match = self._best_match  # type: ignore[method-assign]

    def find_matches(self, local_hashes: Any, early_exit: bool = False) -> OverlapScores:
        """Count, per rank, the leading blocks of a query that it holds.

        Parameters
        ----------
        local_hashes : array or sequence of 64-bit ints, shape (n,)
            Local hashes of the query from its first block on, n <= 2**20. A contiguous uint64 or int64
            array is fastest.
        early_exit : bool
            Stop once a single rank is left; its score is then a lower bound.

        Returns
        -------
        OverlapScores
            Blocks, for every rank with at least one; owns its data.
        """
        return self._find(local_hashes, early_exit)

    def find_match_details(self, local_hashes: Any) -> OverlapScores:
        """Like `find_matches`, with each rank's own external hash of its last matched block (`last_hashes`).

        Parameters
        ----------
        local_hashes : array or sequence of 64-bit ints, shape (n,)
            The query.

        Returns
        -------
        OverlapScores
        """
        local = query_array(local_hashes)
        with self._context() as context:
            n = query.find_details(context.address, local.ctypes.data, len(local))
            return OverlapScores(context.result(n, details=True), details=True)

    def find_matches_batch(self, local_hashes: Any, offsets: Any) -> BatchScores:
        """Answer many queries in one call.

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
        n = len(cuts) - 1
        if n > 0 and int(np.diff(cuts).max()) > MAX_STORE:
            raise ValueError(f"a query has at most {MAX_STORE} blocks")
        slots = self._open().section_count("rank_records")
        room = max(n * 8, slots)
        found = np.zeros(max(n, 0) + 1, np.int64)
        records, depths = np.empty(room * 2, np.uint64), np.empty(room, np.uint32)
        i, k = 0, 0
        while i < n:
            with self._context() as context:
                i, k = query.find_many(
                    context.address,
                    local.ctypes.data,
                    cuts.ctypes.data,
                    i,
                    n,
                    found.ctypes.data,
                    records.ctypes.data,
                    depths.ctypes.data,
                    room,
                )
            if i < n:
                room = max(room * 2, k + slots)
                records, depths = np.resize(records, room * 2), np.resize(depths, room)
        return BatchScores(found, records[: k * 2].view(WORKER_DTYPE), depths[:k])

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
            The deepest; of several the one with the fewest blocks, then the lowest (worker_id, dp_rank).
            None if no rank holds the first block.
        """
        return self._best_match(local_hashes, among)

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
        ranks, count = None if among is None else as_ranks(among), as_count(k)
        if count > _FEW:
            return self._many_matches(query_array(local_hashes), ranks)[:count]
        records = None if ranks is None else rank_records(ranks)
        found = self._best(local_hashes, count, records)
        if found is None:
            found = self._best(query_array(local_hashes), count, records)
            assert found is not None
        return list(found)

    def _many_matches(
        self, local: npt.NDArray[np.uint64], ranks: list[WorkerWithDpRank] | None
    ) -> list[Match]:
        with self._context() as context:
            n = query.find_plain(context.address, local.ctypes.data, len(local), 0)
            raw, slots = context.result(n), context.slots(n)
        found, matches = OverlapScores(raw), matches_in(raw)
        workers, held = found.workers, self._segment.view("rank_states")["blocks"]
        # a damaged array may have a word behind the last slot
        blocks = held[np.minimum(slots, len(held) - 1)]
        deepest_first = np.iinfo(np.uint32).max - found.depths
        order = np.lexsort((workers["dp_rank"], workers["worker_id"], blocks, deepest_first)).tolist()
        if ranks is None:
            return [matches[i] for i in order]
        allowed = set(ranks)
        return [matches[i] for i in order if matches[i].worker in allowed]

    # ------------------------------------------------------------------------------------------ looking in
    def workers(self) -> list[WorkerInfo]:
        """List the known ranks, also those without blocks, in the order of (worker_id, dp_rank)."""
        segment = self._open()
        states, records = segment.view("rank_states").copy(), segment.view("rank_records")
        found = []
        for slot in np.flatnonzero((states["state"] & np.uint64(0xFF)) == SLOT_ACTIVE):
            s = states[slot]
            if not s["known"]:
                continue
            rank = WorkerWithDpRank(int(records["worker_id"][slot]), int(records["dp_rank"][slot]))
            lane = (int(s["state"]) >> SLOT_OWNER & 0xFF) - 1
            event_id = int(s["last_event_id"]) if s["has_event_id"] else None
            found.append(WorkerInfo(rank, int(s["blocks"]), "active", lane, event_id, bool(s["degraded"])))
        return sorted(found, key=lambda info: info.worker)

    def stats(self) -> IndexStats:
        """Sizes and counters as of now."""
        return index_stats(self._open(), self._giveups())

    def verify(self) -> VerifyReport:
        """Check the segment's invariants; may run beside writers."""
        return verify(self._open())

    def dump_events(self) -> list[RouterEvent]:
        """Store events that rebuild the same scores in an empty index.

        Returns
        -------
        list of RouterEvent
            Per rank one for each maximal unbranched run of what it can reach, parents first.
        """
        with self._context() as context:
            return dump_events(self._open(), context)

    @property
    def retired(self) -> bool:
        """The segment was replaced or unlinked: answers come from what it was; attach anew."""
        return self._open().retired

    @property
    def name(self) -> str:
        """Name of the segment."""
        return self._segment.name

    @property
    def segment(self) -> Segment:
        """The segment itself, for tools."""
        return self._open()

    def _open(self) -> Segment:
        if self._segment.closed:
            raise StaleHandle(f"index {self._segment.name!r} was closed: attach anew")
        return self._segment

    @contextmanager
    def _context(self) -> Iterator[Context]:
        """A context for kernels that run without the GIL, and for what they leave in it."""
        self._open()
        with self._spare.lent() as context:
            yield context

    def _giveups(self) -> int:
        return sum(context.get(c.C_GIVEUPS) for context in [*self._find_contexts, *self._spare])
