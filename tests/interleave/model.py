"""A model: a small real segment, and processes that work on it at once.

The segment is made and filled by the product; its bytes are what the explored processes begin with. At every
end the bytes are put back into the segment, and the product's own kernels look at them: whatever a lane has
left to do is done, a lane whose death nobody has seen to is recovered, `verify` has to find nothing, the
scores have to be those of the oracle, and after all ranks have removed everything nothing may be left.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from shmtrie.capacity import Capacity
from shmtrie.contexts import Context, WriterContext, signed
from shmtrie.events import KIND_CLEAR, KIND_REMOVE, KIND_STORE, EventParts
from shmtrie.index import Index
from shmtrie.kernels import batch, recover
from shmtrie.kernels import context as c
from shmtrie.scores import WorkerWithDpRank
from tests.backends import pairs, segment_name
from tests.concurrency.tree import Tree
from tests.concurrency.worker import as_event
from tests.interleave.drivers import Drivers
from tests.interleave.explore import Explorer, Report, Violation
from tests.interleave.memory import Image
from tests.interleave.process import Process
from tests.interleave.transform import Edit, Program
from tests.reference import OK, Op, Oracle, Rank
from tests.scenarios import numbers, operation

#: Loops that wait are short here: what matters is what comes after them.
CONSTANTS = {"GATE_TRIES": 1, "DRAIN_SPINS": 1, "LOCK_TRIES": 2}
CAPACITY = Capacity(blocks=64, workers=16, lanes=4, nodes=30, extents=8_192)
LOOKS = 10  # runs by which shared words are found before anything is explored
LANES = "ABC"

OPEN, NEVER = "open", "never"  # outcomes of what is under way, and of what has not begun


class Model(NamedTuple):
    """Processes and what they begin with.

    Attributes
    ----------
    setup : str
        Script of ``tests.scenarios``; rank w is written by lane ``(w - 1) % 3`` (A, B, C) unless a process
        of another lane writes it.
    processes : tuple of str
        ``A S 1 1-3``: lane A applies a script. ``? 1-6``: a reader asks. ``!A``: somebody recovers lane A when
        it has died, ``!!A``: somebody else when that one has died as well. ``+A S 1 4``: ... takes the
        seat, and goes on with the ranks of the script.
    deaths : int
        Lanes and recoverers that may die.
    tso : bool
        With store buffers.
    bound : int or None
        Preemptions.
    constants : mapping
        Other bounds of loops than the usual ones.
    """

    setup: str
    processes: tuple[str, ...]
    deaths: int = 0
    tso: bool = False
    bound: int | None = 2
    constants: Mapping[str, int] = {}
    capacity: Capacity = CAPACITY
    queries: tuple[str, ...] = ()
    prepare: Callable[[World], None] | None = None


def _ops(script: str) -> list[Op]:
    return [operation(step.strip()) for step in script.split(";") if step.strip()]


def ranks_of(op: Op, known: Iterable[Rank]) -> list[Rank]:
    """Ranks that an operation is about."""
    return [r for r in known if r[0] == op[1]] if op[0] == "remove_worker" else [op[1]]


class World:
    """The segment of a model, its lanes, and the oracle."""

    def __init__(self, model: Model, index: Index) -> None:
        self.model, self.index = model, index
        self.segment = index.segment
        self.writers = [index.writer(0.01) for _ in LANES]
        self.contexts: list[Context] = [writer._work.context for writer in self.writers]
        self._arrays: list[np.ndarray] = []
        self.scripts: list[list[Op]] = []
        lanes: dict[Rank, int] = {}
        for text in model.processes:
            mine = _ops(text[1:] if text[0] in LANES else text[2:] if text[0] == "+" else "")
            self.scripts.append(mine)
            for op in mine:
                if op[0] != "remove_worker" and text[0] in LANES:
                    lanes[op[1]] = LANES.index(text[0])
        self.before = _ops(model.setup)
        for op in self.before:
            lane = lanes.setdefault(op[1], (op[1][0] - 1) % 3)
            self.writers[lane].apply_event(as_event(op))
        self.lanes = lanes
        for rank, lane in lanes.items():
            self._register(rank, lane)
        for writer in self.writers:
            batch.tidy_up(writer._work.context.address)
        if model.prepare is not None:
            model.prepare(self)
        self.spare = [self._writer_context(lane) for lane in range(len(LANES))]
        self.queries = self._queries()
        self._oracles: dict[tuple[int, ...], Oracle] = {}
        self._all = [*self.before, *(op for script in self.scripts for op in script)]
        self._numbers, n = [], len(self.before)
        for script in self.scripts:
            self._numbers.append(range(n, n + len(script)))
            n += len(script)
        self.ranks = sorted(lanes)

    def _register(self, rank: Rank, lane: int) -> None:
        """See that the lane knows a rank."""
        one = np.ones(1, np.uint64)
        parts = EventParts(KIND_STORE, WorkerWithDpRank(*rank), None, one, one, 0)
        if rank not in self.writers[lane]._work.context._mapped:
            self.writers[lane]._work.ranks.admit(parts)

    def _writer_context(self, lane: int) -> WriterContext:
        context = WriterContext(self.segment, lane)
        self.contexts.append(context)
        return context

    def _reader_context(self) -> Context:
        context = Context(self.segment)
        self.contexts.append(context)
        return context

    def _queries(self) -> list[tuple[int, ...]]:
        found = {tuple(numbers(text)) for text in self.model.queries}
        oracle = Oracle()
        for op in [*self.before, *(op for script in self.scripts for op in script)]:
            if op[0] == "store":
                place = None if op[2] is None else oracle.of(op[1]).place_of.get(op[2])
                above = () if place is None else tuple(oracle.places.path(place))
                path = (*above, *(local for local, _ in op[3]))
                found |= {path, path[:-1]} - {()}
                if OK in oracle.outcomes(op):
                    oracle.apply(op)
        return sorted(found)

    # -- processes --------------------------------------------------------------------------------
    def arguments(self, op: Op) -> tuple[int, ...]:
        """What `apply_event` takes, behind the context."""
        kind = {"store": KIND_STORE, "remove": KIND_REMOVE, "clear": KIND_CLEAR}[op[0]]
        parent = op[2] if op[0] == "store" else None
        local = np.array([b[0] for b in op[3]] if op[0] == "store" else [0], np.uint64)
        external = np.array([b[1] for b in op[3]] if op[0] == "store" else op[2] if op[0] == "remove" else [0], np.uint64)
        n = 0 if op[0] == "clear" else len(external)
        self._arrays += [local, external]
        (worker, dp_rank), has = op[1], int(parent is not None)
        where = (int(local.ctypes.data), int(external.ctypes.data), n)
        return (kind, signed(worker), dp_rank, has, signed(parent or 0), *where, 0, 0)

    def processes(self) -> Callable[[Program], list[Process]]:
        """Prepare contexts and arrays; what makes the processes of a program."""
        model, plans = self.model, list[Callable[[Drivers], Process]]()
        names = iter("rstu")
        dead: dict[str, int] = {}
        for k, (text, script) in enumerate(zip(model.processes, self.scripts, strict=True)):
            kind = text[0]
            if kind == "?":
                query = np.array(numbers(text[1:]), np.uint64)
                self._arrays.append(query)
                plans.append(self._reader(next(names), self._reader_context(), query))
                continue
            lane = LANES.index(text.lstrip("!+")[0])
            steps = [(op, None if op[0] == "remove_worker" else self.arguments(op)) for op in script]
            after = None
            if kind in LANES:
                name, context = kind, self.writers[lane]._work.context
            else:
                name, context = "XYZ"[len(dead) - 1 if len(dead) else 0], self._writer_context(lane)
                name = "XYZ"[sum(t[0] in "!+" for t in model.processes[:k])]
                after = dead[LANES[lane]]
            dead[LANES[lane]] = k
            plans.append(self._lane(name, lane, context, steps, after, joins=kind == "+"))
        return lambda program: [plan(Drivers(program, self)) for plan in plans]

    def _reader(self, name: str, context: Context, query: np.ndarray) -> Callable[[Drivers], Process]:
        at, n = int(query.ctypes.data), len(query)
        return lambda drivers: Process(name, lambda m: drivers.ask(m, context, at, n), judged=True)

    def _lane(
        self, name: str, lane: int, context: WriterContext, steps: list[Any], after: int | None, joins: bool
    ) -> Callable[[Drivers], Process]:
        mortal = self.model.deaths > 0 and any(
            text[0] in "!+" and text.lstrip("!+")[0] == LANES[lane] for text in self.model.processes
        )

        def make(drivers: Drivers) -> Process:
            def start(m: Any) -> Any:
                if after is None:
                    return drivers.apply(m, context, lane, steps)
                return drivers.recover(m, context, lane, steps if joins else [])

            return Process(name, start, after, mortal)

        return make

    def image(self) -> Image:
        """The memory as it is."""
        regions = [(self.segment.base, self.segment.total_bytes)]
        for context in self.contexts:
            for owner in (context.words, *context._owned.values()):
                start = (owner.ctypes.data + 7) & ~7
                regions.append((start, (owner.ctypes.data + owner.nbytes - start) & ~7))
        regions += [(array.ctypes.data, array.nbytes) for array in self._arrays]
        return Image(regions)

    def slot(self, rank: Rank) -> tuple[int, int]:
        """Slot and slot generation of a rank."""
        found = [x._mapped[rank] for x in self.contexts if isinstance(x, WriterContext) and rank in x._mapped]
        return found[0]

    # -- judging ----------------------------------------------------------------------------------
    def _oracle(self, applied: tuple[int, ...]) -> Oracle:
        found = self._oracles.get(applied)
        if found is None:
            found = self._oracles[applied] = Oracle()
            for k in (*range(len(self.before)), *applied):
                if OK in found.outcomes(self._all[k]):
                    found.apply(self._all[k])
        return found

    def histories(self, rank: Rank, before: Sequence[Any], after: Sequence[Any]) -> list[tuple[tuple[int, ...], bool]]:
        """What may have been applied to a rank at some moment between two: (numbers of operations, is it in
        one piece). `before` and `after` are outcomes by process, OPEN for one under way.
        """
        found: list[tuple[tuple[int, ...], bool]] = [((), True)]
        for p, script in enumerate(self.scripts):
            for k, op in enumerate(script):
                if rank not in ranks_of(op, self.ranks):
                    continue
                early = before[p][k] if k < len(before[p]) else NEVER
                late = after[p][k] if k < len(after[p]) else NEVER
                number = self._numbers[p][k]
                if late == NEVER:
                    continue
                whole = op[0] == "store"
                applied = [((*h, number), True) for h, _ in found]
                if early == c.OK:
                    found = applied
                elif late == c.OK or late == OPEN or not whole:
                    found = [*found, *applied, *(((*h, number), False) for h, _ in found if not whole)]
        return found

    def scores(self, rank: Rank, query: Sequence[int], histories: Iterable[tuple[tuple[int, ...], bool]]) -> set[int]:
        """Scores that a rank may have."""
        found = set[int]()
        for applied, whole in histories:
            low, high = self._oracle(applied).bounds(rank, query)
            if not whole:
                low, high = min(low, self._oracle(applied[:-1]).bounds(rank, query)[0]), max(
                    high, self._oracle(applied[:-1]).bounds(rank, query)[1]
                )
            found.update(range(low, high + 1))
        return found

    def judge(self, p: int, result: Any, before: Sequence[Any], after: Sequence[Any]) -> None:
        """What a reader found is what the ranks held at some moment of its call."""
        query = numbers(self.model.processes[p][1:])
        scores, giveups = result
        late = [(*done, OPEN) if begun else done for done, begun in after]
        for rank in self.ranks:
            allowed = self.scores(rank, query, self.histories(rank, before, late))
            got = scores.get(rank, 0)
            ok = got in allowed or (giveups and got <= max(allowed))
            assert ok, f"{rank} scores {got} for {query}, not one of {sorted(allowed)}"
        assert set(scores) <= set(self.ranks), f"unknown ranks: {scores}"

    def finish(self, done: Sequence[Any], dead: int, content: Mapping[int, int]) -> None:
        """All is over: see that the segment is sound, and says what the oracle says."""
        try:
            self._put(content)
            self._finish(done, dead)
        finally:
            self.base.restore()

    @staticmethod
    def _put(content: Mapping[int, int]) -> None:
        for address, value in content.items():
            ctypes.c_int64.from_address(address).value = value

    def _finish(self, done: Sequence[Any], dead: int) -> None:
        lost = self._settle(dead)
        report = self.index.verify()
        assert report.ok and not report.unsettled, f"verify: {report.broken} {report.unsettled}"
        outcomes = [(*d, OPEN) if dead >> p & 1 else d for p, d in enumerate(done)]
        for rank in self.ranks:
            found = [pairs(self.index.find_matches(list(q))).get(rank, 0) for q in self.queries]
            fits = [
                all(n in self.scores(rank, q, [history]) for n, q in zip(found, self.queries, strict=True))
                for history in self.histories(rank, outcomes, outcomes)
            ]
            assert any(fits), f"{rank} scores {found} for {self.queries} after {outcomes}"
        self._drain(lost)

    def _settle(self, dead: int) -> set[int]:
        """Let every lane do what it had to leave; the lanes that died."""
        lost = set[int]()
        for p, text in enumerate(self.model.processes):
            if text[0] in LANES and dead >> p & 1:
                lost.add(LANES.index(text[0]))
        for lane in lost:
            for _ in range(4):
                if recover.recover(self.spare[lane].address) == c.OK:
                    break
            else:
                raise AssertionError(f"lane {LANES[lane]} cannot be recovered")
        for lane, writer in enumerate(self.writers):
            context = self.spare[lane] if lane in lost else writer._work.context
            for _ in range(4):
                if batch.tidy_up(context.address) == c.OK:
                    break
            else:
                raise AssertionError(f"lane {LANES[lane]} has something to tidy up for ever")
        return lost

    def _drain(self, lost: set[int]) -> None:
        """Ranks of living lanes remove everything they may have: nothing of theirs is left."""
        for rank, lane in self.lanes.items():
            if lane in lost:
                continue
            hashes = sorted({e for op in self._all if op[0] == "store" and op[1] == rank for _, e in op[3]})
            array = np.array(hashes, np.uint64)
            where = (0, int(array.ctypes.data), len(array))
            address = self.writers[lane]._work.context.address
            status = batch.apply_event(address, KIND_REMOVE, signed(rank[0]), rank[1], 0, 0, *where, 0, 0)
            assert status in (c.OK, c.NO_BLOCK, c.UNKNOWN_RANK), f"removing all of {rank}: status {status}"
        for q in self.queries:
            left = {r for r in pairs(self.index.find_matches(list(q))) if self.lanes[r] not in lost}
            assert not left, f"ranks {left} still hold {q} after they have removed everything"
        if not lost:
            tree = Tree(self.segment)
            assert not tree.nodes and not tree.problems, f"left behind: {list(tree.nodes.values())} {tree.problems}"


@contextmanager
def open_world(model: Model) -> Iterator[World]:
    """A segment of a model."""
    name = segment_name("interleave")
    with Index.create(name, model.capacity) as index:
        try:
            world = World(model, index)
            yield world
            for writer in world.writers:
                writer.close()
        finally:
            Index.unlink(name)


def explorer_of(world: World, edits: Iterable[Edit] = (), bound: int | None = -1) -> Explorer:
    """What explores a model."""
    model = world.model
    plans = world.processes()
    world.base = world.image()
    edits, constants = tuple(edits), {**CONSTANTS, **model.constants}
    segment = world.segment
    return Explorer(
        world.base,
        lambda shared: plans(Program(shared, edits, constants, model.tso)),
        (segment.base, segment.base + segment.total_bytes),
        world.judge,
        world.finish,
        model.bound if bound == -1 else bound,
        model.deaths,
        model.tso,
    )


def explore(model: Model, edits: Iterable[Edit] = (), bound: int | None = -1) -> Report:
    """Explore a model, or what an edit makes of it."""
    with open_world(model) as world:
        explorer = explorer_of(world, edits, bound)
        explorer.look_around(LOOKS)
        return explorer.run()


__all__ = ["CAPACITY", "CONSTANTS", "Model", "Violation", "World", "explore", "explorer_of", "open_world"]
