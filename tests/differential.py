"""Runs streams of operations on an index beside the oracle, and shrinks what fails.

Works on any object with the write methods ``store``, ``remove``, ``clear`` and ``remove_worker``, which
raise the exceptions of ``shmtrie.errors``, and the read methods of an index; of those only
``find_matches`` must be there, every other one is checked if it exists. After each operation: was the
outcome allowed, and do queries around the touched places answer within the oracle's bounds, for every
rank and by every read method. From time to time, and at the end: block counters, the dump, a reload of
the dump, the accounting of an emptied index, and ``verify``.

Where the contract leaves an outcome open, the oracle follows the index. A failure raises ``Mismatch``
with a minimal list of operations that can be pasted into a test as it is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tests.backends import Open, as_signed, canonical, footprint, pairs, shaped, stores_of
from tests.reference import MASK, OK, Op, Oracle, Probes, Rank
from tests.removals import LEAF_FIRST
from tests.workload import EXACT, Workload

Fails = Callable[[Sequence[Op]], str | None]


class Mismatch(AssertionError):
    """The index answered what the contract does not allow."""


def expect(condition: object, *what: object) -> None:
    """Raise ``Mismatch`` unless ``condition``."""
    if not condition:
        raise Mismatch(" ".join(str(w) for w in what))


class Differential:
    """One index beside one oracle.

    Parameters
    ----------
    index : object
        Empty index.
    oracle : Oracle
        Empty oracle, with the index's ``exact_holes``.
    open_index : callable, optional
        Makes another empty index, to load dumps into; without it they are not reloaded.
    exact : bool
        The stream is leaf-first: the oracle must have one answer only.
    tolerate : iterable of str
        Further outcomes allowed for stores, as ``CapacityExceeded``; they must change nothing.
    heavy_every : int
        Steps between two rounds of the expensive checks.
    """

    def __init__(
        self,
        index: Any,
        oracle: Oracle,
        open_index: Open | None = None,
        exact: bool = False,
        tolerate: Iterable[str] = (),
        heavy_every: int = 40,
    ) -> None:
        self.index, self.oracle, self.open_index = index, oracle, open_index
        self.exact, self.tolerate, self.heavy_every = exact, frozenset(tolerate), heavy_every
        self.steps, self.outcomes = 0, Counter[tuple[str, str]]()
        self._empty, self._probes = footprint(index), Probes(oracle)
        self._kept: tuple[Any, dict[Rank, int]] | None = None

    def apply(self, op: Op) -> str:
        """Apply one operation to both sides and compare them; return the outcome."""
        before = self._probes.touched(op)
        outcome = self._call(op)
        allowed = self.oracle.outcomes(op) | (self.tolerate if op[0] == "store" else frozenset())
        expect(outcome in allowed, op[0], "answered", outcome, "- allowed:", sorted(allowed))
        self.oracle.apply(op, outcome)
        self.outcomes[op[0], outcome] += 1
        self.steps += 1
        queries = self._probes.queries([*before, *self._probes.touched(op)])
        self.check_batch({query: self.check_query(query) for query in queries})
        if self.steps % self.heavy_every == 0:
            self.check_everything()
        elif self.oracle.held_blocks() == 0:
            expect(footprint(self.index) == self._empty, "not empty:", footprint(self.index))
        return outcome

    def _call(self, op: Op) -> str:
        kind, way = op[0], self.steps
        if kind == "query":
            return OK
        if kind == "remove_worker":
            self.index.remove_worker(op[1])
            return OK
        rank = op[1][0] if op[1][1] == 0 and way % 2 else op[1]  # an int is dp rank 0
        try:
            if kind == "store":
                parent = op[2] if op[2] is None or way % 3 else as_signed(op[2] & MASK)
                local, external = ([block[i] for block in op[3]] for i in (0, 1))
                self.index.store(rank, parent, shaped(local, way), shaped(external, way + 1))
            elif kind == "remove":
                self.index.remove(rank, shaped(op[2], way))
            elif kind == "clear":
                self.index.clear(rank)
            elif hasattr(self.index, "move"):
                self.index.move(op[1])
        except Exception as error:
            if not any(c.__name__ == "ShmtrieError" for c in type(error).__mro__):
                raise
            return type(error).__name__
        return OK

    # -- what is compared -------------------------------------------------------------------------

    def check_query(self, query: Sequence[int]) -> dict[Rank, int]:
        """Compare all read methods on one query; return the scores."""
        asked = shaped(query, self.steps)
        result = self.index.find_matches(asked)
        scores: dict[Rank, int] = {tuple(r): int(d) for r, d in result.scores.items()}
        for rank in {*self.oracle.ranks(), *scores}:
            low, high = self.oracle.bounds(rank, query)
            expect(not self.exact or low == high, "not a leaf-first stream:", rank, query, low, high)
            score = scores.get(rank, 0)
            expect(low <= score <= high, "rank", rank, "scores", score, "not in", (low, high), "for", query)
        expect(0 not in scores.values(), "a rank with 0 is in", scores)
        expect(list(result.frequencies) == [], "frequencies", result.frequencies)
        if hasattr(self.index, "find_match_details"):
            details = self.index.find_match_details(asked)
            expect(pairs(details) == scores, "details of", query, "differ:", pairs(details), scores)
            for worker, depth, last in zip(details.workers, details.depths, details.last_hashes, strict=True):
                rank = (int(worker["worker_id"]), int(worker["dp_rank"]))
                own = self.oracle.own_hash(rank, query, int(depth))
                expect(int(last) == own, "last hash of", rank, "at", int(depth), "is", last, "not", own)
        early = {tuple(r): int(d) for r, d in self.index.find_matches(asked, early_exit=True).scores.items()}
        fewer = [r for r in early if early[r] < scores.get(r, 0)]
        expect(early.keys() == scores.keys() and len(fewer) <= 1, "early exit", early, "beside", scores)
        expect(all(0 < early[r] <= scores[r] for r in early), "early exit", early, "beside", scores)
        expect(all(early[r] == max(early.values()) for r in fewer), "early exit too soon", early, scores)
        if hasattr(self.index, "best_match"):
            self._check_best(query, asked, scores)
        # Looked at last, and again one query later: a result must not change with what is called after it.
        for kept, there in ((result, scores), self._kept or (result, scores)):
            expect(pairs(kept) == there and len(kept.depths) == len(there), "arrays", pairs(kept), there)
        self._kept = (result, scores)
        return scores

    def _check_best(self, query: Sequence[int], asked: Any, scores: dict[Rank, int]) -> None:
        blocks = {}
        if len(set(scores.values())) < len(scores) and hasattr(self.index, "workers"):
            blocks = {tuple(w.worker): w.blocks for w in self.index.workers()}
        # By turns all ranks and every other one, and the best one by either call.
        among = None if self.steps % 2 else sorted(self.oracle.ranks())[::2]
        chosen = [r for r in scores if among is None or r in among]
        order = sorted((-scores[r], blocks.get(r, 0)) for r in chosen)
        one = self.index.best_match(asked, among=among)
        few = self.steps // 2 % 3
        answers = {1: [] if one is None else [one]}
        answers |= {k: self.index.best_matches(asked, k, among=among) for k in (1000, few)}
        for k, found in answers.items():
            got = [(tuple(m.worker), int(m.depth)) for m in found]
            right = all(scores.get(r) == d and r in chosen for r, d in got) and len(dict(got)) == len(got)
            keys = [(-d, blocks.get(r, 0)) for r, d in got]
            about = ("best", k, "of", query, "among", among, "is", got, "for", scores, blocks)
            expect(right and keys == order[:k], *about)

    def check_batch(self, alone: dict[tuple[int, ...], dict[Rank, int]]) -> None:
        """Compare one batch call, with an empty query in front, with the scores of single calls."""
        if not hasattr(self.index, "find_matches_batch"):
            return
        queries = [(), *alone]
        flat = np.array([v for q in queries for v in q], dtype=np.uint64)
        offsets = np.cumsum([0, *map(len, queries)]).astype(np.int64)
        batch = self.index.find_matches_batch(flat, offsets)
        expect(len(batch) == len(queries), "batch of", len(queries), "has", len(batch))
        for i, query in enumerate(queries):
            expect(pairs(batch[i]) == alone.get(query, {}), "batch item", i, query, pairs(batch[i]))

    def check_everything(self) -> None:
        """The expensive checks: every recent path, counters, dump, reload, structure."""
        for query in list(self._probes.recent):
            self.check_query(query)
        bounds = {r: self.oracle.block_bounds(r) for r in self.oracle.ranks()}
        low, high = (sum(b[i] for b in bounds.values()) for i in (0, 1))
        if hasattr(self.index, "workers"):
            counts = {tuple(w.worker): int(w.blocks) for w in self.index.workers()}
            for rank in {*bounds, *counts}:
                (least, most), count = bounds.get(rank, (0, 0)), counts.get(rank, 0)
                expect(least <= count <= most, rank, "counts", count, "blocks, not", (least, most))
        now = footprint(self.index)
        expect(low <= now.get("blocks", low) <= high, "blocks", now, "not in", (low, high))
        if self.oracle.held_blocks() == 0:
            expect(now == self._empty, "not empty:", now)
        if hasattr(self.index, "verify"):
            report = self.index.verify()
            expect(report.ok, "verify:", report)
        if hasattr(self.index, "dump_events"):
            self.check_dump()

    def check_dump(self) -> None:
        """The dump shows what the index answers, in maximal runs, parents first, and survives a reload."""
        events = list(self.index.dump_events())
        shown = Oracle(places=self.oracle.places)
        for op in stores_of(events):
            expect(op[3] and shown.outcomes(op) == {OK}, "dump event cannot be replayed:", op)
            again = [b for b in op[3] if b[1] in shown.of(op[1]).place_of]
            expect(not again, "dumped twice for", op[1], again)
            shown.apply(op)
        for rank in {*self.oracle.ranks(), *shown.ranks()}:
            mine, most = self.oracle.of(rank), self.oracle.rooted(rank)
            dumped = shown.of(rank).hash_at
            least = most if self.oracle.exact_holes else mine.reachable
            expect(least <= dumped.keys() <= most, "dump of", rank, len(dumped), "of", len(most), "places")
            expect(all(mine.hash_at[p] == h for p, h in dumped.items()), "dump of", rank, "renames")
            runs = Counter((rank, parent, blocks) for parent, blocks in shown.runs(rank))
            dump = Counter({k: n for k, n in canonical(events).items() if k[0] == rank})
            expect(runs == dump, "dump of", rank, "is cut into", dump, "not", runs)
        for query in list(self._probes.recent)[-16:]:
            scores = pairs(self.index.find_matches(list(query)))
            there = {r: depth for r in shown.ranks() if (depth := shown.bounds(r, query)[1])}
            expect(scores == there, "the dump gives", there, "the index", scores, "for", query)
        if self.open_index is not None:
            with self.open_index() as copy:
                copy.load_events(events)
                expect(canonical(copy.dump_events()) == canonical(events), "dump, load, dump differs")


def replay(
    open_index: Open, ops: Iterable[Op], exact_holes: bool = False, **options: Any
) -> Counter[tuple[str, str]]:
    """Run a list of operations with all checks; options as of ``Differential``."""
    with open_index() as index:
        check = Differential(index, Oracle(exact_holes), open_index, **options)
        for op in ops:
            check.apply(op)
        check.check_everything()
        return check.outcomes


def run_stream(
    open_index: Open,
    seed: int,
    kind: str = "clean",
    removals: str = LEAF_FIRST,
    exact_holes: bool = False,
    name: str = "open_index",
    tolerate: Iterable[str] = (),
    heavy_every: int = 40,
    shrink_seconds: float = 20.0,
    **workload: Any,
) -> Counter[tuple[str, str]]:
    """Run one seeded stream; on failure shrink it and raise ``Mismatch`` with the reproduction.

    Parameters
    ----------
    open_index : callable
        Returns a context manager that gives an empty index.
    seed, kind, removals, **workload
        As of ``tests.workload.Workload``.
    exact_holes, tolerate, heavy_every
        As of ``Differential``.
    name : str
        How the reproduction spells ``open_index``.
    shrink_seconds : float
        How long a failure may be shrunk.

    Returns
    -------
    Counter
        How often each (operation, outcome) occurred.
    """
    done: list[Op] = []
    try:
        with open_index() as index:
            oracle = Oracle(exact_holes)
            exact = removals == LEAF_FIRST and kind in EXACT and not exact_holes
            check = Differential(index, oracle, open_index, exact, tolerate, heavy_every)
            for op in Workload(oracle, seed, kind, removals, **workload):
                done.append(op)
                check.apply(op)
            check.check_everything()
            return check.outcomes
    except Exception as error:

        def fails(ops: Sequence[Op]) -> str | None:
            try:
                replay(open_index, ops, exact_holes, tolerate=tolerate)
            except Exception as again:
                return f"{type(again).__name__}: {again}"
            return None

        small = shrink(done, fails, shrink_seconds)
        stream = f"seed {seed}, {kind}, {removals} removals, {workload}"
        raise Mismatch(
            f"{type(error).__name__}: {error}\nin {stream}; {len(small)} of {len(done)} operations left:\n\n"
            f"# {fails(small) or 'does not fail when replayed'}\n{reproduction(small, name, exact_holes)}"
        ) from error


# -- shrinking -----------------------------------------------------------------------------------


def shrink(ops: Sequence[Op], fails: Fails, seconds: float) -> list[Op]:
    """Delta debugging for ``seconds``: drop operations, then blocks and hashes in them, while it fails."""
    best, end = list(ops), time.monotonic() + seconds

    def better(smaller: list[Op]) -> bool:
        nonlocal best
        if time.monotonic() > end or fails(smaller) is None:
            return False
        best = smaller
        return True

    size = len(best)
    while size:
        at, before = 0, len(best)
        while at < len(best):
            if not better(best[:at] + best[at + size :]):
                at += size
        size = size // 2 if size > 1 or len(best) == before else 1
    for i, op in enumerate(best):
        inner = {"store": 3, "remove": 2, "query": 1}.get(op[0])
        size = len(op[inner]) if inner else 0
        while inner and size:
            at = 0
            while at < len(best[i][inner]):
                now = best[i]
                part = (*now[:inner], [*now[inner][:at], *now[inner][at + size :]], *now[inner + 1 :])
                if not better([*best[:i], part, *best[i + 1 :]]):
                    at += size
            size //= 2
    return best


def reproduction(ops: Iterable[Op], name: str, exact_holes: bool = False) -> str:
    """Python that replays a list of operations."""
    lines = "".join(f"    {op!r},\n" for op in ops)
    head = "from tests.backends import BACKENDS\nfrom tests.differential import replay\n\n"
    return f"{head}replay({name}, [\n{lines}], exact_holes={exact_holes})\n"
