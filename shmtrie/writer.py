"""`Writer`: one lane of an index, the only way to change it.

Kernels do one attempt at an event; here is what they leave to Python: registering ranks, growing private tables, waiting for a busy
gate, recovering dead lanes, raising.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from . import errors
from .arguments import as_rank, as_u64, as_worker_id, hash_array
from .contexts import WriterContext, signed
from .errors import EventStatus, exception_for
from .events import KIND_CLEAR, KIND_NONE, KIND_REMOVE, KIND_STORE, EventBatch, EventLike, EventParts, split_event
from .kernels import batch, recover
from .kernels import context as c
from .kernels.build import ensure
from .lanes import LaneSeat, lane_info
from .layout import MAX_STORE
from .ranks import RankRegistry
from .scores import WorkerWithDpRank
from .segment import Segment

__all__ = ["Writer"]

_TABLES = {
    c.TABLE_NODES: "nodes",
    c.TABLE_EXTENTS: "extents",
    c.TABLE_CHILDREN: "children (the child table)",
    c.TABLE_LOG: "the lane's transaction record",
}
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
    For one thread at a time (RuntimeError when two meet). A rank belongs to the lane that first stores for it, until
    `release`, `remove_worker`, or the lane's end.
    """

    def __init__(self, segment: Segment, patience: float = 0.05) -> None:
        if not patience >= 0:
            raise ValueError(f"patience must be >= 0 seconds, got {patience}")
        ensure()
        self._segment = segment
        self._patience = patience
        self._turn = threading.Lock()
        self._closed = False
        if segment.header["retired"]:
            raise errors.SegmentRetired(f"segment {segment.name!r} is retired: attach anew")
        self._seat = LaneSeat.take(segment)
        try:
            self._context = WriterContext(segment, self._seat.lane)
            self._ranks = RankRegistry(segment, self._context, self._seat.lane, patience)
            if self._seat.was_dead:
                self._recover_seat(self._seat, self._context)
            self._ranks.disown(self._seat.lane)
            self._seat.activate()
            self._ranks.sweep_dying()
        except BaseException:
            self._seat.leave()
            raise

    @property
    def lane(self) -> int:
        """Number of the lane."""
        return self._seat.lane

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
        rank = as_rank(worker)
        parent = None if parent_hash is None else as_u64(parent_hash)
        local, external = hash_array(local_hashes), hash_array(block_hashes)
        if len(local) != len(external):
            raise ValueError(f"{len(local)} local hashes, {len(external)} external ones: need as many")
        self._raise(EventParts(KIND_STORE, rank, parent, local, external, 0), False)

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
        external = hash_array(block_hashes)
        self._raise(EventParts(KIND_REMOVE, as_rank(worker), None, external, external, 0), False)

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
        self._raise(EventParts(KIND_CLEAR, as_rank(worker), None, _NO_HASHES, _NO_HASHES, 0), False)

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
        parts = split_event(event)
        if parts.kind == KIND_NONE:
            return EventStatus.UNSUPPORTED
        self._raise(parts, True)
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
            An `EventStatus` each. One refused event never takes another one with it; but after a `BUSY` all later events of that
            rank in the batch are `BUSY`, unapplied, so that the order of each rank holds.

        Raises
        ------
        SegmentRetired, LaneLost, ForkedHandle, StaleHandle
        """
        if not isinstance(events, EventBatch):
            raise TypeError(f"expected an EventBatch, got {type(events).__name__}")
        if len(events) and int(np.diff(events.offsets).max()) > MAX_STORE:
            raise ValueError(f"an event has more than {MAX_STORE} blocks")
        n = len(events)
        statuses = np.zeros(n, np.uint8)
        columns = np.array(
            [
                getattr(events, name).ctypes.data
                for name in ("kind", "worker_id", "dp_rank", "has_parent", "parent", "offsets")
            ]
            + [getattr(events, name).ctypes.data for name in ("local", "external", "event_id")],
            np.int64,
        )
        with self._operation():
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
                i, why = batch.apply_events(self._context.address, columns.ctypes.data, i, last, statuses.ctypes.data)
                if i == last and why == c.OK:
                    continue
                parts = events[i]
                status = self._apply(parts, True)
                statuses[i] = status
                if status == EventStatus.BUSY:
                    held_up.add(parts.rank)
                i += 1
        return statuses

    # ------------------------------------------------------------------------------------------ ranks
    def remove_worker(self, worker_id: int) -> None:
        """Forget all ranks of a worker and free their slots, whichever lane they belong to; an unknown worker is fine.

        Parameters
        ----------
        worker_id : int
            0 <= worker_id < 2**64.

        Notes
        -----
        When it has returned no query shows what calls that returned before it began have stored. Next to a stopped writer the slots
        stay marked, and hidden, and are swept by a later call.
        """
        worker = as_worker_id(worker_id)
        with self._operation():
            self._ranks.remove_worker(worker)

    def release(self, worker: Any) -> None:
        """Hand a rank over: the next lane that gets an event of it takes it.

        Parameters
        ----------
        worker : int or (int, int)
            The rank; one that this lane does not own is left alone.
        """
        rank = as_rank(worker)
        with self._operation():
            self._ranks.release(rank)

    # ------------------------------------------------------------------------------------------ life
    def close(self) -> None:
        """Give the lane and its ranks back; idempotent."""
        if self._closed:
            return
        self._closed = True
        with self._turn:
            try:
                self._seat.check()
            except errors.ShmtrieError:
                pass
            else:
                batch.tidy_up(self._context.address)
                self._ranks.disown(self._seat.lane)
            self._seat.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ inside
    def _operation(self) -> _Turn:
        return _Turn(self._turn, self._seat)

    def _raise(self, parts: EventParts, with_id: bool) -> None:
        if len(parts.external) > MAX_STORE:
            raise ValueError(f"an event has at most {MAX_STORE} blocks, got {len(parts.external)}")
        with self._operation():
            status = self._apply(parts, with_id)
        if status != EventStatus.OK:
            raise exception_for(status, self._describe(status, parts))

    def _apply(self, parts: EventParts, with_id: bool) -> EventStatus:
        """One event, until it is settled."""
        rank, context = parts.rank, self._context
        worker_id = signed(rank.worker_id)
        arguments = (
            parts.kind,
            worker_id,
            rank.dp_rank,
            0 if parts.parent is None else 1,
            0 if parts.parent is None else signed(parts.parent),
            parts.local.ctypes.data,
            parts.external.ctypes.data,
            len(parts.external),
            signed(parts.event_id),
            int(with_id),
        )
        deadline = None
        pause = 20e-6
        while True:
            status = batch.apply_event(context.address, *arguments)
            if status == c.GROW:
                context.grow(context.get(c.C_NEEDED))
            elif status == c.SCRATCH:
                context.grow_seen(context.get(c.C_NEEDED))
            elif status == c.UNKNOWN_RANK:
                refused = self._ranks.admit(parts)
                if refused is not None:
                    return refused
            elif status == c.BUSY:
                now = time.monotonic()
                if deadline is None:
                    deadline = now + self._patience
                if now >= deadline:
                    return EventStatus.BUSY
                self._recover_lane(context.get(c.C_BUSY_LANE))
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, 2e-3)
            else:
                return EventStatus(status)

    def _describe(self, status: EventStatus, parts: EventParts) -> str:
        what = f"segment {self._segment.name!r}, rank {tuple(parts.rank)}"
        if status == EventStatus.CAPACITY_EXCEEDED:
            return f"{what}: {self._ranks.fullness(_TABLES.get(self._context.get(c.C_FULL_TABLE), 'ranks'))}"
        if status == EventStatus.BUSY:
            lane = self._context.get(c.C_BUSY_LANE)
            holder = lane_info(self._segment, lane).describe() if 0 <= lane < self._segment.capacity.lanes else "?"
            node = self._context.get(c.C_BUSY_NODE)
            return f"{what}: node {node} is held by {holder} for more than {self._patience:g} s: try again"
        if status == EventStatus.RANK_OWNED_ELSEWHERE:
            return f"{what}: {self._ranks.owner_text(parts.rank)}"
        if status == EventStatus.PARENT_BLOCK_NOT_FOUND:
            return f"{what}: does not hold the parent block {parts.parent}: store its chain first"
        if status == EventStatus.BLOCK_NOT_FOUND:
            return f"{what}: has never stored anything"
        if status == EventStatus.INVALID_BLOCK_SEQUENCE:
            return f"{what}: a hash of the store is the parent's, occurs twice, or is held at the parent or above"
        if status == EventStatus.SEGMENT_RETIRED:
            return f"segment {self._segment.name!r} is retired: attach anew"
        return what

    def _recover_seat(self, seat: LaneSeat, context: WriterContext) -> None:
        """Bring a dead lane's record to rest, as that lane."""
        deadline = time.monotonic() + max(1.0, self._patience)
        while recover.recover(context.address) != c.OK:
            if time.monotonic() > deadline:
                raise errors.Busy(
                    f"lane {seat.lane} of segment {self._segment.name!r}: its recovery waits for another lane"
                )
            time.sleep(0.001)
        seat.recovered()

    def _recover_lane(self, lane: int) -> None:
        """If the holder of a lane is dead, recover it; its ranks are free then."""
        if not 0 <= lane < self._segment.capacity.lanes or lane == self._seat.lane:
            return
        try:
            seat = LaneSeat.take(self._segment, lane)
        except errors.LaneUnavailable:
            return
        try:
            if seat.was_dead:
                self._recover_seat(seat, WriterContext(self._segment, lane))
                self._ranks.disown(lane)
        finally:
            seat.leave()


class _Turn:
    """One thread at a time, and the seat is still ours."""

    def __init__(self, lock: threading.Lock, seat: LaneSeat) -> None:
        self._lock = lock
        self._seat = seat

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("a writer serves one thread at a time: open one writer a thread")
        try:
            self._seat.check()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
