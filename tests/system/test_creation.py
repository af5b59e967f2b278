"""Making and finding segments while others do, die, stop, or have left something else under the name."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from shmtrie import creation, shmfile
from shmtrie.bytelock import LockFile
from shmtrie.capacity import Capacity
from shmtrie.errors import SegmentNoSpace, SegmentNotFound
from shmtrie.layout import LOCK_CREATOR
from shmtrie.segment import Segment
from tests.system.children import Child, open_descriptors, outcome, wait_until
from tests.system.creators import LEFTOVERS, create, race_attachers, race_creators, race_unlinkers

SMALL = Capacity(blocks=100, workers=4, lanes=1, extents=1)
SHM = Path("/dev/shm")


@pytest.fixture
def name(segment_name: Callable[[], str]) -> Iterator[str]:
    """A name that is free, and is free again after the test."""
    free = segment_name()
    yield free
    (SHM / free).unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------ races
@pytest.mark.parametrize("leftover", ["", *LEFTOVERS])
@pytest.mark.parametrize("exist_ok", [False, True])
def test_sixteen_creators(name: str, exist_ok: bool, leftover: str) -> None:
    if leftover == "stale" and not exist_ok:
        pytest.skip("it is not replaced unasked")
    race_creators(name, 16, 4 if leftover == "empty" else 12, exist_ok, leftover)


def test_attachers_beside_unlink_and_create(name: str) -> None:
    race_attachers(name, 3, 150)


def test_two_who_create_and_unlink(name: str) -> None:
    race_unlinkers(name, 2, 100)


# ------------------------------------------------------------------------------------------------ deaths
def signal_at(step: int, number: int) -> Callable[[], int]:
    """Make the n-th system call of a creation send this process a signal first; the counter of calls."""
    done = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal done
            done += 1
            if done == step:
                os.kill(os.getpid(), number)
            return function(*arguments, **named)

        return call

    for place, attribute in (
        (creation, "shm_open"),
        (creation, "is_named"),
        (creation, "check_room"),
        (os, "fchmod"),
        (os, "pwrite"),
        (os, "posix_fallocate"),
        (LockFile, "try_lock"),
        (LockFile, "unlock"),
    ):
        setattr(place, attribute, counted(getattr(place, attribute)))
    return lambda: done


def creator(name: str, step: int, number: int) -> Callable[[Connection], tuple[str, int]]:
    def body(connection: Connection) -> tuple[str, int]:
        calls = signal_at(step, number)
        return create(name), calls()

    return body


def points(name: str) -> int:
    """Number of points of a creation at which it can be killed."""
    with Child(creator(name, 0, 0)) as child:
        made, calls = child.hear()
    Segment.unlink(name)
    assert len(made) == 36 and calls >= 12
    return int(calls)


def test_creator_killed_at_every_point(name: str) -> None:
    seen: Counter[str] = Counter()
    for step in range(1, points(name) + 1):
        with Child(creator(name, step, signal.SIGKILL)) as child:
            assert child.wait() == -signal.SIGKILL
        there = (SHM / name).exists()
        found = outcome(lambda: Segment.attach(name, timeout=5.0))
        seen[found] += 1
        if found == "ok":
            assert create(name) == "SegmentExists"
        else:
            assert found == ("SegmentCorrupt" if there else "SegmentNotFound")
            assert len(create(name, exist_ok=bool(step % 2))) == 36
        assert outcome(lambda: Segment.attach(name)) == "ok"
        Segment.unlink(name)
    assert seen["SegmentNotFound"] == 1 and seen["ok"] == 1 and seen["SegmentCorrupt"] >= 9


def test_dead_creation_is_listed_and_can_be_unlinked(name: str) -> None:
    with Child(creator(name, points(name) - 3, signal.SIGKILL)) as child:
        child.wait()
    assert name in Segment.list()
    Segment.unlink(name)
    assert not (SHM / name).exists()


def test_creator_stopped_at_every_point(name: str) -> None:
    for step in range(1, points(name) + 1):
        with Child(creator(name, step, signal.SIGSTOP)) as child:
            child.wait_stopped()
            there = (SHM / name).exists()
            empty = there and not (SHM / name).stat().st_size
            found = outcome(lambda: Segment.attach(name, timeout=0.05))
            second = create(name, timeout=0.05)
            if not there:  # it had not begun
                assert found == "SegmentNotFound" and len(second) == 36
            elif empty and len(second) == 36:  # it had no lock yet, so the other one took over
                assert found == "SegmentCorrupt"
            else:
                assert found in ("SegmentNotFound", "ok") and second == "SegmentExists"
            child.resume()
            first, _ = child.hear()
            assert child.wait() == 0
            assert sorted(map(len, (first, second))) == [len("SegmentExists"), 36], "one of the two has it"
            with Segment.attach(name) as segment:
                assert str(segment.uuid) == max(first, second, key=len)
        Segment.unlink(name)


def test_attacher_waits_for_a_creator(name: str) -> None:
    step = points(name) - 1  # `ready` is not stored yet
    with Child(creator(name, step, signal.SIGSTOP)) as child:
        child.wait_stopped()

        def attach(connection: Connection) -> str:
            connection.send(None)
            with Segment.attach(name, timeout=30.0) as found:
                return str(found.uuid)

        def create_or_attach(connection: Connection) -> str:
            connection.send(None)
            return create(name, exist_ok=True, timeout=30.0)

        with Child(attach) as one, Child(create_or_attach) as two:
            for waiting in (one, two):
                waiting.hear()
                assert not waiting.connection.poll(0.05)
            child.resume()
            assert child.hear()[0] == one.hear() == two.hear()


def test_attach_times_out(name: str) -> None:
    with Child(creator(name, points(name) - 1, signal.SIGSTOP)) as child:
        child.wait_stopped()
        for timeout in (0.0, 0.1):
            start = time.monotonic()
            with pytest.raises(SegmentNotFound, match="being created"):
                Segment.attach(name, timeout=timeout)
            assert time.monotonic() - start >= timeout
        assert create(name, exist_ok=True, timeout=0.1) == "SegmentNotFound"


def test_unlink_of_a_stopped_creation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shmfile, "_REMOVE_WAIT", 0.1)
    with Child(creator(name, points(name) - 1, signal.SIGSTOP)) as child:
        child.wait_stopped()
        Segment.unlink(name)
        assert not (SHM / name).exists()
        second = create(name)
        assert len(second) == 36
        child.resume()
        assert child.hear()[0] != second  # its segment has no name
        with Segment.attach(name) as found:
            assert str(found.uuid) == second


def test_wait_ends_when_the_creation_is_unlinked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shmfile, "_REMOVE_WAIT", 0.1)
    with Child(creator(name, points(name) - 1, signal.SIGSTOP)) as child:
        child.wait_stopped()

        def attach(connection: Connection) -> str:
            connection.send(None)
            return outcome(lambda: Segment.attach(name, timeout=60.0))

        with Child(attach) as waiting:
            waiting.hear()
            Segment.unlink(name)
            assert waiting.hear() == "SegmentNotFound"


def test_failed_creation_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    before = open_descriptors()
    for function in ("fchmod", "pwrite", "posix_fallocate"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, interrupted)
            with pytest.raises(KeyboardInterrupt):
                Segment.create(name, SMALL)
        assert not (SHM / name).exists() and open_descriptors() == before


@pytest.mark.parametrize("step", [1, 2])
def test_no_memory_in_the_middle(name: str, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """At the first page, at what is cleared: the same error, and nothing is left."""
    write, calls = os.pwrite, 0

    def full(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == step:
            raise OSError(errno.ENOSPC, "no space")
        return write(*arguments)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SegmentNoSpace):
        Segment.create(name, SMALL)
    assert not (SHM / name).exists()


def test_creator_byte_is_free_afterwards(name: str) -> None:
    with Segment.create(name, SMALL) as segment:
        assert not segment.is_locked(LOCK_CREATOR)
        with Child(lambda connection: segment.is_locked(LOCK_CREATOR)) as child:
            assert child.hear() is False
        wait_until(lambda: not segment.is_locked(LOCK_CREATOR), timeout=1.0)
