"""States of several processes, schedules that lead to them, and what comes of an exploration."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from tests.interleave.process import Node, Operation

Buffer = tuple[Operation, ...]


class State(NamedTuple):
    """A state of all processes."""

    nodes: tuple[Node, ...]
    words: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    dead: int  # bits
    deaths: int  # that may still come
    seen: tuple[Any, ...]  # by reader: outcomes of the others when it began


class Violation(AssertionError):
    """Something that must not be; with the schedule that leads there."""

    def __init__(self, what: str, schedule: str = "") -> None:
        super().__init__(f"{what}\n    schedule: {shorter(schedule)}")
        self.what, self.schedule = what, shorter(schedule)


class Report(NamedTuple):
    """What was explored."""

    states: int
    steps: int
    ends: int
    runs: int
    shared: int
    begun: int
    violation: Violation | None


def shorter(schedule: str) -> str:
    """A schedule with repetitions counted: ``A*3 B`` for ``A A A B``."""
    runs = [(action, len(list(same))) for action, same in itertools.groupby(schedule.split())]
    return " ".join(action if n == 1 else f"{action}*{n}" for action, n in runs)


def longer(schedule: str) -> list[str]:
    """The actions of a schedule."""
    parts = (part.partition("*") for part in schedule.split())
    return [action for action, _, n in parts for _ in range(int(n or 1))]
