"""A replay from end to end: rounds of routing, serving, applying, and judging.

Time is cut into rounds of a few requests. In a round

1. the routers ask the index about their share of the requests and choose workers, in parallel, while no
   writer is active; with the check, these answers are compared with the model;
2. the simulated engines serve the requests where they were sent and report events;
3. the writers apply the events of their workers, in parallel, while the routers ask again beside them;
4. the model follows what the writers say they applied.

What the routers answer decides what the engines cache, so it decides everything that comes later; yet a run
is reproducible, because nothing depends on how fast the processes are.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Final

import numpy as np
import numpy.typing as npt

from ..errors import EventStatus
from ..events import EventBatch
from .blocks import PlannedRequest, Workload, plan
from .check import Checker, Model
from .config import ReplayConfig, plan_segment
from .engine import Engine
from .eventlog import Command, EventLog
from .messages import Answers, Applied, Ask, Beside, Latencies
from .processes import Crew, start_crew
from .report import (
    CheckResult,
    PolicyResult,
    ReplayReport,
    RouterResult,
    Timeline,
    WriterResult,
    summarize,
)
from .routing import Backlog, RandomChoice, RoundRobin, service_rate
from .sources import IndexSource, SharedSource, TreeSource
from .trace import TraceRequest

__all__ = ["run_replay"]

OVERLAP: Final = "overlap"
ROUND_ROBIN: Final = "round-robin"
RANDOM: Final = "random"

_BESIDE_SECONDS: Final = 30.0
# Mid-chain evictions: chance per served request.
_INSIDE_CHANCE: Final = 0.25


def run_replay(
    config: ReplayConfig,
    trace: Sequence[TraceRequest],
    progress: Callable[[int], None] | None = None,
) -> ReplayReport:
    """Replay a trace.

    Parameters
    ----------
    config : ReplayConfig
        The options.
    trace : sequence of TraceRequest
        In time order, at least one.
    progress : callable, optional
        Called with the number of requests done, after every round.

    Returns
    -------
    ReplayReport
        The figures.

    Raises
    ------
    ShmtrieError
        If the segment cannot be made or a process fails. The segment and the processes are gone then.
    """
    workload = plan(trace, config.block_tokens)
    with _source(workload, config) as source, start_crew(source, config.writers, config.routers) as crew:
        replay = _Replay(config, workload, crew)
        start = time.perf_counter()
        replay.run(progress or (lambda done: None))
        seconds = time.perf_counter() - start
        return replay.report(source, seconds)


@contextlib.contextmanager
def _source(workload: Workload, config: ReplayConfig) -> Iterator[IndexSource]:
    if config.in_process:
        yield TreeSource(config.exact_holes)
        return
    size = plan_segment(workload, config)
    with SharedSource.create(
        size.blocks, size.nodes, size.workers, size.lanes, config.block_tokens, config.exact_holes
    ) as source:
        yield source


class _Replay:
    """The state of a run; `run` does the rounds."""

    def __init__(self, config: ReplayConfig, workload: Workload, crew: Crew) -> None:
        self._config = config
        self._workload = workload
        self._crew = crew
        cut, capacity = workload.blocks.cut, config.engine_blocks
        self._logs = [EventLog(workload.blocks) for _ in range(config.writers)]
        # Sticky: all events of a worker go through one writer.
        self._engines = {
            OVERLAP: [Engine(w, capacity, cut, self._log_of(w)) for w in range(config.workers)],
            ROUND_ROBIN: [Engine(w, capacity, cut) for w in range(config.workers)],
            RANDOM: [Engine(w, capacity, cut) for w in range(config.workers)],
        }
        self._baselines: dict[str, RoundRobin | RandomChoice] = {
            ROUND_ROBIN: RoundRobin(config.workers),
            RANDOM: RandomChoice(config.workers, config.seed),
        }
        self._rate = service_rate(workload.requests, config.workers)
        self._backlog = Backlog(config.workers, self._rate)
        self._rng = random.Random(config.seed)
        # One per fleet: the same requests are followed by an eviction, whoever serves them.
        self._inside_rngs = {name: random.Random(config.seed) for name in self._engines}
        n = len(workload.requests)
        self._restart_at = Counter((i + 1) * n // (config.restarts + 1) for i in range(config.restarts))
        self._restarts = 0
        self._inside = 0
        self._checker = (
            Checker(Model(config.workers, config.exact_holes), leaf_first=not config.mid_evictions)
            if config.check
            else None
        )
        self._served = {name: np.zeros(config.workers, np.int64) for name in self._engines}
        self._timeline = Timeline(hit_blocks={name: [] for name in self._engines})
        self._idle: list[list[npt.NDArray[np.int64]]] = [[] for _ in crew.routers]
        self._beside: list[list[Latencies]] = [[] for _ in crew.routers]
        self._written = [_Written() for _ in crew.writers]

    def run(self, progress: Callable[[int], None]) -> None:
        """Do all rounds; with the check, ask about every request once more at the end."""
        requests, window = self._workload.requests, self._config.window
        for number, start in enumerate(range(0, len(requests), window), 1):
            chunk = requests[start : start + window]
            if self._checker:
                # What is asked next is new prompts; old ones show what evictions left of them.
                self._ask([requests[self._rng.randrange(start + 1)] for _ in range(1 + len(chunk) // 4)])
            chosen = self._choose(chunk)
            hits = {OVERLAP: self._serve(chunk, chosen)}
            self._write(number)
            hits |= {name: self._serve_baseline(name, chunk) for name in self._baselines}
            self._note(chunk, hits)
            progress(start + len(chunk))
        if self._checker:
            for start in range(0, len(requests), window):
                self._ask(requests[start : start + window])

    # --- step 1: routers ----------------------------------------------------------------------------

    def _choose(self, chunk: Sequence[PlannedRequest]) -> list[int]:
        answers = self._ask(chunk)
        chosen = [0] * len(chunk)
        for router, answer in enumerate(answers):
            chosen[router :: len(answers)] = answer.chosen.tolist()
            self._idle[router].append(answer.nanoseconds)
        return chosen

    def _ask(self, chunk: Sequence[PlannedRequest]) -> list[Answers]:
        """Let the routers answer requests, each its share, and judge the answers."""
        shares = [chunk[router :: len(self._crew.routers)] for router in range(len(self._crew.routers))]
        for port, share in zip(self._crew.routers, shares, strict=True):
            port.send("ask", self._question(share))
        answers: list[Answers] = [port.receive() for port in self._crew.routers]
        if self._checker:
            for share, answer in zip(shares, answers, strict=True):
                self._judge(self._checker, share, answer)
        return answers

    def _question(self, share: Sequence[PlannedRequest]) -> Ask:
        blocks = self._workload.blocks
        places = [blocks.places(request.nodes, request.prompt_blocks) for request in share]
        offsets = np.zeros(len(share) + 1, np.int64)
        np.cumsum([len(p) for p in places], out=offsets[1:])
        return Ask(
            numbers=np.array([request.number for request in share], np.int64),
            times=np.array([request.time for request in share], np.float64),
            local=blocks.local(np.concatenate([np.empty(0, np.int64), *places])),
            offsets=offsets,
            backlog=self._backlog.blocks,
            now=self._backlog.now,
            rate=self._rate,
            full=self._checker is not None,
        )

    def _judge(self, checker: Checker, share: Sequence[PlannedRequest], answer: Answers) -> None:
        blocks = self._workload.blocks
        bounds = answer.offsets.tolist()
        for i, request in enumerate(share):
            places = blocks.places(request.nodes, request.prompt_blocks)
            part = slice(bounds[i], bounds[i + 1])
            external = blocks.external(places).tolist()
            checker.answer(request.number, external, answer.workers[part], answer.scores[part])

    # --- step 2: engines ----------------------------------------------------------------------------

    def _serve(self, chunk: Sequence[PlannedRequest], chosen: Sequence[int]) -> int:
        hits = 0
        engines = self._engines[OVERLAP]
        for request, worker in zip(chunk, chosen, strict=True):
            for _ in range(self._restart_at.get(request.number, 0)):
                self._restart()
            hit = engines[worker].serve(request)
            self._backlog.advance(request.time)
            self._backlog.add(worker, request.total_blocks - hit)
            self._served[OVERLAP][worker] += 1
            hits += hit
            self._inside += self._evict_inside(OVERLAP, engines[worker])
        return hits

    def _serve_baseline(self, name: str, chunk: Sequence[PlannedRequest]) -> int:
        hits = 0
        for request in chunk:
            worker = self._baselines[name].choose()
            hits += self._engines[name][worker].serve(request)
            self._served[name][worker] += 1
            self._evict_inside(name, self._engines[name][worker])
        return hits

    def _evict_inside(self, fleet: str, engine: Engine) -> bool:
        if not self._config.mid_evictions:
            return False
        rng = self._inside_rngs[fleet]
        return rng.random() < _INSIDE_CHANCE and engine.evict_inside(rng)

    def _restart(self) -> None:
        """Restart one engine, the same in every fleet."""
        worker = self._rng.randrange(self._config.workers)
        for engines in self._engines.values():
            engines[worker].restart(announce=self._restarts % 2 == 0)
        self._restarts += 1

    def _log_of(self, worker: int) -> EventLog:
        return self._logs[worker % len(self._logs)]

    # --- steps 3 and 4: writers, and routers beside them --------------------------------------------

    def _write(self, number: int) -> None:
        crew = self._crew
        commands = [log.take() for log in self._logs]
        for port in crew.routers:
            port.send("beside", Beside(number, _BESIDE_SECONDS))
        for port, work in zip(crew.writers, commands, strict=True):
            port.send("apply", work, number)
        applied: list[Applied] = [port.receive() for port in crew.writers]
        for router, port in enumerate(crew.routers):
            self._beside[router].append(port.receive())
        for written, work, outcome in zip(self._written, commands, applied, strict=True):
            written.add(work, outcome)
            if self._checker:
                for command, statuses in zip(work, outcome.statuses, strict=True):
                    self._checker.apply(command, statuses)
        self._timeline.events.append(sum(_events(work) for work in commands))
        self._timeline.writer_seconds.append(sum(outcome.seconds for outcome in applied))

    # --- results ------------------------------------------------------------------------------------

    def _note(self, chunk: Sequence[PlannedRequest], hits: dict[str, int]) -> None:
        self._timeline.requests.append(chunk[-1].number + 1)
        self._timeline.prompt_blocks.append(sum(request.prompt_blocks for request in chunk))
        for name, count in hits.items():
            self._timeline.hit_blocks[name].append(count)

    def report(self, source: IndexSource, seconds: float) -> ReplayReport:
        """Put the figures together."""
        timeline, checker = self._timeline, self._checker
        total = sum(timeline.prompt_blocks)
        for port in self._crew.routers:
            port.send("give_ups")
        give_ups: list[int] = [port.receive() for port in self._crew.routers]
        idle = [np.concatenate(parts) for parts in self._idle]
        beside = [np.concatenate([part.nanoseconds for part in parts]) for parts in self._beside]
        check = None
        if checker:
            check = CheckResult(
                checker.answers, checker.exact, checker.events, checker.wrong, checker.examples
            )
        return ReplayReport(
            options=asdict(self._config) | {"cache_blocks": self._config.engine_blocks},
            requests=len(self._workload.requests),
            prompt_blocks=total,
            linked=self._workload.linked,
            restarts=self._restarts,
            inside_evictions=self._inside,
            policies=[
                PolicyResult(name, sum(hits) / max(total, 1), sum(hits), self._served[name].tolist())
                for name, hits in timeline.hit_blocks.items()
            ],
            routers=[
                RouterResult(summarize(i), summarize(b), sum(part.above_length for part in parts), gave_up)
                for i, b, parts, gave_up in zip(idle, beside, self._beside, give_ups, strict=True)
            ],
            writers=[
                written.result(len(range(number, self._config.workers, len(self._written))))
                for number, written in enumerate(self._written)
            ],
            index=source.figures(verify=checker is not None),
            check=check,
            seconds=seconds,
            timeline=timeline,
            latencies={"idle": np.concatenate(idle), "beside": np.concatenate(beside)},
        )


class _Written:
    """Sums of one writer."""

    def __init__(self) -> None:
        self._events = self._blocks = self._retries = 0
        self._seconds = 0.0
        self._statuses: Counter[int] = Counter()

    def add(self, commands: Sequence[Command], outcome: Applied) -> None:
        self._events += _events(commands)
        self._blocks += sum(len(c.external) for c in commands if isinstance(c, EventBatch))
        self._seconds += outcome.seconds
        self._retries += outcome.busy_retries
        for statuses in outcome.statuses:
            self._statuses.update(statuses[statuses != EventStatus.OK].tolist())

    def result(self, workers: int) -> WriterResult:
        rejected = {EventStatus(code).name: count for code, count in self._statuses.items()}
        return WriterResult(workers, self._events, self._blocks, self._seconds, rejected, self._retries)


def _events(commands: Sequence[Command]) -> int:
    return sum(len(command) for command in commands if isinstance(command, EventBatch))
