"""The model behind ``--check``: what each worker holds, in plain Python, and the judgement of answers.

It sees the events that the writers applied and nothing of the simulation. In a replay an external hash
names its whole prefix, so one table of blocks serves all workers: per block a bit set of the workers that
hold it (bit = worker id), and a sparse one of those for whom it is *cut*: held, but an ancestor was removed
since. The contract bounds every score by the reachable (held, not cut) and the held prefix; for streams
that evict leaf-first nothing is ever cut and both are the same number.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ..errors import EventStatus
from ..events import KIND_CLEAR, KIND_REMOVE, KIND_STORE, EventBatch
from .eventlog import Command

__all__ = ["Checker", "Model", "Wrong"]

_NONE: Final = -1
_EXAMPLES: Final = 20


class Model:
    """What every worker holds.

    Parameters
    ----------
    workers : int
        Worker ids are 0 ... workers - 1.
    exact_holes : bool
        Whether the index promises the held prefix itself (semantics of such segments).
    """

    def __init__(self, workers: int, exact_holes: bool = False) -> None:
        self.workers = workers
        self.exact_holes = exact_holes
        self._number: dict[int, int] = {}
        # Per block: who holds it, and its children as a linked list. Blocks are never forgotten.
        self._held: list[int] = []
        self._cut: dict[int, int] = {}
        self._child = array("q")
        self._sibling = array("q")

    def holds(self, worker: int, block: int) -> bool:
        """Tell whether a worker holds a block (external hash)."""
        number = self._number.get(block, _NONE)
        return number != _NONE and bool(self._held[number] >> worker & 1)

    def reaches(self, worker: int, block: int) -> bool:
        """Tell whether a worker holds a block whose chain was not cut since."""
        return self.holds(worker, block) and not self._cut.get(self._number[block], 0) >> worker & 1

    def store(self, worker: int, parent: int | None, blocks: Iterable[int]) -> None:
        """Apply a store that the index accepted; `parent` and `blocks` are external hashes.

        Behind a parent that is held but cut the blocks are held and cut too.
        """
        bit = 1 << worker
        behind = _NONE if parent is None else self._number[parent]
        cut = behind != _NONE and bool(self._cut.get(behind, 0) & bit)
        held, numbers = self._held, self._number
        for block in blocks:
            number = numbers.get(block)
            if number is None:
                number = self._add(block, behind)
            held[number] |= bit
            if cut or self._cut:
                self._mark(number, bit, cut)
            behind = number

    def remove(self, worker: int, blocks: Iterable[int]) -> None:
        """Apply a remove: what hangs behind a removed block is cut."""
        bit = 1 << worker
        for block in blocks:
            number = self._number.get(block)
            if number is None or not self._held[number] & bit:
                continue
            self._held[number] ^= bit
            self._mark(number, bit, False)
            self._cut_behind(number, bit)

    def clear(self, worker: int) -> None:
        """Forget everything that a worker holds."""
        bit = 1 << worker
        for number, mask in enumerate(self._held):
            if mask & bit:
                self._held[number] = mask ^ bit
        self._cut = {number: rest for number, mask in self._cut.items() if (rest := mask & ~bit)}

    def bounds(self, blocks: Iterable[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Bound every worker's score for a query.

        Parameters
        ----------
        blocks : iterable of int
            External hashes of the query's blocks from the root.

        Returns
        -------
        lower, upper : ndarray of int64, shape (workers,)
            Reachable and held prefix, in blocks; equal arrays if nothing on the path is cut. With
            exact_holes both are the held prefix.
        """
        upper = np.zeros(self.workers, np.int64)
        lower = upper
        held_all = reach_all = (1 << self.workers) - 1
        depth = 0
        for block in blocks:
            number = self._number.get(block)
            if number is None:
                break
            held = held_all & self._held[number]
            reach = reach_all & held
            if self._cut and not self.exact_holes:
                reach &= ~self._cut.get(number, 0)
            if lower is upper and reach != held:
                lower = upper.copy()
            if depth:
                if held != held_all:
                    _settle(upper, held_all & ~held, depth)
                if lower is not upper and reach != reach_all:
                    _settle(lower, reach_all & ~reach, depth)
            held_all, reach_all = held, reach
            if not held:
                break
            depth += 1
        _settle(upper, held_all, depth)
        if lower is not upper:
            _settle(lower, reach_all, depth)
        return lower, upper

    # --- inside -------------------------------------------------------------------------------------

    def _add(self, block: int, parent: int) -> int:
        number = self._number[block] = len(self._held)
        self._held.append(0)
        self._child.append(_NONE)
        self._sibling.append(_NONE)
        if parent != _NONE:
            self._sibling[number] = self._child[parent]
            self._child[parent] = number
        return number

    def _mark(self, number: int, bit: int, cut: bool) -> None:
        mask = self._cut.get(number, 0)
        mask = mask | bit if cut else mask & ~bit
        if mask:
            self._cut[number] = mask
        else:
            self._cut.pop(number, None)

    def _cut_behind(self, number: int, bit: int) -> None:
        """Cut all held descendants; below one that is cut or not held, that is done already."""
        waiting = [number]
        while waiting:
            child = self._child[waiting.pop()]
            while child != _NONE:
                if self._held[child] & bit and not self._cut.get(child, 0) & bit:
                    self._mark(child, bit, True)
                    waiting.append(child)
                child = self._sibling[child]


