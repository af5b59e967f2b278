"""Every live node: place in the tree, space, edge, extents, tail and suffix link (I2 to I8, I11, I15).

A node is copied between two looks at its version, and copied again when that moved: what is checked stood
there at one instant, coverage words aside, which move without it.
"""

from __future__ import annotations

from shmtrie.atomics import fence_acquire, ld32, ld64, ld64a, lshr
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.check_coverage import check_aliases, check_coverage
from shmtrie.kernels.check_extents import use_extent
from shmtrie.kernels.check_table import claim_of, node_line, u32_at
from shmtrie.kernels.check_words import (
    K_COVER,
    K_COVER_BYTES,
    K_DIRECTORY,
    K_DIRECTORY_BYTES,
    K_ENTRIES,
    K_FOUND,
    K_LISTED,
    K_OWNERS,
    M_ENTRY,
    M_LIVE,
    M_TODO,
    N_UNIQUE,
    S_ALIAS,
    S_EDGE,
    S_HEAD,
    S_MOVING,
    S_START,
    S_SUFFIX,
    S_TAIL,
    S_VERSION,
    Fault,
    add,
    doubt,
    found,
    in_motion,
    marks,
)
from shmtrie.kernels.context import C_EXTENTS, C_N_LINES, C_N_NODES, get, put
from shmtrie.kernels.coverage import head_form, head_words
from shmtrie.layout import (
    FORM_LIST,
    INLINE_WORDS,
    INTERNAL,
    LINE,
    M31,
    M32,
    MAX_EDGE,
    N_ALIAS,
    N_COUNT,
    N_COVERAGE,
    N_EDGE,
    N_GATE,
    N_INLINE,
    N_OWNER,
    N_QUARANTINED,
    N_START,
    N_SUFFIX,
    N_TAIL,
    N_VERSION,
    NO_SPACE,
)
from shmtrie.vectors import copy_line

READS = 8  # copies of one node


@inl
def _copy_extent(ctx, to, line, n_bytes, room):
    """Copy an extent's lines, if they lie in the section and fit."""
    lines = (n_bytes + LINE - 1) // LINE
    if line <= 0 or lines <= 0 or lines * LINE > room or line + lines - 1 > get(ctx, C_N_LINES):
        return
    x = get(ctx, C_EXTENTS) + line * LINE
    for k in range(lines):
        copy_line(to + k * LINE, x + k * LINE)


@inl
def cover_bytes(head):
    """Bytes of the coverage extent that a head names."""
    return head_words(head) * (8 if head_form(head) == FORM_LIST else 4)


@jit
def _copy_node(ctx, chk, a):
    """Copy a node as it stood at one version; 0 when it kept moving."""
    for _ in range(READS):
        version = ld64a(a + N_VERSION)
        # acquire: the place comes last when a node is made, so the words read next are of this life
        begin = ld64a(a + N_START)
        tail, head = ld64(a + N_TAIL), ld64(a + N_COVERAGE)
        directory = ld64(a + N_ALIAS)
        put(chk, S_VERSION, version)
        put(chk, S_TAIL, tail)
        put(chk, S_START, begin)
        put(chk, S_EDGE, ld64(a + N_EDGE))
        put(chk, S_HEAD, head)
        put(chk, S_ALIAS, directory)
        put(chk, S_SUFFIX, ld64(a + N_SUFFIX))
        if head == 0:
            copy_line(get(chk, K_COVER), a + N_INLINE - (LINE - INLINE_WORDS * 8))
        else:
            _copy_extent(ctx, get(chk, K_COVER), head & M32, cover_bytes(head), get(chk, K_COVER_BYTES))
        if directory != 0:
            n_bytes = lshr(directory, 32) * 8
            room = get(chk, K_DIRECTORY_BYTES)
            _copy_extent(ctx, get(chk, K_DIRECTORY), directory & M32, n_bytes, room)
        fence_acquire()
        if ld64(a + N_VERSION) == version and ld64(a + N_TAIL) == tail and ld64(a + N_START) == begin:
            return 1
    return 0


@jit
def _check_parent(ctx, chk, node):
    """One entry leads here, from a node that ends where this one starts."""
    version, moving = get(chk, S_VERSION), get(chk, S_MOVING)
    start, space = get(chk, S_START) & M32, lshr(get(chk, S_START), 32)
    if (marks(chk, node) & M_ENTRY) == 0:
        found(chk, Fault.NODE_UNREACHED, node, space, version, moving)
    if space >= get(ctx, C_N_NODES):
        found(chk, Fault.PARENT_NONE, node, space, version, moving)
        return
    parent = ld32(u32_at(chk, K_OWNERS, space)) - 1
    if parent < 0:
        found(chk, Fault.PARENT_NONE, node, space, version, moving)
        return
    moving |= in_motion(chk, parent)
    b = node_line(ctx, parent)
    if (marks(chk, parent) & M_LIVE) == 0:
        found(chk, Fault.PARENT_DEAD, node, parent, version, moving)
        return
    tail = ld64(b + N_TAIL)
    moving |= ld64(b + N_GATE) != 0
    if (tail & M31) != start or parent == node:
        found(chk, Fault.PARENT_END, node, parent, version, moving)
    if (tail & INTERNAL) == 0:
        found(chk, Fault.NOT_INTERNAL, parent, node, ld64(b + N_VERSION), moving)


