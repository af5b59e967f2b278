"""The lane's private lookup: external hash -> place.

Two open-addressing tables outside the segment, both kept in parts (``parts``). The shared one has 8-byte
entries (node 32 | offset in the edge 11 | hash tag 21) for the hashes of edges; one entry serves all ranks of
the lane. That of aliases (``alias_lookup``) is for hashes of ranks that have their own. Entries are hints
that the segment confirms: the hash in the edge or alias extent, and the rank's coverage. So an entry of a
node that was reclaimed or used again is either right or ignored.

A split by another lane leaves entries that name the old prefix. They are resolved over the suffix links and
then repaired for the range that will be asked next.
"""

from __future__ import annotations

from shmtrie.atomics import ctz, ld64, lshr, ones, pl64, prefetch, ps64
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import (
    C_CUTS,
    C_EXTENTS,
    C_LOOKUP,
    C_N_NODES,
    get,
)
from shmtrie.kernels.coverage import word_covers
from shmtrie.kernels.edges import edge_fits
from shmtrie.kernels.parts import (
    AWAY,
    LINES,
    P_AWAY,
    P_FREE,
    P_USED,
    PART_OF_TAG,
    ROW,
    TAG,
    known_bits,
    line_of,
    mix,
    part_add,
    part_lines,
    part_row,
    tag_of,
)
from shmtrie.kernels.places import FOUND, hash_at, own_most, own_word, place_of
from shmtrie.kernels.protocol import count, node_at, scratch_get, scratch_put
from shmtrie.layout import COUNTERS, COV_ALIAS, LINE, M32, N_EDGE, N_START
from shmtrie.vectors import eq8, pack8

OFFSET, PLACE_MASK = 21, 2047
GROUP = 32  # entries that a rehash moves at a time, in the scratch area of a store's cuts
(G_ENTRY, G_NODE, G_DEPTH, G_HASH) = range(4)
G_WIDTH = 4
REPAIRS = COUNTERS.index("repairs")


@inl
def _place(ctx, entry, h):
    """(node, depth) of an entry if the edge has `h` there, else (0, 0)."""
    node, depth, got = place_of(ctx, lshr(entry, 32), (entry >> OFFSET) & PLACE_MASK)
    if got != h:
        return 0, 0
    return node, depth


@jit
def lookup_find(ctx, slot, h, passed):
    """(address of the entry, node, depth) of the place that the rank covers with the edge's hash `h`, or
    zeros. `passed` is an entry that is not looked at, see `lookup_entry`; 0: all are.
    """
    x = mix(h)
    row = part_row(ctx, x)
    lines, mask = part_lines(row)
    line = line_of(x, mask)
    tag = tag_of(x)
    for _ in range(mask + 1):
        b = lines + line * LINE
        m = eq8(b, TAG, tag)
        while m != 0:
            entry_at = b + ctz(m) * 8
            m &= m - 1
            entry = pl64(entry_at)
            if lshr(entry, 32) != 0 and entry != passed | tag:
                node, depth = _place(ctx, entry, h)
                if node != 0:
                    a = node_at(ctx, node)
                    low = own_word(ctx, a, slot)
                    if (low & COV_ALIAS) == 0 and word_covers(low, depth - (ld64(a + N_START) & M32)):
                        return entry_at, node, depth
        if eq8(b, -1, 0) != 0:
            break
        line = (line + 1) & mask
    return 0, 0, 0


@inl
def lookup_lacks(ctx, h):
    """1 if nothing is entered under a hash, as one line can tell; 0 says nothing."""
    x = mix(h)
    lines, mask = part_lines(part_row(ctx, x))
    b = lines + line_of(x, mask) * LINE
    return 1 if eq8(b, TAG, tag_of(x)) == 0 and eq8(b, -1, 0) != 0 else 0


@inl
def lookup_entry(node, offset):
    """The entry of a place, but for the tag."""
    return (node << 32) | (offset << OFFSET)


@inl
def lookup_prefetch(ctx, h):
    x = mix(h)
    lines, mask = part_lines(part_row(ctx, x))
    prefetch(lines + line_of(x, mask) * LINE)


