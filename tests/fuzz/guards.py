"""Guard pages around everything that kernels may touch, and the other side of ``shmtrie.addresses``.

A segment's sections are mapped each into a window of address space of its own, with hundreds of gigabytes of
PROT_NONE before and behind: more than any 32-bit number times the size of an item can bridge, so a number
that was not compared with the size of its section ends in a segmentation fault, in any build. The private
areas of contexts, checks and dumps come from an arena where each ends before a page that nobody may touch.
The checked build knows the exact ends of both and records instead of dying.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from typing import Any

import numpy as np

import shmtrie.contexts
import shmtrie.dump
import shmtrie.queries
import shmtrie.stats
import shmtrie.tables
import shmtrie.verify
import shmtrie.writer
from shmtrie import addresses
from shmtrie.bytelock import LockFile
from shmtrie.header import Header
from shmtrie.layout import LINE, PAGE, SECTIONS
from shmtrie.segment import Segment

WINDOW = 1 << addresses.WINDOW_SHIFT
HALF = WINDOW // 2  # a section begins in the middle of its window
ARENA = 1 << 28
NOTHING = (1 << 62, 0)
_BY_SLOT = ("rank_records", "rank_states")
_NORESERVE, _FIXED, _DONTNEED = 0x4000, 0x10, 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _reserve(n_bytes: int) -> int:
    address = _libc.mmap(None, n_bytes, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"no {n_bytes} bytes of address space to reserve")
    return int(address)


class Guards:
    """The windows and the arena of this process; one of them is enough.

    Attributes
    ----------
    table : ndarray of int64
        The table of the checked build; in another build nobody reads it.
    """

    def __init__(self) -> None:
        self._windows = _reserve(addresses.MAX_WINDOWS * WINDOW)
        self._arena = _reserve(ARENA)
        self._next = 0  # page of the arena
        if addresses.CHECKED:  # the table says more than pages could, and costs no system calls
            _libc.mprotect(self._arena, ARENA, mmap.PROT_READ | mmap.PROT_WRITE)
        self._sink = mmap.mmap(-1, PAGE)
        memory = addresses.table if addresses.CHECKED else (ctypes.c_int64 * addresses.TABLE_WORDS)()
        self.table = np.frombuffer(memory, np.int64)
        self._pages = np.empty((ARENA // PAGE, 2), np.int64)
        self._pages[:] = NOTHING
        limits = self.table[addresses.A_LIMITS : addresses.A_RECORDS].reshape(-1, 2)
        limits[:] = NOTHING
        self._limits = limits
        words = {
            addresses.A_SINK: np.frombuffer(self._sink, np.uint8).ctypes.data + LINE,
            addresses.A_N_WINDOWS: addresses.MAX_WINDOWS,
            addresses.A_ARENA: self._arena,
            addresses.A_ARENA_BYTES: ARENA,
            addresses.A_PAGES: self._pages.ctypes.data,
            addresses.A_WINDOWS: self._windows,
        }
        for index, value in words.items():
            self.table[index] = value

    # ------------------------------------------------------------------------------------------ segments
    def map(self, segment: Segment, descriptor: int, read_only: bool) -> dict[str, int]:
        """Map the sections into windows, those for reading behind those for writing: their addresses."""
        places = {"header": (0, PAGE, PAGE)}
        for name in SECTIONS:
            place = segment._sections[name]
            # u32 items, and slots, are looked at sixteen at a time: the rest of the last ones, always on the
            # same page, may be read
            n_items = -(-place.n_items // 16) * 16 if name in _BY_SLOT else place.n_items
            size = -(-n_items * place.itemsize // LINE) * LINE
            places[name] = (place.offset, size, -(-size // PAGE) * PAGE)
        prot = mmap.PROT_READ | (0 if read_only else mmap.PROT_WRITE)
        found = {}
        for k, (name, (offset, size, mapped)) in enumerate(places.items()):
            window = k + (addresses.MAX_WINDOWS // 2 if read_only else 0)
            base = self._windows + window * WINDOW
            address = base + HALF
            _libc.mmap(base, WINDOW, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE | _FIXED, -1, 0)
            got = _libc.mmap(address, mapped, prot, mmap.MAP_SHARED | _FIXED, descriptor, offset)
            assert got == address, ctypes.get_errno()
            self._limits[window] = address, address + size
            found[name] = address
        return found

    # ------------------------------------------------------------------------------------------ private areas
    def allocate(self, n_bytes: int) -> tuple[Any, int]:
        """Zeroed memory on a line of its own that ends right before a page nobody may touch."""
        pages = max(1, -(-n_bytes // PAGE))
        first = self._arena + self._next * PAGE
        assert self._next + pages < ARENA // PAGE, "the arena is full"
        if not addresses.CHECKED:
            _libc.mprotect(first, pages * PAGE, mmap.PROT_READ | mmap.PROT_WRITE)
        address = (first + pages * PAGE - n_bytes) & ~(LINE - 1)
        self._pages[self._next : self._next + pages] = address, address + n_bytes
        self._next += pages + 1
        return np.frombuffer((ctypes.c_uint8 * n_bytes).from_address(address), np.uint8), address

    def array(self, shape: Any, dtype: Any) -> Any:
        """A zeroed array in the arena."""
        kind = np.dtype(dtype)
        n_bytes = (math.prod(shape) if isinstance(shape, tuple) else int(shape)) * kind.itemsize
        if n_bytes == 0:
            return np.zeros(shape, dtype)
        return self.allocate(n_bytes)[0].view(kind).reshape(shape)

    def reset(self) -> None:
        """Let all areas go; nobody may use them any more."""
        _libc.madvise(self._arena, self._next * PAGE, _DONTNEED)
        if not addresses.CHECKED:
            _libc.mprotect(self._arena, self._next * PAGE, 0)
        self._pages[: self._next] = NOTHING
        self._next = 0

    # ------------------------------------------------------------------------------------------ findings
    def found(self) -> list[str]:
        """What the checked build has recorded since the last call."""
        n = int(self.table[addresses.A_FOUND])
        if n == 0:
            return []
        rows = self.table[addresses.A_RECORDS :].reshape(-1, 3)[: min(n, addresses.MAX_RECORDS)]
        self.table[addresses.A_FOUND] = 0
        names = [(ctypes.string_at(int(row[2])).decode(), self._where(int(row[0]))) for row in rows]
        return [f"{_short(name)}: {where}" for name, where in names]

    def _where(self, address: int) -> str:
        at = address - self._windows
        if 0 <= at < addresses.MAX_WINDOWS * WINDOW:
            window, inside = divmod(at, WINDOW)
            low, high = (int(x) for x in self._limits[window])
            name = ("header", *SECTIONS)[window % (addresses.MAX_WINDOWS // 2)]
            return f"{name}{inside - HALF:+d} of {high - low}"
        at = address - self._arena
        if 0 <= at < ARENA:
            return f"private area, page {at // PAGE} of the arena"
        return hex(address & (2**64 - 1))


def _short(name: str) -> str:
    """The readable part of numba's name of a function: module and function."""
    part = name.partition("shmtrie")[2]
    words, i = [], 0
    while i < len(part) and part[i].isdigit():
        j = i
        while j < len(part) and part[j].isdigit():
            j += 1
        n = int(part[i:j])
        words.append(part[j : j + n])
        i = j + n
    return ".".join(words[1:]) or name[:80]


class _Numpy:
    """numpy, but new arrays come from the arena."""

    def __init__(self, guards: Guards) -> None:
        self._guards = guards

    def zeros(self, shape: Any, dtype: Any = float) -> Any:
        return self._guards.array(shape, dtype)

    empty = zeros

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def install(guards: Guards) -> None:
    """Let the package's private areas come from the arena, in this process."""
    shmtrie.contexts.aligned = shmtrie.tables.aligned = guards.allocate
    shim: Any = _Numpy(guards)
    for module in (shmtrie.dump, shmtrie.queries, shmtrie.stats, shmtrie.verify, shmtrie.writer):
        module.np = shim  # type: ignore[attr-defined]


class GuardedSegment(Segment):
    """A segment whose kernels see it in windows; arrays of it are over the usual mapping of the same file."""

    guards: Guards

    def __init__(self, name: str, file: LockFile, header: Header, read_only: bool) -> None:
        super().__init__(name, file, header, read_only)
        self._places = self.guards.map(self, self._file.descriptor, read_only)

    @property
    def base(self) -> int:
        """Address of the header's window."""
        return self._places["header"]

    def section_address(self, section: str) -> int:
        """Address of the first item of a section in its window."""
        return self._places[section]
