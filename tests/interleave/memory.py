"""Memory of explored processes: an image of real memory, and what one process has read and written on top.

Words are int64, as in the kernels; addresses are those of the real memory that the image was taken of, so a
stray access is an error, as a real one would be a fault or a silent damage.
"""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Callable, Generator
from typing import Any

M32, M64, TOP = (1 << 32) - 1, (1 << 64) - 1, 1 << 63


class StrayAccess(AssertionError):
    """An access outside of the segment and of the process's own memory."""


class Image:
    """The content of some regions of memory at one moment.

    Parameters
    ----------
    regions : list of (int, int)
        Addresses and lengths in bytes, multiples of 8.
    """

    def __init__(self, regions: list[tuple[int, int]]) -> None:
        self._saved = [(at, ctypes.string_at(at, n)) for at, n in sorted(regions)]
        self._starts = [at for at, _ in self._saved]
        self._words = [memoryview(content).cast("q") for _, content in self._saved]

    def word(self, address: int) -> int:
        """The word at an address."""
        k = bisect.bisect_right(self._starts, address) - 1
        if k >= 0 and address & 7 == 0 and address > 0:
            i = (address - self._starts[k]) >> 3
            if i < len(self._words[k]):
                return self._words[k][i]
        raise StrayAccess(f"access to {address:#x}: nothing of the process is there")

    def again(self) -> Image:
        """The same regions as they are now."""
        return Image([(at, len(content)) for at, content in self._saved])

    def differences(self, other: Image) -> set[int]:
        """Words in which an image of the same regions differs."""
        found = set[int]()
        for start, mine, theirs in zip(self._starts, self._words, other._words, strict=True):
            if mine != theirs:
                found |= {start + 8 * k for k, (v, w) in enumerate(zip(mine, theirs, strict=True)) if v != w}
        return found

    def restore(self) -> None:
        """Put the content back where it was taken."""
        for at, content in self._saved:
            ctypes.memmove(at, content, len(content))


def half(word: int, address: int) -> int:
    """The 32 bits of a word that an address names."""
    return (word >> ((address & 4) << 3)) & M32


def with_half(word: int, address: int, value: int) -> int:
    """The word with the 32 bits that an address names set."""
    shift = (address & 4) << 3
    return signed((word & ~(M32 << shift)) | ((value & M32) << shift))


def signed(value: int) -> int:
    """An integer taken to 64 bits, two's complement."""
    return ((value + TOP) & M64) - TOP


class Memory(dict[int, int]):
    """What one run of a process sees beside the words that are yielded.

    Parameters
    ----------
    image : Image
        What was there before.
    note : callable
        Told (address, is it a write) when a word is first read, or written.

    Attributes
    ----------
    log : list of (int, int)
        Words written since it was last emptied, and their values.
    """

    __slots__ = ("_image", "_note", "_written", "log")

    def __init__(self, image: Image, note: Callable[[int, bool], None]) -> None:
        self._image, self._note = image, note
        self._written = set[int]()
        self.log: list[tuple[int, int]] = []

    def __missing__(self, address: int) -> int:
        value = self[address] = self._image.word(address)
        self._note(address, False)
        return value

    def keep(self, address: int, value: int) -> int:
        """Write a word of the process's own."""
        self[address] = value = ((value + TOP) & M64) - TOP
        self.log.append((address, value))
        return 0

    def put(self, address: int, value: int) -> int:
        """Write a word that others might touch."""
        if address not in self._written:
            if address not in self:
                self[address]  # is it there at all
            self._written.add(address)
            self._note(address, True)
        self[address] = value = ((value + TOP) & M64) - TOP
        self.log.append((address, value))
        return 0

    def put32(self, address: int, value: int) -> int:
        """Write half a word."""
        word = address & -8
        return self.put(word, with_half(self[word], address, value))

    def cas(self, address: int, old: int, new: int) -> int:
        """Compare and swap; 1 if it was done."""
        if self[address] != signed(old):
            return 0
        self.put(address, new)
        return 1

    def cas32(self, address: int, old: int, new: int) -> int:
        """Compare and swap of half a word."""
        if half(self[address & -8], address) != old & M32:
            return 0
        self.put32(address, new)
        return 1

    def add(self, address: int, value: int) -> int:
        """Fetch and add."""
        before = self[address]
        self.put(address, before + value)
        return before

    def and_(self, address: int, value: int) -> int:
        """And."""
        self.put(address, self[address] & value)
        return 0


# ------------------------------------------------------------------------------------------ words in Python
def _ctz(value: int) -> int:
    return (value & -value).bit_length() - 1


def _mulhi(x: int, y: int) -> int:
    return signed(((x & M64) * (y & M64)) >> 64)


def _ones(value: int) -> int:
    return (value & M64).bit_count()


#: Names that the rewritten kernels use.
HELPERS: dict[str, Any] = {"_half": half, "_ctz": _ctz, "_mulhi": _mulhi, "_ones": _ones}

Loads = Generator[tuple[Any, ...], int, Any]


