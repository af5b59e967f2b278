"""The indexes, side by side, behind one small interface; each gets queries and events in its best form.

What an index wants converted (lists, chained hashes, encoded JSON) is converted before the clock starts.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, ClassVar

from shmtrie import (
    Capacity,
    Index,
    KvCacheEvent,
    KvCacheRemoveData,
    KvCacheStoreData,
    KvCacheStoredBlockData,
    RadixTree,
    RouterEvent,
)
from shmtrie.event_types import encode_event

from .workload import CLEAR, REMOVE, STORE, Workload

Call = tuple[Callable[..., Any], tuple[Any, ...]]
Pairs = tuple[Any, Any]

LINES_A_BLOCK = 0.75
"""Extents reserved per block: the worst of the workloads have edges of a block or two."""


class BenchIndex:
    """One index, freshly made and empty.

    Parameters
    ----------
    workload : Workload
        What it will be given: says how large it has to be.
    """

    name: ClassVar[str]
    handles_seeds: ClassVar[bool] = True
    longest_query: ClassVar[int] = 1 << 20

    def __init__(self, workload: Workload) -> None:
        self.find: Callable[[Any], Any]

    @staticmethod
    def queries(workload: Workload) -> list[Any]:
        """Arguments of `find`, one per query."""
        raise NotImplementedError

    @staticmethod
    def events(workload: Workload) -> list[tuple[int, tuple[Any, ...]]]:
        """(kind, arguments) of every event; see `bind`."""
        raise NotImplementedError

    def bind(self) -> dict[int, Callable[..., Any]]:
        """What to call for an event, by kind."""
        raise NotImplementedError

    @staticmethod
    def pairs(found: Any) -> Pairs:
        """An answer as (workers, depths) of equal length."""
        raise NotImplementedError

    def settle(self) -> None:
        """Return when every event given so far is applied."""

    def close(self) -> None:
        """Let it go."""


def local_arrays(workload: Workload) -> list[Any]:
    """Every query's local hashes as an array of its own."""
    return [workload.local[workload.part(int(op))].copy() for op in workload.queries]


def local_lists(workload: Workload) -> list[Any]:
    """The same as lists of ints."""
    return [workload.local[workload.part(int(op))].tolist() for op in workload.queries]


def call_arguments(workload: Workload) -> list[tuple[int, tuple[Any, ...]]]:
    """Events as arguments of store(worker, parent, local, external), remove(worker, external), clear."""
    made = []
    for op in workload.events.tolist():
        part, worker = workload.part(op), int(workload.worker[op])
        kind = int(workload.kind[op])
        external = workload.external[part].copy()
        if kind == STORE:
            parent = int(workload.parent[op]) if workload.has_parent[op] else None
            made.append((kind, (worker, parent, workload.local[part].copy(), external)))
        else:
            made.append((kind, (worker, external) if kind == REMOVE else (worker,)))
    return made


def router_event(workload: Workload, op: int) -> RouterEvent:
    """An event as struct."""
    part, data = workload.part(op), None
    external = workload.external[part].tolist()
    if workload.kind[op] == STORE:
        local = workload.local[part].tolist()
        blocks = [KvCacheStoredBlockData(e, t) for e, t in zip(external, local, strict=True)]
        parent = int(workload.parent[op]) if workload.has_parent[op] else None
        data = KvCacheStoreData(parent_hash=parent, blocks=blocks)
    elif workload.kind[op] == REMOVE:
        data = KvCacheRemoveData(external)
    return RouterEvent(int(workload.worker[op]), KvCacheEvent(op, "cleared" if data is None else data))


def capacity(workload: Workload, exact_holes: bool = False) -> Capacity:
    """A segment that the workload cannot fill."""
    blocks = workload.segment_blocks
    aliases = workload.event_blocks if workload.seeds else 0
    extents = int(blocks * LINES_A_BLOCK) + aliases // 4 + 64 * 1024
    nodes = max(16_384, blocks // (2 if exact_holes else 3))
    return Capacity(blocks, workload.workers + 8, 2, nodes, aliases, extents)


class Shmtrie(BenchIndex):
    """This index: array in, result with arrays out; store and remove calls with arrays."""

    name = "shmtrie"
    exact_holes: ClassVar[bool] = False

    def __init__(self, workload: Workload) -> None:
        self.segment = f"shmtrie-bench-{secrets.token_hex(4)}"
        room = capacity(workload, self.exact_holes)
        self.index = Index.create(self.segment, room, exact_holes=self.exact_holes)
        try:
            self.writer = self.index.writer()
            self.reader = Index.attach(self.segment)
        except BaseException:
            self.close()
            raise
        self.find = self._find()

    def _find(self) -> Callable[[Any], Any]:
        return self.reader.find_matches

    queries = staticmethod(local_arrays)
    events = staticmethod(call_arguments)

    def bind(self) -> dict[int, Callable[..., Any]]:
        return {STORE: self.writer.store, REMOVE: self.writer.remove, CLEAR: self.writer.clear}

    @staticmethod
    def pairs(found: Any) -> Pairs:
        return found.workers["worker_id"], found.depths

    def close(self) -> None:
        for handle in ("writer", "reader", "index"):
            if hasattr(self, handle):
                getattr(self, handle).close()
        Index.unlink(self.segment)


class ShmtrieExact(Shmtrie):
    """In a segment that keeps what is behind a removed block."""

    name = "shmtrie exact_holes"
    exact_holes = True


class ShmtrieDict(Shmtrie):
    """The same, with the answer as a dict; events as encoded JSON."""

    name = "shmtrie dict"

    def _find(self) -> Callable[[Any], Any]:
        find = self.reader.find_matches
        return lambda query: find(query).scores

    @staticmethod
    def events(workload: Workload) -> list[tuple[int, tuple[Any, ...]]]:
        ops = workload.events.tolist()
        return [(int(workload.kind[op]), (encode_event(router_event(workload, op)),)) for op in ops]

    def bind(self) -> dict[int, Callable[..., Any]]:
        apply = self.writer.apply_event
        return {STORE: apply, REMOVE: apply, CLEAR: apply}

    @staticmethod
    def pairs(found: Any) -> Pairs:
        return [rank.worker_id for rank in found], list(found.values())


class ShmtrieBest(Shmtrie):
    """The best worker alone."""

    name = "shmtrie best_match"

    def _find(self) -> Callable[[Any], Any]:
        return self.reader.best_match


class ShmtrieList(Shmtrie):
    """Queries as lists of ints."""

    name = "shmtrie list"
    queries = staticmethod(local_lists)


class Tree(BenchIndex):
    """shmtrie's plain-Python RadixTree."""

    name = "shmtrie RadixTree"
    exact_holes: ClassVar[bool] = False
    queries = staticmethod(local_lists)
    events = staticmethod(call_arguments)

    def __init__(self, workload: Workload) -> None:
        self._tree = RadixTree(self.exact_holes)
        self.find = self._tree.find_matches

    def bind(self) -> dict[int, Callable[..., Any]]:
        return {STORE: self._tree.store, REMOVE: self._tree.remove, CLEAR: self._tree.clear}

    @staticmethod
    def pairs(found: Any) -> Pairs:
        return found.workers["worker_id"], found.depths


class TreeExact(Tree):
    """The same with exact holes."""

    name = "shmtrie RadixTree exact_holes"
    exact_holes = True
