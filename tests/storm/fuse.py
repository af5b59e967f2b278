"""A signal to oneself at a given moment, sent by the kernel: how kills and stops hit what takes microseconds.

A kill from another process comes some ten microseconds late, when most operations are over. A timer of the
process itself, set to a moment (not to a span: to set it takes tens of microseconds), interrupts it within a
microsecond of that, wherever it happens to be, in machine code too.
"""

from __future__ import annotations

import ctypes
import signal
import time

_CLOCK_MONOTONIC = 1
_SIGEVENT_BYTES = 64
_ABSOLUTE = 1
AHEAD = 150_000  # ns before the signal at which it is lit, at least; that may take a third of it
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
    """A timer of this process that ends in one signal.

    Parameters
    ----------
    signo : Signals
        Which.
    """

    def __init__(self, signo: signal.Signals) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _Sigevent(signo=signo)
        if self._libc.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)):
            raise OSError(ctypes.get_errno(), "timer_create")

    def light(self, at: int) -> None:
        """The signal comes at that time of `time.monotonic_ns`."""
        spec = _Itimerspec(in_s=at // 10**9, in_ns=at % 10**9)
        self._libc.timer_settime(self._timer, _ABSOLUTE, ctypes.byref(spec), None)


def wait(until: int) -> None:
    """Spin to a moment."""
    while _now() < until:
        pass
