"""What a replay's parent says to its writers and routers, and what they answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Answers", "Applied", "Ask", "Beside", "Latencies"]

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class Ask(NamedTuple):
    """To a router: choose a worker for each of these requests.

    Parameters
    ----------
    numbers : ndarray of int64, shape (n,)
        The requests.
    times : ndarray of float64, shape (n,)
        Arrivals, milliseconds.
    local, offsets : ndarray of uint64, shape (m,), and int64, shape (n + 1,)
        Query i is ``local[offsets[i]:offsets[i + 1]]``.
    backlog : ndarray of float64, shape (n_workers,)
        Work of every worker, in blocks, at `now`.
    now, rate : float
        Milliseconds; blocks per millisecond and worker.
    full : bool
        Whether the whole answers are wanted back, for the check.
    again : bool
        Whether to ask everything once more, for the latency of repeated finds.
    """

    numbers: I64
    times: npt.NDArray[np.float64]
    local: U64
    offsets: I64
    backlog: npt.NDArray[np.float64]
    now: float
    rate: float
    full: bool
    again: bool


class Answers(NamedTuple):
    """From a router: choices, latencies and, if wanted, whole answers.

    Parameters
    ----------
    chosen, depths : ndarray of int64, shape (n,)
        The worker for each request and the blocks of the prompt that it holds, by the index.
    nanoseconds, again : ndarray of int64, shape (n,)
        Duration of each `find_matches` call, and of its repetition; the latter empty if not wanted.
    offsets, workers, scores : ndarray of int64, uint64, uint32
        Answer i is the slice ``offsets[i]:offsets[i + 1]`` of the two others; empty if not wanted.
    """

    chosen: I64
    depths: I64
    nanoseconds: I64
    again: I64
    offsets: I64
    workers: U64
    scores: npt.NDArray[np.uint32]


class Beside(NamedTuple):
    """To a router: repeat the last queries while the writers work.

    Parameters
    ----------
    round_number : int
        Go on until every writer has finished this round.
    seconds : float
        Give up after that long: a writer may have died.
    """

    round_number: int
    seconds: float


class Latencies(NamedTuple):
    """From a router: finds made while at least one writer was applying events.

    Parameters
    ----------
    nanoseconds : ndarray of int64, shape (n,)
        Duration of each.
    above_length : int
        Answers with a score above the length of the query.
    """

    nanoseconds: I64
    above_length: int


class Applied(NamedTuple):
    """From a writer: outcome of a round.

    Parameters
    ----------
    statuses : list of ndarray of uint8
        `EventStatus` per event for every command; empty for `RemoveWorker`.
    seconds, cpu_seconds : float
        Time inside the calls of the index: by the clock, and running on a processor.
    busy_retries : int
        Events, and removals of workers, that were tried again because another lane was in the way.
    """

    statuses: list[npt.NDArray[np.uint8]]
    seconds: float
    cpu_seconds: float
    busy_retries: int
