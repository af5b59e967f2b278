"""Exceptions of the package, the per-event status codes, and the one map between them.

Kernels and batch calls report an `EventStatus`; single calls raise. `exception_for` is the only place
where a code becomes an exception. Messages are written by whoever raises: what happened, which segment,
lane or rank, and what to do next.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

__all__ = [
    "BlockNotFound",
    "Busy",
    "CapacityExceeded",
    "EventStatus",
    "ForkedHandle",
    "InvalidBlockSequence",
    "LaneLost",
    "LaneUnavailable",
    "ParentBlockNotFound",
    "RankOwnedElsewhere",
    "SegmentCorrupt",
    "SegmentExists",
    "SegmentIncompatible",
    "SegmentNoSpace",
    "SegmentNotFound",
    "SegmentPermission",
    "SegmentRetired",
    "ShmtrieError",
    "StaleHandle",
    "UnsupportedEvent",
    "exception_for",
]


class EventStatus(IntEnum):
    """Outcome of one event; what `apply_events` and `apply_batch` return per event, as uint8.

    Every value but `OK` means that the event changed nothing.
    """

    OK = 0
    PARENT_BLOCK_NOT_FOUND = 1
    BLOCK_NOT_FOUND = 2
    INVALID_BLOCK_SEQUENCE = 3
    CAPACITY_EXCEEDED = 4
    BUSY = 5
    RANK_OWNED_ELSEWHERE = 6
    LANE_LOST = 7
    SEGMENT_RETIRED = 8
    UNSUPPORTED = 9
    SEGMENT_CORRUPT = 10


class ShmtrieError(Exception):
    """Base of every error that the package raises, wrong arguments (TypeError, ValueError) aside."""

    status: ClassVar[EventStatus | None] = None
    """The per-event code of this error; None for errors that are not about one event."""


# --- events -----------------------------------------------------------------------------------------


class ParentBlockNotFound(ShmtrieError):
    """A store names a parent that the rank does not hold; nothing was stored."""

    status = EventStatus.PARENT_BLOCK_NOT_FOUND


class BlockNotFound(ShmtrieError):
    """A remove for a rank that never stored anything, or whose worker was removed."""

    status = EventStatus.BLOCK_NOT_FOUND


class InvalidBlockSequence(ShmtrieError):
    """A store that would put one external hash at two places of one path; nothing was stored."""

    status = EventStatus.INVALID_BLOCK_SEQUENCE


class UnsupportedEvent(ShmtrieError):
    """An event of another storage tier or residency domain; it says nothing about this index."""

    status = EventStatus.UNSUPPORTED


# --- room and contention ----------------------------------------------------------------------------


class CapacityExceeded(ShmtrieError):
    """A table of the segment is full; says which, how full, and how to make room. Nothing changed."""

    status = EventStatus.CAPACITY_EXCEEDED


class Busy(ShmtrieError):
    """Another lane held what the operation needed for longer than the patience. Nothing changed."""

    status = EventStatus.BUSY


# --- lanes ------------------------------------------------------------------------------------------


class LaneUnavailable(ShmtrieError):
    """No free lane in the segment: every seat is taken by a living writer."""


class LaneLost(ShmtrieError):
    """This writer's lane was taken over by another process; the handle can no longer write."""

    status = EventStatus.LANE_LOST


class RankOwnedElsewhere(ShmtrieError):
    """The rank belongs to another living lane, which has to release it first."""

    status = EventStatus.RANK_OWNED_ELSEWHERE


# --- segments ---------------------------------------------------------------------------------------


class SegmentNotFound(ShmtrieError):
    """There is no segment of that name, or it did not become ready in time."""


class SegmentExists(ShmtrieError):
    """A segment of that name exists already."""


class SegmentCorrupt(ShmtrieError):
    """The segment's header or tables contradict themselves; a store that needs them changes nothing."""

    status = EventStatus.SEGMENT_CORRUPT


class SegmentIncompatible(ShmtrieError):
    """The segment was made with another layout, machine type, block size or model."""


class SegmentNoSpace(ShmtrieError):
    """The shared-memory file system has no room for a segment of that size."""


class SegmentPermission(ShmtrieError):
    """The process may not create, open or write the segment."""


class SegmentRetired(ShmtrieError):
    """The segment was replaced (`resize`) or unlinked; readers may go on, writers must attach anew."""

    status = EventStatus.SEGMENT_RETIRED


# --- handles ----------------------------------------------------------------------------------------


class ForkedHandle(ShmtrieError):
    """A writer handle was used in a child process of the one that opened it."""


class StaleHandle(ShmtrieError):
    """The handle was closed."""


_BY_STATUS: dict[EventStatus, type[ShmtrieError]] = {
    cls.status: cls
    for cls in (
        ParentBlockNotFound,
        BlockNotFound,
        InvalidBlockSequence,
        CapacityExceeded,
        Busy,
        RankOwnedElsewhere,
        LaneLost,
        SegmentRetired,
        UnsupportedEvent,
        SegmentCorrupt,
    )
    if cls.status is not None
}


def exception_for(status: int, message: str) -> ShmtrieError:
    """Build the exception that stands for a status code.

    Parameters
    ----------
    status : int
        An `EventStatus` value other than `OK`.
    message : str
        Text of the exception.

    Returns
    -------
    ShmtrieError
        Not raised, so that the caller's ``raise`` shows the caller's line.

    Raises
    ------
    ValueError
        If `status` is `OK` or no `EventStatus` value.
    """
    code = EventStatus(status)
    if code is EventStatus.OK:
        raise ValueError("EventStatus.OK is not an error")
    return _BY_STATUS[code](message)
