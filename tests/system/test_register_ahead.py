"""Ranks of a batch are registered together, before their first stores: nobody can tell from answers."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from shmtrie.capacity import Capacity
from shmtrie.errors import Busy, EventStatus
from shmtrie.events import EventBatch, RouterEvent
from shmtrie.index import Index
from shmtrie.kernels import batch, registry
from shmtrie.kernels.context import C_STALE
from shmtrie.layout import SLOT_ACTIVE
from shmtrie.writer import _COLUMNS, Writer
from tests.reference import Rank
from tests.system.children import Child
from tests.system.index_tools import assert_valid, open_index, scores
from tests.system.test_index_batches import drop, event, put

OK, PARENT, BLOCK = EventStatus.OK, EventStatus.PARENT_BLOCK_NOT_FOUND, EventStatus.BLOCK_NOT_FOUND
INVALID, FULL = EventStatus.INVALID_BLOCK_SEQUENCE, EventStatus.CAPACITY_EXCEEDED


@pytest.fixture
def index() -> Iterator[Index]:
    with open_index(Capacity(blocks=20_000, workers=300, lanes=3)) as made:
        yield made
        assert_valid(made)


def apply(writer: Writer, events: list[RouterEvent]) -> list[EventStatus]:
    return [EventStatus(s) for s in writer.apply_batch(EventBatch.from_events(events))]


def active(index: Index) -> int:
    """Slots that are somebody's, stored or not."""
    states = index.segment.view("rank_states")["state"]
    return int(np.count_nonzero((states & np.uint64(0xFF)) == SLOT_ACTIVE))


def first_stores(ranks: range) -> list[RouterEvent]:
    return [put((worker, worker % 3), 0, None, [1, 2, worker + 10]) for worker in ranks]


