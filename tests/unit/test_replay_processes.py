"""Child processes of a replay: they work, fail loudly, and end with their parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmtrie.events import EventBatch
from shmtrie.radix_tree import RadixTree
from shmtrie.replay import processes
from shmtrie.replay.messages import Ask
from shmtrie.replay.processes import ChildFailed, start_crew
from shmtrie.replay.sources import SharedSource

DEADLINE = 30.0


class Private(SharedSource):
    """Every process gets a tree of its own, which can be told to misbehave; no segment."""

    def __init__(self, start: str = "", mark: str = "") -> None:
        super().__init__("none")
        self.start = start
        self.mark = mark

    def discard(self) -> None:
        if self.mark:
            Path(self.mark).touch()

    @contextlib.contextmanager
    def writer(self) -> Iterator[Any]:
        if self.start == "raise":
            raise ValueError("cannot open")
        if self.start == "exit":
            os._exit(7)
        if self.start == "hang":
            signal.pause()
        yield RadixTree()

    @contextlib.contextmanager
    def reader(self) -> Iterator[Any]:
        yield Treacherous()


class Treacherous(RadixTree):
    """Does what the first hash of a query says."""

    def find_matches(self, local_hashes: Any, early_exit: bool = False) -> Any:
        what = int(local_hashes[0])
        if what == 1:
            raise RuntimeError("told to fail")
        if what == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == 3:
            signal.pause()
        return super().find_matches(local_hashes)


def ask(what: int) -> Ask:
    return Ask(
        numbers=np.zeros(1, np.int64),
        times=np.zeros(1),
        local=np.array([what], np.uint64),
        offsets=np.array([0, 1]),
        backlog=np.zeros(2),
        now=0.0,
        rate=1.0,
        full=True,
        again=False,
    )


def wait_for(condition: Any, what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def pids(crew: processes.Crew) -> list[int]:
    return [port._process.pid for port in (*crew.writers, *crew.routers)]  # type: ignore[attr-defined]


def test_calls_reach_children_and_come_back() -> None:
    with start_crew(Private(), 2, 1) as crew:
        children = pids(crew)
        assert len({os.getpid(), *children}) == 4
        for writer in crew.writers:
            writer.send("apply", [EventBatch.from_events([])], 1)
        crew.routers[0].send("ask", ask(9))
        for writer in crew.writers:
            assert writer.receive().statuses[0].tolist() == []
        assert crew.routers[0].receive().chosen.tolist() == [0]
    assert not any(running(pid) for pid in children)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (1, "(?s)router 0 failed.*told to fail"),
        (2, "exit code -9.*ended"),
        (3, "still running.*did not answer"),
    ],
    ids=["raises", "killed", "hangs"],
)
def test_a_failing_child_is_reported(monkeypatch: pytest.MonkeyPatch, what: int, message: str) -> None:
    monkeypatch.setattr(processes, "_STOP_SECONDS", 0.5)
    with pytest.raises(ChildFailed, match=message), start_crew(Private(), 1, 1) as crew:
        children = pids(crew)
        crew.routers[0].send("ask", ask(what))
        crew.routers[0].receive(1.0)  # type: ignore[call-arg]
    assert not any(running(pid) for pid in children)


def test_sending_to_a_dead_child() -> None:
    with start_crew(Private(), 1, 1) as crew:
        pid = pids(crew)[0]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not running(pid), "killed child")
        with pytest.raises(ChildFailed, match="writer 0"):
            crew.writers[0].send("apply", [], 1)
            crew.writers[0].receive()


@pytest.mark.parametrize(
    ("start", "message"), [("raise", "cannot open"), ("exit", "exit code 7"), ("hang", "did not answer")]
)
def test_a_child_that_does_not_start(monkeypatch: pytest.MonkeyPatch, start: str, message: str) -> None:
    monkeypatch.setattr(processes, "START_SECONDS", 4.0)
    monkeypatch.setattr(processes, "_STOP_SECONDS", 0.5)
    with pytest.raises(ChildFailed, match=message), start_crew(Private(start), 1, 1):
        pytest.fail("started")


PARENT = """
import os, signal, sys
sys.path[:0] = {path!r}
import {module} as module
if __name__ == "__main__":
    with module.start_crew(module.Private(mark={mark!r}), 1, 1) as crew:
        print(*module.pids(crew), flush=True)
        signal.pause()
"""


def test_children_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    mark, script = tmp_path / "discarded", tmp_path / "parent.py"
    script.write_text(PARENT.format(path=sys.path, module=__name__, mark=str(mark)))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            children = [int(word) for word in parent.stdout.readline().split()]
            assert len(children) == 2
        finally:
            parent.kill()
    wait_for(lambda: not any(running(pid) for pid in children), "the children outlive their parent")
    assert mark.exists(), "somebody has to remove the segment"
