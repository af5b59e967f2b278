"""Ranks as a lane sees them: registration, ownership, adoption, removal. The rules of slots are in
kernels/registry.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from .bytelock import LockFile
from .contexts import WriterContext, signed
from .errors import Busy, EventStatus, SegmentRetired
from .events import KIND_CLEAR, KIND_STORE, EventBatch, EventParts
from .kernels import adopt, batch, registry
from .kernels import context as c
from .laneinfo import owner_alive
from .lanes import registry_lock
from .layout import COUNTERS, SLOT_ACTIVE, SLOT_DYING, SLOT_GENERATION, SLOT_OWNER
from .scores import WorkerWithDpRank
from .segment import Segment

__all__ = ["RankRegistry", "disown"]


def disown(states: npt.NDArray[Any], context: WriterContext, lane: int) -> int:
    """No rank belongs to a lane any more: it was closed, or is dead and recovered. How many did.

    `states` are the segment's `rank_states`.
    """
    states = states["state"]
    slots = np.flatnonzero(_owned(states, lane)).tolist()
    return sum(registry.registry_own(context.address, slot, lane + 1, 0) for slot in slots)


def _owned(states: npt.NDArray[Any], lane: int) -> npt.NDArray[np.bool_]:
    """Which slots are ACTIVE and a lane's, by their states."""
    mine = np.uint64(SLOT_ACTIVE | (lane + 1) << SLOT_OWNER)
    found: npt.NDArray[np.bool_] = (states & np.uint64(0xFF | 0xFF << SLOT_OWNER)) == mine
    return found


