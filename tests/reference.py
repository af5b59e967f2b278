"""The contract as a plain-Python model: what an index may answer after a stream of operations.

Owns nothing but sets and dicts; written from the contract, never from the code of an index, and imports none
of it. For every rank it keeps the places that are *held* (stored, not removed) and those that are *reachable*
(held with the whole chain above them, not cut since by a remove above). A quiescent index answers between the
two.

Operations are plain tuples, so that a stream can be recorded, shrunk and pasted::

    ("store", rank, parent, [(local, external), ...])    rank (worker_id, dp_rank), parent a hash or None
    ("remove", rank, [external, ...])    ("clear", rank)    ("remove_worker", worker_id)
    ("move", rank)    the rank goes to another lane    ("query", [local, ...])    only asks
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

MASK: int = 2**64 - 1
ROOT = 0
OK = "ok"
PARENT = "ParentBlockNotFound"
BLOCK = "BlockNotFound"
INVALID = "InvalidBlockSequence"

Rank = tuple[int, int]
Op = tuple[Any, ...]
Block = tuple[int, int]
Run = tuple[int | None, tuple[Block, ...]]


class Places:
    """Paths of local hashes as small ints; ``ROOT`` is the empty path."""

    def __init__(self) -> None:
        self.parent, self.local, self.depth = [ROOT], [0], [0]
        self.children: list[list[int]] = [[]]
        self._ids: dict[tuple[int, int], int] = {}

    def find(self, place: int, local: int) -> int | None:
        """The place one block below, None if nobody ever stored it."""
        return self._ids.get((place, local))

    def child(self, place: int, local: int) -> int:
        """The place one block below, made if need be."""
        found = self._ids.get((place, local))
        if found is None:
            found = self._ids[place, local] = len(self.parent)
            self.parent.append(place)
            self.local.append(local)
            self.depth.append(self.depth[place] + 1)
            self.children.append([])
            self.children[place].append(found)
        return found

    def path(self, place: int) -> list[int]:
        """Local hashes from the root to a place."""
        path = []
        while place != ROOT:
            path.append(self.local[place])
            place = self.parent[place]
        return path[::-1]


@dataclass
class Holdings:
    """What one rank holds: hash_at and place_of are inverse maps, reachable is closed towards the root."""

    hash_at: dict[int, int] = field(default_factory=dict)
    place_of: dict[int, int] = field(default_factory=dict)
    reachable: set[int] = field(default_factory=set)


class Oracle:
    """Model of one index.

    Parameters
    ----------
    exact_holes : bool
        The segment keeps what lies behind a hole: every bound is the held prefix.
    places : Places, optional
        Share the places of another oracle, so that the two can be compared place by place.
    """

    def __init__(self, exact_holes: bool = False, places: Places | None = None) -> None:
        self.exact_holes = exact_holes
        self.places = places if places is not None else Places()
        self._holdings: dict[Rank, Holdings] = {}
        # True: registered. Missing: unknown. None: left open (empty store or clear of an unknown rank).
        self._known: dict[Rank, bool | None] = {}

    def of(self, rank: Rank) -> Holdings:
        """Holdings of a rank; empty and unconnected if it has none."""
        return self._holdings.get(rank) or Holdings()

    def ranks(self) -> list[Rank]:
        """Every rank that an operation registered or may have registered."""
        return list(self._known)

    def held_blocks(self) -> int:
        """Places held, summed over the ranks."""
        return sum(len(h.hash_at) for h in self._holdings.values())

    # -- what an operation may answer -------------------------------------------------------------

    def outcomes(self, op: Op) -> frozenset[str]:
        """Outcomes the contract allows for an operation: ``OK`` and names of exception classes."""
        if op[0] == "store":
            return self._store_outcomes(op[1], op[2], op[3])
        if op[0] == "remove":
            known = self._known.get(op[1], False)
            return frozenset({OK, BLOCK} if known is None else {OK} if known else {BLOCK})
        return frozenset({OK})

    def _store_outcomes(self, rank: Rank, parent: int | None, blocks: Sequence[Block]) -> frozenset[str]:
        mine = self.of(rank)
        hashes = [external & MASK for _, external in blocks]
        bad: set[str] = set()
        if len(set(hashes)) != len(hashes) or (parent is not None and parent & MASK in hashes):
            bad.add(INVALID)
        if parent is None:
            return frozenset(bad or {OK})
        place = mine.place_of.get(parent & MASK)
        if place is None:
            return frozenset(bad | {PARENT})
        # A parent behind a hole may be forgotten already, and so may what it holds above the hole.
        cut = not self.exact_holes and place not in mine.reachable
        if bad:
            return frozenset(bad | {PARENT} if cut else bad)
        if self._at_or_above(mine, place, hashes):
            return frozenset({OK, PARENT, INVALID} if cut else {INVALID})
        return frozenset({OK, PARENT} if cut else {OK})

    def _at_or_above(self, mine: Holdings, place: int, hashes: Iterable[int]) -> bool:
        wanted = set(hashes)
        while place != ROOT:
            if mine.hash_at.get(place) in wanted:
                return True
            place = self.places.parent[place]
        return False

    # -- applying ---------------------------------------------------------------------------------

    def apply(self, op: Op, outcome: str = OK) -> None:
        """Follow an operation that the index answered with ``outcome``; refused ones change nothing."""
        kind = op[0]
        if kind == "remove" and self._known.get(op[1], False) is None:
            self._known[op[1]] = True
            if outcome == BLOCK:
                del self._known[op[1]]
        if outcome != OK or kind in ("move", "query"):
            return
        if kind == "remove_worker":
            for rank in [r for r in self._known if r[0] == op[1]]:
                del self._known[rank]
                self._holdings.pop(rank, None)
        elif kind == "clear":
            self._known.setdefault(op[1], None)
            self._holdings.pop(op[1], None)
        elif kind == "remove":
            mine = self.of(op[1])
            for external in op[2]:
                if (external & MASK) in mine.place_of:
                    self._drop(mine, mine.place_of[external & MASK])
        else:
            self._store(op[1], op[2], [(local & MASK, external & MASK) for local, external in op[3]])

    def _store(self, rank: Rank, parent: int | None, blocks: Sequence[Block]) -> None:
        if not blocks:
            self._known.setdefault(rank, None)
            return
        self._known[rank] = True
        mine = self._holdings.setdefault(rank, Holdings())
        place = ROOT if parent is None else mine.place_of[parent & MASK]
        path = []
        for local, _ in blocks:
            place = self.places.child(place, local)
            path.append(place)
        on_path = set(path)
        for _, external in blocks:  # hashes held elsewhere leave their old place first
            old = mine.place_of.get(external)
            if old is not None and old not in on_path:
                self._drop(mine, old)
        for place in path:  # all old names go before any new one comes: they may be swapped
            if place in mine.hash_at:
                del mine.place_of[mine.hash_at.pop(place)]
        for place, (_, external) in zip(path, blocks, strict=True):
            mine.hash_at[place], mine.place_of[external] = external, place
            above = self.places.parent[place]
            if above == ROOT or above in mine.reachable:
                mine.reachable.add(place)

    def _drop(self, mine: Holdings, place: int) -> None:
        del mine.place_of[mine.hash_at.pop(place)]
        below = [place]
        while below:
            place = below.pop()
            if place in mine.reachable:
                mine.reachable.discard(place)
                below.extend(self.places.children[place])

    # -- what a query may answer ------------------------------------------------------------------

    def bounds(self, rank: Rank, query: Sequence[int]) -> tuple[int, int]:
        """Lowest and highest score in blocks that a quiescent index may give a rank for a query."""
        mine, place, low, high = self.of(rank), ROOT, 0, 0
        for local in query:
            step = self.places.find(place, local & MASK)
            if step is None or step not in mine.hash_at:
                break
            place, high = step, high + 1
            if place in mine.reachable:
                low = high
        return (high if self.exact_holes else low), high

    def own_hash(self, rank: Rank, query: Sequence[int], depth: int) -> int | None:
        """The rank's own external hash of a query's ``depth``-th block (from 1), None if not held."""
        place = self.place(query[:depth])
        return None if place is None else self.of(rank).hash_at.get(place)

    def place(self, path: Sequence[int]) -> int | None:
        """The place at the end of a path, None if nobody ever stored it."""
        place: int | None = ROOT
        for local in path:
            place = None if place is None else self.places.find(place, local & MASK)
        return place

    def block_bounds(self, rank: Rank) -> tuple[int, int]:
        """Lowest and highest value of the rank's block counter."""
        mine = self.of(rank)
        return len(mine.hash_at if self.exact_holes else mine.reachable), len(mine.hash_at)

    def rooted(self, rank: Rank) -> set[int]:
        """Places of a rank whose whole chain to the root is held: the most that a dump may show."""
        mine, todo, found = self.of(rank), [ROOT], set()
        while todo:
            for place in self.places.children[todo.pop()]:
                if place in mine.hash_at:
                    found.add(place)
                    todo.append(place)
        return found

    def runs(self, rank: Rank) -> list[Run]:
        """The rank's rooted tree as maximal unbranched runs: a dump of exactly these places."""
        mine, shown, runs = self.of(rank), self.rooted(rank), []
        todo: list[tuple[int | None, int]] = [(None, p) for p in self.places.children[ROOT] if p in shown]
        while todo:
            parent, place = todo.pop()
            run = [place]
            while len(below := [p for p in self.places.children[place] if p in shown]) == 1:
                place = below[0]
                run.append(place)
            runs.append((parent, tuple((self.places.local[p], mine.hash_at[p]) for p in run)))
            todo += [(mine.hash_at[place], p) for p in below]
        return runs