def vector_operations(shared: set[int]) -> dict[str, Callable[..., Loads]]:
    """The operations of vectors.py, word by word in the order of addresses: what a vector load may be torn
    into. Loads of words in `shared` are yielded.
    """
    load, store = 0, 1  # transform.LOAD, transform.STORE

    def words(m: Memory, a: int, n: int, what: str) -> Loads:
        found = []
        for t in range(a, a + n * 8, 8):
            found.append((yield (load, t, 0, 0, what)) if t in shared else m[t])
        return found

    def halves(m: Memory, a: int, what: str) -> Loads:
        if a & 7:
            raise StrayAccess(f"{what} at {a:#x}")
        found = []
        for w in (yield from words(m, a, 8, what)):
            found += (w & M32, (w >> 32) & M32)
        return found

    def write(m: Memory, a: int, values: list[int], what: str) -> Loads:
        for t, value in zip(range(a, a + len(values) * 8, 8), values, strict=True):
            if t in shared:
                yield (store, t, value, 0, what)
            else:
                m.put(t, value)
        return 0

    def write_halves(m: Memory, a: int, values: list[int]) -> None:
        for k in range(8):  # depths: the process's own
            m.keep(a + k * 8, values[2 * k] | (values[2 * k + 1] << 32))

    def mask(bits: list[bool]) -> int:
        return sum(1 << k for k, bit in enumerate(bits) if bit)

    def ne8(m: Memory, a: int, q: int) -> Loads:
        x = yield from words(m, a, 8, "ne8")
        y = yield from words(m, q, 8, "ne8")
        return mask([v != w for v, w in zip(x, y, strict=True)])

    def eq8(m: Memory, a: int, select: int, value: int) -> Loads:
        found, bit, value = 0, 1, signed(value)
        for t in range(a, a + 64, 8):
            word = (yield (load, t, 0, 0, "eq8")) if t in shared else m[t]
            if word & select == value:
                found |= bit
            bit += bit
        return found

    def eq16(m: Memory, a: int, select: int, value: int) -> Loads:
        x = yield from halves(m, a, "eq16")
        return mask([w & select & M32 == value & M32 for w in x])

    def gt16(m: Memory, a: int, select: int, value: int) -> Loads:
        x = yield from halves(m, a, "gt16")
        return mask([w & select & M32 > value & M32 for w in x])

    def max16(m: Memory, a: int, select: int) -> Loads:
        x = yield from halves(m, a, "max16")
        return max(w & select & M32 for w in x)

    def largest(m: Memory, a: int, n: int) -> Loads:
        top = 0
        for k in range(0, n, 16):
            top = max(top, *(yield from halves(m, a + k * 4, "largest")))
        return top

    def max16_of(m: Memory, a: int, select: int, skip: int) -> Loads:
        x = yield from halves(m, a, "max16_of")
        y = yield from halves(m, select, "max16_of")
        return max(w & 0xFFF if s != 0 and w & skip & M32 == 0 else 0 for w, s in zip(x, y, strict=True))

    def covered(words_: list[int]) -> list[int]:
        return [w & 0xFFF if w & 0xFFF000 == 0 else 0 for w in words_]

    def dense_first(m: Memory, a: int, depth: int, matched: int, length: int) -> Loads:
        cut = covered((yield from halves(m, a, "dense_first")))
        write_halves(m, depth, [min(c, matched) for c in cut])
        return mask([c >= length for c in cut])

    def dense_next(m: Memory, a: int, depth: int, start: int, matched: int, length: int) -> Loads:
        cut = covered((yield from halves(m, a, "dense_next")))
        before = yield from halves(m, depth, "dense_next")
        alive = [d == start and c != 0 for c, d in zip(cut, before, strict=True)]
        rows = list(zip(cut, before, alive, strict=True))
        write_halves(m, depth, [start + min(c, matched) if on else d for c, d, on in rows])
        return mask([on and c >= length for c, _, on in rows])

    def clamp16(m: Memory, depth: int, limit: int) -> Loads:
        before = yield from halves(m, depth, "clamp16")
        write_halves(m, depth, [min(d, limit & M32) for d in before])
        return 0

    def pack8(m: Memory, to: int, source: int, chosen: int) -> Loads:
        x = yield from words(m, source, 8, "pack8")
        return (yield from write(m, to, [w for k, w in enumerate(x) if chosen >> k & 1], "pack8"))

    def zero_line(m: Memory, to: int) -> Loads:
        return (yield from write(m, to, [0] * 8, "zero_line"))

    def copy(m: Memory, to: int, source: int, n: int, what: str) -> Loads:
        if (to | source) & 7:  # depths, which only the process itself has
            for k in range(0, n * 8, 4):
                m.put32(to + k, half(m[(source + k) & -8], source + k))
            return 0
        return (yield from write(m, to, (yield from words(m, source, n, what)), what))

    def count16(m: Memory, to: int, first: int) -> Loads:
        for k in range(16):
            m.put32(to + k * 4, first + k)
        return 0
        yield

    def copy_line(m: Memory, to: int, source: int) -> Loads:
        return (yield from copy(m, to, source, 8, "copy_line"))

    def copy_record(m: Memory, to: int, source: int) -> Loads:
        return (yield from copy(m, to, source, 2, "copy_record"))

    return {
        f.__name__: f
        for f in (
            *(ne8, eq8, eq16, gt16, max16, max16_of, largest, dense_first, dense_next, clamp16),
            *(zero_line, copy_line, copy_record, count16, pack8),
        )
    }
