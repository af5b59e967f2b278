"""What the processes of a replay do: one task per writer and per router, driven by messages.

A task is a plain object with one method per message, so that it works the same in a child process and,
for tests and small runs, in the calling one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import Busy, EventStatus
from ..events import (
    EventBatch,
    KvCacheEvent,
    KvCacheRemoveData,
    KvCacheStoreData,
    KvCacheStoredBlockData,
    RouterEvent,
)
from ..scores import OverlapScores
from .eventlog import Command, RemoveWorker
from .messages import Answers, Applied, Ask, Beside, Latencies
from .routing import Backlog, choose

__all__ = ["ReadIndex", "RouterTask", "WriteIndex", "WriterTask"]

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

# A store that meets another lane in the same node is to be tried again; so often until it counts as refused.
_BUSY_TRIES: Final = 50
_WARM_UP_SECONDS: Final = 60.0
# Finds of one pass beside the writers, at most: bounds the samples of a long round.
_BESIDE_FINDS: Final = 4096


class ReadIndex(Protocol):
    """What a router needs of an index."""

    def find_matches(self, local_hashes: U64, /) -> OverlapScores:
        """Score a query."""
        ...

    def stats(self) -> Any:
        """Give counters; `give_ups`, if there is one, belongs to this handle."""
        ...


class WriteIndex(Protocol):
    """What a writer needs of an index."""

    def apply_batch(self, batch: EventBatch, /) -> npt.NDArray[np.uint8]:
        """Apply events, return `EventStatus` per event."""
        ...

    def remove_worker(self, worker_id: int, /) -> None:
        """Forget a worker."""
        ...


class WriterTask:
    """Applies the events of its workers, in order.

    Parameters
    ----------
    index : WriteIndex
        A writer of the shared index.
    progress : ndarray of int64, shape (n_writers, 2)
        Shared with the routers: per writer the round that it works on and the last one it finished.
    number : int
        This writer.
    """

    def __init__(self, index: WriteIndex, progress: I64, number: int) -> None:
        self._index = index
        self._mine = progress[number]

    def warm_up(self, worker_id: int) -> None:
        """Make every kind of call once, so that none is timed while its code is still being loaded.

        Parameters
        ----------
        worker_id : int
            A worker that nobody else uses; it is gone afterwards.
        """
        events = [
            KvCacheEvent(1, KvCacheStoreData(None, [KvCacheStoredBlockData(worker_id, worker_id)])),
            KvCacheEvent(2, KvCacheRemoveData([worker_id])),
            KvCacheEvent(3, "cleared"),
        ]
        batch = EventBatch.from_events(RouterEvent(worker_id, event) for event in events)
        deadline = time.monotonic() + _WARM_UP_SECONDS
        while True:
            try:
                self.apply([batch, RemoveWorker(worker_id)], 0)
                return
            except Busy:
                # Another writer loads its code with the registration of ranks in its hands.
                if time.monotonic() > deadline:
                    raise

    def apply(self, commands: Sequence[Command], round_number: int) -> Applied:
        """Apply a round of commands and tell the routers when it begins and ends."""
        statuses: list[npt.NDArray[np.uint8]] = []
        retries = 0
        self._mine[0] = round_number
        start, cpu_start = time.perf_counter(), time.thread_time()
        try:
            for command in commands:
                if isinstance(command, RemoveWorker):
                    retries += self._remove_worker(command.worker_id)
                    statuses.append(np.empty(0, np.uint8))
                    continue
                result = self._index.apply_batch(command)
                if (result == EventStatus.BUSY).any():
                    result, again = self._retry(command, result)
                    retries += again
                statuses.append(result)
        finally:
            seconds, cpu_seconds = time.perf_counter() - start, time.thread_time() - cpu_start
            self._mine[1] = round_number
        return Applied(statuses, seconds, cpu_seconds, retries)

    def _remove_worker(self, worker_id: int) -> int:
        for tries in range(_BUSY_TRIES):
            try:
                self._index.remove_worker(worker_id)
                return tries
            except Busy:
                continue
        self._index.remove_worker(worker_id)  # for good: it raises
        return _BUSY_TRIES

    def _retry(self, batch: EventBatch, result: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], int]:
        """Try busy events again. All later events of a busy rank are busy too, so its order stays."""
        result = result.copy()
        retries = 0
        for _ in range(_BUSY_TRIES):
            busy = np.flatnonzero(result == EventStatus.BUSY)
            if not len(busy):
                break
            retries += len(busy)
            result[busy] = self._index.apply_batch(_select(batch, busy))
        return result, retries


def _select(batch: EventBatch, events: npt.NDArray[np.intp]) -> EventBatch:
    """Copy some events of a batch into one of their own, in order."""
    starts, ends = batch.offsets[events], batch.offsets[events + 1]
    offsets = np.zeros(len(events) + 1, np.int64)
    np.cumsum(ends - starts, out=offsets[1:])
    blocks = np.concatenate([np.arange(s, e) for s, e in zip(starts, ends, strict=True)])
    return EventBatch(
        kind=batch.kind[events],
        worker_id=batch.worker_id[events],
        dp_rank=batch.dp_rank[events],
        has_parent=batch.has_parent[events],
        parent=batch.parent[events],
        offsets=offsets,
        local=batch.local[blocks],
        external=batch.external[blocks],
        event_id=batch.event_id[events],
    )


class RouterTask:
    """Asks the index for every request and decides who serves it.

    Parameters
    ----------
    index : ReadIndex
        A read-only handle of the shared index.
    progress : ndarray of int64, shape (n_writers, 2)
        See `WriterTask`.
    clock : callable, optional
        Nanoseconds.
    """

    def __init__(
        self, index: ReadIndex, progress: I64, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._index = index
        self._progress = progress
        self._clock = clock
        self._queries: list[U64] = []

    def warm_up(self) -> None:
        """Make a call, so that none is timed while its code is still being loaded."""
        self._index.find_matches(np.zeros(1, np.uint64))

    def ask(self, message: Ask) -> Answers:
        """Find and choose. A router sees its own choices of this call at once, those of others later."""
        bounds = message.offsets.tolist()
        self._queries = [message.local[a:b] for a, b in pairwise(bounds)]
        found, nanoseconds = self._find_all()
        backlog = Backlog.at(message.backlog, message.rate, message.now)
        n = len(found)
        chosen, depths = np.zeros(n, np.int64), np.zeros(n, np.int64)
        for i, (answer, number, arrival) in enumerate(
            zip(found, message.numbers.tolist(), message.times.tolist(), strict=True)
        ):
            backlog.advance(arrival)
            blocks = len(self._queries[i])
            ids = answer.workers["worker_id"]
            worker, depth = choose(backlog.blocks, ids, answer.depths, blocks, number)
            backlog.add(worker, blocks - depth)
            chosen[i], depths[i] = worker, depth
        again = self._find_all()[1] if message.again else np.empty(0, np.int64)
        wanted = found if message.full else []
        offsets = np.zeros(len(wanted) + 1, np.int64)
        np.cumsum([len(answer) for answer in wanted], out=offsets[1:])
        workers = [np.empty(0, np.uint64), *(answer.workers["worker_id"] for answer in wanted)]
        scores = [np.empty(0, np.uint32), *(answer.depths for answer in wanted)]
        return Answers(
            chosen, depths, nanoseconds, again, offsets, np.concatenate(workers), np.concatenate(scores)
        )

    def beside(self, message: Beside) -> Latencies:
        """Repeat the last queries while writers apply; count only finds that began and ended beside one."""
        progress, clock = self._progress, self._clock
        samples: list[int] = []
        above = 0
        deadline = time.monotonic() + message.seconds
        while self._queries and not (progress[:, 1] >= message.round_number).all():
            for query in self._queries:
                before = (progress[:, 0] > progress[:, 1]).any()
                start = clock()
                answer = self._index.find_matches(query)
                took = clock() - start
                above += bool((answer.depths > len(query)).any())
                if before and (progress[:, 0] > progress[:, 1]).any():
                    samples.append(took)
            if len(samples) >= _BESIDE_FINDS or time.monotonic() > deadline:
                break
        return Latencies(np.array(samples, np.int64), above)

    def give_ups(self) -> int:
        """Count the finds of this task that stopped early because writers kept changing their path."""
        return int(getattr(self._index.stats(), "give_ups", 0))

    def _find_all(self) -> tuple[list[OverlapScores], I64]:
        clock, find = self._clock, self._index.find_matches
        found: list[OverlapScores] = []
        nanoseconds: list[int] = []
        for query in self._queries:
            start = clock()
            answer = find(query)
            nanoseconds.append(clock() - start)
            found.append(answer)
        return found, np.array(nanoseconds, np.int64)
