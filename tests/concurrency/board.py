"""A few shared words by which a fleet of processes starts and stops together."""

from __future__ import annotations

import mmap
import os
import time

import numpy as np

_START, _STOP = range(2)
_SEATS, _SEAT = 8, 8  # words before the first seat, and of each seat: nobody shares a cache line
_PAGE = 4096
TIMEOUT = 60.0  # seconds to wait for the start


class Board:
    """Start and stop of one round, in memory that is passed on as a descriptor.

    Parameters
    ----------
    descriptor : int
        Of the memory; -1 makes it. It belongs to no file system, so nothing is left behind.
    seat : int
        Number of the process in the fleet, below 60.
    """

    def __init__(self, descriptor: int = -1, seat: int = 0) -> None:
        self.descriptor, self._seat = descriptor, seat
        if descriptor < 0:
            self.descriptor = os.memfd_create("shmtrie-board")
            os.ftruncate(self.descriptor, _PAGE)
        self._map = mmap.mmap(self.descriptor, _PAGE)
        self._words = np.frombuffer(self._map, np.int64)

    def reset(self) -> None:
        """Before a round, when nobody waits."""
        self._words[:] = 0

    def start(self, who: int, timeout: float = TIMEOUT) -> None:
        """Let a round begin once `who` processes wait for it."""
        deadline = time.monotonic() + timeout
        while int(self._words[_SEATS::_SEAT].sum()) < who:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{who} processes were to wait for the start")
            time.sleep(0.0005)
        self._words[_START] = 1

    def stop(self) -> None:
        """End the round for those who go on until then."""
        self._words[_STOP] = 1

    @property
    def stopped(self) -> bool:
        """Whether the round is over."""
        return bool(self._words[_STOP])

    def wait_start(self, timeout: float = TIMEOUT) -> None:
        """Report ready and wait for the start; everybody comes out of it within microseconds."""
        self._words[_SEATS + _SEAT * self._seat] = 1
        deadline = time.monotonic() + timeout
        while not self._words[_START]:
            if time.monotonic() > deadline:
                raise TimeoutError("the round was never started")
            time.sleep(0)
