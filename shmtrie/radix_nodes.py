"""The tree behind `RadixTree`: one node per block, plain Python objects, no locks and no checks.

Invariants, all of them exact after every call:

* ``rank.places[h] is node`` if and only if ``node.holders[rank] == h``: per rank a place has one external
  hash and an external hash one place;
* a node but the root has a holder or a child;
* unless `exact_holes`, who holds a node holds its parent too: what a rank holds is what can be reached from
  the root, since a removal forgets everything behind it. With `exact_holes` it forgets the block it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from .errors import EventStatus
from .event_types import KvCacheEvent, KvCacheStoreData, KvCacheStoredBlockData, RouterEvent
from .scores import WorkerWithDpRank

__all__ = ["Found", "Node", "Nodes", "Rank", "TreeStats"]


class Node:
    """A place: a path of local hashes from the root."""

    __slots__ = ("children", "holders", "local", "parent")

    def __init__(self, parent: Node | None, local: int) -> None:
        self.parent = parent  # None for the root, and again once the node is taken out of the tree
        self.local = local
        self.children: dict[int, Node] = {}
        self.holders: dict[Rank, int] = {}  # rank -> its own external hash of the block


class Rank:
    """One known rank. Hashed by identity: removed and registered anew, it is another one."""

    __slots__ = ("degraded", "last_event_id", "places", "worker")

    def __init__(self, worker: WorkerWithDpRank) -> None:
        self.worker = worker
        self.places: dict[int, Node] = {}  # external hash -> place
        self.last_event_id: int | None = None
        self.degraded = False


class Found(NamedTuple):
    """One rank that holds the first `depth` blocks of a query, `last_hash` being its name of the last."""

    rank: Rank
    depth: int
    last_hash: int


class TreeStats(NamedTuple):
    """Sizes and counters of a `RadixTree`.

    Parameters
    ----------
    blocks : int
        Blocks held, summed over the ranks.
    unique_blocks : int
        Places that at least one rank holds.
    nodes : int
        Nodes without the root; more than `unique_blocks` only with `exact_holes`, by removed blocks above
        held ones.
    ranks : int
        Known ranks, those without blocks included.
    duplicate_store : int
        Stores, not empty, that changed nothing.
    rejected : mapping of EventStatus to int
        Calls and events that were refused or skipped, by reason.
    """

    blocks: int
    unique_blocks: int
    nodes: int
    ranks: int
    duplicate_store: int
    rejected: Mapping[EventStatus, int]


class Nodes:
    """All nodes and ranks of a tree.

    Parameters
    ----------
    exact_holes : bool
        Keep what is behind a removed block.
    """

    def __init__(self, exact_holes: bool) -> None:
        self.exact_holes = exact_holes
        self.root = Node(None, 0)
        self.ranks: dict[WorkerWithDpRank, Rank] = {}
        self.nodes = 0  # without the root
        self.unique_blocks = 0  # nodes with a holder
        self.duplicate_store = 0

    def store(
        self, worker: WorkerWithDpRank, parent: int | None, local: Sequence[int], external: Sequence[int]
    ) -> EventStatus:
        """Store blocks behind a block of the rank, or from the root; all of them or, unless OK, none."""
        if len(set(external)) != len(external) or parent in external:
            return EventStatus.INVALID_BLOCK_SEQUENCE
        rank = self.ranks.get(worker)
        places = rank.places if rank is not None else {}
        start = self.root
        if parent is not None:
            if parent not in places:
                return EventStatus.PARENT_BLOCK_NOT_FOUND
            start = places[parent]
        if not external:
            return EventStatus.OK

        path = self._existing(start, local)
        placed = zip(external, path + [None] * (len(external) - len(path)), strict=True)
        changing = [(e, node) for e, node in placed if node is None or places.get(e) is not node]
        if not changing:
            self.duplicate_store += 1
            return EventStatus.OK
        # Hashes that the rank holds elsewhere move here. Those on the new path are renamed on the way.
        moved = [places[e] for e, _ in changing if e in places]
        if moved:
            if not self._above(start).isdisjoint(moved):
                return EventStatus.INVALID_BLOCK_SEQUENCE
            on_path = set(path)
            moved = [node for node in moved if node not in on_path]

        if rank is None:
            rank = self.ranks[worker] = Rank(worker)
        for node in moved:
            if rank in node.holders:  # not if it went with one before
                self._forget(rank, node)
        # `start` outlives the removals, it is held or the root; nodes of `path` need not: walk anew.
        self._cover(rank, start, local, external)
        return EventStatus.OK

    def remove(self, worker: WorkerWithDpRank, external: Iterable[int]) -> EventStatus:
        """Forget blocks of the rank; unknown hashes are skipped."""
        rank = self.ranks.get(worker)
        if rank is None:
            return EventStatus.BLOCK_NOT_FOUND
        for e in external:
            node = rank.places.get(e)
            if node is not None:
                self._forget(rank, node)
        return EventStatus.OK

    def clear(self, worker: WorkerWithDpRank) -> None:
        """Forget all blocks of the rank, which stays known; an unknown one stays unknown."""
        rank = self.ranks.get(worker)
        if rank is None:
            return
        held = list(rank.places.values())
        rank.places.clear()
        rank.degraded = False
        for node in held:
            self._unhold(rank, node)
        for node in held:
            self._prune(node)

    def remove_worker(self, worker_id: int) -> None:
        """Forget all blocks of all ranks of the worker, and the ranks themselves."""
        for worker in [w for w in self.ranks if w.worker_id == worker_id]:
            self.clear(worker)
            del self.ranks[worker]

    def match(self, local: Iterable[int], early_exit: bool) -> list[Found]:
        """Walk down a query; return every rank that holds its first block, shallow ones first."""
        found: list[Found] = []
        node, depth = self.root, 0
        active: dict[Rank, int] = {}
        for h in local:
            child = node.children.get(h)
            if child is None:
                break
            holders = child.holders
            if depth == 0:
                active = holders
            elif not active.keys() <= holders.keys():
                found += [Found(r, depth, node.holders[r]) for r in active if r not in holders]
                active = {r: 0 for r in active if r in holders}
            if not active:
                break
            node, depth = child, depth + 1
            if early_exit and len(active) == 1:
                break
        found += [Found(r, depth, node.holders[r]) for r in active]
        return found

    def stats(self, rejected: Mapping[EventStatus, int]) -> TreeStats:
        """Sizes and counters as of now, with the caller's own count of refusals."""
        blocks = sum(len(rank.places) for rank in self.ranks.values())
        counts = MappingProxyType(dict(rejected))
        return TreeStats(
            blocks, self.unique_blocks, self.nodes, len(self.ranks), self.duplicate_store, counts
        )

    def dump(self) -> list[RouterEvent]:
        """Store events for all ranks, in the order of (worker_id, dp_rank), with ids from 0 on."""
        events: list[RouterEvent] = []
        for worker, rank in sorted(self.ranks.items(), key=lambda item: item[0]):
            for parent, run in self.runs(rank):
                blocks = [KvCacheStoredBlockData(node.holders[rank], node.local) for node in run]
                data = KvCacheStoreData(parent, blocks)
                event = KvCacheEvent(len(events), data, worker.dp_rank)
                events.append(RouterEvent(worker.worker_id, event))
        return events

    def runs(self, rank: Rank) -> Iterator[tuple[int | None, list[Node]]]:
        """Cut what the rank holds into runs, parents first.

        Parameters
        ----------
        rank : Rank
            One of `ranks`.

        Yields
        ------
        parent : int or None
            The rank's external hash of the block before the run; None for the root.
        run : list of Node
            A chain that goes on until the rank holds no child of its last node, or several.
        """
        children: dict[Node, list[Node]] = {}
        for node in rank.places.values():
            assert node.parent is not None
            children.setdefault(node.parent, []).append(node)
        for siblings in children.values():
            # Lowest local hash on top of the stack, so that equal trees give equal dumps.
            siblings.sort(key=lambda node: node.local, reverse=True)
        stack: list[tuple[int | None, Node]] = [(None, node) for node in children.get(self.root, ())]
        while stack:
            parent, node = stack.pop()
            run = [node]
            while len(below := children.get(node, [])) == 1:
                node = below[0]
                run.append(node)
            yield parent, run
            stack += [(node.holders[rank], child) for child in below]

    @staticmethod
    def _existing(start: Node, local: Iterable[int]) -> list[Node | None]:
        """Nodes that exist on the path behind `start`, up to the first that does not."""
        path: list[Node | None] = []
        for h in local:
            child = start.children.get(h)
            if child is None:
                break
            path.append(child)
            start = child
        return path

    @staticmethod
    def _above(node: Node) -> set[Node]:
        """The node and everything above it."""
        above = {node}
        while node.parent is not None:
            node = node.parent
            above.add(node)
        return above

    def _cover(self, rank: Rank, node: Node, local: Iterable[int], external: Iterable[int]) -> None:
        places = rank.places
        for h, e in zip(local, external, strict=True):
            child = node.children.get(h)
            if child is None:
                child = node.children[h] = Node(node, h)
                self.nodes += 1
            node = child
            if not node.holders:
                self.unique_blocks += 1
            old = node.holders.get(rank)
            if old is not None and places.get(old) is node:  # else the hash has moved on already
                del places[old]
            node.holders[rank] = e
            places[e] = node

    def _forget(self, rank: Rank, top: Node) -> None:
        """Take a block from a rank and, unless holes are exact, all of the rank's blocks behind it."""
        doomed = [top]
        if not self.exact_holes:
            for node in doomed:  # grows as it goes: parents before children
                doomed += [child for child in node.children.values() if rank in child.holders]
        for node in reversed(doomed):
            del rank.places[node.holders[rank]]
            self._unhold(rank, node)
            self._prune(node)

    def _unhold(self, rank: Rank, node: Node) -> None:
        del node.holders[rank]
        if not node.holders:
            self.unique_blocks -= 1

    def _prune(self, node: Node) -> None:
        """Take a node that is of no more use out of the tree, and so on upward."""
        while node.parent is not None and not node.holders and not node.children:
            parent = node.parent
            del parent.children[node.local]
            node.parent = None
            self.nodes -= 1
            node = parent
