"""Explored processes: generators whose state is what they have read.

A process is deterministic: what it does next follows from the values that its yielded operations gave it. So
its states form a tree, an edge for every value, and a state that was reached once is never run again. Where
another value turns up, the generator is run anew from its beginning with the values of the path.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from tests.interleave.memory import Image, Memory, half, signed, with_half
from tests.interleave.transform import ADD, AND, CAS, CAS32, CHANGES, LOAD, STORE32

#: Yielded by a process when one of its operations has ended: (MARK, outcome).
MARK = 99
KEPT = 256  # suspended generators

Operation = tuple[Any, ...]
Run = Generator[Operation, int, Any]


class Process(NamedTuple):
    """One process.

    Attributes
    ----------
    name : str
        One letter, for schedules.
    start : callable
        Makes its generator on a memory.
    after : int or None
        It begins only when this process has died: a recoverer.
    mortal : bool
        Whether it may die.
    judged : bool
        A reader: what it returns is judged when it ends, and it leaves nothing behind.
    """

    name: str
    start: Callable[[Memory], Run]
    after: int | None = None
    mortal: bool = False
    judged: bool = False


class Node:
    """A state of a process: its next operation, None at its end.

    Attributes
    ----------
    done : tuple
        Outcomes of the operations that it has ended.
    fresh : bool
        No yielded operation was done since the last of these ended, or since the beginning.
    writes : list
        Words that it wrote, unyielded, since the state before.
    result : object
        What it returned.
    """

    __slots__ = ("done", "edges", "fresh", "live", "op", "parent", "result", "value", "writes")

    def __init__(self, parent: Node | None, value: int, done: tuple[Any, ...]) -> None:
        self.parent, self.value, self.done = parent, value, done
        self.op: Operation | None = None
        self.edges: dict[int, Node] = {}
        self.live: tuple[Run, Memory] | None = None
        self.fresh, self.result = True, None
        self.writes: list[tuple[int, int]] = []

    def path(self) -> list[Node]:
        """The states from the first to this one."""
        found, node = [], self
        while node is not None:
            found.append(node)
            node = node.parent  # type: ignore[assignment]
        return found[::-1]


class Tree:
    """The states of one process.

    Parameters
    ----------
    process : Process
    image : Image
        Memory before.
    note : callable
        Told of words: (address, is it a write).
    """

    def __init__(self, process: Process, image: Image, note: Callable[[int, bool], None]) -> None:
        self.process, self.image, self._note = process, image, note
        self._kept: list[Node] = []
        self.runs = 0
        self.root = self._begin()
        #: stands for every end of a process that is judged
        self.ended = Node(None, 0, ())

    def _begin(self) -> Node:
        memory = Memory(self.image, self._note)
        self.runs += 1
        node = Node(None, 0, ())
        self._continue(node, self.process.start(memory), memory, None)
        return node

    def next(self, node: Node, value: int) -> Node:
        """The state after the operation of a state gave a value."""
        found = node.edges.get(value)
        if found is None:
            live = node.live or self._again(node)
            node.live = None
            found = node.edges[value] = Node(node, value, node.done)
            found.fresh = False
            self._continue(found, *live, value)
        return found

    def _again(self, node: Node) -> tuple[Run, Memory]:
        self.runs += 1
        memory = Memory(self.image, self._note)
        run = self.process.start(memory)
        path = node.path()
        op = next(run)
        for state in path:
            if state is not path[0]:
                op = run.send(state.value)
            while op[0] == MARK:
                op = run.send(0)
            assert op == state.op, "a process that does not do the same with the same values"
        memory.log = []
        return run, memory

    def _continue(self, node: Node, run: Run, memory: Memory, value: int | None) -> None:
        try:
            op = next(run) if value is None else run.send(value)
            while op[0] == MARK:
                node.done, node.fresh = (*node.done, op[1]), True
                op = run.send(0)
        except StopIteration as end:
            node.result = end.value
        else:
            node.op = op
            node.live = run, memory
            self._kept.append(node)
            if len(self._kept) > 2 * KEPT:
                for old in self._kept[:KEPT]:
                    old.live = None
                del self._kept[:KEPT]
            if op[1]:
                self._note(op[1] & -8, op[0] in CHANGES)
        node.writes, memory.log = memory.log, []


def perform(op: Operation, word: int) -> tuple[int, int | None]:
    """Do an operation on a word: (result, new word or None)."""
    kind, address, x, y, _ = op
    if kind == LOAD:
        return word, None
    if kind == CAS:
        return (1, signed(y)) if word == signed(x) else (0, None)
    if kind == CAS32:
        same = half(word, address) == x & 0xFFFF_FFFF
        return (1, with_half(word, address, y)) if same else (0, None)
    if kind == ADD:
        return word, signed(word + x)
    if kind == AND:
        return 0, signed(word & x)
    if kind == STORE32:
        return 0, with_half(word, address, x)
    return 0, signed(x)
