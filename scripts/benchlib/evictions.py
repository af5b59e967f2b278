"""A rank's chains evicted block by block, head-first, tail-first and at random, with and without exact holes.

All chains lose blocks side by side. When half of the blocks are gone the segment is measured, and in another
index all of them are stored again, run by run: what is not counted then is what the index has forgotten
behind holes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .indexes import Shmtrie, ShmtrieExact
from .judge import Judge
from .machine import placed
from .passes import PACKED_EVENTS, Figures, Prepared
from .results import Results, Say
from .side_by_side import Plan
from .workload import Builder, Workload

SECTION = "evictions"
ORDERS = ("head-first", "tail-first", "random")
LENGTHS = (16, 256, 4096)
KINDS: tuple[type[Shmtrie], ...] = (Shmtrie, ShmtrieExact)
_OF_BLOCKS = ("nodes", "node_claims", "children", "line_claims", "extents")


@dataclass(frozen=True, eq=False)
class Eviction:
    """Chains, and the order in which their blocks go.

    Attributes
    ----------
    chains : list of ndarray
        Places, from the head.
    gone : ndarray
        All places, in the order of their eviction.
    """

    name: str
    chains: list[npt.NDArray[np.int64]]
    gone: npt.NDArray[np.int64]

    @classmethod
    def of(cls, order: str, length: int, blocks: int) -> Eviction:
        """So many blocks in chains of one length; the last one may be shorter."""
        places = np.arange(blocks)
        gone = np.argsort(places % length, kind="stable")
        if order == "tail-first":
            gone = gone[::-1]
        elif order == "random":
            gone = np.random.default_rng(length).permutation(blocks)
        return cls(f"{order} {length}", np.split(places, range(length, blocks, length)), gone)

    @cached_property
    def whole(self) -> Workload:
        """Everything is stored and evicted."""
        return self.workload(len(self.gone))

    def workload(self, last: int, refill: bool = False) -> Workload:
        """All chains are stored, then the first `last` evictions happen; at the end all chains are asked for.

        Parameters
        ----------
        last : int
            Evictions, a block and an event each.
        refill : bool
            Behind them everything that is gone is stored again, a run an event, chain by chain from the head.
        """
        out = Builder()
        for chain in self.chains:
            out.store(0, None, chain)
        for place in self.gone[:last]:
            out.remove(0, [int(place)])
        if refill:
            gone = np.zeros(len(self.gone), bool)
            gone[self.gone[:last]] = True
            for chain in self.chains:
                edges = np.flatnonzero(np.diff(gone[chain], prepend=False, append=False))
                for first, end in edges.reshape(-1, 2).tolist():
                    out.store(0, int(chain[first - 1]) if first else None, chain[first:end])
        for chain in self.chains:
            out.query(chain)
        return out.build(self.name, 1)


def block_bytes(index: Shmtrie) -> int:
    """Bytes of the segment that blocks take, rounding included."""
    sections = index.index.stats().sections
    return sum(sections[name].used + sections[name].slack for name in _OF_BLOCKS)


def _ask(index: Shmtrie, judge: Judge, queries: Sequence[int]) -> None:
    for op in queries:
        found = index.find(judge.workload.local[judge.workload.part(op)])
        judge.answer(op, *index.pairs(found))


def calls_pass(kind: type[Shmtrie], eviction: Eviction, judge: Judge | None = None) -> Figures:
    """A call a block, timed; sizes at the half and at the end.

    Parameters
    ----------
    judge : Judge, optional
        Compares the answers of all chains when they are stored, at the half and at the end.
    """
    stores, n = len(eviction.chains), len(eviction.gone)
    half = n // 2
    workload = eviction.whole
    prepared = Prepared(kind, workload)
    queries = workload.queries.tolist()
    index = kind(workload)
    try:
        empty, calls, figures = block_bytes(index), prepared.bound(index), Figures()
        took = []
        for first, last in ((0, stores), (stores, stores + half), (stores + half, stores + n)):
            start = time.perf_counter()
            for call, arguments in calls[first:last]:
                call(*arguments)
            took.append(time.perf_counter() - start)
            if judge is not None:
                for op in range(first, last):
                    judge.follow(op)
                _ask(index, judge, queries)
            if last == stores + half:
                stats = index.index.stats()
                figures = {"nodes": stats.nodes, "bytes": block_bytes(index), "known": stats.blocks}
        stats = index.index.stats()
        figures |= {
            "held": n - half,
            "evict_ns": (took[1] + took[2]) / n * 1e9,
            "first_half_ns": took[1] / half * 1e9,
            "second_half_ns": took[2] / (n - half) * 1e9,
            "splits": stats.splits,
            "cut_short": stats.cut_short,
            "left_nodes": stats.nodes,
            "left_blocks": stats.blocks,
            "left_bytes": block_bytes(index) - empty,
        }
        return figures
    finally:
        index.close()


def packed_pass(kind: type[Shmtrie], eviction: Eviction) -> Figures:
    """The same in packed batches, a block an event."""
    workload = eviction.whole
    index = kind(workload)
    try:
        events = workload.events
        stored, evicted = events[: len(eviction.chains)], events[len(eviction.chains) :]
        index.writer.apply_batch(workload.batch(stored))
        steps = range(0, len(evicted), PACKED_EVENTS)
        batches = [workload.batch(evicted[i : i + PACKED_EVENTS]) for i in steps]
        start = time.perf_counter()
        for batch in batches:
            index.writer.apply_batch(batch)
        return {"packed_ns": (time.perf_counter() - start) / len(evicted) * 1e9}
    finally:
        index.close()


def refill_pass(kind: type[Shmtrie], eviction: Eviction) -> tuple[Figures, Judge]:
    """Half is evicted and stored again: how much of all chains counts then."""
    workload = eviction.workload(len(eviction.gone) // 2, refill=True)
    judge = Judge(workload, kind.exact_holes)
    index = kind(workload)
    try:
        for first in range(0, len(workload.events), PACKED_EVENTS):
            ops = workload.events[first : first + PACKED_EVENTS]
            statuses = index.writer.apply_batch(workload.batch(ops))
            for op, status in zip(ops.tolist(), statuses.tolist(), strict=True):
                judge.follow(op, applied=status == 0)
        _ask(index, judge, workload.queries.tolist())
        return {"refilled": judge.answered / judge.held, "refused": judge.refused}, judge
    finally:
        index.close()


def faults(figures: Figures) -> int:
    """What must not be: something left at the end, a removal that took more for want of room."""
    return sum(figures[name] != 0 for name in ("left_nodes", "left_blocks", "left_bytes", "cut_short"))


def measure(blocks: int, plan: Plan, results: Results, say: Say) -> None:
    """Every order and length, both modes; repetitions interleaved, answers compared in the first one."""
    for length in (LENGTHS[0], LENGTHS[-1]) if plan.quick else LENGTHS:
        for order in ORDERS:
            eviction = Eviction.of(order, length, blocks)
            told = f"{SECTION}: {eviction.name}"
            for rep in range(plan.reps):
                for kind in KINDS:
                    say(f"{told}, {kind.name}, repetition {rep + 1} of {plan.reps}")
                    judge = None if rep else Judge(eviction.whole, kind.exact_holes)
                    with placed("pinned"):
                        figures = calls_pass(kind, eviction, judge) | packed_pass(kind, eviction)
                    wrong, asked = results.wrong.get((told, kind.name), (0, 0))
                    wrong += faults(figures)
                    if judge is not None:
                        more, again = refill_pass(kind, eviction)
                        figures |= more
                        wrong, asked = wrong + judge.wrong + again.wrong, judge.asked + again.asked
                    results.add(SECTION, eviction.name, kind.name, figures)
                    results.wrong[told, kind.name] = wrong, asked
