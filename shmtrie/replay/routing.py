"""Choosing a worker: best overlap against load, and the two baselines that look at no cache.

Work is counted in blocks: what has to be prefilled and what decode appends. A worker's *backlog* is the
work that it has been given and has not done yet; every worker does `rate` blocks per millisecond.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .blocks import PlannedRequest

__all__ = ["Backlog", "RandomChoice", "RoundRobin", "choose", "service_rate"]


def service_rate(requests: Sequence[PlannedRequest], workers: int) -> float:
    """Return the speed at which `workers` just keep up with the trace if nothing is ever cached.

    Parameters
    ----------
    requests : sequence of PlannedRequest
        The whole trace, in time order.
    workers : int
        How many engines share it.

    Returns
    -------
    float
        Blocks per millisecond and worker, > 0. Tied to the trace, so that load means something with any
        number of workers and any block size.
    """
    work = sum(request.total_blocks for request in requests)
    span = requests[-1].time - requests[0].time if requests else 0.0
    return max(work, 1) / (max(span, 1.0) * workers)


class Backlog:
    """The work that each worker still has to do.

    Parameters
    ----------
    workers : int
        Number of workers.
    rate : float
        Blocks per millisecond that each of them does.

    Attributes
    ----------
    blocks : ndarray of float64, shape (workers,)
        The work waiting, in blocks.
    now : float
        The moment that it stands for, milliseconds.
    """

    def __init__(self, workers: int, rate: float) -> None:
        self.blocks: npt.NDArray[np.float64] = np.zeros(workers)
        self._rate = rate
        self.now = 0.0

    @classmethod
    def at(cls, blocks: npt.NDArray[np.float64], rate: float, now: float) -> Backlog:
        """Continue from `blocks` (float64, shape (workers,), copied) at time `now` (ms)."""
        backlog = cls(0, rate)
        backlog.blocks = blocks.copy()
        backlog.now = now
        return backlog

    def advance(self, now: float) -> None:
        """Let every worker work until `now` (ms)."""
        if now > self.now:
            self.blocks -= (now - self.now) * self._rate
            np.maximum(self.blocks, 0.0, out=self.blocks)
            self.now = now

    def add(self, worker: int, blocks: float) -> None:
        """Give a worker more work."""
        self.blocks[worker] += blocks


def choose(
    backlog: npt.NDArray[np.float64],
    workers: npt.NDArray[np.uint64],
    depths: npt.NDArray[np.uint32],
    blocks: int,
    number: int,
) -> tuple[int, int]:
    """Pick the worker that would be done first: its backlog and the blocks that it has to prefill.

    Parameters
    ----------
    backlog : ndarray of float64, shape (n_workers,)
        Work waiting, in blocks; worker ids are its indices.
    workers, depths : ndarray of uint64 and uint32, shape (n_matches,)
        Answer of the index: who holds how many blocks of the prompt.
    blocks : int
        Blocks of the prompt.
    number : int
        Number of the request: ties go round by it.

    Returns
    -------
    worker, depth : int
        The choice and the blocks of the prompt that it holds.

    Notes
    -----
    A worker that is none of the n_workers is passed over; judging answers is the check's business.
    """
    cost = backlog + float(blocks)
    known = workers < len(backlog)
    np.subtract.at(cost, workers[known].astype(np.intp), depths[known])
    best = np.flatnonzero(cost <= cost.min())
    worker = int(best[number % len(best)])
    found = np.flatnonzero(workers == worker)
    return worker, int(depths[found[0]]) if len(found) else 0


class RoundRobin:
    """Every worker in turn."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._next = 0

    def choose(self) -> int:
        """Return the next worker."""
        worker = self._next
        self._next = (worker + 1) % self._workers
        return worker


class RandomChoice:
    """Any worker, evenly; deterministic by seed."""

    def __init__(self, workers: int, seed: int) -> None:
        self._workers = workers
        self._random = random.Random(seed).random

    def choose(self) -> int:
        """Return some worker."""
        return int(self._random() * self._workers)
