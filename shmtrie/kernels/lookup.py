"""The lane's private lookup: external hash -> place.

Two open-addressing tables outside the segment. The shared one has 8-byte entries (node 32 | offset in the edge 11 | hash
tag 21) for the hashes of edges; one entry serves all ranks of the lane. The alias table has 16-byte entries (hash; node
32 | offset 16 | slot 16) for hashes of ranks that have their own. Entries are hints that the segment confirms: the hash in the edge or alias
extent, and the rank's coverage. So an entry of a node that was reclaimed or used again is either right or ignored.

A split by another lane leaves entries that name the old prefix. They are resolved over the suffix links and then repaired
for the range that will be asked next.
"""

from __future__ import annotations

from shmtrie.atomics import ctz, eq8, fence_acquire, ld64, ld64a, lshr, pl64, prefetch, ps64
from shmtrie.kernels.aliases import alias_hash, edge_hash_at
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import (
    C_ALIASES,
    C_ALIASES_MASK,
    C_ALIASES_TOMBS,
    C_ALIASES_USED,
    C_EXTENTS,
    C_LOOKUP,
    C_LOOKUP_MASK,
    C_LOOKUP_TOMBS,
    C_LOOKUP_USED,
    C_N_LINES,
    C_N_NODES,
    C_ORPHANS,
    get,
    put,
)
from shmtrie.kernels.coverage import cov_find, cov_max_mine
from shmtrie.kernels.protocol import count, node_at
from shmtrie.layout import COUNTERS, COV_ALIAS, LINE, M12, M31, M32, N_EDGE, N_START, N_SUFFIX, N_TAIL, N_VERSION

TAG = (1 << 21) - 1
OFFSET, OFFSET_MASK = 21, 2047
HOPS = 4_096  # suffix links followed for one entry
READS = 64  # times a torn snapshot is read again
REPAIRS = COUNTERS.index("repairs")


@inl
def mix(h):
    x = h * 0x1E3779B97F4A7C15
    return x ^ lshr(x, 32)


@inl
def suffix_at(ctx, node, depth):
    """The node on the suffix chain from `node` that has the block at `depth`, or 0."""
    for _ in range(HOPS):
        if node <= 0 or node >= get(ctx, C_N_NODES):
            return 0
        a = node_at(ctx, node)
        if depth < (ld64(a + N_TAIL) & M31):
            return node if depth >= (ld64(a + N_START) & M32) else 0
        node = ld64(a + N_SUFFIX) & M32
    return 0


@inl
def hash_at(ctx, a, depth):
    """(1, the edge's external hash at an absolute depth), validated by the version; (0, 0) when it has none there."""
    for _ in range(READS):
        v = ld64a(a + N_VERSION)
        begin, end, edge = ld64(a + N_START) & M32, ld64(a + N_TAIL) & M31, ld64(a + N_EDGE)
        line, capacity = edge & M32, lshr(edge, 32)
        if depth < begin or depth >= end or depth - begin >= capacity:
            return 0, 0
        if line <= 0 or line + ((capacity + 3) >> 2) > get(ctx, C_N_LINES) + 1:
            return 0, 0
        h = ld64(get(ctx, C_EXTENTS) + line * LINE + (capacity + depth - begin) * 8)
        fence_acquire()
        if ld64(a + N_VERSION) == v:
            return 1, h
    return 0, 0


@inl
def own_word(ctx, a, slot):
    """Low half of a rank's coverage word, validated by the version; 0 for none."""
    for _ in range(READS):
        v = ld64a(a + N_VERSION)
        _, low, _ = cov_find(ctx, a, slot)
        fence_acquire()
        if ld64(a + N_VERSION) == v:
            return low
    return 0


@inl
def own_alias(ctx, a, slot, position):
    """(1, the rank's alias hash at a position), validated by the version."""
    for _ in range(READS):
        v = ld64a(a + N_VERSION)
        found, h = alias_hash(ctx, a, slot, position)
        fence_acquire()
        if ld64(a + N_VERSION) == v:
            return found, h
    return 0, 0


