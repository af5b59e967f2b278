"""Readers beside a writer at full speed."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from shmtrie import EventBatch, Index

from . import native
from .compiled import KernelFinds
from .indexes import Shmtrie, local_arrays
from .machine import OTHER, placed
from .passes import PACKED_EVENTS, Figures, percentiles
from .results import Results, Say
from .side_by_side import Plan
from .workload import CLEAR, Workload

SECTION = "beside"
_WAIT = 300.0


def _clears(workers: int) -> EventBatch:
    """Every worker forgets everything."""
    n = workers
    none = np.empty(0, np.uint64)
    zeros = np.zeros(n, np.uint64)
    return EventBatch(
        np.full(n, CLEAR, np.uint8),
        np.arange(n, dtype=np.uint64),
        np.zeros(n, np.uint32),
        np.zeros(n, np.uint8),
        zeros,
        np.zeros(n + 1, np.int64),
        none,
        none,
        zeros,
    )


def _writer(path: Path, segment: str, port: Connection) -> None:
    """Clear everything and apply the stream, over and over, between a "go" and a "stop"; ends filled."""
    os.sched_setaffinity(0, {OTHER})
    workload = Workload.load(path)
    batches, clears = workload.batches(PACKED_EVENTS), _clears(workload.workers)
    with Index.attach(segment, read_only=False) as index, index.writer() as writer:
        for batch in batches:
            writer.apply_batch(batch)
        port.send("ready")
        while port.recv() == "go":
            port.send("going")
            events, start = 0, time.perf_counter()
            rate, stop = 0.0, False
            while not stop:
                writer.apply_batch(clears)
                events += len(clears)
                for batch in batches:
                    writer.apply_batch(batch)
                    events += len(batch)
                    if not stop and port.poll():
                        port.recv()
                        rate, stop = events / (time.perf_counter() - start), True
            port.send(rate or events / (time.perf_counter() - start))


def _from_python(index: Index, queries: list[object], seconds: float) -> Figures:
    clock, find = time.perf_counter_ns, index.find_matches
    took: list[int] = []
    at, n, end = 0, len(queries), time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(64):
            query = queries[at % n]
            at += 7919
            start = clock()
            find(query)
            took.append(clock() - start)
    return percentiles(took, "find") | {"find_p999": float(np.percentile(took, 99.9))}


def _in_kernel(finds: KernelFinds, seconds: float) -> Figures:
    took, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        took.append(finds.timed().copy())
    values = np.concatenate(took)
    return percentiles(values, "kernel_find") | {"kernel_find_p999": float(np.percentile(values, 99.9))}


def measure(workload: Workload, plan: Plan, results: Results, say: Say) -> None:
    """Idle and beside in turn."""
    seconds = 0.4 if plan.quick else 2.0
    index = Shmtrie(workload)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_writer, args=(plan.file(workload), index.segment, theirs), daemon=True)
    try:
        index.writer.close()
        child.start()
        theirs.close()
        _receive(ours)
        finds, queries = KernelFinds.of(index.reader, workload), local_arrays(workload)
        for rep in range(plan.reps):
            say(f"beside a writer: {workload.name}, repetition {rep + 1} of {plan.reps}")
            with placed("pinned"):
                idle = _from_python(index.reader, queries, seconds) | _in_kernel(finds, seconds)
                before = index.reader.stats().give_ups
                ours.send("go")
                _receive(ours)
                busy = _from_python(index.reader, queries, seconds) | _in_kernel(finds, seconds)
                ours.send("stop")
                rate = _receive(ours)
            busy |= {"events_s": float(rate), "give_ups": float(index.reader.stats().give_ups - before)}
            results.add(SECTION, workload.name, "shmtrie idle", idle)
            results.add(SECTION, workload.name, "shmtrie beside a writer", busy)
            if plan.binary is not None:
                for peer in ("crtc", "chain_into"):
                    figures = native.native_beside(plan.binary, peer, plan.file(workload), 2)
                    figures = {
                        name.replace("beside_p", "kernel_find_p").replace("beside_", ""): value
                        for name, value in figures.items()
                    }
                    results.add(SECTION, workload.name, native.NAMES[peer], figures)
        ours.send("end")
        child.join(_WAIT)
    finally:
        if child.is_alive():
            child.kill()
            child.join()
        index.close()


def _receive(port: Connection) -> object:
    if not port.poll(_WAIT):
        raise TimeoutError("the writer process does not answer")
    return port.recv()