class Probes:
    """Which queries to ask around an operation; takes them from the oracle, draws nothing at random."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.recent: deque[tuple[int, ...]] = deque(maxlen=64)
        self._turn = 0

    def touched(self, op: Op) -> list[tuple[int, ...]]:
        """Paths that an operation is about, as far as the oracle knows them now."""
        oracle, places = self.oracle, self.oracle.places
        if op[0] == "query":
            return [tuple(v & MASK for v in op[1])]
        if op[0] in ("store", "remove"):
            mine = oracle.of(op[1])
            hashes = [h & MASK for h in (op[2] if op[0] == "remove" else [b[1] for b in op[3]])]
            spots = sorted(
                {mine.place_of[h] for h in hashes if h in mine.place_of}, key=lambda p: places.depth[p]
            )
            found = [*spots[:1], *spots[len(spots) // 2 :][:1], *spots[-1:]]
        else:
            ranks = [r for r in oracle.ranks() if (r if op[0] != "remove_worker" else r[0]) == op[1]]
            found = [place for r in ranks for place in list(oracle.of(r).hash_at)[-1:]]
        paths = [tuple(places.path(p)) for p in found]
        if op[0] == "store":
            above = ROOT if op[2] is None else oracle.of(op[1]).place_of.get(op[2] & MASK, ROOT)
            paths.append((*places.path(above), *(b[0] & MASK for b in op[3])))
        return paths

    def queries(self, paths: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
        """Queries below, above and beside paths, and one of an earlier turn."""
        places, found = self.oracle.places, dict[tuple[int, ...], None]()
        self._turn += 1
        for path in list(dict.fromkeys(map(tuple, paths)))[-4:]:
            longer, place = list(path), self.oracle.place(path)
            while place is not None and places.children[place] and len(longer) < len(path) + 8:
                place = places.children[place][-1 if self._turn % 2 else 0]
                longer.append(places.local[place])
            beside = (*path[:-1], path[-1] ^ 2, 5) if path else (5,)
            found.update(dict.fromkeys([tuple(longer), path[:-1], beside]))
            self.recent.append(tuple(longer))
        if self.recent:
            found[self.recent[self._turn * 7 % len(self.recent)]] = None
        return list(found)
