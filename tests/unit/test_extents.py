"""Allocation under the shapes that strain it: thousands of one-block nodes, spans that change class, long
transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from shmtrie import Capacity, CapacityExceeded, Index
from shmtrie.layout import LANE_GATES

BRANCH = 1 << 40


@pytest.fixture
def index(segment_name: Callable[[], str]) -> Iterator[Index]:
    name = segment_name()
    with Index.create(name, Capacity(blocks=60_000, workers=8, lanes=3, nodes=20_000)) as made:
        yield made
        Index.unlink(name)


def in_use(index: Index) -> tuple[int, int, int]:
    """Claimed nodes beside the root, claimed extents, child entries."""
    sections = ("node_claims", "line_claims", "children")
    nodes, extents, children = (int(np.count_nonzero(index.segment.view(s))) for s in sections)
    return nodes - 1, extents, children


def test_store_over_more_nodes_than_the_record_lists(index: Index) -> None:
    """One rank's chain broken into one-block nodes, then stored by another rank in one transaction.

    The splits turn spans from large classes to small ones: a hint of an old class must not become an extent
    that reaches beyond its span. The store's gate and log lists go on in extents, which come back.
    """
    n = LANE_GATES + 2_100
    local = np.arange(1, n + 1, dtype=np.uint64)
    external = local + np.uint64(1_000_000)
    with index.writer() as first, index.writer() as second:
        first.store(1, None, local, external)
        for k in range(n - 1):
            first.store(1, int(external[k]), [BRANCH + k], [2 * BRANCH + k])
        assert index.find_matches(local).scores == {(1, 0): n}
        second.store(2, None, local, external)
        assert index.find_matches(local).scores == {(1, 0): n, (2, 0): n}
        report = index.verify()
        assert report.ok and not report.unsettled, report
        second.remove(2, external[::-1].copy())
        assert index.find_matches(local).scores == {(1, 0): n}
        first.clear(1)
    assert in_use(index) == (0, 0, 0)
    assert index.verify().ok


def test_a_long_store_without_room_for_its_lists_changes_nothing(segment_name: Callable[[], str]) -> None:
    """The record's lists need extents that are not there: refused, nothing changed, room again after a
    removal.
    """
    name = segment_name()
    n = LANE_GATES + 200
    capacity = Capacity(blocks=n, workers=4, lanes=2, nodes=3 * n, extents=3 * n // 1_024 * 1_024)
    local = np.arange(1, n + 1, dtype=np.uint64)
    with Index.create(name, capacity) as index:
        try:
            with index.writer() as writer:
                writer.store(1, None, local, local)
                for k in range(n - 1):
                    writer.store(1, int(local[k]), [BRANCH + k], [BRANCH + k])
                filler = 0
                with pytest.raises(CapacityExceeded, match="extents"):
                    while True:  # take the rest of the lines
                        writer.store(3, None, [BRANCH * 4 + filler], [BRANCH * 4 + filler])
                        filler += 1
                before = in_use(index)
                with pytest.raises(CapacityExceeded):
                    writer.store(2, None, local, local)
                assert in_use(index) == before
                assert index.find_matches(local).scores == {(1, 0): n}
                writer.remove(3, [BRANCH * 4 + k for k in range(filler)])
                for k in range(n - 1):
                    writer.remove(1, [BRANCH + k])
                writer.store(2, None, local, local)
                assert index.find_matches(local).scores == {(1, 0): n, (2, 0): n}
                assert index.verify().ok
        finally:
            Index.unlink(name)
