"""Which blocks a stream removes, and in which order.

========== ============================================================================================
leaf-first only blocks below which the rank holds nothing, as engines evict
any        heads, middles and random subsets too
middle     every other removal opens a hole: the rank still holds something below a block that goes
========== ============================================================================================
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from tests.reference import ROOT, Op, Oracle, Rank

REMOVALS = LEAF_FIRST, ANY, MIDDLE = ("leaf-first", "any", "middle")
_OFF_THE_TAIL = ("head", "middle", "subset", "window")


class Removals:
    """The removing half of a stream; see ``tests.workload``.

    Parameters
    ----------
    oracle : Oracle
        Has applied every operation so far.
    rng : random.Random
        Everything random comes from it.
    removals : str
        One of ``REMOVALS``.
    """

    def __init__(self, oracle: Oracle, rng: random.Random, removals: str) -> None:
        self.oracle, self.rng, self.removals = oracle, rng, removals
        self._holes = 0  # removals that opened a hole, less those that did not

    def _stranger(self) -> int:
        """An external hash that nobody holds."""
        return self.rng.getrandbits(64)

    def _inner(self, rank: Rank) -> list[int]:
        """Held places with a held place right below them."""
        mine, places = self.oracle.of(rank), self.oracle.places
        return [p for p in mine.hash_at if any(c in mine.hash_at for c in places.children[p])]

    def _rooted(self, rank: Rank, place: int) -> bool:
        """Whether everything above a place is held."""
        mine, places = self.oracle.of(rank), self.oracle.places
        while place != ROOT and place in mine.hash_at:
            place = places.parent[place]
        return place == ROOT

    def _tail_run(self, rank: Rank, gone: set[int]) -> list[int]:
        """Places of a run that ends in a leaf, deepest first; closed downward together with ``gone``."""
        mine, places = self.oracle.of(rank), self.oracle.places

        def blocked(place: int) -> bool:
            return any(p in mine.hash_at and p not in gone for p in places.children[place])

        leaves = [p for p in mine.hash_at if p not in gone and not blocked(p)]
        run: list[int] = []
        if leaves:
            place = self.rng.choice(leaves)
            wanted = self.rng.randint(1, 5) if places.depth[place] < 200 else self.rng.randint(1, 700)
            while place in mine.hash_at and place not in gone and not blocked(place) and len(run) < wanted:
                run.append(place)
                gone.add(place)
                place = places.parent[place]
        return run

    def _head(self, rank: Rank, place: int) -> list[int]:
        """The uppermost held places on the way to a place, topmost first."""
        mine, places, found, at = self.oracle.of(rank), self.oracle.places, [], ROOT
        for local in places.path(place)[: self.rng.randint(1, 6)]:
            at = places.child(at, local)
            found += [at] if at in mine.hash_at else []
        return found

    def _how(self, inner: list[int]) -> str:
        """Where the next removal takes from."""
        if self.removals == LEAF_FIRST:
            return "tail"
        if self.removals == ANY:
            return self.rng.choice(("tail", "tail", "head", "middle", "subset"))
        return self.rng.choice(_OFF_THE_TAIL) if inner and self._holes <= 0 else "tail"

    def _evict(self, rank: Rank) -> Iterator[Op]:
        """One removal, in one event or in one a block."""
        mine, rng = self.oracle.of(rank), self.rng
        if not mine.hash_at:
            yield ("remove", rank, [self._stranger()])  # an unknown rank, or one that lost everything
            return
        # Where each has a held place below it, whichever are taken leave something behind.
        among = inner = self._inner(rank) if self.removals == MIDDLE else list(mine.hash_at)
        kind = self._how(inner)
        chosen: list[int] = []
        if kind == "tail":
            gone: set[int] = set()
            for _ in range(2 if rng.random() < 0.15 else 1):
                chosen += self._tail_run(rank, gone)
        elif kind in ("head", "window"):
            chosen = self._head(rank, rng.choice(among))
        else:
            chosen = rng.sample(among, 1 if kind == "middle" else min(len(among), rng.randint(1, 6)))
        if kind == "window" or (kind == "tail" and rng.random() < 0.3 and len(chosen) < 10):
            for place in chosen:  # deepest first, or topmost first as a sliding window does
                yield self._taken(rank, [place])
            return
        rng.choice((list.reverse, rng.shuffle, lambda _: None))(chosen)
        op = self._taken(rank, chosen)
        if rng.random() < 0.1:
            op[2].insert(rng.randint(0, len(chosen)), self._stranger())  # unknown, the rest applies
        yield op

    def _taken(self, rank: Rank, chosen: Iterable[int]) -> Op:
        """The event that removes places, counted."""
        mine, places, chosen = self.oracle.of(rank), self.oracle.places, list(chosen)
        left = [c for p in chosen for c in places.children[p] if c in mine.hash_at and c not in chosen]
        self._holes += 1 if left else -1
        return ("remove", rank, [mine.hash_at[p] for p in chosen])

    def _drain(self, ranks: Iterable[Rank]) -> Iterator[Op]:
        """Remove everything."""
        for rank in ranks:
            mine, places = self.oracle.of(rank), self.oracle.places
            order = sorted(mine.hash_at, key=lambda p: -places.depth[p])
            if self.removals != LEAF_FIRST:
                self.rng.shuffle(order)
            hashes = [mine.hash_at[p] for p in order]
            while hashes:
                count = max(self.rng.randint(1, 8), len(hashes) // 10)
                yield ("remove", rank, hashes[:count])
                hashes = hashes[count:]
