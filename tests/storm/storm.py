"""Storms: real processes of a segment killed, stopped and restarted at random moments, every answer judged.

A storm has a seed, a segment and some acts. In an act the writers perform plans, readers ask, and a `Keeper`
kills. Then everybody ends, everything is judged, and what is in the segment is compared with the oracle. At
the end all is removed, and the segment has to be as empty as a new one.
"""

from __future__ import annotations

import gc
import os
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from shmtrie.capacity import Capacity
from shmtrie.index import Index
from tests.backends import BACKENDS, footprint
from tests.concurrency.contest import STATUES, compare_at_rest
from tests.concurrency.judge import Verdict
from tests.concurrency.streams import Contended, Pool, draw
from tests.concurrency.tree import Tree
from tests.concurrency.worker import prepared
from tests.differential import Differential, Mismatch, expect
from tests.reference import MASK, Op, Oracle, Rank
from tests.removals import LEAF_FIRST, MIDDLE
from tests.storm.aftermath import Aftermath
from tests.storm.keeper import Death, Hang, Keeper
from tests.storm.parts import COUNT, DEAD_LANE, DONE, FIRST, MET, ODD, PHASE, TAKEN, Part, Scene
from tests.workload import EXACT, mix

KINDS = ("clean", "alias", "flip")


class Stream(Contended):
    """A stream in which ranks are let go as well; what is no event is rare where events come in batches."""

    batches = 1

    def _move(self, rank: Rank) -> Iterator[Op]:
        if self.batches == 1 or self.rng.random() < 0.2:
            yield ("move", rank)

    def _retire(self, rank: Rank) -> Iterator[Op]:
        if self.batches == 1 or self.rng.random() < 0.2:
            yield from super()._retire(rank)


@dataclass
class Totals:
    """What storms did; times in ns."""

    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    stops: int = 0
    ops: int = 0
    calls: int = 0
    busy: int = 0
    finds: int = 0
    cut: Counter[str] = field(default_factory=Counter)
    came: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    recoveries: Counter[str] = field(default_factory=Counter)
    phases: Counter[int] = field(default_factory=Counter)
    recovery_ns: list[int] = field(default_factory=list)
    open_recovery_ns: list[int] = field(default_factory=list)
    end_to_end_ns: list[int] = field(default_factory=list)
    find_ns: list[np.ndarray] = field(default_factory=list)
    overcounts: int = 0
    lost: int = 0
    dips: int = 0
    hangs: int = 0


@contextmanager
def segment(capacity: Capacity, exact_holes: bool = False) -> Iterator[Index]:
    """A new segment, gone at the end."""
    name = f"storm-{os.getpid():x}-{secrets.token_hex(4)}"
    with Index.create(name, capacity, exact_holes=exact_holes) as index:
        try:
            with index.writer() as writer:  # loads all kernels, so that those who are forked have them
                writer.store(1, None, [1], [1])
                writer.remove_worker(1)
            index.find_matches([1])
            yield index
        finally:
            Index.unlink(name)


