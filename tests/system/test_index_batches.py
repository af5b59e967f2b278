"""Many events in one call: one status each, good ones applied, order kept; `degraded` and event ids."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from shmtrie.capacity import Capacity
from shmtrie.errors import (
    Busy,
    CapacityExceeded,
    EventStatus,
    InvalidBlockSequence,
    ParentBlockNotFound,
    RankOwnedElsewhere,
)
from shmtrie.events import (
    EventBatch,
    KvCacheEvent,
    KvCacheRemoveData,
    KvCacheStoreData,
    KvCacheStoredBlockData,
    RouterEvent,
    encode_event,
)
from shmtrie.index import Index
from shmtrie.layout import GATE_OWNER
from shmtrie.writer import Writer
from tests.reference import Rank
from tests.system.index_tools import TOP, assert_valid, details, open_index, scores

OK, PARENT, BLOCK = EventStatus.OK, EventStatus.PARENT_BLOCK_NOT_FOUND, EventStatus.BLOCK_NOT_FOUND
INVALID, FULL = EventStatus.INVALID_BLOCK_SEQUENCE, EventStatus.CAPACITY_EXCEEDED
BUSY, ELSEWHERE = EventStatus.BUSY, EventStatus.RANK_OWNED_ELSEWHERE
UNSUPPORTED = EventStatus.UNSUPPORTED

Apply = Callable[[Writer, list[RouterEvent]], Any]


def event(rank: Rank, event_id: int, data: Any, tier: str = "device") -> RouterEvent:
    """One event of a rank."""
    return RouterEvent(rank[0], KvCacheEvent(event_id, data, rank[1]), tier)


def put(
    rank: Rank, event_id: int, parent: int | None, external: list[int], local: Any = None, **more: Any
) -> RouterEvent:
    """A store; local hashes are the external ones unless given."""
    blocks = [KvCacheStoredBlockData(e, t) for e, t in zip(external, local or external, strict=True)]
    return event(rank, event_id, KvCacheStoreData(parent, blocks), **more)


def drop(rank: Rank, event_id: int, *external: int) -> RouterEvent:
    """A remove."""
    return event(rank, event_id, KvCacheRemoveData(list(external)))


WAYS: dict[str, Apply] = {
    "events": lambda w, events: w.apply_events(events),
    "generator": lambda w, events: w.apply_events(e for e in events),
    "json": lambda w, events: w.apply_events([encode_event(e) for e in events]),
    "batch": lambda w, events: w.apply_batch(EventBatch.from_events(events)),
    "batch by one": lambda w, events: np.concatenate(
        [w.apply_batch(EventBatch.from_events([e])) for e in events]
    ),
}


@pytest.fixture
def index() -> Iterator[Index]:
    """A small index that ends valid."""
    with open_index() as made:
        yield made
        assert_valid(made)


def state(index: Index, rank: Rank) -> tuple[int, int | None, bool]:
    """(blocks, last event id, degraded) of a rank."""
    (info,) = [i for i in index.workers() if i.worker == rank]
    return info.blocks, info.last_event_id, info.degraded


# --------------------------------------------------------------------------------------------------- statuses
@pytest.mark.parametrize("way", WAYS)
def test_mixed_events(index: Index, way: str) -> None:
    a, b, c, d, e = (1, 0), (1, 1), (TOP, 2**32 - 1), (4, 0), (5, 0)
    stream = [
        (put(a, 0, None, [1, 2, 3]), OK),
        (put(b, 7, 3, [4]), PARENT),  # unknown rank
        (drop(b, 8, 1), BLOCK),
        (put(b, 9, None, [1, 2], [1, 2]), OK),
        (put(b, 10, 3, [4]), PARENT),  # another rank's parent
        (put(a, 1, 3, [4, 4]), INVALID),
        (put(a, 2, 3, [4, 5]), OK),
        (put(a, 3, 9, [6], tier="host"), UNSUPPORTED),
        (put(a, 4, 5, [2]), INVALID),  # held above
        (drop(a, TOP, 5, 777), OK),
        (drop(c, 1, 1), BLOCK),
        (event(c, 2, "cleared"), OK),
        (drop(c, 3, 1), BLOCK),  # ... which made it no more known
        (put(c, 4, None, []), OK),
        (put(c, 5, None, [TOP, 0], [0, TOP]), OK),
        (put(d, 0, None, [9, 9]), INVALID),
        (put(e, 0, None, [9]), OK),
        (event(e, 1, "cleared"), OK),
        (drop(e, 2, 9), OK),  # a cleared rank is known
        (put(a, 6, 5, [8]), PARENT),  # removed above
        (put(a, 5, 4, [6]), OK),
    ]
    with index.writer() as w:
        statuses = WAYS[way](w, [s for s, _ in stream])
        assert statuses.dtype == np.uint8 and statuses.shape == (len(stream),)
        assert [EventStatus(s) for s in statuses] == [expected for _, expected in stream]
        assert details(index, [1, 2, 3, 4, 6]) == {a: (5, 6), b: (2, 2)}
        assert details(index, [0, TOP]) == {c: (2, 0)}
        assert [info.worker for info in index.workers()] == [a, b, e, c]
        assert state(index, a) == (5, 5, True) and state(index, b) == (2, 9, True)
        assert state(index, c) == (2, 5, False) and state(index, e) == (0, 2, False)


def test_single_events_raise_what_batches_say(index: Index) -> None:
    with index.writer() as w:
        assert w.apply_event(put((1, 0), 5, None, [1, 2])) is EventStatus.OK
        assert w.apply_event(encode_event(put((1, 0), 6, 2, [3]))) is EventStatus.OK
        assert w.apply_event(put((1, 0), 7, 2, [3], tier="disk")) is EventStatus.UNSUPPORTED
        with pytest.raises(ParentBlockNotFound, match=r"99.*store its chain first"):
            w.apply_event(put((1, 0), 8, 99, [4]))
        with pytest.raises(InvalidBlockSequence):
            w.apply_event(put((1, 0), 9, 3, [3]))
        assert state(index, (1, 0)) == (3, 6, True)


def test_long_batches_keep_order(index: Index) -> None:
    """Each event needs the one before it; the lane's tables grow on the way."""
    ranks = [(r, r % 3) for r in range(8)]
    stream = []
    for i in range(600):
        for r in ranks:
            stream.append(put(r, i, i - 1 if i else None, [i]))
    for i in range(599, 0, -1):
        for r in ranks:
            stream.append(drop(r, 1, i))
            stream.append(put(r, 2, i - 1, [5_000 + i], [7]))
            stream.append(drop(r, i, 5_000 + i))
    with index.writer() as w:
        statuses = w.apply_events(stream)
        assert not statuses.any()
        assert scores(index, range(600)) == dict.fromkeys(ranks, 1)
        assert {info.last_event_id for info in index.workers()} == {1}


