"""A model: a small real segment, and processes that work on it at once.

The segment is made and filled by the product; its bytes are what the explored processes begin with.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from shmtrie import header
from shmtrie.capacity import SECTION_DTYPES, Capacity
from shmtrie.contexts import Context, WriterContext, signed
from shmtrie.events import KIND_CLEAR, KIND_REMOVE, KIND_STORE, EventParts
from shmtrie.index import Index
from shmtrie.kernels import batch
from shmtrie.kernels import context as c
from shmtrie.kernels.extents import CLASS_WORDS
from shmtrie.kernels.plan import X_WIDTH
from shmtrie.layout import HEADER
from shmtrie.scores import WorkerWithDpRank
from tests.backends import segment_name
from tests.concurrency.worker import as_event
from tests.interleave.drivers import Drivers
from tests.interleave.explore import Explorer
from tests.interleave.judge import LANES, Judge
from tests.interleave.memory import Image
from tests.interleave.process import Process, Tree, perform
from tests.interleave.schedule import Report
from tests.interleave.transform import Edit, Program
from tests.interleave.words import Everything
from tests.reference import OK, Op, Oracle, Rank
from tests.scenarios import numbers, operation

#: Loops that wait are short here: what matters is what comes after them.
CONSTANTS = {"GATE_TRIES": 1, "DRAIN_SPINS": 1, "LOCK_TRIES": 2}
CAPACITY = Capacity(blocks=64, workers=16, lanes=3, nodes=30, extents=4_096)
LOOKS = 30  # runs by which shared words are found before anything is explored
SEED = 0x1234_5678_9ABC_DEF1


class Model(NamedTuple):
    """Processes and what they begin with.

    Attributes
    ----------
    setup : str
        Script of ``tests.scenarios``; rank w is written by lane ``(w - 1) % 3`` (A, B, C) unless a process
        of another lane writes it.
    processes : tuple of str
        ``A S 1 1-3``: lane A applies a script. ``? 1-6``: a reader asks. ``!A``: somebody recovers lane A
        when it has died, ``!!A``: somebody else when that one has died as well. ``+A S 1 4``: ... takes
        the seat, and goes on with the ranks of the script.
    deaths : int
        Lanes and recoverers that may die.
    tso : bool
        With store buffers.
    bound : int or None
        Preemptions.
    dying : tuple of str
        Beginnings of the places in the source before which a process may die: everywhere by default.
    constants : mapping
        Other bounds of loops than the usual ones.
    """

    setup: str
    processes: tuple[str, ...]
    deaths: int = 0
    tso: bool = False
    bound: int | None = 2
    dying: tuple[str, ...] = ("",)
    constants: Mapping[str, int] = {}
    capacity: Capacity = CAPACITY
    queries: tuple[str, ...] = ()
    prepare: Callable[[World], None] | None = None


def _ops(script: str) -> list[Op]:
    return [operation(step.strip()) for step in script.split(";") if step.strip()]


def _shrink(context: WriterContext) -> None:
    """Smaller scratch areas, which are put back at every end."""
    context.grow_rows(32)
    context.area(c.C_SEEN, 128 * 8)
    context.words[c.C_SEEN_MASK] = 127
    context.area(c.C_CUTS, 32 * X_WIDTH * 8)


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
            if op[0] == "remove_worker":
                self.writers[1].remove_worker(op[1])
                continue
            lane = lanes.setdefault(op[1], (op[1][0] - 1) % 3)
            self.writers[lane].apply_event(as_event(op))
        self.lanes = lanes
        for rank, lane in lanes.items():
            self._register(rank, lane)
        for writer in self.writers:
            _shrink(writer._work.context)
        for writer in self.writers:
            batch.tidy_up(writer._work.context.address)
        if model.prepare is not None:
            model.prepare(self)
        self.spare = [self._writer_context(lane) for lane in range(len(LANES))]
        self.queries = self._queries()
        self.ranks = sorted(lanes)

    def _register(self, rank: Rank, lane: int) -> None:
        """See that the lane knows a rank."""
        one = np.ones(1, np.uint64)
        parts = EventParts(KIND_STORE, WorkerWithDpRank(*rank), None, one, one, 0)
        if rank not in self.writers[lane]._work.context._mapped:
            self.writers[lane]._work.ranks.admit(parts)

    def _writer_context(self, lane: int) -> WriterContext:
        context = WriterContext(self.segment, lane)
        _shrink(context)
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

    def work(self, edits: Iterable[Edit] = ()) -> int:
        """How many accesses to the segment the first process makes, alone."""
        area = (self.segment.base, self.segment.base + self.segment.total_bytes)
        process = self.processes()(Program(Everything(*area), edits, CONSTANTS))[0]
        tree = Tree(process, self.image(), lambda address, write: None)
        words, node, n = dict[int, int](), tree.root, 0
        while node.op is not None:
            n += 1
            at, value = node.op[1] & -8, 0
            if at:
                value, new = perform(node.op, words.get(at, tree.image.word(at)))
                if new is not None:
                    words[at] = new
            node = tree.next(node, value)
        return n

    # -- processes --------------------------------------------------------------------------------
    def arguments(self, op: Op) -> tuple[int, ...]:
        """What `apply_event` takes, behind the context."""
        kind = {"store": KIND_STORE, "remove": KIND_REMOVE, "clear": KIND_CLEAR}[op[0]]
        parent = op[2] if op[0] == "store" else None
        local = np.array([b[0] for b in op[3]] if op[0] == "store" else [0], np.uint64)
        hashes = {"store": lambda: [b[1] for b in op[3]], "remove": lambda: op[2], "clear": lambda: [0]}[
            op[0]
        ]()
        external = np.array(hashes, np.uint64)
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
                context = self._writer_context(lane)
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
        regions += [(array.ctypes.data, array.nbytes) for array in self._arrays]
        for context in self.contexts:
            for owner in context.owners():
                self._arrays.append(owner)  # as long as the image is put back there
                start = (owner.ctypes.data + 7) & ~7
                regions.append((start, (owner.ctypes.data + owner.nbytes - start) & ~7))
        return Image(regions)

    def address(self, lane: int) -> int:
        """The context of a lane."""
        return self.writers[lane]._work.context.address

    def word(self, offset: int, section: str) -> int:
        """A word of a section."""
        return ctypes.c_int64.from_address(self.segment.section_address(section) + offset).value

    def describe(self, address: int) -> str:
        """What is at an address."""
        for name, dtype in SECTION_DTYPES.items():
            at = address - self.segment.section_address(name)
            if not 0 <= at < self.segment.section_count(name) * dtype.itemsize:
                continue
            k, rest = divmod(at, dtype.itemsize)
            fields = dtype.fields or {}
            inside = [(f[1], field) for field, f in fields.items() if f[1] <= rest < f[1] + f[0].itemsize]
            if not inside:
                return f"{name}[{k}]+{rest}"
            start, field = inside[-1]
            return f"{name}[{k}].{field}" + (f"+{rest - start}" if rest > start else "")
        at = address - self.segment.base
        if 0 <= at < HEADER.itemsize:
            return f"header+{at}"
        return f"private {address:#x}"

    def push_hint(self, lane: int, index: int, line: int) -> None:
        """Let a lane try this extent next for a size class."""
        hints = self.writers[lane]._work.context.get(c.C_LINE_HINTS) + index * CLASS_WORDS * 8
        n = ctypes.c_int64.from_address(hints)
        n.value += 1
        ctypes.c_int64.from_address(hints + n.value * 8).value = line

    def clear_hints(self, lane: int, index: int) -> None:
        """Let a lane know of no free extent of a size class."""
        hints = self.writers[lane]._work.context.get(c.C_LINE_HINTS) + index * CLASS_WORDS * 8
        ctypes.c_int64.from_address(hints).value = 0

    def slot(self, rank: Rank) -> tuple[int, int]:
        """Slot and slot generation of a rank."""
        found = [x._mapped[rank] for x in self.contexts if isinstance(x, WriterContext) and rank in x._mapped]
        return found[0]


@contextmanager
def open_world(model: Model) -> Iterator[World]:
    """A segment of a model."""
    name = segment_name("interleave")
    # one seed of the child table's hash, so that a schedule can be replayed
    with (
        mock.patch.object(header.secrets, "randbelow", lambda n: SEED),
        Index.create(name, model.capacity) as index,
    ):
        try:
            world = World(model, index)
            yield world
            for writer in world.writers:
                writer.close()
        finally:
            Index.unlink(name)


def explorer_of(world: World, edits: Iterable[Edit] = (), bound: int | None = -1) -> Explorer:
    """What explores a model."""
    model, segment = world.model, world.segment
    plans = world.processes()
    image = world.image()
    judge = Judge(world, image)
    edits, constants = tuple(edits), {**CONSTANTS, **model.constants}
    return Explorer(
        image,
        lambda shared: plans(Program(shared, edits, constants, model.tso)),
        (segment.base, segment.base + segment.total_bytes),
        judge.judge,
        judge.finish,
        model.bound if bound == -1 else bound,
        model.deaths,
        model.tso,
        dying=model.dying,
    )


def explore(model: Model, edits: Iterable[Edit] = (), bound: int | None = -1) -> Report:
    """Explore a model, or what an edit makes of it."""
    with open_world(model) as world:
        explorer = explorer_of(world, edits, bound)
        explorer.look_around(LOOKS * (1 + 4 * model.deaths))
        return explorer.run()
