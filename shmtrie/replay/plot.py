"""The picture of a replay; needs matplotlib, which nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .report import ReplayReport

__all__ = ["write_plot"]


def write_plot(report: ReplayReport, path: str | Path) -> None:
    """Draw hit rates, latencies, load and event speed of a replay into one picture.

    Parameters
    ----------
    report : ReplayReport
        The replay.
    path : str or Path
        Where to; the ending chooses the format (png, pdf, svg).

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    OSError, ValueError
        If the file cannot be written or its ending is unknown.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    try:
        _hit_rates(axes[0][0], report)
        _latencies(axes[0][1], report)
        _load(axes[1][0], report)
        _events(axes[1][1], report)
        options = report.options
        figure.suptitle(
            f"{report.requests:,} requests, {options['block_tokens']}-token blocks, "
            f"{options['workers']} workers, {options['writers']} writers, {options['routers']} routers"
        )
        figure.savefig(path, dpi=120)
    finally:
        pyplot.close(figure)


def _hit_rates(axis: Any, report: ReplayReport) -> None:
    timeline = report.timeline
    blocks = np.maximum(np.cumsum(timeline.prompt_blocks), 1)
    for name, hits in timeline.hit_blocks.items():
        axis.plot(timeline.requests, np.cumsum(hits) / blocks, label=name)
    axis.set(title="cache hit rate so far", xlabel="requests", ylabel="cached prompt blocks", ylim=(0, None))
    axis.legend()


def _latencies(axis: Any, report: ReplayReport) -> None:
    drawn = False
    for name, nanoseconds in report.latencies.items():
        if len(nanoseconds):
            values = np.sort(nanoseconds) / 1e3
            axis.plot(values, np.arange(1, len(values) + 1) / len(values), label=name)
            drawn = True
    axis.set(title="find_matches, all routers", xlabel="microseconds", ylabel="share of calls", ylim=(0, 1))
    if drawn:
        axis.set_xscale("log")
        axis.legend(loc="lower right")


def _load(axis: Any, report: ReplayReport) -> None:
    for policy in report.policies:
        axis.plot(sorted(policy.requests_per_worker, reverse=True), label=policy.name)
    axis.set(
        title="spread over the workers", xlabel="workers, busiest first", ylabel="requests", ylim=(0, None)
    )
    axis.legend()


def _events(axis: Any, report: ReplayReport) -> None:
    timeline = report.timeline
    seconds = np.array(timeline.writer_seconds)
    busy = seconds > 0
    speed = np.array(timeline.events, float)[busy] / seconds[busy]
    axis.plot(np.array(timeline.requests)[busy], speed, linewidth=0.8)
    axis.set(title="events per second inside the index, a writer", xlabel="requests", ylim=(0, None))
