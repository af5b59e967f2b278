"""The test's side of the pause and crash points in the kernels (see ``shmtrie.kernels.hooks``).

Works from any process: the control array lives in anonymous shared memory, so a parent that made it before
``fork`` watches and releases its child.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable

import numpy as np

from shmtrie.kernels import hooks
from shmtrie.kernels.context import C_HOOK
from shmtrie.kernels.hooks import Site
from shmtrie.layout import LOCK_LANE
from shmtrie.writer import Writer

POLL = 0.0005  # seconds between two looks


def wait_until(condition: Callable[[], bool], timeout: float = 10.0, what: str = "condition") -> None:
    """Poll `condition` until it holds.

    Raises
    ------
    TimeoutError
        It does not hold after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not reached in {timeout} s")
        time.sleep(POLL)


def die(writer: Writer) -> int:
    """End a writer as a kill would: everything stays as it is but the lock of its seat; the lane."""
    seat = writer._work.seat
    writer._closed = seat._left = True
    seat._file.close(LOCK_LANE + seat.lane)
    return seat.lane


class HookControl:
    """One control array: arms a point in one process, watches it and lets it go.

    Attributes
    ----------
    words : ndarray of int64, shape (CONTROL_WORDS,)
        The shared array.
    address : int
        Its address in this process and in those forked from it, for word ``C_HOOK`` of a context.

    Notes
    -----
    Give each process under test its own; several may share one to count hits.
    """

    def __init__(self, descriptor: int = -1) -> None:
        size = 8 * hooks.CONTROL_WORDS
        flags = mmap.MAP_SHARED | (mmap.MAP_ANONYMOUS if descriptor < 0 else 0)
        self._map = mmap.mmap(descriptor, size, flags)
        self.words = np.frombuffer(self._map, dtype=np.int64)
        self.address = int(self.words.ctypes.data)

    def __enter__(self) -> HookControl:
        return self

    def __exit__(self, *error: object) -> None:
        self.disarm()
        self.release()

    def install(self, context: np.ndarray) -> None:
        """Enter the control into a context array (int64), or with `uninstall` take it out."""
        context[C_HOOK] = self.address

    def uninstall(self, context: np.ndarray) -> None:
        """Take the control out of a context array."""
        context[C_HOOK] = 0

    def arm(self, action: int, site: int = hooks.ANY_SITE, countdown: int = 1) -> None:
        """Act at the `countdown`-th hit of `site` from now on, once.

        Parameters
        ----------
        action : int
            ``hooks.PAUSE``, ``KILL`` or ``ABANDON``.
        site : Site or int, optional
            The point; every one counts by default.
        countdown : int, optional
            1 acts at the next hit.
        """
        self.disarm()
        self.words[hooks.W_GO] = 0
        self.words[hooks.W_STATE] = hooks.IDLE
        self.words[hooks.W_ACTION] = action
        self.words[hooks.W_SITE] = int(site)
        self.words[hooks.W_COUNTDOWN] = countdown  # last: this arms it

    def disarm(self) -> None:
        """Let later hits only be counted. A process that is paused stays so."""
        self.words[hooks.W_COUNTDOWN] = 0

    def release(self) -> None:
        """Let a paused process go on."""
        self.words[hooks.W_GO] = 1

    @property
    def state(self) -> int:
        """What has come of the action: ``hooks.IDLE`` .. ``hooks.ABANDONED``."""
        return int(self.words[hooks.W_STATE])

    def wait_paused(self, timeout: float = 10.0) -> int:
        """Wait until the process pauses and return the site it pauses at."""
        wait_until(lambda: self.state == hooks.PAUSED, timeout, "pause")
        return int(self.words[hooks.W_LAST])

    def wait_released(self, timeout: float = 10.0) -> None:
        """Release and wait until the process has noticed."""
        self.release()
        wait_until(lambda: self.state != hooks.PAUSED, timeout, "release")

    @property
    def hits(self) -> int:
        """Hits of all sites."""
        return int(self.words[hooks.W_HITS])

    def count(self, site: int) -> int:
        """Hits of one site."""
        return int(self.words[hooks.W_COUNTS + int(site)])

    def counts(self) -> dict[Site, int]:
        """Hits by site, those without a hit left out."""
        return {site: self.count(site) for site in Site if self.count(site)}

    def reset_counts(self) -> None:
        """Start counting anew."""
        self.words[hooks.W_HITS] = 0
        self.words[hooks.W_COUNTS :] = 0
