"""What a writer does around the kernels: one attempt at an event is a kernel's, the rest is here.

Registering ranks, growing private tables, waiting for a busy gate, recovering dead lanes, wording errors.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from . import errors
from .contexts import WriterContext, signed
from .errors import EventStatus
from .events import EventParts
from .fastapply import FastApply
from .kernels import adopt, batch, copy, growth, recover, registry
from .kernels import context as c
from .lanes import LaneSeat
from .ranks import RankRegistry
from .recovery import LaneRecovery, work_off
from .refusals import describe
from .segment import Segment
from .succession import require_in_force, take_back

__all__ = ["LaneWork"]


LOOK_EVERY = 0.02  # seconds between two looks at a lane that is in the way of a reclaim
_ROOM = (c.GROW, c.GROW_ALIASES, c.SCRATCH, c.ROWS)  # a private table has to grow

_KERNELS = (
    batch.apply_event,
    batch.apply_events,
    batch.sweep_slot,
    batch.tidy_up,
    batch.take_todo,
    growth.lookup_move,
    growth.lookup_carry,
    growth.lookup_stamp,
    growth.aliases_move,
    growth.aliases_carry,
    adopt.adopt_slot,
    adopt.covered_blocks,
    copy.open_lane,
    recover.recover,
    registry.registry_find,
    registry.registry_assign_ahead,
    registry.registry_assign,
    registry.registry_mark,
    registry.registry_free,
    registry.registry_own,
    registry.rank_map_put,
)


class LaneWork:
    """A held seat with its context and ranks.

    Parameters
    ----------
    segment : Segment
        Attached for writing, not retired.
    patience : float
        Seconds to wait for a gate that another lane holds.

    Raises
    ------
    LaneUnavailable, SegmentPermission
    Busy
        If the seat's last holder died, and its recovery waits for a stopped process.
    """

    def __init__(self, segment: Segment, patience: float) -> None:
        self.segment = segment
        self.patience = patience
        self._turn = threading.Lock()
        self._thread = 0  # that has its turn
        self._next_look = 0.0
        # now, not while others wait for what this lane holds: loading a kernel takes some 15 ms
        for kernel in _KERNELS:
            kernel.compile()
        waits: dict[int, errors.Busy] = {}  # lanes whose recovery a stopped process holds up
        while True:
            try:
                self.seat = LaneSeat.take(segment, but=waits)
            except errors.LaneUnavailable:
                if waits:
                    raise next(iter(waits.values())) from None
                raise
            try:
                self._start()
                return
            except errors.Busy as error:
                waits[self.seat.lane] = error
                self.seat.leave()
            except BaseException:
                self.seat.leave()
                raise

    def _start(self) -> None:
        """Make the seat this writer's: recovered, active, and what earlier holders left is done."""
        lane = self.seat.lane
        self.context = WriterContext(self.segment, lane)
        self._recovery = LaneRecovery(self.segment, self.patience, lane, self.context)
        self.recover_lane = self._recovery.recover_lane
        self.ranks = RankRegistry(
            self.segment, self.context, lane, self.patience, self.recover_lane, self._recovery.recover_dead
        )
        if self.seat.was_dead:
            self._recovery.settle(self.seat, self.context, max(1.0, self.patience))
        else:
            self.ranks.disown()
        self.seat.activate()
        batch.tidy_up(self.context.address)
        self.ranks.sweep_dying()
        self._fast = FastApply(self.segment, self.context, self.seat)
        self.apply = self._fast.apply

    def alone(self) -> threading.Lock:
        """The lock under which one thread works, for a `with` of its own around a `turn`.

        An interrupt can come between any two steps of Python code, so code of ours that lets the lock go
        could be left before it does. The exit of a lock itself cannot.
        """
        self.seat.check()  # before the lock: a forked child may have inherited a locked one
        if self.segment.header["retired"]:  # StaleHandle when the index was closed
            require_in_force(self.segment)
        if self._turn.locked():
            raise RuntimeError("a writer serves one thread at a time: open one writer a thread")
        return self._turn

    def turn(self) -> Turn:
        """A context in which the seat is still ours. `alone` is held."""
        return Turn(self.seat, self._hold, self._unblock)

    def _hold(self, taken: bool) -> None:
        self._thread = threading.get_ident() if taken else 0
        self._fast.hold(taken)

    def require_outside(self) -> None:
        """Raise RuntimeError inside of a call of this writer, where a signal handler may be: `end` would wait
        for that call, and so for ever.
        """
        if self._turn.locked() and self._thread == threading.get_ident():
            raise RuntimeError(
                "a writer cannot be closed inside of one of its calls: close it when that is over"
            )

    def end(self) -> None:
        """Give the ranks and the seat back; without effect on a seat that is lost or the parent's."""
        if self.seat.forked:  # the lock may be held for ever: by a thread that only the parent has
            self.seat.leave()
            return
        with self._turn:
            self._fast.hold(True)  # for good
            try:
                self.seat.check()
            except errors.ShmtrieError:
                pass
            else:
                # the seat's next holder does the rest
                work_off(self.segment, self.context, self.patience, self.recover_lane)
                self.ranks.disown()
            self.ranks.close()
            self.seat.leave()

    def _unblock(self) -> None:
        """Where a dead lane is in the way of a reclaim, recover it: nobody else may meet its gates.

        What cannot be done, for want of descriptors say, is for another time: the events are applied.
        """
        lane = self.context.get(c.C_TODO_LANE) - 1
        if lane >= 0 and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY  # it may be alive, and stopped
            with suppress(errors.ShmtrieError, OSError):
                if self.recover_lane(lane):
                    batch.tidy_up(self.context.address)
                elif not self._in_operation(lane):  # it has let its gates go, and tested what it left
                    self.context.words[c.C_TODO_LANE] = 0

    def _in_operation(self, lane: int) -> bool:
        counters = self.segment.view("lanes")["op_counter"]
        return lane < len(counters) and bool(int(counters[lane]) & 1)

    def settle(self, parts: EventParts, with_id: bool) -> EventStatus:
        """Apply one event until it is settled: tables grown, the rank registered, gates waited for."""
        try:
            status = self._attempts(parts, with_id)
        finally:  # the builtin does not look for dead lanes: for it a full table is no answer
            self.context.words[c.C_FINAL] = 0
        return status if status == EventStatus.OK else self.refuse(parts, status)

    def refuse(self, parts: EventParts, status: EventStatus) -> EventStatus:
        """Note that an event was refused; what its caller has to be told."""
        self.ranks.refused(parts.rank, status)
        # A resizer that has not seen the rank degraded is seen here: then the event is not refused, it is
        # for the copy. For that a full fence has to stand in between, and this one looks at no lane.
        copy.open_lane(0, 0)
        return EventStatus.SEGMENT_RETIRED if self.segment.header["retired"] else status

    def _attempts(self, parts: EventParts, with_id: bool) -> EventStatus:
        rank, context = parts.rank, self.context
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
        context.words[c.C_FINAL] = 0
        while True:
            status = batch.apply_event(context.address, *arguments)
            if status == c.RETIRED and take_back(self.segment):
                continue
            if status in _ROOM:
                context.grow_for(status)
            elif status == c.UNKNOWN_RANK:
                try:
                    refused = self.ranks.admit(parts)
                except errors.Busy:  # the registry is being held by another writer
                    return EventStatus.BUSY
                if refused is None:
                    continue
                if refused == EventStatus.SEGMENT_RETIRED and take_back(self.segment):
                    continue
                if refused != EventStatus.BUSY:
                    return refused
                status = c.BUSY  # its owner is dead: BUSY_LANE says who
            if status == c.BUSY:
                now = time.monotonic()
                if deadline is None:
                    deadline = now + self.patience
                if self.recover_lane(context.get(c.C_BUSY_LANE)):
                    continue
                if now >= deadline:
                    return EventStatus.BUSY
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, 2e-3)
            elif status == c.FULL and context.get(c.C_FINAL) == 0:
                # what dead writers had reserved is free once they are recovered
                context.words[c.C_FINAL] = 1 - self._recovery.recover_dead()
            elif status not in _ROOM:
                return EventStatus(status)

    def describe(self, status: EventStatus, parts: EventParts) -> str:
        """What was refused, why, and what to do."""
        return describe(self.segment, self.context, self.patience, status, parts)


class Turn:
    """The seat is still ours; `after` is called at the end.

    `hold` is told that a thread has its turn, and when it is over. After an interrupt in between it may not
    hear the latter; then every event takes the way of a turn, up to the end of the next one.
    """

    def __init__(self, seat: LaneSeat, hold: Callable[[bool], None], after: Callable[[], None]) -> None:
        self._seat = seat
        self._hold = hold
        self._after = after

    def __enter__(self) -> None:
        self._seat.check()
        self._hold(True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._after()
        finally:
            self._hold(False)
