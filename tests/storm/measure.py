"""How long finds and events take next to a writer that is stopped in an operation, and after a kill."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from shmtrie.capacity import Capacity
from shmtrie.errors import Busy
from shmtrie.index import Index
from shmtrie.layout import COUNTERS
from shmtrie.writer import Writer
from tests.concurrency.streams import Pool, Step
from tests.differential import expect
from tests.hooks import wait_until
from tests.reference import OK, Op
from tests.storm.keeper import Keeper, has_ended
from tests.storm.parts import (
    AT_OPERATION,
    FUSE_AT,
    FUSE_END,
    FUSE_PART,
    FUSE_SIGNAL,
    FUSE_SKIPS,
    NOWHERE,
    OPEN,
    STATE,
    Part,
    Scene,
)
from tests.storm.report import times
from tests.storm.storm import segment
from tests.workload import mix

TIMES, FINDS = 10, 5_000
KILLS = 150
_now = time.monotonic_ns


class _Endless(Sequence[Step]):
    """A plan that goes round."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, i: Any) -> Any:
        return self._steps[i % len(self._steps)]


class _Ground:
    """A segment with a contested chain and a quiet one, and a writer process that works on the first."""

    def __init__(self, index: Index, writer: Writer) -> None:
        self.index, self.writer, self.rng = index, writer, random.Random(1)
        pool = Pool(1, trunk=40)
        self.contested, self.quiet = (list(pool.paths[i]) for i in (0, 5))
        for rank in range(1, 9):
            for path in (self.contested, self.quiet):
                self.store(rank, path)
        blocks = [(local, mix(local, 1)) for local in self.contested]
        self.branch = [*self.contested[: len(blocks) // 2], 7, 8]
        branch = [(local, mix(local, 1)) for local in self.branch]
        ops: tuple[Op, ...] = (
            ("store", (100, 0), None, blocks),
            ("store", (100, 1), None, branch),
            ("remove", (100, 1), [b[1] for b in branch[::-1]]),
            ("remove", (100, 0), [b[1] for b in blocks[::-1]]),
        )
        self.part = Part(0, "writer", _Endless([Step(op, OK, True) for op in ops]))
        scene = Scene(index.segment.name, 1, [], 1, 20, pause=5e-4, event_ns=3000)
        self.keeper = Keeper(index, [self.part], scene, self.rng)

    def store(self, worker: int, path: list[int]) -> None:
        """All of a path for a rank, under common hashes."""
        self.writer.store(worker, None, path, [mix(local, 1) for local in path])

    def remove(self, worker: int, path: list[int]) -> None:
        """The last half of a path."""
        self.writer.remove(worker, [mix(local, 1) for local in path[: len(path) // 2 : -1]])

    def start(self) -> int:
        """The other writer, at work; its pid."""
        for journal in (self.part.ops, self.part.calls, self.part.recoveries):
            journal.clear()
        self.keeper.start(0)
        words = self.part.words
        wait_until(lambda: words[STATE] == OPEN and len(self.part.ops) > 0, what="start of a writer")
        return self.keeper.pid(0)

    def light(self, signo: signal.Signals) -> None:
        """Have it stopped or killed in an operation."""
        words = self.part.words
        words[FUSE_END], words[FUSE_SIGNAL], words[FUSE_SKIPS] = 0, signo, self.rng.randint(6, 12)
        words[FUSE_PART] = self.rng.randrange(1_000_000)
        words[FUSE_AT] = AT_OPERATION

    def is_holding(self) -> bool:
        """Whether its lane has gates."""
        lanes = self.index.segment.view("lanes")
        return any(int(lanes["n_gates"][lane]) > 0 and int(lanes["phase"][lane]) & 0xFF for lane in (1, 2, 3))


def measure() -> dict[str, Any]:
    """Both measurements, each on a segment of its own."""
    return {**_run(_stopped), **_run(_killed)}


def _run(what: Callable[[_Ground], dict[str, Any]]) -> dict[str, Any]:
    with segment(Capacity(blocks=20_000, workers=64, lanes=4)) as index, index.writer(0.05) as writer:
        ground = _Ground(index, writer)
        try:
            found = what(ground)
        finally:
            ground.keeper.abandon()
    return found


def _finds(index: Index, path: list[int]) -> list[int]:
    query, find, found = np.array(path, np.uint64), index.find_matches, []
    for _ in range(FINDS):
        begin = _now()
        find(query)
        found.append(_now() - begin)
    return found


def _stopped(ground: _Ground) -> dict[str, Any]:
    """Finds and events while the other writer is stopped with gates in its hands, against nobody at work."""
    index, finds, idle, busy_ns, other_ns, refused = ground.index, list[int](), list[int](), [], [], 0
    for _ in range(TIMES):
        idle += _finds(index, ground.contested)
        pid = ground.start()
        _stop_in_operation(ground, pid)
        finds += _finds(index, ground.contested)
        begin = _now()
        ground.store(9, ground.quiet)
        other_ns.append(_now() - begin)
        ground.remove(9, ground.quiet)
        begin = _now()
        try:
            ground.store(10, [*ground.contested[:3], 5])
        except Busy:
            refused += 1
            busy_ns.append(_now() - begin)
        os.kill(pid, signal.SIGCONT)
        ground.keeper.kill_all()
        ground.writer.remove_worker(10)
        ground.writer.remove_worker(100)
        report = index.verify()
        expect(report.ok, "after a stop:", report)
    return {
        "find, nobody at work": times(idle),
        "find, a writer stopped in that path": times(finds),
        "event on other nodes, a writer stopped": times(other_ns),
        "event on its nodes": {"Busy": refused, "of": TIMES, **times(busy_ns)},
    }


def _stop_in_operation(ground: _Ground, pid: int) -> None:
    words = ground.part.words
    for _ in range(500):
        ground.light(signal.SIGSTOP)
        wait_until(lambda: words[FUSE_END] != 0, what="an operation of a writer")
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        words[FUSE_AT] = NOWHERE
        if ground.is_holding():
            return
        os.kill(pid, signal.SIGCONT)
        os.waitid(os.P_PID, pid, os.WCONTINUED)
    raise TimeoutError("no stop has hit an operation")


def _killed(ground: _Ground) -> dict[str, Any]:
    """From the kill of the other writer to the end of the first event on its nodes, when it held gates."""
    found, words, paths = list[int](), ground.part.words, (ground.contested, ground.branch)
    counters = ground.index.segment.view("lanes")["counters"][:, COUNTERS.index("recoveries")]
    for _ in range(KILLS):
        pid = ground.start()
        before = int(counters.sum())
        ground.light(signal.SIGKILL)
        late, deadline = 0, time.monotonic() + 10
        while not 0 < words[FUSE_END] < _now() and time.monotonic() < deadline:
            pass
        for do, path in itertools.cycle(itertools.product((ground.store, ground.remove), paths)):
            with suppress(Busy):
                do(11, path)
            end, killed = _now(), words[FUSE_END]
            if killed and end > killed and int(counters.sum()) > before:
                found.append(end - killed)
                break
            late += has_ended(pid)
            if late > 8 or time.monotonic() > deadline:
                break  # it died with nothing in its hands that is in the way
        ground.keeper.kill_all()
        ground.writer.remove_worker(100)
    return {"kill of a writer to an event on its nodes": times(found)}