@inl
def _put_entry(row, x, entry):
    """Enter an entry where it belongs by the mixed hash, or those bits of it that matter."""
    lines, mask = part_lines(row)
    line = line_of(x, mask)
    free = 0
    for away in range(mask + 1):
        b = lines + line * LINE
        empty = eq8(b, -1, 0)
        tombs = eq8(b, -1, 1)
        if away == AWAY:
            part_add(row, P_AWAY, 1)
        if tombs != 0:
            free = b + ctz(tombs) * 8
            break
        if empty != 0:
            free = b + ctz(empty) * 8
            part_add(row, P_FREE, -1)
            break
        line = (line + 1) & mask
    if free == 0:  # only damage makes a node have more places than were reckoned with
        return
    ps64(free, entry)
    part_add(row, P_USED, 1)


@jit
def lookup_put(ctx, h, node, offset):
    """Enter a place. The caller has seen to room, and that the lane has no entry for the place."""
    x = mix(h)
    _put_entry(part_row(ctx, x), x, lookup_entry(node, offset) | tag_of(x))


@inl
def _erase(row, b, entry_at):
    """A tombstone only in a full line: a probe stops at a line with an empty word."""
    if eq8(b, -1, 0) != 0:
        ps64(entry_at, 0)
        part_add(row, P_FREE, 1)
    else:
        ps64(entry_at, 1)
    part_add(row, P_USED, -1)


@jit
def lookup_delete(ctx, h, node, depth):
    """Delete the entry of the place (node, depth) under `h`; 1 if there was one."""
    a = node_at(ctx, node)
    x = mix(h)
    row = part_row(ctx, x)
    lines, mask = part_lines(row)
    line = line_of(x, mask)
    tag = tag_of(x)
    want = lookup_entry(node, depth - (ld64(a + N_START) & M32)) | tag
    for _ in range(mask + 1):
        b = lines + line * LINE
        m = eq8(b, -1, want)
        if m != 0:
            _erase(row, b, b + ctz(m) * 8)
            return 1
        m = eq8(b, TAG, tag)
        while m != 0:
            entry_at = b + ctz(m) * 8
            m &= m - 1
            entry = pl64(entry_at)
            if lshr(entry, 32) != 0:
                other, at_depth = _place(ctx, entry, h)
                if other == node and at_depth == depth:
                    _erase(row, b, entry_at)
                    return 1
        if eq8(b, -1, 0) != 0:
            return 0
        line = (line + 1) & mask
    return 0


@jit
def lookup_has(ctx, h, node, depth):
    """1 if there is an entry of the place."""
    x = mix(h)
    row = part_row(ctx, x)
    lines, mask = part_lines(row)
    line = line_of(x, mask)
    tag = tag_of(x)
    for _ in range(mask + 1):
        b = lines + line * LINE
        m = eq8(b, TAG, tag)
        while m != 0:
            entry = pl64(b + ctz(m) * 8)
            m &= m - 1
            if lshr(entry, 32) != 0:
                other, at_depth = _place(ctx, entry, h)
                if other == node and at_depth == depth:
                    return 1
        if eq8(b, -1, 0) != 0:
            return 0
        line = (line + 1) & mask
    return 0


@inl
def _address_of(ctx, x, entry):
    """Address of exactly this entry, whose hash mixes to `x`, or 0."""
    row = part_row(ctx, x)
    lines, mask = part_lines(row)
    line = line_of(x, mask)
    for _ in range(mask + 1):
        b = lines + line * LINE
        m = eq8(b, -1, entry)
        if m != 0:
            return b + ctz(m) * 8
        if eq8(b, -1, 0) != 0:
            return 0
        line = (line + 1) & mask
    return 0


@jit
def _repair_one(ctx, h, stale, node, depth):
    """Redirect the entry of a place that still names `stale`; nothing is inserted."""
    x = mix(h)
    tag = tag_of(x)
    want = lookup_entry(stale, depth - (ld64(node_at(ctx, stale) + N_START) & M32)) | tag
    entry_at = _address_of(ctx, x, want)
    if entry_at != 0:
        ps64(entry_at, lookup_entry(node, depth - (ld64(node_at(ctx, node) + N_START) & M32)) | tag)


@jit
def lookup_repair(ctx, stale, node, lo, hi):
    """Redirect the entries of [lo, hi) (absolute depths) from `stale` to the node that now has these
    blocks.
    """
    count(ctx, REPAIRS, 1)
    a = node_at(ctx, node)
    for depth in range(lo, hi):
        found, h = hash_at(ctx, a, depth)
        if found == FOUND:
            _repair_one(ctx, h, stale, node, depth)


