"""What routers use without a library: a flat dict from block to who holds it.

Their queries need hashes that name whole prefixes, so engines of different hash seeds cannot share one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from .indexes import BenchIndex, Pairs
from .workload import CLEAR, REMOVE, STORE, Workload


def chained(workload: Workload) -> list[Any]:
    """Every query as list of hashes that name whole prefixes: what a flat dict needs."""
    return [workload.external[workload.part(int(op))].tolist() for op in workload.queries]


def flat_arguments(workload: Workload) -> list[tuple[int, tuple[Any, ...]]]:
    """Events as (worker, hashes)."""
    kinds, workers = workload.kind.tolist(), workload.worker.tolist()
    ops = workload.events.tolist()
    return [(kinds[op], (workers[op], workload.external[workload.part(op)].tolist())) for op in ops]


class DictOfSets(BenchIndex):
    """A dict from chained hash to the set of workers."""

    name = "dict of sets"
    handles_seeds = False
    queries = staticmethod(chained)
    events = staticmethod(flat_arguments)

    def __init__(self, workload: Workload) -> None:
        self._held: dict[int, set[int]] = {}
        self.find = self._match

    def _match(self, query: Sequence[int]) -> dict[int, int]:
        get = self._held.get
        active = get(query[0])
        if active is None:
            return {}
        scores: dict[int, int] = {}
        depth = 0
        for depth, key in enumerate(islice(query, 1, None), 1):
            here = get(key)
            if here is None:
                break
            if not active <= here:
                scores.update(dict.fromkeys(active - here, depth))
                active = active & here
                if not active:
                    return scores
        else:
            depth = len(query)
        scores.update(dict.fromkeys(active, depth))
        return scores

    def _store(self, worker: int, keys: Sequence[int]) -> None:
        held = self._held
        for key in keys:
            holders = held.get(key)
            if holders is None:
                held[key] = {worker}
            else:
                holders.add(worker)

    def _remove(self, worker: int, keys: Sequence[int]) -> None:
        held = self._held
        for key in keys:
            holders = held.get(key)
            if holders is not None:
                holders.discard(worker)
                if not holders:
                    del held[key]

    def _clear(self, worker: int, keys: Sequence[int]) -> None:
        self._remove(worker, [key for key, holders in self._held.items() if worker in holders])

    def bind(self) -> dict[int, Callable[..., Any]]:
        return {STORE: self._store, REMOVE: self._remove, CLEAR: self._clear}

    @staticmethod
    def pairs(found: Any) -> Pairs:
        return list(found), list(found.values())


class DictOfMasks(DictOfSets):
    """A dict from chained hash to a bit mask of workers; masks are turned into workers through a memo."""

    name = "dict of bitmasks"

    def __init__(self, workload: Workload) -> None:
        self._masks: dict[int, int] = {}
        self._memo: dict[int, tuple[int, ...]] = {}
        self.find = self._match

    def _workers(self, mask: int) -> tuple[int, ...]:
        workers = self._memo.get(mask)
        if workers is None:
            if len(self._memo) > 4096:
                self._memo.clear()
            raw = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
            workers = tuple(np.flatnonzero(np.unpackbits(raw, bitorder="little")).tolist())
            self._memo[mask] = workers
        return workers

    def _match(self, query: Sequence[int]) -> dict[int, int]:
        get = self._masks.get
        mask = get(query[0], 0)
        if not mask:
            return {}
        scores: dict[int, int] = {}
        for depth, key in enumerate(islice(query, 1, None), 1):
            kept = mask & get(key, 0)
            if kept != mask:
                scores.update(dict.fromkeys(self._workers(mask ^ kept), depth))
                mask = kept
                if not mask:
                    return scores
        scores.update(dict.fromkeys(self._workers(mask), len(query)))
        return scores

    def _store(self, worker: int, keys: Sequence[int]) -> None:
        masks, bit = self._masks, 1 << worker
        for key in keys:
            masks[key] = masks.get(key, 0) | bit

    def _remove(self, worker: int, keys: Sequence[int]) -> None:
        masks, keep = self._masks, ~(1 << worker)
        for key in keys:
            mask = masks.get(key)
            if mask is not None:
                mask &= keep
                if mask:
                    masks[key] = mask
                else:
                    del masks[key]

    def _clear(self, worker: int, keys: Sequence[int]) -> None:
        bit = 1 << worker
        self._remove(worker, [key for key, mask in self._masks.items() if mask & bit])
