#!/usr/bin/env python3
"""Replay a request trace through simulated engines, writer processes, one segment and router processes.

Without ``--trace`` a built-in generator makes the requests. Exit code 0: done; 1: wrong answers were found;
2: the options or the trace are unusable, or a process or the segment failed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from shmtrie.errors import ShmtrieError
from shmtrie.replay import (
    ReplayConfig,
    ReplayReport,
    TraceRequest,
    generate_trace,
    read_trace,
    run_replay,
)

DEFAULT_REQUESTS = 4000
WRONG, UNUSABLE = 1, 2


@contextlib.contextmanager
def progress_bar(requests: int) -> Iterator[Callable[[int], None]]:
    """Give a function that shows how many requests are done: a bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests", total=requests)
        yield lambda done: bar.update(task, completed=done)


def fail(message: str) -> typer.Exit:
    """Say on stderr why there is no result."""
    typer.echo(f"replay: {message}", err=True)
    return typer.Exit(UNUSABLE)


def load(trace: Path | None, requests: int | None, seed: int) -> list[TraceRequest]:
    """Read the trace or make one."""
    if trace is not None:
        return read_trace(trace, requests)
    return generate_trace(requests or DEFAULT_REQUESTS, seed)


def check_outputs(json_file: Path | None, plot_file: Path | None) -> None:
    """Find out before a long run that its results could not be written."""
    for path in (json_file, plot_file):
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            raise ValueError(f"cannot write {path}: it must be a file in a directory that can be written")
    if plot_file is not None:
        import matplotlib.pyplot

        formats = matplotlib.pyplot.figure().canvas.get_supported_filetypes()
        matplotlib.pyplot.close("all")
        if plot_file.suffix.lstrip(".").lower() not in formats:
            raise ValueError(f"--plot: no picture format {plot_file.suffix!r}; one of {', '.join(formats)}")


def write_outputs(report: ReplayReport, json_file: Path | None, plot_file: Path | None) -> None:
    """Print the tables and write the files that were asked for."""
    report.print(sys.stdout)
    if json_file is not None:
        report.write_json(json_file)
    if plot_file is not None:
        from shmtrie.replay.plot import write_plot

        write_plot(report, plot_file)


def terminate(number: int, frame: FrameType | None) -> None:
    """Turn SIGTERM into an exception, so that processes and segment are cleaned up."""
    raise SystemExit(128 + number)


def replay(
    trace: Annotated[
        Path | None, typer.Option(help="Mooncake-format trace, plain or gzip; default: built-in requests")
    ] = None,
    workers: Annotated[int, typer.Option(help="simulated engines")] = 64,
    writers: Annotated[int, typer.Option(help="processes that apply events")] = 2,
    routers: Annotated[int, typer.Option(help="processes that find and choose")] = 2,
    block_tokens: Annotated[int, typer.Option(help="tokens of an index block: 512 or a divisor")] = 512,
    cache_blocks: Annotated[
        int | None, typer.Option(help="blocks that an engine caches; default: 524,288 tokens' worth")
    ] = None,
    restarts: Annotated[int, typer.Option(help="how often an engine loses its cache")] = 0,
    mid_evictions: Annotated[
        bool, typer.Option("--mid-evictions", help="engines also evict from the middle of chains")
    ] = False,
    requests: Annotated[int | None, typer.Option(min=1, help="only so many; built-in: 4,000")] = None,
    seed: Annotated[int, typer.Option(help="of everything drawn")] = 0,
    check: Annotated[bool, typer.Option("--check", help="compare every answer with a model")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the report there")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="draw a picture there (needs matplotlib)")
    ] = None,
    exact_holes: Annotated[
        bool, typer.Option("--exact-holes", help="keep what is behind a removed block")
    ] = False,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="the plain-Python tree in one process, for comparison")
    ] = False,
) -> None:
    """Replay a request trace: engines, writers, one shared index, routers."""
    signal.signal(signal.SIGTERM, terminate)
    try:
        config = ReplayConfig(
            workers=workers,
            writers=writers,
            routers=routers,
            block_tokens=block_tokens,
            cache_blocks=cache_blocks,
            restarts=restarts,
            mid_evictions=mid_evictions,
            seed=seed,
            check=check,
            exact_holes=exact_holes,
            in_process=in_process,
        )
        check_outputs(json_file, plot_file)
        loaded = load(trace, requests, seed)
        with progress_bar(len(loaded)) as progress:
            report = run_replay(config, loaded, progress)
        write_outputs(report, json_file, plot_file)
    except (ShmtrieError, ValueError, OSError, NotImplementedError) as error:
        raise fail(str(error)) from error
    except ImportError as error:
        raise fail(f"{error}; pip install 'shmtrie[cli,plot]' brings what this needs") from error
    if report.wrong:
        typer.echo(f"replay: {report.wrong:,} wrong", err=True)
        raise typer.Exit(WRONG)


if __name__ == "__main__":
    typer.run(replay)
