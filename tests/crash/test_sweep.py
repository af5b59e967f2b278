"""A death at every point of every operation, then a recovery, which may die too; see ``tests.crash.sweep``.

``SHMTRIE_SEEDS``: how often each is done (1), with other recoverers and other deaths of theirs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmtrie.kernels.hooks import Site
from tests.crash.cases import CASES, TWO_DEAD, WIDE

pytestmark = pytest.mark.race

SEEDS = int(os.environ.get("SHMTRIE_SEEDS", "1"))
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
_seen: set[int] = set()


@pytest.fixture(scope="module")
def die() -> Iterator[Callable[[str, int], dict[str, Any]]]:
    """Let a case run in a process of the test build."""
    env = dict(os.environ, SHMTRIE_TEST_BUILD="1", PYTHONPATH=str(ROOT))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.cases"],
        env=env,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def ask(name: str, seed: int) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([name, seed, 1]) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    try:
        yield ask
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@pytest.mark.parametrize("name", CASES)
def test_deaths(die: Callable[[str, int], dict[str, Any]], name: str) -> None:
    """Readers see no difference before the recovery; after it a store is there as a whole or not at all, all
    invariants hold, and the same event applied again by a lane that takes the rank over completes it.
    """
    for seed in range(SEEDS):
        answer = die(name, seed)
        assert "failed" not in answer, answer["failed"]
        assert answer["deaths"] >= 3
        _seen.update(answer["sites"])


@pytest.mark.parametrize("way", [0, 1], ids=["a newcomer", "a lane that meets a gate"])
def test_two_dead_lanes_in_one_place(die: Callable[[str, int], dict[str, Any]], way: int) -> None:
    """The recovery of the one needs a lock that the other holds: both are recovered."""
    answer = die(TWO_DEAD, way)
    assert "failed" not in answer, answer["failed"]


def test_deaths_where_arrays_are_extents_of_several_spans(die: Callable[[str, int], dict[str, Any]]) -> None:
    """More than 16,384 ranks: see ``tests.crash.wide``."""
    answer = die(WIDE, 1)
    assert "failed" not in answer, answer["failed"]
    assert answer["deaths"] > 30 and Site.SPAN_TURNING in answer["sites"]
    _seen.update(answer["sites"])


def test_deaths_came_at_every_point() -> None:
    """All points of the kernels but those named above."""
    if len(_seen) == 0:
        pytest.skip("the deaths were not asked for")
    assert {Site(s) for s in _seen} >= set(Site) - ELSEWHERE, set(Site) - ELSEWHERE - {Site(s) for s in _seen}
