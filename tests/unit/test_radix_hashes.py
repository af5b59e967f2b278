"""radix_tree.py, external hashes: names per rank, names that move, names that contradict themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shmtrie.errors import (
    EventStatus,
    InvalidBlockSequence,
    ParentBlockNotFound,
)
from shmtrie.radix_tree import RadixTree
from tests.paths import Q, assert_dump_rebuilds, n


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


def test_every_rank_uses_its_own_hashes(tree: RadixTree) -> None:
    tree.store(1, None, [1, 2, 3], [101, 102, 103])
    tree.store(2, None, [1, 2, 3], [201, 202, 203])
    with pytest.raises(ParentBlockNotFound):
        tree.store(2, 103, [4], [104])
    tree.store(2, 203, [4], [204])
    assert Q(tree, [1, 2, 3, 4]) == {1: 3, 2: 4}
    details = tree.find_match_details([1, 2, 3, 4])
    assert dict(zip(details.workers["worker_id"].tolist(), details.last_hashes.tolist(), strict=True)) == {
        1: 103,
        2: 204,
    }
    assert_dump_rebuilds(tree, [1, 2, 3, 4])
    tree.remove(2, [102, 202])
    assert Q(tree, [1, 2, 3, 4]) == {1: 3, 2: 1}


def test_one_hash_for_different_places_of_different_ranks(tree: RadixTree) -> None:
    tree.store(1, None, [1], [900])
    tree.store(2, None, [2], [900])
    tree.remove(1, [900])
    assert Q(tree, [1]) == {}
    assert Q(tree, [2]) == {2: 1}


def test_a_hash_moves_to_its_newest_place(tree: RadixTree) -> None:
    tree.store(1, None, [1], [900])
    tree.store(1, None, [2], [900])
    assert Q(tree, [1]) == {}
    assert Q(tree, [2]) == {1: 1}
    tree.remove(1, [900])
    assert tree.stats()[:3] == (0, 0, 0)


def test_a_moved_hash_leaves_a_hole(plain: RadixTree, holes: RadixTree) -> None:
    for tree in (plain, holes):
        tree.store(1, None, [1, 2, 3], [11, 12, 13])
        tree.store(1, None, [5, 6], [15, 12])
        assert Q(tree, [1, 2, 3]) == {1: 1}
        assert Q(tree, [5, 6]) == {1: 2}
    assert plain.stats()[:3] == (3, 3, 3)
    assert holes.stats()[:3] == (4, 4, 5)
    holes.store(1, 11, [2], [16])
    assert Q(holes, [1, 2, 3]) == {1: 3}


def test_several_hashes_of_one_chain_move(tree: RadixTree) -> None:
    tree.store(1, None, [1, 2, 3], [11, 12, 13])
    tree.store(1, None, [5, 6], [12, 13])  # 13 is behind 12, and gone with it unless holes are kept
    assert Q(tree, [1, 2, 3]) == {1: 1}
    assert Q(tree, [5, 6]) == {1: 2}
    assert tree.stats()[:3] == (3, 3, 3)


def test_a_covered_place_gets_a_new_hash(tree: RadixTree) -> None:
    tree.store(1, None, [1, 2, 3], [11, 12, 13])
    tree.store(1, 11, [2], [99])
    assert tree.stats().duplicate_store == 0
    assert Q(tree, [1, 2, 3]) == {1: 3}  # renamed, not removed
    with pytest.raises(ParentBlockNotFound):
        tree.store(1, 12, [4], [14])
    tree.remove(1, [12])
    assert Q(tree, [1, 2, 3]) == {1: 3}
    tree.remove(1, [99])
    assert Q(tree, [1, 2, 3]) == {1: 1}


def test_hashes_change_places_along_one_path(tree: RadixTree) -> None:
    tree.store(1, None, [1, 2, 3], [11, 12, 13])
    tree.store(1, None, [1, 2], [12, 11])
    assert Q(tree, [1, 2, 3]) == {1: 3}
    assert n(tree, 1) == 3
    assert tree.find_match_details([1, 2]).last_hashes.tolist() == [11]
    tree.store(1, None, [1, 2], [70, 12])
    tree.remove(1, [11])
    assert tree.find_match_details([1, 2]).last_hashes.tolist() == [12]
    tree.remove(1, [12])
    assert Q(tree, [1, 2, 3]) == {1: 1}


def test_a_hash_moves_up_from_behind_the_new_path(tree: RadixTree) -> None:
    tree.store(1, None, [1, 2, 3], [11, 12, 13])
    tree.store(1, None, [1], [13])
    assert Q(tree, [1, 2, 3]) == {1: 2}
    assert tree.find_match_details([1]).last_hashes.tolist() == [13]
    assert n(tree, 1) == 2


@pytest.mark.parametrize(
    ("parent", "external"),
    [
        (13, [13]),  # the parent itself
        (13, [14, 13]),
        (13, [14, 14]),  # twice
        (13, [14, 11]),  # held above the parent
        (12, [11]),
        (None, [5, 6, 5]),
    ],
)
def test_impossible_sequences_change_nothing(
    tree: RadixTree, parent: int | None, external: list[int]
) -> None:
    tree.store(1, None, [1, 2, 3], [11, 12, 13])
    tree.store(1, None, [7], [6])  # would move, if the store were not refused
    before = tree.dump_events()
    with pytest.raises(InvalidBlockSequence, match=r"rank \(1, 0\)"):
        tree.store(1, parent, [4] * len(external), external)
    assert tree.dump_events() == before
    assert tree.stats().rejected == {EventStatus.INVALID_BLOCK_SEQUENCE: 1}
    with pytest.raises(InvalidBlockSequence):
        tree.store(2, None, [1, 2], [5, 5])
    assert len(tree.workers()) == 1


def test_local_hashes_may_repeat(tree: RadixTree) -> None:
    tree.store(1, None, [4, 4, 4], [1, 2, 3])
    assert Q(tree, [4, 4, 4, 4]) == {1: 3}
