"""The lane's lookups are in parts, so that they can grow some at a time, which never takes long.

A table of millions of entries takes a good part of a second to rehash, and its lane's events wait meanwhile.
Each lookup has a directory, with a row of two words for each part: address of the lines of its hash table,
which may be that of others, too, with the logarithm of their number in the low bits; and where the table's
words are::

    entries | empty words that may be filled | 1: some entry is `AWAY` lines or more from its own

Bits of a mixed hash, and whether the tag of an entry of the shared lookup has them::

    0..4 line (tag) | 5..11 line | 12..19 part (tag) | 20..27 (tag) | 28.. line

So where an entry stands and its tag say where it belongs in a table of 4,096 lines, whatever its parts,
without a look at the segment for its hash: from the line where it stands, five bits of the tag lead back to
the line that is its own, if that is less than `AWAY` before.

Entries of the lookup of aliases have their whole hash. Who grows both is `shmtrie.tables`.
"""

from __future__ import annotations

from shmtrie.atomics import lshr, pl64, ps64
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import C_LOOKUP, C_PART_NEEDS, get

PARTS = 256
PART = 12  # bits of a mixed hash from here on say which part
LINES = 1 << PART
TAG = (1 << 21) - 1
PART_OF_TAG = 5  # bits of a tag from here on are those of the part
AWAY = 32  # lines
D_LINES, D_WORDS = 0, 8  # of the directory
ROW = 16
P_USED, P_FREE, P_AWAY = 0, 8, 16  # of a hash table
LOOKUP_FILL = 6.75  # entries a line, at most: beyond that, one is soon so far away


@inl
def mix(h):
    x = h * 0x1E3779B97F4A7C15
    return x ^ lshr(x, 32)


@inl
def tag_of(x):
    """What an entry keeps of a mixed hash: bits 12 to 27, then 0 to 4."""
    return (lshr(x, PART - PART_OF_TAG) & (TAG ^ (AWAY - 1))) | (x & (AWAY - 1))


@inl
def line_of(x, mask):
    """Number of the line of a mixed hash, in a table of `mask` + 1."""
    return ((x & LINES - 1) | (lshr(x, 16) & -LINES)) & mask


@inl
def known_bits(at, tag):
    """Bits 0 to 27 of an entry's mixed hash, by its tag and a line less than AWAY behind its own; in a table
    of `LINES`.
    """
    own = (at - ((at - tag) & (AWAY - 1))) & (LINES - 1)
    return own | ((tag >> PART_OF_TAG) << PART)


@inl
def row_of(directory, x):
    """Address of a directory's row for the mixed hash `x`."""
    return directory + (lshr(x, PART) & (PARTS - 1)) * ROW


@inl
def part_row(ctx, x):
    """The same in the shared lookup."""
    return row_of(get(ctx, C_LOOKUP), x)


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
def add_need(ctx, x):
    """One more entry is to be put under the mixed hash `x`."""
    at = get(ctx, C_PART_NEEDS) + (lshr(x, PART) & (PARTS - 1)) * 8
    ps64(at, pl64(at) + 1)


@jit
def needs_fit(ctx, directory):
    """1 if all hash tables have room for the needs of their parts."""
    words, need = 0, 0
    for p in range(PARTS):  # those of one hash table lie side by side
        row = directory + p * ROW
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
    if i >= n:
        return 1
    clear_needs(ctx)
    for i in range(n):
        add_need(ctx, mix(pl64(hashes + i * 8)))
    return needs_fit(ctx, get(ctx, C_LOOKUP))
