"""Places, read without a gate: which node has a depth, what hash stands there, what a rank covers.

Every answer is validated by the version of its node, or (0, 0).
"""

from __future__ import annotations

from shmtrie.atomics import fence_acquire, ld64, ld64a, lshr
from shmtrie.kernels.aliases import alias_hash
from shmtrie.kernels.build import inl
from shmtrie.kernels.context import C_EXTENTS, C_N_LINES, C_N_NODES, get
from shmtrie.kernels.coverage import cov_find
from shmtrie.kernels.protocol import node_at
from shmtrie.layout import LINE, M31, M32, N_EDGE, N_START, N_SUFFIX, N_TAIL, N_VERSION, NO_SPACE

HOPS = 4_096  # suffix links followed for one entry


READS = 64  # times a torn snapshot is read again


@inl
def is_dead(a):
    """The node hangs nowhere: its words are left from an earlier life, and name extents that others use now.

    Without this look, an entry of the lookup that still names the node could be confirmed by foreign words.
    """
    return lshr(ld64(a + N_START), 32) == NO_SPACE


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
    """(1, the edge's external hash at an absolute depth), validated by the version; (0, 0) when it has none
    there.
    """
    for _ in range(READS):
        v = ld64a(a + N_VERSION)
        if is_dead(a):
            return 0, 0
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
        if is_dead(a):
            return 0
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
        if is_dead(a):
            return 0, 0
        found, h = alias_hash(ctx, a, slot, position)
        fence_acquire()
        if ld64(a + N_VERSION) == v:
            return found, h
    return 0, 0