def test_a_full_table_in_a_batch() -> None:
    with open_index(Capacity(blocks=100, workers=4, lanes=2, nodes=3)) as index, index.writer() as w:
        rank = (1, 0)
        stream = [(put(rank, i, None, [i]), OK if i < 3 else FULL) for i in range(6)]
        stream += [(put(rank, 6, 2, [10]), OK), (drop(rank, 7, 0), OK), (put(rank, 8, None, [4]), OK)]
        stream += [(put(rank, 9, 10, range(20, 3000)), FULL), (put(rank, 10, 4, [11]), OK)]  # type: ignore[arg-type]
        assert list(w.apply_events([s for s, _ in stream])) == [s for _, s in stream]
        assert [scores(index, q) for q in ([2, 10, 20], [4, 11], [3], [0])] == [{rank: 2}] * 2 + [{}] * 2
        assert state(index, rank) == (5, 10, True)


def test_another_lanes_rank_in_a_batch(index: Index) -> None:
    with index.writer() as mine, index.writer() as other:
        other.store(2, None, [1], [1])
        stream = [
            put((1, 0), 1, None, [1]),
            put((2, 0), 1, 1, [2]),
            drop((2, 0), 2, 1),
            put((1, 0), 2, 1, [2]),
        ]
        stream += [event((2, 0), 3, "cleared"), put((3, 0), 1, None, [1])]
        statuses = mine.apply_events(stream)
        assert list(statuses) == [OK, ELSEWHERE, ELSEWHERE, OK, ELSEWHERE, OK]
        assert scores(index, [1, 2]) == {(1, 0): 2, (2, 0): 1, (3, 0): 1}
        assert state(index, (2, 0))[1] is None
        with pytest.raises(RankOwnedElsewhere):
            mine.apply_event(stream[1])


