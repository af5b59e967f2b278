"""radix_tree.py, what writes do: small scenarios with the values that the contract fixes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from shmtrie.errors import (
    BlockNotFound,
    ParentBlockNotFound,
)
from shmtrie.indexer import Indexer
from shmtrie.radix_tree import RadixTree
from tests.paths import TOP, Q, R, S, assert_drains, assert_dump_rebuilds, dumped, ext, n


@pytest.fixture(params=[False, True], ids=["default", "exact_holes"])
def tree(request: pytest.FixtureRequest) -> Iterator[RadixTree]:
    with RadixTree(exact_holes=request.param) as tree:
        yield tree


@pytest.fixture
def plain() -> RadixTree:
    return RadixTree()


@pytest.fixture
def holes() -> RadixTree:
    return RadixTree(exact_holes=True)


# --- stores -----------------------------------------------------------------------------------------


def test_is_an_indexer(tree: RadixTree) -> None:
    assert isinstance(tree, Indexer)


def test_prefixes_and_strangers(tree: RadixTree) -> None:
    S(tree, 0, [1, 2, 3])
    assert Q(tree, [1, 2, 3]) == Q(tree, [1, 2, 3, 4]) == {0: 3}
    assert Q(tree, [1, 2, 999]) == {0: 2}
    assert Q(tree, [1]) == {0: 1}
    assert Q(tree, [999]) == Q(tree, []) == {}


def test_duplicates_are_counted_and_change_nothing(tree: RadixTree) -> None:
    S(tree, 0, [1, 2, 3])
    before = tree.dump_events()
    for _ in range(2):
        S(tree, 0, [1, 2, 3])
    S(tree, 0, [1, 2])
    S(tree, 0, [1], [2, 3])
    assert tree.stats().duplicate_store == 4
    assert tree.dump_events() == before
    assert n(tree, 0) == 3


def test_partly_new_stores_are_no_duplicates(tree: RadixTree) -> None:
    S(tree, 0, [1, 2, 3])
    S(tree, 0, [1, 2, 3, 4])
    S(tree, 1, [1, 2, 3])
    tree.store(0, None, [1], [77])  # a covered place under another hash
    assert tree.stats().duplicate_store == 0


def test_continuations_are_one_run(tree: RadixTree) -> None:
    S(tree, 0, [1, 2, 3])
    for tail in (4, 5, 6):
        S(tree, 0, list(range(1, tail)), [tail])
    assert Q(tree, range(1, 7)) == {0: 6}
    assert dumped(tree) == [(0, None, [1, 2, 3, 4, 5, 6])]


def test_shared_chain_with_different_reach(tree: RadixTree) -> None:
    S(tree, 1, [1, 2, 3, 4, 5, 6])
    S(tree, 2, [1, 2, 3])
    assert Q(tree, range(1, 7)) == {1: 6, 2: 3}
    S(tree, 2, [1, 2, 3], [4, 5, 6])
    S(tree, 2, [1, 2, 3, 4, 5, 6], [7, 8, 9])
    assert Q(tree, range(1, 10)) == {1: 6, 2: 9}
    assert dumped(tree) == [(1, None, [1, 2, 3, 4, 5, 6]), (2, None, [*range(1, 10)])]
    assert tree.stats()[:4] == (15, 9, 9, 2)


def test_branch_under_a_parent_in_the_middle(tree: RadixTree) -> None:
    S(tree, 1, [1, 2, 3])
    S(tree, 2, [1, 2, 3])
    S(tree, 1, [1, 2, 3], [4, 5, 6])
    S(tree, 2, [1, 2, 3], [7, 8])
    assert Q(tree, [1, 2, 3, 7, 8]) == {1: 3, 2: 5}
    assert Q(tree, range(1, 7)) == {1: 6, 2: 3}
    with pytest.raises(ParentBlockNotFound):
        S(tree, 2, [1, 2, 3, 4, 5, 6], [9, 10])
    assert Q(tree, [1, 2, 3, 4, 5, 6, 9, 10]) == {1: 6, 2: 3}
    assert_dump_rebuilds(tree, [1, 2, 3, 7, 8], range(1, 7))
    assert_drains(tree)


def test_root_store_promotes_along_the_path(tree: RadixTree) -> None:
    S(tree, 0, [1, 2, 3, 4])
    for child in range(10, 15):
        S(tree, 0, [1, 2, 3, 4], [child])
    S(tree, 1, [1, 2, 99])
    assert Q(tree, [1, 2, 3, 4, 10]) == {0: 5, 1: 2}
    assert Q(tree, [1, 2, 99]) == {1: 3, 0: 2}
    assert_dump_rebuilds(tree, [1, 2, 3, 4, 10], [1, 2, 99])
    assert len(dumped(tree)) == 1 + 5 + 1
    assert_drains(tree)


def test_unknown_parents_are_refused(tree: RadixTree) -> None:
    with pytest.raises(ParentBlockNotFound, match=r"rank \(5, 0\)"):
        S(tree, 5, [7, 8], [9])
    assert Q(tree, [9]) == {}
    assert tree.workers() == []  # a refused store does not make the rank known
    with pytest.raises(BlockNotFound):
        tree.remove(5, [1])
    S(tree, 1, [1, 2, 3])
    with pytest.raises(ParentBlockNotFound):  # held by another rank only
        S(tree, 2, [1, 2, 3], [4])
    with pytest.raises(ParentBlockNotFound):  # another dp rank is another rank
        S(tree, (1, 1), [1, 2, 3], [4])


def test_empty_stores(tree: RadixTree) -> None:
    tree.store(0, None, [], [])
    assert tree.workers() == []
    S(tree, 0, [1, 2, 3])
    for parent in (None, ext([1]), ext([1, 2, 3])):
        tree.store(0, parent, [], [])
    with pytest.raises(ParentBlockNotFound):
        tree.store(0, 12345, [], [])
    assert tree.stats().duplicate_store == 0
    assert Q(tree, [1, 2, 3]) == {0: 3}


def test_long_chains(tree: RadixTree) -> None:
    chain = list(range(1000))
    S(tree, 0, chain)
    assert Q(tree, chain) == {0: 1000}
    assert Q(tree, [*chain[:499], 9999]) == {0: 499}
    for worker, length in ((1, 10), (2, 20), (3, 64)):
        S(tree, worker, chain[:length])
    assert Q(tree, chain) == {0: 1000, 1: 10, 2: 20, 3: 64}
    R(tree, 0, chain, *range(80, 1001))
    assert Q(tree, chain) == {0: 79, 1: 10, 2: 20, 3: 64}
    assert tree.stats().nodes == 79


def test_dp_ranks_are_ranks_of_their_own(tree: RadixTree) -> None:
    for dp_rank in range(3):
        S(tree, (0, dp_rank), [1, 2, 3][: dp_rank + 1])
    assert tree.find_matches([1, 2, 3]).scores == {(0, 0): 1, (0, 1): 2, (0, 2): 3}
    tree.clear((0, 0))
    assert tree.find_matches([1, 2, 3]).scores == {(0, 1): 2, (0, 2): 3}


@pytest.mark.parametrize("low", [0, -1])
def test_every_hash_value_is_a_hash(tree: RadixTree, low: int) -> None:
    """No value is a sentinel: not 0, not 2**64 - 1, in any role."""
    other = TOP if low == 0 else 0
    tree.store(TOP, None, [low, other, 0, TOP], [low, other, 5, 6])
    tree.store(TOP, other, [7], [8])
    details = tree.find_match_details([low & TOP, other])
    assert details.scores == {(TOP, 0): 2}
    assert details.last_hashes.tolist() == [other]
    assert Q(tree, np.array([low], np.int64)) == {TOP: 1}  # type: ignore[arg-type]
    assert_dump_rebuilds(tree, [low, other, 0, TOP], [low, other, 7])
    tree.remove(TOP, [other])
    assert Q(tree, [low, other, 0]) == {TOP: 1}
    tree.remove(TOP, [low])
    assert Q(tree, [low]) == {}


# --- removes ----------------------------------------------------------------------------------------


def test_remove_in_the_middle_forgets_what_is_behind(plain: RadixTree) -> None:
    S(plain, 0, [1, 2, 3, 4, 5])
    R(plain, 0, [1, 2, 3, 4, 5], 3)
    assert Q(plain, [1, 2, 3, 4, 5]) == {0: 2}
    assert n(plain, 0) == plain.stats().nodes == 2
    for parent, tail in (([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5], [6])):
        with pytest.raises(ParentBlockNotFound):
            S(plain, 0, parent, tail)
    assert plain.workers()[0].degraded
    S(plain, 0, [1, 2], [3])
    assert Q(plain, [1, 2, 3, 4, 5]) == {0: 3}
    S(plain, 0, [1, 2, 3], [4, 5])
    assert Q(plain, [1, 2, 3, 4, 5]) == {0: 5}
    assert dumped(plain) == [(0, None, [1, 2, 3, 4, 5])]


def test_exact_holes_keep_what_is_behind(holes: RadixTree) -> None:
    S(holes, 0, [1, 2, 3, 4, 5])
    R(holes, 0, [1, 2, 3, 4, 5], 3)
    assert Q(holes, [1, 2, 3, 4, 5]) == {0: 2}
    assert n(holes, 0) == 4
    assert holes.stats()[:3] == (4, 4, 5)
    S(holes, 0, [1, 2, 3, 4, 5], [6])  # held but cut: applied
    with pytest.raises(ParentBlockNotFound):
        S(holes, 0, [1, 2, 3], [9])
    assert dumped(holes) == [(0, None, [1, 2])]
    S(holes, 0, [1, 2], [3])
    assert Q(holes, [1, 2, 3, 4, 5, 6]) == {0: 6}
    assert dumped(holes) == [(0, None, [1, 2, 3, 4, 5, 6])]


def test_exact_holes_reclaim_upward(holes: RadixTree) -> None:
    S(holes, 0, [1, 2, 3])
    R(holes, 0, [1, 2, 3], 1, 2)
    assert Q(holes, [1, 2, 3]) == {}
    assert holes.stats()[:3] == (1, 1, 3)
    R(holes, 0, [1, 2, 3], 3)
    assert holes.stats()[:3] == (0, 0, 0)


@pytest.mark.parametrize("order", [(5, 3, 4), (3, 4, 5), (4, 5, 3)])
def test_order_inside_a_remove_does_not_matter(tree: RadixTree, order: tuple[int, ...]) -> None:
    chain = [1, 2, 3, 4, 5, 6]
    S(tree, 0, chain)
    S(tree, 1, chain)
    R(tree, 0, chain, *order)
    assert Q(tree, chain) == {0: 2, 1: 6}
    R(tree, 0, chain, 6)
    assert (n(tree, 0), n(tree, 1)) == (2, 6)
    S(tree, 0, [1, 2], [3, 4, 5, 6])
    assert Q(tree, chain) == {0: 6, 1: 6}


def test_tail_to_head_eviction(tree: RadixTree) -> None:
    chain = [1, 2, 3, 4, 5, 6]
    S(tree, 0, chain)
    for left in (5, 4, 3, 2, 1, 0):
        R(tree, 0, chain, left + 1)
        assert Q(tree, chain) == ({0: left} if left else {})
        assert n(tree, 0) == tree.stats().nodes == left


def test_head_removal(tree: RadixTree) -> None:
    S(tree, 0, [1, 2, 3])
    R(tree, 0, [1, 2, 3], 1)
    assert Q(tree, [1, 2, 3]) == {}
    R(tree, 0, [1, 2, 3], 2, 3)  # gone already or not: fine
    assert tree.stats()[:3] == (0, 0, 0)


def test_unknown_hashes_are_skipped(tree: RadixTree) -> None:
    S(tree, 0, [1, 2, 3])
    tree.remove(0, [111, ext([1, 2, 3]), 222, 111])
    tree.remove(0, [])
    assert Q(tree, [1, 2, 3]) == {0: 2}
    with pytest.raises(BlockNotFound):
        tree.remove(1, [ext([1])])


def test_one_ranks_remove_leaves_the_others_alone(tree: RadixTree) -> None:
    for worker in (1, 2, 3):
        S(tree, worker, [1, 2, 3, 4])
    S(tree, 1, [1, 2, 3, 4], [5, 6])
    S(tree, 3, [1, 2, 3, 4], [7, 8])
    R(tree, 2, [1, 2], 2)
    assert Q(tree, [1, 2, 3, 4, 5, 6]) == {1: 6, 3: 4, 2: 1}
    assert Q(tree, [1, 2, 3, 4, 7, 8]) == {3: 6, 1: 4, 2: 1}


def test_removal_of_a_branch_point_takes_the_branches(plain: RadixTree) -> None:
    S(plain, 1, [1, 2, 5, 6])
    S(plain, 2, [1, 2, 5, 6])
    S(plain, 3, [1, 2, 7])
    S(plain, 1, [1, 2], [7])
    R(plain, 1, [1, 2], 2)
    assert Q(plain, [1, 2, 5, 6]) == {1: 1, 2: 4, 3: 2}
    assert n(plain, 1) == 1
    S(plain, 1, [1], [2])
    assert Q(plain, [1, 2, 7]) == {1: 2, 2: 2, 3: 3}
    assert_drains(plain)


# --- clear and remove_worker ------------------------------------------------------------------------


def test_clear_keeps_the_rank_known(tree: RadixTree) -> None:
    S(tree, 0, [1, 2, 3])
    S(tree, 1, [1, 2, 3])
    tree.clear(0)
    tree.clear(0)
    assert Q(tree, [1, 2, 3]) == {1: 3}
    tree.remove(0, [ext([1])])  # known, so ok
    assert n(tree, 0) == 0
    with pytest.raises(ParentBlockNotFound):
        S(tree, 0, [1, 2, 3], [4])
    S(tree, 0, [1, 2, 3])
    assert Q(tree, [1, 2, 3]) == {0: 3, 1: 3}
    tree.clear(77)
    assert [info.worker for info in tree.workers()] == [(0, 0), (1, 0)]


def test_remove_worker_takes_all_its_ranks(tree: RadixTree) -> None:
    for worker in ((1, 0), (1, 7), (2, 0)):
        S(tree, worker, [1, 2, 3])
    tree.remove_worker(1)
    tree.remove_worker(1)
    tree.remove_worker(99)
    assert tree.find_matches([1, 2, 3]).scores == {(2, 0): 3}
    for dp_rank in (0, 7):
        with pytest.raises(BlockNotFound):
            tree.remove((1, dp_rank), [ext([1])])
    S(tree, (1, 7), [1])
    assert tree.find_matches([1, 2]).scores == {(2, 0): 2, (1, 7): 1}
    tree.remove_worker(1)
    tree.remove_worker(2)
    assert tree.stats()[:4] == (0, 0, 0, 0)


def test_clear_of_branches_with_holes_reclaims_all(holes: RadixTree) -> None:
    S(holes, 0, [1, 2, 3, 4])
    S(holes, 0, [1, 2], [5, 6])
    R(holes, 0, [1, 2, 3, 4], 1, 2, 3)
    holes.clear(0)
    assert holes.stats()[:3] == (0, 0, 0)
