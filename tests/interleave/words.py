"""Which words several processes touch: only there does it matter who comes first."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.interleave.memory import Image
from tests.interleave.process import Process, Tree, perform


class Widened(Exception):
    """A word turned out to be touched by one process more."""


class Everything(set[int]):
    """All words of an area are shared: for runs that find out which really are."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self._first, self._last = first, last

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and self._first <= address < self._last


class Words:
    """Who touches and who changes which words, as far as it is known.

    Parameters
    ----------
    image : Image
        Memory at the beginning.
    area : (int, int)
        First and last address of the memory that may be shared.

    Attributes
    ----------
    shared : set of int
        Words that one process changes and another touches.
    touched, written : dict of int to int
        Bits of the processes, by word.
    fixed : bool
        An exploration is going on that counts on them.
    """

    def __init__(self, image: Image, area: tuple[int, int]) -> None:
        self.image, self.area = image, area
        self.shared: set[int] = set()
        self.touched: dict[int, int] = {}
        self.written: dict[int, int] = {}
        self.fixed = False

    def _note(self, bit: int, address: int, write: bool) -> None:
        touched, written = self.touched.get(address, 0), self.written.get(address, 0)
        if (written if write else touched) & bit:
            return
        self.touched[address] = touched = touched | bit
        if write:
            self.written[address] = written = written | bit
        if written and touched & (touched - 1):
            self.shared.add(address)
            if self.fixed:
                raise Widened

    def noter(self, p: int) -> Callable[[int, bool], None]:
        return lambda address, write: self._note(1 << p, address, write)

    def look_around(self, processes: Sequence[Process], most_deaths: int, runs: int, seed: int) -> None:
        """Find most of the shared words by runs with random switches and deaths.

        Parameters
        ----------
        processes : sequence of Process
            Made for `Everything`.
        most_deaths, runs, seed : int
            In one run; so many runs; of the choices.
        """
        dice = random.Random(seed)
        self.fixed = False
        longest = [1] * len(processes)  # operations that a process has done in one run
        for _ in range(runs):
            words: dict[int, int] = {}
            lives = {}
            dead = set[int]()
            for p, process in enumerate(processes):
                tree = Tree(process, self.image, self.noter(p))
                lives[p] = (tree, tree.root)
            deaths, p = most_deaths, -1
            left = {q: dice.randint(1, n) for q, n in enumerate(longest) if processes[q].mortal and n > 1}
            steps = [0] * len(processes)
            while True:
                can = [
                    q
                    for q, (_, node) in lives.items()
                    if node.op and q not in dead and processes[q].after in (None, *dead)
                ]
                if not can:
                    break
                if p not in can or dice.random() < 0.03:
                    p = dice.choice(can)
                if deaths and p in left:
                    left[p] -= 1
                    if left[p] == 0:
                        dead.add(p)
                        deaths -= 1
                        continue
                steps[p] += 1
                longest[p] = max(longest[p], steps[p])
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