@jit
def check_space(ctx, chk, node, space, version, moving):
    """The space that a live node owns names it, and counts its entries."""
    home = node_line(ctx, space)
    moving |= in_motion(chk, space)
    owner, word = ld64(home + N_OWNER), ld64(home + N_COUNT)
    if owner != node:
        found(chk, Fault.SPACE_OWNER, node, space, owner, moving)
    lock = lshr(word, 32)
    if lock != 0:
        found(chk, Fault.SPACE_LOCKED, node, space, lock - 1, moving)
    entries = ld32(u32_at(chk, K_ENTRIES, space))
    if (word & M32) != entries:
        found(chk, Fault.SPACE_COUNT, node, word, entries, moving | (lock != 0))
    return entries


@jit
def _check_edge(ctx, chk, node, length):
    edge, version, moving = get(chk, S_EDGE), get(chk, S_VERSION), get(chk, S_MOVING)
    line, capacity = edge & M32, lshr(edge, 32)
    if capacity <= 0 or capacity > MAX_EDGE:
        found(chk, Fault.EDGE_WORD, node, edge, version, moving)
        return
    use_extent(ctx, chk, node, line, (capacity + 3) >> 2)
    if length <= 0 or length > capacity:
        found(chk, Fault.EDGE_LENGTH, node, length, capacity, moving)
    else:
        add(chk, N_UNIQUE, length)


@jit
def _check_suffix(ctx, chk, node):
    """A suffix link that is not dangling leads to a child that starts where the node ends."""
    link = get(chk, S_SUFFIX)
    if link == 0:
        return
    target = link & M32
    if target == 0 or target >= get(chk, K_LISTED):
        found(chk, Fault.SUFFIX_RANGE, node, link, get(chk, S_VERSION), get(chk, S_MOVING))
        return
    b = node_line(ctx, target)
    if lshr(ld64a(b + N_VERSION), 32) != lshr(link, 32):
        return
    tail = get(chk, S_TAIL)
    want = (tail & M31) | (lshr(tail, 32) << 32)
    if claim_of(ctx, target) == 0 or ld64(b + N_START) != want:
        moving = get(chk, S_MOVING) | in_motion(chk, target) | (ld64(b + N_GATE) != 0)
        found(chk, Fault.SUFFIX_PATH, node, target, get(chk, S_VERSION), moving)


@jit
def _check_node(ctx, chk, node):
    a = node_line(ctx, node)
    held = ld64(a + N_GATE)
    if _copy_node(ctx, chk, a) == 0 or lshr(get(chk, S_START), 32) == NO_SPACE:
        found(chk, Fault.NODE_MOVED, node, 0, 0, 1)
        return
    first = get(chk, K_FOUND)
    moving = in_motion(chk, node) | (held != 0) | (ld64(a + N_GATE) != 0)
    put(chk, S_MOVING, moving)
    version, tail, begin = get(chk, S_VERSION), get(chk, S_TAIL), get(chk, S_START)
    if ld64(a + N_QUARANTINED) != 0:  # that says it all
        return
    length = (tail & M31) - (begin & M32)
    internal = (tail & INTERNAL) != 0
    _check_parent(ctx, chk, node)
    _check_edge(ctx, chk, node, length)
    space = lshr(tail, 32)
    entries = 1
    if 0 < space < get(chk, K_LISTED):
        entries = check_space(ctx, chk, node, space, version, moving)
    check_aliases(ctx, chk, node)
    top = check_coverage(ctx, chk, node, length, internal)
    if entries == 0 and top < length:
        late = moving | (marks(chk, node) & M_TODO)
        found(chk, Fault.NODE_EMPTY if top == 0 else Fault.TAIL_UNCOVERED, node, top, length, late)
    _check_suffix(ctx, chk, node)
    # what it was compared with was read later: that proves nothing if the node has changed since
    fence_acquire()
    if ld64(a + N_VERSION) != version:
        doubt(chk, first)


@jit
def check_nodes(ctx, chk):
    """All live nodes, and the root's space."""
    check_space(ctx, chk, 0, 0, 0, 0)
    for node in range(1, get(chk, K_LISTED)):
        if (marks(chk, node) & M_LIVE) != 0:
            _check_node(ctx, chk, node)
