"""A death at every point of every operation, then a recovery, which may die too; see ``tests.crash.sweep``.

``SHMTRIE_SEEDS``: with how many trees around it each operation is done; the default makes 50,000 deaths.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shmtrie.kernels.hooks import Site
from tests.crash.cases import CASES, TWO_DEAD, WIDE
from tests.crash.lapses import LAPSES

pytestmark = pytest.mark.race

SEEDS = int(os.environ.get("SHMTRIE_SEEDS", "46"))
LONG = "chain of several nodes"  # a tenth of a second each
ROOT = Path(__file__).resolve().parents[2]
#: Points that these deaths do not come by.
ELSEWHERE = {
    Site.OPERATION_ENDED,  # nothing is open any more
    Site.READER_LOADED,
    Site.READER_NODE,
    Site.READER_CHECK,
    Site.SPACE_SETTLED,  # a recoverer's
    Site.UNDO_DONE,  # without a busy gate only a recoverer takes back
}
_seen: Counter[str] = Counter()
_sites: set[int] = set()


class Server:
    """A process of the test build in which cases die."""

    def __init__(self) -> None:
        env = dict(os.environ, SHMTRIE_TEST_BUILD="1", PYTHONPATH=str(ROOT))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.cases"],
            env=env,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, name: str, first: int, seeds: int) -> dict[str, Any]:
        """Let a case run with some seeds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, first, seeds]) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    """One for each of two cores."""
    both = Server(), Server()
    try:
        yield both
    finally:
        for server in both:
            server.close()


def _counted(answer: dict[str, Any]) -> dict[str, Any]:
    assert "failed" not in answer, answer["failed"]
    _sites.update(answer.get("sites", ()))
    for what in ("deaths", "nested", "kills"):
        _seen[what] += answer.get(what, 0)
    return answer


@pytest.mark.parametrize("name", CASES)
def test_deaths(servers: tuple[Server, Server], name: str) -> None:
    """Readers see no difference before the recovery; after it a store is there as a whole or not at all, all
    invariants hold, and the same event applied again by a lane that takes the rank over completes it.
    """
    seeds = SEEDS if name != LONG else max(1, SEEDS // 20)
    half = (seeds + 1) // 2
    with ThreadPoolExecutor(2) as pool:
        lower = pool.submit(servers[0].ask, name, 0, half)
        upper = pool.submit(servers[1].ask, name, half, seeds - half)
        answer = _counted(lower.result())
        _counted(upper.result())
    assert answer["deaths"] >= 3
    assert answer["kills"] >= 3


@pytest.mark.parametrize("way", [0, 1], ids=["a newcomer", "a lane that meets a gate"])
def test_two_dead_lanes_in_one_place(servers: tuple[Server, Server], way: int) -> None:
    """The recovery of the one needs a lock that the other holds: both are recovered."""
    _counted(servers[0].ask(TWO_DEAD, way, 1))


@pytest.mark.parametrize("name", LAPSES)
def test_lapses(servers: tuple[Server, Server], name: str) -> None:
    """See ``tests.crash.lapses``."""
    _counted(servers[0].ask(name, 0, 1))


def test_deaths_where_arrays_are_extents_of_several_spans(servers: tuple[Server, Server]) -> None:
    """More than 16,384 ranks: see ``tests.crash.wide``."""
    answer = _counted(servers[0].ask(WIDE, 1, 1))
    assert answer["deaths"] > 30 and Site.SPAN_TURNING in answer["sites"]


def test_deaths_came_at_every_point() -> None:
    """All points of the kernels but those named above, and often enough."""
    if not _seen["deaths"]:
        pytest.skip("the deaths were not asked for")
    missing = set(Site) - ELSEWHERE - {Site(s) for s in _sites}
    assert not missing
    assert SEEDS < 46 or _seen["deaths"] + _seen["nested"] >= 50_000, _seen
