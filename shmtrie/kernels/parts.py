"""The lane's lookup is in parts, so that it can grow some at a time, which never takes long.

A table of millions of entries takes a good part of a second to rehash, and its lane's events wait meanwhile.
Which part an entry belongs to is told by bits of its mixed hash that neither the line nor the tag of an entry
uses. The directory has a row of two words for each part: address of the lines of its hash table, which may be
that of others, too, with the logarithm of their number in the low bits; and where the table's words are::

    entries | how many more it takes

Who grows them is `shmtrie.tables`.
"""

from __future__ import annotations

from shmtrie.atomics import lshr, pl64, ps64
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import C_LOOKUP, C_PART_NEEDS, get

PARTS = 256
PART = 35  # bits of a mixed hash from here on say which part; lines take those below, tags those from 43
D_LINES, D_WORDS = 0, 8  # of the directory
ROW = 16
P_USED, P_FREE = 0, 8  # of a hash table
LOOKUP_FILL = 7  # entries a line, at most


@inl
def mix(h):
    x = h * 0x1E3779B97F4A7C15
    return x ^ lshr(x, 32)


@inl
def part_row(ctx, x):
    """Address of the directory's row for the mixed hash `x`."""
    return get(ctx, C_LOOKUP) + (lshr(x, PART) & (PARTS - 1)) * ROW


@inl
def part_lines(row):
    """Address of the lines of a part's hash table, and their number - 1."""
    word = pl64(row + D_LINES)
    return word & ~63, (1 << (word & 63)) - 1


@inl
def part_add(row, which, n):
    """Add to one of the words of a part's hash table."""
    at = pl64(row + D_WORDS) + which
    ps64(at, pl64(at) + n)


@inl
def part_room(row, n):
    """Whether n more entries may be put into a part's hash table."""
    return pl64(pl64(row + D_WORDS) + P_FREE) >= n


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
    """0 if a hash table has no room for those of the hashes that are its own; the needs say how many."""
    clear_needs(ctx)
    for i in range(n):
        add_need(ctx, pl64(hashes + i * 8))
    words, need = 0, 0
    for p in range(PARTS):  # those of one hash table lie side by side
        row = get(ctx, C_LOOKUP) + p * ROW
        if pl64(row + D_WORDS) != words:
            words, need = pl64(row + D_WORDS), 0
        need += pl64(get(ctx, C_PART_NEEDS) + p * 8)
        if not part_room(row, need):
            return 0
    return 1


@inl
def lookup_room(ctx, hashes, n):
    """1 if an entry may be put for each of n hashes, which are at an address; 0 with the needs by part."""
    i = 0
    while i < n and part_room(part_row(ctx, mix(pl64(hashes + i * 8))), n):
        i += 1
    return 1 if i >= n else _room_by_part(ctx, hashes, n)
