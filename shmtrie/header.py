"""The header page of a segment: written once by its creator, checked field by field by every attacher.

The page is built in private memory and checked as bytes read from the file, before anything is mapped, so
no file, whatever is in it, can crash an attacher. The immutable part carries a CRC-32; `ready` is a word of
its own, stored last. Words that change later (`retired`, `epoch`, ...) are used through the mapping.
"""

from __future__ import annotations

import os
import secrets
import time
import uuid
import zlib
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .capacity import Capacity, Geometry, geometry
from .errors import SegmentCorrupt, SegmentIncompatible
from .layout import (
    FLAG_EXACT_HOLES,
    H_IMMUTABLE_END,
    HEADER,
    LAYOUT_HASH,
    LAYOUT_VERSION,
    MAGIC,
    PAGE,
    WORD_MARK,
)

__all__ = [
    "FileKind",
    "Header",
    "boot_id",
    "build_page",
    "check_page",
    "check_stamps",
    "file_kind",
    "is_of_earlier_boot",
    "is_readable_layout",
    "salvage_page",
    "unfinished_page",
]

_MAX_MODEL: Final = 256  # bytes of UTF-8
_MAX_BLOCK_SIZE: Final = (1 << 32) - 1


class FileKind(Enum):
    """What the first page of a file says, without a look at its contents."""

    EMPTY = "empty"  # of length 0: perhaps opened a moment ago by a creator
    FOREIGN = "foreign"  # something else
    UNFINISHED = "unfinished"  # begun with our layout, `ready` not stored
    SEGMENT = "segment"  # to be checked


@dataclass(frozen=True)
class Header:
    """What the immutable part of a header says; all of it checked.

    The capacity is resolved, and the geometry, derived from it, equals the section table in the file.
    """

    uuid: uuid.UUID
    capacity: Capacity
    geometry: Geometry
    block_size: int | None  # tokens; None: the creator gave none
    model: str | None
    exact_holes: bool
    seed: int  # of the child table's hash, 1 <= seed < 2**63
    creator_pid: int  # in the creator's pid namespace; for messages
    created_ns: int  # wall clock, ns since 1970

    @classmethod
    def new(cls, capacity: Capacity, block_size: int | None, model: str | None, exact_holes: bool) -> Header:
        """A header for a new segment, with a fresh uuid and seed.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong type or out of range.
        """
        check_stamps(block_size, model)
        full = capacity.resolved(exact_holes)
        return cls(
            uuid=uuid.uuid4(),
            capacity=full,
            geometry=geometry(full),
            block_size=block_size,
            model=model or None,
            exact_holes=bool(exact_holes),
            seed=secrets.randbelow((1 << 63) - 1) + 1,
            creator_pid=os.getpid(),
            created_ns=time.time_ns(),
        )


def check_stamps(block_size: int | None, model: str | None) -> None:
    """Check the two arguments that a segment is stamped with; None and "" mean not given.

    Raises
    ------
    TypeError
        If `block_size` is no int or `model` no str.
    ValueError
        If `block_size` is not in [1, 2**32), or `model` has more than 256 bytes of UTF-8 or a NUL.
    """
    if block_size is not None:
        if isinstance(block_size, bool) or not isinstance(block_size, (int, np.integer)):
            raise TypeError(f"block_size must be an int, got {type(block_size).__name__}")
        if not 1 <= block_size <= _MAX_BLOCK_SIZE:
            raise ValueError(f"block_size must be in [1, 2**32), got {block_size}")
    if model is not None:
        if not isinstance(model, str):
            raise TypeError(f"model must be a str, got {type(model).__name__}")
        if len(model.encode()) > _MAX_MODEL or "\0" in model:
            raise ValueError(f"model must have at most {_MAX_MODEL} bytes of UTF-8 and no NUL")


