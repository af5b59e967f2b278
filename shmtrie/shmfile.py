"""Names in shared memory and their files: which are valid, opening, mapping, listing and unlinking them.

A name may be unlinked and made anew at any time, so a file is told by its (device, inode): those of a file
that somebody has open or mapped are not given to another one.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import sys
import time
from contextlib import suppress
from typing import Final

import posix_ipc

from .bytelock import LockFile
from .errors import SegmentCorrupt, SegmentNotFound, SegmentPermission
from .header import is_readable_layout
from .layout import H_RETIRED, LOCK_CREATOR, MAGIC, PAGE, RETIRED

__all__ = [
    "SHM_DIRECTORY",
    "is_named",
    "lock_or_give_up",
    "map_file",
    "open_file",
    "read_page",
    "remove",
    "segment_names",
    "segment_path",
    "shm_open",
    "successor_name",
    "unlink_name",
    "valid_name",
]

SHM_DIRECTORY: Final = "/dev/shm"
_MAX_NAME: Final = 255
_SUCCESSOR: Final = ".next"
_REMOVE_WAIT: Final = 2.0  # seconds that an unlink waits for a creation in progress


def valid_name(name: str) -> str:
    """Check the name of a segment and return it without the leading slash.

    Raises
    ------
    TypeError
        If it is no str.
    ValueError
        If it is empty, ``.`` or ``..``, has a NUL or a further slash, or more than 255 bytes.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a segment must be a str, got {type(name).__name__}")
    bare = name.removeprefix("/")
    if bare in ("", ".", "..") or "/" in bare or "\0" in bare:
        raise ValueError(f"{name!r} cannot name a segment: it needs one path component without NUL")
    if len(os.fsencode(bare)) > _MAX_NAME:
        raise ValueError(f"the name of a segment has at most {_MAX_NAME} bytes, got {name[:40]!r}...")
    return bare


def segment_path(name: str) -> str:
    """The file of a segment; `name` without the leading slash."""
    return f"{SHM_DIRECTORY}/{name}"


def successor_name(name: str) -> str:
    """Under which name the successor of a segment is made, until it takes the segment's own."""
    if len(os.fsencode(name)) + len(_SUCCESSOR) <= _MAX_NAME:
        return name + _SUCCESSOR
    return hashlib.sha256(os.fsencode(name)).hexdigest() + _SUCCESSOR


def is_named(identity: tuple[int, int], name: str) -> bool:
    """Whether a name leads to the file with this (device, inode)."""
    try:
        status = os.stat(segment_path(name), follow_symlinks=False)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == identity


def open_file(name: str, write: bool) -> LockFile:
    """Open the file under a name, whatever it is.

    Raises
    ------
    SegmentNotFound, SegmentPermission
    SegmentCorrupt
        If it is no regular file.
    """
    try:
        # a FIFO would block the open, a link is refused by it with an errno of its own
        if not stat.S_ISREG(os.stat(segment_path(name), follow_symlinks=False).st_mode):
            raise SegmentCorrupt(f"{name!r} in shared memory is no regular file: use another name")
        return LockFile(lambda: shm_open(name, 0, not write), carries_locks=False)
    except (FileNotFoundError, posix_ipc.ExistentialError):
        raise SegmentNotFound(f"there is no segment {name!r}: create it first") from None
    except (PermissionError, posix_ipc.PermissionsError):
        access = "read and write" if write else "read"
        raise SegmentPermission(
            f"no permission to {access} segment {name!r}: see its mode and owner"
        ) from None


def shm_open(name: str, flags: int, read_only: bool) -> int:
    """A descriptor of the POSIX shared memory of this name; the errors are those of `posix_ipc`."""
    memory = posix_ipc.SharedMemory(f"/{name}", flags, 0o600, read_only=read_only)
    try:
        return os.dup(memory.fd)
    finally:
        memory.close_fd()


def read_page(file: LockFile) -> bytes:
    """The first page of a file, shorter when the file is."""
    return os.pread(file.descriptor, PAGE, 0)


def remove(name: str) -> None:
    """Mark the segment under a name as retired and unlink the name; mappings of the file stay.

    A file that is damaged or no segment at all is unlinked too: whoever says its name wants it gone.

    Parameters
    ----------
    name : str
        Without the leading slash.

    Raises
    ------
    SegmentNotFound, SegmentPermission
    SegmentCorrupt
        If it is no regular file.
    """
    while True:
        try:
            file = open_file(name, write=True)
        except SegmentPermission:  # not ours to write, so hardly ours to unlink
            unlink_name(name)
            return
        try:
            file.set_carrying(True)
            lock_or_give_up(file)
            if not is_named(file.identity, name):
                continue  # replaced meanwhile
            if is_readable_layout(read_page(file)):
                os.pwrite(file.descriptor, RETIRED.to_bytes(8, "little"), H_RETIRED)
            unlink_name(name)
            return
        finally:
            file.close()


def lock_or_give_up(file: LockFile) -> None:
    """Take the creator's lock of a file whose name is to change, or give up after a while: a stopped creator
    must not keep others from removing its file.
    """
    deadline = time.monotonic() + _REMOVE_WAIT
    while not file.try_lock(LOCK_CREATOR) and time.monotonic() < deadline:
        time.sleep(0.002)


def unlink_name(name: str) -> None:
    """Remove a name from shared memory; mappings of the file stay.

    Raises
    ------
    SegmentNotFound, SegmentPermission
    """
    try:
        posix_ipc.unlink_shared_memory(f"/{name}")
    except posix_ipc.ExistentialError:
        raise SegmentNotFound(f"there is no segment {name!r}: nothing to unlink") from None
    except (PermissionError, posix_ipc.PermissionsError):
        raise SegmentPermission(f"no permission to unlink segment {name!r}: its owner has to") from None


def segment_names() -> list[str]:
    """Names of all segments on this machine that this process may read, sorted; unfinished ones too."""
    names = []
    with suppress(FileNotFoundError), os.scandir(SHM_DIRECTORY) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False) and _starts_with_magic(entry.path):
                    names.append(entry.name)
    return sorted(names)


def _starts_with_magic(path: str) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, len(MAGIC), 0) == MAGIC
    finally:
        os.close(descriptor)


def map_file(file: LockFile, size: int, read_only: bool) -> mmap.mmap:
    """Map a file, shared; the mapping does without the descriptor.

    Raises
    ------
    SegmentCorrupt
        If the file has become shorter than `size` bytes.
    """
    access = mmap.PROT_READ if read_only else mmap.PROT_READ | mmap.PROT_WRITE
    try:
        if sys.version_info >= (3, 13):  # no second descriptor, whose number others could close and reuse
            return mmap.mmap(file.descriptor, size, mmap.MAP_SHARED, access, trackfd=False)
        return mmap.mmap(file.descriptor, size, mmap.MAP_SHARED, access)
    except ValueError as error:
        raise SegmentCorrupt(f"the file of the segment was truncated: {error}") from None
