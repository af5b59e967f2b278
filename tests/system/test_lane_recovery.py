"""Dead lanes beside living ones: what a rank's next writer, a removal and a newcomer find."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import shmtrie.bytelock as bytelock
from shmtrie.errors import Busy
from shmtrie.index import Index
from shmtrie.laneinfo import owner_alive
from shmtrie.lanes import LaneSeat, registry_lock
from shmtrie.layout import LANE_RECOVERING, LOCK_LANE, SLOT_ACTIVE, SLOT_DYING
from shmtrie.writer import Writer
from tests.system.index_tools import assert_valid, open_index, scores


@pytest.fixture
def index() -> Iterator[Index]:
    """A small index that ends valid."""
    with open_index() as made:
        yield made
        assert_valid(made)


def die(writer: Writer) -> int:
    """End a writer as a kill between two operations would; its lane."""
    seat = writer._work.seat
    writer._closed = seat._left = True
    seat._file.close(LOCK_LANE + seat.lane)
    return seat.lane


def dying(index: Index) -> int:
    """Slots that are being removed."""
    return int(np.count_nonzero(index.segment.view("rank_states")["state"] & np.uint64(0xFF) == SLOT_DYING))


def test_a_lane_that_is_being_recovered_owns_nothing(index: Index) -> None:
    """Its ranks are busy for a moment, not somebody else's."""
    dead = index.writer()
    dead.store(1, None, [1, 2], [1, 2])
    lane = die(dead)
    recoverer = LaneSeat.take(index.segment, lane)
    assert recoverer.was_dead and not owner_alive(index.segment, lane)
    assert int(index.segment.view("lanes")["state"][lane]) == LANE_RECOVERING
    with index.writer(patience=0.01) as other:
        assert other.lane != lane
        with pytest.raises(Busy, match="recovered"):
            other.store(1, 2, [3], [3])
        recoverer.leave()  # the recoverer dies as well
        other.store(1, 2, [3], [3])
        assert scores(index, [1, 2, 3]) == {(1, 0): 3}


def test_an_owner_is_alive_until_it_is_dead(index: Index) -> None:
    writer = index.writer()
    assert owner_alive(index.segment, writer.lane)
    lane = die(writer)
    assert not owner_alive(index.segment, lane)
    with LaneSeat.take(index.segment, lane):
        assert not owner_alive(index.segment, lane)


def test_a_lane_that_is_just_being_taken_is_passed_over(index: Index) -> None:
    """Two takers of one seat: the second looks for another, and finds it busy only by name."""
    with LaneSeat.take(index.segment) as first, LaneSeat.take(index.segment) as second:
        assert first.lane != second.lane


def test_removal_waits_for_no_dead_lane(index: Index) -> None:
    """A lane died in the middle of an operation: the removal ends that, and frees the slots."""
    with index.writer(patience=5) as remover:
        dead = index.writer()
        dead.store(1, None, [1, 2], [1, 2])
        index.segment.view("lanes")["op_counter"][dead.lane] += 1
        die(dead)
        remover.remove_worker(1)
        assert dying(index) == 0 and scores(index, [1, 2]) == {}
        remover.store(1, None, [1], [1])
        assert scores(index, [1, 2]) == {(1, 0): 1}


def test_a_writer_opens_beside_a_busy_registry(index: Index) -> None:
    """What an earlier removal had to leave is swept at the next occasion; it keeps nobody from writing."""
    with index.writer() as first:
        first.store(1, None, [1, 2], [1, 2])
        index.segment.view("rank_states")["state"][0] += SLOT_DYING - SLOT_ACTIVE
        index.segment.header["epoch"] += 1
        held, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            with registry_lock(index.segment, 1.0):
                held.set()
                let_go.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        try:
            assert held.wait(60)
            with index.writer(patience=0.01) as second:
                assert dying(index) == 1
                let_go.set()
                holder.join()
                second.remove_worker(77)
                assert dying(index) == 0
        finally:
            let_go.set()
            holder.join()


def test_a_slot_whose_first_store_was_cut_off_is_given_to_another(index: Index) -> None:
    """It shows nothing, and is free when slots run out."""
    with index.writer() as writer:
        for worker in range(8):
            writer.store(worker, None, [worker], [worker])
        states = index.segment.view("rank_states")
        writer.remove_worker(3)
        dead = index.writer()
        dead.store(3, None, [3], [3])
        slot = int(np.flatnonzero(index.segment.view("rank_records")["worker_id"] == 3)[0])
        dead.remove(3, [3])
        states["known"][slot] = 0  # as a death before the commit leaves it
        die(dead)
        with index.writer():  # takes the dead lane
            assert 3 not in {info.worker.worker_id for info in index.workers()}
            writer.store(99, None, [9], [9])
            assert scores(index, [9]) == {(99, 0): 1}


def test_files_collected_during_a_fork_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection in the child closes files of its own accord while the list of them is gone through."""
    carriers = {10_000 + k: k for k in range(8)}
    monkeypatch.setattr(bytelock, "_carriers", carriers)
    monkeypatch.setattr(bytelock, "_forks", bytelock._forks)

    def look(descriptor: int) -> int:
        carriers.pop(descriptor + 1, None)
        return -1

    monkeypatch.setattr(bytelock, "_mark_of", look)
    bytelock._opening.acquire()
    bytelock._after_fork_in_child()
    assert not carriers


@pytest.mark.parametrize("own_hashes", [False, True])
def test_lookup_stays_as_large_as_what_is_held(index: Index, own_hashes: bool) -> None:
    """Ranks that another lane removes, and that come back, leave entries behind: they go at a rehash."""
    local = list(range(200))
    with index.writer() as keeper, index.writer() as writer, index.writer() as remover:
        keeper.store(5, None, local, local)  # the nodes stay
        sizes = []
        for turn in range(160):
            external = [10_000 + h for h in local] if own_hashes else local
            writer.store(1, None, local, external)
            remover.remove_worker(1)
            if turn % 20 == 19:
                context = writer._work.context
                sizes.append(sum(array.nbytes for array in context._owned.values()))
        assert max(sizes) <= sizes[2], sizes
        writer.store(1, None, local, external)
        assert scores(index, local) == {(1, 0): 200, (5, 0): 200}
        writer.remove(1, external[::-1])
        assert scores(index, local) == {(5, 0): 200}
