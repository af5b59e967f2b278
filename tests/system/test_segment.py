"""A segment as one process uses it: sizes, sections, stamps, names, the end of a handle, permissions."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import astuple
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmtrie.capacity import Capacity, geometry
from shmtrie.errors import (
    SegmentExists,
    SegmentIncompatible,
    SegmentNotFound,
    SegmentPermission,
    SegmentRetired,
    StaleHandle,
)
from shmtrie.layout import INTERNAL, M32, NO_SPACE, PAGE, SECTIONS, SPAN_LINES
from shmtrie.segment import Segment
from tests.system.children import NOBODY, Child, open_descriptors, outcome

SMALL = Capacity(blocks=100, workers=4, lanes=2, extents=1)
SHM = Path("/dev/shm")


@pytest.fixture
def name(segment_name: Callable[[], str]) -> Iterator[str]:
    """A name that is free, and is free again after the test."""
    free = segment_name()
    yield free
    (SHM / free).unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------ capacity
def test_default_capacity_fits_the_default_shared_memory_of_a_container() -> None:
    assert Capacity().size() < 63 << 20


def test_defaults_follow_from_the_blocks() -> None:
    assert Capacity().resolved().nodes == 250_000
    assert Capacity().resolved(exact_holes=True).nodes == 500_000
    assert Capacity(blocks=1).resolved().nodes == 64
    lines = Capacity(blocks=1_000_000, aliases=80_000).resolved().extents
    assert lines is not None and lines % SPAN_LINES == 0
    planned = 312_500 + 12_500 + 15_625 + 24 * SPAN_LINES
    assert planned <= lines < planned + SPAN_LINES
    assert Capacity(blocks=1).resolved().extents == 32 * SPAN_LINES
    assert SMALL.resolved().extents == SPAN_LINES
    assert SMALL.resolved() == SMALL.resolved().resolved()
    numpy_ints: list[Any] = [np.int64(5), np.uint16(6)]
    assert Capacity(*numpy_ints) == Capacity(5, 6)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"blocks": 0}, ValueError),
        ({"blocks": -1}, ValueError),
        ({"blocks": 1.5}, TypeError),
        ({"blocks": True}, TypeError),
        ({"blocks": None}, TypeError),
        ({"blocks": "9"}, TypeError),
        ({"workers": 0}, ValueError),
        ({"workers": 65_536}, ValueError),
        ({"lanes": 0}, ValueError),
        ({"lanes": 49}, ValueError),
        ({"nodes": 0}, ValueError),
        ({"nodes": 2**32 - 1}, ValueError),
        ({"aliases": -1}, ValueError),
        ({"extents": 0}, ValueError),
        ({"extents": 2**32}, ValueError),
    ],
)
def test_wrong_capacities(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(fields))):
        Capacity(**fields)


def test_capacity_beyond_the_limits_of_its_defaults() -> None:
    with pytest.raises(ValueError, match="nodes"):
        Capacity(blocks=2**36).size()
    with pytest.raises(ValueError, match="extents"):
        Capacity(blocks=2**36, nodes=64).size()


@pytest.mark.parametrize(
    "capacity", [Capacity(), SMALL, Capacity(1, 1, 1, 1, 0, 1), Capacity(2**30, 65_535, 48)]
)
def test_sections_follow_each_other_on_pages(capacity: Capacity) -> None:
    full = capacity.resolved()
    places = geometry(full)
    at = PAGE
    for section, place in places.sections.items():
        assert place.offset % PAGE == 0 and place.offset >= at, section
        at = place.offset + place.n_items * place.itemsize
    assert tuple(places.sections) == SECTIONS
    assert at <= places.total_bytes < at + PAGE
    assert places.total_bytes == capacity.size()
    assert places.sections["children"].n_items >= 4


# ------------------------------------------------------------------------------------------------ contents
def test_first_words(name: str) -> None:
    with Segment.create(name, SMALL) as segment:
        assert os.stat(segment.path).st_size == segment.total_bytes == SMALL.size()
        assert os.stat(segment.path).st_blocks * 512 >= segment.total_bytes  # all of it is reserved
        nodes, header = segment.view("nodes"), segment.header
        assert int(nodes["tail"][0]) == INTERNAL
        assert int(nodes["version"][0]) == 1 << 32
        assert int(nodes["start"][0]) == NO_SPACE << 32
        assert int(header["nodes_high"]) == int(header["ready"]) == 1
        assert int(header["retired"]) == int(header["epoch"]) == int(header["slots_high"]) == 0
        assert int(segment.view("node_claims")[0]) == M32
        assert 0 < segment.seed < 2**63 and segment.seed == int(header["seed"])
        # and nothing else
        for at, column in ((0, "tail"), (0, "version"), (0, "start")):
            nodes[column][at] = 0
        segment.view("node_claims")[0] = 0
        assert all(not segment.view(section).tobytes().strip(b"\0") for section in SECTIONS)


def test_sections_are_views_of_one_memory(name: str) -> None:
    with Segment.create(name, SMALL) as writer, Segment.attach(name) as reader:
        for number, section in enumerate(SECTIONS):
            mine, other = writer.view(section), reader.view(section)
            assert len(mine) == len(other) == writer.section_count(section)
            assert mine.ctypes.data == writer.section_address(section)
            assert other.ctypes.data == reader.section_address(section) != mine.ctypes.data
            mine.view(np.uint8).reshape(-1)[-1] = number + 1
            assert other.view(np.uint8).reshape(-1)[-1] == number + 1
            assert mine is writer.view(section)
        with pytest.raises(KeyError):
            writer.view("header")
        assert reader.uuid == writer.uuid and reader.identity == writer.identity
        assert reader.capacity == writer.capacity == SMALL.resolved()


def test_two_segments_differ(segment_name: Callable[[], str]) -> None:
    names = [segment_name(), segment_name()]
    one, two = (Segment.create(name, SMALL) for name in names)
    assert one.uuid != two.uuid and one.seed != two.seed
    for segment in (one, two):
        Segment.unlink(segment.name)
        segment.close()


def test_read_only_arrays(name: str) -> None:
    Segment.create(name, SMALL).close()
    with Segment.attach(name) as reader:
        assert reader.read_only
        for array in (*map(reader.view, SECTIONS), reader.header):
            assert not array.flags.writeable
            with pytest.raises(ValueError):
                array.flags.writeable = True
        with pytest.raises(ValueError):
            reader.header["retired"] = 1


def test_read_only_mapping_is_protected(name: str) -> None:
    Segment.create(name, SMALL).close()

    def store(connection: Connection) -> None:
        ctypes.c_uint64.from_address(Segment.attach(name).section_address("nodes")).value = 1

    with Child(store) as child:
        assert child.wait() == -signal.SIGSEGV


# ------------------------------------------------------------------------------------------------ stamps
def test_stamps(name: str) -> None:
    model = "größe/7b"
    with Segment.create(name, SMALL, block_size=16, model=model, exact_holes=True) as made:
        assert (made.block_size, made.model, made.exact_holes) == (16, model, True)
    wanted: dict[str, Any]
    for wanted in (
        {},
        {"block_size": 16},
        {"model": model},
        {"block_size": np.int32(16), "model": model},
        {"model": ""},
    ):
        with Segment.attach(name, **wanted) as found:
            assert (found.block_size, found.model, found.exact_holes) == (16, model, True)
    for wanted in ({"block_size": 32}, {"model": "other"}, {"block_size": 16, "model": "other"}):
        with pytest.raises(SegmentIncompatible, match="not"):
            Segment.attach(name, **wanted)


def test_stamp_that_was_not_given_differs(name: str) -> None:
    with Segment.create(name, SMALL, model="") as made:
        assert made.block_size is None and made.model is None
    assert outcome(lambda: Segment.attach(name, block_size=16)) == "SegmentIncompatible"
    assert outcome(lambda: Segment.attach(name, model="m")) == "SegmentIncompatible"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"block_size": 0}, ValueError),
        ({"block_size": 2**32}, ValueError),
        ({"block_size": "16"}, TypeError),
        ({"block_size": True}, TypeError),
        ({"model": "m" * 257}, ValueError),
        ({"model": "a\0b"}, ValueError),
        ({"model": b"m"}, TypeError),
        ({"mode": 0o400}, ValueError),
        ({"mode": 0o10600}, ValueError),
        ({"mode": "rw"}, TypeError),
        ({"capacity": 1000}, TypeError),
        ({"capacity": Capacity(blocks=2**40)}, ValueError),
    ],
)
def test_wrong_arguments_touch_nothing(name: str, arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Segment.create(name, **{"capacity": SMALL, **arguments})
    assert not (SHM / name).exists()


def test_longest_model(name: str) -> None:
    Segment.create(name, SMALL, model="m" * 256).close()
    with Segment.attach(name, model="m" * 256) as found:
        assert found.model == "m" * 256


# ------------------------------------------------------------------------------------------------ names
def test_leading_slash_is_the_same_name(name: str) -> None:
    with Segment.create(f"/{name}", SMALL) as made:
        assert made.name == name and made.path == f"/dev/shm/{name}"
        for way in (name, f"/{name}"):
            with Segment.attach(way) as found:
                assert found.uuid == made.uuid and found.name == name
    Segment.unlink(f"/{name}")


@pytest.mark.parametrize(
    "bad", ["", "/", ".", "..", "/..", "a/b", "//a", "a/", "a\0b", "\0", "x" * 256, "é" * 128]
)
def test_wrong_names(bad: str) -> None:
    for call in (Segment.attach, Segment.unlink, lambda name: Segment.create(name, SMALL)):
        with pytest.raises(ValueError):
            call(bad)


@pytest.mark.parametrize("bad", [None, 7, b"kv"])
def test_names_of_wrong_type(bad: Any) -> None:
    for call in (Segment.attach, Segment.unlink, lambda name: Segment.create(name, SMALL)):
        with pytest.raises(TypeError):
            call(bad)


def test_longest_name(name: str) -> None:
    longest = name + "é" * ((255 - len(name)) // 2)
    Segment.create(longest, SMALL).close()
    assert longest in Segment.list()
    Segment.unlink(longest)


def test_list_shows_segments_only(name: str, segment_name: Callable[[], str]) -> None:
    other, foreign, folder, link = (segment_name() for _ in range(4))
    try:
        Segment.create(name, SMALL).close()
        Segment.create(other, SMALL).close()
        (SHM / foreign).write_bytes(b"something else")
        (SHM / folder).mkdir()
        (SHM / link).symlink_to(SHM / name)
        found = Segment.list()
        assert found == sorted(found) and {name, other} <= set(found)
        assert not {foreign, folder, link} & set(found)
        Segment.unlink(other)
        assert other not in Segment.list()
    finally:
        for path in (foreign, link, other):
            (SHM / path).unlink(missing_ok=True)
        (SHM / folder).rmdir()


def test_missing_names(name: str) -> None:
    with pytest.raises(SegmentNotFound, match=name):
        Segment.attach(name, timeout=60)  # at once
    with pytest.raises(SegmentNotFound, match=name):
        Segment.unlink(name)


def test_unlink_while_attached(name: str) -> None:
    writer, reader = Segment.create(name, SMALL), Segment.attach(name)
    assert not writer.retired and not reader.retired
    Segment.unlink(name)
    assert not (SHM / name).exists()
    for handle in (writer, reader):
        assert handle.retired and not handle.named and int(handle.header["retired"]) == 1
    writer.view("nodes")["edge"][1] = 7
    assert int(reader.view("nodes")["edge"][1]) == 7
    with Segment.create(name, SMALL) as second:
        assert not second.retired and second.uuid != reader.uuid
        assert reader.retired and not reader.named
    writer.close()
    reader.close()


def test_name_that_was_removed_without_a_mark(name: str) -> None:
    with Segment.create(name, SMALL) as segment:
        os.unlink(segment.path)
        assert segment.retired and int(segment.header["retired"]) == 0


# ------------------------------------------------------------------------------------------------ exist_ok
def test_existing_segment(name: str) -> None:
    with Segment.create(name, SMALL, block_size=16, model="m") as made:
        with pytest.raises(SegmentExists, match=name):
            Segment.create(name, SMALL, block_size=16, model="m")
        for arguments in ({}, {"capacity": SMALL}, {"block_size": 16}, {"block_size": 16, "model": "m"}):
            with Segment.create(name, exist_ok=True, **arguments) as found:
                assert found.uuid == made.uuid and not found.read_only
        less = Capacity(*(value and value - 1 for value in astuple(SMALL.resolved())))
        Segment.create(name, less, exist_ok=True).close()
        for arguments in (
            {"block_size": 32},
            {"model": "n"},
            {"exact_holes": True},
            {"capacity": Capacity(blocks=101, workers=4, lanes=2, extents=1)},
            {"capacity": Capacity(blocks=100, workers=4, lanes=3, extents=1)},
        ):
            with pytest.raises(SegmentIncompatible, match=name):
                Segment.create(name, exist_ok=True, **arguments)


# ------------------------------------------------------------------------------------------------ end
def test_close(name: str) -> None:
    segment = Segment.create(name, SMALL)
    nodes = segment.view("nodes")
    nodes["edge"][5] = 9
    segment.close()
    segment.close()
    assert segment.closed and "closed" in repr(segment)
    for use in (
        lambda: segment.view("nodes"),
        lambda: segment.base,
        lambda: segment.header,
        lambda: segment.mapping,
        lambda: segment.retired,
        lambda: segment.section_address("nodes"),
        lambda: segment.is_locked(0),
        segment.open_lock_file,
    ):
        with pytest.raises(StaleHandle, match=name):
            use()
    assert int(nodes["edge"][5]) == 9  # still mapped
    with Segment.attach(name) as again:
        assert int(again.view("nodes")["edge"][5]) == 9


def mappings_of(name: str) -> int:
    return Path("/proc/self/maps").read_text().count(name)


def test_mapping_goes_with_the_last_view(name: str) -> None:
    segment = Segment.create(name, SMALL)
    view = segment.view("extents")[3:5]
    segment.close()
    assert mappings_of(name) == 1
    del view
    assert mappings_of(name) == 0


def test_handles_leak_nothing(name: str) -> None:
    gc.collect()
    before = open_descriptors()
    for _ in range(20):
        with Segment.create(name, SMALL):
            assert outcome(lambda: Segment.create(name, SMALL)) == "SegmentExists"
            assert outcome(lambda: Segment.attach(name, block_size=3)) == "SegmentIncompatible"
            assert outcome(lambda: Segment.attach(name)) == "ok"
            Segment.attach(name)  # dropped without close
        Segment.unlink(name)
    gc.collect()
    assert open_descriptors() == before and mappings_of(name) == 0


def test_forked_reader_goes_on(name: str) -> None:
    segment = Segment.create(name, SMALL)

    def read(connection: Connection) -> tuple[int, bool, bool]:
        connection.recv()
        seen = (int(segment.view("nodes")["edge"][2]), segment.retired, segment.is_locked(0))
        segment.close()
        return seen

    with Child(read) as child:
        segment.view("nodes")["edge"][2] = 11
        child.say()
        assert child.hear() == (11, False, False)
        assert child.wait() == 0
    assert not segment.retired and int(segment.view("nodes")["edge"][2]) == 11
    segment.close()


def test_descriptor_closed_by_other_code(name: str) -> None:
    with Segment.create(name, SMALL) as segment:
        before = open_descriptors()
        os.close(segment._file.descriptor)
        assert not segment.is_locked(0)
        segment.open_lock_file().close()
        os.close(segment._file.descriptor)
        Segment.unlink(name)
        for use in (lambda: segment.is_locked(0), segment.open_lock_file):
            with pytest.raises(SegmentRetired):
                use()
    assert open_descriptors() <= before


# ------------------------------------------------------------------------------------------------ permissions
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660, 0o666])
def test_mode_whatever_the_umask(name: str, mode: int) -> None:
    umask = os.umask(0o077)
    try:
        Segment.create(name, SMALL, mode=mode).close()
    finally:
        os.umask(umask)
    assert os.stat(SHM / name).st_mode & 0o7777 == mode


def as_nobody(call: Callable[[], Any]) -> str:
    def body(connection: Connection) -> str:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return outcome(call)

    with Child(body) as child:
        return str(child.hear())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_other_users(name: str) -> None:
    Segment.create(name, SMALL).close()
    assert as_nobody(lambda: Segment.attach(name)) == "SegmentPermission"
    assert as_nobody(lambda: Segment.attach(name, read_only=False)) == "SegmentPermission"
    assert as_nobody(lambda: Segment.create(name, SMALL)) == "SegmentExists"
    assert as_nobody(lambda: Segment.create(name, SMALL, exist_ok=True)) == "SegmentPermission"
    assert as_nobody(lambda: Segment.unlink(name)) == "SegmentPermission"
    assert as_nobody(lambda: name in Segment.list() or 1 / 0) == "ZeroDivisionError"
    os.chmod(SHM / name, 0o604)
    assert as_nobody(lambda: Segment.attach(name)) == "ok"
    assert as_nobody(lambda: Segment.attach(name, read_only=False)) == "SegmentPermission"
    os.chmod(SHM / name, 0o606)
    assert as_nobody(lambda: Segment.attach(name, read_only=False)) == "ok"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_own_segment_without_permission(name: str) -> None:
    Segment.create(name, SMALL).close()
    os.chmod(SHM / name, 0)
    with pytest.raises(SegmentPermission):
        Segment.attach(name)