@jit
def lookup_rehash(ctx, old, lines):
    """Move the entries of what was a hash table into those that have taken its place, each once.

    Those are left out that no rank of the lane needs: another lane's remove_worker, or a release, leaves
    them behind, and a rank that comes back enters its places once more.
    """
    rows = get(ctx, C_CUTS)
    k = 0
    while k < lines * 8:
        # a node, a hash and a line of the new table are far apart: each is asked for well before it is read
        n = 0
        while k < lines * 8 and n < GROUP:
            entry = pl64(old + k * 8)
            k += 1
            if lshr(entry, 32) != 0 and lshr(entry, 32) < get(ctx, C_N_NODES):
                scratch_put(rows, n, G_WIDTH, G_ENTRY, entry)
                prefetch(node_at(ctx, lshr(entry, 32)))
                n += 1
        for i in range(n):
            entry = scratch_get(rows, i, G_WIDTH, G_ENTRY)
            edge = ld64(node_at(ctx, lshr(entry, 32)) + N_EDGE)
            if edge_fits(ctx, edge):
                word = lshr(edge, 32) + ((entry >> OFFSET) & PLACE_MASK)
                prefetch(get(ctx, C_EXTENTS) + (edge & M32) * LINE + word * 8)
        for i in range(n):
            entry = scratch_get(rows, i, G_WIDTH, G_ENTRY)
            node, depth, h = place_of(ctx, lshr(entry, 32), (entry >> OFFSET) & PLACE_MASK)
            scratch_put(rows, i, G_WIDTH, G_NODE, node)
            scratch_put(rows, i, G_WIDTH, G_DEPTH, depth)
            scratch_put(rows, i, G_WIDTH, G_HASH, h)
            lookup_prefetch(ctx, h)
        for i in range(n):
            node, h = scratch_get(rows, i, G_WIDTH, G_NODE), scratch_get(rows, i, G_WIDTH, G_HASH)
            x = mix(h)
            if node == 0 or tag_of(x) != (scratch_get(rows, i, G_WIDTH, G_ENTRY) & TAG):
                continue
            a = node_at(ctx, node)
            offset = scratch_get(rows, i, G_WIDTH, G_DEPTH) - (ld64(a + N_START) & M32)
            if own_most(ctx, a) <= offset:
                continue
            if _address_of(ctx, x, lookup_entry(node, offset) | tag_of(x)) == 0:
                lookup_put(ctx, h, node, offset)


@inl
def _carry_line(b, mask, row, line):
    """Move those entries of a line that the mask has into the same line of another table; 0 if they do not
    fit.
    """
    lines, _ = part_lines(row)
    to, n = lines + line * LINE, ones(mask)
    used = ones(~eq8(to, -1, 0) & 255)
    if used + n > 8:
        return 0
    pack8(to + used * 8, b, mask)
    part_add(row, P_USED, n)
    part_add(row, P_FREE, -n)
    return mask


@jit
def carry_entries(ctx, old, first, half):
    """Move all entries of what was a hash table into those that have taken its place, by what their lines and
    tags say: none was AWAY from its own line, and each of the tables has `LINES`.

    Parameters
    ----------
    old : int64
        Address of its lines.
    first, half : int64
        The first part, and how many parts the table from there on has; beside it lies another with as many,
        unless it is 0.

    Notes
    -----
    Most entries are in their own line, and go into the same one of either table, all at once.
    """
    low = get(ctx, C_LOOKUP) + first * ROW
    high, bit = low + half * ROW, half << PART_OF_TAG
    for line in range(LINES):
        b = old + line * LINE
        rest = ~(eq8(b, -1, 0) | eq8(b, -1, 1)) & 255
        own = rest & eq8(b, AWAY - 1, line & (AWAY - 1))
        upper = own & eq8(b, bit, bit) if bit != 0 else 0
        rest &= ~_carry_line(b, own & ~upper, low, line)
        if upper != 0:
            rest &= ~_carry_line(b, upper, high, line)
        while rest != 0:
            entry = pl64(b + ctz(rest) * 8)
            rest &= rest - 1
            x = known_bits(line, entry & TAG)
            _put_entry(part_row(ctx, x), x, entry)
