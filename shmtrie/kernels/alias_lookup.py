"""The private lookup of hashes that ranks have for themselves: (rank, external hash) -> place.

Entries of 16 bytes, four a line: the hash; node 32 | offset 16 | slot 16. As in lookup.py they are hints
that the segment confirms: by the alias extent, and the rank's coverage.
"""

from __future__ import annotations

from shmtrie.atomics import ld64, lshr, pl64, ps64
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import (
    C_ALIASES,
    C_ALIASES_FREE,
    C_ALIASES_USED,
    C_N_NODES,
    get,
    put,
)
from shmtrie.kernels.coverage import word_covers
from shmtrie.kernels.parts import mix
from shmtrie.kernels.places import own_alias, own_word, suffix_at
from shmtrie.kernels.protocol import node_at
from shmtrie.layout import COV_ALIAS, LINE, M32, N_START

ALIAS_FILL = 3  # entries a line, at most


# ----------------------------------------------------------------------------- alias entries
@inl
def alias_entry_room(ctx, n):
    """Whether n more entries may be put."""
    return n <= get(ctx, C_ALIASES_FREE)


@inl
def _lines(ctx):
    """Address of the lines, and their number - 1."""
    word = get(ctx, C_ALIASES)
    return word & ~63, (1 << (word & 63)) - 1


@inl
def _alias_line(mask, h, slot):
    return lshr(mix(h ^ (slot * 0x2545F4914F6CDD1D)), 20) & mask


@inl
def alias_value(node, offset, slot):
    return (node << 32) | (offset << 16) | slot


@jit
def alias_entry_find(ctx, slot, h):
    """(address of the entry, node, depth) of the place that the rank covers with its own hash `h`, or
    zeros.
    """
    if get(ctx, C_ALIASES_USED) == 0:
        return 0, 0, 0
    lines, mask = _lines(ctx)
    line = _alias_line(mask, h, slot)
    for _ in range(mask + 1):
        b = lines + line * LINE
        open_ = 0
        for k in range(4):
            value = pl64(b + k * 16 + 8)
            if value == 0:
                open_ = 1
            elif value != 1 and pl64(b + k * 16) == h and (value & 0xFFFF) == slot:
                node = lshr(value, 32)
                if node < get(ctx, C_N_NODES):
                    depth = (ld64(node_at(ctx, node) + N_START) & M32) + ((value >> 16) & 0xFFFF)
                    node = suffix_at(ctx, node, depth)
                    if node != 0:
                        a = node_at(ctx, node)
                        position = depth - (ld64(a + N_START) & M32)
                        low = own_word(ctx, a, slot)
                        if (low & COV_ALIAS) != 0 and word_covers(low, position):
                            found, own = own_alias(ctx, a, slot, position)
                            if found != 0 and own == h:
                                return b + k * 16, node, depth
        if open_ != 0:
            break
        line = (line + 1) & mask
    return 0, 0, 0


@jit
def alias_entry_put(ctx, slot, h, node, offset):
    """Enter a place under the rank's own hash, unless it is there."""
    lines, mask = _lines(ctx)
    line = _alias_line(mask, h, slot)
    value = alias_value(node, offset, slot)
    free = 0
    for _ in range(mask + 1):
        b = lines + line * LINE
        open_ = 0
        for k in range(4):
            have = pl64(b + k * 16 + 8)
            if have == value and pl64(b + k * 16) == h:
                return
            if have == 0 or have == 1:
                if free == 0:
                    free = b + k * 16
                if have == 0:
                    open_ = 1
        if open_ != 0:
            break
        line = (line + 1) & mask
    if free == 0:  # as in `lookup_put`
        return
    if pl64(free + 8) == 0:
        put(ctx, C_ALIASES_FREE, get(ctx, C_ALIASES_FREE) - 1)
    ps64(free, h)
    ps64(free + 8, value)
    put(ctx, C_ALIASES_USED, get(ctx, C_ALIASES_USED) + 1)


@jit
def alias_entry_delete(ctx, slot, h, node, depth):
    """Delete the rank's entries under `h` that lead to the place."""
    lines, mask = _lines(ctx)
    line = _alias_line(mask, h, slot)
    for _ in range(mask + 1):
        b = lines + line * LINE
        open_ = 0
        for k in range(4):
            if pl64(b + k * 16 + 8) == 0:
                open_ = 1
        for k in range(4):
            value = pl64(b + k * 16 + 8)
            if value != 0 and value != 1 and pl64(b + k * 16) == h and (value & 0xFFFF) == slot:
                other = lshr(value, 32)
                if other < get(ctx, C_N_NODES):
                    there = (ld64(node_at(ctx, other) + N_START) & M32) + ((value >> 16) & 0xFFFF)
                    if there == depth and suffix_at(ctx, other, there) == node:
                        ps64(b + k * 16 + 8, 0 if open_ != 0 else 1)
                        if open_ != 0:
                            put(ctx, C_ALIASES_FREE, get(ctx, C_ALIASES_FREE) + 1)
                        put(ctx, C_ALIASES_USED, get(ctx, C_ALIASES_USED) - 1)
        if open_ != 0:
            return
        line = (line + 1) & mask


@jit
def alias_entries_rehash(ctx, old, lines):
    """Move the entries of an older alias table into the present one; those that nothing confirms are
    dropped.
    """
    for k in range(lines * 4):
        h, value = pl64(old + k * 16), pl64(old + k * 16 + 8)
        node, slot = lshr(value, 32), value & 0xFFFF
        if value == 0 or value == 1 or node >= get(ctx, C_N_NODES):
            continue
        depth = (ld64(node_at(ctx, node) + N_START) & M32) + ((value >> 16) & 0xFFFF)
        node = suffix_at(ctx, node, depth)
        if node == 0:
            continue
        a = node_at(ctx, node)
        position = depth - (ld64(a + N_START) & M32)
        found, own = own_alias(ctx, a, slot, position)
        if found != 0 and own == h and word_covers(own_word(ctx, a, slot), position):
            alias_entry_put(ctx, slot, h, node, position)