# ------------------------------------------------------------------------------------------------ shared entries
@inl
def _place(ctx, entry, h):
    """(node, depth) of an entry if the edge has `h` there, else (0, 0)."""
    node = lshr(entry, 32)
    if node >= get(ctx, C_N_NODES):
        return 0, 0
    depth = (ld64(node_at(ctx, node) + N_START) & M32) + ((entry >> OFFSET) & OFFSET_MASK)
    node = suffix_at(ctx, node, depth)
    if node == 0:
        return 0, 0
    found, got = hash_at(ctx, node_at(ctx, node), depth)
    if found != 0 and got == h:
        return node, depth
    return 0, 0


@jit
def lookup_find(ctx, slot, h):
    """(address of the entry, node, depth) of the place that the rank covers with the edge's hash `h`, or zeros."""
    x = mix(h)
    line = x & get(ctx, C_LOOKUP_MASK)
    tag = lshr(x, 43)
    for _ in range(get(ctx, C_LOOKUP_MASK) + 1):
        b = get(ctx, C_LOOKUP) + line * LINE
        m = eq8(b, TAG, tag)
        while m != 0:
            entry_at = b + ctz(m) * 8
            m &= m - 1
            entry = pl64(entry_at)
            if lshr(entry, 32) != 0:
                node, depth = _place(ctx, entry, h)
                if node != 0:
                    a = node_at(ctx, node)
                    low = own_word(ctx, a, slot)
                    if (low & COV_ALIAS) == 0 and (low & M12) > depth - (ld64(a + N_START) & M32):
                        return entry_at, node, depth
        if eq8(b, -1, 0) != 0:
            break
        line = (line + 1) & get(ctx, C_LOOKUP_MASK)
    return 0, 0, 0


@inl
def lookup_prefetch(ctx, h):
    prefetch(get(ctx, C_LOOKUP) + (mix(h) & get(ctx, C_LOOKUP_MASK)) * LINE)


@jit
def lookup_put(ctx, h, node, offset):
    """Enter a place. The caller has seen to room, and that the lane has no entry for the place."""
    x = mix(h)
    line = x & get(ctx, C_LOOKUP_MASK)
    tag = lshr(x, 43)
    free = 0
    for _ in range(get(ctx, C_LOOKUP_MASK) + 1):
        b = get(ctx, C_LOOKUP) + line * LINE
        empty = eq8(b, -1, 0)
        tombs = eq8(b, -1, 1)
        if tombs != 0:
            free = b + ctz(tombs) * 8
            put(ctx, C_LOOKUP_TOMBS, get(ctx, C_LOOKUP_TOMBS) - 1)
            break
        if empty != 0:
            free = b + ctz(empty) * 8
            break
        line = (line + 1) & get(ctx, C_LOOKUP_MASK)
    ps64(free, (node << 32) | (offset << OFFSET) | tag)
    put(ctx, C_LOOKUP_USED, get(ctx, C_LOOKUP_USED) + 1)


@inl
def _erase(ctx, b, entry_at):
    """A tombstone only in a full line: a probe stops at a line with an empty word."""
    if eq8(b, -1, 0) != 0:
        ps64(entry_at, 0)
    else:
        ps64(entry_at, 1)
        put(ctx, C_LOOKUP_TOMBS, get(ctx, C_LOOKUP_TOMBS) + 1)
    put(ctx, C_LOOKUP_USED, get(ctx, C_LOOKUP_USED) - 1)


@jit
def lookup_delete(ctx, h, node, depth):
    """Delete the entry of the place (node, depth) under `h`; 1 if there was one."""
    a = node_at(ctx, node)
    x = mix(h)
    line = x & get(ctx, C_LOOKUP_MASK)
    tag = lshr(x, 43)
    want = (node << 32) | ((depth - (ld64(a + N_START) & M32)) << OFFSET) | tag
    for _ in range(get(ctx, C_LOOKUP_MASK) + 1):
        b = get(ctx, C_LOOKUP) + line * LINE
        m = eq8(b, -1, want)
        if m != 0:
            _erase(ctx, b, b + ctz(m) * 8)
            return 1
        m = eq8(b, TAG, tag)
        while m != 0:
            entry_at = b + ctz(m) * 8
            m &= m - 1
            entry = pl64(entry_at)
            if lshr(entry, 32) != 0:
                other, at_depth = _place(ctx, entry, h)
                if other == node and at_depth == depth:
                    _erase(ctx, b, entry_at)
                    return 1
        if eq8(b, -1, 0) != 0:
            return 0
        line = (line + 1) & get(ctx, C_LOOKUP_MASK)
    return 0


