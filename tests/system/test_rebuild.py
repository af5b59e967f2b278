"""`rebuild`: a segment from a dump, under its name; the old one is in force until the new one is complete."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from shmtrie import cli
from shmtrie.capacity import Capacity
from shmtrie.errors import Busy, SegmentNotFound, SegmentPermission, SegmentRetired, ShmtrieError
from shmtrie.event_types import KvCacheEvent, KvCacheRemoveData, RouterEvent, encode_event
from shmtrie.index import Index
from shmtrie.layout import HEADER, RETIRED, offset
from shmtrie.rebuild import rebuild
from shmtrie.shmfile import successor_name
from tests.system.children import Child, outcome
from tests.system.index_tools import assert_valid, open_index, scores
from tests.system.steps import STEPS, stop_at

SHM = Path("/dev/shm")
CAPACITY = Capacity(blocks=2_000, workers=8, lanes=4)
QUERY = [1, 2, 3]
REFUSED = RouterEvent(9, KvCacheEvent(1, KvCacheRemoveData([4])))


@pytest.fixture
def index() -> Iterator[Index]:
    """Two ranks hold parts of the query; what is made from it goes with it."""
    with open_index(CAPACITY, block_size=16, model="m", mode=0o640) as made:
        with made.writer() as writer:
            writer.store(1, None, QUERY, [11, 12, 13])
            writer.store((2, 1), None, [1, 2], [21, 22])
        yield made
        for name in (made.name, successor_name(made.name)):
            with suppress(SegmentNotFound):
                Index.unlink(name)


@pytest.fixture
def dump(index: Index, tmp_path: Path) -> Path:
    """The index as lines of events."""
    path = tmp_path / "dump.jsonl"
    path.write_bytes(b"".join(encode_event(event) + b"\n" for event in index.dump_events()))
    return path


def found(name: str) -> dict[tuple[int, int], int]:
    """What a new router answers."""
    with Index.attach(name) as new:
        assert_valid(new)
        return scores(new, QUERY)


BOTH = {(1, 0): 3, (2, 1): 2}


def test_rebuild(index: Index, dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes, stamps and mode stay; readers of the old one go on, its writers are told."""
    with Index.attach(index.name) as reader, index.writer() as writer:
        writer.store(3, None, QUERY, [31, 32, 33])  # not in the dump
        assert cli.main(["rebuild", index.name, str(dump), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer == {"name": index.name, "done": True, "events": 2, "statuses": {"OK": 2}}
        assert index.retired and reader.retired and int(index.segment.header["retired"]) == RETIRED
        assert scores(reader, QUERY) == scores(index, QUERY) == {**BOTH, (3, 0): 3}
        with pytest.raises(SegmentRetired):
            writer.store(3, 33, [4], [34])
    with Index.attach(index.name, read_only=False) as new:
        assert not new.retired and new.segment.uuid != index.segment.uuid
        assert new.segment.capacity == index.segment.capacity
        assert (new.segment.block_size, new.segment.model) == (16, "m")
        assert (SHM / index.name).stat().st_mode & 0o777 == 0o640
        assert scores(new, QUERY) == BOTH
        with new.writer() as writer:
            writer.store(1, 13, [4], [14])
        assert scores(new, [*QUERY, 4]) == {(1, 0): 4, (2, 1): 2}
        assert_valid(new)
    assert not (SHM / successor_name(index.name)).exists()


def test_options_win(index: Index, dump: Path) -> None:
    assert cli.main(["rebuild", index.name, str(dump), "--blocks", "9000", "--model", "other"]) == 0
    with Index.attach(index.name, model="other", block_size=16) as new:
        assert new.segment.capacity.blocks == 9_000 and new.segment.capacity.lanes == CAPACITY.lanes
        assert scores(new, QUERY) == BOTH


def test_refused_events_leave_the_old_one(
    index: Index, dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with dump.open("ab") as file:
        file.write(encode_event(REFUSED) + b"\n")
    with index.writer() as writer:
        assert cli.main(["rebuild", index.name, str(dump)]) == cli.EXIT_REFUSED
        assert "left as it was" in capsys.readouterr().out
        assert cli.main(["rebuild", index.name, str(dump), "--blocks", "1", "--workers", "1"]) == 1
        writer.store(1, 13, [4], [14])
    dump.write_bytes(b"{\n")
    assert cli.main(["rebuild", index.name, str(dump)]) == cli.EXIT_ERROR
    assert not index.retired and scores(index, QUERY) == found(index.name) == BOTH
    assert not (SHM / successor_name(index.name)).exists()


def damage(index: Index, field: str, value: bytes) -> None:
    with open(SHM / index.name, "r+b") as file:
        file.seek(offset(HEADER, field))
        file.write(value)


@pytest.mark.parametrize(
    ("field", "readable"),
    [("boot_id", False), ("layout_hash", False), ("magic", False), ("seed", False), ("ready", True)],
)
def test_broken_header(index: Index, dump: Path, field: str, readable: bool) -> None:
    """Where the header cannot be trusted the sizes have to be given."""
    value = bytes(8) if field == "ready" else b"\5" * 8
    damage(index, field, value)
    assert outcome(lambda: Index.attach(index.name, timeout=0.0)) != "ok"
    code = cli.main(["rebuild", index.name, str(dump)])
    if not readable:
        assert code == cli.EXIT_ERROR
        code = cli.main(["rebuild", index.name, str(dump), "--blocks", "2000", "--workers", "8"])
    assert code == 0 and found(index.name) == BOTH and index.retired


def test_broken_content(index: Index, dump: Path) -> None:
    index.segment.view("children")[:] = 0  # every child of the root is lost
    assert not index.verify().ok and scores(index, QUERY) == {}
    assert cli.main(["rebuild", index.name, str(dump)]) == 0
    assert found(index.name) == BOTH


def test_truncated_file(index: Index, dump: Path) -> None:
    """The header still says how large it was."""
    name = index.name
    index.close()
    os.truncate(SHM / name, 8_192)
    assert outcome(lambda: Index.attach(name)) == "SegmentCorrupt"
    assert cli.main(["rebuild", name, str(dump)]) == 0
    with Index.attach(name) as new:
        assert new.segment.capacity == CAPACITY.resolved() and scores(new, QUERY) == BOTH


def test_no_such_segment(index: Index, dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = index.name + "-none"
    assert cli.main(["rebuild", name, str(dump)]) == cli.EXIT_ERROR
    assert name in capsys.readouterr().err and not (SHM / name).exists()


def test_two_at_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is told who is at it; the first is not disturbed."""
    events = index.dump_events()
    begun, go = threading.Event(), threading.Event()

    def slow() -> Iterator[list[RouterEvent]]:
        begun.set()
        assert go.wait(60)
        yield events

    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(rebuild(index.name, slow())))
    thread.start()
    assert begun.wait(60)
    monkeypatch.setattr("shmtrie.succession._WAIT", 0.01)
    for call in (
        lambda: rebuild(index.name, [events]),
        lambda: index.resize(Capacity(blocks=4_000, workers=8, lanes=4)),
    ):
        with pytest.raises(Busy, match="resized or rebuilt by another"):
            call()
    go.set()
    thread.join(60)
    assert done[0].done and found(index.name) == BOTH


def test_unlinked_meanwhile(index: Index) -> None:
    """An unlink is not undone."""
    events = index.dump_events()

    def chunks() -> Iterator[list[RouterEvent]]:
        yield events
        Index.unlink(index.name)

    with pytest.raises(SegmentRetired):
        rebuild(index.name, chunks())
    assert index.retired and Index.list().count(index.name) == 0
    assert not (SHM / successor_name(index.name)).exists()


def rebuilder(name: str, events: list[RouterEvent], step: str, number: int) -> Callable[[Connection], str]:
    """Body of a process that rebuilds, and gets a signal before a step."""

    def body(connection: Connection) -> str:
        stop_at(step, number)
        try:
            return "done" if rebuild(name, [events]).done else "refused"
        except ShmtrieError as error:
            return type(error).__name__

    return body


AFTER = {"old retired", "new in force"}  # steps that come after the rename


@pytest.mark.parametrize("step", [step for step in STEPS if step not in ("rest", "copy")])
def test_killed_at_each_step(index: Index, step: str) -> None:
    """One of the two is in force, whole; the next rebuild is not in the way of what is left."""
    events = index.dump_events()
    with index.writer() as writer:
        writer.store(3, None, QUERY, [31, 32, 33])
        before = scores(index, QUERY)
        with Child(rebuilder(index.name, events, step, signal.SIGKILL)) as child:
            assert child.wait() == -signal.SIGKILL
        if step in AFTER:
            assert index.retired and scores(index, QUERY) == before and found(index.name) == BOTH
            with pytest.raises(SegmentRetired):
                writer.store(3, 33, [4], [34])
        else:
            assert not index.retired and found(index.name) == before
            writer.store(3, 33, [4], [34])
            assert scores(index, [*QUERY, 4])[3, 0] == 4
    with Index.attach(index.name, read_only=False) as now, now.writer() as writer:
        writer.store(4, None, [1], [41])
    assert rebuild(index.name, [events]).done and found(index.name) == BOTH
    assert not (SHM / successor_name(index.name)).exists()


def test_one_that_an_unlink_left_marked(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """It died between the mark and the name: what fails to replace it does not bring it back to life."""
    events = index.dump_events()
    index.segment.header["retired"] = RETIRED

    def refused(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refused)
        with pytest.raises(SegmentPermission):
            rebuild(index.name, [events])
    assert int(index.segment.header["retired"]) == RETIRED and index.retired
    assert not (SHM / successor_name(index.name)).exists()
    assert rebuild(index.name, [events]).done and found(index.name) == BOTH
