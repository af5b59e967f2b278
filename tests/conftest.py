"""Shared fixtures, a watchdog for every test, and a check that the run leaves no segment behind.

``SHMTRIE_TEST_TIMEOUT``: seconds that one test may take (300); then all stacks are shown and the run ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Tests import each other's modules as `tests.<module>`, however pytest was started.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.backends import RUN, backend
from tests.backends import segment_name as _segment_name

__all__ = ["backend"]

# A loaded machine is no failure: what hangs is the watchdog's business.
settings.register_profile("shmtrie", deadline=None)
settings.load_profile("shmtrie")

_SHM = Path("/dev/shm")
_TIMEOUT = float(os.environ.get("SHMTRIE_TEST_TIMEOUT", "300"))
_stderr: list[int] = []


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr: a captured one would swallow the watchdog's report."""
    if not _stderr:
        _stderr.append(os.dup(2))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Bound every test, its fixtures included: a hanging test must not hang the run."""
    faulthandler.dump_traceback_later(_TIMEOUT, exit=True, file=_stderr[0])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _left_behind() -> list[Path]:
    return sorted(p for p in _SHM.iterdir() if RUN in p.name) if _SHM.is_dir() else []


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail the run if a segment of it is still there (its name says which test made it), and remove it."""
    left = _left_behind()
    for path in left:
        os.write(_stderr[0], f"\nleft in shared memory: {path.name}\n".encode())
        with contextlib.suppress(OSError):
            path.unlink()
    if left and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def segment_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Factory of segment names that nothing else uses."""
    return lambda: _segment_name(request.node.name)
