"""The processes of a storm: a writer that performs a plan, a reader that asks, both killed at any moment.

Each is forked from a process that has the kernels loaded and holds no lane, and goes on where the one before
it in its part was killed. What it does it logs in the part's journals, before and after.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from shmtrie.errors import Busy, EventStatus, LaneUnavailable, ShmtrieError
from shmtrie.events import EventBatch
from shmtrie.index import Index
from shmtrie.kernels import batch, recover
from shmtrie.layout import PAGE, SECTIONS
from shmtrie.writer import Writer
from tests.concurrency.worker import as_event, prepared
from tests.reference import Rank
from tests.storm.fuse import AHEAD, Fuse, wait
from tests.storm.observe import observe
from tests.storm.parts import (
    AT_OPENING,
    AT_OPERATION,
    AT_RECOVERY,
    ATTEMPT,
    BEAT,
    BUSY_TIMES,
    CLOSE,
    CLOSED,
    COMMAND,
    COUNT,
    EVENTS,
    FAILED,
    FIRST,
    FUSE_AT,
    FUSE_END,
    FUSE_PART,
    FUSE_SIGNAL,
    FUSE_SKIPS,
    IDLE,
    KIND,
    LANE,
    NOWHERE,
    OPEN,
    OUTCOMES,
    RESUMED,
    RETURN,
    STARTING,
    STATE,
    STATUSES,
    UNUSED,
    Part,
    Scene,
)

#: What changes a segment; where its fuse is lit; how long it may take, ns; whether that is by event.
_KERNELS = (
    (batch, "apply_event", AT_OPERATION, 7_000, False),
    (batch, "sweep_slot", AT_OPERATION, 7_000, False),
    (batch, "apply_events", AT_OPERATION, 2_000, True),
    (recover, "recover", AT_RECOVERY, 7_000, False),
)
_OPENING = 3_000_000  # ns
_PR_SET_PDEATHSIG = 1
_now = time.monotonic_ns


def fork(part: Part, scene: Scene) -> int:
    """Start the next process of a part; its pid."""
    part.starts += 1
    part.words[STATE] = STARTING
    part.words[LANE] = -1
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        gc.disable()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        if os.getppid() == parent:
            if scene.spoil is not None:
                scene.spoil()
            rng = random.Random(f"{scene.seed} {part} {part.starts}")
            _ROLES[part.role](part, scene, rng).run()
            part.words[STATE] = CLOSED
            code = 0
    except BaseException:
        part.words[STATE] = FAILED
        part.failures.add(part.failures.keep(traceback.format_exc().encode()[-4000:]))
    finally:
        os._exit(code)


class _Playing:
    """What writers and readers share: finds that are logged."""

    def __init__(self, part: Part, scene: Scene, rng: random.Random) -> None:
        self.part, self.scene, self.rng = part, scene, rng
        self.words = part.words
        self.index = Index.attach(scene.name, read_only=part.role == "reader")
        self._known: dict[bytes, int] = {}
        self._fuses = {int(signo): Fuse(signo) for signo in (signal.SIGKILL, signal.SIGSTOP)}
        self._lost = self.index._giveups()

    def beat(self) -> None:
        """Say that something has come on."""
        self.words[BEAT] += 1

    def light(self, where: int, longest: int) -> None:
        """If the keeper wants it here, be killed or stopped in a moment, at most so many ns from now."""
        words = self.words
        if words[FUSE_AT] == where:
            words[FUSE_SKIPS] -= 1
            if words[FUSE_SKIPS] >= 0:
                return
            words[FUSE_AT] = NOWHERE
            after = 1 + longest * words[FUSE_PART] // 1_000_000
            end = _now() + max(AHEAD, after)
            words[FUSE_END] = end  # before it is lit: the signal may come at any time then
            self._fuses[words[FUSE_SIGNAL]].light(end)
            wait(end - after)

    def ask(self, which: int, about: int) -> None:
        """One find, logged."""
        query = self.scene.queries[which]
        begin = _now()
        found = self.index.find_matches(query)
        end = _now()
        lost = self.index._giveups()
        raw = found.workers.tobytes() + found.depths.tobytes()
        name = self._known.get(raw)
        if name is None:
            name = self._known[raw] = self.part.calls.keep(raw)
        self.part.calls.add(begin, end, which, name, lost - self._lost, about)
        self._lost = lost


class _Reading(_Playing):
    def run(self) -> None:
        self.words[STATE] = OPEN
        while self.words[COMMAND] != CLOSE:
            self.beat()
            if self.part.calls.is_full:
                self.words[STATE] = IDLE
                time.sleep(0.001)
                continue
            for _ in range(self.rng.randint(1, 60)):
                self.ask(self.rng.randrange(len(self.scene.queries)), -1)
            time.sleep(self.rng.uniform(0, 1e-3))
        self.index.close()


class _Writing(_Playing):
    def run(self) -> None:
        part = self.part
        observe(part.recoveries)
        for kernels, name, where, fixed, by_event in _KERNELS:
            setattr(kernels, name, self._lit(getattr(kernels, name), where, fixed, by_event))
        for section in SECTIONS:  # now: a page that is met first takes longer than an operation
            self.index.segment.view(section).view(np.uint8).reshape(-1)[::PAGE].sum()
        self.light(AT_OPENING, _OPENING)
        self.writer = self._open()
        self.words[LANE] = self.writer.lane
        self.beat()
        self.words[STATE] = OPEN
        at = self._resume()
        while self.words[COMMAND] != CLOSE:
            if at == len(part.plan):
                self.words[STATE] = IDLE
                self.beat()
                time.sleep(0.001)
                continue
            some = list(range(at, at + self._size(at)))
            self._perform(at, some, len(some))
            at += len(some)
            if self.rng.random() < 0.5:
                time.sleep(self.rng.uniform(0, 4 * self.scene.pause))
        self.writer.close()
        self.index.close()

    def _size(self, at: int) -> int:
        """Operations of the next call."""
        plan, size = self.part.plan, 1
        most = min(self.rng.randint(1, self.scene.batches), len(plan) - at)
        while size < most and plan[at].op[0] in EVENTS and plan[at + size].op[0] in EVENTS:
            size += 1
        return size

    def _lit(self, kernel: Callable[..., Any], where: int, fixed: int, by_event: bool) -> Callable[..., Any]:
        """A kernel before which the fuse is lit."""

        def lit(*arguments: Any) -> Any:
            if self.words[FUSE_AT] == where:
                events = arguments[3] - arguments[2] if by_event else 0
                self.light(where, fixed + self.scene.event_ns * events)
            return kernel(*arguments)

        return lit

    def _open(self) -> Writer:
        """A lane; while recoverers hold those that are free, or a stopped process is in the way, again."""
        while True:
            try:
                return self.index.writer(self.scene.patience)
            except (Busy, LaneUnavailable):
                time.sleep(0.001)

    def _perform(self, first: int, some: list[int], count: int) -> None:
        """Apply operations `some` of the plan from `first` on, in one call; `Busy` ones until not."""
        plan, ops = self.part.plan, self.part.ops
        statuses, busy = bytearray(count), 0
        alone = len(some) == 1 and (self.scene.batches == 1 or plan[some[0]].op[0] not in EVENTS)
        if alone:
            call, arguments = prepared(self.index, self.writer, plan[some[0]].op)
        else:
            events = self._events(some)
        row = ops.add(ATTEMPT, first, count, _now(), 0, -1, 0)
        self.beat()
        while alone:
            try:
                call(*arguments)
            except Busy:
                busy += 1
                continue
            except ShmtrieError as error:
                statuses[some[0] - first] = next(
                    s for s, name in OUTCOMES.items() if name == type(error).__name__
                )
            break
        while not alone and some:
            found = self.writer.apply_batch(events)
            for i, status in zip(some, found.tolist(), strict=True):
                statuses[i - first] = status
            some = [i for i, status in zip(some, found.tolist(), strict=True) if status == EventStatus.BUSY]
            if some:
                busy += 1
                events = self._events(some)
        ops.set(row, STATUSES, ops.keep(bytes(statuses)))
        ops.set(row, BUSY_TIMES, busy)
        ops.set(row, RETURN, _now())
        self.beat()

    def _events(self, some: list[int]) -> EventBatch:
        """Operations as events, with ids by which one that was cut is found again."""
        return EventBatch.from_events(as_event(self.part.plan[i].op, self.scene.first_id + i) for i in some)

    def _resume(self) -> int:
        """Settle what a death has cut, and say where to go on.

        Nothing of it is open any more when we look what has become of it; then it is sent again. Of a batch
        that is, by rank, what comes behind the last event whose id the segment has.
        """
        ops, row = self.part.ops, len(self.part.ops) - 1
        while row >= 0 and ops.get(row, KIND) != ATTEMPT:
            row -= 1
        if row < 0:
            return 0
        first, count = ops.get(row, FIRST), ops.get(row, COUNT)
        if ops.get(row, RETURN):
            return first + count
        cut = list(range(first, first + count))
        for rank in {self.part.plan[i].op[1] for i in cut if self.part.plan[i].op[0] in EVENTS}:
            self._take_over(rank)
        known = {tuple(info.worker): info.last_event_id for info in self.index.workers()}
        done = bytearray(count)
        for i in cut if self.scene.batches > 1 else ():
            last = known.get(self.part.plan[i].op[1]) if self.part.plan[i].op[0] in EVENTS else None
            # Not all that change nothing leave their ids, and what came behind may have been applied already.
            done[i - first] = not self.part.plan[i].changes or (
                last is not None and last >= self.scene.first_id + i
            )
        resumed = ops.add(RESUMED, first, count, _now(), 0, ops.keep(bytes(done)), 0)
        for which in range(len(self.scene.queries)):
            self.ask(which, resumed)
        self.beat()
        left = [i for i in cut if not done[i - first]]
        if left:
            self._perform(first, left, count)
        else:
            now = _now()
            ops.add(ATTEMPT, first, count, now, now, ops.keep(bytes(count)), 0)
        return first + count

    def _take_over(self, rank: Rank) -> None:
        """By an event that changes nothing: its dead owner is recovered, if nobody has done so."""
        while True:
            try:
                self.writer.remove(rank, np.array([UNUSED], np.uint64))
            except Busy:
                continue
            except ShmtrieError:
                pass
            return


class _Mending(_Playing):
    """Deals with whatever dead ones have left: at a word, or by taking every lane there is."""

    def run(self) -> None:
        observe(self.part.recoveries)
        if self.rng.random() < 0.5:
            report = self.index.recover()
            assert report.ok, report
            return
        lanes = self.index.segment.capacity.lanes
        with ExitStack() as stack:
            for _ in range(lanes):
                stack.enter_context(self.index.writer(self.scene.patience))
                self.beat()
        self.index.close()


_ROLES: dict[str, Callable[..., Any]] = {"writer": _Writing, "reader": _Reading, "mender": _Mending}
