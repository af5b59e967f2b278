"""All interleavings of a few processes, up to a number of preemptions.

States are compared, so that what two orders have in common is explored once: a state is where each process
stands, the words that several of them touch, store buffers, and who has died. A process goes on without a
choice as long as nobody else who may still act touches what it does next; which words these are is found by
running, and when one more turns up everything begins anew (so nothing is missed at the end). A process may
die after each of its operations.

With ``tso`` a store waits in its process's buffer, as on x86: loads of the own process see it, the others
only when it has left the buffer, in order; a read-modify-write, a sequentially consistent store and a full
fence empty the buffer first. A death empties it too: what was executed reaches memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.interleave.memory import Image
from tests.interleave.process import Node, Operation, Process, Tree, perform
from tests.interleave.transform import CHANGES, FENCE, LOAD, PAUSE, STORE, STORE32

Buffer = tuple[Operation, ...]
_DELAYED = frozenset((STORE, STORE32))
_DRAINS = CHANGES - _DELAYED  # read-modify-writes, on x86


class State(NamedTuple):
    """A state of all processes."""

    nodes: tuple[Node, ...]
    words: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    dead: int  # bits
    deaths: int  # that may still come
    seen: tuple[Any, ...]  # by reader: outcomes of the others when it began


class Violation(AssertionError):
    """Something that must not be; with the schedule that leads there."""

    def __init__(self, what: str, schedule: str = "") -> None:
        super().__init__(what)
        self.what, self.schedule = what, schedule


class Widened(Exception):
    """A word turned out to be touched by one process more."""


class Report(NamedTuple):
    """What was explored."""

    states: int
    steps: int
    ends: int
    runs: int
    shared: int
    begun: int
    violation: Violation | None


class Everything(set[int]):
    """All words of an area are shared: for runs that find out which really are."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self._first, self._last = first, last

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and self._first <= address < self._last


