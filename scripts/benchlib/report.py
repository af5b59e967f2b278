"""Tables of the figures."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from . import beside, curves, evictions, holes, memory, processes, service, startup
from .goals import WORKLOADS, Verdict, verdicts
from .results import Results

_MET = {True: "met", False: "missed", None: "not measured"}
Column = tuple[str, str, Callable[[float], str]]


def _time(ns: float) -> str:
    if abs(ns) < 1_000:
        return f"{ns:.0f} ns"
    return f"{ns / 1e3:.2f} us" if abs(ns) < 1e6 else f"{ns / 1e6:.2f} ms"


def _rate(n: float) -> str:
    return f"{n / 1e6:.2f} M" if n >= 1e6 else f"{n / 1e3:.1f} k"


def _bytes(n: float) -> str:
    return f"{n:.1f}"


def _mega(n: float) -> str:
    return f"{n / 1e6:.1f}"


def _seconds(n: float) -> str:
    return f"{n:.2f}"


def _count(n: float) -> str:
    return f"{n:,.0f}"


def _kilo(n: float) -> str:
    return f"{n / 1e3:,.0f}"


def _share(n: float) -> str:
    return f"{n * 100:.1f} %"


_UNITS: dict[str, Callable[[float], str]] = {
    "ns": _time,
    "/s": _rate,
    "B": _bytes,
    "s": _seconds,
    "MB": _mega,
}

_TABLES: dict[str, tuple[str, tuple[Column, ...]]] = {
    WORKLOADS: (
        "Workloads: each call timed in stream order; events alone, one call each or packed; kernel alone",
        (
            ("find p50", "find_p50", _time),
            ("p99", "find_p99", _time),
            ("static", "static_ns", _time),
            ("in a batch", "batch_ns", _time),
            ("hot", "hot_ns", _time),
            ("store p50", "store_p50", _time),
            ("remove p50", "remove_p50", _time),
            ("events/s", "events_s", _rate),
            ("blocks/s", "blocks_s", _rate),
        ),
    ),
    memory.SECTION: (
        "Memory: bytes by unique block, by pair of worker and block, and in all",
        (
            ("B / unique block", "per_block", _bytes),
            ("B / pair", "per_pair", _bytes),
            ("MB", "bytes", _mega),
            ("lookup MB", "lookup", _mega),
        ),
    ),
    processes.SECTION: (
        "Router processes: one segment, or a copy each",
        (
            ("finds/s in all", "finds_s", _rate),
            ("find p50", "find_p50", _time),
            ("p99", "find_p99", _time),
            ("CPU s for the events", "events_cpu_s", _seconds),
            ("MB of the index in all", "memory", _mega),
        ),
    ),
    beside.SECTION: (
        "Readers beside a writer at full speed",
        (
            ("find p50", "find_p50", _time),
            ("p99", "find_p99", _time),
            ("p99.9", "find_p999", _time),
            ("kernel p50", "kernel_find_p50", _time),
            ("p99", "kernel_find_p99", _time),
            ("p99.9", "kernel_find_p999", _time),
            ("writer events/s", "events_s", _rate),
        ),
    ),
    startup.SECTION: ("Start-up with cached kernels", (("seconds", "seconds", _seconds),)),
    curves.DEPTH: ("Cost of a find against depth in blocks, hot", (("find", "hot_ns", _time),)),
    curves.WORKERS: (
        "Cost of a find against workers on a prefix of 128 blocks, hot",
        (("find", "hot_ns", _time), ("two hold 16 more", "hot_ns_1", _time)),
    ),
    curves.SIZE: (
        "Cost of a find of 256 blocks against the size of the tree; longest store while it was filled",
        (
            ("find p50", "find_p50", _time),
            ("p99", "find_p99", _time),
            ("static", "static_ns", _time),
            ("worst store", "store_worst_ns", _time),
        ),
    ),
    curves.PIECES: (
        "A prefix of 64 blocks, whole and in one-block nodes",
        (("whole", "whole_ns", _time), ("in pieces", "pieces_ns", _time), ("a node step", "step_ns", _time)),
    ),
    evictions.SECTION: (
        "Chains evicted block by block; with half of the blocks gone: what is there, and what counts when "
        "these are stored again",
        (
            ("blocks held", "held", _count),
            ("known", "known", _count),
            ("nodes", "nodes", _count),
            ("kB", "bytes", _kilo),
            ("counted again", "refilled", _share),
            ("splits in all", "splits", _count),
            ("a block, calls", "evict_ns", _time),
            ("a block, packed", "packed_ns", _time),
            ("nodes left", "left_nodes", _count),
            ("bytes left", "left_bytes", _count),
        ),
    ),
    holes.SECTION: (
        "Single blocks removed and stored again: answers beside what the engines hold",
        (
            ("queries", "asked", _count),
            ("exact", "exact", _count),
            ("under", "under", _count),
            ("over", "over", _count),
            ("of held blocks", "share", _share),
            ("events refused", "refused", _count),
            ("nodes", "nodes", _count),
            ("kB", "bytes", _kilo),
            ("find p50", "find_p50", _time),
            ("events/s, calls", "events_s", _rate),
            ("prepared", "packed_s", _rate),
        ),
    ),
    service.SECTION: (
        "A service on the same host",
        (("find p50", "find_p50", _time), ("p99", "find_p99", _time)),
    ),
}


def print_report(results: Results, console: Console) -> None:
    """All tables, then the goals."""
    for section in results.sections():
        if section in _TABLES:
            console.print(_section(results, section))
    console.print(_answers(results))
    console.print(_goals(verdicts(results)))
    told = {key: value for key, value in results.machine.items()}
    console.print(" | ".join(f"{key} {value}" for key, value in told.items()))
    if results.foreign:
        worst = max(results.foreign.items(), key=lambda item: item[1])
        console.print(f"cores used by others meanwhile: at most {worst[1]:.2f} (at {worst[0]})")


def _section(results: Results, section: str) -> Table:
    title, columns = _TABLES[section]
    table = Table(title=title, title_justify="left")
    table.add_column("workload")
    table.add_column("index")
    rows = results.rows(section)
    used = [c for c in columns if any(results.get(section, w, i, c[1]) is not None for w, i in rows)]
    for heading, _, _ in used:
        table.add_column(heading, justify="right")
    before = None
    for workload, index in rows:
        cells = [_cell(results, section, workload, index, name, shown) for _, name, shown in used]
        placed = results.placement.get((workload, index), "pinned")
        label = index if placed == "pinned" or section != WORKLOADS else f"{index} ({placed})"
        table.add_row("" if workload == before else workload, label, *cells, end_section=False)
        before = workload
    return table


def _cell(
    results: Results, section: str, workload: str, index: str, name: str, shown: Callable[[float], str]
) -> str:
    value = results.get(section, workload, index, name)
    if value is None:
        return ""
    spread = results.spread(section, workload, index, name)
    if spread is None or spread[0] == spread[1] or not value:
        return shown(value)
    half = (spread[1] - spread[0]) / 2 / abs(value)
    return f"{shown(value)} ±{half * 100:.0f}%"


def _answers(results: Results) -> Table:
    table = Table(title="Answers that differ from the model", title_justify="left")
    for heading in ("workload", "index", "wrong", "asked"):
        table.add_column(heading)
    for (workload, index), (wrong, asked) in results.wrong.items():
        if wrong:
            table.add_row(workload, index, f"{wrong:,}", f"{asked:,}")
    if not table.row_count:
        checked = sum(asked for _, asked in results.wrong.values())
        table.add_row("all", "all", "0", f"{checked:,}")
    return table


def _goals(found: list[Verdict]) -> Table:
    table = Table(title="Figures to reach", title_justify="left")
    for heading in ("what", "against"):
        table.add_column(heading)
    for heading in ("ours", "peer", "ratio", "goal"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for v in found:
        shown = _UNITS[v.goal.unit]
        least = v.goal.way in ("faster", "rate", "least")
        own = v.goal.peer is None
        bound = shown(v.goal.bound) if own else f"{v.goal.bound:g}x"
        table.add_row(
            v.goal.what,
            v.goal.against,
            "" if v.ours is None else shown(v.ours),
            "" if v.peer is None else shown(v.peer),
            "" if v.ratio is None or own else f"{v.ratio:.2f}x",
            f"{'>=' if least else '<='} {bound}",
            _MET[v.met],
            style="red" if v.met is False else None,
        )
    return table


def goals_as_dict(results: Results) -> list[dict[str, object]]:
    """The table of goals for JSON."""
    return [
        {
            "what": v.goal.what,
            "against": v.goal.against,
            "ours": v.ours,
            "peer": v.peer,
            "ratio": v.ratio,
            "goal": v.goal.bound,
            "way": v.goal.way,
            "verdict": _MET[v.met],
        }
        for v in verdicts(results)
    ]
