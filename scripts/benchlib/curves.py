"""Cost of one find against depth, workers and size of the tree, and over a prefix in pieces."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from . import dynamo, native
from .catalog import uniform
from .compiled import KernelFinds, shuffled
from .dicts import DictOfMasks, DictOfSets
from .indexes import BenchIndex, Shmtrie, ShmtrieBest, ShmtrieDict, ShmtrieList
from .machine import placed
from .passes import Figures, Prepared, filled, percentiles
from .results import Results, Say
from .side_by_side import Plan, best_placement
from .workload import Builder, Workload

DEPTH, WORKERS, SIZE, PIECES = "depth", "workers", "size", "pieces"
_PYTHON: tuple[type[BenchIndex], ...] = (
    Shmtrie,
    ShmtrieDict,
    ShmtrieList,
    ShmtrieBest,
    DictOfSets,
    DictOfMasks,
)
_LARGEST_COPY = 1_000_000  # blocks: larger trees are for the segment and the native ones
_COLD_PREFIXES = 4_096
OWN_HASHES = "shmtrie, as many aliases"


def _chain(depth: int) -> Workload:
    """One chain held by one worker."""
    out = Builder()
    for at in range(0, depth, 256):
        out.store(0, at - 1 if at else None, np.arange(at, min(at + 256, depth)))
    for _ in range(64):
        out.query(np.arange(depth))
    return out.build(f"depth_{depth}", 1)


def _held_by(workers: int) -> Workload:
    """128 blocks held by so many workers; query 1 goes 16 blocks further, on two of them."""
    out = Builder()
    for worker in range(workers):
        out.store(worker, None, np.arange(128))
    for worker in range(min(2, workers)):
        out.store(worker, 127, np.arange(128, 144))
    out.query(np.arange(128))
    out.query(np.arange(144))
    return out.build(f"workers_{workers}", workers)


def _hot(find: Callable[[Any], Any], query: Any) -> float:
    """Nanoseconds of a call, again and again: median of turns of about a millisecond."""
    clock = time.perf_counter
    start = clock()
    for _ in range(20):
        find(query)
    turns = max(5, int(1e-3 / max((clock() - start) / 20, 1e-7)))
    took = []
    for _ in range(15):
        start = clock()
        for _ in range(turns):
            find(query)
        took.append((clock() - start) / turns)
    return float(np.median(took)) * 1e9


def _kinds() -> list[type[BenchIndex]]:
    return [*_PYTHON, *((dynamo.Dynamo, dynamo.DynamoScores) if dynamo.available() else ())]


def _from_python(
    section: str, label: str, workload: Workload, queries: Iterable[int], results: Results
) -> None:
    """Every index of this process: fill it, ask some queries hot."""
    for kind in _kinds():
        prepared = Prepared(kind, workload)
        with placed(best_placement(prepared) if issubclass(kind, dynamo.Dynamo) else "pinned"):
            index = kind(workload)
            try:
                for call, arguments in prepared.bound(index):
                    call(*arguments)
                index.settle()
                figures = {
                    ("hot_ns" if k == 0 else f"hot_ns_{k}"): _hot(index.find, prepared.queries[k])
                    for k in queries
                }
                results.add(section, label, kind.name, figures)
            finally:
                index.close()


def _beyond_python(section: str, label: str, workload: Workload, plan: Plan, results: Results) -> None:
    """The kernel, and the native trees, hot."""
    with placed("pinned"):
        index = filled(workload)
        try:
            finds = KernelFinds.of(index.reader, workload)
            one = np.zeros(1, np.int64)
            hot = [finds.seconds(one, 200) / 200 for _ in range(15)]
            results.add(section, label, "shmtrie kernel", {"hot_ns": float(np.median(hot)) * 1e9})
        finally:
            index.close()
    if plan.binary is not None:
        for peer in native.NAMES:
            found = native.native_pass(plan.binary, peer, plan.file(workload), 1)
            results.add(section, label, native.NAMES[peer], {"hot_ns": found["hot_ns"]})


def depth(plan: Plan, results: Results, say: Say) -> None:
    """A chain of 1 to 4,096 blocks, asked for whole."""
    for blocks in (1, 64, 1024, 4096) if plan.quick else (1, 4, 16, 64, 256, 1024, 4096):
        workload = _chain(blocks)
        for rep in range(plan.reps):
            say(f"cost against depth: {blocks} blocks, repetition {rep + 1}")
            _from_python(DEPTH, str(blocks), workload, (0,), results)
            _beyond_python(DEPTH, str(blocks), workload, plan, results)


def workers(plan: Plan, results: Results, say: Say) -> None:
    """A prefix held by 1 to 1,024 workers; ``hot_ns_1``: two of them hold more."""
    for count in (1, 64, 512) if plan.quick else (1, 8, 64, 256, 512, 1024):
        workload = _held_by(count)
        for rep in range(plan.reps):
            say(f"cost against workers: {count}, repetition {rep + 1}")
            _from_python(WORKERS, str(count), workload, (0, 1), results)
            _beyond_python(WORKERS, str(count), workload, plan, results)


def size(plan: Plan, results: Results, say: Say) -> None:
    """Trees of 1e4 to 1e7 blocks in chains of 256; random chains are asked for, so memory is cold.

    And of half as many blocks, which three engines know by hashes of their own.
    """
    for blocks in (10_000, 100_000) if plan.quick else (10_000, 100_000, 1_000_000, 10_000_000):
        workload = uniform(f"size_{blocks}", blocks, 1, 4_000)
        room = shutil.disk_usage("/dev/shm").free
        if blocks * 80 > room:
            say(f"cost against size: {blocks} blocks do not fit /dev/shm, left out")
            continue
        for rep in range(plan.reps):
            say(f"cost against size: {blocks} blocks, repetition {rep + 1}")
            kinds = [k for k in _kinds() if blocks <= _LARGEST_COPY or k is Shmtrie]
            for kind in kinds:
                if kind not in (ShmtrieBest, ShmtrieDict, ShmtrieList, dynamo.DynamoScores):
                    results.add(SIZE, str(blocks), kind.name, _cold(kind, workload))
            with placed("pinned"):
                index = filled(workload)
                try:
                    finds = KernelFinds.of(index.reader, workload)
                    order = shuffled(len(workload.queries))
                    static = finds.seconds(order) / len(order) * 1e9
                    results.add(SIZE, str(blocks), "shmtrie kernel", {"static_ns": static})
                finally:
                    index.close()
            if plan.binary is not None:
                for peer in ("crtc", "chain_into"):
                    found = native.native_pass(plan.binary, peer, plan.file(workload), 1)
                    results.add(SIZE, str(blocks), native.NAMES[peer], {"static_ns": found["static_ns"]})
        plan.file(workload).unlink()
        if blocks > _LARGEST_COPY or plan.quick:
            workload = uniform(f"size_{blocks}_seeds", blocks // 2, 3, 4_000, seeds=True)
            for rep in range(plan.reps):
                say(f"cost against size: {blocks} hashes of engines' own, repetition {rep + 1}")
                results.add(SIZE, str(blocks), OWN_HASHES, _cold(Shmtrie, workload))


def _cold(kind: type[BenchIndex], workload: Workload) -> Figures:
    prepared = Prepared(kind, workload)
    with placed("pinned"):
        index = kind(workload)
        try:
            clock = time.perf_counter_ns
            worst, before = 0, clock()
            for call, arguments in prepared.bound(index):
                call(*arguments)
                now = clock()
                worst, before = max(worst, now - before), now
            index.settle()
            took = []
            for query in prepared.queries:
                start = clock()
                index.find(query)
                took.append(clock() - start)
            return percentiles(took, "find") | {"store_worst_ns": float(worst)}
        finally:
            index.close()


def _pieces(prefixes: int, broken: bool) -> Workload:
    """Prefixes of 64 blocks on two workers; each was broken up by branches that are gone, or not."""
    out, fresh = Builder(), prefixes * 64
    for k in range(prefixes):
        prefix = np.arange(64) + k * 64
        for worker in range(2):
            out.store(worker, None, prefix)
        if broken:
            for at in range(63):
                out.store(2, None, np.append(prefix[: at + 1], fresh))
                out.remove(2, [fresh])
                fresh += 1
            out.remove(2, prefix[62::-1])
        out.query(prefix)
    return out.build("pieces" if broken else "whole", 3)


def pieces(plan: Plan, results: Results, say: Say) -> None:
    """A hot prefix broken up by short-lived branches: 64 one-block nodes, hot, and cold among thousands."""
    cold = 512 if plan.quick else _COLD_PREFIXES
    for rep in range(plan.reps):
        say(f"a prefix in pieces, repetition {rep + 1}")
        figures: dict[tuple[str, bool], float] = {}
        nodes = {}
        for broken in (False, True):
            for what, count in (("hot", 1), ("cold", cold)):
                workload = _pieces(count, broken)
                with placed("pinned"):
                    index = filled(workload)
                    try:
                        nodes[broken] = index.index.stats().nodes / count
                        finds = KernelFinds.of(index.reader, workload)
                        if what == "hot":
                            took = [finds.seconds(np.zeros(1, np.int64), 500) / 500 for _ in range(9)]
                        else:
                            order = np.random.default_rng(2).permutation(count)
                            took = [finds.seconds(order) / count for _ in range(3)]
                        figures[what, broken] = float(np.median(took)) * 1e9
                    finally:
                        index.close()
        steps = max(nodes[True] - nodes[False], 1.0)
        for what in ("hot", "cold"):
            whole, apart = figures[what, False], figures[what, True]
            values = {"whole_ns": whole, "pieces_ns": apart, "step_ns": (apart - whole) / steps}
            results.add(PIECES, what, "shmtrie kernel", values | {"nodes": nodes[True]})