@jit
def lookup_has(ctx, h, node, depth):
    """1 if there is an entry of the place."""
    x = mix(h)
    line = x & get(ctx, C_LOOKUP_MASK)
    tag = lshr(x, 43)
    for _ in range(get(ctx, C_LOOKUP_MASK) + 1):
        b = get(ctx, C_LOOKUP) + line * LINE
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
        line = (line + 1) & get(ctx, C_LOOKUP_MASK)
    return 0


@jit
def _repair_one(ctx, h, stale, node, depth):
    """Redirect the entry of a place that still names `stale`; nothing is inserted."""
    x = mix(h)
    line = x & get(ctx, C_LOOKUP_MASK)
    tag = lshr(x, 43)
    want = (stale << 32) | ((depth - (ld64(node_at(ctx, stale) + N_START) & M32)) << OFFSET) | tag
    fixed = (node << 32) | ((depth - (ld64(node_at(ctx, node) + N_START) & M32)) << OFFSET) | tag
    for _ in range(get(ctx, C_LOOKUP_MASK) + 1):
        b = get(ctx, C_LOOKUP) + line * LINE
        m = eq8(b, -1, want)
        if m != 0:
            ps64(b + ctz(m) * 8, fixed)
            return
        if eq8(b, -1, 0) != 0:
            return
        line = (line + 1) & get(ctx, C_LOOKUP_MASK)


@jit
def lookup_repair(ctx, stale, node, lo, hi):
    """Redirect the entries of [lo, hi) (absolute depths) from `stale` to the node that now has these blocks."""
    count(ctx, REPAIRS, 1)
    a = node_at(ctx, node)
    for depth in range(lo, hi):
        found, h = hash_at(ctx, a, depth)
        if found != 0:
            _repair_one(ctx, h, stale, node, depth)


@jit
def lookup_rehash(ctx, old, lines):
    """Move the entries of an older table into the present one; those that nothing confirms any more are dropped."""
    for k in range(lines * 8):
        entry = pl64(old + k * 8)
        node = lshr(entry, 32)
        if node == 0 or node >= get(ctx, C_N_NODES):
            continue
        depth = (ld64(node_at(ctx, node) + N_START) & M32) + ((entry >> OFFSET) & OFFSET_MASK)
        node = suffix_at(ctx, node, depth)
        if node == 0:
            continue
        a = node_at(ctx, node)
        found, h = hash_at(ctx, a, depth)
        if found == 0 or lshr(mix(h), 43) != (entry & TAG):
            continue
        offset = depth - (ld64(a + N_START) & M32)
        if get(ctx, C_ORPHANS) != 0 and cov_max_mine(ctx, a, -1) <= offset:
            continue
        lookup_put(ctx, h, node, offset)


# ------------------------------------------------------------------------------------------------ alias entries
@inl
def _alias_line(ctx, h, slot):
    return lshr(mix(h ^ (slot * 0x2545F4914F6CDD1D)), 20) & get(ctx, C_ALIASES_MASK)


@inl
def _alias_value(node, offset, slot):
    return (node << 32) | (offset << 16) | slot


@jit
def alias_entry_find(ctx, slot, h):
    """(address of the entry, node, depth) of the place that the rank covers with its own hash `h`, or zeros."""
    if get(ctx, C_ALIASES_USED) == 0:
        return 0, 0, 0
    line = _alias_line(ctx, h, slot)
    for _ in range(get(ctx, C_ALIASES_MASK) + 1):
        b = get(ctx, C_ALIASES) + line * LINE
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
                        if (low & COV_ALIAS) != 0 and (low & M12) > position:
                            found, own = own_alias(ctx, a, slot, position)
                            if found != 0 and own == h:
                                return b + k * 16, node, depth
        if open_ != 0:
            break
        line = (line + 1) & get(ctx, C_ALIASES_MASK)
    return 0, 0, 0


@jit
def alias_entry_put(ctx, slot, h, node, offset):
    """Enter a place under the rank's own hash, unless it is there."""
    line = _alias_line(ctx, h, slot)
    value = _alias_value(node, offset, slot)
    free = 0
    for _ in range(get(ctx, C_ALIASES_MASK) + 1):
        b = get(ctx, C_ALIASES) + line * LINE
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
        line = (line + 1) & get(ctx, C_ALIASES_MASK)
    if pl64(free + 8) == 1:
        put(ctx, C_ALIASES_TOMBS, get(ctx, C_ALIASES_TOMBS) - 1)
    ps64(free, h)
    ps64(free + 8, value)
    put(ctx, C_ALIASES_USED, get(ctx, C_ALIASES_USED) + 1)


