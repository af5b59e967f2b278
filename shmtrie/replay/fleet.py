"""The engines of a replay: one fleet that the routers send requests to, and one per baseline.

Every fleet has the same caches, sees the same requests, and loses the same caches at the same moments, so
that hit rates can be compared.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from .blocks import PlannedRequest, Workload
from .config import ReplayConfig
from .engine import Engine
from .eventlog import EventLog
from .routing import Backlog, RandomChoice, RoundRobin, service_rate

__all__ = ["BASELINES", "OVERLAP", "Fleet", "make_fleets"]

OVERLAP: Final = "overlap"
ROUND_ROBIN: Final = "round-robin"
RANDOM: Final = "random"
BASELINES: Final = (ROUND_ROBIN, RANDOM)

# Mid-chain evictions: chance per served request.
_INSIDE_CHANCE: Final = 0.25


class Fleet:
    """Engines that serve requests where they are sent.

    Parameters
    ----------
    config : ReplayConfig
        Number and size of the caches, restarts, mid-chain evictions.
    workload : Workload
        The trace.
    logs : sequence of EventLog
        Where events go; worker w reports to log w modulo their number. Empty: no events.

    Attributes
    ----------
    backlog : Backlog
        The work that the workers really have.
    rate : float
        Blocks per millisecond that each of them does.
    served : list of int
        Requests per worker.
    restarts, inside_evictions : int
        How often that happened.
    """

    def __init__(self, config: ReplayConfig, workload: Workload, logs: Sequence[EventLog] = ()) -> None:
        self.rate = service_rate(workload.requests, config.workers)
        self.backlog = Backlog(config.workers, self.rate)
        self.served = [0] * config.workers
        self.restarts = 0
        self.inside_evictions = 0
        # Sticky: all events of a worker go through one log, so through one writer.
        self._engines = [
            Engine(w, config.engine_blocks, workload.blocks.cut, logs[w % len(logs)] if logs else None)
            for w in range(config.workers)
        ]
        # Of its own and with the same seed in every fleet: what is drawn does not depend on the routing.
        self._rng = random.Random(config.seed) if config.mid_evictions else None
        self._restart_at = _plan_restarts(config, len(workload.requests))

    def serve(self, requests: Sequence[PlannedRequest], workers: Sequence[int]) -> int:
        """Serve requests in order.

        Parameters
        ----------
        requests : sequence of PlannedRequest, length n
            The next ones of the trace.
        workers : sequence of int, length n
            Who serves each.

        Returns
        -------
        int
            Blocks of their prompts that were cached.
        """
        hits = 0
        for request, worker in zip(requests, workers, strict=True):
            for lost in self._restart_at.get(request.number, ()):
                self._engines[lost].restart(announce=self.restarts % 2 == 0)
                self.restarts += 1
            engine = self._engines[worker]
            hit = engine.serve(request)
            hits += hit
            self.backlog.advance(request.time)
            self.backlog.add(worker, request.total_blocks - hit)
            self.served[worker] += 1
            if self._rng is not None and self._rng.random() < _INSIDE_CHANCE:
                self.inside_evictions += engine.evict_inside(self._rng)
        return hits


class BaselineFleet(Fleet):
    """A fleet that is routed without looking at caches.

    Parameters
    ----------
    name : str
        One of `BASELINES`.
    config, workload
        As for `Fleet`.
    """

    def __init__(self, name: str, config: ReplayConfig, workload: Workload) -> None:
        super().__init__(config, workload)
        self._policy: RoundRobin | RandomChoice
        if name == ROUND_ROBIN:
            self._policy = RoundRobin(config.workers)
        else:
            self._policy = RandomChoice(config.workers, config.seed)

    def route(self, requests: Sequence[PlannedRequest]) -> int:
        """Choose for each request and serve it; returns as `serve`."""
        return self.serve(requests, [self._policy.choose() for _ in requests])


def make_fleets(
    config: ReplayConfig, workload: Workload, logs: Sequence[EventLog]
) -> tuple[Fleet, dict[str, BaselineFleet]]:
    """Make the fleet that is routed by overlap and reports to `logs`, and the silent ones beside it."""
    baselines = {name: BaselineFleet(name, config, workload) for name in BASELINES}
    return Fleet(config, workload, logs), baselines


def _plan_restarts(config: ReplayConfig, requests: int) -> dict[int, list[int]]:
    """Request number -> workers that lose their cache just before it; evenly spread over the run."""
    rng = random.Random(config.seed)
    plan: dict[int, list[int]] = {}
    for i in range(config.restarts):
        at = (i + 1) * requests // (config.restarts + 1)
        plan.setdefault(at, []).append(rng.randrange(config.workers))
    return plan
