"""Removals out of the middle of chains: what every index answers then, beside what the engines hold.

Engines lose single blocks, some of them from the middle of what they hold, and get single blocks back behind
ones that they hold. An index that has lost sight of such a block refuses the store, or counts too little from
then on; one that takes the last block that it knows for the whole prefix counts too much.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shmtrie.errors import ShmtrieError

from . import native
from .dicts import DictOfSets
from .evictions import block_bytes
from .indexes import BenchIndex, Shmtrie, ShmtrieExact, Tree, TreeExact
from .judge import Judge
from .machine import placed
from .passes import Figures, Prepared, packed_pass, percentiles
from .results import Results, Say
from .side_by_side import Plan
from .workload import QUERY, Builder, Workload

SECTION = "holes"
SHARES = (50, 5, 0)  # of 100 removals so many are from the middle
PREFIX, TAIL, CHAINS_A_FAMILY, WORKERS = 32, 96, 8, 16
EXACT: tuple[type[BenchIndex], ...] = (ShmtrieExact, TreeExact, DictOfSets)  # promise the held prefix
KINDS: tuple[type[BenchIndex], ...] = (Shmtrie, ShmtrieExact, Tree, TreeExact, DictOfSets)


class Cache:
    """Chains of a family on one worker: a shared prefix, and tails behind it."""

    def __init__(self, chains: list[list[int]]) -> None:
        self.chains = chains
        self.held = {place for chain in chains for place in chain}

    def last(self, chain: list[int]) -> int:
        """How deep the deepest block is that is held, -1 if none is."""
        return next((i for i in range(len(chain) - 1, -1, -1) if chain[i] in self.held), -1)

    def holes(self, chain: list[int]) -> list[int]:
        """Missing blocks in front of held ones that a store may follow: the block before is held."""
        inside = range(self.last(chain))
        return [i for i in inside if chain[i] not in self.held and (not i or chain[i - 1] in self.held)]


def holes(n: int, share: int) -> Workload:
    """Chains of 128 blocks, eight on a prefix of 32, on two of 16 workers each; n times a worker loses a
    block of one or gets some back, and then one is asked for.

    Parameters
    ----------
    n : int
        Queries.
    share : int
        Removals of a hundred that are not from the tail.
    """
    rng, out = random.Random(7), Builder()
    caches: list[tuple[int, Cache]] = []
    fresh = 0
    for family in range(max(4, n // 400)):
        prefix = list(range(fresh, fresh + PREFIX))
        fresh += PREFIX
        chains = []
        for _ in range(CHAINS_A_FAMILY):
            chains.append(prefix + list(range(fresh, fresh + TAIL)))
            fresh += TAIL
        for worker in (family % WORKERS, (family * 5 + 3) % WORKERS):
            out.store(worker, None, prefix)
            for chain in chains:
                out.store(worker, prefix[-1], chain[PREFIX:])
            caches.append((worker, Cache(chains)))
    removals = 0
    for _ in range(n):
        worker, cache = caches[rng.randrange(len(caches))]
        chain = cache.chains[rng.randrange(CHAINS_A_FAMILY)]
        last, open_holes = cache.last(chain), cache.holes(chain)
        if last < len(chain) - 1 and rng.random() < 0.15:  # grows again, as a longer prompt comes by
            grown = chain[last + 1 : last + 5]
            out.store(worker, chain[last] if last >= 0 else None, grown)
            cache.held.update(grown)
        elif open_holes and rng.random() < 0.2 * len(open_holes):
            hole = open_holes[0 if rng.random() < 0.5 else rng.randrange(len(open_holes))]
            out.store(worker, chain[hole - 1] if hole else None, [chain[hole]])
            cache.held.add(chain[hole])
        elif last >= PREFIX:
            inner, gone = [i for i in range(last) if chain[i] in cache.held], last
            removals += 1
            if inner and removals * share % 100 < share:
                gone = inner[rng.randrange(len(inner))]
            out.remove(worker, [chain[gone]])
            cache.held.discard(chain[gone])
        out.query(chain if rng.random() < 0.5 else cache.chains[rng.randrange(CHAINS_A_FAMILY)])
    return out.build(f"holes_{share}", WORKERS)


def figures_of(judge: Judge) -> Figures:
    """What the answers came to."""
    return {
        "asked": judge.asked,
        "exact": judge.exact,
        "under": judge.under,
        "over": judge.over,
        "share": judge.answered / judge.held,
    }


def judged_pass(prepared: Prepared) -> tuple[Figures, Judge]:
    """Queries and events in order, every answer judged; events may be refused."""
    workload, kind = prepared.workload, prepared.index
    judge, index = Judge(workload, kind in EXACT), kind(workload)
    try:
        queries, events = iter(prepared.queries), iter(prepared.bound(index))
        for op, what in enumerate(workload.kind.tolist()):
            if what == QUERY:
                judge.answer(op, *index.pairs(index.find(next(queries))))
            else:
                judge.follow(op, _applied(*next(events)))
        figures = figures_of(judge) | {"refused": float(judge.refused)}
        if isinstance(index, Shmtrie):
            figures |= {"nodes": float(index.index.stats().nodes), "bytes": float(block_bytes(index))}
        return figures, judge
    finally:
        index.close()


def timed_pass(prepared: Prepared) -> Figures:
    """The same, each call on its own clock."""
    workload, clock = prepared.workload, time.perf_counter_ns
    index = prepared.index(workload)
    try:
        queries, events = iter(prepared.queries), iter(prepared.bound(index))
        finds, changes = [], 0
        for what in workload.kind.tolist():
            if what == QUERY:
                query = next(queries)
                start = clock()
                index.find(query)
                finds.append(clock() - start)
            else:
                call, arguments = next(events)
                start = clock()
                _applied(call, arguments)
                changes += clock() - start
    finally:
        index.close()
    return percentiles(finds, "find") | {"events_s": len(workload.events) / changes * 1e9}


def _applied(call: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    try:
        call(*arguments)
    except ShmtrieError:
        return False
    return True


def native_judged(binary: Path, name: str, path: Path, workload: Workload) -> Judge:
    """A native index's answers; which events it refused it does not say."""
    judge, found = Judge(workload, exact_holes=True), native.native_answers(binary, name, path)
    for op, what in enumerate(workload.kind.tolist()):
        if what == QUERY:
            judge.answer(op, *next(found))
        else:
            judge.follow(op)
    return judge


