"""Dead lanes beside living ones: what a rank's next writer, a removal and a newcomer find."""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

import shmtrie.bytelock as bytelock
import shmtrie.ranks
from shmtrie.capacity import Capacity
from shmtrie.errors import Busy
from shmtrie.index import Index
from shmtrie.kernels import growth
from shmtrie.laneinfo import owner_alive
from shmtrie.lanes import LaneSeat, registry_lock
from shmtrie.layout import LANE_RECOVERING, SLOT_ACTIVE, SLOT_DYING
from shmtrie.segment import Segment
from tests.hooks import die
from tests.system.index_tools import assert_valid, interrupted, open_index, scores, status_of


@pytest.fixture
def index() -> Iterator[Index]:
    """A small index that ends valid."""
    with open_index() as made:
        yield made
        assert_valid(made)


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
            with registry_lock(index.segment, 0, 1.0):
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
    local = np.arange(8_000, dtype=np.uint64)
    with index.writer() as keeper, index.writer() as writer, index.writer() as remover:
        keeper.store(5, None, local, local)  # the nodes stay
        sizes = []
        for turn in range(160):
            external = local + np.uint64(10_000) if own_hashes else local
            writer.store(1, None, local, external)
            remover.remove_worker(1)
            if turn % 20 == 19:
                context = writer._work.context
                sizes.append(sum(array.nbytes for array in context.owners()))
        assert max(sizes) <= 1.2 * sizes[2], sizes
        writer.store(1, None, local, external)
        assert scores(index, local) == {(1, 0): 8_000, (5, 0): 8_000}
        writer.remove(1, external[::-1])
        assert scores(index, local) == {(5, 0): 8_000}


@pytest.mark.parametrize("n", [500, 3_000, 3_584, 5_000])
@pytest.mark.parametrize("own_hashes", [False, True])
def test_a_split_chain_is_taken_over(own_hashes: bool, n: int) -> None:
    """A suffix is come by along the chain and by its id; the table is full when it comes the second time."""
    local = np.arange(1, n + 1, dtype=np.uint64)
    external = local + np.uint64(1_000_000)
    mine = external + np.uint64(1_000_000 if own_hashes else 0)
    with open_index(Capacity(blocks=40_000, workers=8, lanes=4)) as index:
        with index.writer() as a, index.writer() as b, index.writer() as c:
            b.store(2, None, local, external)
            a.store(1, None, local, mine)
            for at in range(100, n, 450):
                b.store(2, int(external[at]), [1 << 40], [1 << 41 | at])
            a.release(1)
            c.remove(1, mine[-1:])
            assert scores(index, local) == {(1, 0): n - 1, (2, 0): n}
            assert {tuple(i.worker): i.blocks for i in index.workers()}[1, 0] == n - 1
            c.store(1, int(mine[-2]), [7], [7])
            c.remove(1, mine[::-1])
            assert scores(index, local) == {(2, 0): n}
        assert_valid(index)


def test_a_refused_rank_gives_no_slot_away_that_is_another_ranks(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot was freed, and given to another rank, while the refusal waited for the registry."""
    count = index.segment.view("nodes")["count"]
    with index.writer(patience=0) as a, index.writer() as b:
        taken = []

        @contextmanager
        def lock(segment: Segment, lane: int, timeout: float, *spare: Any) -> Iterator[None]:
            taken.append(1)
            if len(taken) == 2:
                monkeypatch.setattr(shmtrie.ranks, "registry_lock", registry_lock)
                count[0] &= np.uint64(2**32 - 1)
                b.remove_worker(1)
                b.store(7, None, [1, 2, 3], [1, 2, 3])
            with registry_lock(segment, lane, timeout, *spare):
                yield

        monkeypatch.setattr(shmtrie.ranks, "registry_lock", lock)
        count[0] |= np.uint64(40 << 32)  # the root's space is locked by somebody
        with pytest.raises(Busy):
            a.store(1, None, [1, 2], [1, 2])
        assert len(taken) == 2
        b.store(9, None, [50], [50])
        assert scores(index, [1, 2, 3]) == {(7, 0): 3} and scores(index, [50]) == {(9, 0): 1}


def test_what_a_writer_had_to_leave_is_done_by_the_next_in_its_seat(index: Index) -> None:
    """The space of the root was locked by a stopped process when it closed."""
    count = index.segment.view("nodes")["count"]
    writer = index.writer(patience=0)
    writer.store(1, None, [5], [5])
    count[0] |= np.uint64(40 << 32)
    writer.remove(1, [5])
    writer.close()
    count[0] &= np.uint64(2**32 - 1)
    assert index.verify().counts["nodes"] == 1
    with index.writer():
        assert index.verify().counts["nodes"] == 0


def test_an_interrupt_while_a_table_grows_loses_nothing(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old table is in force again."""
    with index.writer() as writer:
        local = list(range(1_000))
        writer.store(1, None, local, local)

        def interrupted(*arguments: int) -> int:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(growth, "lookup_move", interrupted)
            patch.setattr(growth, "lookup_carry", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer._work.context.grow(1_000_000, 0)
        writer.remove(1, local[500:])
        assert scores(index, local) == {(1, 0): 500}


@pytest.mark.parametrize(("hashes", "least"), [([2], 3), (array("Q", [2]), 50)], ids=["builtin", "around"])
def test_an_interrupt_anywhere_in_a_call_leaves_a_writer_that_can_be_closed(
    index: Index, hashes: Any, least: int
) -> None:
    """Where the lock was let go by Python code, every twentieth Ctrl-C left it locked and `close` waiting."""
    for steps in itertools.count(1):
        writer = index.writer()
        writer.store(1, None, [1], [1])
        enough = interrupted(partial(writer.store, 1, 1, hashes, hashes), steps)
        assert not writer._work._turn.locked(), f"after {steps} steps"
        writer.close()
        if not enough:
            assert steps > least
            break
    assert scores(index, [1, 2]) == {(1, 0): 2}


def test_closing_inside_of_a_call_is_refused(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that closed the writer, or its index, waited for the call that it had interrupted."""
    with index.writer() as writer:
        ranks, refused = writer._work.ranks, []

        def handled(parts: Any) -> Any:
            for _ in range(2):
                with pytest.raises(RuntimeError, match="inside of one of its calls") as caught:
                    writer.close()
                refused.append(caught)
            monkeypatch.undo()
            return ranks.admit(parts)

        monkeypatch.setattr(ranks, "admit", handled)
        writer.store(1, None, [1], [1])
        assert len(refused) == 2 and scores(index, [1]) == {(1, 0): 1}
        writer.remove(1, [1])
        writer.close()
        assert status_of(writer.store, 1, None, [1], [1]) == "StaleHandle"


def test_a_lane_that_is_recovered_and_taken_while_we_look_owns_nothing(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder lives then, and it is another one: a storm found the rank refused as owned by it."""
    dead, newcomers = index.writer(), []
    with index.writer() as writer:
        dead.store(1, None, [1], [1])
        lane = die(dead)

        def late(segment: Segment, owner: int) -> bool:
            newcomers.append(index.writer())
            assert newcomers[0].lane == owner == lane
            monkeypatch.undo()
            return owner_alive(segment, owner)

        monkeypatch.setattr(shmtrie.ranks, "owner_alive", late)
        writer.store(1, 1, [2], [2])
        newcomers[0].close()
    assert len(newcomers) == 1 and scores(index, [1, 2]) == {(1, 0): 2}
