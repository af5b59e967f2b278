"""Rounds of writers and readers in processes of their own, and what must be so after each of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from shmtrie.capacity import Capacity
from shmtrie.index import Index
from tests.backends import BACKENDS, footprint, segment_name
from tests.concurrency.actor import Actor, Fleet, together
from tests.concurrency.judge import Calls, History, Verdict, View, judge
from tests.concurrency.streams import Contended, Pool, draw
from tests.concurrency.tree import Tree
from tests.differential import Differential, Mismatch, expect
from tests.reference import MASK, OK, Op, Oracle, Rank
from tests.removals import LEAF_FIRST
from tests.workload import EXACT, mix

STATUES: tuple[Rank, ...] = ((900, 0), (901, 7))


@dataclass
class Totals:
    """What a run did."""

    ops: int = 0
    finds: int = 0
    busy: int = 0
    read_again: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Totals) -> None:
        """Take another run in."""
        self.ops += other.ops
        self.finds += other.finds
        self.busy += other.busy
        self.read_again += other.read_again
        self.verdict.add(other.verdict)
        self.outcomes += other.outcomes

    def __str__(self) -> str:
        v = self.verdict
        return (
            f"{self.ops:,} operations, busy {self.busy:,}; {self.finds:,} finds, {v.judged:,} scores judged, "
            f"{v.touched:,} beside an event of the rank, {v.low:,} of them low, nodes read again "
            f"{self.read_again:,}, gave up {v.given_up:,}"
        )


def log_of(actors: Sequence[Actor]) -> list[tuple[list[int], list[str], int]]:
    """What the actors' ``perform`` returned: times, outcomes, busy."""
    found = []
    for actor in actors:
        times, outcomes, busy = actor.end()
        found.append((memoryview(times).cast("q").tolist(), outcomes, busy))
    return found


@contextmanager
def segment_of(
    fleet: Fleet, hint: str, capacity: Capacity, patience: float, exact_holes: bool = False
) -> Iterator[Index]:
    """A new segment, to which the fleet's writers and readers are attached; a handle for looking at it."""
    name = segment_name(hint)
    fleet.reset()
    with Index.create(name, capacity, exact_holes=exact_holes) as index:
        try:
            for actor in fleet.actors:
                actor.begin("attach", name, actor in fleet.writers)
            for actor in fleet.actors:
                actor.end()
            for actor in fleet.writers:
                actor.lane = actor.call("open_writer", patience)
            yield index
            for actor in fleet.actors:
                actor.call("detach")
                actor.lane = -1
        finally:
            Index.unlink(name)


def compare_at_rest(check: Differential, index: Index, queries: Iterable[Sequence[int]]) -> None:
    """Nobody writes: scores of all read methods, counters, dump, structure."""
    check.steps += 1
    asked = list(dict.fromkeys(map(tuple, queries)))
    check._probes.recent.clear()
    check._probes.recent.extend(asked)
    check.check_batch({query: check.check_query(query) for query in asked})
    check.check_everything()
    tree = Tree(index.segment)
    expect(not tree.problems, "the tree at rest:", "; ".join(tree.problems))
    report = index.verify()
    expect(report.ok and not report.unsettled, "verify at rest:", report)