def _settle(scores: npt.NDArray[np.int64], workers: int, depth: int) -> None:
    while workers:
        lowest = workers & -workers
        scores[lowest.bit_length() - 1] = depth
        workers ^= lowest


@dataclass(frozen=True)
class Wrong:
    """One wrong answer or status."""

    request: int
    worker: int
    what: str


@dataclass
class Checker:
    """Judges what the index says against a `Model` that follows the same events.

    Parameters
    ----------
    model : Model
        Starts empty, like the index.
    leaf_first : bool
        Whether the streams are known to evict leaf-first: then the bounds must coincide.

    Notes
    -----
    An answer is one request's scores of all workers; it counts as wrong once, however many workers are.
    """

    model: Model
    leaf_first: bool
    answers: int = 0
    exact: int = 0
    wrong: int = 0
    events: int = 0
    examples: list[Wrong] = field(default_factory=list)

    def answer(
        self,
        request: int,
        blocks: Iterable[int],
        workers: npt.NDArray[np.uint64],
        depths: npt.NDArray[np.uint32],
    ) -> None:
        """Judge one answer of `find_matches`, given at a moment without writers.

        Parameters
        ----------
        request : int
            Number of the request, for the report.
        blocks : iterable of int
            External hashes of the query.
        workers, depths : ndarray of uint64 and uint32, shape (n_matches,)
            The answer.
        """
        self.answers += 1
        lower, upper = self.model.bounds(blocks)
        if lower is upper:
            self.exact += 1
        elif self.leaf_first and not np.array_equal(lower, upper):
            raise AssertionError("the simulated engines cut a chain in a run that is to evict leaf-first")
        count = self.model.workers
        if (workers >= count).any() or len(np.unique(workers)) != len(workers) or not depths.all():
            self._report(request, _NONE, "a worker that does not exist, one named twice, or a score of 0")
            return
        scores = np.zeros(count, np.int64)
        scores[workers] = depths
        bad = np.flatnonzero((scores < lower) | (scores > upper))
        if len(bad):
            worker = int(bad[0])
            allowed = f"{lower[worker]} <= score <= {upper[worker]}"
            self._report(request, worker, f"score {scores[worker]}, allowed {allowed} ({len(bad)} workers)")

    def apply(self, command: Command, statuses: npt.NDArray[np.uint8]) -> None:
        """Follow one call of a writer and judge its refusals.

        Parameters
        ----------
        command : Command
            What the writer was given.
        statuses : ndarray of uint8, shape (n_events,)
            `EventStatus` per event; not read for `RemoveWorker`.

        Notes
        -----
        A store must be refused exactly if its parent is not held; behind a parent that is held but cut both
        are right. Refusals for other reasons (room, contention) change nothing and are not wrong answers.
        """
        if not isinstance(command, EventBatch):
            self.model.clear(command.worker_id)
            return
        self.events += len(command)
        blocks = command.external.tolist()
        bounds = command.offsets.tolist()
        for i, (kind, worker, has_parent, parent, status) in enumerate(
            zip(
                command.kind.tolist(),
                command.worker_id.tolist(),
                command.has_parent.tolist(),
                command.parent.tolist(),
                statuses.tolist(),
                strict=True,
            )
        ):
            part = blocks[bounds[i] : bounds[i + 1]]
            if kind == KIND_STORE:
                self._store(worker, parent if has_parent else None, part, status)
            elif status == EventStatus.OK and kind == KIND_REMOVE:
                self.model.remove(worker, part)
            elif status == EventStatus.OK and kind == KIND_CLEAR:
                self.model.clear(worker)
            elif status == EventStatus.BLOCK_NOT_FOUND and any(self.model.holds(worker, b) for b in part):
                self._report(_NONE, worker, "a removal was refused, though the worker holds such blocks")

    def _store(self, worker: int, parent: int | None, blocks: list[int], status: int) -> None:
        model = self.model
        held = parent is None or model.holds(worker, parent)
        if status == EventStatus.OK and held:
            model.store(worker, parent, blocks)
        elif status == EventStatus.OK:
            self._report(_NONE, worker, f"a store behind {parent}, which is not held, was accepted")
        elif status == EventStatus.INVALID_BLOCK_SEQUENCE:
            self._report(_NONE, worker, "a store was called an invalid sequence; none of these is")
        elif status == EventStatus.PARENT_BLOCK_NOT_FOUND and (
            parent is None or model.reaches(worker, parent) or (held and model.exact_holes)
        ):
            self._report(_NONE, worker, f"a store behind {parent}, which is held, was refused")

    def _report(self, request: int, worker: int, what: str) -> None:
        self.wrong += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(Wrong(request, worker, what))
