"""How a segment comes into being under a name, and how those who come too early wait for it.

Protocol. A creator makes the file with O_EXCL, locks its creator byte, writes a first page that claims the
file, reserves all of its memory, writes the header and the first words, stores `ready`, and unlocks. An
unfinished file whose creator byte is free has lost its creator: whoever gets that lock may remove it. A file
of length 0 with a free byte may belong to a creator that is just about to take the lock; it counts as dead
after a grace time. A creator that was taken for dead finds its file unlinked once it has the lock, and starts
over. Names are unlinked by holders of that lock only, so nobody removes a file that he did not look at.

A crash of a creator at any line leaves a file that is either ready or recognised as dead.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from enum import Enum
from typing import Final

import posix_ipc

from .bytelock import LockFile
from .errors import SegmentCorrupt, SegmentExists, SegmentNotFound, SegmentPermission
from .header import (
    FileKind,
    Header,
    build_page,
    check_page,
    file_kind,
    is_of_earlier_boot,
    unfinished_page,
)
from .layout import (
    H_READY,
    INTERNAL,
    LOCK_CREATOR,
    M32,
    N_START,
    N_TAIL,
    N_VERSION,
    NO_SPACE,
)
from .shmfile import SHM_DIRECTORY, is_named, open_file, read_page, shm_open, unlink_name
from .shmroom import check_room, reserve

__all__ = [
    "Stage",
    "begin_file",
    "create_file",
    "find",
    "make",
    "make_ready",
    "remove_dead",
    "settle",
    "stage_of",
]

_GRACE: Final = 0.25  # seconds until an empty file without a creator counts as dead
# Seconds until a living creator is taken at its word by who wants a name of its own: it may be somebody who
# removes a dead file, and "exists" would be said of what is gone a moment later.
_PATIENCE: Final = 0.1
_ATTEMPTS: Final = 1000  # of a creator whose name others take and leave


class Stage(Enum):
    """How far the file under a name is."""

    FOREIGN = "foreign"
    EMPTY = "empty"  # no creator seen yet
    BUILDING = "building"  # its creator lives
    DEAD = "dead"  # begun, never finished, the creator is gone
    MADE = "made"  # ready, or of another layout: to be checked
    STALE = "stale"  # left from before the machine last booted: nobody keeps it up to date


# ------------------------------------------------------------------------------------------------ look
def stage_of(file: LockFile) -> Stage:
    """How far the file is; never waits."""
    page = read_page(file)
    first = file_kind(page)
    if first is FileKind.FOREIGN:
        return Stage.FOREIGN
    if first is FileKind.SEGMENT:
        return Stage.STALE if is_of_earlier_boot(page) else Stage.MADE
    if file.is_locked_elsewhere(LOCK_CREATOR):
        return Stage.BUILDING
    # The lock is taken before the first page is written and let go after `ready` is stored: free in between
    # means dead. What was stored before it became free shows now.
    second = file_kind(read_page(file))
    if second is FileKind.SEGMENT:
        return Stage.MADE
    if second is not first:
        return Stage.BUILDING
    return Stage.EMPTY if first is FileKind.EMPTY else Stage.DEAD


def settle(name: str, write: bool, deadline: float, patience: float = 0.0) -> tuple[LockFile, Stage]:
    """Open the file under a name and wait until it is made or given up.

    Parameters
    ----------
    name : str
        Without the leading slash.
    write : bool
        Open it for writing.
    deadline : float
        ``time.monotonic()`` until which a living creator is waited for.
    patience : float
        Seconds to look at one creator at least, whatever the deadline is.

    Returns
    -------
    tuple of LockFile and Stage
        MADE; STALE; DEAD; FOREIGN; or BUILDING when the deadline came first. The file is the caller's.

    Raises
    ------
    SegmentNotFound, SegmentPermission, SegmentCorrupt
        As `open_file`; not found also when the name goes away while it is waited for.
    """
    pause = 0.0005
    while True:
        file = open_file(name, write)
        empty_since, seen = time.monotonic(), None
        try:
            while True:
                stage, now = stage_of(file), time.monotonic()
                if stage is Stage.EMPTY and now - empty_since > _GRACE:
                    stage = Stage.DEAD
                elif stage is Stage.BUILDING:
                    empty_since = now
                    seen = now if seen is None else seen
                if stage in (Stage.MADE, Stage.STALE, Stage.FOREIGN):
                    return file, stage
                if not is_named(file.identity, name):
                    break  # replaced or unlinked: look again
                if stage is Stage.DEAD:
                    return file, stage
                if stage is Stage.BUILDING and now >= max(deadline, (seen or now) + patience):
                    return file, stage
                time.sleep(pause)
                pause = min(pause * 1.5, 0.01)
        except BaseException:
            file.close()
            raise
        file.close()


def find(name: str, write: bool, deadline: float) -> tuple[LockFile, Header]:
    """Open a segment that exists and check its header.

    Parameters
    ----------
    name, write, deadline
        As in `settle`.

    Returns
    -------
    tuple of LockFile and Header
        The file is the caller's.

    Raises
    ------
    SegmentNotFound, SegmentPermission, SegmentCorrupt, SegmentIncompatible
    """
    file, stage = settle(name, write, deadline)
    with file.closing_on_error():
        if stage is Stage.BUILDING:
            raise SegmentNotFound(
                f"segment {name!r} is still being created: try again with a longer timeout, or unlink it if "
                f"its creator is stopped"
            )
        if stage is Stage.DEAD:
            raise SegmentCorrupt(
                f"segment {name!r} is unfinished and its creator is gone: create it again or unlink it"
            )
        return file, check_page(read_page(file), os.fstat(file.descriptor).st_size, name)


# ------------------------------------------------------------------------------------------------ make
def make(name: str, header: Header, mode: int, deadline: float, exist_ok: bool) -> LockFile | None:
    """Create a segment unless there is one; what a dead creator left is replaced, and when `exist_ok` a
    segment from before the last boot.

    Parameters
    ----------
    name : str
        Without the leading slash.
    header, mode
        As in `create_file`.
    deadline : float
        ``time.monotonic()`` until which other creators are waited for.
    exist_ok : bool
        Whether one that exists is no error.

    Returns
    -------
    LockFile or None
        The ready file; None when another segment has the name, or is about to, and `exist_ok`.

    Raises
    ------
    SegmentExists, SegmentNoSpace, SegmentPermission
    """
    for _ in range(_ATTEMPTS):
        made = create_file(name, header, mode)
        if made is not None:
            return made
        try:
            file, stage = settle(name, True, deadline if exist_ok else 0.0, _PATIENCE)
        except SegmentNotFound:  # unlinked a moment ago: the name is free again
            continue
        except (SegmentPermission, SegmentCorrupt):
            if exist_ok:
                raise
            break
        if stage is Stage.DEAD or (stage is Stage.STALE and exist_ok):
            remove_dead(file, name)
            continue
        file.close()
        if exist_ok:
            return None
        break
    raise SegmentExists(
        f"shared memory {name!r} exists: attach to it, use exist_ok=True or another name, or unlink it"
    )


def create_file(name: str, header: Header, mode: int) -> LockFile | None:
    """Make the file of a new segment under a free name; see `begin_file`.

    Returns
    -------
    LockFile or None
        The ready file.
    """
    file = begin_file(name, header, mode)
    if file is not None:
        try:
            make_ready(file)
            file.unlock(LOCK_CREATOR)
        except BaseException:
            _drop(file, name)
            raise
        file.set_carrying(False)
    return file


def begin_file(name: str, header: Header, mode: int) -> LockFile | None:
    """Make the file of a new segment under a free name, but for `ready`.

    Parameters
    ----------
    name : str
        Without the leading slash.
    header : Header
        What it shall say.
    mode : int
        Permission bits, whatever the umask is.

    Returns
    -------
    LockFile or None
        Complete but not ready, with the creator's lock held; None when the name is taken, or was taken over
        while we were stopped.

    Raises
    ------
    SegmentNoSpace, SegmentPermission
        Nothing is left under the name.
    """
    try:
        file = LockFile(lambda: shm_open(name, posix_ipc.O_CREX, False))
    except posix_ipc.ExistentialError:
        return None
    except (PermissionError, posix_ipc.PermissionsError):
        raise SegmentPermission(f"no permission to create segment {name!r} in {SHM_DIRECTORY}") from None
    try:
        if not file.try_lock(LOCK_CREATOR) or not is_named(file.identity, name):
            file.close()
            return None
        _fill(file, name, header, mode)
    except BaseException:
        _drop(file, name)
        raise
    return file


def make_ready(file: LockFile) -> None:
    """Let others attach to what `begin_file` made."""
    os.pwrite(file.descriptor, (1).to_bytes(8, "little"), H_READY)


def _drop(file: LockFile, name: str) -> None:
    """Remove a file of ours that came to nothing."""
    if is_named(file.identity, name):
        with suppress(SegmentNotFound, SegmentPermission):
            unlink_name(name)
    file.close()


def _fill(file: LockFile, name: str, header: Header, mode: int) -> None:
    """Write a segment into an empty file that we locked, all but `ready`."""
    descriptor, total = file.descriptor, header.geometry.total_bytes
    os.fchmod(descriptor, mode)  # first, so that those who may attach can wait for it
    check_room(name, total)
    reserve(descriptor, name, total, unfinished_page(header.creator_pid))
    # Written through the file, not through a mapping: each call orders what it writes behind the one before.
    os.pwrite(descriptor, build_page(header), 0)
    sections = header.geometry.sections
    root = sections["nodes"].offset
    for at, word in ((N_TAIL, INTERNAL), (N_VERSION, 1 << 32), (N_START, NO_SPACE << 32)):
        os.pwrite(descriptor, word.to_bytes(8, "little"), root + at)
    os.pwrite(descriptor, M32.to_bytes(4, "little"), sections["node_claims"].offset)  # never free


# ------------------------------------------------------------------------------------------------ remove
def remove_dead(file: LockFile, name: str) -> None:
    """Unlink a file that `settle` found DEAD or STALE, unless it has changed hands; closes it.

    Raises
    ------
    SegmentPermission
        If another user owns it.
    """
    try:
        file.set_carrying(True)
        if not file.try_lock(LOCK_CREATOR):
            return
        page = read_page(file)
        is_dead = file_kind(page) in (FileKind.EMPTY, FileKind.UNFINISHED) or is_of_earlier_boot(page)
        if is_dead and is_named(file.identity, name):
            unlink_name(name)
    finally:
        file.close()
