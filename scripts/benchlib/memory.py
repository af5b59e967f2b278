"""Bytes per block: every index in a process of its own, after the whole stream and a trim."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import dynamo, native
from .dicts import DictOfMasks, DictOfSets
from .indexes import BenchIndex, Shmtrie, Tree
from .machine import pss, trim
from .model import Model
from .results import Results, Say
from .side_by_side import Plan
from .workload import REMOVE, STORE, Workload

SECTION = "memory"
_STEP = 1_000  # operations converted at a time: what stays of freed ones is not the index's
_KINDS = {kind.name: kind for kind in (Shmtrie, Tree, DictOfSets, DictOfMasks, dynamo.Dynamo)}
_SECONDS = 900.0


def held_at_end(workload: Workload) -> tuple[int, int]:
    """Different blocks held after the stream, and pairs of worker and block."""
    model = Model()
    for op in workload.events.tolist():
        places = workload.place[workload.part(op)].tolist()
        if workload.kind[op] == STORE:
            model.store(int(workload.worker[op]), places)
        elif workload.kind[op] == REMOVE:
            model.remove(int(workload.worker[op]), places)
        else:
            model.clear(int(workload.worker[op]))
    return len(model.held), sum(mask.bit_count() for mask in model.held.values())


def shmtrie_bytes(workload: Workload) -> dict[str, float]:
    """Segment in use (rounding included, header and lanes not) and the lane's private lookup."""
    index = Shmtrie(workload)
    try:
        for batch in workload.batches(1024):
            index.writer.apply_batch(batch)
        stats = index.index.stats()
        context = index.writer._work.context
        lookup = (context.lookup.n_lines + context.aliases.n_lines) * 64
        parts = {
            f"segment_{name}": float(part.used + part.slack)
            for name, part in stats.sections.items()
            if name not in ("header", "lanes")
        }
        return {
            "bytes": stats.bytes_per_block * stats.unique_blocks + lookup,
            "lookup": float(lookup),
            "unique": float(stats.unique_blocks),
            "nodes": float(stats.nodes),
            **parts,
        }
    finally:
        index.close()


def fill(index: BenchIndex, workload: Workload) -> float:
    """Apply all events, leaving nothing of their converted form; processor seconds of the calls."""
    cpu = 0.0
    for first in range(0, len(workload.kind), _STEP):
        events = index.events(workload.between(first, min(first + _STEP, len(workload.kind))))
        bound, start = index.bind(), time.process_time()
        for kind, arguments in events:
            bound[kind](*arguments)
        index.settle()
        cpu += time.process_time() - start
    return cpu


def grown_bytes(name: str, workload: Workload) -> dict[str, float]:
    """Growth of this process by an index."""
    index = _KINDS[name](workload.between(0, 1))
    trim()
    before = pss()
    fill(index, workload)
    trim()
    return {"bytes": float(pss() - before)}


def main(name: str, path: str, seeds: bool) -> None:
    """In a child: measure and print."""
    workload = Workload.load(Path(path), seeds)
    found = shmtrie_bytes(workload) if name == Shmtrie.name else grown_bytes(name, workload)
    print(json.dumps(found))


def _in_child(name: str, path: Path, seeds: bool) -> dict[str, float]:
    code = f"from benchlib.memory import main; main({name!r}, {str(path)!r}, {seeds})"
    paths = f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}; "
    done = subprocess.run(
        [sys.executable, "-c", paths + code], capture_output=True, timeout=_SECONDS, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def measure(makers: dict[str, Callable[[], Workload]], plan: Plan, results: Results, say: Say) -> None:
    """Every index on the workloads for memory."""
    for name, make in makers.items():
        workload = make()
        path = plan.file(workload)
        unique, pairs = held_at_end(workload)
        indexes = [kind for kind in _KINDS if kind != dynamo.Dynamo.name or dynamo.available()]
        if workload.seeds:
            indexes = [kind for kind in indexes if _KINDS[kind].handles_seeds]
        for index in indexes:
            say(f"memory: {name}, {index}")
            found = _in_child(index, path, workload.seeds)
            per_block = {"per_block": found["bytes"] / unique, "per_pair": found["bytes"] / pairs}
            results.add(SECTION, name, index, found | per_block)
        if plan.binary is not None:
            for peer in native.NAMES:
                say(f"memory: {name}, {native.NAMES[peer]}")
                figures = native.native_pass(plan.binary, peer, path, 1)
                size = figures["live_bytes"] or figures["rss_bytes"]
                results.add(
                    SECTION,
                    name,
                    native.NAMES[peer],
                    {"bytes": size, "per_block": size / unique, "per_pair": size / pairs},
                )
