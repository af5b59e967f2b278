"""The lane's lookup is in parts, of which some grow at a time, so that growing never takes long.

A table of millions of entries takes a good part of a second to rehash, and its lane's events wait meanwhile.
Which part an entry belongs to is told by bits of its mixed hash that neither the line in the part nor the tag
of an entry uses. The directory has a row for each part; who grows them is `shmtrie.tables`::

    address of its lines | lines - 1 | entries | tombstones
"""

from __future__ import annotations

from shmtrie.atomics import lshr, pl64, ps64
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import C_LOOKUP, C_PART_NEEDS, get

PARTS = 256
PART = 35  # bits of a mixed hash from here on say which part; lines take those below, tags those from 43
P_LINES, P_MASK, P_USED, P_TOMBS = 0, 8, 16, 24
PART_BYTES = 32
LOOKUP_FILL = 7  # entries a line, beyond which a part grows
FEW = 16  # so many hashes are not counted by part if each part has room for all of them


@inl
def mix(h):
    x = h * 0x1E3779B97F4A7C15
    return x ^ lshr(x, 32)


@inl
def part_of(ctx, x):
    """Address of the directory row of the part in which entries of the mixed hash `x` are."""
    return get(ctx, C_LOOKUP) + (lshr(x, PART) & (PARTS - 1)) * PART_BYTES


@inl
def part_add(row, word, n):
    """Add to a number of a row."""
    ps64(row + word, pl64(row + word) + n)


@inl
def part_room(row, n):
    """Whether n more entries may be put into the part."""
    return pl64(row + P_USED) + pl64(row + P_TOMBS) + n <= (pl64(row + P_MASK) + 1) * LOOKUP_FILL


@jit
def clear_needs(ctx):
    for p in range(PARTS):
        ps64(get(ctx, C_PART_NEEDS) + p * 8, 0)


@inl
def add_need(ctx, h):
    """One more entry is to be put under the hash `h`."""
    at = get(ctx, C_PART_NEEDS) + (lshr(mix(h), PART) & (PARTS - 1)) * 8
    ps64(at, pl64(at) + 1)


@jit
def _room_by_part(ctx, hashes, n):
    clear_needs(ctx)
    for i in range(n):
        add_need(ctx, pl64(hashes + i * 8))
    for p in range(PARTS):
        if not part_room(get(ctx, C_LOOKUP) + p * PART_BYTES, pl64(get(ctx, C_PART_NEEDS) + p * 8)):
            return 0
    return 1


@inl
def lookup_room(ctx, hashes, n):
    """1 if an entry may be put for each of n hashes, which are at an address; 0 with the needs by part."""
    if n <= FEW:
        i = 0
        while i < n and part_room(part_of(ctx, mix(pl64(hashes + i * 8))), n):
            i += 1
        if i >= n:
            return 1
    return _room_by_part(ctx, hashes, n)
