"""Single steps of making and removing segments, with another process's step put exactly in between."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from shmtrie import creation, shmfile
from shmtrie.bytelock import LockFile
from shmtrie.capacity import Capacity
from shmtrie.creation import Stage, remove_dead, settle, stage_of
from shmtrie.header import unfinished_page
from shmtrie.layout import H_READY, LOCK_CREATOR
from shmtrie.segment import Segment
from shmtrie.shmfile import open_file
from tests.system.children import Child, outcome

SMALL = Capacity(blocks=100, workers=4, lanes=1, extents=1)
SHM = Path("/dev/shm")


@pytest.fixture
def name(segment_name: Callable[[], str]) -> Iterator[str]:
    """A name that is free, and is free again after the test."""
    free = segment_name()
    yield free
    (SHM / free).unlink(missing_ok=True)


def stopped_before(function: str, name: str) -> Callable[[Connection], str]:
    """Body of a creator that stops itself before a function of `LockFile`."""

    def body(connection: Connection) -> str:
        original = getattr(LockFile, function)

        def stop_first(*arguments: Any) -> Any:
            setattr(LockFile, function, original)
            os.kill(os.getpid(), signal.SIGSTOP)
            return original(*arguments)

        setattr(LockFile, function, stop_first)
        return outcome(lambda: Segment.create(name, SMALL, timeout=0.0))

    return body


def dead_file(name: str, content: bytes) -> LockFile:
    """The opened file of a creator that died after it had written this."""
    (SHM / name).write_bytes(content)
    file, stage = settle(name, True, time.monotonic())
    assert stage is Stage.DEAD
    return file


def test_stages(name: str) -> None:
    path = SHM / name
    path.touch()
    file, other = open_file(name, True), open_file(name, True)
    assert stage_of(file) is Stage.EMPTY
    assert other.try_lock(LOCK_CREATOR)
    assert stage_of(file) is Stage.BUILDING
    path.write_bytes(unfinished_page(1))
    assert stage_of(file) is Stage.BUILDING
    other.close(LOCK_CREATOR)
    assert stage_of(file) is Stage.DEAD
    with path.open("r+b") as words:
        words.seek(H_READY)
        words.write(b"\1")
    assert stage_of(file) is Stage.MADE
    path.write_bytes(b"other")
    assert stage_of(file) is Stage.FOREIGN
    file.close()


def test_creation_that_ends_between_two_looks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (SHM / name).write_bytes(unfinished_page(1))
    file = open_file(name, True)

    def finish(*_: object) -> bool:
        os.pwrite(file.descriptor, b"\1", H_READY)
        return False

    monkeypatch.setattr(LockFile, "is_locked_elsewhere", finish)
    assert stage_of(file) is Stage.MADE
    file.close()


def test_creator_whose_file_somebody_is_removing(name: str) -> None:
    with Child(stopped_before("try_lock", name)) as child:
        child.wait_stopped()
        file = open_file(name, True)
        assert file.try_lock(LOCK_CREATOR)  # as who takes it for dead does
        child.resume()
        assert child.hear() == "SegmentExists"
        assert (SHM / name).stat().st_size == 0
        remove_dead(file, name)
        assert not (SHM / name).exists()


def test_creator_whose_file_was_removed(name: str) -> None:
    with Child(stopped_before("try_lock", name)) as child:
        child.wait_stopped()
        Segment.unlink(name)
        child.resume()
        assert child.hear() == "ok"
    assert outcome(lambda: Segment.attach(name)) == "ok"


@pytest.mark.parametrize("content", [b"", unfinished_page(1)], ids=["empty", "unfinished"])
def test_dead_file_is_removed_once(name: str, content: bytes) -> None:
    one, two = dead_file(name, content), dead_file(name, content)
    remove_dead(one, name)
    with Segment.create(name, SMALL) as made:
        remove_dead(two, name)  # looked at before, but the name is another file's now
        assert made.named


@pytest.mark.parametrize("content", [b"", unfinished_page(1)], ids=["empty", "unfinished"])
def test_file_that_was_finished_after_all(name: str, content: bytes, segment_name: Callable[[], str]) -> None:
    file = dead_file(name, content)
    with Segment.create(segment_name(), SMALL) as pattern:
        (SHM / name).write_bytes(Path(pattern.path).read_bytes())
        Segment.unlink(pattern.name)
    remove_dead(file, name)
    assert outcome(lambda: Segment.attach(name)) == "ok"


def test_dead_file_of_a_living_remover(name: str) -> None:
    file, other = dead_file(name, b""), open_file(name, True)
    assert other.try_lock(LOCK_CREATOR)
    remove_dead(file, name)
    assert (SHM / name).exists()
    other.close()


def test_unlink_marks_what_it_unlinks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Segment.create(name, SMALL)]

    def replace(file: LockFile) -> None:
        monkeypatch.undo()
        os.unlink(SHM / name)
        made.append(Segment.create(name, SMALL))

    monkeypatch.setattr(shmfile, "lock_or_give_up", replace)
    Segment.unlink(name)
    assert [int(segment.header["retired"]) for segment in made] == [0, 1]
    for segment in made:
        segment.close()


def test_unlink_waits_for_a_creation(name: str) -> None:
    with Child(stopped_before("unlock", name)) as child:
        child.wait_stopped()
        with Child(lambda connection: outcome(lambda: Segment.unlink(name))) as unlinking:
            assert not unlinking.connection.poll(0.1)
            child.resume()
            assert unlinking.hear() == child.hear() == "ok"
    assert not (SHM / name).exists()


def test_endless_change_of_hands_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "_ATTEMPTS", 5)
    monkeypatch.setattr(creation, "create_file", lambda *_: None)
    assert outcome(lambda: Segment.create(name, SMALL)) == "SegmentExists"


def test_fork_waits_for_an_opening(name: str) -> None:
    """A child must not inherit a descriptor that is not entered yet among those to be closed in it."""
    segment = Segment.create(name, SMALL)
    opened, release = threading.Event(), threading.Event()
    made: list[LockFile] = []

    def opener() -> int:
        descriptor = os.open(segment.path, os.O_RDWR)
        opened.set()
        release.wait(0.3)  # time for a fork that does not wait
        return descriptor

    thread = threading.Thread(target=lambda: made.append(LockFile(opener)))
    thread.start()
    assert opened.wait(10.0)
    with Child(lambda connection: descriptors_of(segment.path)) as child:
        inherited = child.hear()
    thread.join(10.0)
    assert len(inherited) == len(descriptors_of(segment.path)) - 1
    made[0].close()
    segment.close()


def descriptors_of(path: str) -> list[str]:
    """The descriptors of this process that lead to a file."""
    links = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{entry}"))
        except FileNotFoundError:  # that of the listing
            continue
    return [link for link in links if link == path]
