"""Nodes that could not be tidied at once stay on the lane's list until they can, however many they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from shmtrie import Capacity, Index
from shmtrie.events import KIND_STORE, EventBatch
from shmtrie.fastapply import DONE, LOOK
from shmtrie.layout import GATE_OWNER, LANE_TODO, M31, M32

FOREIGN = 40 << 32  # the lock byte of a lane that does not exist: nobody will let it go


@pytest.fixture
def index(segment_name: Callable[[], str]) -> Iterator[Index]:
    name = segment_name()
    with Index.create(name, Capacity(blocks=20_000, workers=8, lanes=3, nodes=5_000)) as made:
        yield made
        Index.unlink(name)


def nodes_in_use(index: Index) -> int:
    return int(np.count_nonzero(index.segment.view("node_claims"))) - 1


@pytest.mark.parametrize("n", [1, 2, LANE_TODO - 1, LANE_TODO, LANE_TODO + 1, 3 * LANE_TODO])
def test_nodes_behind_a_busy_space_come_back(index: Index, n: int) -> None:
    """The space of the root is locked by somebody who is stopped: nothing can leave it meanwhile."""
    count = index.segment.view("nodes")["count"]
    record = index.segment.view("lanes")[0]
    with index.writer() as writer:
        for k in range(n):
            writer.store(1, None, [k], [1_000_000 + k])
        writer.store(2, None, [1 << 50, 2], [1 << 51, 2])
        count[0] |= np.uint64(FOREIGN)
        writer.remove(1, [1_000_000 + k for k in range(n)])
        assert nodes_in_use(index) == n + 1
        assert int(record["n_todo"]) == min(n, LANE_TODO)
        assert (int(record["todo_scan"]) != 0) == (n > LANE_TODO)
        report = index.verify()
        assert len(report.broken) == 1 and "is locked by lane 39" in report.broken[0][1], report
        # what can be done meanwhile is done
        writer.store(2, 2, [3], [3])
        writer.remove(2, [3])
        count[0] &= np.uint64(M32)
        for _ in range(12):
            writer.store(2, 2, [3], [3])
            writer.remove(2, [3])
        assert nodes_in_use(index) == 1
        assert int(record["n_todo"]) == int(record["todo_scan"]) == 0
        writer.clear(2)
    assert nodes_in_use(index) == 0
    assert index.verify().ok


def test_close_works_off_what_is_left(index: Index) -> None:
    count = index.segment.view("nodes")["count"]
    writer = index.writer()
    n = 2 * LANE_TODO
    for k in range(n):
        writer.store(1, None, [k], [1_000_000 + k])
    count[0] |= np.uint64(FOREIGN)
    writer.clear(1)
    count[0] &= np.uint64(M32)
    writer.close()
    assert nodes_in_use(index) == 0
    assert index.verify().ok


def test_a_chain_longer_than_the_list_goes_at_once(index: Index) -> None:
    """Each node's end makes its parent empty."""
    n = 2 * LANE_TODO
    with index.writer() as writer:
        writer.store(1, None, list(range(n)), list(range(n)))
        for k in range(n - 1):  # a branch at each block, gone again
            writer.store(1, k, [1 << 40], [1 << 41])
            writer.remove(1, [1 << 41])
        assert nodes_in_use(index) == n
        writer.remove(1, list(range(n - 1)))
        assert nodes_in_use(index) == n
        writer.remove(1, [n - 1])
    assert nodes_in_use(index) == 0
    assert index.verify().ok


def test_a_gate_that_was_busy_once_is_not_looked_at_for_ever(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane that holds a node's gate tests it itself. Once it is at rest events take the short way again."""
    array = np.array([9], np.uint64)
    with index.writer() as writer, index.writer() as other:
        writer.store(1, None, [1, 2, 3], [1, 2, 3])
        nodes, lanes = index.segment.view("nodes"), index.segment.view("lanes")
        tails = nodes["tail"] & np.uint64(M31)
        (node,) = np.flatnonzero((tails == 3) & (index.segment.view("node_claims") != 0))
        gate, counter, record = nodes["shape_gate"], lanes["op_counter"], lanes[writer.lane : writer.lane + 1]
        nodes["inline"][node, 0] -= np.uint64(1)  # a tail that nobody covers, as a death leaves it
        gate[node] = (other.lane + 1) << GATE_OWNER
        counter[other.lane] += np.uint64(1)
        record["todo"][0, 0], record["n_todo"] = node, 1
        for _ in range(2):  # in its operation: looked at again and again, it may be dead
            assert writer._apply(KIND_STORE, 1, None, array, array, None) == LOOK
            writer._work._next_look = 0
            writer.store(1, None, array, array)

        def fails(lane: int) -> bool:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patch:  # what cannot be looked at now is no error of the event
            patch.setattr(writer._work, "recover_lane", fails)
            writer._work._next_look = 0
            writer.store(1, None, array, array)
            writer._work._next_look = 0
            assert writer.apply_batch(EventBatch.from_events([])).size == 0
        gate[node] = 0
        counter[other.lane] += np.uint64(1)
        writer._work._next_look = 0
        writer.store(1, None, array, array)
        assert writer._apply(KIND_STORE, 1, None, array, array, None) == DONE
        nodes["inline"][node, 0] += np.uint64(1)
