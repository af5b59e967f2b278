"""The private lookup of hashes that ranks have for themselves: (rank, external hash) -> place.

Entries of 16 bytes, four a line: the hash; node 32 | offset 16 | slot 16. As in lookup.py they are hints
that the segment confirms: by the alias extent, and the rank's coverage. The table is in parts, as well.
"""

from __future__ import annotations

from shmtrie.atomics import ctz, ld32, ld64, lshr, pl64, prefetch, ps64
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import C_ALIASES, C_HAS_ALIASES, C_MINE, C_N_NODES, get, put
from shmtrie.kernels.coverage import word_covers
from shmtrie.kernels.parts import P_FREE, P_USED, mix, part_add, part_lines, part_room, row_of
from shmtrie.kernels.places import own_alias, own_word, suffix_at
from shmtrie.kernels.protocol import node_at
from shmtrie.layout import COV_ALIAS, LINE, M32, N_START
from shmtrie.vectors import eq8

ALIAS_FILL = 3.5  # entries a line, at most
HASHES, VALUES = 0x55, 0xAA  # words of a line, as bits


@inl
def alias_mix(slot, h):
    return mix(h ^ (slot * 0x2545F4914F6CDD1D))


@inl
def _row(ctx, x):
    """Address of the directory's row for a mixed hash."""
    return row_of(get(ctx, C_ALIASES), x)


@inl
def _line(x, mask):
    """Number of the line of a mixed hash: by other bits than those of the part."""
    return lshr(x, 20) & mask


@inl
def alias_part_room(ctx, slot, h, n):
    """Whether n more entries may be put where one under `h` belongs."""
    return part_room(_row(ctx, alias_mix(slot, h)), n)


@inl
def alias_value(node, offset, slot):
    return (node << 32) | (offset << 16) | slot


@inl
def alias_prefetch(ctx, slot, h):
    x = alias_mix(slot, h)
    lines, mask = part_lines(_row(ctx, x))
    prefetch(lines + _line(x, mask) * LINE)


@inl
def _entries(b, slot, h):
    """Entries of a line that are under a rank's hash: bit 2 k for the k-th."""
    found = 0
    m = eq8(b, -1, h) & HASHES
    while m != 0:
        value = pl64(b + ctz(m) * 8 + 8)
        if value != 0 and value != 1 and (value & 0xFFFF) == slot:
            found |= m & -m
        m &= m - 1
    return found


@inl
def _place(ctx, value):
    """(node, depth) of the block that an entry leads to, or zeros."""
    node = lshr(value, 32)
    if node >= get(ctx, C_N_NODES):
        return 0, 0
    depth = (ld64(node_at(ctx, node) + N_START) & M32) + ((value >> 16) & 0xFFFF)
    return suffix_at(ctx, node, depth), depth


@inl
def _confirmed(ctx, node, depth, slot, h):
    """Whether the rank covers the place, with `h` for its own hash."""
    a = node_at(ctx, node)
    position = depth - (ld64(a + N_START) & M32)
    low = own_word(ctx, a, slot)
    if (low & COV_ALIAS) == 0 or not word_covers(low, position):
        return 0
    found, own = own_alias(ctx, a, slot, position)
    return 1 if found != 0 and own == h else 0


@jit
def alias_entry_find(ctx, slot, h):
    """(address of the entry, node, depth) of the place that the rank covers with its own hash `h`, or
    zeros.
    """
    if get(ctx, C_HAS_ALIASES) == 0:
        return 0, 0, 0
    x = alias_mix(slot, h)
    lines, mask = part_lines(_row(ctx, x))
    line = _line(x, mask)
    for _ in range(mask + 1):
        b = lines + line * LINE
        m = _entries(b, slot, h)
        while m != 0:
            entry_at = b + ctz(m) * 8
            m &= m - 1
            node, depth = _place(ctx, pl64(entry_at + 8))
            if node != 0 and _confirmed(ctx, node, depth, slot, h) != 0:
                return entry_at, node, depth
        if (eq8(b, -1, 0) & VALUES) != 0:
            break
        line = (line + 1) & mask
    return 0, 0, 0


@jit
def alias_entry_put(ctx, slot, h, value):
    """Enter a place (see `alias_value`) under the rank's own hash, unless it is there."""
    x = alias_mix(slot, h)
    row = _row(ctx, x)
    lines, mask = part_lines(row)
    line = _line(x, mask)
    free_at = 0
    for _ in range(mask + 1):
        b = lines + line * LINE
        m = _entries(b, slot, h)
        while m != 0:
            if pl64(b + ctz(m) * 8 + 8) == value:
                return
            m &= m - 1
        tombs, empty = eq8(b, -1, 1) & VALUES, eq8(b, -1, 0) & VALUES
        if free_at == 0 and (tombs | empty) != 0:
            free_at = b + ctz(tombs if tombs != 0 else empty) * 8
        if empty != 0:
            break
        line = (line + 1) & mask
    if free_at == 0:  # as in `lookup_put`
        return
    if pl64(free_at) == 0:
        part_add(row, P_FREE, -1)
    ps64(free_at - 8, h)
    ps64(free_at, value)
    part_add(row, P_USED, 1)
    put(ctx, C_HAS_ALIASES, 1)


@jit
def alias_entry_delete(ctx, slot, h, node, depth):
    """Delete the rank's entries under `h` that lead to the place."""
    x = alias_mix(slot, h)
    row = _row(ctx, x)
    lines, mask = part_lines(row)
    line = _line(x, mask)
    for _ in range(mask + 1):
        b = lines + line * LINE
        is_open = (eq8(b, -1, 0) & VALUES) != 0
        m = _entries(b, slot, h)
        while m != 0:
            entry_at = b + ctz(m) * 8
            m &= m - 1
            other, there = _place(ctx, pl64(entry_at + 8))
            if other == node and there == depth:
                ps64(entry_at + 8, 0 if is_open else 1)
                if is_open:
                    part_add(row, P_FREE, 1)
                part_add(row, P_USED, -1)
        if is_open:
            return
        line = (line + 1) & mask


@jit
def alias_entries_rehash(ctx, old, lines):
    """Move the entries of what was a hash table into those that have taken its place; those that nothing
    confirms are dropped, and those of ranks that have left the lane.
    """
    for k in range(lines * 4):
        h, value = pl64(old + k * 16), pl64(old + k * 16 + 8)
        slot = value & 0xFFFF
        if value == 0 or value == 1 or ld32(get(ctx, C_MINE) + slot * 4) == 0:
            continue
        node, depth = _place(ctx, value)
        if node != 0 and _confirmed(ctx, node, depth, slot, h) != 0:
            position = depth - (ld64(node_at(ctx, node) + N_START) & M32)
            alias_entry_put(ctx, slot, h, alias_value(node, position, slot))


@jit
def carry_alias_entries(ctx, old, lines):
    """The same of all of them, without a look at the segment."""
    for k in range(lines * 4):
        h, value = pl64(old + k * 16), pl64(old + k * 16 + 8)
        if value == 0 or value == 1:
            continue
        x = alias_mix(value & 0xFFFF, h)
        row = _row(ctx, x)
        there, mask = part_lines(row)
        line = _line(x, mask)
        for _ in range(mask + 1):  # the tables have room for all, and no tombstones
            b = there + line * LINE
            m = eq8(b, -1, 0) & VALUES
            if m != 0:
                ps64(b + ctz(m) * 8 - 8, h)
                ps64(b + ctz(m) * 8, value)
                break
            line = (line + 1) & mask
        part_add(row, P_FREE, -1)
        part_add(row, P_USED, 1)
