"""The plain model that says what every index has to answer: per place the set of workers that hold it.

For streams that evict leaf-first an index scores exactly the held prefix. All workloads here are of that
kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .workload import CLEAR, QUERY, STORE, Workload


class Answers(NamedTuple):
    """Answers of all queries of a workload; those of query i are [offsets[i], offsets[i + 1])."""

    offsets: npt.NDArray[np.int64]
    workers: npt.NDArray[np.uint32]
    depths: npt.NDArray[np.uint32]

    def of(self, i: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Workers in ascending order, and their depths."""
        part = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        return self.workers[part], self.depths[part]


class Model:
    """Who holds what: a bit mask of workers per place."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}

    def store(self, worker: int, places: Sequence[int]) -> None:
        """The worker holds these places from now on."""
        held, bit = self.held, 1 << worker
        for place in places:
            held[place] = held.get(place, 0) | bit

    def remove(self, worker: int, places: Sequence[int]) -> None:
        """The worker holds these places no more."""
        held, keep = self.held, ~(1 << worker)
        for place in places:
            mask = held.get(place, 0) & keep
            if mask:
                held[place] = mask
            else:
                held.pop(place, None)

    def clear(self, worker: int) -> None:
        """The worker holds nothing any more."""
        bit = 1 << worker
        self.remove(worker, [place for place, mask in self.held.items() if mask & bit])

    def find(self, path: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
        """Workers, ascending, and how many places from the root each holds."""
        get = self.held.get
        mask = get(path[0], 0) if len(path) else 0
        leave: list[tuple[int, int]] = []
        depth = 1
        while mask and depth < len(path):
            kept = mask & get(path[depth], 0)
            if kept != mask:
                leave.append((mask ^ kept, depth))
                mask = kept
            depth += 1
        if mask:
            leave.append((mask, depth))
        if not leave:
            return np.empty(0, np.int64), np.empty(0, np.uint32)
        groups = [_bits(gone) for gone, _ in leave]
        workers = np.concatenate(groups)
        depths = np.repeat(np.array([d for _, d in leave], np.uint32), [len(g) for g in groups])
        order = np.argsort(workers)
        return workers[order], depths[order]


def _bits(mask: int) -> npt.NDArray[np.int64]:
    raw = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(raw, bitorder="little"))


def expected(workload: Workload) -> tuple[Answers, Model]:
    """Run the workload through the model: what each query has to answer, and the model at the end."""
    model = Model()
    workers, depths, counts = [np.empty(0, np.int64)], [np.empty(0, np.uint32)], [0]
    kinds, names = workload.kind.tolist(), workload.worker.tolist()
    for op, (kind, worker) in enumerate(zip(kinds, names, strict=True)):
        places = workload.place[workload.part(op)].tolist()
        if kind == QUERY:
            who, deep = model.find(places)
            workers.append(who)
            depths.append(deep)
            counts.append(len(who))
        elif kind == STORE:
            model.store(worker, places)
        elif kind == CLEAR:
            model.clear(worker)
        else:
            model.remove(worker, places)
    offsets = np.cumsum(np.array(counts, np.int64))
    return Answers(offsets, np.concatenate(workers).astype(np.uint32), np.concatenate(depths)), model


def differs(answers: Answers, i: int, workers: Any, depths: Any) -> bool:
    """Whether an index's answer to query i, in any order, is not the model's."""
    return unlike(answers.of(i), workers, depths)


def unlike(answer: tuple[Any, Any], workers: Any, depths: Any) -> bool:
    """Whether workers and depths, in any order, are not those of the model (workers ascending)."""
    who, deep = answer
    workers, depths = np.asarray(workers), np.asarray(depths)
    if len(workers) != len(who):
        return True
    order = np.argsort(workers, kind="stable")
    return not (np.array_equal(workers[order], who) and np.array_equal(depths[order], deep))
