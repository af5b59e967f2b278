"""Judging: what readers find while others write, and what is there when all is over.

At every end the bytes are put back into the segment, and the product's own kernels look at them: whatever a
lane has left to do is done, a lane whose death nobody has seen to is recovered, `verify` has to find nothing,
the scores have to be those of the oracle, and after all ranks have removed everything nothing may be left.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shmtrie.contexts import signed
from shmtrie.events import KIND_REMOVE
from shmtrie.kernels import batch, recover
from shmtrie.kernels import context as c
from tests.backends import pairs
from tests.concurrency.tree import Tree
from tests.interleave.memory import Image
from tests.reference import OK, Op, Oracle, Rank
from tests.scenarios import numbers

if TYPE_CHECKING:
    from tests.interleave.model import World

LANES = "ABC"
OPEN, NEVER = "open", "never"  # outcomes of what is under way, and of what has not begun

History = tuple[tuple[int, ...], bool]


def _merged(
    done: tuple[int, ...], whole: bool, queues: list[list[tuple[int, bool, bool]]]
) -> Iterator[History]:
    """All orders of some of the first of each queue that leave out none that has been applied."""
    if not any(applied for queue in queues for _, applied, _ in queue):
        yield done, whole
    for k, queue in enumerate(queues):
        if queue:
            rest = [*queues[:k], queue[1:], *queues[k + 1 :]]
            number, applied, is_whole = queue[0]
            yield from _merged((*done, number), True, rest)
            if not applied and not is_whole:
                yield from _merged((*done, number), False, rest)
            if not applied:
                yield from _merged(done, whole, rest)


def ranks_of(op: Op, known: Iterable[Rank]) -> list[Rank]:
    """Ranks that an operation is about."""
    return [r for r in known if r[0] == op[1]] if op[0] == "remove_worker" else [op[1]]


class Judge:
    """What a world allows.

    Parameters
    ----------
    world : World
    base : Image
        Its memory at the beginning, which is put back after each end.
    """

    def __init__(self, world: World, base: Image) -> None:
        self.world, self._base = world, base
        self._ends = set[Any]()  # that were found to be right
        self._oracles: dict[tuple[int, ...], Oracle] = {}
        self._all = [*world.before, *(op for script in world.scripts for op in script)]
        self._numbers, n = list[range](), len(world.before)
        for script in world.scripts:
            self._numbers.append(range(n, n + len(script)))
            n += len(script)

    def _oracle(self, applied: tuple[int, ...]) -> Oracle:
        found = self._oracles.get(applied)
        if found is None:
            found = self._oracles[applied] = Oracle()
            for k in (*range(len(self.world.before)), *applied):
                if OK in found.outcomes(self._all[k]):
                    found.apply(self._all[k])
        return found

    def histories(self, rank: Rank, before: Sequence[Any], after: Sequence[Any]) -> list[History]:
        """What may have been applied to a rank at some moment between two: (numbers of operations in order,
        is the last of them there in one piece). `before` and `after` are outcomes by process, OPEN for one
        under way. Operations of two processes may come in any order.
        """
        queues = []
        for p, script in enumerate(self.world.scripts):
            queue: list[tuple[int, bool, bool]] = []  # number, has it been applied before, is it in one piece
            for k, op in enumerate(script):
                early = before[p][k] if k < len(before[p]) else NEVER
                late = after[p][k] if k < len(after[p]) else NEVER
                if late == NEVER:
                    break
                whole, hides = op[0] == "store", op[0] == "remove_worker"
                if rank in ranks_of(op, self.world.ranks) and (late in (c.OK, OPEN) or not whole):
                    queue.append((self._numbers[p][k], early == c.OK or (hides and early == c.BUSY), whole))
            queues.append(queue)
        return list(dict.fromkeys(_merged((), True, queues)))

    def scores(self, rank: Rank, query: Sequence[int], histories: Iterable[History]) -> set[int]:
        """Scores that a rank may have."""
        found = set[int]()
        for applied, whole in histories:
            low, high = self._oracle(applied).bounds(rank, query)
            if not whole:
                low, high = (
                    min(low, self._oracle(applied[:-1]).bounds(rank, query)[0]),
                    max(high, self._oracle(applied[:-1]).bounds(rank, query)[1]),
                )
            found.update(range(low, high + 1))
        return found

    def judge(self, p: int, result: Any, before: Sequence[Any], after: Sequence[Any]) -> None:
        """What a reader found is what the ranks held at some moment of its call."""
        query = numbers(self.world.model.processes[p][1:])
        scores, giveups = result
        late = [(*done, OPEN) if begun else done for done, begun in after]
        for rank in self.world.ranks:
            allowed = self.scores(rank, query, self.histories(rank, before, late))
            got = scores.get(rank, 0)
            ok = got in allowed or (giveups and got <= max(allowed))
            assert ok, f"{rank} scores {got} for {query}, not one of {sorted(allowed)}"
        assert set(scores) <= set(self.world.ranks), f"unknown ranks: {scores}"

    def finish(self, done: Sequence[Any], dead: int, content: Mapping[int, int]) -> None:
        """All is over: see that the segment is sound, and says what the oracle says."""
        changed = frozenset((at, value) for at, value in content.items() if self._base.word(at) != value)
        end = (tuple(done), dead, changed)
        if end in self._ends:
            return
        try:
            self._put(content)
            self._finish(done, dead)
        finally:
            self._base.restore()
        self._ends.add(end)

    @staticmethod
    def _put(content: Mapping[int, int]) -> None:
        for address, value in content.items():
            ctypes.c_int64.from_address(address).value = value

    def _finish(self, done: Sequence[Any], dead: int) -> None:
        lost, index = self._settle(dead), self.world.index
        report = index.verify()
        # a death between the two stores of a claim leaves its span's count off: no more than a hint
        broken = [what for what in report.broken if not (dead and what[0] == "I14" and " counts " in what[1])]
        assert not broken and not report.unsettled, f"verify: {broken} {report.unsettled}"
        outcomes = [(*d, OPEN) if dead >> p & 1 else d for p, d in enumerate(done)]
        blocks = {tuple(info.worker): info.blocks for info in index.workers()}
        for rank in self.world.ranks:
            found = {q: pairs(index.find_matches(list(q))).get(rank, 0) for q in self.world.queries}
            fits = [
                all(n in self.scores(rank, q, [history]) for q, n in found.items())
                and self._counts(rank, history, blocks.get(rank, 0))
                for history in self.histories(rank, outcomes, outcomes)
            ]
            has = f"scores {found}, has {blocks.get(rank, 0)} blocks"
            assert any(fits), f"{rank} {has} after {outcomes}"
        self._drain(lost)

    def _counts(self, rank: Rank, history: History, blocks: int) -> bool:
        low, high = self._oracle(history[0]).block_bounds(rank)
        return low <= blocks <= high or not history[1]

    def _settle(self, dead: int) -> set[int]:
        """Let every lane do what it had to leave; the lanes that died."""
        lost = set[int]()
        for p, text in enumerate(self.world.model.processes):
            if text[0] in LANES and dead >> p & 1:
                lost.add(LANES.index(text[0]))
        for lane in lost:
            for _ in range(4):
                if recover.recover(self.world.spare[lane].address) == c.OK:
                    break
            else:
                raise AssertionError(f"lane {LANES[lane]} cannot be recovered")
        for lane, writer in enumerate(self.world.writers):
            context = self.world.spare[lane] if lane in lost else writer._work.context
            for _ in range(4):
                if batch.tidy_up(context.address) == c.OK:
                    break
            else:
                raise AssertionError(f"lane {LANES[lane]} has something to tidy up for ever")
        for text, script in zip(self.world.model.processes, self.world.scripts, strict=True):
            if any(op[0] == "remove_worker" for op in script):
                self.world.writers[LANES.index(text[0])]._work.ranks.sweep_dying()
        return lost

    def _drain(self, lost: set[int]) -> None:
        """Ranks of living lanes remove everything they may have: nothing of theirs is left."""
        for rank, lane in self.world.lanes.items():
            if lane in lost:
                continue
            hashes = sorted({e for op in self._all if op[0] == "store" and op[1] == rank for _, e in op[3]})
            array = np.array(hashes, np.uint64)
            where = (0, int(array.ctypes.data), len(array))
            address = self.world.writers[lane]._work.context.address
            status = batch.apply_event(address, KIND_REMOVE, signed(rank[0]), rank[1], 0, 0, *where, 0, 0)
            assert status in (c.OK, c.NO_BLOCK, c.UNKNOWN_RANK), f"removing all of {rank}: status {status}"
        for q in self.world.queries:
            left = {
                r for r in pairs(self.world.index.find_matches(list(q))) if self.world.lanes[r] not in lost
            }
            assert not left, f"ranks {left} still hold {q} after they have removed everything"
        if not lost:
            tree = Tree(self.world.segment)
            assert not tree.nodes and not tree.problems, (
                f"left behind: {list(tree.nodes.values())} {tree.problems}"
            )
