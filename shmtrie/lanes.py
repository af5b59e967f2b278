"""Lanes: the seats of writer processes, and the lock under which ranks are registered.

A seat is the lock on one byte of the segment's file. Who holds it may write the lane's record; when its
holder dies the kernel lets it go, so who is granted the lock of a record that says ACTIVE knows, without a
clock or a pid, that the last holder is dead, and owns its recovery. A stopped process keeps its seat. What
the record says of pids and times is for messages only.

Life of a seat: `LaneSeat.take`; when `was_dead`, the record is RECOVERING, the caller recovers it and says
`recovered`; `activate`; operations, each batch after `check`; `leave`. A crash at any point leaves the record
FREE, when nothing was written in its name, or ACTIVE or RECOVERING, which the next holder recovers.

A seat is taken under a lock of its own, so that `owner_alive` never takes a recoverer for the dead owner.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from .bytelock import LockFile
from .errors import Busy, ForkedHandle, LaneLost, LaneUnavailable, SegmentPermission, StaleHandle
from .laneinfo import PHASE, check_lane, lane_info, pid_namespace, process_times
from .layout import (
    LANE_ACTIVE,
    LANE_FREE,
    LANE_RECOVERING,
    LOCK_LANE,
    LOCK_REGISTRY,
    LOCK_TAKING,
    M32,
    PHASE_IDLE,
)
from .segment import Segment

__all__ = ["LaneSeat", "registry_lock"]


class LaneSeat:
    """The right to write as one lane; made by `take`.

    Attributes
    ----------
    lane : int
    was_dead : bool
        The last holder died: recover its record before `activate`. False again after `recovered`.
    generation : int
        Of the lane's record as this seat knows it; a new one from `activate` on, never 0 then.

    Notes
    -----
    Two seats of one process are as separate as those of two processes. A forked child has none.
    """

    def __init__(self, segment: Segment, lane: int, file: LockFile) -> None:
        lanes = segment.view("lanes")
        self.lane = lane
        self._segment_name = segment.name
        self._file = file
        self._record = lanes[lane : lane + 1]  # an array, so that fields can be stored; keeps the mapping
        self._generations = self._record["generation"]
        self._active = False
        self._left = False
        self.generation = int(self._generations[0])
        self.was_dead = self._state != LANE_FREE or not self._is_idle
        if self.was_dead:
            self._record["state"] = LANE_RECOVERING

    @classmethod
    def take(cls, segment: Segment, lane: int | None = None, but: Collection[int] = ()) -> LaneSeat:
        """Take a free seat, or one whose holder died.

        Parameters
        ----------
        segment : Segment
            Attached for writing.
        lane : int, optional
            The one to take; default the lowest that can be had.
        but : collection of int, optional
            Lanes that are not wanted.

        Returns
        -------
        LaneSeat
            Not active yet; see `was_dead`.

        Raises
        ------
        LaneUnavailable
            If it is, or all are, held by living processes; the message names them.
        SegmentPermission
            If the segment is attached read-only, or its file cannot be opened for writing.
        SegmentRetired
            If the file can no longer be reached.
        StaleHandle, ValueError
        """
        if segment.read_only:
            raise SegmentPermission(f"segment {segment.name!r} is attached read-only: attach for writing")
        if lane is not None:
            check_lane(segment, lane)
        wanted = [x for x in (range(segment.capacity.lanes) if lane is None else (lane,)) if x not in but]
        file = segment.open_lock_file()  # one description holds one seat
        try:
            for candidate in (*wanted, *wanted):  # twice: who was just taking a seat may have let it go
                # asked first: a living holder's seat is left alone, also by those who only look for dead ones
                if file.is_locked_elsewhere(LOCK_LANE + candidate):
                    continue
                if not file.try_lock(LOCK_TAKING + candidate):
                    continue
                try:
                    if file.try_lock(LOCK_LANE + candidate):
                        return cls(segment, candidate, file)
                finally:
                    file.unlock(LOCK_TAKING + candidate)
        except BaseException:
            file.close()
            raise
        file.close()
        holders = "; ".join(lane_info(segment, candidate).describe() for candidate in wanted)
        what = f"all {len(wanted)} lanes" if lane is None else "the lane"
        raise LaneUnavailable(
            f"{what} of segment {segment.name!r} taken ({holders}): close a writer, or create the segment "
            f"with more lanes"
        )

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that took the seat."""
        return self._file.forked

    # ------------------------------------------------------------------------------------------ life
    def recovered(self) -> None:
        """Say that the dead holder's record was dealt with: the lane is free, in our hands.

        Raises
        ------
        RuntimeError
            If an operation is still open in the record.
        LaneLost, ForkedHandle, StaleHandle
        """
        self.check()
        self._require_idle()
        self._record["state"] = LANE_FREE
        self.was_dead = False

    def activate(self) -> None:
        """Enter this process in the record, under a new generation; ACTIVE is stored last.

        Raises
        ------
        RuntimeError
            If a dead holder's operation is still open in the record.
        LaneLost, ForkedHandle, StaleHandle
        """
        self.check()
        self._require_idle()
        record = self._record
        record["pid"] = os.getpid()
        record["start_time"] = process_times("self")[1]
        record["pid_namespace"] = pid_namespace()
        record["joined_ns"] = time.time_ns()
        self.generation = (self.generation % M32) + 1  # 32 bits without 0
        record["generation"] = self.generation
        record["state"] = LANE_ACTIVE
        self.was_dead = False
        self._active = True

    def check(self) -> None:
        """Raise unless this process still holds the seat; about 1 us, once a batch.

        Raises
        ------
        StaleHandle
            After `leave`.
        ForkedHandle
            In a forked child.
        LaneLost
            If the descriptor was closed or replaced behind our back, which gave the lock away, or another
            holder has been active since.
        """
        if self._left:
            raise StaleHandle(
                f"the writer of lane {self.lane} of {self._segment_name!r} was closed: open another"
            )
        if self._file.forked:
            raise ForkedHandle(
                f"lane {self.lane} of segment {self._segment_name!r} belongs to the parent process: open a "
                f"writer of its own in the child"
            )
        if not self._file.is_intact():
            raise LaneLost(
                f"lane {self.lane} of segment {self._segment_name!r}: the descriptor of its lock was closed "
                f"by other code of this process (a closerange?): open a new writer"
            )
        if int(self._generations[0]) != self.generation:
            raise LaneLost(
                f"lane {self.lane} of segment {self._segment_name!r} was taken over by process "
                f"{int(self._record['pid'][0])}: open a new writer"
            )

    def proof(self) -> tuple[int, int, int, int]:
        """What `check` looks at, for a kernel that does so itself once the seat is active.

        Returns
        -------
        descriptor, mark : int
            The seat is lost, left or the parent's when the descriptor's file offset is not the mark.
        address, generation : int
            And taken over when the u32 at the address is not the generation.
        """
        return self._file.descriptor, self._file.mark, self._generations.ctypes.data, self.generation

    def leave(self) -> None:
        """Give the seat back; idempotent, and without effect on a seat that is lost or the parent's.

        The record becomes FREE when this seat made it ACTIVE and no operation is open in it; else it stays
        as it is, and the next holder sees `was_dead`.
        """
        if self._left:
            return
        try:
            self.check()
        except (ForkedHandle, LaneLost):
            pass
        else:
            if self._active and self._is_idle:
                self._record["state"] = LANE_FREE
        self._left = True
        self._file.close(LOCK_LANE + self.lane)

    @property
    def _state(self) -> int:
        return int(self._record["state"][0])

    @property
    def _is_idle(self) -> bool:
        return int(self._record["phase"][0]) & PHASE == PHASE_IDLE

    def _require_idle(self) -> None:
        if not self._is_idle:
            raise RuntimeError(
                f"lane {self.lane} of {self._segment_name!r} has an open operation: recover first"
            )

    def __enter__(self) -> LaneSeat:
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()

    def __repr__(self) -> str:
        state = "left" if self._left else "active" if self._active else "taken"
        return f"<LaneSeat {self.lane} of {self._segment_name!r}, {state}>"