def test_index_level_events(index: Index) -> None:
    """`Index.apply_event` and `load_events` open one writer of their own."""
    assert index.apply_event(put((1, 0), 3, None, [1, 2])) is EventStatus.OK
    assert index.load_events([put((1, 0), 4, 2, [3]), put((1, 0), 4, 2, [9], tier="host")]) == 1
    with pytest.raises(ParentBlockNotFound, match="event 1 of the dump, the first of 2"):
        bad = put((1, 0), 0, 77, [5])
        index.load_events([put((2, 0), 1, None, [1]), bad, put((1, 0), 5, 3, [4]), bad])
    assert scores(index, [1, 2, 3, 4]) == {(1, 0): 4, (2, 0): 1}
    assert [info.lane for info in index.workers()] == [0, 0]
    index.remove_worker(2)
    assert scores(index, [1]) == {(1, 0): 1}


# ---------------------------------------------------------------------------------------------- degraded, ids
def test_degraded_until_cleared(index: Index) -> None:
    rank = (3, 1)
    with index.writer() as w, index.writer() as other:
        w.store(rank, None, [1, 2, 3], [1, 2, 3])
        assert state(index, rank) == (3, None, False)
        with pytest.raises(ParentBlockNotFound):
            w.store(rank, 9, [4], [4])
        for keeps in (
            lambda: w.store(rank, 3, [4], [4]),
            lambda: w.remove(rank, [4]),
            lambda: w.release(rank),
            lambda: other.store(rank, 3, [4], [4]),
            lambda: other.apply_event(put(rank, 12, 4, [5])),
        ):
            assert state(index, rank)[2]
            keeps()
        assert state(index, rank) == (5, 12, True)
        other.clear(rank)
        assert state(index, rank) == (0, 12, False)
        with pytest.raises(InvalidBlockSequence):
            other.store(rank, None, [1, 2], [1, 1])
        assert state(index, rank)[2]
        other.apply_event(event(rank, 13, "cleared"))
        assert state(index, rank) == (0, 13, False)
        with pytest.raises(ParentBlockNotFound):
            other.store(rank, 5, [1], [1])
        w.remove_worker(3)
        assert index.workers() == []
        w.store(rank, None, [1], [1])
        assert state(index, rank) == (1, None, False)


def test_event_ids(index: Index) -> None:
    rank = (1, 0)
    with index.writer() as w:
        for event_id in (0, 5, TOP, 3, 2**63):  # whatever the engine says, also backwards
            w.apply_event(put(rank, event_id, None, [1]))
            assert state(index, rank)[1] == event_id
        w.apply_events([drop(rank, 8, 1), drop(rank, 9, 1), put(rank, 10, 1, [2])])
        assert state(index, rank)[1] == 9  # a refused event is not recorded
        w.store(rank, None, [1], [1])
        w.remove(rank, [1])
        w.clear(rank)
        assert state(index, rank)[1] == 9  # calls have no id
        w.apply_event(event(rank, 11, "cleared"))
        assert state(index, rank) == (0, 11, False)
        w.apply_event(put(rank, -1 % 2**64, None, [1]))
        assert state(index, rank)[1] == TOP


# ------------------------------------------------------------------------------------------------------- busy
@contextmanager
def held_gate(index: Index, node: int, lane: int) -> Iterator[Any]:
    """A node's gate as another lane would hold it exclusively; the array, so that it can be let go."""
    gates = index.segment.view("nodes")["shape_gate"]
    gates[node] = np.uint64((lane + 1) << GATE_OWNER)
    try:
        yield gates
    finally:
        gates[node] = 0


