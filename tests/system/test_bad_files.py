"""Files that are no sound segment, and file systems without room for one."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from shmtrie import creation
from shmtrie.capacity import Capacity
from shmtrie.errors import SegmentCorrupt, SegmentIncompatible, SegmentNoSpace, ShmtrieError
from shmtrie.header import unfinished_page
from shmtrie.layout import H_IMMUTABLE_END, H_READY, HEADER, PAGE, offset
from shmtrie.segment import Segment
from tests.system.children import CLONE_NEWNS, Child, open_descriptors, outcome, unshare
from tests.system.headers import patch_header

SMALL = Capacity(blocks=100, workers=4, lanes=1, extents=1)
SHM = Path("/dev/shm")


@pytest.fixture
def name(segment_name: Callable[[], str]) -> Iterator[str]:
    """A name that is free, and is free again after the test."""
    free = segment_name()
    yield free
    (SHM / free).unlink(missing_ok=True)


def create(name: str, **arguments: Any) -> str:
    """What becomes of creating a segment: its uuid or the error."""
    try:
        with Segment.create(name, SMALL, **arguments) as made:
            return str(made.uuid)
    except ShmtrieError as error:
        return type(error).__name__


# ------------------------------------------------------------------------------------------------ bad files
def test_foreign_files(name: str) -> None:
    path = SHM / name
    for content in (b"hello", random.Random(1).randbytes(3 * PAGE), bytes(SMALL.size()), b"\0", b"shmtri"):
        path.write_bytes(content)
        with pytest.raises(SegmentCorrupt, match="no shmtrie segment"):
            Segment.attach(name)
        assert create(name) == "SegmentExists"
        assert create(name, exist_ok=True) == "SegmentCorrupt"
        assert path.read_bytes() == content
        Segment.unlink(name)
        assert not path.exists()


@pytest.mark.parametrize("kind", ["directory", "link", "dangling", "fifo"])
def test_what_is_no_file(name: str, kind: str) -> None:
    path = SHM / name
    {
        "directory": path.mkdir,
        "link": lambda: path.symlink_to("/etc/hostname"),
        "dangling": lambda: path.symlink_to(name + "-nothing"),
        "fifo": lambda: os.mkfifo(path),
    }[kind]()
    try:
        for call in (Segment.attach, Segment.unlink, lambda name: Segment.attach(name, read_only=False)):
            assert outcome(lambda call=call: call(name)) == "SegmentCorrupt"
        assert create(name) == "SegmentExists"
        assert create(name, exist_ok=True) == "SegmentCorrupt"
        assert name not in Segment.list()
    finally:
        if kind == "directory":
            path.rmdir()


def test_zero_length(name: str) -> None:
    (SHM / name).touch()
    start = time.monotonic()
    with pytest.raises(SegmentCorrupt, match="unfinished"):
        Segment.attach(name, timeout=60.0)
    assert time.monotonic() - start < 30.0
    assert len(create(name)) == 36


@pytest.mark.parametrize("size", [8, 100, PAGE - 1, PAGE, 5 * PAGE, -PAGE, -1, 1, 2 * PAGE + 1])
def test_truncated_and_grown(name: str, size: int) -> None:
    Segment.create(name, SMALL).close()
    total = SMALL.size()
    grown = size in (1, 2 * PAGE + 1)
    os.truncate(SHM / name, total + size if size < 0 or grown else size)
    for read_only in (True, False):
        with pytest.raises(SegmentCorrupt, match="grown" if grown else "truncated"):
            Segment.attach(name, read_only=read_only)
    assert create(name) == "SegmentExists"
    Segment.unlink(name)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


@pytest.mark.parametrize(
    ("field", "content", "fix_crc", "error", "says"),
    [
        ("magic", b"shmtria\0", False, SegmentCorrupt, "no shmtrie segment"),
        ("layout_version", u32(2), False, SegmentIncompatible, "layout version 2"),
        ("layout_version", u32(2), True, SegmentIncompatible, "layout version 2"),
        ("layout_hash", u64(1), True, SegmentIncompatible, "another layout"),
        ("word_mark", u64(0x0807060504030201), True, SegmentIncompatible, "byte order"),
        ("header_crc", u32(1), False, SegmentCorrupt, "checksum"),
        ("uuid", b"x", False, SegmentCorrupt, "checksum"),
        ("boot_id", b"0123456789abcdef", False, SegmentCorrupt, "checksum"),
        ("boot_id", b"0123456789abcdef", True, SegmentIncompatible, "booted"),
        ("total_bytes", u64(1 << 40), True, SegmentCorrupt, "total size"),
        ("seed", u64(0), True, SegmentCorrupt, "seed"),
        ("seed", u64(1 << 63), True, SegmentCorrupt, "seed"),
        ("flags", u32(6), True, SegmentIncompatible, "flags"),
        ("model", b"\xff\xfe", True, SegmentCorrupt, "damaged"),
        ("capacity", u64(0), True, SegmentCorrupt, "blocks"),
        ("capacity", u64(1000) + u64(9), True, SegmentCorrupt, "section table"),
        ("capacity", u64(1000) + u64(1 << 40), True, SegmentCorrupt, "workers"),
        ("sections", u64(0), True, SegmentCorrupt, "section table"),
        ("sections", u64(PAGE) + u64(1 << 50), True, SegmentCorrupt, "section table"),
        ("sections", u64(PAGE) + u64(1) + u64(1), True, SegmentCorrupt, "section table"),
    ],
)
def test_damaged_header(
    name: str, field: str, content: bytes, fix_crc: bool, error: type[Exception], says: str
) -> None:
    Segment.create(name, SMALL).close()
    patch_header(SHM / name, offset(HEADER, field), content, fix_crc)
    for read_only in (True, False):
        with pytest.raises(error, match=says):
            Segment.attach(name, read_only=read_only)
    assert create(name) == "SegmentExists"
    replaced = create(name, exist_ok=True)
    assert len(replaced) == 36 if says == "booted" else replaced == error.__name__
    Segment.unlink(name)


def test_ready_word_lost(name: str) -> None:
    Segment.create(name, SMALL).close()
    patch_header(SHM / name, H_READY, bytes(8), False)
    assert outcome(lambda: Segment.attach(name)) == "SegmentCorrupt"


def test_random_damage_is_a_typed_error(name: str) -> None:
    Segment.create(name, SMALL).close()
    path = SHM / name
    good = path.read_bytes()[:PAGE]
    rng = random.Random(7)
    before = open_descriptors()
    for turn in range(1500):
        fix_crc = bool(turn % 2)
        at = rng.randrange(16, H_IMMUTABLE_END - 8) if fix_crc else rng.randrange(H_IMMUTABLE_END)
        patch_header(path, at, rng.randbytes(rng.choice((1, 2, 8))), fix_crc)
        found = outcome(lambda: Segment.attach(name, timeout=0.0))
        assert found in ("ok", "SegmentCorrupt", "SegmentIncompatible")
        assert found != "ok" or fix_crc or path.read_bytes()[:H_IMMUTABLE_END] == good[:H_IMMUTABLE_END]
        with path.open("r+b") as file:
            file.write(good)
    assert open_descriptors() == before
    assert outcome(lambda: Segment.attach(name)) == "ok"


def test_segment_of_dead_creator_with_another_layout_is_kept(name: str) -> None:
    (SHM / name).write_bytes(unfinished_page(1))
    patch_header(SHM / name, offset(HEADER, "layout_version"), u32(99), False)
    assert create(name) == "SegmentExists"
    assert outcome(lambda: Segment.attach(name)) == "SegmentIncompatible"


# ------------------------------------------------------------------------------------------------ no space
def no_space(name: str) -> tuple[str, bool, int]:
    before = open_descriptors()
    try:
        Segment.create(name, SMALL).close()
    except SegmentNoSpace as error:
        return str(error), (SHM / name).exists(), open_descriptors() - before
    return "made", True, 0


@pytest.mark.parametrize("limit", [0, 100, PAGE, SMALL.size() - 1])
@pytest.mark.parametrize("check", [True, False])
def test_file_size_limit(name: str, limit: int, check: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(connection: Connection) -> tuple[str, bool, int]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if not check:
            creation._check_room = lambda *_: None
        return no_space(name)

    with Child(body) as child:
        text, left, leaked = child.hear()
    assert f"needs {SMALL.size()} bytes" in text and not left and not leaked
    assert "RLIMIT_FSIZE" in text or not check


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
@pytest.mark.parametrize("check", [True, False])
def test_full_file_system(name: str, check: bool) -> None:
    def body(connection: Connection) -> Any:
        if not unshare(CLONE_NEWNS):
            return None
        for command in ("mount --make-rprivate /", "mount -t tmpfs -o size=128k tmpfs /dev/shm"):
            if subprocess.run(command.split(), capture_output=True).returncode:
                return None
        if not check:
            creation._check_room = lambda *_: None
        answer = no_space(name)
        return *answer, os.listdir(SHM), os.statvfs(SHM).f_bavail * os.statvfs(SHM).f_frsize

    with Child(body) as child:
        answer = child.hear()
    if answer is None:
        pytest.skip("not allowed to mount")
    text, left, leaked, files, free = answer
    assert f"needs {SMALL.size()} bytes" in text and f"{128 << 10} are free" in text and "--shm-size" in text
    assert not left and not leaked and not files and free == 128 << 10


# ------------------------------------------------------------------------------------------------ shrinking
def test_shrinking_under_a_mapping_is_a_bus_error(name: str) -> None:
    """Nothing can prevent it: documented, so pinned."""

    def body(connection: Connection) -> None:
        with Segment.attach(name) as segment:
            connection.send(None)
            connection.recv()
            ctypes.c_uint64.from_address(segment.section_address("extents")).value  # noqa: B018

    Segment.create(name, SMALL).close()
    with Child(body) as child:
        child.hear()
        os.truncate(SHM / name, PAGE)
        child.say()
        assert child.wait() == -signal.SIGBUS
