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

from collections.abc import Callable, Sequence
from typing import Any

from tests.interleave.memory import Image
from tests.interleave.process import Node, Operation, Process, Tree, perform
from tests.interleave.schedule import Buffer, Report, State, Violation, longer
from tests.interleave.transform import CHANGES, FENCE, LOAD, PAUSE, STORE, STORE32
from tests.interleave.words import Everything, Widened, Words

AGAIN = 10  # more runs to look around when a word was missed
_DELAYED = frozenset((STORE, STORE32))
_DRAINS = CHANGES - _DELAYED  # read-modify-writes, on x86


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
    dying : tuple of str
        Beginnings of the places in the source before which a process may die.
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
        dying: tuple[str, ...] = ("",),
    ) -> None:
        self.image, self.make, self.area = image, make, area
        self.judge, self.finish = judge, finish
        self.bound, self.deaths, self.tso, self.most = bound, deaths, tso, most
        self.dying = dying
        self.known = Words(image, area)
        self._every: Sequence[Process] | None = None

    def look_around(self, runs: int, seed: int = 1) -> None:
        """Find most of the shared words before anything is explored."""
        if self._every is None:
            self._every = self.make(Everything(*self.area))
        self.known.look_around(self._every, self.deaths, runs, seed)

    # -- exploring --------------------------------------------------------------------------------
    def run(self) -> Report:
        """Explore until nothing is left or something is wrong."""
        begun = 0
        self.processes = self.make(self.known.shared)
        # few preemptions first: most words are found there, and short schedules
        bounds = [0, 1, self.bound] if self.bound is None else list(range(self.bound + 1))
        while True:
            begun += 1
            try:
                report = self._run(bounds[0])._replace(begun=begun)
            except Widened:
                self.look_around(AGAIN, begun)
                continue
            if report.violation or len(bounds) == 1:
                return report
            del bounds[0]

    def _begin(self) -> State:
        self.known.fixed = False
        self.trees = [Tree(p, self.image, self.known.noter(k)) for k, p in enumerate(self.processes)]
        self._order = sorted(self.known.shared)
        self._index = {address: k for k, address in enumerate(self._order)}
        self.known.fixed = True
        if len(self.known.shared) != len(self._order):
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
        return Report(len(self._best), self.steps, self.ends, runs, len(self.known.shared), 1, violation)

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
            if (
                v is None
                or state.dead >> v & 1
                or (v != p and state.deaths and state.nodes[v].op is not None)
            ):
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
            return not self.known.written.get(word, 0) & others
        if self.tso and kind in _DELAYED:
            return True
        return not self.known.touched.get(word, 0) & others and not buffer

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
            if mortal and not node.fresh and node.op[4].startswith(self.dying):
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
                elif self.tso and kind in _DELAYED and (buffer or self.known.touched.get(at, 0) & others):
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
            raise Violation(str(error), self.schedule(key)) from error

    def follow(self, schedule: str, tell: Callable[[str, Operation | None, int | None], None]) -> None:
        """Do what a schedule says: tell(process, operation, new value of its word or None) for each.

        Only a schedule of the present set of shared words means anything: `run` comes before.
        """
        self._limit, self._stack, self._best, self._came = None, [], {}, {}
        state = self._begin()
        for action in longer(schedule):
            p = next(k for k, process in enumerate(self.processes) if process.name == action[0])
            if action.endswith("~"):
                tell(action, state.buffers[p][0], None)
                state = self._flush(state, p, 1)
                continue
            n = int(action[1:-1]) if action.endswith("!") else None
            others = self._others(state, p)
            node, words, buffer = state.nodes[p], list(state.words), state.buffers[p]
            while True:
                op, before = node.op, list(words)
                node, buffer = self._operate(p, node, words, buffer, others)
                changed = [new for old, new in zip(before, words, strict=True) if old != new]
                tell(action[0], op, changed[0] if changed else None)
                n = None if n is None else n - 1
                if node.op is None or n == 0 or (n is None and not self._is_local(node.op, others, buffer)):
                    break
            state = self._with(state, p, node, words, buffer)
            if action.endswith("!"):
                tell(action, None, None)
                state = self._die(state, p)

    # -- schedules --------------------------------------------------------------------------------
    def schedule(self, key: Any) -> str:
        """How a state was come by: names of processes, ``!`` a death, ``~`` a store that leaves a buffer."""
        actions: list[str] = []
        while key is not None:
            key, action = self._came[key]
            actions.append(action)
        return " ".join(filter(None, actions[::-1])) + " "
