"""A segment as one process sees it: the mapping, its sections as arrays, and its name.

`Segment` knows where things are, not what they mean: kernels get addresses from it, the handles get arrays.
Making and finding the file is in `creation`, the header page in `header`.
"""

from __future__ import annotations

import mmap
import operator
import time
from contextlib import suppress
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from .bytelock import LockFile
from .capacity import SECTION_DTYPES, Capacity
from .creation import find, make
from .errors import SegmentNotFound, SegmentPermission, SegmentRetired, StaleHandle
from .header import Header, check_stamps
from .layout import HEADER, SUCCEEDING
from .shmfile import is_named, map_file, open_file, remove, segment_names, segment_path, valid_name
from .stamps import require

__all__ = ["Segment"]

_Names = list[str]  # inside the class, `list` is the method


class Segment:
    """A mapped segment; made by `create` and `attach`.

    Notes
    -----
    A forked child may go on using it. The mapping lives until the handle is closed *and* no array made by
    `view` is left. Shrinking the file under a mapping makes any access a SIGBUS; nothing can prevent that.
    """

    def __init__(self, name: str, file: LockFile, header: Header, read_only: bool) -> None:
        self.name = name  # without the leading slash
        self.read_only = read_only  # mapped with PROT_READ: no code of this process can write it
        self.uuid: UUID = header.uuid  # of this creation
        self.capacity = header.capacity  # resolved
        self.block_size = header.block_size  # tokens a block; None: the creator gave none
        self.model = header.model
        self.exact_holes = header.exact_holes
        self.seed = header.seed  # of the child table's hash, 1 <= seed < 2**63
        self.total_bytes = header.geometry.total_bytes
        self.identity = file.identity  # device and inode
        self._sections = header.geometry.sections
        self._file = file  # to ask about locks, and to open the same file again when the name is gone
        self._mapping: mmap.mmap | None = map_file(file, self.total_bytes, read_only)
        self._base = int(np.frombuffer(self._mapping, np.uint8).ctypes.data)
        self._header = np.ndarray((), HEADER, self._mapping)
        self._views: dict[str, npt.NDArray[Any]] = {}
        self.open_word = np.ones(1, np.int64)  # 0 when closed: for who has no time to ask

    # ------------------------------------------------------------------------------------------ make, find
    @classmethod
    def create(
        cls,
        name: str,
        capacity: Capacity | None = None,
        block_size: int | None = None,
        model: str | None = None,
        exact_holes: bool = False,
        exist_ok: bool = False,
        mode: int = 0o600,
        timeout: float = 5.0,
    ) -> Segment:
        """Make a segment and reserve all of its memory.

        Parameters
        ----------
        name : str
            POSIX name, with or without the leading slash.
        capacity : Capacity, optional
            Default ``Capacity()``.
        block_size : int, optional
            Tokens a block, a stamp that attachers can ask for; 1 <= block_size < 2**32.
        model : str, optional
            Another stamp, up to 256 bytes of UTF-8.
        exact_holes : bool
            Keep what is behind a removed block.
        exist_ok : bool
            Attach to a segment that exists, for writing, if it is at least as large in every field and has
            the stamps given. What is None is not compared.
        mode : int
            Permission bits, independent of the umask; the owner's rw included.
        timeout : float
            Seconds to wait for another creator when `exist_ok`.

        Returns
        -------
        Segment
            Mapped for reading and writing.

        Raises
        ------
        SegmentExists
            If the name is taken; the half-made file of a dead creator is replaced, not reported.
        SegmentIncompatible, SegmentCorrupt, SegmentNotFound
            With `exist_ok`: if the existing one differs, is damaged, or is not ready in time.
        SegmentNoSpace, SegmentPermission
            Nothing is left in shared memory.
        TypeError, ValueError
        """
        bare = valid_name(name)
        if capacity is not None and not isinstance(capacity, Capacity):
            raise TypeError(f"capacity must be a Capacity, got {type(capacity).__name__}")
        header = Header.new(capacity or Capacity(), block_size, model, exact_holes)
        bits = operator.index(mode)
        if bits & ~0o777 or bits & 0o600 != 0o600:
            raise ValueError(f"mode must be permission bits with the owner's rw, got {bits:#o}")
        deadline = time.monotonic() + timeout
        while True:
            file = make(bare, header, bits, deadline, exist_ok)
            if file is not None:
                return cls._mapped(bare, file, header, read_only=False)
            try:
                file, found = find(bare, True, deadline)
            except SegmentNotFound:  # unlinked since we saw it
                if time.monotonic() <= deadline:
                    continue
                raise
            with file.closing_on_error():
                wanted = None if capacity is None else header.capacity
                require(found, bare, block_size, model, bool(exact_holes), wanted)
            return cls._mapped(bare, file, found, read_only=False)

    @classmethod
    def attach(
        cls,
        name: str,
        read_only: bool = True,
        timeout: float = 5.0,
        block_size: int | None = None,
        model: str | None = None,
    ) -> Segment:
        """Map a segment that exists.

        Parameters
        ----------
        name : str
            With or without the leading slash.
        read_only : bool
            Map with PROT_READ. Writers need False.
        timeout : float
            Seconds to wait for a creation in progress; a name that nobody has is an error at once.
        block_size, model : optional
            What the segment must be stamped with; not compared when None.

        Returns
        -------
        Segment

        Raises
        ------
        SegmentNotFound
            If there is none of that name, or it is not ready in time.
        SegmentCorrupt
            If its creator died half-way, or it is damaged, or no segment.
        SegmentIncompatible
            If it has another layout, another stamp than given, or is left from before a reboot.
        SegmentPermission
        TypeError, ValueError
        """
        bare = valid_name(name)
        check_stamps(block_size, model)
        file, header = find(bare, not read_only, time.monotonic() + timeout)
        with file.closing_on_error():
            require(header, bare, block_size, model)
        return cls._mapped(bare, file, header, read_only)

    @classmethod
    def _mapped(cls, name: str, file: LockFile, header: Header, read_only: bool) -> Segment:
        with file.closing_on_error():
            return cls(name, file, header, read_only)

    @staticmethod
    def list() -> _Names:
        """Names of all segments that this process may read, sorted; those not finished included."""
        return segment_names()

    @staticmethod
    def unlink(name: str) -> None:
        """Mark a segment as retired and remove its name; who has it mapped keeps it.

        Raises
        ------
        SegmentNotFound, SegmentPermission, TypeError, ValueError
        SegmentCorrupt
            If the name is that of no regular file.
        """
        remove(valid_name(name))

    # ------------------------------------------------------------------------------------------ contents
    @property
    def header(self) -> npt.NDArray[Any]:
        """The header as an array of shape () and dtype `layout.HEADER`; not writeable when read-only."""
        self._check_open()
        return self._header

    @property
    def base(self) -> int:
        """Address of the mapping in this process; valid while `mapping` or an array of it is held."""
        self._check_open()
        return self._base

    @property
    def mapping(self) -> mmap.mmap:
        """The object that keeps the mapping alive, for who uses addresses; do not close it."""
        self._check_open()
        assert self._mapping is not None
        return self._mapping

    def view(self, section: str) -> npt.NDArray[Any]:
        """A section as an array over the shared memory, not writeable when read-only.

        Parameters
        ----------
        section : str
            One of `layout.SECTIONS`.

        Returns
        -------
        ndarray
            Records of `layout` by item; node_claims and line_claims: uint32; children and extents: uint64,
            shape (lines, 8). Item n - 1 of line_claims and extents belongs to line number n.

        Raises
        ------
        KeyError, StaleHandle
        """
        self._check_open()
        if section not in self._views:
            place = self._sections[section]
            self._views[section] = np.frombuffer(
                self.mapping, SECTION_DTYPES[section], place.n_items, place.offset
            )
        return self._views[section]

    def section_address(self, section: str) -> int:
        """Address of the first item of a section in this process."""
        return self.base + self._sections[section].offset

    def section_count(self, section: str) -> int:
        """Number of items of a section."""
        return self._sections[section].n_items

    # ------------------------------------------------------------------------------------------ name
    @property
    def path(self) -> str:
        """The file, as long as the segment has its name."""
        return segment_path(self.name)

    @property
    def named(self) -> bool:
        """Whether the name still leads to this segment; one stat call."""
        return is_named(self.identity, self.name)

    @property
    def retired(self) -> bool:
        """Whether the segment is marked as retired for good, or the name is gone or belongs to another one.

        One that is being resized is not: its successor may never come.
        """
        return int(self.header["retired"]) not in (0, SUCCEEDING) or not self.named

    # ------------------------------------------------------------------------------------------ locks
    def open_lock_file(self) -> LockFile:
        """Open the segment's file anew for a holder of locks; works when the name is gone, too.

        Raises
        ------
        SegmentPermission
            If the process may not write the file.
        SegmentRetired
            If the file can no longer be reached: the name is gone, and so is our descriptor.
        """
        self._check_open()
        try:
            file = self._file.open_again(self.path)
        except PermissionError:
            raise SegmentPermission(f"no permission to write segment {self.name!r}") from None
        if file is None:
            raise SegmentRetired(f"segment {self.name!r} was unlinked or replaced: attach anew")
        return file

    def is_locked(self, byte: int) -> bool:
        """Whether any process holds the lock on a byte of the file; works read-only.

        Raises SegmentRetired as `open_lock_file` does.
        """
        self._check_open()
        if not self._file.is_intact():  # closed by other code of this process
            with suppress(SegmentNotFound):
                self._file = open_file(self.name, write=False)
        if self._file.identity != self.identity or not self._file.is_intact():
            raise SegmentRetired(f"segment {self.name!r} was unlinked or replaced: attach anew")
        return self._file.is_locked_elsewhere(byte)

    # ------------------------------------------------------------------------------------------ end
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._mapping is None

    def close(self) -> None:
        """Let the mapping go; idempotent. Arrays made before stay valid and keep the memory mapped."""
        self.open_word[0] = 0
        self._views.clear()
        self._header = np.zeros((), HEADER)
        # Not mmap.close(): that fails while an array is left. The last reference unmaps.
        self._mapping = None
        with suppress(OSError):
            self._file.close()

    def _check_open(self) -> None:
        if self._mapping is None:
            raise StaleHandle(f"the handle of segment {self.name!r} was closed: attach anew")

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "read-only" if self.read_only else "read-write"
        return f"<Segment {self.name!r} {state}, {self.total_bytes} bytes, uuid {self.uuid}>"