@lru_cache(maxsize=1)
def boot_id() -> bytes:
    """The 16 bytes that name this boot of the machine; zeros where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return bytes.fromhex(file.read().decode().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


# ------------------------------------------------------------------------------------------------ write
def unfinished_page(creator_pid: int) -> bytes:
    """The page that a creator writes first: it claims the file for us and says whose it is."""
    return _blank(creator_pid).tobytes()


def build_page(header: Header) -> bytes:
    """The whole header page of a segment that is not ready yet.

    Returns
    -------
    bytes
        `PAGE` bytes; the CRC is in, `ready` is 0.
    """
    page = _blank(header.creator_pid)
    capacity = header.capacity
    page["uuid"] = np.void(header.uuid.bytes)
    page["total_bytes"] = header.geometry.total_bytes
    page["created_ns"] = header.created_ns
    page["seed"] = header.seed
    page["flags"] = FLAG_EXACT_HOLES if header.exact_holes else 0
    page["block_size"] = header.block_size or 0
    page["capacity"][:6] = (
        capacity.blocks,
        capacity.workers,
        capacity.lanes,
        capacity.nodes,
        capacity.aliases,
        capacity.extents,
    )
    page["model"] = (header.model or "").encode()
    page["sections"] = _section_table(header.geometry)
    page["nodes_high"] = 1  # the root
    page["header_crc"] = _crc(page.tobytes())
    return page.tobytes()


def _blank(creator_pid: int) -> npt.NDArray[Any]:
    page = np.zeros((), HEADER)
    page["magic"] = MAGIC
    page["layout_version"] = LAYOUT_VERSION
    page["word_mark"] = WORD_MARK
    page["layout_hash"] = LAYOUT_HASH
    page["boot_id"] = np.void(boot_id())
    page["creator_pid"] = creator_pid
    return page


def _section_table(places: Geometry) -> npt.NDArray[Any]:
    table = np.zeros(HEADER["sections"].shape, HEADER["sections"].base)
    for row, place in enumerate(places.sections.values()):
        table[row] = place
    return table


def _crc(page: bytes) -> int:
    immutable = np.frombuffer(bytearray(page), HEADER, 1)
    immutable["header_crc"] = 0
    return zlib.crc32(immutable.tobytes()[:H_IMMUTABLE_END])


# ------------------------------------------------------------------------------------------------ read
def file_kind(page: bytes) -> FileKind:
    """Sort a file by its first page.

    Parameters
    ----------
    page : bytes
        The first `PAGE` bytes of the file, fewer when it is shorter.
    """
    if not page:
        return FileKind.EMPTY
    if not page.startswith(MAGIC):
        return FileKind.FOREIGN
    if len(page) < PAGE:
        return FileKind.SEGMENT  # truncated: the check will say so
    if not is_readable_layout(page):
        return FileKind.SEGMENT  # we do not know where its `ready` is
    ready = np.frombuffer(page, HEADER, 1)["ready"][0]
    return FileKind.SEGMENT if ready else FileKind.UNFINISHED


def is_readable_layout(page: bytes) -> bool:
    """Whether this is the header page, damaged or not, of a segment with the layout of this process."""
    if len(page) < PAGE or not page.startswith(MAGIC):
        return False
    fields = np.frombuffer(page, HEADER, 1)[0]
    return bool(
        fields["word_mark"] == WORD_MARK
        and fields["layout_version"] == LAYOUT_VERSION
        and fields["layout_hash"] == LAYOUT_HASH
    )


def is_of_earlier_boot(page: bytes) -> bool:
    """Whether an undamaged segment's page, of our layout, was written before this machine last booted."""
    if not is_readable_layout(page):
        return False
    fields = np.frombuffer(page, HEADER, 1)[0]
    stamped, current = fields["boot_id"].tobytes(), boot_id()
    if stamped == current or not any(stamped) or not any(current):
        return False
    return _crc(page) == int(fields["header_crc"])


def salvage_page(page: bytes, name: str) -> Header | None:
    """What the header page of a segment says, if it can be trusted, whatever the rest of the file is like."""
    if not is_readable_layout(page):
        return None
    fields = np.frombuffer(page, HEADER, 1)[0]
    if _crc(page) != int(fields["header_crc"]):
        return None
    try:
        return _contents(fields, int(fields["total_bytes"]), name)
    except (SegmentCorrupt, SegmentIncompatible):
        return None