class RankRegistry:
    """What a writer does with ranks.

    Parameters
    ----------
    segment : Segment
        Attached for writing.
    context : WriterContext
        Of the lane.
    lane : int
        The lane.
    patience : float
        Seconds to wait for other lanes.
    recover_lane, recover_dead : callable
        Recovers a lane if its holder is dead; recovers all such lanes.
    """

    def __init__(
        self,
        segment: Segment,
        context: WriterContext,
        lane: int,
        patience: float,
        recover_lane: Callable[[int], bool],
        recover_dead: Callable[[], bool],
    ) -> None:
        self._recover_lane, self._recover_dead = recover_lane, recover_dead
        self._segment = segment
        self._context = context
        self._lane = lane
        self._patience = patience
        self.may_be_unknown = False  # some slot of the lane may be of a rank that has stored nothing
        self._lock_files: list[LockFile] = []  # the one of the registry's lock, while nobody uses it
        self._states = segment.view("rank_states")
        self._records = segment.view("rank_records")
        self._lanes = segment.view("lanes")

    # ------------------------------------------------------------------------------------------ admission
    def admit(self, parts: EventParts) -> EventStatus | None:
        """Settle an event of a rank that the lane's map does not know.

        Returns
        -------
        EventStatus or None
            The event's status, or None: the rank is this lane's now, apply the event.
        """
        rank = parts.rank
        with self._registering():
            if self._segment.header["retired"]:  # a resizer may have copied the ranks already
                return EventStatus.SEGMENT_RETIRED
            slot = self._find(rank)
            if slot >= 0:
                owner = self._owner(slot)
                # an owner that is no lane (damage) is nobody
                if owner not in (0, self._lane + 1) and owner <= len(self._lanes):
                    # Its lane may have died, and have been recovered and taken anew since we looked: the slot
                    # was let go before the new holder was active.
                    if owner_alive(self._segment, owner - 1) and self._owner(slot) == owner:
                        return EventStatus.RANK_OWNED_ELSEWHERE
                    self._context.words[c.C_BUSY_LANE] = owner - 1
                    return EventStatus.BUSY  # dead, and not recovered yet: the caller sees to that
                self._adopt(rank, slot, owner)
                return None
            if parts.kind != KIND_STORE:
                return EventStatus.OK if parts.kind == KIND_CLEAR else EventStatus.BLOCK_NOT_FOUND
            # a refused store does not make a rank known: what can be refused without a slot is refused here
            hashes = parts.external
            if len(set(hashes.tolist())) != len(hashes) or (
                parts.parent is not None and parts.parent in hashes
            ):
                return EventStatus.INVALID_BLOCK_SEQUENCE
            if parts.parent is not None:
                return EventStatus.PARENT_BLOCK_NOT_FOUND
            if len(hashes) == 0:
                return EventStatus.OK
            slot = registry.registry_assign(self._context.address, signed(rank.worker_id), rank.dp_rank)
            if slot < 0:
                self._recover_dead()
                self._mark_abandoned()
                self._sweep_dying()
                slot = registry.registry_assign(self._context.address, signed(rank.worker_id), rank.dp_rank)
            if slot < 0:
                self._context.words[c.C_FULL_TABLE] = 0
                return EventStatus.CAPACITY_EXCEEDED
            self._context.map_rank(rank.worker_id, rank.dp_rank, slot, self._generation(slot))
        return None

    def admit_ahead(self, events: EventBatch, columns: int, first: int) -> int:
        """Register the rank of an event, and those of later ones that will need it, under one lock.

        Returns
        -------
        int
            How many; none if event `first` is not simply the first store of a new rank. `free_unknown` frees
            those that no store comes to.

        Raises
        ------
        Busy
            If other writers keep the registry.
        """
        n_blocks = int(events.offsets[first + 1] - events.offsets[first])
        is_new = events.kind[first] == KIND_STORE and not events.has_parent[first] and n_blocks > 0
        if not is_new or self._find(events[first].rank) >= 0:
            return 0
        context, found = self._context, np.empty((registry.AHEAD, 2), np.int64)
        context.make_map_room(registry.AHEAD)
        with self._registering():
            if self._segment.header["retired"]:
                return 0
            self.may_be_unknown = True
            n = int(
                registry.registry_assign_ahead(
                    context.address, columns, first, len(events), found.ctypes.data
                )
            )
            for slot in found[:n, 1].tolist():
                record = self._records[slot]
                rank = int(record["worker_id"]), int(record["dp_rank"])
                context.note_mapped(*rank, slot, self._generation(slot))
            return n

    @contextmanager
    def registering_ahead(self) -> Iterator[None]:
        """At the end those slots are free again to which no store has come."""
        try:
            yield
        finally:
            if self.may_be_unknown:
                with suppress(Busy):
                    self.free_unknown()

    def free_unknown(self) -> None:
        """Free the lane's slots whose ranks have stored nothing; what cannot be done is for the next time."""
        if self._unknown():
            with self._registering():
                self._free_unknown(self._unknown())  # anew: a slot may have gone to another lane by now
        self.may_be_unknown = False

    def _unknown(self) -> list[int]:
        """The lane's slots whose ranks have stored nothing."""
        found = _owned(self._states["state"], self._lane) & (self._states["known"] == 0)
        slots: list[int] = np.flatnonzero(found).tolist()
        return slots

    def _free_unknown(self, slots: list[int]) -> None:
        """Nothing was stored (a commit makes a rank known), so there is nothing to sweep. The lane's own
        slots; registry lock held.
        """
        for slot in slots:
            registry.registry_mark(self._context.address, slot)
            registry.registry_free(self._context.address, slot)
        self._context.unmap_slots(slots)

    def _find(self, rank: WorkerWithDpRank) -> int:
        return int(registry.registry_find(self._context.address, signed(rank.worker_id), rank.dp_rank))

    def _owner(self, slot: int) -> int:
        """Lane + 1 of a slot's owner, 0 for nobody."""
        return int(self._states["state"][slot]) >> SLOT_OWNER & 0xFF

    def _generation(self, slot: int) -> int:
        return int(self._states["state"][slot]) >> SLOT_GENERATION & 0xFFFF

    def _adopt(self, rank: WorkerWithDpRank, slot: int, owner: int) -> None:
        """Take over a slot that nobody owns, and rebuild what the lookup needs of it."""
        context = self._context
        registry.registry_own(context.address, slot, owner, self._lane + 1)
        counted: tuple[int, ...] = ()
        for _ in range(64):  # until two passes agree: no lane has split in between
            before, counted = counted, adopt.covered_blocks(context.address, slot)
            if counted == before:
                break
        plain, aliased, _ = counted
        self._states["blocks"][slot] = plain + aliased
        try:
            context.mine[slot] = c.ALL_ONES  # first: a table that grows keeps what a rank of the lane needs
            context.grow(plain, aliased)
            while (status := adopt.adopt_slot(context.address, slot)) != c.OK:
                context.grow_for(status)
        except BaseException:  # else others of the lane count on entries that were not made
            context.unmap_slots([slot])
            raise
        context.map_rank(rank.worker_id, rank.dp_rank, slot, self._generation(slot))

    def _registering(self) -> AbstractContextManager[None]:
        """The lock under which slots are assigned, taken over and freed."""
        return registry_lock(self._segment, self._lane, max(1.0, self._patience), self._lock_files)

    def close(self) -> None:
        """Let go what was kept for the next rank."""
        while self._lock_files:
            self._lock_files.pop().close()

    def refused(self, rank: WorkerWithDpRank, status: EventStatus) -> None:
        """An event of a rank was refused: a known one is degraded, one that is not known gets no slot for
        it.
        """
        slot = self._find(rank)
        if slot >= 0 and not (self._states["known"][slot] and self._states["degraded"][slot]):
            # A busy registry leaves the slot to the rank's next event, or to whoever looks for a free one.
            with suppress(Busy), self._registering():
                slot = self._find(rank)  # anew: it may have gone to another rank by now
                if slot >= 0 and self._states["known"][slot]:
                    self._states["degraded"][slot] = 1
                elif slot >= 0 and self._owner(slot) == self._lane + 1:
                    self._free_unknown([slot])
        if status == EventStatus.BUSY:
            self._lanes["counters"][self._lane, COUNTERS.index("busy")] += np.uint64(1)

    # ------------------------------------------------------------------------------------------ ownership
    def disown(self) -> None:
        """No rank belongs to this lane any more; works when the segment's handle was closed, too."""
        disown(self._states, self._context, self._lane)

    def release(self, rank: WorkerWithDpRank) -> None:
        """Give one rank away."""
        with self._registering():
            slot = self._find(rank)
            if slot < 0 or self._owner(slot) != self._lane + 1:
                return
            # entries that only this rank needs stay until the lookup grows; nothing confirms them any more
            self._context.unmap_slots([slot])
            registry.registry_own(self._context.address, slot, self._lane + 1, 0)

    def _slots(self, state: int) -> list[int]:
        """Slots in a state."""
        return [int(i) for i in np.flatnonzero((self._states["state"] & np.uint64(0xFF)) == state)]

    # ------------------------------------------------------------------------------------------ removal
    def remove_worker(self, worker_id: int) -> None:
        """Mark the worker's slots, wait for the operations that may still write them, sweep and free."""
        with self._registering():
            # under the lock: a resizer copies the ranks under it, and would bring the worker back
            if self._segment.header["retired"]:
                raise SegmentRetired(f"segment {self._segment.name!r} is retired: attach anew")
            for slot in self._slots(SLOT_ACTIVE):
                if int(self._records["worker_id"][slot]) == worker_id:
                    registry.registry_mark(self._context.address, slot)
            self._sweep_dying()

    def sweep_dying(self) -> None:
        """Sweep what an earlier removal had to leave; best effort."""
        if self._slots(SLOT_DYING):
            with suppress(Busy), self._registering():
                self._sweep_dying()

    def free_unused(self) -> None:
        """Free the slots of removed workers, and of ranks that never came to store anything.

        Raises
        ------
        Busy
            If other writers keep the registry.
        """
        with self._registering():
            self._mark_abandoned()
            self._sweep_dying()

    def _mark_abandoned(self) -> None:
        """Mark slots of ranks whose first store a death cut off, or is yet to come in the lane's batch, where
        it registers the rank anew. Registry lock held.
        """
        for slot in self._slots(SLOT_ACTIVE):
            if self._owner(slot) in (0, self._lane + 1) and not self._states["known"][slot]:
                registry.registry_mark(self._context.address, slot)

    def _sweep_dying(self) -> None:
        """Sweep and free DYING slots; some may stay, next to a stopped lane. Registry lock held."""
        slots = self._slots(SLOT_DYING)
        if not slots:
            return
        deadline = time.monotonic() + max(self._patience, 0.05)
        if not self._others_quiet(deadline):
            return
        for slot in slots:
            node, status = 1, c.BUSY
            while status == c.BUSY:
                status, node = batch.sweep_slot(self._context.address, slot, node)
                if status == c.BUSY:
                    if self._recover_lane(self._context.get(c.C_BUSY_LANE)):
                        continue
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.0002)
            if status == c.OK:
                self._context.unmap_slots([slot])
                registry.registry_free(self._context.address, slot)

    def _others_quiet(self, deadline: float) -> bool:
        """Every other lane's operation that may have begun before the mark has ended (M8); a dead one is
        ended by its recovery.
        """
        counters = self._lanes["op_counter"]
        before = counters.copy()
        waiting = [i for i in range(len(before)) if i != self._lane and before[i] & np.uint64(1)]
        while waiting:
            waiting = [i for i in waiting if counters[i] == before[i] and not self._recover_lane(i)]
            if waiting and time.monotonic() > deadline:
                return False
            if waiting:
                time.sleep(0.0001)
        return True
