"""The oracle against values worked out by hand, and the driver against indexes that are wrong on purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.differential import Mismatch, run_stream
from tests.reference import BLOCK, INVALID, MASK, OK, PARENT, ROOT, Op, Oracle, Probes, Rank
from tests.removals import MIDDLE, REMOVALS
from tests.workload import KINDS, RANKS, Workload

A, B = (1, 0), (2, 0)


def store(oracle: Oracle, rank: Rank, parent: int | None, *blocks: tuple[int, int]) -> None:
    """A store that must be allowed."""
    op = ("store", rank, parent, list(blocks))
    assert OK in oracle.outcomes(op)
    oracle.apply(op)


def chain(exact_holes: bool = False) -> Oracle:
    """Rank A holds local hashes 1..5 under external hashes 11..15."""
    oracle = Oracle(exact_holes)
    store(oracle, A, None, *((i, 10 + i) for i in range(1, 6)))
    return oracle


# -- by hand -------------------------------------------------------------------------------------


def test_scores_of_a_chain() -> None:
    oracle = chain()
    assert oracle.bounds(A, [1, 2, 3, 9]) == (3, 3)
    assert oracle.bounds(A, []) == oracle.bounds(A, [9]) == oracle.bounds(B, [1]) == (0, 0)
    assert oracle.block_bounds(A) == (5, 5)
    assert oracle.own_hash(A, [1, 2, 3, 9], 3) == 13


def test_a_hole_opens_the_band_and_a_store_closes_it() -> None:
    oracle = chain()
    oracle.apply(("remove", A, [12]))
    assert oracle.bounds(A, [1, 2, 3, 4, 5]) == (1, 1)
    store(oracle, A, 11, (2, 12))
    assert oracle.bounds(A, [1, 2, 3, 4, 5]) == (2, 5), "forgotten or kept, both are right"
    assert oracle.block_bounds(A) == (2, 5)
    assert oracle.outcomes(("store", A, 15, [(6, 16)])) == {OK, PARENT}
    store(oracle, A, 12, (3, 13), (4, 14))
    assert oracle.bounds(A, [1, 2, 3, 4, 5]) == (4, 5)


def test_exact_holes_has_one_answer() -> None:
    oracle = chain(exact_holes=True)
    oracle.apply(("remove", A, [12]))
    assert oracle.outcomes(("store", A, 15, [(6, 16)])) == {OK}
    store(oracle, A, 15, (6, 16))
    assert oracle.block_bounds(A) == (5, 5)
    store(oracle, A, 11, (2, 12))
    assert oracle.bounds(A, [1, 2, 3, 4, 5, 6]) == (6, 6)


def test_what_a_store_must_and_may_answer() -> None:
    oracle = chain()
    store(oracle, B, None, (1, 21))
    assert oracle.outcomes(("store", B, 11, [(2, 22)])) == {PARENT}, "parents are the rank's own"
    assert oracle.outcomes(("store", B, 99, [])) == {PARENT}
    assert oracle.outcomes(("store", A, 13, [])) == {OK}
    assert oracle.outcomes(("store", A, 13, [(6, 16), (7, 16)])) == {INVALID}
    assert oracle.outcomes(("store", A, 13, [(6, 13)])) == {INVALID}
    assert oracle.outcomes(("store", A, 13, [(6, 12)])) == {INVALID}, "held above the parent"
    assert oracle.outcomes(("store", A, 13, [(6, 15)])) == {OK}, "held below the parent: it moves"
    assert oracle.outcomes(("store", A, 99, [(6, 16), (7, 16)])) == {INVALID, PARENT}
    oracle.apply(("remove", A, [12]))
    assert oracle.outcomes(("store", A, 14, [(6, 11)])) == {OK, PARENT, INVALID}, "14 may be forgotten"


def test_the_newest_hash_of_a_place_wins() -> None:
    oracle = chain()
    store(oracle, A, 11, (2, 32))
    assert oracle.own_hash(A, [1, 2], 2) == 32
    assert oracle.bounds(A, [1, 2, 3]) == (3, 3), "renaming cuts nothing"
    assert oracle.outcomes(("store", A, 12, [])) == {PARENT}
    oracle.apply(("remove", A, [12]))
    assert oracle.bounds(A, [1, 2, 3]) == (3, 3)


def test_the_newest_place_of_a_hash_wins() -> None:
    oracle = chain()
    store(oracle, A, None, (9, 12))
    assert oracle.bounds(A, [9]) == (1, 1)
    assert oracle.bounds(A, [1, 2, 3]) == (1, 1)
    store(oracle, A, None, (9, 15), (1, 12))
    assert oracle.bounds(A, [9, 1]) == (2, 2), "12 swaps places on the path, 15 comes from behind the hole"
    assert oracle.block_bounds(A) == (3, 5)


def test_names_may_be_swapped_on_the_path() -> None:
    oracle = chain()
    store(oracle, A, None, (1, 12), (2, 11))
    assert oracle.bounds(A, [1, 2, 3, 4, 5]) == (5, 5)
    assert [oracle.own_hash(A, [1, 2], d) for d in (1, 2)] == [12, 11]


def test_which_ranks_are_known() -> None:
    oracle = chain()
    assert oracle.outcomes(("remove", B, [])) == {BLOCK}
    oracle.apply(("store", B, 5, [(1, 1)]), PARENT)
    assert oracle.outcomes(("remove", B, [1])) == {BLOCK}, "a refused store does not make a rank known"
    oracle.apply(("clear", B))
    assert oracle.outcomes(("remove", B, [1])) == {OK, BLOCK}
    oracle.apply(("remove", B, [1]), BLOCK)
    assert oracle.outcomes(("remove", B, [1])) == {BLOCK}
    oracle.apply(("clear", A))
    assert oracle.outcomes(("remove", A, [11])) == {OK}
    oracle.apply(("remove_worker", 1))
    assert oracle.outcomes(("remove", A, [11])) == {BLOCK}
    assert oracle.ranks() == []


def test_signed_hashes_are_the_same_hashes() -> None:
    oracle = Oracle()
    store(oracle, A, None, (-1, -2), (0, MASK))
    store(oracle, A, -1, (5, 0))
    assert oracle.bounds(A, [MASK, 0, 5]) == (3, 3)
    assert oracle.own_hash(A, [-1], 1) == MASK - 1


def test_runs_end_where_the_rank_branches() -> None:
    oracle = chain()
    store(oracle, A, 12, (8, 18), (9, 19))
    store(oracle, B, None, (1, 21), (7, 27))
    runs = sorted(oracle.runs(A), key=str)
    assert runs == [(12, ((3, 13), (4, 14), (5, 15))), (12, ((8, 18), (9, 19))), (None, ((1, 11), (2, 12)))]
    assert oracle.runs(B) == [(None, ((1, 21), (7, 27)))], "other ranks' branches do not count"
    oracle.apply(("remove", A, [14]))
    assert (12, ((3, 13),)) in oracle.runs(A)


# -- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("removals", REMOVALS)
def test_streams_are_varied_and_repeatable(kind: str, removals: str) -> None:
    def ops() -> Iterator[Op]:
        oracle = Oracle()
        for op in Workload(oracle, 7, kind, removals, steps=400):
            yield op
            outcomes = oracle.outcomes(op)
            oracle.apply(op, OK if OK in outcomes else min(outcomes))
        assert oracle.held_blocks() == 0

    first = list(ops())
    assert first == list(ops())
    assert {op[0] for op in first} == {"store", "remove", "clear", "remove_worker", "move", "query"}
    hashes = {h for op in first if op[0] == "store" for block in op[3] for h in block}
    assert {0, MASK} <= hashes
    assert {op[1] for op in first if op[0] == "store"} >= set(RANKS[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_half_of_the_removals_of_a_middle_stream_open_a_hole(kind: str) -> None:
    """And single missing blocks come back, and branches leave chains whose head is gone."""
    oracle, found = Oracle(exact_holes=True), Counter[str]()
    for op in Workload(oracle, 12, kind, MIDDLE, steps=600, drain=False):
        outcome = OK if OK in oracle.outcomes(op) else min(oracle.outcomes(op))
        going: list[int] = []
        if op[0] in ("store", "remove"):
            rank, mine = op[1], oracle.of(op[1])
        if op[0] == "store" and op[3] and outcome == OK:
            above = ROOT if op[2] is None else mine.place_of[op[2]]
            place = oracle.places.find(above, op[3][0][0])
            if place is not None and place not in mine.hash_at and len(op[3]) == 1:
                found["restored"] += below(oracle, rank, [place])
            if place not in mine.hash_at and below(oracle, rank, [above]):
                found["branches"] += not rooted(oracle, rank, above)
        elif op[0] == "remove":
            going = [mine.place_of[h] for h in op[2] if h in mine.place_of]
        oracle.apply(op, outcome)
        found["removals"] += bool(going)
        found["holes"] += bool(going) and below(oracle, rank, going)
    assert found["removals"] > 100 and found["restored"] > 10 and found["branches"] > 5, found
    assert found["holes"] * 2 >= found["removals"], found


def below(oracle: Oracle, rank: Rank, places: list[int]) -> bool:
    """Whether a rank holds anything below one of some places."""
    held, todo = oracle.of(rank).hash_at, list(places)
    while todo:
        children = oracle.places.children[todo.pop()]
        if held.keys() & set(children):
            return True
        todo += children
    return False


def rooted(oracle: Oracle, rank: Rank, place: int) -> bool:
    """Whether a rank holds everything above a place."""
    return oracle.bounds(rank, oracle.places.path(place))[1] == oracle.places.depth[place]


# -- wrong indexes -------------------------------------------------------------------------------


class ShmtrieError(Exception):
    """Stands in for the package's base class; the driver goes by names."""


