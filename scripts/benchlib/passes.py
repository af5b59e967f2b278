"""Timed passes of one index over one workload. Each makes a fresh index and applies the stream anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .indexes import BenchIndex, Call, Shmtrie, ShmtrieBest
from .model import Answers, Model, differs, unlike
from .workload import QUERY, REMOVE, STORE, Workload

Figures = dict[str, float]
PACKED_EVENTS = 1024


class Prepared:
    """A workload in the form that an index takes; made once for all repetitions."""

    def __init__(self, kind: type[BenchIndex], workload: Workload) -> None:
        self.index, self.workload = kind, workload
        self.queries = kind.queries(workload)
        self.events = kind.events(workload)

    def bound(self, index: BenchIndex) -> list[Call]:
        """Events as calls of one index."""
        call = index.bind()
        return [(call[kind], arguments) for kind, arguments in self.events]


def percentiles(nanoseconds: Any, prefix: str) -> Figures:
    """p50 and p99 in nanoseconds, and the mean."""
    if not len(nanoseconds):
        return {}
    p50, p99 = np.percentile(nanoseconds, (50, 99))
    mean = float(np.mean(nanoseconds))
    return {f"{prefix}_p50": float(p50), f"{prefix}_p99": float(p99), f"{prefix}_mean": mean}


def stream_pass(prepared: Prepared) -> Figures:
    """Queries and events in the order of the workload, each call timed on its own."""
    workload = prepared.workload
    clock = time.perf_counter_ns
    index = prepared.index(workload)
    try:
        find, queries = index.find, iter(prepared.queries)
        events = iter(prepared.bound(index))
        took: dict[int, list[int]] = {kind: [] for kind in range(4)}
        asked, took_find = False, took[QUERY].append
        for kind in workload.kind.tolist():
            if kind == QUERY:
                if not asked:
                    index.settle()
                    asked = True
                query = next(queries)
                start = clock()
                find(query)
                took_find(clock() - start)
            else:
                asked = False
                call, arguments = next(events)
                start = clock()
                call(*arguments)
                took[kind].append(clock() - start)
    finally:
        index.close()
    return (
        percentiles(took[QUERY], "find")
        | percentiles(took[STORE], "store")
        | percentiles(took[REMOVE], "remove")
    )


def ingest_pass(prepared: Prepared) -> Figures:
    """All events of the workload one call each, no queries."""
    index = prepared.index(prepared.workload)
    try:
        calls = prepared.bound(index)
        start, cpu = time.perf_counter(), time.process_time()
        for call, arguments in calls:
            call(*arguments)
        index.settle()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    finally:
        index.close()
    return rates(prepared.workload, seconds, cpu)


def packed_pass(workload: Workload, kind: type[Shmtrie] = Shmtrie) -> Figures:
    """All events through `apply_batch`."""
    index = kind(workload)
    try:
        batches = workload.batches(PACKED_EVENTS)
        start, cpu = time.perf_counter(), time.process_time()
        statuses = [index.writer.apply_batch(batch) for batch in batches]
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    finally:
        index.close()
    refused = int(sum(np.count_nonzero(s) for s in statuses))
    return rates(workload, seconds, cpu) | {"refused": float(refused)}


def rates(workload: Workload, seconds: float, cpu: float) -> Figures:
    """Events and blocks a second, and events a second of processor time (steadier beside other load)."""
    events = len(workload.events)
    return {
        "events_s": events / seconds,
        "events_cpu_s": events / max(cpu, 1e-9),
        "blocks_s": workload.event_blocks / seconds,
    }


def wrong_answers(prepared: Prepared, answers: Answers) -> int:
    """Queries of the stream that the index answers differently from the model."""
    workload = prepared.workload
    index = prepared.index(workload)
    wrong = 0
    try:
        queries, events = iter(prepared.queries), iter(prepared.bound(index))
        number, asked = 0, False
        judge = _judge_best if isinstance(index, ShmtrieBest) else _judge
        for kind in workload.kind.tolist():
            if kind == QUERY:
                if not asked:
                    index.settle()
                    asked = True
                wrong += judge(index, answers, number, index.find(next(queries)))
                number += 1
            else:
                asked = False
                call, arguments = next(events)
                call(*arguments)
    finally:
        index.close()
    return wrong


def _judge(index: BenchIndex, answers: Answers, number: int, found: Any) -> bool:
    return differs(answers, number, *index.pairs(found))


def _judge_best(index: BenchIndex, answers: Answers, number: int, found: Any) -> bool:
    """The best must be as deep as any, and who it names must be that deep."""
    workers, depths = answers.of(number)
    if found is None or not len(depths):
        return found is not None or len(depths) > 0
    at = np.flatnonzero(workers == found.worker.worker_id)
    return bool(found.depth != depths.max() or not len(at) or depths[at[0]] != found.depth)


def wrong_at_the_end(workload: Workload, model: Model) -> int:
    """Queries that `find_matches_batch` answers wrongly after the whole stream came in packed batches."""
    index = filled(workload)
    try:
        hashes, offsets = workload.query_arrays(workload.queries)
        found = index.reader.find_matches_batch(hashes, offsets)
    finally:
        index.close()
    wrong = 0
    for number, op in enumerate(workload.queries.tolist()):
        part = slice(int(found.offsets[number]), int(found.offsets[number + 1]))
        answer = model.find(workload.place[workload.part(op)].tolist())
        wrong += unlike(answer, found.workers["worker_id"][part], found.depths[part])
    return wrong


def filled(workload: Workload, make: Callable[[Workload], Shmtrie] = Shmtrie) -> Shmtrie:
    """A shmtrie index after the whole stream."""
    index = make(workload)
    for batch in workload.batches(PACKED_EVENTS):
        index.writer.apply_batch(batch)
    return index
