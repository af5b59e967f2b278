"""The lane's lookup is in parts, so that it can grow some at a time, which never takes long.

A table of millions of entries takes a good part of a second to rehash, and its lane's events wait meanwhile.
Which part an entry belongs to is told by bits of its mixed hash that neither the line nor the tag of an entry
uses. The directory says for each part where the words of its hash table are, which may be that of others,
too; who grows them is `shmtrie.tables`::

    address of its lines | lines - 1 | entries | tombstones | how many of both there may be
"""

from __future__ import annotations

from shmtrie.atomics import lshr, pl64, ps64
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import C_LOOKUP, C_PART_NEEDS, get

PARTS = 256
PART = 35  # bits of a mixed hash from here on say which part; lines take those below, tags those from 43
P_LINES, P_MASK, P_USED, P_TOMBS, P_LIMIT = 0, 8, 16, 24, 32
PART_WORDS = 8  # one cache line
LOOKUP_FILL = 7  # entries a line, at most


@inl
def mix(h):
    x = h * 0x1E3779B97F4A7C15
    return x ^ lshr(x, 32)


@inl
def part_of(ctx, x):
    """Address of the words of the hash table in which entries of the mixed hash `x` are."""
    return pl64(get(ctx, C_LOOKUP) + (lshr(x, PART) & (PARTS - 1)) * 8)


@inl
def part_add(words, which, n):
    """Add to one of the words."""
    ps64(words + which, pl64(words + which) + n)


@inl
def part_room(words, n):
    """Whether n more entries may be put."""
    return pl64(words + P_USED) + pl64(words + P_TOMBS) + n <= pl64(words + P_LIMIT)


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
        its = pl64(get(ctx, C_LOOKUP) + p * 8)
        if its != words:
            words, need = its, 0
        need += pl64(get(ctx, C_PART_NEEDS) + p * 8)
        if not part_room(words, need):
            return 0
    return 1


@inl
def lookup_room(ctx, hashes, n):
    """1 if an entry may be put for each of n hashes, which are at an address; 0 with the needs by part."""
    i = 0
    while i < n and part_room(part_of(ctx, mix(pl64(hashes + i * 8))), n):
        i += 1
    return 1 if i >= n else _room_by_part(ctx, hashes, n)
