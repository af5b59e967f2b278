"""Forked children for tests of real processes: every wait is bounded, and none outlives its test."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TIMEOUT = 30.0  # seconds until a wait counts as a hang
NOBODY = 65534
CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000

Body = Callable[[Connection], Any]


def wait_until(condition: Callable[[], bool], what: str = "condition", timeout: float = TIMEOUT) -> None:
    """Poll a condition until it holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not reached in {timeout} s"
        time.sleep(0.001)


class Child:
    """A forked process that runs `body(connection)` and sends what it returns.

    As a context manager it is killed and reaped at the end, whatever state it is in.
    """

    def __init__(self, body: Body) -> None:
        self.connection, there = Pipe()
        self.status: int | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside the watchdog's thread
            self.pid = os.fork()
        if self.pid == 0:
            self._run(body, there)
        there.close()

    def _run(self, body: Body, there: Connection) -> None:
        code = 1
        try:
            faulthandler.disable()  # a crash may be what the test wants
            self.connection.close()
            there.send(body(there))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def hear(self, timeout: float = TIMEOUT) -> Any:
        """The next thing that the child sends."""
        assert self.connection.poll(timeout), f"child {self.pid} said nothing in {timeout} s"
        return self.connection.recv()

    def say(self, what: Any = None) -> None:
        """Send something to the child."""
        self.connection.send(what)

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Wait for the end; the exit code, or minus the signal."""
        wait_until(self._ended, f"end of child {self.pid}", timeout)
        assert self.status is not None
        return os.waitstatus_to_exitcode(self.status)

    def _ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def stop(self) -> None:
        """SIGSTOP, and wait until it is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_stopped()

    def wait_stopped(self) -> None:
        """Wait until it is stopped, by whomever."""
        stat = Path(f"/proc/{self.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "stop")

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()
        self.connection.close()


def outcome(function: Callable[[], Any]) -> str:
    """Name of the exception that a call raises, "ok" if none; what it returns is closed."""
    try:
        made = function()
    except Exception as error:
        return type(error).__name__
    if hasattr(made, "close"):
        made.close()
    return "ok"


def unshare(flags: int) -> bool:
    """Leave namespaces of the parent; False when that is not allowed."""
    return bool(ctypes.CDLL(None, use_errno=True).unshare(flags) == 0)


def open_descriptors() -> int:
    """Number of descriptors that this process has open; what earlier tests left to collect is collected."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
