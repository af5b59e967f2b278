"""Room for a segment in the file system of shared memory."""

from __future__ import annotations

import errno
import os
import resource
from typing import Final

from .errors import SegmentNoSpace
from .layout import PAGE
from .shmfile import SHM_DIRECTORY

__all__ = ["check_room", "no_space", "reserve"]

_RESERVE_STEP: Final = 64 << 20  # bytes; a signal repeats at most one step
_CLEAR_STEP: Final = 1 << 20


def check_room(name: str, total: int) -> None:
    """Refuse what cannot fit before any of it is taken: a nearly full /dev/shm harms other programs."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and limit < total:
        raise no_space(name, total, f"this process may write files of {limit} bytes only (RLIMIT_FSIZE)")
    room = os.statvfs(SHM_DIRECTORY)
    if room.f_blocks and room.f_bavail * room.f_frsize < total:
        raise no_space(name, total, "not enough memory in the file system")


def reserve(descriptor: int, name: str, total: int, first_page: bytes) -> None:
    """Write the first page of a file of so many bytes, take the memory of all of it, and clear the rest.

    Raises
    ------
    SegmentNoSpace
        The file is empty then.
    """
    try:
        os.pwrite(descriptor, first_page, 0)
        # Memory that is not there would be a SIGBUS at some later store, in whatever process.
        for start in range(0, total, _RESERVE_STEP):
            os.posix_fallocate(descriptor, start, min(_RESERVE_STEP, total - start))
        # A page that was never written is cleared, and mapped alone, when a writer first stores to it: in the
        # middle of an event, and ten times slower than one that is mapped with its neighbours.
        zeros, at = memoryview(bytes(_CLEAR_STEP)), PAGE
        while at < total:
            at += os.pwrite(descriptor, zeros[: total - at], at)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG):
            os.ftruncate(descriptor, 0)  # so that the message tells what was free before
            raise no_space(name, total, os.strerror(error.errno)) from error
        raise


def no_space(name: str, total: int, why: str) -> SegmentNoSpace:
    """The error of a segment that does not fit; not raised."""
    room = os.statvfs(SHM_DIRECTORY)
    free = f"{room.f_bavail * room.f_frsize} are free" if room.f_blocks else "its limit is not known"
    return SegmentNoSpace(
        f"segment {name!r} needs {total} bytes in {SHM_DIRECTORY}, {free}: {why}; "
        f"use a smaller Capacity, unlink what is not used, or enlarge it (docker: --shm-size)"
    )
