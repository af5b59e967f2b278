"""Edges: two columns (local hashes, external hashes) in one extent.

The edge word names the extent and its capacity in blocks: local hashes are words [0, capacity), external
ones [capacity, 2 x capacity). Published hashes never change while the extent lives, except that a dropped
tail is used again after a bump.
"""

from __future__ import annotations

from shmtrie.atomics import ctz, fence_release, ld64, lshr, pl64, st64, st64r
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import C_N_LINES, FULL, OK, get
from shmtrie.kernels.extents import claim_lines, free_later
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import log_undo
from shmtrie.kernels.protocol import bump
from shmtrie.kernels.spans import extent_lines, line_at
from shmtrie.layout import INTERNAL, LOG_BUMP, LOG_CAS64, M31, M32, MAX_EDGE, N_EDGE, N_START, N_TAIL
from shmtrie.vectors import ne8


@inl
def mismatch(x, q, n):
    """The first index at which the words at `x` differ from those at `q`, or n."""
    i = 0
    while i + 8 <= n:
        m = ne8(x + i * 8, q + i * 8)
        if m != 0:
            return i + ctz(m)
        i += 8
    while i < n:
        if pl64(x + i * 8) != pl64(q + i * 8):
            return i
        i += 1
    return n


@inl
def edge_fits(ctx, edge):
    """The extent that an edge word names lies in the section."""
    line, capacity = edge & M32, lshr(edge, 32)
    return line > 0 and 0 < capacity <= MAX_EDGE and line + ((capacity + 3) >> 2) <= get(ctx, C_N_LINES) + 1


@inl
def edge_length(a):
    """Blocks of a node's edge, by its start and its tail as they stand."""
    return (ld64(a + N_TAIL) & M31) - (ld64(a + N_START) & M32)


@jit
def edge_copy(ctx, a, blocks, lines):
    """A copy of the first `blocks` of an edge in an extent of at least `lines` lines, as an edge word; 0:
    no room.
    """
    line = claim_lines(ctx, lines)
    if line == 0:
        return 0
    capacity = min(extent_lines(ctx, line) * 4, MAX_EDGE)
    edge = ld64(a + N_EDGE)
    x, y = line_at(ctx, edge & M32), line_at(ctx, line)
    old = lshr(edge, 32)
    for k in range(blocks):
        st64(y + k * 8, ld64(x + k * 8))
    for k in range(blocks):
        st64(y + (capacity + k) * 8, ld64(x + (old + k) * 8))
    return line | (capacity << 32)


@jit
def edge_new(ctx, local, external, blocks):
    """An extent with these hashes, as an edge word; 0: no room. Undone by the undo list."""
    line = claim_lines(ctx, (blocks + 3) >> 2)
    if line == 0:
        return 0
    capacity = min(extent_lines(ctx, line) * 4, MAX_EDGE)
    y = line_at(ctx, line)
    for k in range(blocks):
        st64(y + k * 8, pl64(local + k * 8))
    y += capacity * 8
    for k in range(blocks):
        st64(y + k * 8, pl64(external + k * 8))
    return line | (capacity << 32)


@inl
def publish_tail(ctx, a, new):
    """Publish a tail in the UNDO phase: announced, stored, bumped; OK or FULL. Gate: exclusive."""
    old = ld64(a + N_TAIL)
    if log_undo(ctx, LOG_BUMP, a, 0, 0) != OK or log_undo(ctx, LOG_CAS64, a + N_TAIL, old, new) != OK:
        return FULL
    st64r(a + N_TAIL, new)
    at(ctx, Site.TAIL_PUBLISHED)
    bump(a)
    at(ctx, Site.VERSION_BUMPED)
    return OK


@jit
def edge_extend(ctx, a, local, external, blocks, internal):
    """Append blocks to an edge in place; OK or FULL.

    Notes
    -----
    Gate: exclusive; the node never had children. Hashes come before the tail that shows them, a longer
    extent before both, each publication with its bump. No word covers the new blocks yet: that is the
    commit. Crash: undone.
    """
    edge = ld64(a + N_EDGE)
    tail = ld64(a + N_TAIL)
    end = tail & M31
    have = end - (ld64(a + N_START) & M32)
    need = have + blocks
    if need > lshr(edge, 32):
        want = max(need, have + (have >> 2)) if blocks < have else need
        longer = edge_copy(ctx, a, have, (min(want, MAX_EDGE) + 3) >> 2)
        if longer == 0:
            return FULL
        if free_later(ctx, edge & M32) != OK:
            return FULL
        if log_undo(ctx, LOG_BUMP, a, 0, 0) != OK or log_undo(ctx, LOG_CAS64, a + N_EDGE, edge, longer) != OK:
            return FULL
        st64r(a + N_EDGE, longer)
        at(ctx, Site.EDGE_PUBLISHED)
        bump(a)
        edge = longer
    # a reader that reads one of these words also sees the bump of the truncation that dropped it (M6b)
    fence_release()
    x = line_at(ctx, edge & M32) + have * 8
    y = x + lshr(edge, 32) * 8
    for k in range(blocks):
        st64(x + k * 8, pl64(local + k * 8))
    for k in range(blocks):
        st64(y + k * 8, pl64(external + k * 8))
    return publish_tail(ctx, a, (tail & ~(M31 | INTERNAL)) | (end + blocks) | (tail & INTERNAL) | internal)
