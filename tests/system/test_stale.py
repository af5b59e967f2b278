"""Segments left from before the machine last booted: nobody keeps them up to date."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmtrie import cli, header
from shmtrie.capacity import Capacity
from shmtrie.errors import SegmentExists, SegmentIncompatible
from shmtrie.event_types import encode_event
from shmtrie.index import Index
from shmtrie.segment import Segment
from tests.system.headers import make_stale, patch_header
from tests.system.index_tools import scores

SMALL = Capacity(blocks=500, workers=4, lanes=1)
SHM = Path("/dev/shm")


@pytest.fixture
def stale(segment_name: Callable[[], str]) -> Iterator[str]:
    """The name of such a segment, in which rank 1 holds two blocks."""
    name = segment_name()
    with Index.create(name, SMALL, block_size=16, model="m") as index, index.writer() as writer:
        writer.store(1, None, [1, 2], [1, 2])
    make_stale(SHM / name)
    yield name
    (SHM / name).unlink(missing_ok=True)


def state(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What `shmtrie list` says of a segment."""
    assert cli.main(["list", "--json"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["name"] == name]
    return str(row["state"])


def test_attach(stale: str) -> None:
    for read_only in (True, False):
        with pytest.raises(SegmentIncompatible, match=r"before this machine last booted.*unlink it"):
            Index.attach(stale, read_only=read_only)


def test_list_and_unlink(stale: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stale in Index.list() and state(stale, capsys) == "stale"
    assert cli.main(["status", stale]) == cli.EXIT_ERROR and "booted" in capsys.readouterr().err
    Index.unlink(stale)
    assert stale not in Index.list()


def test_create_replaces_it_when_asked(stale: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty one, with what the caller asks for; without `exist_ok` it is in the way."""
    with pytest.raises(SegmentExists):
        Index.create(stale, SMALL)
    with Index.create(stale, SMALL, block_size=32, model="other", exist_ok=True) as index:
        assert scores(index, [1, 2]) == {} and not index.retired
        assert (index.segment.block_size, index.segment.model) == (32, "other")
        with Index.create(stale, SMALL, exist_ok=True) as same, Index.attach(stale) as found:
            assert same.segment.uuid == found.segment.uuid == index.segment.uuid
    assert state(stale, capsys) == "ok"


def test_rebuild(stale: str, tmp_path: Path) -> None:
    """From a dump; the sizes and stamps are still to be had."""
    with Index.create(stale + "x", SMALL) as other:
        with other.writer() as writer:
            writer.store(1, None, [1, 2], [1, 2])
        lines = [encode_event(event) + b"\n" for event in other.dump_events()]
        Index.unlink(other.name)
    (tmp_path / "dump").write_bytes(b"".join(lines))
    assert cli.main(["rebuild", stale, str(tmp_path / "dump")]) == 0
    with Index.attach(stale, block_size=16, model="m") as index:
        assert scores(index, [1, 2]) == {(1, 0): 2}


def test_a_damaged_one_is_damaged(stale: str) -> None:
    """What only looks as if it were from another boot is nobody's to remove."""
    patch_header(SHM / stale, 200, b"\7", fix_crc=False)
    before = (SHM / stale).read_bytes()
    assert Segment.list().count(stale) == 1
    for exist_ok in (False, True):
        with pytest.raises((SegmentExists, header.SegmentCorrupt)):
            Index.create(stale, SMALL, exist_ok=exist_ok)
    assert (SHM / stale).read_bytes() == before


@pytest.mark.parametrize("unknown", ["here", "there"])
def test_boots_that_the_kernel_does_not_tell(
    stale: str, unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where either is not known nothing can be said, so nothing is."""
    if unknown == "here":
        monkeypatch.setattr(header, "boot_id", lambda: bytes(16))
    else:
        at = header.HEADER.fields["boot_id"][1]  # type: ignore[index]
        patch_header(SHM / stale, at, bytes(16), fix_crc=True)
    with Index.attach(stale) as index:
        assert scores(index, [1, 2]) == {(1, 0): 2}
