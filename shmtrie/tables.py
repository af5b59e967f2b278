"""Private open-addressing tables that grow between two kernel calls: the lookups of a lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .layout import LINE

__all__ = ["Table", "aligned"]

USED, FREE, AWAY = range(3)
AT_ONCE = 4_096  # lines: 256 KiB
SPREAD = 7


def aligned(n_bytes: int) -> tuple[npt.NDArray[Any], int]:
    """Zeroed memory on a line of its own: (owner, address)."""
    owner = np.zeros(n_bytes + LINE, np.uint8)
    return owner, (owner.ctypes.data + LINE - 1) & ~(LINE - 1)


class _Group(NamedTuple):
    """Parts that are one hash table, and its memory."""

    first: int
    n_parts: int
    n_lines: int
    stamp: int
    memory: npt.NDArray[Any]
    address: int


class Table:
    """A table whose parts, told apart by bits of the hash, are hash tables of their own once it is large.

    At first there is one for all parts. One of `AT_ONCE` lines is cut in halves when it is full, so that no
    event waits long for others' entries to be moved.

    Parameters
    ----------
    directory : ndarray of int64, shape (n, 2)
        What kernels know of each part: address of the lines of its hash table, with the logarithm of their
        number in the low bits; address of the hash table's words. n is a power of two.
    words : ndarray of int64, shape (n, 3)
        Of a hash table, in the row of its first part: entries, how many more it takes, and whether `carry`
        cannot tell where they belong.
    fill : float
        Entries a line, beyond which a hash table grows.
    least : int
        Lines that it has at first; it gets no smaller.
    move : callable
        Of the address and number of older lines: moves their entries into the present ones, those that are
        still needed.
    carry : callable
        Of the same, of the first part of the present hash tables, and of how many parts one has if there are
        two, else 0: as `move`, of all entries, but quicker.
    stamp : callable
        A number that moves when some of the entries may no longer be needed.
    any_size : bool
        Whether `carry` can do without hash tables of `AT_ONCE` lines.
    """

    def __init__(
        self,
        directory: npt.NDArray[np.int64],
        words: npt.NDArray[np.int64],
        fill: float,
        least: int,
        move: Callable[[int, int], object],
        carry: Callable[[int, int, int, int], object],
        stamp: Callable[[], int],
        any_size: bool = False,
    ) -> None:
        self._directory, self._words = directory, words
        self._fill, self._least, self._move, self._carry, self._stamp = fill, least, move, carry, stamp
        self._any_size = any_size
        self._groups: list[_Group] = []
        self._set(slice(0, 0), [self._new(0, len(words), least)])

    @property
    def n_lines(self) -> int:
        """Lines in all."""
        return sum(group.n_lines for group in self._groups)

    @property
    def used(self) -> int:
        """Entries."""
        return int(self._words[self._firsts, USED].sum())

    @property
    def memory(self) -> list[npt.NDArray[Any]]:
        """Owners of the lines."""
        return [group.memory for group in self._groups]

    def grow(self, needs: npt.NDArray[np.int64]) -> None:
        """Make room for so many more entries, by part."""
        while True:
            more = np.add.reduceat(needs, self._firsts)
            full = self._words[self._firsts, FREE] < more
            k = int(np.argmax(full))
            if not full[k]:
                return
            self._grow(k, int(more[k]))

    def _grow(self, k: int, more: int) -> None:
        """Rehash a hash table, or make two of it.

        A rehash leaves out what is no longer needed. When that was much, a smaller table does: otherwise
        ranks that come and go would make it grow for ever.
        """
        group = self._groups[k]
        need = int(self._words[group.first, USED]) + more
        lines = self._enough(need, group.n_lines)
        if lines <= AT_ONCE or group.n_parts == 1:
            self._replace(k, [self._new(group.first, group.n_parts, lines)])
            fewer = self._enough(int(self._words[group.first, USED]) + more, self._least)
            if fewer < lines:
                self._replace(k, [self._new(group.first, group.n_parts, fewer)])
            return
        # each half has lines for all entries, if it comes to that; beyond its limit it grows at once
        half = group.n_parts // 2
        self._replace(
            k, [self._new(first, half, group.n_lines) for first in (group.first, group.first + half)]
        )
        left = sum(int(self._words[x.first, USED]) for x in self._groups[k : k + 2]) + more
        fewer = self._enough(2 * left, self._least)
        if fewer <= AT_ONCE:  # most were no longer needed: one table does
            self._replace(k, [self._new(group.first, group.n_parts, fewer)], 2)

    def _limit(self, first: int, lines: int) -> int:
        """Entries that a hash table takes: up to a `SPREAD`-th less than `fill` says, each another number.

        Well mixed hashes fill all alike, and they must not all grow in the same event.
        """
        most, n = int(lines * self._fill), SPREAD * len(self._words)
        return most - most * (first * 157 % len(self._words)) // n

    def _enough(self, entries: int, lines: int) -> int:
        """Lines, from so many on, in which the entries leave some room."""
        while entries > int(lines * self._fill) * (SPREAD - 1) // SPREAD:
            lines *= 2
        return lines

    def _new(self, first: int, n_parts: int, lines: int) -> _Group:
        return _Group(first, n_parts, lines, 0, *aligned(lines * LINE))

    def _set(self, groups: slice, new: list[_Group]) -> None:
        self._groups[groups] = new
        self._firsts = np.array([group.first for group in self._groups])
        for group in new:
            words = self._words[group.first]
            words[:] = 0
            words[FREE] = self._limit(group.first, group.n_lines)
            lines = group.address | (group.n_lines.bit_length() - 1)
            self._directory[group.first : group.first + group.n_parts] = lines, words.ctypes.data

    def _replace(self, k: int, new: list[_Group], n: int = 1) -> None:
        """Let new groups take the place of n, from group k on."""
        stamp = self._stamp()  # before: what is left over from now on is for the next time
        is_carried = self._may_carry(k, n, new, stamp)
        old, firsts = list(self._groups), self._firsts
        words, directory = self._words.copy(), self._directory.copy()
        try:
            self._set(slice(k, k + n), [group._replace(stamp=stamp) for group in new])
            for group in old[k : k + n]:
                if is_carried:
                    half = new[0].n_parts if len(new) == 2 else 0
                    self._carry(group.address, group.n_lines, new[0].first, half)
                else:
                    self._move(group.address, group.n_lines)
        except BaseException:  # an interrupt must not leave a table without its entries
            self._groups, self._firsts, self._words[:], self._directory[:] = old, firsts, words, directory
            raise

    def _may_carry(self, k: int, n: int, new: list[_Group], stamp: int) -> bool:
        """Whether all entries of n groups, from group k on, are needed, and `carry` can tell where."""
        old = self._groups[k : k + n]
        if not self._any_size and any(group.n_lines != AT_ONCE for group in (*old, *new)):
            return False
        return all(group.stamp == stamp and not self._words[group.first, AWAY] for group in old)