def test_busy_holds_back_the_rank(index: Index) -> None:
    a, b = (1, 0), (2, 0)
    with index.writer(patience=0.01) as w, index.writer() as other:
        w.apply_events([put(a, 1, None, [1, 2]), put(b, 1, None, [5, 6])])
        stream = [
            (put(a, 2, 2, [3]), BUSY),
            (put(b, 2, 6, [7]), OK),
            (put(a, 3, None, [30]), BUSY),  # another node, but a later event of that rank
            (event(a, 4, "cleared"), BUSY),
            (drop(a, 5, 2), BUSY),
            (put(a, 6, 2, [3], tier="host"), UNSUPPORTED),
            (put(b, 3, 99, [7]), PARENT),
            (drop(b, 4, 7), OK),
            (put(a, 7, None, [1, 1]), BUSY),
        ]
        with held_gate(index, 1, other.lane):
            assert list(w.apply_events([s for s, _ in stream])) == [s for _, s in stream]
            with pytest.raises(
                Busy, match=rf"node 1 is held by lane {other.lane}: process \d+ for more than"
            ):
                w.store(a, 2, [3], [3])
            assert scores(index, [1, 2, 3]) == {a: 2} and scores(index, [30]) == {}
            assert state(index, a) == (2, 1, True) and state(index, b) == (2, 4, True)
        assert list(w.apply_events([s for s, _ in stream])) == [
            OK,
            OK,
            OK,
            OK,
            OK,
            UNSUPPORTED,
            PARENT,
            OK,
            INVALID,
        ]
        assert scores(index, [1, 2, 3]) == {} and state(index, a)[1] == 5


def test_patience_is_enough(index: Index) -> None:
    """A gate that comes free in time is no refusal: the event is applied, and the rank is not degraded."""
    with index.writer(patience=20.0) as w, index.writer() as other:
        w.store(1, None, [1, 2], [1, 2])
        with held_gate(index, 1, other.lane) as gates:
            free = threading.Timer(0.05, lambda: gates.__setitem__(1, 0))
            free.start()
            w.store(1, 2, [3], [3])
            free.join()
        assert scores(index, [1, 2, 3]) == {(1, 0): 3}
        assert state(index, (1, 0)) == (3, None, False)
        assert index.stats().busy == 0  # events refused because another lane held a node for too long


def test_two_threads_on_one_writer(index: Index) -> None:
    """The second one gets a RuntimeError from every call, and nothing of its call is done."""
    with index.writer(patience=20.0) as w, index.writer() as other:
        w.store(1, None, [1, 2], [1, 2])
        with held_gate(index, 1, other.lane) as gates:
            waiting = threading.Thread(target=w.store, args=(1, 2, [3], [3]))
            waiting.start()
            counters = index.segment.view("lanes")["op_counter"]
            first = int(counters[w.lane])
            while counters[w.lane] < first + 4:  # it is trying
                pass
            calls: list[Callable[[], Any]] = [
                lambda: w.store(2, None, [1], [1]),
                lambda: w.remove(1, [1]),
                lambda: w.clear(1),
                lambda: w.apply_event(put((1, 0), 1, None, [9])),
                lambda: w.apply_events([put((1, 0), 1, None, [9])]),
                lambda: w.remove_worker(1),
                lambda: w.release(1),
            ]
            for call in calls:
                with pytest.raises(RuntimeError, match="one thread at a time"):
                    call()
            gates[1] = 0
            waiting.join()
        assert scores(index, [1, 2, 3]) == {(1, 0): 3} and scores(index, [9]) == {}
        w.store(1, 3, [4], [4])


def test_a_full_table_is_told_from_the_last_one() -> None:
    """After a full table the next event sees the next reason, not the old one."""
    with open_index(Capacity(blocks=100, workers=1, lanes=2, nodes=1)) as index, index.writer() as w:
        w.store(1, None, [1], [1])
        for worker, match in ((1, "nodes full"), (2, "ranks full"), (1, "nodes full")):
            with pytest.raises(CapacityExceeded, match=match):
                w.store(worker, None, [2], [2])
