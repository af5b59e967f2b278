"""Places, read without a gate: which node has a depth, what hash stands there, what a rank covers.

Every answer is validated by the version of its node.
"""

from __future__ import annotations

from shmtrie.atomics import fence_acquire, ld64, ld64a, lshr
from shmtrie.kernels.aliases import alias_hash
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.children import next_suffix, parent_of
from shmtrie.kernels.context import C_EXTENTS, C_N_NODES, get
from shmtrie.kernels.coverage import cov_find, cov_max_mine
from shmtrie.kernels.edges import edge_fits
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.protocol import node_at
from shmtrie.layout import LINE, M12, M31, M32, N_EDGE, N_START, N_TAIL, N_VERSION, NO_SPACE

CLIMB = 1 << 20  # nodes above one another
HOPS = 4_096  # suffix links followed for one entry
READS = 4_096  # times a torn snapshot is read again: each one is another lane's publication
GONE, FOUND, MOVED = 0, 1, 2  # the node is dead | it has the block | its edge does not reach that far


@inl
def is_dead(a):
    """The node hangs nowhere: its words are left from an earlier life, and name extents that others use now.

    Without this look, an entry of the lookup that still names the node could be confirmed by foreign words.
    """
    # acquire: the place comes last when a node is made, so the words read next are of this life
    return lshr(ld64a(a + N_START), 32) == NO_SPACE


@inl
def suffix_at(ctx, node, depth):
    """The node on the suffix chain from `node` that has the block at `depth`, or 0.

    It was so at one instant: the node may be split again before the caller looks at it.
    """
    for _ in range(HOPS):
        if node <= 0 or node >= get(ctx, C_N_NODES):
            return 0
        a = node_at(ctx, node)
        # acquire: who sees the shorter tail sees the link that was set before it (M11)
        if depth < (ld64a(a + N_TAIL) & M31):
            return node if depth >= (ld64(a + N_START) & M32) else 0
        node = next_suffix(ctx, a)
    return 0


@inl
def reached_suffix(ctx, a, low):
    """The suffix in which a coverage word goes on that reaches beyond its node's end (M12), or 0."""
    # acquire: as in `suffix_at`
    begin = ld64(a + N_START) & M32
    if (low & M12) <= (ld64a(a + N_TAIL) & M31) - begin:
        return 0
    suffix = next_suffix(ctx, a)
    # deeper each time: damaged links must not lead round in a circle
    return suffix if (ld64(node_at(ctx, suffix) + N_START) & M32) > begin else 0


@jit
def hash_at(ctx, a, depth):
    """(FOUND, the edge's external hash at an absolute depth), (MOVED, 0) or (GONE, 0)."""
    for _ in range(READS):
        v = ld64a(a + N_VERSION)
        if is_dead(a):
            return GONE, 0
        begin, end, edge = ld64a(a + N_START) & M32, ld64(a + N_TAIL) & M31, ld64(a + N_EDGE)
        line, capacity = edge & M32, lshr(edge, 32)
        found, h = MOVED, 0
        if begin <= depth < end:
            found = GONE  # an edge that is too short is that of a damaged node
            if depth - begin < capacity and edge_fits(ctx, edge):
                found = FOUND
                h = ld64(get(ctx, C_EXTENTS) + line * LINE + (capacity + depth - begin) * 8)
        fence_acquire()
        if ld64(a + N_VERSION) == v:
            return found, h
    return GONE, 0


@jit
def place_of(ctx, stale, offset):
    """Where the block is now that stood at `offset` of node `stale`: (node, depth, the edge's hash of it), or
    zeros when it is gone.

    Notes
    -----
    Between the two looks (who has the depth, what hash stands there) another lane may split the node: then it
    has the block no more, and the chain is followed anew. A single look would call a held block gone.
    """
    if stale <= 0 or stale >= get(ctx, C_N_NODES):
        return 0, 0, 0
    for _ in range(READS):
        depth = (ld64(node_at(ctx, stale) + N_START) & M32) + offset
        node = suffix_at(ctx, stale, depth)
        if node == 0:
            return 0, 0, 0
        at(ctx, Site.PLACE_FOUND)
        found, h = hash_at(ctx, node_at(ctx, node), depth)
        if found == FOUND:
            return node, depth, h
        if found == GONE:
            return 0, 0, 0
    return 0, 0, 0


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
def own_most(ctx, a):
    """The largest cutoff of this lane's ranks whose hashes are the edge's own, validated by the version."""
    for _ in range(READS):
        v = ld64a(a + N_VERSION)
        if is_dead(a):
            return 0
        top = cov_max_mine(ctx, a, -1)
        fence_acquire()
        if ld64(a + N_VERSION) == v:
            return top
    return M12  # nothing is known: keep what hangs on it


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


@jit
def is_above(ctx, node, depth, parent, parent_depth):
    """The place is the parent's own or lies above it."""
    if node == parent:
        return 1 if depth <= parent_depth else 0
    for _ in range(CLIMB):
        a = node_at(ctx, parent)
        parent = parent_of(ctx, a)
        if parent == 0:
            return 0
        if parent == node:
            return 1
        # less deep each time: damaged links must not lead round in a circle
        if (ld64(node_at(ctx, parent) + N_START) & M32) >= (ld64(a + N_START) & M32):
            return 0
    return 0