ERRORS = {name: type(name, (ShmtrieError,), {}) for name in (PARENT, BLOCK, INVALID)}


class OracleIndex:
    """An index that answers from an oracle of its own: ``side`` 0 gives the lower bounds, 1 the upper."""

    side = 1

    def __init__(self, exact_holes: bool = False) -> None:
        self.oracle = Oracle(exact_holes)

    def apply(self, op: Op) -> None:
        outcomes = self.oracle.outcomes(op)
        outcome = OK if OK in outcomes and (self.side or len(outcomes) == 1) else min(outcomes - {OK})
        self.oracle.apply(op, outcome)
        if outcome != OK:
            raise ERRORS[outcome]

    def store(self, worker: Any, parent: int | None, local: Any, external: Any) -> None:
        blocks = [(int(a), int(b)) for a, b in zip(local, external, strict=True)]
        self.apply(("store", self._rank(worker), parent, blocks))

    def remove(self, worker: Any, external: Any) -> None:
        self.apply(("remove", self._rank(worker), [int(e) for e in external]))

    def clear(self, worker: Any) -> None:
        self.apply(("clear", self._rank(worker)))

    def remove_worker(self, worker_id: int) -> None:
        self.apply(("remove_worker", worker_id))

    def _rank(self, worker: Any) -> Rank:
        return (worker, 0) if isinstance(worker, int) else worker

    def depth(self, rank: Rank, query: list[int]) -> int:
        return self.oracle.bounds(rank, query)[self.side]

    def last_hash(self, rank: Rank, query: list[int], depth: int) -> int:
        return self.oracle.own_hash(rank, query, depth) or 0

    def find_matches(self, local: Any, early_exit: bool = False) -> Any:
        query = [int(v) & MASK for v in local]
        scores = {r: d for r in self.oracle.ranks() if (d := self.depth(r, query))}
        workers = np.array(list(scores), dtype=[("worker_id", "<u8"), ("dp_rank", "<u4")])
        last = [self.last_hash(r, query, d) for r, d in scores.items()]
        return SimpleNamespace(
            scores=scores, workers=workers, depths=list(scores.values()), last_hashes=last, frequencies=[]
        )

    find_match_details = find_matches

    def stats(self) -> Any:
        counts = [self.oracle.block_bounds(rank)[self.side] for rank in self.oracle.ranks()]
        return SimpleNamespace(blocks=sum(counts))


