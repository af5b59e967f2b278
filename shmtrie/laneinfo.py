"""What a lane's record says, and whether its writer lives."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, NamedTuple

from .layout import LANE_ACTIVE, LOCK_LANE, LOCK_TAKING, PHASE_IDLE
from .segment import Segment

__all__ = [
    "PHASE",
    "LaneInfo",
    "check_lane",
    "holder_alive",
    "is_stopped",
    "lane_info",
    "owner_alive",
    "pid_namespace",
    "process_times",
]

PHASE: Final = 0xFF  # of the phase word; the rest is the operation number


class LaneInfo(NamedTuple):
    """What a lane's record says, and whether somebody holds its seat.

    `pid` and `start_time` (clock ticks after boot) are those of the last holder in its own pid namespace,
    whose inode is `pid_namespace`; `joined_ns` is wall clock, ns since 1970. `alive`: the seat is held now.
    `active` and not `alive`: the holder died and nobody has recovered the lane yet.
    """

    lane: int
    active: bool
    alive: bool
    idle: bool
    generation: int
    pid: int
    start_time: int
    pid_namespace: int
    joined_ns: int

    def describe(self) -> str:
        """A few words for messages."""
        if self.alive and not self.active:
            return f"lane {self.lane}: being taken or recovered"
        whose = "" if self.pid_namespace == pid_namespace() else " of another pid namespace"
        state = ", dead" if not self.alive else ", stopped" if is_stopped(self) else ""
        return f"lane {self.lane}: process {self.pid}{whose}{state}"


def lane_info(segment: Segment, lane: int) -> LaneInfo:
    """Read a lane's record; works read-only.

    Raises
    ------
    ValueError
        If the segment has no such lane.
    StaleHandle
    """
    check_lane(segment, lane)
    record = segment.view("lanes")[lane]
    return LaneInfo(
        lane=lane,
        active=int(record["state"]) == LANE_ACTIVE,
        alive=segment.is_locked(LOCK_LANE + lane),
        idle=int(record["phase"]) & PHASE == PHASE_IDLE,
        generation=int(record["generation"]),
        pid=int(record["pid"]),
        start_time=int(record["start_time"]),
        pid_namespace=int(record["pid_namespace"]),
        joined_ns=int(record["joined_ns"]),
    )


def holder_alive(segment: Segment, lane: int) -> bool:
    """Whether some process, perhaps a stopped one, perhaps this one, holds a lane's seat; works read-only.

    Raises
    ------
    ValueError
        If the segment has no such lane.
    StaleHandle
    """
    check_lane(segment, lane)
    return segment.is_locked(LOCK_LANE + lane)


def owner_alive(segment: Segment, lane: int) -> bool:
    """Whether the writer that is ACTIVE in a lane's record holds its seat; False during a recovery, too.

    Notes
    -----
    A recoverer holds the lock of the taking until the record says RECOVERING: who sees the seat held, then
    that lock free, then ACTIVE has seen the owner's own hold.
    """
    return (
        holder_alive(segment, lane)
        and not segment.is_locked(LOCK_TAKING + lane)
        and int(segment.view("lanes")[lane]["state"]) == LANE_ACTIVE
    )


def check_lane(segment: Segment, lane: int) -> None:
    """Raise ValueError if the segment has no such lane."""
    if not 0 <= lane < segment.capacity.lanes:
        raise ValueError(f"segment {segment.name!r} has lanes 0 to {segment.capacity.lanes - 1}, got {lane}")


def is_stopped(info: LaneInfo) -> bool:
    """Whether the process that holds a lane is stopped, as far as this one can see it: for messages."""
    if not info.alive or info.pid_namespace != pid_namespace():
        return False
    state, start_time = process_times(info.pid)
    return state in ("T", "t") and start_time == info.start_time


def process_times(pid: int | str) -> tuple[str, int]:
    """(state, clock ticks from boot to its start) of a process; ("", 0) where /proc does not tell."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[19])
    return "", 0


def pid_namespace() -> int:
    """Inode of this process's pid namespace; 0 where /proc does not tell."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0