class Storm:
    """One segment.

    Parameters
    ----------
    index : Index
        Empty; a handle of this process, which has no lane.
    seed : int
        Of everything but the moments.
    writers, readers : int
        Processes at a time.
    kind : str
        Of the streams, see ``tests.workload``.
    batches : int
        Longest batch of events; 1: a call for each.
    kills : int
        About how many there will be in an act.
    totals : Totals
        To add to.
    spoil : callable, optional
        Makes writers do wrong: a negative control.
    """

    def __init__(
        self,
        index: Index,
        seed: int,
        writers: int,
        readers: int,
        kind: str,
        batches: int,
        kills: int,
        totals: Totals,
        spoil: Callable[[], None] | None = None,
    ) -> None:
        self.index, self.seed, self.totals, self._spoil = index, seed, totals, spoil
        holes = index.segment.exact_holes
        self.rng, self.oracle = random.Random(f"storm {seed}"), Oracle(holes)
        self.exact = kind in EXACT and not holes
        self.pool = Pool(seed, trunk=40)
        self._open = BACKENDS["shm-holes" if holes else "shm"].open
        self.check = Differential(index, self.oracle, self._open, self.exact, heavy_every=1 << 60)
        self._empty = _usage(index)
        removals = MIDDLE if holes else LEAF_FIRST
        self.streams: list[Stream] = []
        for w in range(writers):
            ranks = [(10 + w, 0), (10 + w, 1), (MASK - w, 3)]
            self.streams.append(Stream(self.oracle, seed * 64 + w, self.pool, ranks, kind, removals))
            self.streams[w].batches = batches
            # A stream gives an extreme hash to one place. A rank that is handed over could get it for another
            # one, which would move it and leave a hole.
            self.streams[w]._extremes = {hash_seed: [] for hash_seed in range(3)}
        self.parts = [Part(i, "writer") for i in range(writers)] + [Part(i, "reader") for i in range(readers)]
        self._mender = Part(0, "mender")
        self._deaths: list[Death] = []
        self._ops_wanted = kills * (4 if batches == 1 else 40)  # of each writer in an act; what is used tells
        self._batches, self._acts = batches, 0

    def place_statues(self) -> None:
        """Ranks that nobody touches."""
        with self.index.writer() as writer:
            for rank, part in zip(STATUES, (1.0, 0.5), strict=True):
                for path in self.pool.paths:
                    blocks = [(b, mix(1, *path[: d + 1])) for d, b in enumerate(path)]
                    op: Op = ("store", rank, None, blocks[: max(1, int(part * len(path)))])
                    function, arguments = prepared(self.index, writer, op)
                    function(*arguments)
                    self.oracle.apply(op)

    def act(self, kills: int) -> None:
        """Writers, readers, so many kills; then everything is judged and compared."""
        rng, queries = self.rng, self.pool.queries(self.rng, 24)
        arrays = [np.array(q, np.uint64) for q in queries]
        scene = Scene(
            self.index.segment.name,
            rng.getrandbits(30),
            arrays,
            self._acts << 32,
            self._batches,
            pause=200e-6 if self._batches == 1 else 2e-3,
            patience=rng.choice((0.002, 0.05)),
            spoil=self._spoil,
        )
        self._acts += 1
        for part in (*self.parts, self._mender):
            part.words[:] = memoryview(bytes(8 * len(part.words))).cast("q")
            for journal in (part.ops, part.calls, part.recoveries):
                journal.clear()
        for part, stream in zip(self.parts, self.streams, strict=False):
            part.plan = draw(self.oracle, stream, self._ops_wanted)
        gc.collect()
        gc.freeze()
        keeper = Keeper(self.index, self.parts, scene, rng)
        try:
            keeper.rage(kills)
            if rng.random() < 0.5:
                keeper.kill_all()
                self._mend(scene)
            keeper.calm()
        finally:
            keeper.abandon()
            gc.unfreeze()
            self._note(keeper)
        used = max(int(part.ops.rows()[-1:, FIRST : COUNT + 1].sum()) for part in self.parts)
        self._ops_wanted = max(self._ops_wanted // 2, used + used // 2, 200)
        ranks = {*STATUES, *(r for stream in self.streams for r in stream.ranks), *self.oracle.ranks()}
        after = Aftermath(self.oracle, self.parts, queries, ranks)
        try:
            after.follow()
            if not after.as_assumed:
                self.exact = self.check.exact = False
            after.judge(self.exact)
        finally:
            self._add(after)
        self._at_rest(queries)
        self._hand_over()

    def _mend(self, scene: Scene) -> None:
        """Everybody is dead: one process takes all lanes, and nothing of what was begun is left."""
        keeper = Keeper(self.index, [self._mender], scene, self.rng)
        try:
            keeper.start(0)
            keeper.wait()
        finally:
            keeper.abandon()
        report = self.index.verify()
        expect(report.ok and not report.unsettled, "verify after all lanes were recovered:", report)
        tree = Tree(self.index.segment)
        expect(not tree.problems, "the tree after all lanes were recovered:", "; ".join(tree.problems))

    def _at_rest(self, queries: list[list[int]], reload: bool = False) -> None:
        try:
            self.check.open_index = self._open if reload else None
            compare_at_rest(self.check, self.index, queries)
        except Mismatch:
            self.totals.lost += 1
            raise

    def _hand_over(self) -> None:
        """One worker's ranks go to another writer."""
        giver, taker = self.rng.sample(self.streams, 2) if len(self.streams) > 1 else self.streams * 2
        workers = sorted({r[0] for r in giver.ranks})
        if giver is not taker and len(workers) > 1:
            worker = self.rng.choice(workers)
            moved = tuple(r for r in giver.ranks if r[0] == worker)
            giver.ranks = tuple(r for r in giver.ranks if r not in moved)
            taker.ranks += moved

    def finish(self) -> None:
        """Compare with a reload; remove everything: the segment is as empty as a new one."""
        self._at_rest(self.pool.queries(self.rng, 30), reload=True)
        with self.index.writer() as writer:
            for rank in self.oracle.ranks():
                hashes = list(self.oracle.of(rank).place_of)
                self.rng.shuffle(hashes)
                for at in range(0, len(hashes), 7):
                    op: Op = ("remove", rank, hashes[at : at + 7])
                    function, arguments = prepared(self.index, writer, op)
                    function(*arguments)
                    self.oracle.apply(op)
        self._at_rest([])
        expect(_usage(self.index) == self._empty, "not empty:", _usage(self.index), self._empty)

    # -- counting ---------------------------------------------------------------------------------

    def _note(self, keeper: Keeper) -> None:
        """Kills, and what the recoveries of the lanes took."""
        totals, deeds = self.totals, keeper.deeds
        totals.kills += deeds.kills
        totals.starts += deeds.starts
        totals.stops += deeds.stops
        rows = np.concatenate([part.recoveries.rows() for part in (*self.parts, self._mender)])
        for row in rows:
            is_open = bool(row[ODD]) or bool(row[PHASE])
            if not row[DONE]:
                totals.recoveries["cut or put off"] += 1
                continue
            totals.recoveries["by who met it" if row[MET] else "by who took the lane"] += 1
            totals.recoveries["of an open operation"] += is_open
            took = int(row[DONE] - row[TAKEN])
            totals.recovery_ns.append(took)
            if is_open:
                totals.open_recovery_ns.append(took)
        for death in deeds.deaths:
            totals.phases[death.phase] += death.lane >= 0
            mine = rows[
                (rows[:, DEAD_LANE] == death.lane) & (rows[:, TAKEN] > death.at) & (rows[:, DONE] > 0)
            ]
            if death.lane >= 0 and len(mine):
                totals.end_to_end_ns.append(int(mine[:, DONE].min()) - death.at)

    def _add(self, after: Aftermath) -> None:
        totals, tally = self.totals, after.tally
        totals.ops += tally.ops
        totals.calls += tally.calls
        totals.busy += tally.busy
        totals.finds += tally.finds
        totals.cut += tally.cut
        totals.came += tally.came
        totals.outcomes += tally.outcomes
        totals.verdict.add(tally.verdict)
        totals.find_ns += tally.find_ns
        totals.overcounts += sum(text.startswith("over") for text in tally.verdict.wrong)
        totals.dips += sum(text.startswith("dip") for text in tally.verdict.wrong)


def _usage(index: Index) -> dict[str, int]:
    """What must be the same in an emptied segment and in a new one."""
    counts = index.verify().counts
    names = ("nodes", "child_entries", "extents", "extent_lines", "alias_extents", "nodes_in_records")
    view = index.segment.view
    claimed = {s: int(np.count_nonzero(view(s))) for s in ("node_claims", "line_claims", "children")}
    return {**footprint(index), **{name: counts[name] for name in names}, **claimed}


def storm(
    seed: int,
    kills: int,
    totals: Totals,
    writers: int = 3,
    readers: int = 1,
    acts: int = 3,
    kind: str | None = None,
    batches: int | None = None,
    holes: bool | None = None,
    spoil: Callable[[], None] | None = None,
) -> None:
    """One storm of so many kills.

    Streams evict leaf-first; in a segment of exact holes every other removal opens a hole.

    Raises
    ------
    Mismatch
        With the seed, and what there is to look at.
    """
    kind = kind or KINDS[seed % len(KINDS)]
    batches = batches or (1, 100, 100)[seed // 3 % 3]
    holes = seed % 4 == 3 if holes is None else holes
    begin, begun = time.monotonic(), totals.kills.total()
    with segment(Capacity(blocks=20_000, workers=64, lanes=writers + 2), holes) as index:
        try:
            run = Storm(index, seed, writers, readers, kind, batches, kills // acts, totals, spoil)
            if seed % 2 == 0:
                run.place_statues()
            for act in range(acts):
                run.act(max(1, (kills - (totals.kills.total() - begun)) // (acts - act)))
            run.finish()
        except Exception as error:
            totals.hangs += isinstance(error, Hang)
            raise Mismatch(
                f"{type(error).__name__}: {error}\nin storm(seed={seed}, kills={kills}, writers={writers}, "
                f"readers={readers}, acts={acts}, kind={kind!r}, "
                f"batches={batches}, holes={holes}), after {totals.kills.total() - begun} kills "
                f"and {time.monotonic() - begin:.1f} s"
            ) from error
