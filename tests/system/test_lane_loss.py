"""Seats that are lost to a closed descriptor, forked handles, and the registration lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from shmtrie.capacity import Capacity
from shmtrie.errors import (
    Busy,
    LaneLost,
)
from shmtrie.laneinfo import holder_alive
from shmtrie.lanes import LaneSeat, registry_lock
from shmtrie.layout import LANE_ACTIVE
from shmtrie.segment import Segment
from tests.system.children import Child, open_descriptors, outcome

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


# ------------------------------------------------------------------------------------------------ lost
@pytest.mark.parametrize("replaced_by", ["nothing", "other file", "same file"])
def test_descriptor_closed_behind_our_back(segment: Segment, replaced_by: str) -> None:
    seat = active_seat(segment)
    number = seat._file.descriptor
    assert number >= 512
    os.close(number)
    assert not holder_alive(segment, 0)
    if replaced_by != "nothing":
        temporary = os.open("/dev/null" if replaced_by == "other file" else segment.path, os.O_RDWR)
        os.dup2(temporary, number)
        os.close(temporary)
    for use in (seat.check, seat.activate):
        with pytest.raises(LaneLost, match="lane 0"):
            use()
    heir = LaneSeat.take(segment, 0)
    assert heir.was_dead
    heir.activate()
    seat.leave()  # changes nothing: the lane is another one's
    assert state_of(segment, 0) == LANE_ACTIVE
    heir.check()
    if replaced_by != "nothing" and heir._file.descriptor != number:
        os.close(number)  # was not closed by the seat, which did not open it
    heir.leave()


def test_new_seat_on_the_number_of_the_old_one(segment: Segment) -> None:
    seat = active_seat(segment, 0)
    os.close(seat._file.descriptor)
    other = active_seat(segment, 1)
    assert other._file.descriptor == seat._file.descriptor
    with pytest.raises(LaneLost):
        seat.check()
    seat.leave()
    other.check()
    assert holder_alive(segment, 1) and not holder_alive(segment, 0)


def test_generation_moved(segment: Segment) -> None:
    seat = active_seat(segment)
    segment.view("lanes")["generation"][0] += 1
    with pytest.raises(LaneLost, match="taken over"):
        seat.check()
    seat.leave()
    assert state_of(segment, 0) == LANE_ACTIVE


# ------------------------------------------------------------------------------------------------ fork
def test_forked_child_has_no_seat(segment: Segment) -> None:
    seat = active_seat(segment)

    def body(connection: Connection) -> list[str]:
        seen = [outcome(seat.check), outcome(seat.activate)]
        seat.leave()
        connection.send(seen)
        connection.recv()
        return [
            outcome(lambda: LaneSeat.take(segment, 0)),
            outcome(lambda: LaneSeat.take(segment, 1).leave()),
        ]

    with Child(body) as child:
        assert child.hear() == ["ForkedHandle", "ForkedHandle"]
        seat.check()
        assert state_of(segment, 0) == LANE_ACTIVE and holder_alive(segment, 0)
        child.say()
        assert child.hear() == ["LaneUnavailable", "ok"]
        assert child.wait() == 0
    seat.check()
    seat.leave()


def test_child_of_a_child(segment: Segment) -> None:
    seat = active_seat(segment)

    def inner(connection: Connection) -> tuple[str, str]:
        own = active_seat(segment)
        with Child(lambda connection: (outcome(seat.check), outcome(own.check))) as child:
            found: tuple[str, str] = child.hear()
        own.check()
        return found

    with Child(inner) as child:
        assert child.hear() == ("ForkedHandle", "ForkedHandle")


def test_child_does_not_keep_the_seat_of_a_dead_parent(segment: Segment) -> None:
    """Forks beside threads that take and leave seats all the time: no child keeps a lock alive."""

    def parent(connection: Connection) -> None:
        stop = threading.Event()

        def churn() -> None:
            while not stop.is_set():
                seat = active_seat(segment)
                with registry_lock(segment, 0, 10.0):
                    pass
                seat.leave()

        keep = active_seat(segment)
        threads = [threading.Thread(target=churn, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        children = []
        for _ in range(25):
            children.append(Child(lambda there: there.poll(30.0)))
        keep.check()
        connection.send([child.pid for child in children])
        connection.recv()

    with Child(parent) as child:
        orphans = child.hear()
        try:
            child.kill()
            assert all(Path(f"/proc/{pid}").exists() for pid in orphans)
            # A child that has not run since its fork closes what it inherited when it does.
            deadline = time.monotonic() + 20.0
            while any(holder_alive(segment, lane) for lane in range(4)) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not any(holder_alive(segment, lane) for lane in range(4))
            with registry_lock(segment, 0, 20.0):
                pass
        finally:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)


def test_exec_lets_go(segment: Segment) -> None:
    seat = active_seat(segment)
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; print('here', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=False,
    ) as program:
        try:
            assert program.stdout is not None and program.stdout.readline() == b"here\n"
            os.close(seat._file.descriptor)  # as a death would
            assert not holder_alive(segment, 0)
        finally:
            program.kill()


# ------------------------------------------------------------------------------------------------ registry
def test_registry_lock_excludes(segment: Segment) -> None:
    counter = segment.view("rank_states")["blocks"]

    def count(connection: Connection) -> None:
        for _ in range(100):
            with registry_lock(segment, 0, 30.0):
                value = int(counter[0])
                os.sched_yield()
                counter[0] = value + 1

    with ExitStack() as stack:
        children = [stack.enter_context(Child(count)) for _ in range(4)]
        assert [child.wait() for child in children] == [0] * 4
    assert int(counter[0]) == 400


def test_registry_lock_times_out(segment: Segment) -> None:
    def hold(connection: Connection) -> None:
        with registry_lock(segment, 0, 1.0):
            connection.send(None)
            connection.recv()

    with Child(hold) as child:
        child.hear()
        child.stop()
        before = open_descriptors()
        for timeout in (0.0, 0.1):
            start = time.monotonic()
            with pytest.raises(Busy, match="lane 0"), registry_lock(segment, 0, timeout):
                pass
            assert time.monotonic() - start >= timeout
        assert open_descriptors() == before
        child.kill()
    with registry_lock(segment, 0, 0.0), pytest.raises(Busy), registry_lock(segment, 0, 0.0):
        pass  # not re-entrant
    with pytest.raises(KeyError), registry_lock(segment, 0, 0.0):
        raise KeyError
    with registry_lock(segment, 0, 0.0):
        pass


def test_fork_inside_the_registry_lock(segment: Segment) -> None:
    def busy(connection: Connection) -> str:
        try:
            with registry_lock(segment, 0, 0.0):
                return "locked"
        except Busy:
            return "Busy"

    with registry_lock(segment, 0, 1.0), Child(busy) as child:
        assert child.hear() == "Busy"
    with registry_lock(segment, 0, 1.0):
        child = Child(lambda connection: connection.poll(30.0))
    with child, registry_lock(segment, 0, 0.0):
        pass  # it was not kept by the child
