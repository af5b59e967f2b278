"""N router processes: one shared segment, or a copy of the index in each."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from shmtrie import Index

from . import dynamo
from .dicts import DictOfMasks, DictOfSets
from .indexes import BenchIndex, Shmtrie, local_arrays
from .machine import CORES, anonymous, trim
from .memory import fill
from .passes import filled, percentiles
from .results import Results, Say
from .side_by_side import Plan
from .workload import Workload

SECTION = "processes"
_KINDS: dict[str, type[BenchIndex]] = {k.name: k for k in (DictOfSets, DictOfMasks, dynamo.DynamoScores)}
CONTROL = "a loop that shares nothing"  # what more processes can be on this machine
_WAIT = 300.0


def _router(number: int, path: Path, index: str, segment: str, seconds: float, port: Connection) -> None:
    """Build or attach, say so, and find for a while when told to."""
    os.sched_setaffinity(0, {CORES[(len(CORES) - 1 - number) % len(CORES)]})
    workload = Workload.load(path)
    if segment:
        queries = local_arrays(workload)
        warm = Index.attach(segment)
        for query in queries:  # neither code nor what arrays keep of being asked for is the index's
            warm.find_matches(query)
        before, events_cpu = _weigh(), 0.0
        attached = Index.attach(segment)
        find: Any = attached.find_matches
    elif index == CONTROL:
        queries, before, events_cpu = local_arrays(workload), _weigh(), 0.0
        find = _count
    else:
        kind = _KINDS[index]
        queries = kind.queries(workload)
        first = kind(workload)
        first.find(queries[0])
        first.close()
        del first
        before = _weigh()
        copy = kind(workload)
        events_cpu = fill(copy, workload)
        find = copy.find
    for query in queries:
        find(query)
    port.send(max(0, _weigh() - before))
    port.recv()
    took: list[int] = []
    clock, cpu = time.perf_counter_ns, time.process_time()
    at, n, end = number * 977, len(queries), time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(64):
            query = queries[at % n]
            at += 7919
            start = clock()
            find(query)
            took.append(clock() - start)
    port.send((len(took), events_cpu, time.process_time() - cpu, percentiles(took, "find")))
    port.close()


def _count(query: Any) -> int:
    """About as long as a find."""
    return sum(range(40))


def _weigh() -> int:
    trim()
    return anonymous()


def _run(path: Path, index: str, segment: str, count: int, seconds: float) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    ports, children = [], []
    try:
        for number in range(count):
            ours, theirs = context.Pipe()
            child = context.Process(
                target=_router, args=(number, path, index, segment, seconds, theirs), daemon=True
            )
            child.start()
            theirs.close()
            ports.append(ours)
            children.append(child)
        grown = [_receive(port) for port in ports]
        for port in ports:
            port.send("go")
        found = [_receive(port) for port in ports]
        for child in children:
            child.join(_WAIT)
    finally:
        for child in children:
            if child.is_alive():
                child.kill()
                child.join()
    return {
        "finds_s": sum(f[0] for f in found) / seconds,
        "events_cpu_s": sum(f[1] for f in found),
        "find_cpu_us": sum(f[2] for f in found) / sum(f[0] for f in found) * 1e6,
        "find_p50": float(np.median([f[3]["find_p50"] for f in found])),
        "find_p99": float(np.median([f[3]["find_p99"] for f in found])),
        "memory": float(sum(grown)),
    }


def _receive(port: Connection) -> Any:
    if not port.poll(_WAIT):
        raise TimeoutError("a router process does not answer")
    return port.recv()


def measure(workload: Workload, plan: Plan, results: Results, say: Say) -> None:
    """Routers on one segment beside routers with copies, 1, 2 and 4 of them."""
    path = plan.file(workload)
    seconds = 0.5 if plan.quick else 2.0
    kinds = [k for k in _KINDS if k != dynamo.DynamoScores.name or dynamo.available()]
    index = filled(workload)
    try:
        stats = index.index.stats()
        shared = stats.bytes_used + stats.bytes_slack
        cpu = _writer_cpu(workload)
        for rep in range(plan.reps):
            for count in (1, 2) if plan.quick else (1, 2, 4):
                say(f"processes: {count} on one segment, repetition {rep + 1} of {plan.reps}")
                found = _run(path, "", index.segment, count, seconds)
                # the pages of the segment are there once, whoever maps them; a router adds its own
                found |= {"events_cpu_s": cpu, "memory": found["memory"] + shared}
                results.add(SECTION, f"{workload.name} x{count}", Shmtrie.name, found)
                for kind in (*kinds, CONTROL):
                    say(f"processes: {count} x {kind}, repetition {rep + 1} of {plan.reps}")
                    results.add(
                        SECTION, f"{workload.name} x{count}", kind, _run(path, kind, "", count, seconds)
                    )
    finally:
        index.close()


def _writer_cpu(workload: Workload) -> float:
    """Processor seconds of the one writer that applies the stream."""
    index = Shmtrie(workload)
    try:
        batches = workload.batches(64)
        start = time.process_time()
        for batch in batches:
            index.writer.apply_batch(batch)
        return time.process_time() - start
    finally:
        index.close()