class Contest:
    """One segment, some streams on it, one oracle.

    Parameters
    ----------
    fleet : Fleet
        Its writers perform a stream each, its readers ask.
    index : Index
        From `segment_of`.
    seed, kind, removals
        Of the streams, see ``tests.workload``.
    how : str
        ``calls`` or ``batch``, see ``Worker.perform``.
    tolerate : iterable of str
        Further outcomes of stores.
    """

    def __init__(
        self,
        fleet: Fleet,
        index: Index,
        seed: int,
        kind: str,
        removals: str,
        how: str = "calls",
        tolerate: Iterable[str] = (),
    ) -> None:
        self.fleet, self.index, self.seed, self.how = fleet, index, seed, how
        self.exact = removals == LEAF_FIRST and kind in EXACT
        self.rng, self.totals = random.Random(f"contest {seed}"), Totals()
        self.oracle = Oracle(index.segment.exact_holes)
        self._open = BACKENDS["shm-holes" if index.segment.exact_holes else "shm"].open
        self.tolerate = frozenset(tolerate)
        self.pool = Pool(seed)
        self.check = Differential(index, self.oracle, self._open, self.exact, heavy_every=1 << 60)
        self._empty = footprint(index)
        self.streams = []
        for w in range(len(fleet.writers)):
            ranks = [(10 + w, 0), (10 + w, 1), (MASK - w, 3)]
            self.streams.append(Contended(self.oracle, seed * 64 + w, self.pool, ranks, kind, removals))

    # -- before and between rounds ----------------------------------------------------------------

    def place_statues(self) -> None:
        """Ranks that no stream touches: one holds all paths of a family, the other the upper part of each."""
        first = self.pool.paths[0][0]
        for rank, part in zip(STATUES, (1.0, 0.5), strict=True):
            for path in self.pool.paths:
                if part == 1.0 and path[0] != first:
                    continue
                blocks = [(b, mix(1, *path[: d + 1])) for d, b in enumerate(path)][
                    : max(1, int(part * len(path)))
                ]
                op: Op = ("store", rank, None, blocks)
                expect(self.fleet.writers[0].apply(op) == OK, "a statue is refused:", op)
                self.oracle.apply(op)

    def hand_over(self) -> None:
        """One worker's ranks go to another writer."""
        giver, taker = self.rng.sample(range(len(self.streams)), 2)
        workers = sorted({r[0] for r in self.streams[giver].ranks})
        if len(workers) < 2:
            return
        worker = self.rng.choice(workers)
        moved = [r for r in self.streams[giver].ranks if r[0] == worker]
        for rank in moved:
            expect(self.fleet.writers[giver].apply(("release", rank)) == OK, "release of", rank)
        self.streams[giver].ranks = tuple(r for r in self.streams[giver].ranks if r not in moved)
        self.streams[taker].ranks += tuple(moved)

    def reopen(self) -> None:
        """One writer gives its lane back and takes one again."""
        actor = self.rng.choice(self.fleet.writers)
        actor.call("close_writer")
        actor.lane = actor.call("open_writer", 0.05)

    # -- a round ----------------------------------------------------------------------------------

    def round(self, ops: int, finds: int = 20_000) -> None:
        """Let everybody work at once, then compare.

        Parameters
        ----------
        ops : int
            Operations of each writer.
        finds : int
            Finds of each reader at most; they stop with the writers.
        """
        queries = self.pool.queries(self.rng, 24)
        writers, readers, seed = self.fleet.writers, self.fleet.readers, self.rng.getrandbits(30)
        drawn = [draw(self.oracle, stream, ops) for stream in self.streams]
        plans = [[step.op for step in steps] for steps in drawn]
        self.fleet.board.reset()
        for actor, plan in zip(writers, plans, strict=True):
            actor.begin("perform", plan, self.how, seed)
        for actor in readers:
            actor.begin("read", queries, finds, seed + actor.pid)
        with together(self.fleet.board, [*writers, *readers]):
            logs = log_of(writers)
        if any(log[1] != [step.outcome for step in steps] for log, steps in zip(logs, drawn, strict=True)):
            self.exact = self.check.exact = False
        histories = self._follow(plans, logs, queries)
        for actor in readers:
            rows, answers, (again, _) = actor.end()
            calls = Calls.of(rows, answers)
            self.totals.finds += len(calls)
            self.totals.read_again += again
            self._judge(histories, calls)
        self.compare(queries)

    def _follow(
        self, plans: list[list[Op]], logs: list[tuple[list[int], list[str], int]], queries: list[list[int]]
    ) -> dict[Rank, History]:
        """Apply to the oracle what the writers did; the states that each rank went through."""
        view = View(self.oracle, queries)
        everybody = {*STATUES, *(r for stream in self.streams for r in stream.ranks), *self.oracle.ranks()}
        histories = {rank: History.of(*view.state(rank)) for rank in everybody}
        for plan, (times, outcomes, busy) in zip(plans, logs, strict=True):
            self.totals.ops += len(plan)
            self.totals.busy += busy
            for i, (op, outcome) in enumerate(zip(plan, outcomes, strict=True)):
                allowed = self.oracle.outcomes(op) | (self.tolerate if op[0] == "store" else frozenset())
                expect(outcome in allowed, op, "answered", outcome, "- allowed:", sorted(allowed))
                self.oracle.apply(op, outcome)
                self.totals.outcomes[op[0], outcome] += 1
                ranks = [r for r in histories if r[0] == op[1]] if op[0] == "remove_worker" else [op[1]]
                for rank in ranks:
                    if rank in histories:
                        histories[rank].add(times[2 * i], times[2 * i + 1], *view.state(rank))
        return histories

    def _judge(self, histories: dict[Rank, History], calls: Calls) -> None:
        verdict = Verdict()
        for rank, history in histories.items():
            verdict.add(judge(rank, history, calls, self.exact))
        strangers = {rank for answer in calls.answers for rank in answer} - histories.keys()
        if strangers:
            verdict.wrong.append(f"ranks that do not exist: {sorted(strangers)}")
        self.totals.verdict.add(verdict)
        expect(
            not verdict.wrong,
            f"{len(verdict.wrong)} wrong answers while writers ran:\n",
            "\n".join(verdict.wrong),
        )

    def compare(self, queries: Iterable[Sequence[int]], reload: bool = False) -> None:
        """Nobody writes: scores of all read methods, counters, dump, structure."""
        self.check.open_index = self._open if reload else None
        compare_at_rest(self.check, self.index, queries)

    # -- the end ----------------------------------------------------------------------------------

    def finish(self) -> Totals:
        """Compare with a reload, then remove everything, each rank by its own lane: nothing is left."""
        self.compare(self.pool.queries(self.rng, 30), reload=True)
        owner = {
            r: actor
            for actor, stream in zip(self.fleet.writers, self.streams, strict=True)
            for r in stream.ranks
        }
        owner |= dict.fromkeys(STATUES, self.fleet.writers[0])
        for rank in [r for r in self.oracle.ranks() if r in owner]:
            depth_of = {h: self.oracle.places.depth[p] for h, p in self.oracle.of(rank).place_of.items()}
            hashes = list(depth_of)
            self.rng.shuffle(hashes)
            if self.exact and rank not in STATUES:
                hashes.sort(key=depth_of.__getitem__, reverse=True)
            for at in range(0, len(hashes), 7):
                op: Op = ("remove", rank, hashes[at : at + 7])
                expect(owner[rank].apply(op) == OK, "refused:", op)
                self.oracle.apply(op)
        expect(self.oracle.held_blocks() == 0, "the oracle holds blocks")
        self.compare([], reload=False)
        tree = Tree(self.index.segment)
        expect(not tree.nodes, "nodes left in an empty index:", list(tree.nodes.values()))
        expect(footprint(self.index) == self._empty, "not empty:", footprint(self.index), self._empty)
        expect(self.index.stats().quarantined == 0, "a healthy node was set aside")
        return self.totals


