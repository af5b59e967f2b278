"""Private open-addressing tables that grow between two kernel calls: parts of the lookup, and the aliases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .layout import LINE

__all__ = ["Table", "aligned"]

ADDRESS, MASK, USED, TOMBS = range(4)  # words of a table


def aligned(n_bytes: int) -> tuple[npt.NDArray[Any], int]:
    """Zeroed memory on a line of its own: (owner, address)."""
    owner = np.zeros(n_bytes + LINE, np.uint8)
    return owner, (owner.ctypes.data + LINE - 1) & ~(LINE - 1)


class Table:
    """One table.

    Parameters
    ----------
    words : ndarray of int64, shape (4,)
        What kernels know of it: address of its lines, lines - 1, entries, tombstones.
    fill : int
        Entries a line, beyond which it grows.
    least : int
        Lines that it keeps when it gets smaller.
    move : callable
        Of the address and number of older lines: moves their entries into the present ones, those that are
        still needed.
    memory : ndarray, optional
        Owner of its lines.
    """

    def __init__(
        self,
        words: npt.NDArray[np.int64],
        fill: int,
        least: int,
        move: Callable[[int, int], object],
        memory: npt.NDArray[Any] | None = None,
    ) -> None:
        self.words: Final = words
        self._fill, self._least, self._move = fill, least, move
        if memory is None:
            memory, words[ADDRESS] = aligned(least * LINE)
            words[MASK] = least - 1
        self.memory = memory

    @property
    def n_lines(self) -> int:
        return int(self.words[MASK]) + 1

    @property
    def used(self) -> int:
        """Entries."""
        return int(self.words[USED])

    def grow(self, need: int) -> None:
        """Rehash it for `need` more entries, if they have no room.

        A rehash leaves out what is no longer needed. When that was much, a smaller table does: otherwise
        ranks that come and go would make it grow for ever.
        """
        lines = self.n_lines
        if self.used + int(self.words[TOMBS]) + need <= lines * self._fill:
            return
        while self.used + need > lines * (self._fill - 1):
            lines *= 2
        self._rehash(lines)
        enough = lines
        while enough > self._least and self.used + need <= enough // 2 * (self._fill - 1):
            enough //= 2
        if enough < lines:
            self._rehash(enough)

    def _rehash(self, lines: int) -> None:
        old, words = self.memory, self.words.copy()
        try:
            self.memory, address = aligned(lines * LINE)
            self.words[:] = address, lines - 1, 0, 0
            self._move(int(words[ADDRESS]), int(words[MASK]) + 1)
        except BaseException:  # an interrupt must not leave a table without its entries
            self.memory, self.words[:] = old, words
            raise
