"""The child table: (child space, first local hash) -> node, in buckets of eight one-word entries.

An entry is tag 32 | node 32, verified on the child's own line: its space, its start and its first hash. A
key lives in one of two buckets, is never moved, is written by CAS from 0 and deleted by storing 0; so there
are no tombstones, and a lookup reads two lines at most. A full pair of buckets is a full table.
"""

from __future__ import annotations

from shmtrie.atomics import cas64, ctz, fence_acquire, ld64, ld64a, lshr, mulhi, ones, prefetch
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import (
    C_CHILDREN,
    C_EXTENTS,
    C_FULL_TABLE,
    C_N_BUCKETS,
    C_N_LINES,
    C_N_NODES,
    C_SEED,
    FULL,
    OK,
    TABLE_CHILDREN,
    get,
    put,
)
from shmtrie.kernels.lists import log_undo, pop_undo
from shmtrie.kernels.protocol import node_at
from shmtrie.layout import (
    BUCKET,
    LINE,
    LOG_CAS64,
    M31,
    M32,
    N_COUNT,
    N_EDGE,
    N_OWNER,
    N_START,
    N_SUFFIX,
    N_TAIL,
    N_VERSION,
)
from shmtrie.vectors import eq8

FEW = 4  # a home bucket with fewer entries is used at once; beyond, the emptier of the two
SUFFIX_HOPS = 4_096
READS = 4_096  # times a torn snapshot is read again: each one is another lane's publication


@inl
def child_hash(seed, space, local):
    h = (local ^ seed ^ (space * 0x1E3779B97F4A7C15)) * 0x3F58476D1CE4E5B9
    h ^= lshr(h, 32)
    h = h * 0x14D049BB133111EB
    return h ^ lshr(h, 29)


@inl
def child_tag(h):
    return h << 32


@inl
def home_bucket(ctx, h):
    return get(ctx, C_CHILDREN) + mulhi(h, get(ctx, C_N_BUCKETS)) * LINE


@inl
def other_bucket(ctx, h):
    return get(ctx, C_CHILDREN) + mulhi(h * 0x1C69B3F74AC4AE35, get(ctx, C_N_BUCKETS)) * LINE


@inl
def prefetch_child(ctx, h):
    prefetch(home_bucket(ctx, h))
    prefetch(other_bucket(ctx, h))


@inl
def first_hash(ctx, a):
    """The first local hash of a node's edge."""
    line = ld64(a + N_EDGE) & M32
    return ld64(get(ctx, C_EXTENTS) + line * LINE) if 0 < line <= get(ctx, C_N_LINES) else 0


@inl
def _is_child(ctx, a, place, local):
    """Whether a node hangs at `place` (depth | space << 32) under a first hash, validated by its version.

    A longer or shorter edge may be published meanwhile and the old extent be used again: without the second
    look at the version a child could be overlooked, and its key entered a second time.
    """
    for _ in range(READS):
        version = ld64a(a + N_VERSION)
        # acquire: the place comes last when a node is made, so its edge is the one of this life
        if ld64a(a + N_START) != place:
            return False
        first, edge = first_hash(ctx, a), ld64(a + N_EDGE)
        fence_acquire()
        if ld64(a + N_VERSION) == version:
            # a node that was set aside has no edge, and no first hash: not that of 0 either
            return first == local and edge != 0
    return False


@jit
def child_find(ctx, space, depth, local):
    """The node that hangs in `space` at `depth` under `local`, or 0.

    It was so at one instant; the caller checks that the parent is still the same.
    """
    h = child_hash(get(ctx, C_SEED), space, local)
    tag = child_tag(h)
    b = home_bucket(ctx, h)
    for _ in range(2):
        m = eq8(b, ~M32, tag)
        while m != 0:
            node = ld64(b + ctz(m) * 8) & M32
            m &= m - 1
            if 0 < node < get(ctx, C_N_NODES) and _is_child(
                ctx, node_at(ctx, node), depth | (space << 32), local
            ):
                return node
        b = other_bucket(ctx, h)
    return 0


@inl
def entry_of(ctx, space, local, node):
    """Address of the bucket word that holds the entry of a child, or 0, and the entry."""
    h = child_hash(get(ctx, C_SEED), space, local)
    entry = child_tag(h) | node
    b = home_bucket(ctx, h)
    m = eq8(b, -1, entry)
    if m == 0:
        b = other_bucket(ctx, h)
        m = eq8(b, -1, entry)
    return b + ctz(m) * 8 if m != 0 else 0, entry


@inl
def free_word(ctx, h):
    """Address of a free bucket word for a key, or 0."""
    a, b = home_bucket(ctx, h), other_bucket(ctx, h)
    x, y = eq8(a, -1, 0), eq8(b, -1, 0)
    p, q = ones(x), ones(y)
    if p > BUCKET - FEW or (p >= q and p > 0):
        return a + ctz(x) * 8
    if q > 0:
        return b + ctz(y) * 8
    return 0


@jit
def child_insert_private(ctx, space, local, node):
    """Enter a child into a space that no reader can reach yet; OK or FULL.

    Notes
    -----
    Crash: undone by its undo entry. The space's count is the caller's business.
    """
    h = child_hash(get(ctx, C_SEED), space, local)
    for _ in range(BUCKET * 2):
        word_at = free_word(ctx, h)
        if word_at == 0:
            break
        if log_undo(ctx, LOG_CAS64, word_at, 0, child_tag(h) | node) != OK:
            return FULL
        if cas64(word_at, 0, child_tag(h) | node) != 0:
            return OK
        pop_undo(ctx)
    put(ctx, C_FULL_TABLE, TABLE_CHILDREN)
    return FULL


@inl
def next_suffix(ctx, a):
    """The suffix that the node's last split left, or 0 when that one's life is over.

    The link carries the generation of the suffix: its id may belong to another node by now, and links that
    were followed into other lives form cycles.
    """
    link = ld64(a + N_SUFFIX)
    node = link & M32
    if node <= 0 or node >= get(ctx, C_N_NODES):
        return 0
    return node if lshr(ld64a(node_at(ctx, node) + N_VERSION), 32) == lshr(link, 32) else 0


@inl
def space_owner(ctx, space):
    """The node whose child space this is; 0 (the root, or unknown) otherwise.

    The owner word is a hint while a split is going on: the suffix chain from it leads to the node whose
    tail has the space.
    """
    if space < 0 or space >= get(ctx, C_N_NODES):
        return 0
    node = ld64(node_at(ctx, space) + N_OWNER) & M32
    for _ in range(SUFFIX_HOPS):
        if node <= 0 or node >= get(ctx, C_N_NODES):
            return 0
        a = node_at(ctx, node)
        # acquire: who sees the tail with another space sees the link that was set before it (M11)
        if lshr(ld64a(a + N_TAIL), 32) == space:
            return node
        node = next_suffix(ctx, a)
    return 0


@inl
def parent_of(ctx, a):
    """The parent of a node by its hanging space."""
    space = lshr(ld64(a + N_START), 32)
    return space_owner(ctx, space) if space != 0 else 0


@inl
def child_count(ctx, a):
    """Children of a node (a locked count counts as it stands)."""
    space = lshr(ld64(a + N_TAIL), 32)
    if space >= get(ctx, C_N_NODES):
        return 1
    return ld64(node_at(ctx, space) + N_COUNT) & M31
