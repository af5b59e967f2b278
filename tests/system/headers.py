"""Headers of segments, changed by hand."""

from __future__ import annotations

import zlib
from pathlib import Path

from shmtrie.layout import H_IMMUTABLE_END, HEADER, PAGE, offset


def patch_header(path: Path, at: int, content: bytes, fix_crc: bool) -> None:
    """Write bytes into the header page of a file, and the checksum that belongs to them."""
    page = bytearray(path.read_bytes()[:PAGE])
    page[at : at + len(content)] = content
    if fix_crc:
        crc = offset(HEADER, "header_crc")
        page[crc : crc + 4] = bytes(4)
        page[crc : crc + 4] = zlib.crc32(page[:H_IMMUTABLE_END]).to_bytes(4, "little")
    with path.open("r+b") as file:
        file.write(page)


def make_stale(path: Path) -> None:
    """Make a segment look as if the machine had booted since."""
    patch_header(path, offset(HEADER, "boot_id"), bytes(range(1, 17)), fix_crc=True)
