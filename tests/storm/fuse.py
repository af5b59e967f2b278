"""A signal to oneself at a given moment, sent by the kernel: how kills and stops hit what takes microseconds.

A kill from another process comes some ten microseconds late, when most operations are over. A timer of the
process itself interrupts it where it happens to be, in machine code too. It is late as well, but mostly by
the same time, so it is lit that much before.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

from tests.storm.journal import shared_words

_CLOCK_MONOTONIC = 1
_SIGEVENT_BYTES = 64
AHEAD = 60_000  # ns
_now = time.monotonic_ns


class _Sigevent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),  # 0: a signal
        ("_rest", ctypes.c_char * (_SIGEVENT_BYTES - 16)),
    )


class _Itimerspec(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "in_s", "in_ns"))


class Fuse:
    """A timer that ends in one signal.

    Parameters
    ----------
    signo : int
        ``signal.SIGKILL`` or ``signal.SIGSTOP``.
    """

    def __init__(self, signo: signal.Signals) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _Sigevent(signo=signo)
        if self._libc.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)):
            raise OSError(ctypes.get_errno(), "timer_create")

    def light(self, nanoseconds: int) -> None:
        """The signal comes after that time, and a little later."""
        spec = _Itimerspec(in_s=nanoseconds // 10**9, in_ns=max(1, nanoseconds % 10**9))
        self._libc.timer_settime(self._timer, 0, ctypes.byref(spec), None)

    def light_and_wait(self, nanoseconds: int, late: int) -> int:
        """Return when the signal is about that far away; the time at which it is expected.

        Parameters
        ----------
        nanoseconds : int
            From the return to the signal.
        late : int
            From `lateness`.
        """
        ahead = max(AHEAD, nanoseconds)
        end = _now() + ahead + late
        self.light(ahead)
        while _now() < end - nanoseconds:
            pass
        return end


def lateness(tries: int = 15) -> int:
    """By how many ns a signal comes late here: the median."""
    words, found = shared_words(2), list[int]()
    for _ in range(10 * tries):
        words[1] = 0
        pid = os.fork()
        if not pid:
            fuse = Fuse(signal.SIGKILL)
            words[0] = _now() + AHEAD
            fuse.light(AHEAD)
            while True:
                words[1] = _now()
        os.waitpid(pid, 0)
        if words[1]:  # else it was not running when the signal came
            found.append(words[1] - words[0])
        if len(found) == tries:
            break
    return max(0, sorted(found)[len(found) // 2]) if found else 0
