"""A new segment in the place of an old one, under the same name: how `resize` and `rebuild` change hands.

The successor is made under a name of its own (`successor_name`), with the creator's lock held and `ready` not
stored, so that what a death leaves is recognised, and replaced by the next one. When it is full it takes the
name by one rename. Until then the old one is in force; afterwards it has no name, and is retired.

Who makes a successor holds LOCK_SUCCESSION of the old file. `retired` is SUCCEEDING while writers have to
keep still: a mark that nobody holds the lock for was left by a dead process, and is void as long as the
segment has its name. The successor carries it as well, for the moment between `ready` and its name: a file
under the successor's name that is ready, so marked, and not locked has lost its maker, too.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final, Self

from .bytelock import LockFile
from .creation import Stage, begin_file, make_ready, remove_dead, settle
from .errors import Busy, SegmentExists, SegmentNotFound, SegmentPermission, SegmentRetired
from .header import Header, is_readable_layout
from .layout import H_READY, H_RETIRED, LOCK_CREATOR, LOCK_SUCCESSION, RETIRED, SUCCEEDING
from .segment import Segment
from .shmfile import (
    is_named,
    lock_or_give_up,
    open_file,
    read_page,
    segment_path,
    successor_name,
    unlink_name,
    valid_name,
)

__all__ = ["Succession", "remove_leftover", "require_in_force", "take_back"]

_WAIT: Final = 1.0  # seconds for others who hold the lock: some hold it for a moment only
_ATTEMPTS: Final = 10
_MARK: Final = SUCCEEDING.to_bytes(8, "little")


# ------------------------------------------------------------------------------------------------ writers
def require_in_force(segment: Segment, wait: float = 0.0) -> None:
    """Raise unless writers may go on; a mark of a resizer that died is taken back.

    Parameters
    ----------
    segment : Segment
        Attached for writing.
    wait : float
        Seconds to wait while it is being resized.

    Raises
    ------
    SegmentRetired
        Also while it is being resized: what follows has to be written to its successor.
    """
    deadline, pause = time.monotonic() + wait, 0.0005
    while word := int(segment.header["retired"]):
        if word != SUCCEEDING or not segment.named:
            raise SegmentRetired(f"segment {segment.name!r} is retired: attach anew")
        if take_back(segment):
            return
        if time.monotonic() >= deadline:
            raise SegmentRetired(
                f"segment {segment.name!r} is being resized: attach anew in a moment; if it goes on, look "
                f"for a stopped process"
            )
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


def take_back(segment: Segment) -> bool:
    """Take back the mark that a dead resizer left; whether the segment is in force now, through this call."""
    if int(segment.header["retired"]) != SUCCEEDING:
        return False
    try:
        file = segment.open_lock_file()
    except SegmentRetired:
        return False
    try:
        if not file.try_lock(LOCK_SUCCESSION):
            return False
        # under the lock: nobody makes a successor, and none has come into the name
        if int(segment.header["retired"]) != SUCCEEDING or not segment.named:
            return False
        segment.header["retired"] = 0
        return True
    finally:
        file.close(LOCK_SUCCESSION)


# ------------------------------------------------------------------------------------------------ successors
class Succession:
    """The right to make the successor of the segment under a name; a context manager.

    Parameters
    ----------
    name : str
        With or without the leading slash.
    identity : (int, int), optional
        Device and inode of the segment that is meant; whatever has the name by default.
    wait : float, optional
        Seconds to wait for others who hold the right; 1 by default.

    Attributes
    ----------
    page : bytes
        First page of the old file.

    Raises
    ------
    Busy
        If another process is at it.
    SegmentRetired
        If another segment has the name by now.
    SegmentNotFound, SegmentPermission, SegmentCorrupt, TypeError, ValueError
    """

    def __init__(self, name: str, identity: tuple[int, int] | None = None, wait: float | None = None) -> None:
        self.name = valid_name(name)
        self._old = _locked(self.name, identity, _WAIT if wait is None else wait)
        self._new: Segment | None = None
        self._file: LockFile | None = None  # of the new one, holding its creator's lock
        self._marked = False  # the old one, by us
        self.page = read_page(self._old)

    def make(self, header: Header) -> Segment:
        """Reserve the successor; it is empty, and nobody can attach to it yet.

        Raises
        ------
        SegmentExists
            If something else has the successor's name.
        SegmentNoSpace, SegmentPermission
        """
        name, was = successor_name(self.name), os.fstat(self._old.descriptor)
        _remove_leftover(name)
        for _ in range(_ATTEMPTS):
            file = begin_file(name, header, was.st_mode & 0o777)
            if file is not None:
                self._file = file
                # root may do this for somebody else, whose processes have to attach to it
                with suppress(PermissionError):
                    os.fchown(file.descriptor, was.st_uid, was.st_gid)
                self._new = Segment(name, file, header, read_only=False)
                return self._new
            with suppress(SegmentNotFound):
                file, stage = settle(name, True, 0.0)
                if stage is Stage.DEAD:
                    remove_dead(file, name)
                else:
                    file.close()
        raise SegmentExists(f"the successor of segment {self.name!r} needs the name {name!r}: unlink that")

    def mark(self) -> None:
        """Tell the old one's writers to keep still; `close` takes that back unless they were replaced."""
        self._marked = True
        self._mark_old(SUCCEEDING)

    def hand_over(self) -> None:
        """Let the successor, which is complete, have the name; the old one is retired.

        Raises
        ------
        SegmentRetired
            If the old one was unlinked or replaced meanwhile; the successor is dropped then.
        """
        assert self._new is not None and self._file is not None
        self._old.set_carrying(True)
        lock_or_give_up(self._old)  # names are taken by holders of the creator's lock
        if not is_named(self._old.identity, self.name):
            raise _replaced(self.name)
        self.mark()
        if not self._file.try_lock(LOCK_SUCCESSION):
            raise Busy(f"the successor of segment {self.name!r} is locked by another process: try again")
        self._mark_new(SUCCEEDING)
        make_ready(self._file)
        try:
            os.rename(segment_path(self._new.name), segment_path(self.name))
        except PermissionError:
            raise SegmentPermission(
                f"no permission to replace segment {self.name!r}: its owner has to"
            ) from None
        self._new.name = self.name
        self._settle()

    def _mark_old(self, value: int) -> None:
        if is_readable_layout(self.page):
            os.pwrite(self._old.descriptor, value.to_bytes(8, "little"), H_RETIRED)

    def _mark_new(self, value: int) -> None:
        assert self._new is not None
        self._new.header["retired"] = value

    def _settle(self) -> None:
        """Say of both what has become of them: by who has the name."""
        if not self._marked:
            return
        if self._new is not None and is_named(self._new.identity, self.name):
            self._mark_old(RETIRED)
            self._mark_new(0)
        elif is_named(self._old.identity, self.name):
            # one that an unlink marked, and then died, stays retired
            before = self.page[H_RETIRED : H_RETIRED + 8]
            self._mark_old(0 if before == _MARK else int.from_bytes(before, "little"))
        else:
            self._mark_old(RETIRED)

    def close(self) -> None:
        """Give the right back; a successor that has not got the name is dropped."""
        try:
            self._settle()
            if self._file is not None and is_named(self._file.identity, successor_name(self.name)):
                with suppress(SegmentNotFound, SegmentPermission):
                    unlink_name(successor_name(self.name))
        finally:
            if self._file is not None:
                # not by closing alone: a child that is about to exec may have a copy of the descriptor
                self._file.unlock(LOCK_SUCCESSION)
                self._file.close(LOCK_CREATOR)
            if self._new is not None:
                self._new.close()
            self._old.unlock(LOCK_CREATOR)
            self._old.close(LOCK_SUCCESSION)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def remove_leftover(name: str) -> bool:
    """Remove what a dead process left of a successor; whether there was something.

    Parameters
    ----------
    name : str
        Of the old segment, without the leading slash.

    Raises
    ------
    SegmentPermission
        If it belongs to somebody else.
    SegmentNotFound
        If there is no old segment.
    """
    if not os.path.lexists(segment_path(successor_name(name))):
        return False
    try:
        with Succession(name, wait=0.0):
            return _remove_leftover(successor_name(name))
    except (Busy, SegmentRetired):  # somebody is at it
        return False