def contest(
    fleet: Fleet,
    seed: int,
    kind: str = "clean",
    removals: str = LEAF_FIRST,
    how: str = "calls",
    rounds: int = 3,
    ops: int = 100,
    finds: int = 20_000,
    capacity: Capacity | None = None,
    tolerate: Iterable[str] = (),
    exact_holes: bool = False,
    watch: Callable[[Contest], None] | None = None,
) -> Totals:
    """One seeded run with all checks.

    Parameters
    ----------
    fleet : Fleet
        Product build.
    seed, kind, removals, how, tolerate
        As of `Contest`.
    rounds, ops, finds : int
        Rounds; operations of each writer and finds of each reader in a round.
    capacity : Capacity, optional
        Of the segment.
    exact_holes : bool
        Of the segment: every score at rest is the held prefix.
    watch : callable, optional
        Called after each round.

    Raises
    ------
    Mismatch
        With the seed and how to run it again.
    """
    capacity = capacity or Capacity(blocks=20_000, workers=64, lanes=len(fleet.writers) + 1)
    try:
        with segment_of(fleet, f"contest-{seed}", capacity, 0.05, exact_holes) as index:
            run = Contest(fleet, index, seed, kind, removals, how, tolerate)
            if seed % 2 == 0:
                run.place_statues()
            for number in range(rounds):
                run.round(ops, finds)
                if watch is not None:
                    watch(run)
                if number % 2:
                    run.reopen() if seed % 3 == 0 else run.hand_over()
            return run.finish()
    except Exception as error:
        raise Mismatch(
            f"{type(error).__name__}: {error}\nin contest(fleet, {seed}, {kind!r}, removals={removals!r}, "
            f"how={how!r}, rounds={rounds}, ops={ops}, exact_holes={exact_holes}) with "
            f"{len(fleet.writers)} writers"
        ) from error
