"""Sums over the rounds of a replay, per router and per writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import EventStatus
from ..events import EventBatch
from .eventlog import Command
from .messages import Answers, Applied, Latencies
from .report import RouterResult, WriterResult, summarize

__all__ = ["RouterTally", "WriterTally", "count_events"]

I64 = npt.NDArray[np.int64]


def count_events(commands: Sequence[Command]) -> int:
    """Count the events in a writer's commands; the removal of a worker is none."""
    return sum(len(command) for command in commands if isinstance(command, EventBatch))


class RouterTally:
    """What one router measured."""

    def __init__(self) -> None:
        self._deciding: list[I64] = []
        self._repeated: list[I64] = []
        self._beside: list[I64] = []
        self._above_length = 0

    def add_answers(self, answers: Answers) -> None:
        """Add a round's finds without writers."""
        self._deciding.append(answers.nanoseconds)
        self._repeated.append(answers.again)

    def add_beside(self, latencies: Latencies) -> None:
        """Add a round's finds beside writers."""
        self._beside.append(latencies.nanoseconds)
        self._above_length += latencies.above_length

    def durations(self) -> dict[str, I64]:
        """Return all durations, ns, by the names of `RouterResult`."""
        parts = {"deciding": self._deciding, "repeated": self._repeated, "beside": self._beside}
        return {name: np.concatenate([np.empty(0, np.int64), *part]) for name, part in parts.items()}

    def result(self, give_ups: int) -> RouterResult:
        """Summarise; `give_ups` is what the router's handle counted."""
        durations = self.durations()
        return RouterResult(
            deciding=summarize(durations["deciding"]),
            repeated=summarize(durations["repeated"]),
            beside=summarize(durations["beside"]),
            above_length=self._above_length,
            give_ups=give_ups,
        )


class WriterTally:
    """What one writer applied."""

    def __init__(self) -> None:
        self._events = self._blocks = self._retries = 0
        self._seconds = self._cpu_seconds = 0.0
        self._statuses: Counter[int] = Counter()

    def add(self, commands: Sequence[Command], outcome: Applied) -> None:
        """Add a round."""
        self._events += count_events(commands)
        self._blocks += sum(len(command.external) for command in commands if isinstance(command, EventBatch))
        self._seconds += outcome.seconds
        self._cpu_seconds += outcome.cpu_seconds
        self._retries += outcome.busy_retries
        for statuses in outcome.statuses:
            self._statuses.update(statuses[statuses != EventStatus.OK].tolist())

    def result(self, workers: int) -> WriterResult:
        """Summarise; `workers` is how many this writer has."""
        return WriterResult(
            workers=workers,
            events=self._events,
            blocks=self._blocks,
            seconds=self._seconds,
            cpu_seconds=self._cpu_seconds,
            rejected={EventStatus(code).name: count for code, count in self._statuses.items()},
            busy_retries=self._retries,
        )
