"""Logs in memory that forked processes share: what a process has written is there when it is killed."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
_ROWS, _BYTES, _HEAD = 0, 1, 8


def shared_words(n: int) -> memoryview:
    """Zeroed 64-bit words of this process and of all that it forks; freed with the last of them."""
    return memoryview(mmap.mmap(-1, 8 * n)).cast("q")


class Journal:
    """Rows of 64-bit words, and byte strings that rows name, one writer at a time.

    A row counts once it is whole. Words of it may be set later; a writer that dies in between leaves all that
    it has set before.

    Parameters
    ----------
    width : int
        Words of a row.
    rows, n_bytes : int
        Room.
    """

    def __init__(self, width: int, rows: int, n_bytes: int = 0) -> None:
        self.width, self._room, self._n_bytes = width, rows, n_bytes
        self._words = shared_words(_HEAD + width * rows + -(-n_bytes // 8))
        self._bytes = self._words.cast("B")
        self._bytes_at = 8 * (_HEAD + width * rows)

    def __len__(self) -> int:
        return self._words[_ROWS]

    @property
    def is_full(self) -> bool:
        """Whether there is hardly any room left."""
        bytes_left = self._n_bytes - self._words[_BYTES]
        return self._words[_ROWS] + 100 > self._room or bytes_left < self._n_bytes // 8

    def add(self, *values: int) -> int:
        """Append a row; its number."""
        words, row = self._words, self._words[_ROWS]
        if row >= self._room:
            raise OverflowError("a journal is full")
        at = _HEAD + row * self.width
        for value in values:
            words[at] = value
            at += 1
        words[_ROWS] = row + 1  # last: now it counts
        return row

    def set(self, row: int, column: int, value: int) -> None:
        """Change a word of a row."""
        self._words[_HEAD + row * self.width + column] = value

    def get(self, row: int, column: int) -> int:
        """A word of a row."""
        return self._words[_HEAD + row * self.width + column]

    def keep(self, text: bytes) -> int:
        """Append a byte string; the name by which `text` finds it."""
        name = self._words[_BYTES]
        if name + 8 + len(text) > self._n_bytes:
            raise OverflowError("a journal has no room for more bytes")
        at = self._bytes_at + name
        self._bytes[at : at + 8] = len(text).to_bytes(8, "little")
        self._bytes[at + 8 : at + 8 + len(text)] = text
        self._words[_BYTES] = name + 8 + -(-len(text) // 8) * 8
        return name

    def text(self, name: int) -> bytes:
        """A byte string."""
        at = self._bytes_at + name
        size = int.from_bytes(self._bytes[at : at + 8], "little")
        return bytes(self._bytes[at + 8 : at + 8 + size])

    def rows(self) -> Rows:
        """A copy of all rows, shape (n, width)."""
        n = len(self)
        flat = np.frombuffer(self._words[_HEAD : _HEAD + n * self.width], np.int64)
        return flat.reshape(n, self.width).copy()

    def clear(self) -> None:
        """Forget everything; nobody may be writing."""
        self._words[_ROWS] = self._words[_BYTES] = 0
