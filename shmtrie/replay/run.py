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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Final

import numpy as np

from .blocks import PlannedRequest, Workload, plan
from .check import Checker, Model
from .config import ReplayConfig, plan_segment
from .eventlog import EventLog
from .fleet import OVERLAP, make_fleets
from .messages import Answers, Applied, Ask, Beside
from .processes import Crew, start_crew
from .report import CheckResult, PolicyResult, ReplayReport, Timeline
from .sources import IndexSource, SharedSource, TreeSource
from .tally import RouterTally, WriterTally, count_events
from .trace import TraceRequest

__all__ = ["run_replay"]

_BESIDE_SECONDS: Final = 30.0


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
        self._logs = [EventLog(workload.blocks) for _ in range(config.writers)]
        self._fleet, self._baselines = make_fleets(config, workload, self._logs)
        self._checker: Checker | None = None
        if config.check:
            model = Model(config.workers, config.exact_holes)
            self._checker = Checker(model, leaf_first=not config.mid_evictions)
        self._rng = random.Random(config.seed)
        self._routers = [RouterTally() for _ in crew.routers]
        self._writers = [WriterTally() for _ in crew.writers]
        self._timeline = Timeline(hit_blocks={name: [] for name in (OVERLAP, *self._baselines)})

    def run(self, progress: Callable[[int], None]) -> None:
        """Do all rounds; with the check, ask about every request once more at the end."""
        requests, window = self._workload.requests, self._config.window
        for number, start in enumerate(range(0, len(requests), window), 1):
            chunk = requests[start : start + window]
            if self._checker:
                # What is asked next is new prompts; old ones show what evictions left of them.
                self._ask([requests[self._rng.randrange(start + 1)] for _ in range(1 + len(chunk) // 4)])
            hits = {OVERLAP: self._fleet.serve(chunk, self._choose(chunk))}
            self._write(number)
            hits |= {name: fleet.route(chunk) for name, fleet in self._baselines.items()}
            self._note(chunk, hits)
            progress(start + len(chunk))
        if self._checker:
            for start in range(0, len(requests), window):
                self._ask(requests[start : start + window])

    def _choose(self, chunk: Sequence[PlannedRequest]) -> list[int]:
        answers = self._ask(chunk, timed=True)
        chosen = [0] * len(chunk)
        for router, answer in enumerate(answers):
            chosen[router :: len(answers)] = answer.chosen.tolist()
            self._routers[router].add_answers(answer)
        return chosen

    def _ask(self, chunk: Sequence[PlannedRequest], timed: bool = False) -> list[Answers]:
        """Let the routers answer requests, each its share, and judge the answers."""
        routers = self._crew.routers
        shares = [chunk[router :: len(routers)] for router in range(len(routers))]
        for port, share in zip(routers, shares, strict=True):
            port.send("ask", self._question(share, timed))
        answers: list[Answers] = [port.receive() for port in routers]
        if self._checker:
            for share, answer in zip(shares, answers, strict=True):
                self._judge(self._checker, share, answer)
        return answers

    def _question(self, share: Sequence[PlannedRequest], timed: bool) -> Ask:
        blocks = self._workload.blocks
        places = [blocks.places(request.nodes, request.prompt_blocks) for request in share]
        offsets = np.zeros(len(share) + 1, np.int64)
        np.cumsum([len(p) for p in places], out=offsets[1:])
        return Ask(
            numbers=np.array([request.number for request in share], np.int64),
            times=np.array([request.time for request in share], np.float64),
            local=blocks.local(np.concatenate([np.empty(0, np.int64), *places])),
            offsets=offsets,
            backlog=self._fleet.backlog.blocks,
            now=self._fleet.backlog.now,
            rate=self._fleet.rate,
            full=self._checker is not None,
            again=timed,
        )

    def _judge(self, checker: Checker, share: Sequence[PlannedRequest], answer: Answers) -> None:
        blocks = self._workload.blocks
        bounds = answer.offsets.tolist()
        for i, request in enumerate(share):
            places = blocks.places(request.nodes, request.prompt_blocks)
            part = slice(bounds[i], bounds[i + 1])
            external = blocks.external(places).tolist()
            checker.answer(request.number, external, answer.workers[part], answer.scores[part])

    def _write(self, number: int) -> None:
        """Let the writers apply what the engines reported, with the routers beside them."""
        crew = self._crew
        commands = [log.take() for log in self._logs]
        for port in crew.routers:
            port.send("beside", Beside(number, _BESIDE_SECONDS))
        for port, work in zip(crew.writers, commands, strict=True):
            port.send("apply", work, number)
        applied: list[Applied] = [port.receive() for port in crew.writers]
        for tally, port in zip(self._routers, crew.routers, strict=True):
            tally.add_beside(port.receive())
        for writer, work, outcome in zip(self._writers, commands, applied, strict=True):
            writer.add(work, outcome)
            if self._checker:
                for command, statuses in zip(work, outcome.statuses, strict=True):
                    self._checker.apply(command, statuses)
        self._timeline.events.append(sum(count_events(work) for work in commands))
        self._timeline.writer_seconds.append(sum(outcome.seconds for outcome in applied))

    def _note(self, chunk: Sequence[PlannedRequest], hits: dict[str, int]) -> None:
        self._timeline.requests.append(chunk[-1].number + 1)
        self._timeline.prompt_blocks.append(sum(request.prompt_blocks for request in chunk))
        for name, count in hits.items():
            self._timeline.hit_blocks[name].append(count)

    def report(self, source: IndexSource, seconds: float) -> ReplayReport:
        """Put the figures together."""
        config, timeline, checker = self._config, self._timeline, self._checker
        for port in self._crew.routers:
            port.send("give_ups")
        give_ups: list[int] = [port.receive() for port in self._crew.routers]
        total = sum(timeline.prompt_blocks)
        served = {OVERLAP: self._fleet.served} | {n: fleet.served for n, fleet in self._baselines.items()}
        durations = [router.durations() for router in self._routers]
        check: CheckResult | None = None
        if checker:
            figures = (checker.answers, checker.exact, checker.events, checker.wrong)
            check = CheckResult(*figures, examples=checker.examples)
        return ReplayReport(
            options=asdict(config) | {"cache_blocks": config.engine_blocks},
            requests=len(self._workload.requests),
            prompt_blocks=total,
            linked=self._workload.linked,
            restarts=self._fleet.restarts,
            inside_evictions=self._fleet.inside_evictions,
            policies=[
                PolicyResult(name, sum(hits) / max(total, 1), sum(hits), served[name])
                for name, hits in timeline.hit_blocks.items()
            ],
            routers=[r.result(n) for r, n in zip(self._routers, give_ups, strict=True)],
            writers=[
                writer.result(len(range(number, config.workers, config.writers)))
                for number, writer in enumerate(self._writers)
            ],
            index=source.figures(verify=checker is not None),
            check=check,
            seconds=seconds,
            timeline=timeline,
            latencies={name: np.concatenate([d[name] for d in durations]) for name in durations[0]},
        )