def _remove_leftover(successor: str) -> bool:
    """The same for who has the right to make a successor."""
    try:
        file = open_file(successor, True)
    except SegmentNotFound:
        return False
    file.set_carrying(True)
    try:
        # a maker holds the creator's lock until the very end
        if not file.try_lock(LOCK_CREATOR) or not file.try_lock(LOCK_SUCCESSION):
            return False
        page = read_page(file)
        is_unready = is_readable_layout(page) and page[H_READY : H_READY + 8] == bytes(8)
        is_ready = is_readable_layout(page) and page[H_RETIRED : H_RETIRED + 8] == _MARK
        if (page and not is_unready and not is_ready) or not is_named(file.identity, successor):
            return False
        unlink_name(successor)
        return True
    finally:
        file.close()


def _locked(name: str, identity: tuple[int, int] | None, wait: float) -> LockFile:
    """The file under a name, with the right to make its successor."""
    deadline = time.monotonic() + wait
    while True:
        try:
            file = open_file(name, True)
        except SegmentNotFound:
            if identity is not None:
                raise _replaced(name) from None
            raise
        with file.closing_on_error():
            if identity is not None and file.identity != identity:
                raise _replaced(name)
            file.set_carrying(True)
            while not file.try_lock(LOCK_SUCCESSION):
                if time.monotonic() >= deadline:
                    raise Busy(
                        f"segment {name!r} is being resized or rebuilt by another process: wait for that"
                    )
                time.sleep(0.002)
            if is_named(file.identity, name):
                return file
        file.close()  # replaced while we waited


def _replaced(name: str) -> SegmentRetired:
    return SegmentRetired(f"segment {name!r} was unlinked or replaced meanwhile: attach anew")
