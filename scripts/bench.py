#!/usr/bin/env python3
"""Measure shmtrie beside what one would use instead, on the same workloads, answers checked.

Without ``--trace`` a built-in generator makes the requests. ai-dynamo-runtime takes part when it is installed
(the ``bench`` extra), the native Rust trees with ``--native BINARY``. Every run ends with the table of the
figures to reach. Exit code 0: done; 1: shmtrie gave wrong answers; 2: something cannot be measured.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from benchlib import (
    beside,
    compiled,
    curves,
    evictions,
    holes,
    machine,
    memory,
    processes,
    report,
    service,
    side_by_side,
    startup,
)
from benchlib.catalog import Sources, catalog
from benchlib.results import Results
from rich.console import Console

from shmtrie.errors import ShmtrieError
from shmtrie.replay import read_trace

WRONG, UNUSABLE = 1, 2
MEMORY_WORKLOADS = ("million_u", "conv_w64_g1", "million_c4", "million_c4_seeds")
MAIN_WORKLOAD = "conv_w64_g1"
QUICK_WORKLOADS = ("conv_w64_g1", "wide", "deep", "churn")
PARTS = (
    *("memory", "processes", "beside", "startup", "depth", "workers", "size", "pieces"),
    *("evictions", "holes", "service"),
)
QUICK_SCALE = 0.1


def steps(
    names: list[str], sources: Sources, plan: side_by_side.Plan, results: Results, say: Callable[[str], None]
) -> list[tuple[str, Callable[[], Any]]]:
    """What to do, in order."""
    makers = catalog(sources)
    known = [*makers, *PARTS]
    wrong = [name for name in names if name not in known]
    if wrong:
        raise ValueError(f"unknown: {', '.join(wrong)}; known are {', '.join(known)}")
    if not names:
        names = [*QUICK_WORKLOADS, *PARTS] if plan.quick else known
    parts: dict[str, Callable[[], Any]] = {
        "memory": lambda: memory.measure({n: makers[n] for n in MEMORY_WORKLOADS}, plan, results, say),
        "processes": lambda: processes.measure(makers[MAIN_WORKLOAD](), plan, results, say),
        "beside": lambda: [
            beside.measure(makers[n](), plan, results, say)
            for n in ((MAIN_WORKLOAD,) if plan.quick else (MAIN_WORKLOAD, "churn", "wide", "fanout"))
        ],
        "startup": lambda: startup.measure(plan, results, say),
        "depth": lambda: curves.depth(plan, results, say),
        "workers": lambda: curves.workers(plan, results, say),
        "size": lambda: curves.size(plan, results, say),
        "pieces": lambda: curves.pieces(plan, results, say),
        "evictions": lambda: evictions.measure(sources.scaled(100_000, 5_000), plan, results, say),
        "holes": lambda: [
            holes.measure(holes.holes(sources.scaled(20_000), share), plan, results, say)
            for share in holes.SHARES
        ],
        "service": lambda: service.measure(makers["synth_w64_g1"](), plan, results, say),
    }
    found: list[tuple[str, Callable[[], Any]]] = []
    for name in names:
        if name == "service" and not service.available():
            say("service: ai-dynamo-runtime or pyzmq is not installed, left out")
        elif name in parts:
            found.append((name, parts[name]))
        else:
            found.append((name, lambda name=name: side_by_side.measure(makers[name](), plan, results, say)))
    return found


def terminate(number: int, frame: FrameType | None) -> None:
    """Turn SIGTERM into an exception, so that segments and processes are cleaned up."""
    raise SystemExit(128 + number)


def bench(
    only: Annotated[
        list[str] | None,
        typer.Option(help="a workload or part, several with commas or repeated; default: all"),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="conversation trace in Mooncake's format; default: built-in requests")
    ] = None,
    synthetic_trace: Annotated[
        Path | None, typer.Option(help="trace of the synth workload; default: built-in requests")
    ] = None,
    native: Annotated[Path | None, typer.Option(help="program that runs the native Rust trees")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="few workloads at a tenth of their size, once")
    ] = False,
    reps: Annotated[int | None, typer.Option(min=1, help="repetitions; default 3, with --quick 1")] = None,
    scale: Annotated[float | None, typer.Option(help="size of the workloads; default 1")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all figures there")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="draw pictures there")] = None,
) -> None:
    """Measure shmtrie beside other indexes."""
    signal.signal(signal.SIGTERM, terminate)
    status = Console(stderr=True)
    results = Results(machine.describe())
    sources = Sources(trace, synthetic_trace, scale or (QUICK_SCALE if quick else 1.0))
    names = [part for item in only or [] for part in item.split(",") if part]
    try:
        if native is not None and not os.access(native, os.X_OK):
            raise ValueError(f"--native: {native} is no program")
        for path in (trace, synthetic_trace):
            if path is not None:
                read_trace(path, 1)
        for path in (json_file, plot_file):
            if path is not None and not os.access(path.parent, os.W_OK):
                raise ValueError(f"cannot write {path}")
        with tempfile.TemporaryDirectory(prefix="shmtrie-bench-") as directory, status.status("") as spinner:

            def say(text: str) -> None:
                spinner.update(text)
                if not status.is_terminal:
                    print(text, file=sys.stderr, flush=True)

            plan = side_by_side.Plan(reps or (1 if quick else 3), native, Path(directory), quick)
            todo = steps(names, sources, plan, results, say)
            say("compiling")
            compiled.warm_up()
            for number, (name, step) in enumerate(todo, 1):
                load = machine.ForeignLoad()
                say(f"{number} of {len(todo)}: {name}")
                step()
                results.foreign[name] = load.cores()
    except (ShmtrieError, ValueError, OSError, RuntimeError, ImportError) as error:
        typer.echo(f"bench: {error}", err=True)
        raise typer.Exit(UNUSABLE) from error
    except KeyboardInterrupt:
        typer.echo("bench: stopped; what was measured so far:", err=True)
    report.print_report(results, Console(width=None if sys.stdout.isatty() else 200))
    if json_file is not None:
        results.write(json_file, {"goals": report.goals_as_dict(results), "scale": sources.scale})
    if plot_file is not None:
        from benchlib.plots import write_plots

        write_plots(results, plot_file)
    if any(wrong for (_, index), (wrong, _) in results.wrong.items() if index.startswith("shmtrie")):
        raise typer.Exit(WRONG)


if __name__ == "__main__":
    typer.run(bench)
