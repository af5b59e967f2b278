"""Answers of indexes that may lose what is behind a removed block: judged by the contract's bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmtrie.replay.check import Model

from .workload import CLEAR, QUERY, STORE, Workload


class Judge:
    """Follows the events that an index has applied, and compares its answers.

    A score is wrong above the prefix that the engines hold, and below the one that can be reached: below
    what is held, where the index promises that.

    Parameters
    ----------
    workload : Workload
        Of one hash seed: an external hash names a whole prefix.
    exact_holes : bool
        The index promises the held prefix.

    Attributes
    ----------
    asked, wrong, exact, under, over : int
        Queries; those with a wrong score; with the held prefix for all workers; with a score below, above it.
    answered, held : int
        Sums of the scores, and of the held prefixes.
    refused : int
        Events that the index did not apply, though the engine's cache has changed so.
    """

    def __init__(self, workload: Workload, exact_holes: bool) -> None:
        self.workload = workload
        self._engines, self._applied = (Model(workload.workers, exact) for exact in (True, exact_holes))
        self.asked = self.wrong = self.exact = self.under = self.over = 0
        self.answered = self.held = self.refused = 0

    def follow(self, op: int, applied: bool = True) -> None:
        """An event happened; the index has applied it, or refused."""
        workload, worker = self.workload, int(self.workload.worker[op])
        hashes = workload.external[workload.part(op)].tolist()
        self.refused += not applied
        for model in (self._engines, self._applied)[: 1 + applied]:
            if workload.kind[op] == STORE:
                parent = int(workload.parent[op]) if workload.has_parent[op] else None
                model.store(worker, parent, hashes)
            elif workload.kind[op] == CLEAR:
                model.clear(worker)
            else:
                model.remove(worker, hashes)

    def answer(self, op: int, workers: Any, depths: Any) -> None:
        """The index's answer to a query, now."""
        workload = self.workload
        assert workload.kind[op] == QUERY
        hashes = workload.external[workload.part(op)].tolist()
        _, held = self._engines.bounds(hashes)
        least, _ = self._applied.bounds(hashes)
        scores = np.zeros(workload.workers, np.int64)
        scores[np.asarray(workers, np.int64)] = np.asarray(depths, np.int64)
        under, over = bool((scores < held).any()), bool((scores > held).any())
        self.asked += 1
        self.exact += not under and not over
        self.under += under
        self.over += over
        self.wrong += over or bool((scores < least).any())
        self.answered += int(scores.sum())
        self.held += int(held.sum())
