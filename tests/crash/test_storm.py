"""Storms of kills, stops and restarts on the product's kernels; see ``tests.storm.storm``, scripts/storm.py.

``SHMTRIE_STORM_KILLS``: how many (1500). On a busy machine fewer, after ``SECONDS``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.storm.controls import CONTROLS
from tests.storm.fuse import Fuse
from tests.storm.journal import Journal

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("SHMTRIE_STORM_KILLS", "1500"))
SECONDS = 120  # after which no storm is begun


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script, in a process of its own: it forks, and pytest has threads."""
    env = {**os.environ, "SHMTRIE_TEST_BUILD": "", **environment}
    command = [sys.executable, str(ROOT / "scripts" / "storm.py"), *arguments]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
def test_a_storm() -> None:
    """No overcount, no dip, no acknowledged event lost, no hang; and kills hit what they were meant for."""
    done = run("--kills", str(KILLS), "--seconds", str(SECONDS), "--json", "--seed", str(os.getpid()))
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout)
    for what in ("overcounts", "lost acknowledged events", "dips", "hangs"):
        assert found[what] == 0, found
    assert found["kills"] >= min(KILLS, 200), found  # a storm at least, however busy the machine is
    left = found["killed writers by what they left"]
    assert sum(n for what, n in left.items() if what != "no operation open") > found["kills"] / 50, found
    assert left["to be taken back (UNDO)"] > 0
    recoveries = found["recoveries"]
    assert recoveries["by who met it"] > 0 and recoveries["by who took the lane"] > 0, found
    assert sum(found["events cut"].values()) > found["kills"] / 10, found
    assert found["scores judged"] > 100 * found["kills"], found


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROLS)
def test_writers_that_do_wrong_are_found(name: str) -> None:
    done = run("--control", name, SHMTRIE_STORM_HANG="10")
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "found after" in done.stdout


def test_a_journal_keeps_what_another_process_wrote_before_it_was_killed() -> None:
    code = (
        "import os, signal\n"
        "from tests.storm.fuse import Fuse\n"
        "from tests.storm.journal import Journal\n"
        "import time\n"
        "j = Journal(2, 10, 1000)\n"
        "if not os.fork():\n"
        "    row = j.add(5, j.keep(b'seven'))\n"
        "    j.set(row, 0, 6)\n"
        "    Fuse(signal.SIGKILL).light(time.monotonic_ns() + 1_000_000)\n"
        "    while True: pass\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), j.rows().tolist(), j.text(int(j.rows()[0, 1])))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "-9 [[6, 0]] b'seven'\n", done.stderr


def test_a_full_journal_says_so() -> None:
    journal = Journal(1, 150, 800)
    while not journal.is_full:
        journal.add(len(journal))
    assert np.array_equal(journal.rows()[:, 0], np.arange(len(journal)))
    with pytest.raises(OverflowError):
        for _ in range(200):
            journal.add(0)
    with pytest.raises(OverflowError):
        journal.keep(bytes(801))
    journal.clear()
    assert len(journal) == 0 and not journal.is_full


def test_a_fuse_needs_a_signal() -> None:
    with pytest.raises(OSError):
        Fuse(10_000)  # type: ignore[arg-type]
