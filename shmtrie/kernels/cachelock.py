"""The lock under which one process fills the cache of kernels, and the care for old caches.

The lock is a ``flock`` on a file of the directory, so it goes with the process that held it, however that
ended. The marker ``complete`` is written last.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shmtrie.kernels.cache import COMPLETE, LOCK, Place

#: Seconds to wait for another process that compiles; after that each goes on alone.
WAIT_LIMIT = 1200.0
#: Days without use after which a cache of another version is deleted.
UNUSED_DAYS = 30

NOTE = 48  # bytes at the start of the lock file: pid, entries done, entries in all

Progress = Callable[[int, int, str], None]


@contextmanager
def only_compiler(place: Place | None) -> Iterator[Callable[[str], None]]:
    """Hold the lock of the directory, or find its work done by the process that held it.

    Yields
    ------
    callable
        Notes progress (pid, done, total) for those who wait.
    """
    descriptor = -1
    if place is not None and place.writable:
        with suppress(OSError):
            descriptor = os.open(place.directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if descriptor >= 0 and place is not None:
            _wait(descriptor, place)

        def note(text: str) -> None:
            if descriptor >= 0:
                with suppress(OSError):
                    os.pwrite(descriptor, text.ljust(NOTE).encode(), 0)

        yield note
    finally:
        if descriptor >= 0:
            os.close(descriptor)  # lets the lock go, as the death of the process does


def _wait(descriptor: int, place: Place) -> None:
    deadline = time.monotonic() + WAIT_LIMIT
    told = ""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        except OSError:  # a file system without locks: everybody compiles, the files stay whole
            return
        if place.is_complete():
            return
        if time.monotonic() > deadline:
            held = place.directory / LOCK
            warnings.warn(f"shmtrie: {held} is held; compiling beside it", RuntimeWarning, stacklevel=4)
            return
        if may_report():
            words = os.pread(descriptor, NOTE, 0).decode("ascii", "replace").split()
            pid, done, total = (*words, "?", "?", "?")[:3]
            text = f"shmtrie: process {pid} compiles the kernels ({done} of {total} done), waiting\n"
            if text != told:
                sys.stderr.write(text)
            told = text
        time.sleep(0.05)


def finish(place: Place, names: list[str]) -> None:
    """Write the marker, with what was compiled, and remove what nobody uses any more."""
    temporary = place.directory / f"{COMPLETE}.{os.getpid()}"
    with suppress(OSError):
        temporary.write_text("\n".join(names) + "\n")
        temporary.replace(place.directory / COMPLETE)
    remove_unused(place.directory)


def mark_used(place: Place) -> None:
    """Note, once a day, that the cache is in use."""
    marker = place.directory / COMPLETE
    with suppress(OSError):  # gone or read-only: nothing to keep alive
        if time.time() - marker.stat().st_mtime > 86_400:
            os.utime(marker)


def remove_unused(current: Path) -> None:
    """Delete caches of other versions that no process has used for `UNUSED_DAYS`."""
    limit = time.time() - UNUSED_DAYS * 86_400
    for sibling in current.parent.glob("*"):
        if sibling == current or not re.fullmatch("[0-9a-f]{32}", sibling.name) or sibling.is_symlink():
            continue
        with suppress(OSError):
            marker = sibling / COMPLETE
            used = (marker if marker.exists() else sibling).stat().st_mtime
            if used < limit:
                shutil.rmtree(sibling)


def may_report() -> bool:
    """Whether progress is shown though nobody asked: on a terminal, or as ``SHMTRIE_PROGRESS`` says."""
    wanted = os.environ.get("SHMTRIE_PROGRESS", "")
    return wanted == "1" or (wanted != "0" and sys.stderr is not None and sys.stderr.isatty())


def report_to_stderr(done: int, total: int, name: str) -> None:
    """Show progress as one line that is overwritten on a terminal, as lines elsewhere."""
    if name:
        text = f"shmtrie: compiling kernels, {done + 1} of {total}: {name.removeprefix('shmtrie.')}"
    else:
        text = f"shmtrie: {total} kernels ready"
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}" + ("" if name else "\n"))
    else:
        sys.stderr.write(text + "\n")
    sys.stderr.flush()
