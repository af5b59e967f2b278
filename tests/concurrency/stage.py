"""Deterministic races: one process pauses inside an operation while others act, at every point in turn.

Scripts are those of ``tests.scenarios``. Rank w writes on lane ``(w - 1) % 3`` unless told otherwise, so
ranks 1, 2 and 3 are on three lanes and 4 shares that of 1. Every repetition of a race has hashes of its own,
and ends with an empty index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shmtrie.index import Index
from shmtrie.kernels import hooks
from shmtrie.kernels.hooks import Site
from tests.backends import pairs, stores_of
from tests.concurrency.actor import Actor, Fleet
from tests.concurrency.tree import Tree
from tests.differential import Mismatch, expect
from tests.hooks import wait_until
from tests.reference import MASK, OK, PARENT, Op, Oracle, Rank
from tests.scenarios import numbers, operation, rank_of
from tests.workload import mix

BUSY = "Busy"
MOST = 2_000  # points of one operation


def salted(op: Op, salt: int) -> Op:
    """The same operation with other hashes."""

    def name(external: int) -> int:
        return mix(external, salt)

    if op[0] == "store":
        blocks = [(local + (salt << 32), name(external)) for local, external in op[3]]
        return ("store", op[1], None if op[2] is None else name(op[2]), blocks)
    if op[0] == "remove":
        return ("remove", op[1], [name(external) for external in op[2]])
    return op


class Stage:
    """A segment with three lanes and a reader on it, and an oracle beside it.

    Parameters
    ----------
    fleet : Fleet
        Test build: three writers, one reader; attached to the segment.
    index : Index
        A handle of this process.
    lanes : dict, optional
        Rank -> number of the writer, where it differs.
    """

    def __init__(self, fleet: Fleet, index: Index, lanes: dict[Rank, int] | None = None) -> None:
        self.index, self.reader = index, fleet.readers[0]
        self.writers = fleet.writers
        self._lanes = lanes or {}
        self._salt, self.busy = 0, 0
        self.thorough = True  # False: `settle` leaves out details and the comparison of every node
        self.begin()

    def begin(self) -> None:
        """Start over with new hashes; the index has to be empty."""
        self._salt += 1
        self.oracle = Oracle(self.index.segment.exact_holes)
        self.queries: set[tuple[int, ...]] = set()

    # -- writing ----------------------------------------------------------------------------------

    def lane_of(self, rank: Rank) -> Actor:
        """The process that writes a rank."""
        return self.writers[self._lanes.get(rank, (rank[0] - 1) % 3)]

    def ops(self, script: str) -> list[Op]:
        """Operations of a script, and the queries to ask about them."""
        return [salted(operation(step.strip()), self._salt) for step in script.split(";") if step.strip()]

    def actor(self, op: Op) -> Actor:
        """Who performs an operation."""
        return self.lane_of((op[1], 0) if op[0] == "remove_worker" else op[1])

    def note(self, op: Op, outcome: str = OK) -> None:
        """Tell the oracle."""
        allowed = self.oracle.outcomes(op)
        expect(outcome in allowed, op, "answered", outcome, "- allowed:", sorted(allowed))
        self.oracle.apply(op, outcome)
        if op[0] == "store":
            above = () if op[2] is None else self.path(op[1], op[2])
            path = (*above, *(b[0] for b in op[3]))
            self.queries.update({path, path[:-1], (*path, 3), (*path[:-1], 4)})

    def path(self, rank: Rank, external: int) -> tuple[int, ...]:
        """Where a rank holds a block; () if it does not."""
        place = self.oracle.of(rank).place_of.get(external)
        return () if place is None else tuple(self.oracle.places.path(place))

    def play(self, script: str) -> None:
        """Perform steps with nobody else at work; ``!P`` and so on are not needed, the oracle knows."""
        for op in self.ops(script):
            outcome, message = self.actor(op).call("apply", op)
            expect(outcome in self.oracle.outcomes(op), op, "answered", outcome, message)
            self.note(op, outcome)

    # -- looking ----------------------------------------------------------------------------------

    def scores(self, query: Sequence[int]) -> dict[Rank, int]:
        """What the index answers here, by two methods."""
        found = pairs(self.index.find_matches(list(query)))
        expect(0 not in found.values(), "a rank with 0:", found)
        return found

    def bounds(self, query: Sequence[int]) -> dict[Rank, tuple[int, int]]:
        """What the oracle allows, by rank."""
        return {rank: self.oracle.bounds(rank, query) for rank in self.oracle.ranks()}

    def check(self, between: dict[tuple[int, ...], dict[Rank, tuple[int, int]]] | None = None) -> None:
        """All queries are answered within the oracle's bounds, or within those given for some ranks."""
        for query in self.queries:
            wanted = {**self.bounds(query), **(between or {}).get(query, {})}
            found = self.scores(query)
            for rank in {*wanted, *found}:
                low, high = wanted.get(rank, (0, 0))
                expect(
                    low <= found.get(rank, 0) <= high, "rank", rank, found, "not", (low, high), "for", query
                )

    def check_dump(self) -> None:
        """Whatever runs: a dump replays without orphans and shows nothing that is not held."""
        shown = Oracle(places=self.oracle.places)
        for op in stores_of(self.index.dump_events()):
            expect(shown.outcomes(op) == {OK}, "dump event cannot be replayed:", op)
            shown.apply(op)

    def settle(self) -> None:
        """At rest: bounds, structure, accounting. What a lane had to leave it does first."""
        for writer in self.writers:
            writer.call("tidy")
        self.check()
        for query in self.queries if self.thorough else ():
            details = self.index.find_match_details(list(query))
            for w, depth, last in zip(details.workers, details.depths, details.last_hashes, strict=True):
                rank = (int(w["worker_id"]), int(w["dp_rank"]))
                own = self.oracle.own_hash(rank, query, int(depth))
                expect(int(last) == own, "last hash of", rank, "at", int(depth), "is", int(last), "not", own)
        for info in self.index.workers():
            low, high = self.oracle.block_bounds((info.worker.worker_id, info.worker.dp_rank))
            expect(low <= info.blocks <= high, info, "counts blocks not in", (low, high))
        if self.thorough:
            tree = Tree(self.index.segment)
            expect(not tree.problems, "the tree at rest:", "; ".join(tree.problems))
        report = self.index.verify()
        expect(report.ok and not report.unsettled, "verify:", report)

    def drain(self, order: Iterable[Rank] | None = None) -> None:
        """Remove everything, each rank by its own hashes: the tree is empty."""
        for rank in order or list(self.oracle.ranks()):
            hashes = sorted(self.oracle.of(rank).place_of)
            if hashes:
                op: Op = ("remove", rank, hashes)
                expect(self.lane_of(rank).apply(op) == OK, "removing all of", rank)
                self.note(op)
        self.settle()
        left = self.index.verify().counts
        expect(left["nodes"] == left["extents"] == 0, "left of an empty tree:", left)
        for rank in self.oracle.ranks():
            self.lane_of(rank).apply(("remove_worker", rank[0]))

    def expect(self, script: str) -> None:
        """Compare with values: steps Q, N and E of ``tests.scenarios``; ``E 5|2,3`` allows either."""
        for step in filter(None, map(str.strip, script.split(";"))):
            kind, _, rest = step.partition(" ")
            if kind == "E":
                found = Tree(self.index.segment).edges
                allowed = [numbers(text) for text in rest.split("|")]
                expect(found in allowed, "edges", found, "not", rest)
            elif kind == "N":
                who, count = rest.split()
                held = {tuple(w.worker): w.blocks for w in self.index.workers()}
                expect(held.get(rank_of(who), 0) == int(count), who, "has", held, "blocks, not", count)
            else:
                query, _, wanted = rest.partition("=")
                scores = self.scores(self.path_of(query))
                there = {rank_of(r): int(n) for r, n in (w.split(":") for w in wanted.split())}
                expect(scores == there, "query", query, "gives", scores, "not", there)

    def path_of(self, text: str) -> list[int]:
        """The path that a script means by ``1-3,7``."""
        return [local + (self._salt << 32) for local in numbers(text)]

    # -- races ------------------------------------------------------------------------------------

    def after(self, op: Op) -> Oracle:
        """What the oracle will say when an operation has been applied, or refused."""
        after = Oracle(self.oracle.exact_holes, self.oracle.places)
        for rank in self.oracle.ranks():
            mine = self.oracle.of(rank)
            for hash_, place in mine.place_of.items():
                held = after._holdings.setdefault(rank, type(mine)())
                held.hash_at[place], held.place_of[hash_] = hash_, place
            if rank in after._holdings:
                after._holdings[rank].reachable.update(mine.reachable)
            after._known[rank] = True
        if OK in after.outcomes(op):
            after.apply(op)
        return after

    def bounds_during(self, op: Op) -> dict[tuple[int, ...], dict[Rank, tuple[int, int]]]:
        """Per query, what the ranks of an operation that runs may score."""
        after = self.after(op)
        ranks = [r for r in after.ranks() if (r[0] if op[0] == "remove_worker" else r) == op[1]]
        ranks += [
            r for r in self.oracle.ranks() if r not in ranks and op[0] == "remove_worker" and r[0] == op[1]
        ]
        found: dict[tuple[int, ...], dict[Rank, tuple[int, int]]] = {}
        for query in self.queries:
            found[query] = {}
            for rank in ranks:
                low, high = zip(self.oracle.bounds(rank, query), after.bounds(rank, query), strict=True)
                found[query][rank] = (min(low), max(high))
        return found


