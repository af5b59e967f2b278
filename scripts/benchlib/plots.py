"""Pictures: latency against depth, workers and size; throughput and memory against processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import curves, memory, processes
from .results import Results

_CURVES = (
    (curves.DEPTH, "hot_ns", "blocks of the query"),
    (curves.WORKERS, "hot_ns", "workers that hold the prefix"),
    (curves.SIZE, "find_p50", "blocks in the tree"),
)


def write_plots(results: Results, path: Path) -> None:
    """One picture with a panel for everything that was measured; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels: list[Any] = [c for c in _CURVES if results.rows(c[0])]
    panels += [(processes.SECTION, name) for name in ("finds_s", "memory") if results.rows(processes.SECTION)]
    panels += [(memory.SECTION,)] if results.rows(memory.SECTION) else []
    if not panels:
        raise ValueError("nothing to draw: --plot needs the depth, workers, size, processes or memory part")
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(6 * columns, 4.5 * rows), squeeze=False)
    spare = axes.ravel().tolist()
    for panel in panels:
        ax = spare.pop(0)
        if panel[0] == processes.SECTION:
            _processes(results, ax, panel[1])
        elif panel[0] == memory.SECTION:
            _bars(results, ax)
        else:
            _curve(results, ax, *panel)
    for ax in spare:
        ax.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _curve(results: Results, ax: Any, section: str, name: str, label: str) -> None:
    rows = results.rows(section)
    for index in dict.fromkeys(i for _, i in rows):
        points = []
        for workload in dict.fromkeys(w for w, _ in rows):
            value = results.get(section, workload, index, name)
            if value is None:
                value = results.get(section, workload, index, "static_ns")
            if value is not None:
                points.append((int(workload), value / 1e3))
        if points:
            ax.plot(*zip(*points, strict=True), marker="o", markersize=3, label=index, lw=_width(index))
    ax.set(xscale="log", yscale="log", xlabel=label, ylabel="us a find")
    ax.legend(fontsize=7)
    ax.grid(alpha=0.3)


def _width(index: str) -> float:
    return 2.0 if index.startswith("shmtrie") else 1.0


def _processes(results: Results, ax: Any, name: str) -> None:
    rows = results.rows(processes.SECTION)
    for index in dict.fromkeys(i for _, i in rows):
        points = []
        for workload in dict.fromkeys(w for w, _ in rows):
            value = results.get(processes.SECTION, workload, index, name)
            if value is not None:
                points.append((int(workload.rsplit("x", 1)[1]), value / 1e6))
        ax.plot(*zip(*points, strict=True), marker="o", label=index, lw=_width(index))
    ax.set(xlabel="router processes", ylabel="M finds a second" if name == "finds_s" else "MB of the index")
    ax.set_ylim(bottom=0)
    ax.legend(fontsize=7)
    ax.grid(alpha=0.3)


def _bars(results: Results, ax: Any) -> None:
    rows = results.rows(memory.SECTION)
    workloads = list(dict.fromkeys(w for w, _ in rows))
    indexes = list(dict.fromkeys(i for _, i in rows))
    for k, index in enumerate(indexes):
        values = [results.get(memory.SECTION, w, index, "per_block") or 0.0 for w in workloads]
        ax.bar(
            [j + k * 0.8 / len(indexes) for j in range(len(workloads))],
            values,
            0.8 / len(indexes),
            label=index,
        )
    ax.set_xticks([j + 0.4 for j in range(len(workloads))], workloads, fontsize=7)
    ax.set(ylabel="bytes a unique block", yscale="log")
    ax.legend(fontsize=7)
