"""`Writer`: one lane of an index, the only way to change it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .arguments import as_rank, as_u64, as_worker_id, hash_array
from .errors import Busy, EventStatus, SegmentRetired, ShmtrieError, exception_for
from .events import (
    KIND_CLEAR,
    KIND_NONE,
    KIND_REMOVE,
    KIND_STORE,
    EventBatch,
    EventLike,
    EventParts,
    check_parts,
    take_apart,
)
from .fastapply import DONE, LOOK, NOT_DONE
from .kernels import batch
from .kernels import context as c
from .kernels.build import ensure
from .lanework import LaneWork
from .layout import MAX_STORE
from .scores import WorkerWithDpRank
from .segment import Segment
from .succession import require_in_force

__all__ = ["Writer"]

_COLUMNS = (
    "kind",
    "worker_id",
    "dp_rank",
    "has_parent",
    "parent",
    "offsets",
    "local",
    "external",
    "event_id",
)
_NO_HASHES = np.empty(0, np.uint64)


class Writer:
    """A lane of a segment: applies the events of the ranks that it owns. Made by `Index.writer`.

    Parameters
    ----------
    segment : Segment
        Attached for writing.
    patience : float
        Seconds to wait for a gate that another lane holds, before an event is `Busy`.

    Raises
    ------
    LaneUnavailable
        If all lanes are held by living processes.
    SegmentRetired, SegmentPermission

    Notes
    -----
    For one thread at a time (RuntimeError when two meet). A rank belongs to the lane that first stores for
    it, until `release`, `remove_worker`, or the lane's end.
    """

    def __init__(self, segment: Segment, patience: float = 0.05) -> None:
        if not patience >= 0:
            raise ValueError(f"patience must be >= 0 seconds, got {patience}")
        ensure()
        if segment.retired:
            raise SegmentRetired(f"segment {segment.name!r} is retired or has lost its name: attach anew")
        require_in_force(segment, wait=max(1.0, patience))
        self._work = LaneWork(segment, patience)
        self._apply = self._work.apply
        self._closed = False

    @property
    def lane(self) -> int:
        """Number of the lane."""
        return self._work.seat.lane

    # ------------------------------------------------------------------------------------------ one event
    def store(self, worker: Any, parent_hash: Any, local_hashes: Any, block_hashes: Any) -> None:
        """Record blocks that a rank holds from now on.

        Parameters
        ----------
        worker : int or (int, int)
            The rank: worker id (dp_rank 0), or (worker_id, dp_rank).
        parent_hash : int or None
            The rank's external hash of the block before the first; None if that starts at the root.
        local_hashes, block_hashes : array or sequence of 64-bit ints, shape (n,)
            Local and external hashes, n <= 2**20. A known external hash moves here.

        Raises
        ------
        ParentBlockNotFound
            If the rank does not hold the parent.
        InvalidBlockSequence
            If an external hash is the parent's, occurs twice, or is held at the parent or above it.
        CapacityExceeded, Busy, RankOwnedElsewhere, SegmentRetired, LaneLost
            Nothing has changed.
        """
        done = self._apply(KIND_STORE, worker, parent_hash, local_hashes, block_hashes, None)
        if done == DONE:
            return
        rank = as_rank(worker)
        parent = None if parent_hash is None else as_u64(parent_hash)
        local, external = hash_array(local_hashes), hash_array(block_hashes)
        if len(local) != len(external):
            raise ValueError(f"{len(local)} local hashes, {len(external)} external ones: need as many")
        self._settle(EventParts(KIND_STORE, rank, parent, local, external, 0), False, done)

    def remove(self, worker: Any, block_hashes: Any) -> None:
        """Forget blocks of a rank, whatever their order; hashes it does not hold are skipped.

        Parameters
        ----------
        worker : int or (int, int)
            The rank.
        block_hashes : array or sequence of 64-bit ints, shape (n,)
            External hashes.

        Raises
        ------
        BlockNotFound
            If the rank never stored anything, or its worker was removed since.
        Busy
            A part may be done; applying it again completes it.
        RankOwnedElsewhere, SegmentRetired, LaneLost
        """
        done = self._apply(KIND_REMOVE, worker, None, None, block_hashes, None)
        if done == DONE:
            return
        external = hash_array(block_hashes)
        self._settle(EventParts(KIND_REMOVE, as_rank(worker), None, external, external, 0), False, done)

    def clear(self, worker: Any) -> None:
        """Forget all blocks of a rank, which stays known; an unknown rank is fine.

        Parameters
        ----------
        worker : int or (int, int)
            The rank.

        Raises
        ------
        Busy
            A part may be done; applying it again completes it.
        RankOwnedElsewhere, SegmentRetired, LaneLost
        """
        done = self._apply(KIND_CLEAR, worker, None, None, None, None)
        if done != DONE:
            parts = EventParts(KIND_CLEAR, as_rank(worker), None, _NO_HASHES, _NO_HASHES, 0)
            self._settle(parts, False, done)

    def apply_event(self, event: EventLike) -> EventStatus:
        """Apply one event and record its id.

        Parameters
        ----------
        event : RouterEvent or its JSON
            A store, remove or clear.

        Returns
        -------
        EventStatus
            OK, or UNSUPPORTED for an event of another storage tier, which is skipped.

        Raises
        ------
        ShmtrieError
            As `store`, `remove` and `clear`.
        TypeError, ValueError
            If it is no event.
        """
        # the builtin checks what it takes; no id means to it that none is to be noted
        rough = take_apart(event)
        done = NOT_DONE if rough[-1] is None else self._apply(*rough)
        if done != DONE:
            parts = check_parts(*rough)
            if parts.kind == KIND_NONE:
                return EventStatus.UNSUPPORTED
            self._settle(parts, True, done)
        return EventStatus.OK

    def apply_events(self, events: Iterable[EventLike]) -> npt.NDArray[np.uint8]:
        """Apply many events; see `apply_batch`.

        Parameters
        ----------
        events : iterable of RouterEvent or JSON bytes
            In order.

        Returns
        -------
        ndarray of uint8, shape (n,)
            An `EventStatus` each.

        Raises
        ------
        TypeError, ValueError
            If one is no event; nothing has been applied then.
        """
        return self.apply_batch(EventBatch.from_events(events))

    def apply_batch(self, events: EventBatch) -> npt.NDArray[np.uint8]:
        """Apply packed events in one kernel call.

        Parameters
        ----------
        events : EventBatch
            In order.

        Returns
        -------
        ndarray of uint8, shape (n,)
            An `EventStatus` each. One refused event never takes another one with it; but after a `BUSY` all
            later events of that rank in the batch are `BUSY`, unapplied, so that the order of each rank
            holds.

        Raises
        ------
        SegmentRetired, LaneLost, ForkedHandle, StaleHandle
        """
        if not isinstance(events, EventBatch):
            raise TypeError(f"expected an EventBatch, got {type(events).__name__}")
        lengths = np.diff(events.offsets)
        if len(events) and (int(lengths.max()) > MAX_STORE or int(lengths.min()) < 0):
            raise ValueError(f"an event has 0 to {MAX_STORE} blocks")
        if int(events.offsets[0]) != 0 or int(events.offsets[-1]) > len(events.external):
            raise ValueError("the offsets of the batch were changed: they reach beyond its hashes")
        n = len(events)
        statuses = np.zeros(n, np.uint8)
        columns = np.array([getattr(events, name).ctypes.data for name in _COLUMNS], np.int64)
        with self._work.alone(), self._work.turn(), self._work.ranks.registering_ahead():
            held_up: set[WorkerWithDpRank] = set()
            i = 0
            while i < n:
                if held_up:
                    parts = events[i]
                    if parts.kind != KIND_NONE and parts.rank in held_up:
                        statuses[i] = EventStatus.BUSY
                        i += 1
                        continue
                last = i + 1 if held_up else n
                i, why = batch.apply_events(
                    self._work.context.address, columns.ctypes.data, i, last, statuses.ctypes.data
                )
                if i == last and why == c.OK:
                    continue
                parts = events[i]
                try:
                    if why == c.UNKNOWN_RANK and self._work.ranks.admit_ahead(events, columns.ctypes.data, i):
                        continue
                    status = self._work.settle(parts, True)
                except Busy:  # the registry is being held by another writer
                    status = self._work.refuse(parts, EventStatus.BUSY)
                statuses[i] = status
                if status == EventStatus.BUSY:
                    held_up.add(parts.rank)
                i += 1
        return statuses

    # ------------------------------------------------------------------------------------------ ranks
    def remove_worker(self, worker_id: int) -> None:
        """Forget all ranks of a worker and free their slots, whichever lane they belong to; an unknown
        worker is fine.

        Parameters
        ----------
        worker_id : int
            0 <= worker_id < 2**64.

        Notes
        -----
        When it has returned no query shows what calls that returned before it began have stored. Next to a
        stopped writer the slots stay marked, and hidden, and are swept by a later call.
        """
        worker = as_worker_id(worker_id)
        with self._work.alone(), self._work.turn():
            self._work.ranks.remove_worker(worker)

    def release(self, worker: Any) -> None:
        """Hand a rank over: the next lane that gets an event of it takes it.

        Parameters
        ----------
        worker : int or (int, int)
            The rank; one that this lane does not own is left alone.
        """
        rank = as_rank(worker)
        with self._work.alone(), self._work.turn():
            self._work.ranks.release(rank)

    # ------------------------------------------------------------------------------------------ life
    def close(self) -> None:
        """Give the lane and its ranks back; idempotent.

        Raises
        ------
        RuntimeError
            Inside of a call of this writer, by a signal handler: close it when that is over.
        """
        if not self._closed:
            self._work.require_outside()
            self._closed = True
            self._work.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _settle(self, parts: EventParts, with_id: bool, done: int) -> None:
        """What the builtin has left to do of an event, or all of it."""
        if len(parts.external) > MAX_STORE:
            raise ValueError(f"an event has at most {MAX_STORE} blocks, got {len(parts.external)}")
        if done == LOOK:
            with suppress(ShmtrieError, RuntimeError), self._work.alone(), self._work.turn():
                pass  # the event is applied, whatever is found now
            return
        with self._work.alone(), self._work.turn():
            if done == NOT_DONE:
                status = self._work.settle(parts, with_id)
            else:
                status = self._work.refuse(parts, EventStatus(done))
        if status != EventStatus.OK:
            raise exception_for(status, self._work.describe(status, parts))