class LowIndex(OracleIndex):
    """Forgets and refuses whatever it may."""

    side = 0


def opener(make: Callable[[], Any]) -> Any:
    """``make`` as the driver wants it."""

    @contextmanager
    def opened() -> Iterator[Any]:
        yield make()

    return opened


@pytest.mark.parametrize("make", [OracleIndex, LowIndex])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("removals", REMOVALS)
def test_both_ends_of_the_band_pass(make: type[OracleIndex], kind: str, removals: str) -> None:
    outcomes = run_stream(opener(make), seed=3, kind=kind, removals=removals, steps=120)
    assert outcomes["store", OK] > 30 and outcomes["remove", OK] > 10
    assert outcomes["store", PARENT] + outcomes["store", INVALID] > 0 and outcomes["remove", BLOCK] > 0
    run_stream(opener(lambda: OracleIndex(True)), 4, kind, removals, exact_holes=True, steps=60)


class DropsRemoval(OracleIndex):
    def remove(self, worker: Any, external: Any) -> None:
        super().remove(worker, list(external)[:-1])


class Overcounts(OracleIndex):
    def depth(self, rank: Rank, query: list[int]) -> int:
        depth = super().depth(rank, query)
        return min(depth + (depth == 3), len(query))


class Undercounts(OracleIndex):
    def depth(self, rank: Rank, query: list[int]) -> int:
        return min(super().depth(rank, query), 6)


