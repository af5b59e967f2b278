"""Dead lanes: their records brought to rest, their ranks let go; and `recover`, which does it for a whole
segment at once.

Writers recover a dead lane when it stands in their way, so nobody has to call `recover`. It is for whoever
wants the segment at rest now: before a check, or when the engines' writers are not started again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .contexts import WriterContext
from .errors import Busy, LaneUnavailable, SegmentRetired
from .kernels import batch, recover
from .kernels import context as c
from .kernels.reclaim import SCAN_STEP
from .laneinfo import holder_alive, is_stopped, lane_info
from .lanes import LaneSeat
from .layout import LANE_FREE, SLOT_ACTIVE, SLOT_DYING, SLOT_OWNER
from .ranks import RankRegistry, disown
from .segment import Segment
from .succession import remove_leftover, take_back

__all__ = ["LaneOutcome", "LaneRecovery", "RecoveryReport", "recover_segment", "work_off"]


class LaneRecovery:
    """Recovers lanes whose holders are dead.

    Parameters
    ----------
    segment : Segment
        Attached for writing.
    patience : float
        Seconds to wait for a space lock that another lane holds.
    own : int
        A lane to leave alone: the caller's.
    heir : WriterContext, optional
        Of that lane: it takes over what dead ones had left for later.
    """

    def __init__(
        self, segment: Segment, patience: float, own: int = -1, heir: WriterContext | None = None
    ) -> None:
        self._segment = segment
        self._patience = patience
        self._own = own
        self._heir = heir

    def settle(self, seat: LaneSeat, context: WriterContext, seconds: float) -> int:
        """Bring a dead lane's record to rest, as that lane; its ranks are nobody's then, their number.

        Raises
        ------
        Busy
            If it waits for a space lock for longer: that of a stopped process.
        """
        deadline = time.monotonic() + seconds
        while recover.recover(context.address) != c.OK:
            # It waits for another lane's space lock. If that one is dead as well its recovery opens the lock,
            # before it waits for anything itself: so of two that died none waits for the other for ever.
            other = context.get(c.C_BUSY_LANE)
            if self.recover_lane(other):
                continue
            if time.monotonic() > deadline:
                known = 0 <= other < self._segment.capacity.lanes
                whom = lane_info(self._segment, other).describe() if known else "another lane"
                raise Busy(
                    f"lane {seat.lane} of segment {self._segment.name!r}: its recovery waits for {whom}"
                )
            time.sleep(0.001)
        # before: who finds the lane free need not look for ranks
        n = disown(self._segment.view("rank_states"), context, seat.lane)
        seat.recovered()
        return n

    def recover_lane(self, lane: int) -> bool:
        """If the holder of a lane is dead, recover it, and its ranks are free; whether that was so."""
        if not 0 <= lane < self._segment.capacity.lanes or lane == self._own:
            return False
        try:
            seat = LaneSeat.take(self._segment, lane)
        except LaneUnavailable:
            return False
        try:
            dead = seat.was_dead
            context = WriterContext(self._segment, lane)
            if dead:
                self.settle(seat, context, self._patience)
                if self._heir is not None:
                    batch.take_todo(self._heir.address, context.address)
            else:
                disown(self._segment.view("rank_states"), context, lane)
            return dead
        except Busy:  # a stopped process is in the way: another try, another time
            return False
        finally:
            seat.leave()

    def recover_dead(self) -> bool:
        """Recover all lanes whose holders are dead; whether there was one."""
        used = np.flatnonzero(self._segment.view("lanes")["state"] != LANE_FREE).tolist()
        # a look at a lock is a tenth of a try to take it: this is asked for at every refusal of a full table
        return any([self.recover_lane(lane) for lane in used if not holder_alive(self._segment, lane)])


def work_off(
    segment: Segment, context: WriterContext, patience: float, recover_lane: Callable[[int], bool]
) -> bool:
    """Do what a lane had to leave, as far as others let it; True when nothing is left."""
    deadline = time.monotonic() + patience
    for _ in range(segment.section_count("nodes") // SCAN_STEP + 2):
        if batch.tidy_up(context.address) == c.OK:
            return True
        if time.monotonic() > deadline:
            break
        recover_lane(context.get(c.C_TODO_LANE) - 1)  # a dead one may be in the way
    return False


# ------------------------------------------------------------------------------------------------ all lanes
class LaneOutcome(NamedTuple):
    """What was found of a lane that is, or was, in use, and what was done.

    `state`: "alive" or "stopped" (left alone), "busy" (somebody is taking or recovering it), "recovered", or
    "unsettled". `pid` is that of its last holder, in that one's pid namespace. `ranks` were let go.
    """

    lane: int
    state: str
    pid: int
    ranks: int
    what: str


@dataclass(frozen=True)
class RecoveryReport:
    """What `Index.recover` did.

    Attributes
    ----------
    ok : bool
        Nothing is left to do.
    lanes : list of LaneOutcome
        Lanes in use, and those whose holders were dead.
    slots_freed : int
        Slots of removed workers, and of ranks that never came to store anything.
    resize_cleared : bool
        A resize or rebuild that died half-way was taken back.
    unsettled : list of str
        What could not be done, and why.
    """

    ok: bool
    lanes: list[LaneOutcome] = field(default_factory=list)
    slots_freed: int = 0
    resize_cleared: bool = False
    unsettled: list[str] = field(default_factory=list)


def recover_segment(segment: Segment, patience: float = 1.0) -> RecoveryReport:
    """Recover all lanes whose holders are dead, and free what can be freed.

    Parameters
    ----------
    segment : Segment
        Attached for writing.
    patience : float
        Seconds to wait for other lanes, for each thing that waits.

    Returns
    -------
    RecoveryReport

    Raises
    ------
    SegmentPermission, SegmentRetired, StaleHandle
    """
    if segment.retired:
        raise SegmentRetired(f"segment {segment.name!r} is retired: attach anew")
    cleared = take_back(segment)
    cleared = remove_leftover(segment.name) or cleared
    recovery = LaneRecovery(segment, patience)
    lanes, unsettled = [], []
    for lane in range(segment.capacity.lanes):
        outcome = _recover_one(segment, recovery, lane, patience)
        if outcome is not None:
            lanes.append(outcome)
            if outcome.state == "unsettled":
                unsettled.append(outcome.what)
    freed, left = _free_slots(segment, recovery, patience)
    unsettled += left
    return RecoveryReport(not unsettled, lanes, freed, cleared, unsettled)


def _recover_one(segment: Segment, recovery: LaneRecovery, lane: int, patience: float) -> LaneOutcome | None:
    """Settle one lane; None when there is nothing to say of it."""
    record = segment.view("lanes")[lane : lane + 1]
    info = lane_info(segment, lane)
    if info.alive:
        state = "busy" if not info.active else "stopped" if is_stopped(info) else "alive"
        return LaneOutcome(lane, state, info.pid, 0, info.describe())
    was_free = int(record["state"][0]) == LANE_FREE and info.idle
    if was_free and not (record["n_todo"][0] or record["todo_scan"][0] or _owned(segment, lane)):
        return None
    try:
        seat = LaneSeat.take(segment, lane)
    except LaneUnavailable:  # somebody was faster
        return LaneOutcome(lane, "busy", info.pid, 0, lane_info(segment, lane).describe())
    try:
        context = WriterContext(segment, lane)
        ranks = (
            recovery.settle(seat, context, patience)
            if seat.was_dead
            else disown(segment.view("rank_states"), context, lane)
        )
        if not work_off(segment, context, patience, recovery.recover_lane):
            what = f"lane {lane}: nodes that nobody covers stay, what they need is held by another lane"
            return LaneOutcome(lane, "unsettled", info.pid, ranks, what)
        what = f"lane {lane}: process {info.pid} is gone, {ranks} ranks let go"
        return LaneOutcome(lane, "recovered", info.pid, ranks, what)
    except Busy as error:
        return LaneOutcome(lane, "unsettled", info.pid, 0, str(error))
    finally:
        seat.leave()


def _owned(segment: Segment, lane: int) -> bool:
    states = segment.view("rank_states")["state"]
    is_active = (states & np.uint64(0xFF)) == SLOT_ACTIVE
    return bool(np.any(is_active & ((states >> np.uint64(SLOT_OWNER) & np.uint64(0xFF)) == lane + 1)))


def _free_slots(segment: Segment, recovery: LaneRecovery, patience: float) -> tuple[int, list[str]]:
    """Sweep and free slots of removed workers and abandoned ones: (number, what could not be done)."""
    states = segment.view("rank_states")

    def waiting() -> int:
        kinds = states["state"] & np.uint64(0xFF)
        owners = states["state"] >> np.uint64(SLOT_OWNER) & np.uint64(0xFF)
        is_abandoned = (kinds == SLOT_ACTIVE) & (owners == 0) & (states["known"] == 0)
        return int(np.count_nonzero((kinds == SLOT_DYING) | is_abandoned))

    before = waiting()
    if before == 0:
        return 0, []
    why = "another lane is in the middle of an operation: a stopped process?"
    try:
        seat = LaneSeat.take(segment)
    except LaneUnavailable as error:
        why = str(error)
    else:
        try:
            context = WriterContext(segment, seat.lane)
            if seat.was_dead:
                recovery.settle(seat, context, patience)
            ranks = RankRegistry(
                segment, context, seat.lane, patience, recovery.recover_lane, recovery.recover_dead
            )
            ranks.free_unused()
        except Busy as error:
            why = str(error)
        finally:
            seat.leave()
    left = waiting()
    return max(before - left, 0), [f"{left} slots of removed workers are not free yet: {why}"] if left else []
