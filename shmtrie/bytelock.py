"""Byte-range locks that die with their holder, and the descriptors that carry them.

A lane's seat, the registration of ranks and the making of a segment are each guarded by one byte of the
segment's file, locked through an *open file description* (OFD lock). Such a lock conflicts with every other
description, in the same process too; it goes when the last descriptor of its description is closed, so at
the latest with the process; it knows no pids, so it works across pid namespaces. Classic POSIX locks would
be dropped by any unrelated close of the file in the process, and so are of no use here.

A forked child inherits the description and would keep the lock of its dead parent, so every descriptor that
may carry a lock is closed in the child. Nothing can be done for a child that a C extension makes by a raw
clone(2); children of the `subprocess` module let go at exec.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

__all__ = ["LockFile"]

_FLOCK: Final = struct.Struct("hhqqi0q")  # type, whence, start, length, pid
_HIGH: Final = 512  # lowest descriptor number that we ask for

# Held while a descriptor is opened and entered, and during fork: no child can inherit one that is not
# entered yet. Re-entrant, for a fork by a signal handler that interrupted an opening.
_opening = threading.RLock()
_carriers: dict[int, int] = {}  # descriptor -> mark, of those to be closed in a child
_forks = 0  # forks that led to this process since the module was loaded


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1
    try:
        # a copy, made in one step: a collection may run here and close files of its own accord
        for descriptor, mark in _carriers.copy().items():
            if _mark_of(descriptor) == mark:
                with suppress(OSError):
                    os.close(descriptor)
    finally:
        _carriers.clear()
        _opening.release()


os.register_at_fork(
    before=_opening.acquire,
    after_in_parent=_opening.release,
    after_in_child=_after_fork_in_child,
)


def _mark_of(descriptor: int) -> int:
    """The file offset of a descriptor; -1 when it is closed or has none."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:
        return -1


def _control(descriptor: int, command: int, kind: int, byte: int) -> bytes:
    return fcntl.fcntl(descriptor, command, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))


def _raised(descriptor: int) -> int:
    """Move a descriptor out of the range that daemons close and that ``dup2`` aims at."""
    for lowest in (_HIGH, 128, 32):
        try:
            high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:  # beyond RLIMIT_NOFILE
            continue
        os.close(descriptor)
        return high
    return descriptor


class LockFile:
    """One open file description of a segment's file, for locks or for asking about locks.

    Parameters
    ----------
    opener : callable
        Opens the file and returns the new descriptor, which this object takes over. It must be the only
        descriptor of its description.
    carries_locks : bool
        Whether the descriptor is closed in a forked child. False for one that only asks.

    Notes
    -----
    The description's file offset, which nothing else here uses, is set to a random number. Reading it back
    tells at 0.2 us whether the descriptor is still ours: a closed one has no offset, and a number that was
    opened anew has another one, even when it is the same file again.
    """

    def __init__(self, opener: Callable[[], int], carries_locks: bool = True) -> None:
        self._forks = _forks
        with _opening:
            self.descriptor = _raised(opener())
            self._mark = (1 << 61) + secrets.randbits(61)
            os.lseek(self.descriptor, self._mark, os.SEEK_SET)
            if carries_locks:
                _carriers[self.descriptor] = self._mark
        status = os.fstat(self.descriptor)
        self.identity = (status.st_dev, status.st_ino)

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the one that opened the file."""
        return self._forks != _forks

    @property
    def mark(self) -> int:
        """The file offset by which the descriptor is known."""
        return self._mark

    def is_intact(self) -> bool:
        """Whether the descriptor is open and still the one that this object opened."""
        return self.descriptor >= 0 and _mark_of(self.descriptor) == self._mark

    def try_lock(self, byte: int) -> bool:
        """Lock a byte for this description; False when another one has it. Needs a writable descriptor."""
        try:
            _control(self.descriptor, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, byte)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, POSIX leaves it open which
            return False
        return True

    def unlock(self, byte: int) -> None:
        """Unlock a byte of this description; nothing happens when it is not locked."""
        _control(self.descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, byte)

    def is_locked_elsewhere(self, byte: int) -> bool:
        """Whether another description holds the byte; works on a read-only descriptor."""
        answer = _control(self.descriptor, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, byte)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def set_carrying(self, carries_locks: bool) -> None:
        """Whether a forked child closes the descriptor from now on; True before a lock is taken."""
        with _opening:
            if carries_locks:
                _carriers[self.descriptor] = self._mark
            else:
                _carriers.pop(self.descriptor, None)

    def open_again(self, path: str) -> LockFile | None:
        """Open the same file once more, for reading, writing and locks of its own.

        Parameters
        ----------
        path : str
            Where the file was; tried when the descriptor is not intact or there is no /proc.

        Returns
        -------
        LockFile or None
            None when the file can no longer be reached.

        Raises
        ------
        PermissionError
        """
        own = (
            [f"/proc/self/fd/{self.descriptor}"] if self.is_intact() else []
        )  # works for unlinked files, too
        for way in (*own, path):
            try:
                file = LockFile(partial(os.open, way, os.O_RDWR | os.O_CLOEXEC))
            except FileNotFoundError:
                continue
            if file.identity == self.identity:
                return file
            file.close()
        return None

    def close(self, locked: int | None = None) -> None:
        """Close the descriptor, which ends its locks; idempotent, and never closes what is not ours.

        Parameters
        ----------
        locked : int, optional
            A byte to unlock first: a child of `subprocess` has a copy of the descriptor until its exec.
        """
        with _opening:
            descriptor, self.descriptor = self.descriptor, -1
            if descriptor < 0:
                return
            if _carriers.get(descriptor) == self._mark:
                del _carriers[descriptor]
            if _mark_of(descriptor) != self._mark:
                return
            try:
                if locked is not None:
                    _control(descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, locked)
            finally:
                os.close(descriptor)

    @contextmanager
    def closing_on_error(self) -> Iterator[None]:
        """Close when the body raises, and only then."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        # A seat that nobody closed frees its lock here; its record still says ACTIVE, so it counts as dead.
        if getattr(self, "descriptor", -1) >= 0:
            with suppress(Exception):
                self.close()