def mentions(message: str, holder: Actor) -> bool:
    """A `Busy` names the lane and the process that is in the way."""
    return f"lane {holder.lane}" in message and str(holder.pid) in message


Watch = Callable[[Stage, int], Any]


def race(
    stage: Stage,
    setup: str,
    first: str,
    second: str,
    result: str,
    site: int = hooks.ANY_SITE,
    busy: bool = True,
    watch: Watch | None = None,
) -> set[Site]:
    """Let `first` pause at each of its points in turn, do `second` there, let `first` go on, compare.

    Parameters
    ----------
    stage : Stage
        Empty.
    setup, first, second : str
        Scripts; the last step of `first` is the one that pauses. `second` is by other lanes.
    result : str
        Values at the end, see `Stage.expect`.
    site : Site, optional
        Pause at this point only.
    busy : bool
        Whether `second` may be `Busy` while `first` pauses; it has changed nothing then, and is done after.
    watch : callable, optional
        Called while `first` pauses, before `second`, with the stage and the point.

    Returns
    -------
    set of Site
        Where `first` paused.
    """
    sites: set[Site] = set()
    for countdown in range(1, MOST):
        stage.begin()
        stage.play(setup)
        *before, op = stage.ops(first)
        for early in before:
            stage.note(early, stage.actor(early).apply(early))
        actor = stage.actor(op)
        for other in stage.ops(second):
            assert stage.actor(other) is not actor, "the second operation needs another lane"
        stage.check()
        at = actor.pause_at(site, countdown, "apply", op)
        if at is not None:
            sites.add(Site(at))
        try:
            left = _beside(stage, actor, op, second, busy, watch, at) if at is not None else stage.ops(second)
        except BaseException as error:
            actor.resume_pause()
            raise Mismatch(f"{error}\nwhile {op} pauses at hit {countdown}, {Site(at or 1)!r}") from error
        if at is not None:
            actor.resume_pause()
        try:
            outcome, message = actor.outcome()
            expect(outcome in stage.oracle.outcomes(op), op, "answered", outcome, message)
            stage.note(op, outcome)
            for other in left:
                stage.note(other, stage.actor(other).apply(other))
            stage.settle()
            stage.expect(result)
            stage.drain()
        except BaseException as error:
            where = "without a pause" if at is None else f"after a pause at hit {countdown}, {Site(at)!r}"
            raise Mismatch(f"{error}\n{where}") from error
        if at is None:
            assert countdown > 1 or site != hooks.ANY_SITE, "never paused"
            return sites
    raise AssertionError("an operation with too many points")