def test_one_lock_for_many(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    with index.writer() as writer:
        ranks, locked = writer._work.ranks, 0
        registering = ranks._registering

        def counted() -> Any:
            nonlocal locked
            locked += 1
            return registering()

        monkeypatch.setattr(ranks, "_registering", counted)
        events = first_stores(range(200))
        assert apply(writer, events + events) == [OK] * 400
        assert locked == -(-200 // registry.AHEAD) and active(index) == 200
        assert scores(index, [1, 2, 17]) == {(w, w % 3): 3 if w == 7 else 2 for w in range(200)}
        assert [info.last_event_id for info in index.workers()] == [0] * 200
        writer.release((7, 1))
        assert apply(writer, [put((7, 1), 5, 17, [99])]) == [OK]


def test_refused_first_stores_get_no_slot(index: Index) -> None:
    """They had one for a while; good ones around them keep theirs, and later batches are not disturbed."""
    events = [
        put((1, 0), 0, None, [1, 1]),
        put((2, 0), 0, None, [1, 2]),
        put((3, 0), 0, None, []),
        put((4, 0), 0, 5, [6]),
        drop((5, 0), 0, 1),
        put((5, 0), 1, None, [3]),
        event((6, 0), 0, "cleared"),
        put((1, 0), 1, 1, [2]),
        put((7, 0), 0, None, [4, 4]),
        put((7, 0), 1, None, [4]),
    ]
    expected = [INVALID, OK, OK, PARENT, BLOCK, OK, OK, PARENT, INVALID, OK]
    with index.writer() as writer:
        assert apply(writer, events) == expected
        for _ in range(3):
            assert active(index) == 3
            assert [tuple(info.worker) for info in index.workers()] == [(2, 0), (5, 0), (7, 0)]
            apply(writer, events)
        assert apply(writer, [put((1, 0), 0, None, [8])]) == [OK] and active(index) == 4


def test_more_ranks_than_slots() -> None:
    with open_index(Capacity(blocks=2_000, workers=70, lanes=2)) as index, index.writer() as writer:
        slots = index.segment.section_count("rank_records")
        statuses = apply(writer, first_stores(range(slots + 9)))
        assert statuses == [OK] * slots + [FULL] * 9 and active(index) == slots
        for worker in range(0, slots, 2):
            writer.remove_worker(worker)
        assert apply(writer, first_stores(range(1_000, 1_000 + slots // 2))) == [OK] * (slots // 2)
        assert_valid(index)


def test_ranks_of_other_lanes_among_new_ones(index: Index) -> None:
    """Given away: taken over with what they hold. Held: refused. Removed: new."""
    with index.writer() as writer, index.writer() as other:
        assert apply(other, first_stores(range(6))) == [OK] * 6
        other.release((1, 1))
        other.release((4, 1))
        writer.remove_worker(5)
        new, old = first_stores(range(100, 110)), first_stores(range(6))
        statuses = apply(writer, [*new, *old, drop((4, 1), 9, 14)])
        elsewhere = EventStatus.RANK_OWNED_ELSEWHERE
        assert statuses == [OK] * 10 + [elsewhere, OK, elsewhere, elsewhere, OK, OK, OK]
        assert scores(index, [1, 2, 14])[4, 1] == 2 and active(index) == 16


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("exact_holes", "slots"), [(False, 40), (True, 40), (False, 3)])
def test_as_one_by_one(seed: int, exact_holes: bool, slots: int) -> None:
    """Random events of many ranks, in batches and one a batch: statuses, ranks and answers are the same."""
    rng = random.Random(seed)

    def some(rank: Rank, k: int) -> RouterEvent:
        chain = rng.choice([[1, 2, 3], [1, 2, 4], [5], [1, 6, 7, 8]])
        kind = rng.random()
        if kind < 0.5:
            return put(rank, k, None, chain[: rng.randint(1, 4)])
        if kind < 0.65:
            return put(rank, k, rng.choice(chain), [rng.randint(1, 12)])
        if kind < 0.75:
            return put(rank, k, None, [*chain, rng.choice(chain)])
        if kind < 0.8:
            return put(rank, k, None, [])
        if kind < 0.95:
            return drop(rank, k, *rng.sample(chain, rng.randint(0, len(chain))))
        return event(rank, k, "cleared")

    capacity = Capacity(blocks=5_000, workers=slots, lanes=2)
    with (
        open_index(capacity, exact_holes=exact_holes) as one,
        open_index(capacity, exact_holes=exact_holes) as other,
        one.writer() as w,
        other.writer() as v,
    ):
        for turn in range(25):
            events = [some((rng.randint(1, 60), rng.randint(0, 1)), k) for k in range(rng.randint(1, 60))]
            assert apply(w, events) == [apply(v, [each])[0] for each in events]
            mine, theirs = (
                [(i.worker, i.blocks, i.last_event_id, i.degraded) for i in index.workers()]
                for index in (one, other)
            )
            assert mine == theirs and active(one) == active(other)
            for query in ([1, 2, 3], [1, 2, 4], [1, 6, 7, 8], [5]):
                assert scores(one, query) == scores(other, query)
            if turn % 5 == 4:
                worker = rng.randint(1, 60)
                w.remove_worker(worker)
                v.remove_worker(worker)
        assert_valid(one)


def test_an_interrupt_before_the_first_stores(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that no store came to are free again."""

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with index.writer() as writer:
        admit_ahead = writer._work.ranks.admit_ahead

        def then_interrupted(*arguments: Any) -> int:
            made = admit_ahead(*arguments)
            assert active(index) == made == 10
            monkeypatch.setattr(batch, "apply_events", interrupted)
            return made

        monkeypatch.setattr(writer._work.ranks, "admit_ahead", then_interrupted)
        with pytest.raises(KeyboardInterrupt):
            apply(writer, first_stores(range(10)))
        monkeypatch.undo()
        assert active(index) == 0 and index.workers() == []
        assert apply(writer, first_stores(range(20))) == [OK] * 20


def test_an_interrupt_while_they_are_registered(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the lane had not taken note of is free again after its next batch."""
    assign = registry.registry_assign_ahead

    def interrupted(*arguments: int) -> int:
        assign(*arguments)
        raise KeyboardInterrupt

    with index.writer() as writer:
        assert apply(writer, first_stores(range(5))) == [OK] * 5
        with monkeypatch.context() as patch:
            patch.setattr(registry, "registry_assign_ahead", interrupted)
            patch.setattr(writer._work.ranks, "free_unknown", lambda: None)
            with pytest.raises(KeyboardInterrupt):
                apply(writer, first_stores(range(100, 120)))
        assert active(index) == 25 and len(index.workers()) == 5
        assert apply(writer, [put((0, 0), 1, 10, [77])]) == [OK]
        assert active(index) == 5
        assert apply(writer, first_stores(range(100, 120))) == [OK] * 20 and active(index) == 25


def test_a_registry_that_others_keep(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for once; later events of the rank are held back, those of known ranks are not."""
    with index.writer() as writer:
        assert apply(writer, first_stores(range(1))) == [OK]
        ranks, asked = writer._work.ranks, []

        def kept() -> Any:
            asked.append(1)
            raise Busy("kept")

        monkeypatch.setattr(ranks, "_registering", kept)
        busy = EventStatus.BUSY
        events = [*first_stores(range(7, 8)), put((7, 1), 1, 17, [5]), put((0, 0), 1, 10, [77])]
        assert apply(writer, events) == [busy, busy, OK] and len(asked) == 1
        monkeypatch.undo()
        assert apply(writer, events[:2]) == [OK] * 2


def test_many_refused_at_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that no store came to are given back together: the map of ranks is made anew once."""
    with index.writer() as writer:
        rebuild, made = writer._work.context._rebuild_map, []
        monkeypatch.setattr(writer._work.context, "_rebuild_map", lambda: (made.append(1), rebuild())[1])
        monkeypatch.setattr(batch, "apply_events", lambda context, columns, first, last, out: (last, 0))
        ranks, events = writer._work.ranks, EventBatch.from_events(first_stores(range(registry.AHEAD)))
        columns = np.array([getattr(events, name).ctypes.data for name in _COLUMNS], np.int64)
        assert ranks.admit_ahead(events, columns.ctypes.data, 0) == registry.AHEAD
        assert active(index) == registry.AHEAD
        ranks.free_unknown()
        assert active(index) == 0 and len(made) == 1


def test_a_slot_that_another_lane_got_meanwhile_is_left_alone(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the slots and the lock the worker is removed, and another lane registers there."""
    with index.writer() as writer, index.writer() as other:
        ranks, events = writer._work.ranks, EventBatch.from_events(first_stores(range(1)))
        columns = np.array([getattr(events, name).ctypes.data for name in _COLUMNS], np.int64)
        assert ranks.admit_ahead(events, columns.ctypes.data, 0) == 1
        registering, theirs = ranks._registering, EventBatch.from_events(first_stores(range(50, 51)))
        others = np.array([getattr(theirs, name).ctypes.data for name in _COLUMNS], np.int64)

        def late() -> Any:
            other.remove_worker(0)
            assert other._work.ranks.admit_ahead(theirs, others.ctypes.data, 0) == 1
            return registering()

        monkeypatch.setattr(ranks, "_registering", late)
        ranks.free_unknown()
        assert active(index) == 1
        other.apply_batch(theirs)
        assert scores(index, [1, 2, 60]) == {(50, 2): 3}


def test_a_slot_that_comes_back_leaves_entries_behind(index: Index) -> None:
    """Another lane removes a rank, and its slot goes to the next one of this lane before anything else."""
    with index.writer() as writer, index.writer() as other:
        assert apply(writer, first_stores(range(1))) == [OK]
        before = int(writer._work.context.words[C_STALE])
        other.remove_worker(0)
        assert apply(writer, first_stores(range(1, 2))) == [OK]
        assert active(index) == 1 and int(writer._work.context.words[C_STALE]) > before


def test_a_death_before_the_first_stores(index: Index) -> None:
    """Whoever looks for room frees the slots of the dead, and the ranks are anybody's."""

    def body(connection: Connection) -> None:
        with Index.attach(index.name, read_only=False) as handle:
            writer = handle.writer()
            admit_ahead = writer._work.ranks.admit_ahead

            def then_dead(*arguments: Any) -> int:
                admit_ahead(*arguments)
                os._exit(0)

            writer._work.ranks.admit_ahead = then_dead  # type: ignore[method-assign]
            apply(writer, first_stores(range(30)))

    with Child(body) as child:
        assert child.wait() == 0
    assert active(index) == 30 and index.workers() == []
    with index.writer() as writer:
        assert apply(writer, first_stores(range(10, 40))) == [OK] * 30
        index.recover()
        assert active(index) == 30
