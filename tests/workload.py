"""Seeded streams of operations, driven by what the oracle says each rank holds.

A stream is a generator: it yields one operation (see ``tests.reference``), the caller applies it to an index
and to the oracle, and the next one is drawn from the result. The same seed against the same answers gives the
same stream.

Kinds, by how a block gets its external hash:

======== =============================================================================================
clean    one hash seed for all ranks: equal places have equal hashes
alias    a hash seed per rank (three of them): equal places, different hashes
collide  the hash depends on depth and content only: one hash on many paths of one rank
flip     as clean, but a place stored again may get another hash
chaos    fifteen hashes altogether: moves, invalid sequences and refusals all the time
======== =============================================================================================

Which blocks they remove is in ``tests.removals``. ``leaf-first`` streams evict as engines do, so in the kinds
of ``EXACT`` what is held is always reachable.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tests.reference import MASK, ROOT, Op, Oracle, Rank
from tests.removals import LEAF_FIRST, MIDDLE, REMOVALS, Removals

KINDS = ("clean", "alias", "collide", "flip", "chaos")
EXACT = ("clean", "alias", "flip")
RANKS: tuple[Rank, ...] = ((0, 0), (0, 1), (MASK, 0), (7, 3), (12, 2**32 - 1), (5, 0), (6, 0), (7, 0))
_ALPHABET = (1, 2, 0, MASK)
_FEW: list[int] = [0, MASK, *range(1, 14)]


def mix(*words: int) -> int:
    """A 64-bit hash of small or large ints, the same in every process."""
    value = 0x243F6A8885A308D3
    for word in words:
        value = ((value ^ (word & MASK)) * 0x9E3779B97F4A7C15) & MASK
        value ^= value >> 29
    return (value * 0xBF58476D1CE4E5B9 & MASK) ^ (value >> 32)


class Workload(Removals):
    """One stream.

    Parameters
    ----------
    oracle : Oracle
        Must have applied every operation yielded so far before the next one is asked for.
    seed : int
        Everything random comes from it.
    kind : str
        One of ``KINDS``.
    removals : str
        One of ``REMOVALS`` of ``tests.removals``.
    steps : int
        Number of steps; a step is one to a few operations.
    ranks : int
        How many of ``RANKS`` take part.
    long : bool
        Two ranks start with chains longer than one edge can be (2,048 blocks).
    drain : bool
        End by removing everything.
    """

    def __init__(
        self,
        oracle: Oracle,
        seed: int,
        kind: str = "clean",
        removals: str = LEAF_FIRST,
        steps: int = 200,
        ranks: int = 5,
        long: bool = False,
        drain: bool = True,
    ) -> None:
        assert kind in KINDS and removals in REMOVALS, (kind, removals)
        super().__init__(oracle, random.Random(f"{seed}/{kind}/{removals}/{long}"), removals)
        self.kind, self.steps, self.long, self.drain = kind, steps, long, drain
        self.ranks = RANKS[:ranks]
        self._names: dict[tuple[int, ...], int] = {}
        self._extremes: dict[int, list[int]] = {}
        self._fresh = 1000
        self._paths = [[self._local() for _ in range(self.rng.randint(1, 8))] for _ in range(3)]

    def __iter__(self) -> Iterator[Op]:
        if self.long:
            yield from self._long_chains()
        steps: list[tuple[float, Callable[[Rank], Iterator[Op]]]] = [
            (0.26, self._prefill),
            (0.20, self._decode),
            (0.30, self._evict),
            (0.08, self._again),
            (0.07, self._odd),
            (0.02, self._clear),
            (0.02, self._retire),
            (0.02, self._move),
            (0.03, self._query),
        ]
        if self.removals == MIDDLE:
            steps += [(0.12, self._mend), (0.08, self._diverge)]
        weights, actions = zip(*steps, strict=True)
        for _ in range(self.steps):
            yield from self.rng.choices(actions, weights)[0](self.rng.choice(self.ranks))
        if self.drain:
            yield from self._drain(self.rng.sample(self.ranks, len(self.ranks)))

    # -- hashes and paths -------------------------------------------------------------------------

    def _local(self) -> int:
        if self.rng.random() < 0.7:
            return self.rng.choice(_ALPHABET)
        self._fresh += 1
        return mix(self._fresh)

    def _name(self, rank: Rank, above: int | None, depth: int, local: int) -> int:
        """External hash of the block at ``depth`` below a block of hash ``above``."""
        if self.kind == "chaos":
            return self.rng.choice(_FEW)
        seed = {"alias": self.ranks.index(rank) % 3, "flip": self.rng.random() < 0.15}.get(self.kind, 0)
        key: tuple[int, ...] = (int(seed), local) if above is None else (int(seed), local, above)
        if self.kind == "collide":
            key = (depth, local)
        if key not in self._names:
            # The extreme values name one place each in each hash seed, as any other value would.
            free = self._extremes.setdefault(key[0] if self.kind == "alias" else 0, [0, MASK])
            extreme = free and self.rng.random() < 0.02
            self._names[key] = free.pop() if extreme else mix(len(key), *key)
        return self._names[key]

    def _blocks(self, rank: Rank, place: int, locals_: list[int]) -> list[tuple[int, int]]:
        """Blocks below a place; those the rank holds mostly keep their hashes."""
        mine, blocks = self.oracle.of(rank), []
        above, depth = mine.hash_at.get(place), self.oracle.places.depth[place]
        known: int | None = place
        if self.kind == "chaos":  # few hashes: a longer store would hardly ever be valid
            locals_ = locals_[: self.rng.randint(1, 4)]
        for local in locals_:
            known = None if known is None else self.oracle.places.find(known, local)
            old = None if known is None else mine.hash_at.get(known)
            again = old is None or (self.kind == "flip" and self.rng.random() < 0.1)
            above = self._name(rank, above, depth, local) if again or old is None else old
            blocks.append((local, above))
            depth += 1
        return blocks

    def _grow(self) -> list[int]:
        """A path of the shared pool: an old one, one cut and continued, or one with a new tail."""
        path = list(self.rng.choice(self._paths))
        if self.rng.random() < 0.7:
            path = path[: self.rng.randint(0, len(path))] if self.rng.random() < 0.5 else path
            for _ in range(self.rng.randint(1, 6)):
                path.append(path[-1] if path and self.rng.random() < 0.1 else self._local())
            self._paths.append(path)
            if len(self._paths) > 40:
                del self._paths[self.rng.randrange(len(self._paths))]
        return path

    def _some_hash(self, rank: Rank) -> int | None:
        hashes = list(self.oracle.of(rank).place_of)
        return self.rng.choice(hashes) if hashes else None

    # -- stores -----------------------------------------------------------------------------------

    def _store_path(self, rank: Rank, path: list[int]) -> Op:
        """Announce a path: all of it from the root, or what the rank does not hold, below its last block."""
        depth, _ = self.oracle.bounds(rank, path)
        if self.rng.random() < 0.4:
            depth = 0
        parent = self.oracle.own_hash(rank, path, depth) if depth else None
        place = ROOT if parent is None else self.oracle.of(rank).place_of[parent]
        return ("store", rank, parent, self._blocks(rank, place, path[depth:]))

    def _prefill(self, rank: Rank) -> Iterator[Op]:
        path = self._grow()
        if self.rng.random() < 0.3:
            yield self._store_path(rank, path[: self.rng.randint(1, len(path))] if path else path)
        yield self._store_path(rank, path)

    def _decode(self, rank: Rank) -> Iterator[Op]:
        parent = self._some_hash(rank)
        if parent is None:
            yield from self._prefill(rank)
            return
        mine, places = self.oracle.of(rank), self.oracle.places
        place = mine.place_of[parent]
        while self.rng.random() < 0.9:  # mostly at a leaf
            below = [p for p in places.children[place] if p in mine.hash_at]
            if not below:
                break
            place = self.rng.choice(below)
        path = places.path(place)
        tails = [p[len(path) :] for p in self._paths if len(p) > len(path) and p[: len(path)] == path]
        tail = [self._local() for _ in range(4)]
        if tails and self.rng.random() < 0.7:
            tail = self.rng.choice(tails)
        yield ("store", rank, mine.hash_at[place], self._blocks(rank, place, tail[: self.rng.randint(1, 4)]))

    def _again(self, rank: Rank) -> Iterator[Op]:
        """Part of a held path again: duplicates, restored holes."""
        hash_ = self._some_hash(rank)
        if hash_ is not None:
            path = self.oracle.places.path(self.oracle.of(rank).place_of[hash_])
            first = self.rng.randint(0, len(path))
            parent = self.oracle.own_hash(rank, path, first) if first else None
            place = ROOT if parent is None else self.oracle.of(rank).place_of[parent]
            first = 0 if parent is None else first
            yield ("store", rank, parent, self._blocks(rank, place, path[first:]))

    def _mend(self, rank: Rank) -> Iterator[Op]:
        """One missing block again, alone, between two that are held."""
        mine, places = self.oracle.of(rank), self.oracle.places
        missing = {places.parent[place] for place in mine.hash_at} - mine.hash_at.keys() - {ROOT}
        missing = [p for p in missing if places.parent[p] == ROOT or places.parent[p] in mine.hash_at]
        if missing:
            place = self.rng.choice(sorted(missing))
            above = places.parent[place]
            yield ("store", rank, mine.hash_at.get(above), self._blocks(rank, above, [places.local[place]]))

    def _diverge(self, rank: Rank) -> Iterator[Op]:
        """A branch that leaves a chain in the middle of what is kept behind a hole."""
        mine = self.oracle.of(rank)
        kept = [place for place in self._inner(rank) if not self._rooted(rank, place)]
        if kept:
            place = self.rng.choice(kept)
            tail = [self._local() for _ in range(self.rng.randint(1, 3))]
            yield ("store", rank, mine.hash_at[place], self._blocks(rank, place, tail))

    def _long_chains(self) -> Iterator[Op]:
        path = [self._local() for _ in range(self.rng.randint(2040, 2600))]
        cut = self.rng.choice((1, 2047, 2048, 2049, len(path) - 1))
        path = path[: max(len(path), cut)]
        self._paths += [path, [*path[:cut], 77], [*path[: cut // 2], 78]]
        yield self._store_path(self.ranks[0], path[:cut])
        yield self._store_path(self.ranks[0], path)
        yield self._store_path(self.ranks[1], path)

    def _odd(self, rank: Rank) -> Iterator[Op]:
        """What engines should not send, and what is legal but rare."""
        mine, hash_ = self.oracle.of(rank), self._some_hash(rank)
        other = self._some_hash(self.rng.choice(self.ranks))
        one = (self._local(), mix(self.rng.getrandbits(60)))
        place = mine.place_of.get(hash_) if hash_ is not None else None
        path = [] if place is None else self.oracle.places.path(place)
        above = self.oracle.own_hash(rank, path, self.rng.randint(1, len(path))) if path else 1
        # A leaf-first stream must not name a block of the rank by chance.
        stray = (
            ("remove", (99, 1), [1])
            if self.removals == LEAF_FIRST
            else ("remove", rank, [other or 1, mix(self._fresh, 8)])
        )
        odd: list[Op] = [
            ("store", rank, None, []),
            ("store", rank, hash_, []),
            ("store", rank, mix(self._fresh, 5), [one]),
            ("store", rank, other, [one]),
            ("store", rank, mix(self._fresh, 6), []),
            ("store", rank, hash_, [one, (3, one[1])]),
            ("store", rank, hash_, [one, (3, hash_ or one[1])]),
            ("store", rank, hash_, [one, (3, above or 1)]),
            ("remove", rank, [mix(self._fresh, 7)]),
            stray,
            ("clear", (99, 0)),
            ("remove_worker", 99),
        ]
        yield self.rng.choice(odd)

    # -- the rest ---------------------------------------------------------------------------------

    def _clear(self, rank: Rank) -> Iterator[Op]:
        yield ("clear", rank)

    def _retire(self, rank: Rank) -> Iterator[Op]:
        yield ("remove_worker", rank[0])

    def _move(self, rank: Rank) -> Iterator[Op]:
        yield ("move", rank)

    def _query(self, rank: Rank) -> Iterator[Op]:
        path = self._grow()
        yield ("query", path[: self.rng.randint(0, len(path))])
