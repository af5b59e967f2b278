"""Private open-addressing tables that grow between two kernel calls: the lookup, and that of aliases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .layout import LINE

__all__ = ["Table", "aligned"]

ADDRESS, MASK, USED, TOMBS = range(4)  # words of a part
AT_ONCE = 8_192  # lines to which a group may grow as a whole: 512 KiB


def aligned(n_bytes: int) -> tuple[npt.NDArray[Any], int]:
    """Zeroed memory on a line of its own: (owner, address)."""
    owner = np.zeros(n_bytes + LINE, np.uint8)
    return owner, (owner.ctypes.data + LINE - 1) & ~(LINE - 1)


class _Group(NamedTuple):
    """Parts that grow together: of one size, one behind the other in memory, which it owns."""

    first: int
    n_parts: int
    memory: npt.NDArray[Any]

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.n_parts)


class Table:
    """A table of one part or of many.

    At first all parts are one group: a small table grows as a whole. One that would become larger than
    `AT_ONCE` lines is cut in halves before, so that no event waits long for others' entries to be moved.

    Parameters
    ----------
    parts : ndarray of int64, shape (n, 4)
        What kernels know of each part: address of its lines, lines - 1, entries, tombstones. n is a power of
        two.
    fill : int
        Entries a line, beyond which a part grows.
    least : int
        Lines of a part at first; it gets no smaller.
    move : callable
        Of the address and number of older lines: moves their entries into the present ones, those that are
        still needed.
    """

    def __init__(
        self, parts: npt.NDArray[np.int64], fill: int, least: int, move: Callable[[int, int], object]
    ) -> None:
        self.parts: Final = parts
        self._fill, self._least, self._move = fill, least, move
        memory, address = aligned(len(parts) * least * LINE)
        self._groups = [_Group(0, len(parts), memory)]
        self._settle(self._groups[0], address, least)

    @property
    def n_lines(self) -> int:
        """Lines of all parts."""
        return int(np.sum(self.parts[:, MASK] + 1))

    @property
    def used(self) -> int:
        """Entries."""
        return int(np.sum(self.parts[:, USED]))

    @property
    def memory(self) -> list[npt.NDArray[Any]]:
        """Owners of the lines."""
        return list({id(group.memory): group.memory for group in self._groups}.values())

    def grow(self, needs: npt.NDArray[np.int64]) -> None:
        """Make room for so many more entries, by part."""
        full = self.parts[:, USED] + self.parts[:, TOMBS] + needs > (self.parts[:, MASK] + 1) * self._fill
        while full.any():
            part = int(np.argmax(full))
            full[self._grow(part, needs).rows] = False

    def _grow(self, part: int, needs: npt.NDArray[np.int64]) -> _Group:
        """Rehash a group with the part in it, and return it.

        A rehash leaves out what is no longer needed. When that was much, a smaller table does: otherwise
        ranks that come and go would make it grow for ever.
        """
        k = next(k for k, group in enumerate(self._groups) if part < group.first + group.n_parts)
        group = self._groups[k]
        now = int(self.parts[part, MASK]) + 1
        while (lines := self._enough(group, needs, now)) * group.n_parts > AT_ONCE and group.n_parts > 1:
            half = group.n_parts // 2
            halves = [_Group(first, half, group.memory) for first in (group.first, group.first + half)]
            self._groups[k : k + 1] = halves
            k += part >= halves[1].first
            group = self._groups[k]
        self._rehash(k, lines)
        fewer = self._enough(group, needs, self._least)
        if fewer < lines:
            self._rehash(k, fewer)
        return self._groups[k]

    def _enough(self, group: _Group, needs: npt.NDArray[np.int64], lines: int) -> int:
        """Lines of each part, from so many on, that have a line's worth of room left for each."""
        most = int(np.max(self.parts[group.rows, USED] + needs[group.rows]))
        while most > lines * (self._fill - 1):
            lines *= 2
        return lines

    def _rehash(self, k: int, lines: int) -> None:
        group = self._groups[k]
        before = self.parts[group.rows].copy()
        memory, address = aligned(group.n_parts * lines * LINE)
        try:
            self._groups[k] = group._replace(memory=memory)
            self._settle(group, address, lines)
            self._move(int(before[0, ADDRESS]), int(before[:, MASK].sum()) + group.n_parts)
        except BaseException:  # an interrupt must not leave a table without its entries
            self._groups[k] = group
            self.parts[group.rows] = before
            raise

    def _settle(self, group: _Group, address: int, lines: int) -> None:
        rows = self.parts[group.rows]
        rows[:, ADDRESS] = address + np.arange(group.n_parts) * (lines * LINE)
        rows[:, MASK] = lines - 1
        rows[:, USED] = rows[:, TOMBS] = 0