@contextmanager
def registry_lock(
    segment: Segment, lane: int, timeout: float, spare: list[LockFile] | None = None
) -> Iterator[None]:
    """Hold the lock under which ranks get their slots and lose them.

    Parameters
    ----------
    segment : Segment
        Attached for writing.
    lane : int
        Who holds it, for the messages of others.
    timeout : float
        Seconds to wait for other holders; 0 tries once.
    spare : list of LockFile, optional
        Keeps the file open from one use to the next: opening it costs ten times what locking does. For one
        thread at a time; its owner closes what is in it.

    Raises
    ------
    Busy
        If another process, or another thread of this one, holds it for longer.
    SegmentPermission, SegmentRetired, StaleHandle

    Notes
    -----
    Not re-entrant: a second use inside the first waits for itself. A holder that dies lets go.
    """
    if segment.read_only:
        raise SegmentPermission(f"segment {segment.name!r} is attached read-only: attach for writing")
    # A second use inside the first finds no spare one: on the same description its lock would be granted.
    file = spare.pop() if spare else None
    if file is None or not file.is_intact():
        file = segment.open_lock_file()
    try:
        deadline, pause = time.monotonic() + timeout, 0.0001
        while not file.try_lock(LOCK_REGISTRY):
            left = deadline - time.monotonic()
            if left <= 0:
                raise Busy(
                    f"ranks of segment {segment.name!r} are being registered or removed by "
                    f"{_registering(segment)} for more than {timeout:g} s: try again; if it goes on, look "
                    "whether that process is stopped"
                )
            time.sleep(min(left, pause * random.uniform(0.5, 1.5)))
            pause = min(pause * 2, 0.004)
        segment.header["registering"] = lane + 1
        yield
        segment.header["registering"] = 0
    finally:
        if spare is None or spare or not file.is_intact():
            file.close(LOCK_REGISTRY)
        else:
            file.unlock(LOCK_REGISTRY)
            spare.append(file)


def _registering(segment: Segment) -> str:
    """Who holds the registry lock; a holder that died leaves its name until the next one comes."""
    lane = int(segment.header["registering"]) - 1
    return lane_info(segment, lane).describe() if 0 <= lane < segment.capacity.lanes else "another writer"