class Explorer:
    """Explores one set of processes.

    Parameters
    ----------
    image : Image
        Memory at the beginning.
    make : callable
        Makes the processes for a set of shared words.
    area : (int, int)
        First and last address of the memory that may be shared.
    judge, finish : callable
        judge(process, result, before, after) for a reader that ends, with (outcomes, is one begun) of all;
        finish(outcomes, dead, words written) when all is over. Both raise AssertionError.
    bound : int or None
        Preemptions; None: all interleavings.
    deaths : int
        At most so many of the mortal processes die.
    tso : bool
        Store buffers.
    most : int
        States; more are an error.
    """

    def __init__(
        self,
        image: Image,
        make: Callable[[set[int]], Sequence[Process]],
        area: tuple[int, int],
        judge: Callable[..., None],
        finish: Callable[..., None],
        bound: int | None = 2,
        deaths: int = 0,
        tso: bool = False,
        most: int = 2_000_000,
    ) -> None:
        self.image, self.make, self.area = image, make, area
        self.judge, self.finish = judge, finish
        self.bound, self.deaths, self.tso, self.most = bound, deaths, tso, most
        self.shared: set[int] = set()
        self.touched: dict[int, int] = {}
        self.written: dict[int, int] = {}
        self._fixed = False

    # -- which words ------------------------------------------------------------------------------
    def _note(self, bit: int, address: int, write: bool) -> None:
        touched, written = self.touched.get(address, 0), self.written.get(address, 0)
        if (written if write else touched) & bit:
            return
        self.touched[address] = touched = touched | bit
        if write:
            self.written[address] = written = written | bit
        if written and touched & (touched - 1):
            self.shared.add(address)
            if self._fixed:
                raise Widened

    def _noter(self, p: int) -> Callable[[int, bool], None]:
        return lambda address, write: self._note(1 << p, address, write)

    def look_around(self, runs: int, seed: int = 1) -> None:
        """Find most of the shared words by runs with random switches and deaths."""
        dice = random.Random(seed)
        every = Everything(*self.area)
        for _ in range(runs):
            processes = self.make(every)
            words: dict[int, int] = {}
            lives = {}
            dead = set[int]()
            for p, process in enumerate(processes):
                tree = Tree(process, self.image, self._noter(p))
                lives[p] = (tree, tree.root)
            deaths, p = self.deaths, -1
            while True:
                can = [q for q, (_, node) in lives.items() if node.op and self._may(processes[q], dead) and q not in dead]
                if not can:
                    break
                if p not in can or dice.random() < 0.03:
                    p = dice.choice(can)
                if processes[p].mortal and deaths and dice.random() < 0.01:
                    dead.add(p)
                    deaths -= 1
                    continue
                tree, node = lives[p]
                op = node.op
                value = 0
                if op[1]:
                    word = op[1] & -8
                    if word not in words:
                        words[word] = self.image.word(word)
                    value, new = perform(op, words[word])
                    if new is not None:
                        words[word] = new
                lives[p] = (tree, tree.next(node, value))

    @staticmethod
    def _may(process: Process, dead: set[int]) -> bool:
        return process.after is None or process.after in dead

    # -- exploring --------------------------------------------------------------------------------
    def run(self) -> Report:
        """Explore until nothing is left or something is wrong."""
        begun = 0
        # few preemptions first: most words are found there, and short schedules
        bounds = [0, 1, self.bound] if self.bound is None else list(range(self.bound + 1))
        while True:
            begun += 1
            try:
                report = self._run(bounds[0])._replace(begun=begun)
            except Widened:
                continue
            if report.violation or len(bounds) == 1:
                return report
            del bounds[0]

    def _begin(self) -> State:
        self._fixed = False
        self.processes = self.make(self.shared)
        self.trees = [Tree(p, self.image, self._noter(k)) for k, p in enumerate(self.processes)]
        self._order = sorted(self.shared)
        self._index = {address: k for k, address in enumerate(self._order)}
        self._fixed = True
        if len(self.shared) != len(self._order):
            raise Widened
        n = len(self.processes)
        words = tuple(self.image.word(address) for address in self._order)
        roots = tuple(tree.root for tree in self.trees)
        return State(roots, words, ((),) * n, 0, self.deaths, (None,) * n)

    def _run(self, bound: int | None) -> Report:
        first = self._begin()
        self._limit = bound
        self.steps = self.ends = 0
        # state, who ran last -> fewest preemptions; and how the state was come by
        self._best: dict[Any, int] = {}
        self._came: dict[Any, tuple[Any, str]] = {}
        self._stack: list[tuple[State, int, int]] = []
        self._push(first, -1, 0, None, "")
        violation = None
        try:
            while self._stack:
                self._expand(*self._stack.pop())
        except Violation as found:
            violation = found
        runs = sum(tree.runs for tree in self.trees)
        return Report(len(self._best), self.steps, self.ends, runs, len(self.shared), 1, violation)

    def _push(self, state: State, ran: int, used: int, source: Any, action: str) -> None:
        key = (state, ran if self._limit is not None else -1)
        best = self._best.get(key)
        if best is not None and best <= used:
            return
        if best is None:
            self._came[key] = (source, action)
            if len(self._best) > self.most:
                raise RuntimeError(f"more than {self.most} states")
        self._best[key] = used
        self._stack.append((state, ran, used))

    def _enabled(self, state: State, p: int) -> bool:
        after = self.processes[p].after
        return (
            state.nodes[p].op is not None
            and not state.dead >> p & 1
            and (after is None or bool(state.dead >> after & 1))
        )

    def _expand(self, state: State, ran: int, used: int) -> None:
        key = (state, ran if self._limit is not None else -1)
        can = [p for p in range(len(self.processes)) if self._enabled(state, p)]
        if not can and not any(state.buffers):
            self.ends += 1
            self._end(state, key)
            return
        free = ran not in can or state.nodes[ran].op[0] == PAUSE  # type: ignore[index]
        for p in reversed(can):
            cost = 0 if p == ran or free else 1
            if self._limit is None or used + cost <= self._limit:
                self._advance(state, p, used + cost, key)
        if self.tso:
            for p, buffer in enumerate(state.buffers):
                if buffer:
                    name = f"{self.processes[p].name}~"
                    self._push(self._flush(state, p, 1), ran, used, key, name)

    def _others(self, state: State, p: int) -> int:
        """Processes that may act while `p` goes on."""
        found = 0
        for q, process in enumerate(self.processes):
            if q == p or state.nodes[q].op is None or state.dead >> q & 1:
                continue
            v = process.after
            if v is None or state.dead >> v & 1 or (v != p and state.deaths and state.nodes[v].op is not None):
                found |= 1 << q
        return found

    def _is_local(self, op: Operation, others: int, buffer: Buffer) -> bool:
        kind = op[0]
        if kind == PAUSE:
            return False
        if kind == FENCE:
            return not buffer
        word = op[1] & -8
        if kind == LOAD:
            return not self.written.get(word, 0) & others
        if self.tso and kind in _DELAYED:
            return True
        return not self.touched.get(word, 0) & others and not buffer

    def _advance(self, state: State, p: int, used: int, key: Any) -> None:
        """Let a process do its next operation, and those behind it that concern nobody else."""
        process, n = self.processes[p], 0
        others = self._others(state, p)
        judged, mortal = process.judged, process.mortal and state.deaths > 0
        if judged and state.seen[p] is None:
            before = tuple(other.done for other in state.nodes)
            state = state._replace(seen=(*state.seen[:p], before, *state.seen[p + 1 :]))
        node, words, buffer = state.nodes[p], list(state.words), state.buffers[p]
        while True:
            n += 1
            node, buffer = self._operate(p, node, words, buffer, others)
            if node.op is None:
                state = self._with(state, p, node, words, buffer)
                if judged:
                    state = self._judged(state, p, key)
                break
            if mortal and not node.fresh:
                dead = self._die(self._with(state, p, node, words, buffer), p)
                self._push(dead, -1, used, key, f"{process.name}{n}!")
            if not self._is_local(node.op, others, buffer):
                state = self._with(state, p, node, words, buffer)
                break
        self.steps += n
        self._push(state, p, used, key, process.name)

    @staticmethod
    def _with(state: State, p: int, node: Node, words: list[int], buffer: Buffer) -> State:
        nodes, _, buffers, dead, deaths, seen = state
        if buffer is not buffers[p]:
            buffers = (*buffers[:p], buffer, *buffers[p + 1 :])
        return State((*nodes[:p], node, *nodes[p + 1 :]), tuple(words), buffers, dead, deaths, seen)

    def _die(self, state: State, p: int) -> State:
        state = self._flush(state, p, len(state.buffers[p]))
        return state._replace(dead=state.dead | 1 << p, deaths=state.deaths - 1)

    def _judged(self, state: State, p: int, key: Any) -> State:
        after = [(node.done, node.op is not None and not node.fresh) for node in state.nodes]
        try:
            self.judge(p, state.nodes[p].result, state.seen[p], after)
        except AssertionError as error:
            raise Violation(str(error), self.schedule(key) + self.processes[p].name) from None
        nodes = (*state.nodes[:p], self.trees[p].ended, *state.nodes[p + 1 :])
        return state._replace(nodes=nodes, seen=(*state.seen[:p], None, *state.seen[p + 1 :]))

    # -- one operation ----------------------------------------------------------------------------
    def _operate(
        self, p: int, node: Node, words: list[int], buffer: Buffer, others: int
    ) -> tuple[Node, Buffer]:
        """Do the next operation of a process; `words` are changed in place."""
        op = node.op
        assert op is not None
        kind, value = op[0], 0
        if buffer and (kind == FENCE or kind in _DRAINS):
            self._drain(words, buffer)
            buffer = ()
        if op[1]:
            at = op[1] & -8
            k = self._index[at]
            word = words[k]
            for waiting in buffer:
                if waiting[1] & -8 == at:
                    word = perform(waiting, word)[1]  # type: ignore[assignment]
            if kind == LOAD:
                value = word
            else:
                value, new = perform(op, word)
                if new is None:
                    pass
                elif self.tso and kind in _DELAYED and (buffer or self.touched.get(at, 0) & others):
                    buffer = (*buffer, op)
                else:
                    words[k] = new
        return node.edges.get(value) or self.trees[p].next(node, value), buffer

    def _drain(self, words: list[int], buffer: Buffer) -> None:
        for op in buffer:
            k = self._index[op[1] & -8]
            words[k] = perform(op, words[k])[1]  # type: ignore[assignment]

    def _flush(self, state: State, p: int, n: int) -> State:
        """Let stores leave a buffer, the oldest first."""
        words, buffer = list(state.words), state.buffers[p]
        self._drain(words, buffer[:n])
        return self._with(state, p, state.nodes[p], words, buffer[n:])

    def _end(self, state: State, key: Any) -> None:
        content = {}
        for node in state.nodes:
            for part in node.path():
                content.update(part.writes)
        content.update(zip(self._order, state.words, strict=True))
        try:
            self.finish([node.done for node in state.nodes], state.dead, content)
        except AssertionError as error:
            raise Violation(str(error), self.schedule(key)) from None

    # -- schedules --------------------------------------------------------------------------------
    def schedule(self, key: Any) -> str:
        """How a state was come by: names of processes, ``!`` a death, ``~`` a store that leaves a buffer."""
        actions: list[str] = []
        while key is not None:
            key, action = self._came[key]
            actions.append(action)
        return " ".join(filter(None, actions[::-1])) + " "
