"""What a replay found out: the figures, their JSON, and the table on the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from .check import Wrong
from .sources import IndexFigures

__all__ = [
    "CheckResult",
    "LatencySummary",
    "PolicyResult",
    "ReplayReport",
    "RouterResult",
    "Timeline",
    "WriterResult",
    "summarize",
]

_FORMAT = 1


class LatencySummary(NamedTuple):
    """Durations of `find_matches` calls, from Python, in microseconds; NaN where there was no call."""

    finds: int
    p50: float
    p99: float
    longest: float


def summarize(nanoseconds: npt.NDArray[np.int64]) -> LatencySummary:
    """Summarise durations.

    Parameters
    ----------
    nanoseconds : ndarray of int64, shape (n,)
        One per call.

    Returns
    -------
    LatencySummary
        In microseconds.
    """
    if not len(nanoseconds):
        return LatencySummary(0, float("nan"), float("nan"), float("nan"))
    p50, p99, longest = (float(v) / 1e3 for v in np.percentile(nanoseconds, (50, 99, 100)))
    return LatencySummary(len(nanoseconds), p50, p99, longest)


@dataclass(frozen=True)
class PolicyResult:
    """One way to route: blocks of all prompts that were cached where the request went, and the spread."""

    name: str
    hit_rate: float
    hit_blocks: int
    requests_per_worker: list[int]


@dataclass(frozen=True)
class RouterResult:
    """One router: latencies of the finds that decided, of the same repeated, and of that beside writers.

    The first two are from moments without writers; deciding finds meet cold caches. `give_ups` are finds
    that stopped early because writers kept changing their path.
    """

    deciding: LatencySummary
    repeated: LatencySummary
    beside: LatencySummary
    above_length: int
    give_ups: int


@dataclass(frozen=True)
class WriterResult:
    """One writer: what it applied, in which time inside the index, and what the index refused."""

    workers: int
    events: int
    blocks: int
    seconds: float
    cpu_seconds: float
    rejected: dict[str, int]
    busy_retries: int

    @property
    def events_per_second(self) -> float:
        """Events per second of time inside the index."""
        return self.events / self.seconds if self.seconds else 0.0

    @property
    def blocks_per_second(self) -> float:
        """Blocks, stored and removed, per second of time inside the index."""
        return self.blocks / self.seconds if self.seconds else 0.0

    @property
    def events_per_cpu_second(self) -> float:
        """Events per second on a processor; above the other where writers have to share one."""
        return self.events / self.cpu_seconds if self.cpu_seconds else 0.0


@dataclass(frozen=True)
class CheckResult:
    """Outcome of ``--check``: `exact` answers had one allowed value for every worker."""

    answers: int
    exact: int
    events: int
    wrong: int
    examples: list[Wrong]


@dataclass
class Timeline:
    """Per round: requests served so far, prompt blocks, cached ones per policy, events, writer seconds."""

    requests: list[int] = field(default_factory=list)
    prompt_blocks: list[int] = field(default_factory=list)
    hit_blocks: dict[str, list[int]] = field(default_factory=dict)
    events: list[int] = field(default_factory=list)
    writer_seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class ReplayReport:
    """Everything that a replay reports.

    Parameters
    ----------
    options : dict
        The configuration, as JSON has it.
    requests, prompt_blocks, linked : int
        Size of the trace; `linked` answers were part of a later prompt.
    restarts, inside_evictions : int
        How often engines lost their cache, and a block from the middle of a chain.
    policies, routers, writers : list
        Results of each.
    index : IndexFigures
        Size at the end.
    check : CheckResult or None
        None without ``--check``.
    seconds : float
        Duration of the rounds; start and end of the processes are not in it.
    timeline : Timeline
        For the plot.
    latencies : dict of str to ndarray of int64
        All durations, ns, by the names of `RouterResult`; not in the JSON.
    """

    options: dict[str, Any]
    requests: int
    prompt_blocks: int
    linked: int
    restarts: int
    inside_evictions: int
    policies: list[PolicyResult]
    routers: list[RouterResult]
    writers: list[WriterResult]
    index: IndexFigures
    check: CheckResult | None
    seconds: float
    timeline: Timeline
    latencies: dict[str, npt.NDArray[np.int64]]

    @property
    def wrong(self) -> int:
        """Everything that must not happen: answers and statuses beside the model, broken invariants."""
        wrong = sum(router.above_length for router in self.routers) + len(self.index.broken or ())
        return wrong + (self.check.wrong if self.check else 0)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain dicts and lists; NaN becomes None."""
        return {
            "format": _FORMAT,
            "options": self.options,
            "requests": self.requests,
            "prompt_blocks": self.prompt_blocks,
            "linked": self.linked,
            "restarts": self.restarts,
            "inside_evictions": self.inside_evictions,
            "policies": [asdict(policy) for policy in self.policies],
            "routers": [
                {
                    "deciding_us": _latency_json(router.deciding),
                    "repeated_us": _latency_json(router.repeated),
                    "beside_us": _latency_json(router.beside),
                    "above_length": router.above_length,
                    "give_ups": router.give_ups,
                }
                for router in self.routers
            ],
            "writers": [
                asdict(w)
                | {
                    "events_per_second": w.events_per_second,
                    "blocks_per_second": w.blocks_per_second,
                    "events_per_cpu_second": w.events_per_cpu_second,
                }
                for w in self.writers
            ],
            "index": self.index._asdict(),
            "check": asdict(self.check) if self.check else None,
            "wrong": self.wrong,
            "seconds": self.seconds,
            "timeline": asdict(self.timeline),
        }

    def write_json(self, path: str | Path) -> None:
        """Write `to_json` to a file; OSError as `open`."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.to_json(), file)
            file.write("\n")

    def print(self, file: TextIO) -> None:
        """Print the tables, readable with and without a terminal."""
        for title, rows in self._tables():
            file.write(f"\n{title}\n")
            _write_rows(file, rows)
        if self.check and self.check.examples:
            file.write("\nwrong (the first ones)\n")
            for example in self.check.examples:
                where = f"request {example.request}, " if example.request >= 0 else ""
                who = f"worker {example.worker}: " if example.worker >= 0 else ""
                file.write(f"  {where}{who}{example.what}\n")
        for broken in self.index.broken or ():
            file.write(f"  broken invariant {broken}\n")
        file.flush()

    def _tables(self) -> Iterator[tuple[str, list[list[str]]]]:
        rows = [["routing", "hit rate", "hit blocks", "busiest worker"]]
        for p in self.policies:
            share = max(p.requests_per_worker) * len(p.requests_per_worker) / max(self.requests, 1)
            rows.append([p.name, f"{p.hit_rate:.1%}", f"{p.hit_blocks:,}", f"{share:.2f} x mean"])
        yield f"{self.requests:,} requests, {self.prompt_blocks:,} prompt blocks", rows
        rows = [["router", "finds", "deciding", "repeated", "finds beside", "beside writers", "gave up"]]
        for i, r in enumerate(self.routers):
            idle = [f"{r.deciding.finds:,}", _latency(r.deciding), _latency(r.repeated)]
            rows.append([str(i), *idle, f"{r.beside.finds:,}", _latency(r.beside), f"{r.give_ups:,}"])
        yield "find_matches from Python, p50 / p99 us", rows
        rows = [["writer", "workers", "events", "blocks", "events/s", "blocks/s", "events/CPU s", "rejected"]]
        for i, w in enumerate(self.writers):
            reasons = ", ".join(f"{n:,} {name}" for name, n in sorted(w.rejected.items())) or "0"
            speeds = [w.events_per_second, w.blocks_per_second, w.events_per_cpu_second]
            cells = [f"{n:,.0f}" for n in (w.workers, w.events, w.blocks, *speeds)]
            rows.append([str(i), *cells, reasons])
        yield "events applied, by the time inside the index", rows
        rows = [
            ["index", ""],
            ["blocks", f"{self.index.unique_blocks:,}"],
            ["nodes", f"{self.index.nodes:,}"],
        ]
        if self.index.bytes_used is not None:
            rows.append(["bytes in use", f"{self.index.bytes_used:,}"])
        if self.index.bytes_per_block is not None:
            rows.append(["bytes per block", f"{self.index.bytes_per_block:.1f}"])
        if self.index.segment_bytes is not None:
            rows.append(["bytes of the segment", f"{self.index.segment_bytes:,}"])
        if self.restarts or self.inside_evictions:
            rows.append(["engine restarts", f"{self.restarts:,}"])
            rows.append(["mid-chain evictions", f"{self.inside_evictions:,}"])
        if self.check:
            rows.append(["checked answers", f"{self.check.answers:,} ({self.check.exact:,} exactly)"])
            rows.append(["checked events", f"{self.check.events:,}"])
        if self.index.broken is not None:
            rows.append(["verify", "clean" if not self.index.broken else f"{len(self.index.broken)} broken"])
        rows.append(["wrong", f"{self.wrong:,}"])
        rows.append(["seconds", f"{self.seconds:.1f}"])
        yield "index and run", rows


def _latency_json(summary: LatencySummary) -> dict[str, float | int | None]:
    return {k: None if math.isnan(v) else v for k, v in summary._asdict().items()}


def _latency(summary: LatencySummary) -> str:
    return f"{summary.p50:.2f} / {summary.p99:.2f}" if summary.finds else "-"


def _write_rows(file: TextIO, rows: Sequence[Sequence[str]]) -> None:
    """Align columns, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        file.write(f"  {'  '.join(cells).rstrip()}\n")
        if number == 0:
            file.write(f"  {'-' * (sum(widths) + 2 * (len(widths) - 1))}\n")