@jit
def alias_entry_delete(ctx, slot, h, node, depth):
    """Delete the rank's entries under `h` that lead to the place."""
    line = _alias_line(ctx, h, slot)
    for _ in range(get(ctx, C_ALIASES_MASK) + 1):
        b = get(ctx, C_ALIASES) + line * LINE
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
                        if open_ == 0:
                            put(ctx, C_ALIASES_TOMBS, get(ctx, C_ALIASES_TOMBS) + 1)
                        put(ctx, C_ALIASES_USED, get(ctx, C_ALIASES_USED) - 1)
        if open_ != 0:
            return
        line = (line + 1) & get(ctx, C_ALIASES_MASK)


@jit
def alias_entries_rehash(ctx, old, lines):
    """Move the entries of an older alias table into the present one; those that nothing confirms are dropped."""
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
        if found != 0 and own == h and (own_word(ctx, a, slot) & M12) > position:
            alias_entry_put(ctx, slot, h, node, position)


# ------------------------------------------------------------------------------------------------ both
@jit
def resolve(ctx, slot, h, upward):
    """The place that the rank covers under its own hash `h`: (node, depth), or (0, 0).

    Parameters
    ----------
    upward : int64
        Which entries a stale one takes along: 0 from the place to the rank's cutoff (a store goes on from there),
        1 from the node's head to the place (a removal from the tail comes that way), 2 none.
    """
    entry_at, node, depth = lookup_find(ctx, slot, h)
    if node != 0:
        stale = lshr(pl64(entry_at), 32)
        if stale != node and upward != 2:
            a = node_at(ctx, node)
            begin = ld64(a + N_START) & M32
            end = min(ld64(a + N_TAIL) & M31, begin + (own_word(ctx, a, slot) & M12))
            if upward == 1:
                lookup_repair(ctx, stale, node, begin, depth + 1)
            else:
                lookup_repair(ctx, stale, node, depth, end)
        return node, depth
    entry_at, node, depth = alias_entry_find(ctx, slot, h)
    if node != 0:
        value = pl64(entry_at + 8)
        if lshr(value, 32) != node:
            # an alias entry is redirected one by one: it says where it is in the hash and value alone
            ps64(entry_at + 8, _alias_value(node, depth - (ld64(node_at(ctx, node) + N_START) & M32), slot))
    return node, depth


@jit
def scrub(ctx, a, node, slot, low, lo, hi):
    """Delete the entries of positions [lo, hi) that only this rank of the lane covers (with these hashes).

    The rank's word `low` is still in place; the caller cuts it next.
    """
    begin = ld64(a + N_START) & M32
    if (low & COV_ALIAS) != 0:
        for p in range(lo, hi):
            found, h = alias_hash(ctx, a, slot, p)
            if found != 0:
                alias_entry_delete(ctx, slot, h, node, begin + p)
        return
    others = cov_max_mine(ctx, a, slot)
    x = edge_hash_at(ctx, a, 0)
    for p in range(max(lo, others), hi):
        if p + 8 < hi:
            lookup_prefetch(ctx, pl64(x + (p + 8) * 8))
        lookup_delete(ctx, pl64(x + p * 8), node, begin + p)


@jit
def enter(ctx, a, node, slot, low, lo, hi):
    """Enter positions [lo, hi) for a rank whose word was `low` before, where the lane has no entries yet."""
    begin = ld64(a + N_START) & M32
    if (low & COV_ALIAS) != 0:
        for p in range(lo, hi):
            found, h = alias_hash(ctx, a, slot, p)
            if found != 0:
                alias_entry_put(ctx, slot, h, node, p)
        return begin
    x = edge_hash_at(ctx, a, 0)
    for p in range(lo, min(lo + 8, hi)):
        lookup_prefetch(ctx, pl64(x + p * 8))
    for p in range(lo, hi):
        if p + 8 < hi:
            lookup_prefetch(ctx, pl64(x + (p + 8) * 8))
        lookup_put(ctx, pl64(x + p * 8), node, p)
    return begin
