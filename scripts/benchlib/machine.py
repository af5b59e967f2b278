"""The machine under the figures: cores, other load, memory of processes."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CORES = sorted(os.sched_getaffinity(0))
MAIN, OTHER = CORES[-1], CORES[0]
"""The core that timed code is pinned to, and the one for what runs beside it."""

PLACEMENTS = ("pinned", "free", "beside a busy core")


@contextlib.contextmanager
def placed(placement: str) -> Iterator[None]:
    """Run the calling thread, and threads that it starts, on its core, or on all; no garbage collection."""
    spinner: subprocess.Popen[bytes] | None = None
    if placement == "pinned":
        os.sched_setaffinity(0, {MAIN})
    elif placement == PLACEMENTS[2]:
        code = f"import os\nos.sched_setaffinity(0, {{{OTHER}}})\nwhile os.getppid() == {os.getpid()}: pass"
        spinner = subprocess.Popen([sys.executable, "-c", code])
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        os.sched_setaffinity(0, CORES)
        if spinner is not None:
            spinner.send_signal(signal.SIGKILL)
            spinner.wait()


class ForeignLoad:
    """How many cores processes other than this one and its children were using while it ran."""

    def __init__(self) -> None:
        self._at = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float]:
        fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
        own = os.times()
        return time.monotonic(), busy, own.user + own.system + own.children_user + own.children_system

    def cores(self) -> float:
        """The mean since the object was made (children that still run count as foreign)."""
        now, then = self._read(), self._at
        return max(0.0, ((now[1] - then[1]) - (now[2] - then[2])) / max(now[0] - then[0], 1e-9))


def pss(pid: int | None = None) -> int:
    """Bytes of a process, shared pages divided among those who map them."""
    text = Path(f"/proc/{pid or 'self'}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024


def anonymous() -> int:
    """Bytes of this process's own memory: heap and the like, no file and no segment."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024


def trim() -> None:
    """Give freed memory back to the system."""
    import ctypes

    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def describe() -> dict[str, Any]:
    """What a reader of the figures wants to know of the machine."""
    model = next(
        (
            x.split(":", 1)[1].strip()
            for x in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in x
        ),
        platform.machine(),
    )
    return {
        "processor": model,
        "cores": len(CORES),
        "python": platform.python_version(),
        "load_at_start": os.getloadavg()[0],
    }