class ForgetsStore(OracleIndex):
    def store(self, worker: Any, parent: int | None, local: Any, external: Any) -> None:
        if len(local) != 3:
            super().store(worker, parent, local, external)


class StoresUnderAnything(OracleIndex):
    def apply(self, op: Op) -> None:
        if self.oracle.outcomes(op) == {PARENT}:
            op = (*op[:2], None, op[3])
        super().apply(op)


class HalfAppliesInvalid(OracleIndex):
    def apply(self, op: Op) -> None:
        if self.oracle.outcomes(op) == {INVALID}:
            self.oracle.apply((*op[:3], op[3][:1]))
        super().apply(op)


class ClearsWorker(OracleIndex):
    def clear(self, worker: Any) -> None:
        for rank in [r for r in self.oracle.ranks() if r[0] == self._rank(worker)[0]]:
            super().clear(rank)


class ForgetsDpRank(OracleIndex):
    def remove_worker(self, worker_id: int) -> None:
        super().clear((worker_id, 0))


class ForeignHashes(OracleIndex):
    def last_hash(self, rank: Rank, query: list[int], depth: int) -> int:
        hashes = [self.oracle.own_hash(r, query, depth) for r in self.oracle.ranks()]
        return next(h for h in hashes if h is not None)


class ExitsTooSoon(OracleIndex):
    def find_matches(self, local: Any, early_exit: bool = False) -> Any:
        return super().find_matches(list(local)[: 1 if early_exit else None])


class LeaksBlocks(OracleIndex):
    removed = 0

    def remove(self, worker: Any, external: Any) -> None:
        super().remove(worker, external)
        self.removed += 1

    def stats(self) -> Any:
        return SimpleNamespace(blocks=super().stats().blocks, nodes=self.removed // 8)


WRONG = (
    *(DropsRemoval, Overcounts, Undercounts, ForgetsStore, StoresUnderAnything, HalfAppliesInvalid),
    *(ClearsWorker, ForgetsDpRank, ForeignHashes, ExitsTooSoon, LeaksBlocks),
)


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_indexes_are_caught(wrong: type[OracleIndex]) -> None:
    kind = "alias" if wrong is ForeignHashes else "clean"
    with pytest.raises(Mismatch, match=r"replay\(open_index, \["):
        for seed in range(5):
            run_stream(opener(wrong), seed, kind, steps=100, shrink_seconds=0.5)


def test_probes_reach_below_and_beside() -> None:
    oracle = chain()
    probes = Probes(oracle)
    assert set(probes.queries([[1, 2]])) == {(1, 2, 3, 4, 5), (1,), (1, 0, 5)}
