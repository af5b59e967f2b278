"""Lanes: seats that die with their process, what a seat notices, and the registration lock."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from shmtrie.capacity import Capacity
from shmtrie.errors import (
    LaneUnavailable,
    SegmentPermission,
    StaleHandle,
)
from shmtrie.laneinfo import holder_alive, lane_info
from shmtrie.lanes import LaneSeat, registry_lock
from shmtrie.layout import LANE_ACTIVE, LANE_FREE, M32, PHASE_IDLE, PHASE_REDO, PHASE_UNDO
from shmtrie.segment import Segment
from tests.system.children import CLONE_NEWPID, Child, open_descriptors, outcome, unshare, wait_until

SMALL = Capacity(blocks=100, workers=4, lanes=4, extents=1)
SHM = Path("/dev/shm")


@pytest.fixture
def segment(segment_name: Callable[[], str]) -> Iterator[Segment]:
    """A small segment, attached for writing."""
    with Segment.create(segment_name(), SMALL) as made:
        yield made
        (SHM / made.name).unlink(missing_ok=True)


@pytest.fixture
def reader(segment: Segment) -> Iterator[Segment]:
    """The same, attached read-only."""
    with Segment.attach(segment.name) as attached:
        yield attached


def active_seat(segment: Segment, lane: int | None = None) -> LaneSeat:
    seat = LaneSeat.take(segment, lane)
    seat.activate()
    return seat


def holder(segment: Segment, lane: int | None = None) -> Callable[[Connection], None]:
    """Body of a child that holds an active lane, says which, and gives it back when told to."""

    def body(connection: Connection) -> None:
        seat = active_seat(segment, lane)
        connection.send(seat.lane)
        connection.recv()
        seat.leave()

    return body


def state_of(segment: Segment, lane: int) -> int:
    return int(segment.view("lanes")["state"][lane])


# ------------------------------------------------------------------------------------------------ take, leave
def test_life_of_a_seat(segment: Segment, reader: Segment) -> None:
    seat = LaneSeat.take(segment)
    assert seat.lane == 0 and not seat.was_dead and state_of(reader, 0) == LANE_FREE
    assert lane_info(reader, 0).describe() == "lane 0: being taken or recovered"
    seat.activate()
    seat.check()
    info = lane_info(reader, 0)
    assert info.active and info.alive and info.idle and info.generation == seat.generation == 1
    assert info.pid == os.getpid() and info.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    assert info.start_time == int(ticks)
    assert abs(time.time_ns() - info.joined_ns) < 60e9
    seat.leave()
    seat.leave()
    info = lane_info(reader, 0)
    assert not info.active and not info.alive and not holder_alive(reader, 0)
    with pytest.raises(StaleHandle):
        seat.check()
    with pytest.raises(StaleHandle):
        seat.activate()
    with active_seat(segment) as again:
        assert again.lane == 0 and not again.was_dead and again.generation == 2


def test_lowest_free_lane(segment: Segment) -> None:
    seats = [active_seat(segment) for _ in range(4)]
    assert [seat.lane for seat in seats] == [0, 1, 2, 3]
    seats[2].leave()
    seats[1].leave()
    assert [active_seat(segment).lane, LaneSeat.take(segment, 2).lane] == [1, 2]


def test_taken_twice(segment: Segment) -> None:
    with active_seat(segment, 3):
        with pytest.raises(LaneUnavailable, match=f"lane 3: process {os.getpid()}"):
            LaneSeat.take(segment, 3)
        with Child(lambda connection: outcome(lambda: LaneSeat.take(segment, 3))) as child:
            assert child.hear() == "LaneUnavailable"
        with Segment.attach(segment.name, read_only=False) as other:
            assert outcome(lambda: LaneSeat.take(other, 3)) == "LaneUnavailable"


def test_all_taken_names_the_holders(segment: Segment) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(Child(holder(segment))) for _ in range(4)]
        for child in children:
            child.hear()
        before = open_descriptors()
        with pytest.raises(LaneUnavailable) as caught:
            LaneSeat.take(segment)
        assert open_descriptors() == before
        assert all(str(child.pid) in str(caught.value) for child in children)
        children[2].say()
        assert children[2].wait() == 0
        LaneSeat.take(segment).leave()


@pytest.mark.parametrize("lane", [-1, 4, 48])
def test_lanes_that_do_not_exist(segment: Segment, lane: int) -> None:
    for call in (LaneSeat.take, holder_alive, lane_info):
        with pytest.raises(ValueError, match="lanes 0 to 3"):
            call(segment, lane)


def test_needs_a_writable_segment(segment: Segment, reader: Segment) -> None:
    with pytest.raises(SegmentPermission):
        LaneSeat.take(reader)
    with pytest.raises(SegmentPermission), registry_lock(reader, 0, 1.0):
        pass
    segment.close()
    with pytest.raises(StaleHandle):
        LaneSeat.take(segment)


def test_seat_outlives_the_handle_and_the_name(segment: Segment, reader: Segment) -> None:
    seat = active_seat(segment)
    Segment.unlink(segment.name)
    with LaneSeat.take(segment) as second:  # of an unlinked segment
        assert second.lane == 1
    segment.close()
    seat.check()
    assert holder_alive(reader, 0)
    seat.leave()
    assert state_of(reader, 0) == LANE_FREE and not holder_alive(reader, 0)


def test_generation_skips_zero(segment: Segment) -> None:
    segment.view("lanes")["generation"][0] = M32
    with active_seat(segment) as seat:
        assert seat.generation == int(segment.view("lanes")["generation"][0]) == 1


def test_seats_leak_nothing(segment: Segment) -> None:
    gc.collect()
    before = open_descriptors()
    for _ in range(20):
        active_seat(segment).leave()
        LaneSeat.take(segment, 1)  # dropped
        with registry_lock(segment, 0, 1.0):
            pass
    gc.collect()
    assert open_descriptors() == before


# ------------------------------------------------------------------------------------------------ death
def test_killed_holder(segment: Segment, reader: Segment) -> None:
    with Child(holder(segment)) as child:
        assert child.hear() == 0
        assert holder_alive(reader, 0) and outcome(lambda: LaneSeat.take(segment, 0)) == "LaneUnavailable"
        child.kill()
        assert not holder_alive(reader, 0)
        info = lane_info(reader, 0)
        assert info.active and not info.alive and info.describe() == f"lane 0: process {child.pid}, dead"
    seat = LaneSeat.take(segment)
    assert seat.lane == 0 and seat.was_dead
    seat.check()
    seat.recovered()
    assert not seat.was_dead and state_of(reader, 0) == LANE_FREE
    seat.activate()
    assert seat.generation == 2
    seat.leave()
    assert not LaneSeat.take(segment).was_dead


def test_zombie_does_not_hold(segment: Segment) -> None:
    with Child(holder(segment)) as child:
        child.hear()
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: not holder_alive(segment, 0), "end of the lock")  # nobody has reaped it


def test_who_does_not_recover_leaves_it_dead(segment: Segment) -> None:
    with Child(holder(segment)) as child:
        child.hear()
        child.kill()
    LaneSeat.take(segment).leave()
    assert LaneSeat.take(segment).was_dead
    gc.collect()
    assert LaneSeat.take(segment, 0).was_dead


@pytest.mark.parametrize("phase", [PHASE_UNDO, PHASE_REDO | 77 << 8])
def test_open_operation_is_dead_whatever_the_state(segment: Segment, phase: int) -> None:
    words = segment.view("lanes")["phase"]
    words[0] = phase
    seat = LaneSeat.take(segment)
    assert seat.was_dead and not lane_info(segment, 0).idle
    for use in (seat.activate, seat.recovered):
        with pytest.raises(RuntimeError, match="recover"):
            use()
    words[0] = PHASE_IDLE | 78 << 8
    seat.recovered()
    seat.activate()
    words[0] = phase
    seat.leave()  # an operation is open: the next holder has to see it
    assert state_of(segment, 0) == LANE_ACTIVE and LaneSeat.take(segment, 0).was_dead


def test_dropped_seat_counts_as_dead(segment: Segment) -> None:
    active_seat(segment)
    gc.collect()
    assert not holder_alive(segment, 0) and LaneSeat.take(segment).was_dead


def test_exit_without_leave_counts_as_dead(segment: Segment) -> None:
    with Child(lambda connection: active_seat(segment, 2).lane) as child:
        assert child.wait() == 0
    assert LaneSeat.take(segment, 2).was_dead


def test_stopped_holder_keeps_its_seat(segment: Segment) -> None:
    with Child(holder(segment)) as child:
        child.hear()
        child.stop()
        assert holder_alive(segment, 0) and outcome(lambda: LaneSeat.take(segment, 0)) == "LaneUnavailable"
        child.resume()
        child.say()
        assert child.wait() == 0
    assert not LaneSeat.take(segment, 0).was_dead


def test_pids_prove_nothing(segment: Segment) -> None:
    lanes = segment.view("lanes")
    lanes["state"][0], lanes["pid"][0] = (
        LANE_ACTIVE,
        os.getppid(),
    )  # a reused pid: it lives, but holds nothing
    assert not holder_alive(segment, 0) and LaneSeat.take(segment).was_dead
    with Child(holder(segment, 1)) as child:
        child.hear()
        lanes["pid"][1] = 2**22 + 1  # no such process
        assert holder_alive(segment, 1) and outcome(lambda: LaneSeat.take(segment, 1)) == "LaneUnavailable"


def test_many_deaths_one_heir_each(segment: Segment) -> None:
    """Of several that wait for a dead lane one gets it, and it alone sees the death."""

    def heir(connection: Connection) -> None:
        connection.send(None)
        for _ in iter(connection.recv, None):
            try:
                seat = active = LaneSeat.take(segment, 0)
            except LaneUnavailable:
                connection.send(None)
                continue
            connection.send(seat.was_dead)
            active.activate()
            os.kill(os.getpid(), signal.SIGKILL)

    with ExitStack() as stack:
        dead = False
        for _ in range(8):
            heirs = [stack.enter_context(Child(heir)) for _ in range(3)]
            for child in heirs:
                child.hear()
            for child in heirs:
                child.say(1)
            answers = [child.hear() for child in heirs]
            winners = [child for child, answer in zip(heirs, answers, strict=True) if answer is not None]
            # one after the other, in whatever order: each but the very first inherits from a dead one
            assert winners and sorted(a for a in answers if a is not None) == [dead] + [True] * (
                len(winners) - 1
            )
            dead = True
            for child in winners:
                assert child.wait() == -signal.SIGKILL


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a pid namespace")
def test_holder_in_another_pid_namespace(segment: Segment) -> None:
    def outer(connection: Connection) -> int | None:
        if not unshare(CLONE_NEWPID):
            return None
        with Child(holder(segment)) as inner:  # process 1 of the new namespace
            inner.hear()
            connection.send(int(segment.view("lanes")["pid"][0]))
            connection.recv()
            inner.kill()
        return 0

    with Child(outer) as child:
        pid = child.hear()
        if pid is None:
            pytest.skip("not allowed to unshare")
        info = lane_info(segment, 0)
        assert pid == info.pid == 1 and info.alive
        with pytest.raises(LaneUnavailable, match="process 1 of another pid namespace"):
            LaneSeat.take(segment, 0)
        child.say()
        assert child.hear() == 0
    assert LaneSeat.take(segment, 0).was_dead
