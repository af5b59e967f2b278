"""Replays through a segment with real writer and router processes, and what they leave behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmtrie.replay import ReplayConfig, generate_trace, run_replay

pytest.importorskip("shmtrie.index")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SHM = Path("/dev/shm")
DEADLINE = 60.0


def segment(pid: int) -> Path:
    return SHM / f"shmtrie-replay-{pid}"


def children(pid: int) -> list[int]:
    """Live child processes; those that keep track of resources are python's own."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if (
                int(parent) == pid
                and state != "Z"
                and b"resource_tracker" not in (entry / "cmdline").read_bytes()
            ):
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_for(condition: object, what: str) -> None:
    assert callable(condition)
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("block_tokens", "restarts", "mid_evictions"), [(512, 0, False), (64, 6, False), (512, 6, True)]
)
def test_replay_through_a_segment(block_tokens: int, restarts: int, mid_evictions: bool) -> None:
    config = ReplayConfig(
        workers=20,
        writers=3,
        routers=2,
        block_tokens=block_tokens,
        cache_blocks=80 * 512 // block_tokens,
        restarts=restarts,
        mid_evictions=mid_evictions,
        check=True,
    )
    report = run_replay(config, generate_trace(450, seed=block_tokens))
    check = report.check
    assert check is not None
    assert report.wrong == 0, check.examples
    assert report.index.broken == []
    assert check.answers > 900 and (check.exact == check.answers or mid_evictions)
    assert check.events == sum(writer.events for writer in report.writers) > 700
    refused = {name for writer in report.writers for name in writer.rejected}
    assert refused <= ({"PARENT_BLOCK_NOT_FOUND"} if mid_evictions else set())
    assert report.index.nodes > 0 and report.index.bytes_per_block is not None
    assert not segment(os.getpid()).exists() and children(os.getpid()) == []


def test_finds_beside_writers_are_counted() -> None:
    """Whether a find falls beside a writer is the scheduler's business: it does within a few runs."""
    config = ReplayConfig(workers=20, writers=1, routers=1, cache_blocks=80)
    end = time.monotonic() + DEADLINE
    while True:
        report = run_replay(config, generate_trace(450, seed=1))
        if sum(router.beside.finds for router in report.routers) > 0:
            return
        assert time.monotonic() < end, "no find beside a writer"


@contextlib.contextmanager
def running_script() -> Iterator[subprocess.Popen[bytes]]:
    """A replay that would go on for long, with its segment and its processes up."""
    command = [sys.executable, ROOT / "scripts" / "replay.py", "--requests", "20000", "--routers", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    # a shell that runs tests in the background lets them ignore interrupts, which a child would inherit
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as script:
        try:
            signal.signal(signal.SIGINT, ours)
            wait_for(lambda: len(children(script.pid)) == 3 or script.poll() is not None, "processes")
            assert script.poll() is None and segment(script.pid).exists()
            yield script
        finally:
            script.kill()
            script.wait()
            segment(script.pid).unlink(missing_ok=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, None)])
def test_a_stopped_replay_cleans_up(number: signal.Signals, code: int | None) -> None:
    with running_script() as script:
        processes = children(script.pid)
        script.send_signal(number)
        ended = script.wait(DEADLINE)
        assert ended == code or (code is None and ended != 0)
        assert not segment(script.pid).exists()
        assert not any(map(alive, processes))


def test_a_killed_replay_is_cleaned_up_by_its_children() -> None:
    with running_script() as script:
        processes = children(script.pid)
        script.kill()
        script.wait()
        wait_for(lambda: not any(map(alive, processes)), "the processes outlive their parent")
        assert not segment(script.pid).exists()


def test_a_killed_writer_ends_the_replay() -> None:
    with running_script() as script:
        processes = children(script.pid)
        os.kill(processes[0], signal.SIGKILL)
        assert script.wait(DEADLINE) == 2
        assert script.stderr is not None and b"writer 0" in script.stderr.read()
        assert not segment(script.pid).exists() and not any(map(alive, processes))
