"""Forked handles: readers work in the child, writers raise there and go on in the parent."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from shmtrie.errors import ForkedHandle, StaleHandle
from shmtrie.events import KvCacheEvent, RouterEvent
from shmtrie.index import Index
from shmtrie.layout import GATE_OWNER
from tests.system.children import Child, outcome, wait_until
from tests.system.index_tools import assert_valid, changed, contents, details, open_index, scores, status_of
from tests.system.test_index_handles import CLEARED, HERE, QUERY, READS, WRITER_CALLS, WRITES


@pytest.fixture
def index() -> Iterator[Index]:
    """Rank 1 holds the query."""
    with open_index() as made:
        with made.writer() as writer:
            writer.store(1, None, [1, 2, 3], [11, 12, 13])
        yield made


def test_fork(index: Index) -> None:
    """Readers work in the child; writers raise there, also close, and go on in the parent."""
    with index.writer() as writer:
        writer.store(2, None, [1, 2], [1, 2])
        index.apply_event(RouterEvent(3, KvCacheEvent(0, "cleared")))

        def body(connection: Connection) -> dict[str, Any]:
            said: dict[str, Any] = {"reads": [c(index) is not NotImplemented for c in READS.values()]}
            said["scores"] = scores(index, QUERY)
            said["writer"] = {k: status_of(c, writer) for k, c in WRITER_CALLS.items()}
            said["own"] = {k: status_of(c, index) for k, c in WRITES.items() if k != "writer"}
            writer.close()
            said["closed"] = status_of(WRITER_CALLS["store"], writer)
            with index.writer() as mine:  # a lane of the child's own
                mine.store(4, None, [1, 2, 3, 4], [1, 2, 3, 4])
                said["lane"] = mine.lane
                said["moved"] = status_of(mine.store, 2, 2, [3], [3])
            connection.send(said)
            connection.recv()
            said = {"later": scores(index, QUERY)}
            index.close()
            return said | {"stale": status_of(index.find_matches, QUERY)}

        with Child(body) as child:
            said = child.hear()
            assert all(said["reads"]) and said["scores"] == HERE | {(2, 0): 2}
            assert set(said["writer"].values()) == {ForkedHandle.__name__}
            assert set(said["own"].values()) == {ForkedHandle.__name__}
            assert said["closed"] in (StaleHandle.__name__, ForkedHandle.__name__)
            assert said["lane"] == 2 and said["moved"] == "RankOwnedElsewhere"
            writer.store(2, 2, [3], [3])
            assert scores(index, QUERY) == HERE | {(2, 0): 3, (4, 0): 3}
            child.say()
            assert child.hear() == {"later": HERE | {(2, 0): 3, (4, 0): 3}, "stale": "StaleHandle"}
            assert child.wait() == 0
        writer.remove(2, [3])
        index.apply_event(CLEARED)
        assert scores(index, QUERY) == {(2, 0): 2, (4, 0): 3}
    assert_valid(index)


def test_fork_of_a_process_that_goes_away(index: Index) -> None:
    """The parent's lane is the parent's: a child that lives on does not keep it."""

    def parent(connection: Connection) -> None:
        writer = index.writer()
        writer.store(2, None, [1], [1])
        ready, go = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(go[1])
            os.write(ready[1], b"x")
            os.read(go[0], 1)  # until the parent is gone
            os._exit(0)
        os.read(ready[0], 1)
        connection.send(writer.lane)
        connection.recv()

    with Child(parent) as child:
        lane = child.hear()
        child.kill()
        with index.writer() as heir:
            assert heir.lane == lane
            heir.store(2, 1, [2], [2])
        assert scores(index, [1, 2]) == {(1, 0): 2, (2, 0): 2}


def test_many_forks(index: Index) -> None:
    """Each child reads with a context of its own; none leaves a trace."""
    before = contents(index, [QUERY.tolist()])
    index.best_match(QUERY)
    for _ in range(5):
        with Child(lambda _: [scores(index, QUERY), details(index, QUERY)] * 50) as child:
            assert child.hear() == [HERE, {(1, 0): (3, 13)}] * 50 and child.wait() == 0
    assert changed(before, contents(index, [QUERY.tolist()])) == []


def test_fork_beside_a_busy_writer(index: Index) -> None:
    """A thread of the parent is inside a call; the child has no such thread to wait for."""
    with index.writer(patience=30.0) as writer, index.writer() as other:
        writer.store(2, None, [1, 2], [1, 2])
        gates = index.segment.view("nodes")["shape_gate"]
        node = int(np.flatnonzero(index.segment.view("node_claims"))[1])
        gates[node] = np.uint64((other.lane + 1) << GATE_OWNER)
        waiting = threading.Thread(target=writer.store, args=(2, 2, [3], [3]))
        waiting.start()
        try:
            wait_until(writer._work._turn.locked)

            def body(connection: Connection) -> list[str]:
                connection.send([outcome(partial(call, writer)) for call in WRITER_CALLS.values()])
                writer.close()
                return [outcome(partial(call, writer)) for call in WRITER_CALLS.values()]

            with Child(body) as child:
                assert set(child.hear()) == {"ForkedHandle"}
                assert set(child.hear(5.0)) <= {"ForkedHandle", "StaleHandle"}
        finally:
            gates[node] = 0
            waiting.join()
        assert scores(index, QUERY) == HERE | {(2, 0): 3}