def check_page(page: bytes, file_size: int, name: str) -> Header:
    """Check the header page of a segment and return what it says.

    Parameters
    ----------
    page : bytes
        The first `PAGE` bytes of the file, fewer when it is shorter.
    file_size : int
        Bytes of the whole file.
    name : str
        Of the segment, for messages.

    Returns
    -------
    Header

    Raises
    ------
    SegmentIncompatible
        If it was made on a machine of another byte order, by a version with another layout, or before the
        last boot of this machine.
    SegmentCorrupt
        If it is no segment, truncated or grown, or its contents contradict its checksum or each other.
    """
    if not page.startswith(MAGIC):
        raise SegmentCorrupt(f"{name!r} in shared memory is no shmtrie segment: use another name")
    if len(page) < PAGE:
        raise _corrupt(name, f"truncated to {file_size} bytes, less than its header")
    fields = np.frombuffer(page, HEADER, 1)[0]
    if not is_readable_layout(page):
        raise _other_layout(fields, name)
    if _crc(page) != int(fields["header_crc"]):
        raise _corrupt(name, "the checksum of its header is wrong")
    if is_of_earlier_boot(page):
        raise SegmentIncompatible(
            f"segment {name!r} was made before this machine last booted and nobody keeps it up to date: "
            f"unlink it and create it anew"
        )
    return _contents(fields, file_size, name)


def _contents(fields: Any, file_size: int, name: str) -> Header:
    """Read the fields behind the checksum; what a creator cannot have written is refused all the same."""
    try:
        capacity = Capacity(*(int(word) for word in fields["capacity"][:6]))
        places = geometry(capacity)
        model = bytes(fields["model"]).decode() or None
    except ValueError as error:  # out of range, or no UTF-8
        raise _corrupt(name, str(error)) from None
    if capacity != capacity.resolved() or not 0 < int(fields["seed"]) < 1 << 63:
        raise _corrupt(name, "its capacity or seed is not one that a creator writes")
    if int(fields["flags"]) & ~FLAG_EXACT_HOLES:
        raise SegmentIncompatible(f"segment {name!r} has flags that this version does not know: upgrade")
    if fields["sections"].tobytes() != _section_table(places).tobytes():
        raise _corrupt(name, "its section table does not fit its capacity")
    if int(fields["total_bytes"]) != places.total_bytes:
        raise _corrupt(name, "its total size does not fit its capacity")
    if file_size != places.total_bytes:
        what = "truncated" if file_size < places.total_bytes else "grown"
        raise _corrupt(name, f"{what}: the file has {file_size} bytes instead of {places.total_bytes}")
    return Header(
        uuid=uuid.UUID(bytes=fields["uuid"].tobytes()),
        capacity=capacity,
        geometry=places,
        block_size=int(fields["block_size"]) or None,
        model=model,
        exact_holes=bool(int(fields["flags"]) & FLAG_EXACT_HOLES),
        seed=int(fields["seed"]),
        creator_pid=int(fields["creator_pid"]),
        created_ns=int(fields["created_ns"]),
    )


def _corrupt(name: str, what: str) -> SegmentCorrupt:
    return SegmentCorrupt(f"segment {name!r} is damaged ({what}): unlink it and create it anew")


def _other_layout(fields: Any, name: str) -> SegmentIncompatible:
    if int(fields["word_mark"]) != WORD_MARK:
        what = "was made on a machine of another byte order"
    elif int(fields["layout_version"]) != LAYOUT_VERSION:
        what = f"has layout version {int(fields['layout_version'])}, this package has {LAYOUT_VERSION}"
    else:
        what = "was made by a build with another layout of the same version"
    return SegmentIncompatible(
        f"segment {name!r} {what}: use the same version of shmtrie in all processes, or unlink it"
    )
