"""radix_queries.py: every question that a `RadixTree` answers, its dump included."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from shmtrie.errors import (
    ParentBlockNotFound,
)
from shmtrie.events import (
    encode_event,
)
from shmtrie.radix_tree import RadixTree
from shmtrie.scores import WORKER_DTYPE, Match
from tests.paths import Q, R, S, assert_dump_rebuilds, dumped, ext


@pytest.fixture(params=[False, True], ids=["default", "exact_holes"])
def tree(request: pytest.FixtureRequest) -> Iterator[RadixTree]:
    with RadixTree(exact_holes=request.param) as tree:
        yield tree


@pytest.fixture
def plain() -> RadixTree:
    return RadixTree()


# --- queries ----------------------------------------------------------------------------------------


def test_early_exit_gives_a_lower_bound(plain: RadixTree) -> None:
    for worker in (0, 1):
        S(plain, worker, [1, 2])
    S(plain, 0, [1, 2], [3, 4])
    assert plain.find_matches([1, 2, 3, 4]).scores == {(0, 0): 4, (1, 0): 2}
    early = plain.find_matches([1, 2, 3, 4], early_exit=True).scores
    assert early == {(0, 0): 3, (1, 0): 2}


def test_details_name_the_last_matched_block(tree: RadixTree) -> None:
    S(tree, 1, [1, 2, 3, 4])
    S(tree, 2, [1, 2], seed=9)
    S(tree, 3, [1, 2, 3], seed=7)
    details = tree.find_match_details([1, 2, 3, 5])
    found = dict(zip(details.workers["worker_id"].tolist(), details.last_hashes.tolist(), strict=True))
    assert found == {1: ext([1, 2, 3]), 2: ext([1, 2], 9), 3: ext([1, 2, 3], 7)}
    assert details.scores == tree.find_matches([1, 2, 3, 5]).scores


def test_batch_of_queries(tree: RadixTree) -> None:
    S(tree, 1, [1, 2, 3])
    S(tree, 2, [1])
    queries = [[1, 2, 3], [], [9], [1, 2]]
    flat = np.array([h for q in queries for h in q], np.uint64)
    batch = tree.find_matches_batch(flat, [0, 3, 3, 4, 6])
    assert batch.offsets.tolist() == [0, 2, 2, 2, 4]
    assert batch.workers.dtype == WORKER_DTYPE
    assert batch.depths.dtype == np.uint32
    assert [batch[i] for i in range(4)] == [tree.find_matches(q) for q in queries]
    assert len(tree.find_matches_batch([], [0])) == 0
    assert [len(r) for r in tree.find_matches_batch([1, 2], [1, 1, 2])] == [0, 0]


def test_best_matches_order(tree: RadixTree) -> None:
    S(tree, (4, 1), [1, 2, 3])
    S(tree, (4, 0), [1, 2, 3])
    S(tree, 3, [1, 2, 3])
    S(tree, 3, [8])  # as deep, but holds more
    S(tree, 5, [1, 2])
    query = [1, 2, 3, 4]
    want = [((4, 0), 3), ((4, 1), 3), ((3, 0), 3), ((5, 0), 2)]
    assert tree.best_matches(query, 9) == want
    assert tree.best_matches(query, 2) == want[:2]
    assert tree.best_matches(query, 0) == []
    best = tree.best_match(query)
    assert isinstance(best, Match)
    assert best == want[0]
    assert best.worker.dp_rank == 0
    assert tree.best_match(query, among=[5, (4, 1)]) == want[1]
    assert tree.best_match(query, among=np.array([(5, 0)], WORKER_DTYPE)) == want[3]
    assert tree.best_matches(query, 9, among=iter([3, 99])) == [want[2]]
    for nobody in (tree.best_match([9]), tree.best_match([]), tree.best_match(query, among=[])):
        assert nobody is None


def test_results_outlive_changes(tree: RadixTree) -> None:
    S(tree, 1, [1, 2, 3])
    scores = tree.find_matches([1, 2, 3])
    tree.clear(1)
    tree.close()
    assert scores.scores == {(1, 0): 3}


# --- dump -------------------------------------------------------------------------------------------


def test_runs_are_per_rank(tree: RadixTree) -> None:
    """Where another rank branches off is no end of this rank's run."""
    S(tree, 0, [1, 2, 3])
    S(tree, 1, [1, 2, 9])
    R(tree, 1, [1, 2, 9], 3)
    S(tree, 2, [1, 2, 3])
    S(tree, 2, [1, 2], [9, 10])
    assert dumped(tree) == [
        (0, None, [1, 2, 3]),
        (1, None, [1, 2]),
        (2, None, [1, 2]),
        (2, ext([1, 2]), [3]),
        (2, ext([1, 2]), [9, 10]),
    ]
    assert [event.event.event_id for event in tree.dump_events()] == [0, 1, 2, 3, 4]
    assert_dump_rebuilds(tree, [1, 2, 3], [1, 2, 9, 10])


def test_load_reports_what_does_not_fit(tree: RadixTree) -> None:
    S(tree, 1, [1, 2])
    S(tree, 1, [1], [3])
    events = tree.dump_events()
    other = RadixTree()
    with pytest.raises(ParentBlockNotFound, match="event 0 of 2"):
        other.load_events(events[1:])
    assert Q(other, [1]) == {}
    assert other.load_events([encode_event(event) for event in events]) == 3
    assert other.find_matches([1, 3]) == tree.find_matches([1, 3])
