"""The native trees: a program of its own that reads workload files and prints a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .machine import CORES, MAIN
from .model import Answers, differs

NAMES = {"crtc": "native CRTC", "chain_into": "native ChainIndex", "radix": "native RadixTree"}
_SECONDS = 600.0


def _run(binary: Path, *arguments: str, pinned: bool = True) -> dict[str, Any]:
    cores = {MAIN} if pinned else set(CORES)
    done = subprocess.run(
        [str(binary), *arguments],
        capture_output=True,
        timeout=_SECONDS,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def native_pass(binary: Path, index: str, workload: Path, rounds: int) -> dict[str, float]:
    """Latencies in stream order, static and hot; events a second; bytes."""
    said = _run(binary, index, str(workload), "--rounds", str(rounds))
    names = {"find_p50_ns": "find_p50", "find_p99_ns": "find_p99", "find_mean_ns": "find_mean"}
    names |= {
        "static_ns": "static_ns",
        "hot_p50_ns": "hot_ns",
        "ev_per_s": "events_s",
        "clock_ns": "clock_ns",
    }
    names |= {"live_bytes": "live_bytes", "rss_bytes": "rss_bytes"}
    return {ours: float(said[theirs]) for theirs, ours in names.items()}


def native_beside(binary: Path, index: str, workload: Path, rounds: int) -> dict[str, float]:
    """Finds beside a thread that applies the stream over and over; both threads on cores of their own."""
    said = _run(binary, index, str(workload), "--rounds", str(rounds), "--beside", pinned=False)
    return {
        "beside_p50": float(said["p50_ns"]),
        "beside_p99": float(said["p99_ns"]),
        "beside_p999": float(said["p999_ns"]),
        "beside_events_s": float(said["ev_per_s"]),
    }


def native_answers(binary: Path, index: str, workload: Path) -> Iterator[tuple[Any, Any]]:
    """What the native index answers to each query of the stream: workers, ascending, and depths."""
    out = workload.with_suffix(f".{index}.answers")
    try:
        _run(binary, index, str(workload), "--answers", str(out))
        words = np.fromfile(out, np.uint32)
    finally:
        out.unlink(missing_ok=True)
    at = 0
    while at < len(words):
        n = int(words[at])
        pairs = words[at + 1 : at + 1 + 2 * n].reshape(-1, 2)
        yield pairs[:, 0], pairs[:, 1]
        at += 1 + 2 * n


def native_wrong(binary: Path, index: str, workload: Path, answers: Answers) -> int:
    """Queries that the native index answers differently from the model."""
    found = native_answers(binary, index, workload)
    asked = range(len(answers.offsets) - 1)
    return sum(differs(answers, i, *pair) for i, pair in zip(asked, found, strict=True))