def _beside(
    stage: Stage, actor: Actor, op: Op, second: str, busy: bool, watch: Watch | None, at: int
) -> list[Op]:
    """What happens while `op` pauses; the operations that were `Busy`."""
    during = stage.bounds_during(op)
    stage.check(during)
    if watch is not None:
        watch(stage, at)
    others = stage.ops(second)
    while others:
        other = others[0]
        outcome, message = stage.actor(other).call("apply", other)
        if outcome == BUSY:
            stage.busy += 1
            expect(busy, other, "is busy:", message)
            expect(
                mentions(message, actor),
                "Busy does not name lane",
                actor.lane,
                "and",
                actor.pid,
                ":",
                message,
            )
            if other[0] == "store":
                stage.check(during)
            else:  # a part may be done
                stage.check(
                    {q: {**during[q], **between} for q, between in stage.bounds_during(other).items()}
                )
            break
        stage.note(other, outcome)
        stage.check(stage.bounds_during(op))
        others.pop(0)
    stage.check_dump()
    return others


def read_race(stage: Stage, setup: str, query: str, script: str, points: Iterable[int]) -> int:
    """A reader pauses at each of its points in turn while a script runs; its answer fits one moment of that.

    Returns
    -------
    int
        How often it paused.
    """
    pauses, reader = 0, stage.reader
    for site in points:
        for countdown in range(1, MOST):
            stage.begin()
            stage.play(setup)
            asked = stage.path_of(query)
            states = [stage.bounds(asked)]
            at = reader.pause_at(site, countdown, "find", asked)
            if at is not None:
                pauses += 1
                for op in stage.ops(script):
                    outcome, message = stage.actor(op).call("apply", op)
                    expect(outcome in stage.oracle.outcomes(op), op, "answered", outcome, message)
                    stage.note(op, outcome)
                    states.append(stage.bounds(asked))
                reader.resume_pause()
            found = reader.end()
            for rank in {r for state in states for r in state} | found.keys():
                allowed = {
                    n for s in states for n in range(s.get(rank, (0, 0))[0], s.get(rank, (0, 0))[1] + 1)
                }
                expect(
                    found.get(rank, 0) in allowed,
                    "rank",
                    rank,
                    "scores",
                    found,
                    "not one of",
                    sorted(allowed),
                    "pause",
                    countdown,
                    Site(site),
                )
            stage.settle()
            stage.drain()
            if at is None:
                break
    return pauses


def wait_answer(actor: Actor, timeout: float = 10.0) -> None:
    """Wait until an actor has answered."""
    wait_until(lambda: actor.answered, timeout, f"answer of {actor.pid}")


__all__ = ["BUSY", "MASK", "PARENT", "Stage", "mentions", "race", "read_race", "salted", "wait_answer"]
