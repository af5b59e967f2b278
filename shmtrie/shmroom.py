"""Room for a segment in the file system of shared memory."""

from __future__ import annotations

import os
import resource

from .errors import SegmentNoSpace
from .shmfile import SHM_DIRECTORY

__all__ = ["check_room", "no_space"]


def check_room(name: str, total: int) -> None:
    """Refuse what cannot fit before any of it is taken: a nearly full /dev/shm harms other programs."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and limit < total:
        raise no_space(name, total, f"this process may write files of {limit} bytes only (RLIMIT_FSIZE)")
    room = os.statvfs(SHM_DIRECTORY)
    if room.f_blocks and room.f_bavail * room.f_frsize < total:
        raise no_space(name, total, "not enough memory in the file system")


def no_space(name: str, total: int, why: str) -> SegmentNoSpace:
    """The error of a segment that does not fit; not raised."""
    room = os.statvfs(SHM_DIRECTORY)
    free = f"{room.f_bavail * room.f_frsize} are free" if room.f_blocks else "its limit is not known"
    return SegmentNoSpace(
        f"segment {name!r} needs {total} bytes in {SHM_DIRECTORY}, {free}: {why}; "
        f"use a smaller Capacity, unlink what is not used, or enlarge it (docker: --shm-size)"
    )
