"""Deaths where coverage arrays are extents of several spans: more than 16,384 ranks on one node."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from shmtrie.capacity import Capacity
from shmtrie.kernels import hooks
from shmtrie.kernels.hooks import HookAbandon, Site
from tests.concurrency.stage import Stage
from tests.crash.sweep import MOST, Recovering
from tests.differential import Mismatch, expect
from tests.hooks import HookControl
from tests.reference import OK, Op

RANKS, LENGTH = 16_600, 300
CAPACITY = Capacity(blocks=200_000, workers=20_000, lanes=4, extents=1 << 18)
PATH = list(range(1, LENGTH + 1))
LISTED = 8_192  # words of a list that fills a span


def _store(worker_id: int, path: list[int]) -> Op:
    return ("store", (worker_id, 0), None, [(local, (local << 20) + k) for k, local in enumerate(path)])


class WideSweep:
    """Deaths in operations on such nodes.

    Parameters
    ----------
    stage : Stage
        From `open_stage` with `CAPACITY`.
    seed : int
        Of the deaths of recoverers.

    Attributes
    ----------
    deaths, nested : int
    sites : set of Site
    """

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage, self.random = stage, random.Random(seed)
        self.deaths, self.nested, self.sites = 0, 0, set[Site]()
        self.writers: list[Any] = list(stage.writers)

    def run(self) -> None:
        """A list becomes an array of several spans, and nodes that have one are split."""
        for rank in range(RANKS):
            expect(self.writers[0].apply(_store(rank, PATH)) == OK, "store of", rank)
            if rank < LISTED:
                expect(self.writers[0].apply(_store(rank, [0])) == OK, "store of", rank)
        # what a death leaves undone is tried again; what it does not is done, and the next one is another
        self._deaths(lambda done: None if done else _store(RANKS, [0]))
        self._look([0], LISTED + 1)
        self._deaths(lambda done: _store(RANKS + 1 + done, [*PATH[: LENGTH - 1 - done], 0]))
        self._look(PATH, RANKS)
        for writer in self.writers:
            writer.call("tidy")
        for rank in range(RANKS):
            expect(self.writers[0].apply(("clear", (rank, 0))) == OK, "clear of", rank)
        for rank in range(RANKS, RANKS + LENGTH + 1):
            self.writers[1].apply(("clear", (rank, 0)))
        counts = self.stage.index.verify().counts
        left = {what: counts[what] for what in ("nodes", "extents", "coverage_words") if counts[what]}
        expect(not left, "left behind:", left)

    def _deaths(self, operation: Callable[[int], Op | None]) -> None:
        """Die at every point of `operation(done)`; `done`: how many of them have come nevertheless."""
        actor, done = self.writers[1], 0
        for countdown in range(1, MOST):
            op = operation(done)
            if op is None:
                return
            actor.control.arm(hooks.ABANDON, hooks.ANY_SITE, countdown)
            before = self.stage.index.stats().splits
            try:
                outcome = actor.call("apply", op)[0]
            except HookAbandon:
                where = Site(int(actor.control.words[hooks.W_LAST]))
                self.deaths += 1
                self.sites.add(where)
                try:
                    self._recover(actor)
                    if self._score(op) or self.stage.index.stats().splits != before:
                        done += 1
                        expect(actor.apply(op) == OK, op[1], "sent again is refused")
                        expect(self._score(op) == len(op[3]), op[1], "is not there")
                except AssertionError as error:
                    raise Mismatch(f"{error}\nafter a death at hit {countdown}, {where!r}") from error
            else:
                actor.control.disarm()
                expect(outcome == OK, op[1], "answered", outcome)
                return
        raise AssertionError("an operation with too many points")

    def _recover(self, actor: Any) -> None:
        """Others see no difference before it and after it; recoverers die as well."""
        self._look(PATH, RANKS)
        lane, other = actor.die(), self.writers[2]
        for _ in range(self.random.choice((0, 1, 2))):
            control = Recovering.control = HookControl()
            control.arm(hooks.ABANDON, hooks.ANY_SITE, self.random.randint(1, 12))
            try:
                other.worker.writer._work.recover_lane(lane)
            except HookAbandon:
                self.nested += 1
            finally:
                Recovering.control = None
        actor.take_lane()
        self._look(PATH, RANKS)
        report = self.stage.index.verify()
        expect(report.ok and not report.unsettled, "verify after the recovery:", report)

    def _score(self, op: Op) -> int:
        scores = self.stage.index.find_matches([local for local, _ in op[3]])
        depth = int(scores.depths[scores.workers["worker_id"] == op[1][0]].sum())
        expect(depth in (0, len(op[3])), "a part of the store:", depth)
        return depth

    def _look(self, path: list[int], ranks: int) -> None:
        """So many ranks hold the whole path."""
        depths = self.stage.index.find_matches(path).depths
        expect(np.count_nonzero(depths == len(path)) == ranks, "ranks on the path", len(depths), "not", ranks)
