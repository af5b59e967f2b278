"""Streams of several writers over the same few paths: they meet in the same nodes all the time."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.reference import OK, Op, Oracle, Rank
from tests.workload import Workload, mix

DEEPEST = 40  # blocks of a path that a stream uses


class Pool:
    """The paths of one run: a few families, each a trunk with branches at every other block.

    Parameters
    ----------
    seed : int
        Everything random comes from it.
    families : int
        Number of different first blocks.
    trunk : int
        Blocks of the longest path.

    Attributes
    ----------
    paths : list of tuple of int
        Whole paths; streams use prefixes of them, and prefixes with a tail of their own.
    """

    def __init__(self, seed: int, families: int = 3, trunk: int = 12) -> None:
        rng = random.Random(f"pool {seed}")
        self.paths: list[tuple[int, ...]] = []
        for family in range(families):
            stem = tuple(mix(seed, family, d) for d in range(rng.randint(max(2, trunk // 2), trunk)))
            self.paths.append(stem)
            for branch in range(4):
                cut = rng.randrange(1, len(stem))
                tail = tuple(mix(seed, family, 100 + branch, d) for d in range(rng.randint(1, 4)))
                self.paths.append(stem[:cut] + tail)

    def queries(self, rng: random.Random, n: int) -> list[list[int]]:
        """Whole paths, prefixes, paths that leave the pool half-way."""
        found = [list(path) for path in self.paths]
        while len(found) < n:
            path = list(rng.choice(self.paths))
            cut = rng.randint(1, len(path))
            found.append(path[:cut] if rng.random() < 0.5 else [*path[:cut], 5, 6])
        rng.shuffle(found)
        return found[:n]


class Contended(Workload):
    """A stream of ``tests.workload`` whose paths come from a pool that other streams share.

    Parameters
    ----------
    oracle : Oracle
        Of these ranks; as of `Workload`.
    seed : int
        Of this stream.
    pool : Pool
        The paths.
    ranks : sequence of Rank
        Whom the stream is about.
    kind, removals
        As of `Workload`.
    """

    def __init__(
        self, oracle: Oracle, seed: int, pool: Pool, ranks: Sequence[Rank], kind: str, removals: str
    ) -> None:
        super().__init__(oracle, seed, kind, removals, steps=1 << 30, drain=False)
        self.ranks = tuple(ranks)
        self._pool = pool
        self._paths = [list(path) for path in pool.paths]

    def _grow(self) -> list[int]:
        path = list(self.rng.choice(self._pool.paths))
        if self.rng.random() < 0.6:
            path = path[: self.rng.randint(1, len(path))]
        if self.rng.random() < 0.25:
            path += [self.rng.choice((1, 2)) for _ in range(self.rng.randint(1, 2))]
        return path

    def _local(self) -> int:
        return self.rng.choice((1, 2))

    def _retire(self, rank: Rank) -> Iterator[Op]:
        # All ranks of a worker belong to one stream: another one's would have to know.
        yield ("remove_worker", rank[0])

    def _move(self, rank: Rank) -> Iterator[Op]:
        yield from ()


class Step(NamedTuple):
    """An operation of a plan, the outcome that the rest was drawn for, and whether it changes a holding."""

    op: Op
    outcome: str
    changes: bool


def draw(oracle: Oracle, stream: Contended, n: int) -> list[Step]:
    """The next `n` operations of a stream, drawn on a copy of the oracle.

    Where several outcomes are allowed the real one may differ. Later operations may then be about blocks that
    are not there, or have other names: the stream is no longer one that evicts leaf-first.
    """
    model = copy.deepcopy(oracle)
    stream.oracle = model
    steps: list[Step] = []
    for op in stream:
        if op[0] == "query" or (steps and sum(map(len, op[3] if op[0] == "store" else ())) > 2 * DEEPEST):
            continue  # nobody performs it, so the copy must not either: it may give a held block another name
        allowed = model.outcomes(op)
        outcome = OK if OK in allowed else min(allowed)
        before = dict(model.of(op[1]).hash_at) if op[0] != "remove_worker" else None
        model.apply(op, outcome)
        steps.append(Step(op, outcome, before is None or before != model.of(op[1]).hash_at))
        if len(steps) >= n:
            break
    return steps