def measure(workload: Workload, plan: Plan, results: Results, say: Say) -> None:
    """Judge every index, then time it; repetitions interleaved."""
    prepared = [Prepared(kind, workload) for kind in KINDS]
    told = f"{SECTION}: {workload.name}"
    for ready in prepared:
        say(f"{told}: answers of {ready.index.name}")
        figures, judge = judged_pass(ready)
        results.add(SECTION, workload.name, ready.index.name, figures)
        # without exact holes: a score above what is held, or below what can be reached
        results.wrong[told, ready.index.name] = judge.wrong, judge.asked
    natives = native.NAMES if plan.binary is not None else {}
    for name, title in natives.items():
        say(f"{told}: answers of {title}")
        assert plan.binary is not None
        judge = native_judged(plan.binary, name, plan.file(workload), workload)
        results.add(SECTION, workload.name, title, figures_of(judge))
    for rep in range(plan.reps):
        for ready in prepared:
            say(f"{told}: {ready.index.name}, repetition {rep + 1} of {plan.reps}")
            with placed("pinned"):
                figures = timed_pass(ready)
                if issubclass(ready.index, Shmtrie):
                    figures |= {"packed_s": packed_pass(workload, ready.index)["events_s"]}
            results.add(SECTION, workload.name, ready.index.name, figures)
        for name, title in natives.items():
            say(f"{told}: {title}, repetition {rep + 1} of {plan.reps}")
            assert plan.binary is not None
            timed = native.native_pass(plan.binary, name, plan.file(workload), 1)
            figures = {"find_p50": timed["find_p50"], "packed_s": timed["events_s"]}
            results.add(SECTION, workload.name, title, figures)
