"""The split: a step of its own, neutral for every rank, never undone once it is committed."""

from __future__ import annotations

from shmtrie.atomics import fence_full, ld64, lshr, st64, st64r
from shmtrie.kernels.aliases import alias_split
from shmtrie.kernels.build import jit
from shmtrie.kernels.children import child_insert_private
from shmtrie.kernels.context import FULL, OK, RETRY
from shmtrie.kernels.edges import edge_copy, edge_new
from shmtrie.kernels.extents import free_later
from shmtrie.kernels.forms import cov_split
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import log_redo, log_undo
from shmtrie.kernels.nodes import claim_node, make_node
from shmtrie.kernels.protocol import count, node_at
from shmtrie.kernels.sound import set_aside
from shmtrie.kernels.spans import class_of, extent_lines, line_at
from shmtrie.kernels.transaction import commit, release, reserve_lists, undo_all
from shmtrie.layout import (
    COUNTERS,
    INTERNAL,
    LOG_BUMP,
    LOG_CAS64,
    M31,
    M32,
    N_ALIAS,
    N_COUNT,
    N_EDGE,
    N_OWNER,
    N_START,
    N_SUFFIX,
    N_TAIL,
    N_VERSION,
    NO_SPACE,
)

SMALL = 256  # aliases for which the record's own lists are long enough
SPLITS = COUNTERS.index("splits")


@jit
def _prepare(ctx, node, depth):
    """Make the suffix and plan the words that publish it; OK or FULL."""
    a = node_at(ctx, node)
    tail, edge = ld64(a + N_TAIL), ld64(a + N_EDGE)
    start, end = ld64(a + N_START) & M32, tail & M31
    keep, blocks = depth - start, end - depth
    suffix = claim_node(ctx)
    if suffix == 0:
        return FULL
    b = node_at(ctx, suffix)
    x = line_at(ctx, edge & M32) + keep * 8
    moved = edge_new(ctx, x, x + lshr(edge, 32) * 8, blocks)
    # the suffix hangs in the space that its own slot brought along; the children stay in the old one, which
    # it gets
    if moved == 0 or make_node(ctx, suffix, depth, NO_SPACE, moved, end, tail & INTERNAL) != OK:
        return FULL
    space, old_space = lshr(ld64(b + N_TAIL), 32), lshr(tail, 32)
    directory = lshr(ld64(a + N_ALIAS), 32)
    if directory > SMALL and reserve_lists(ctx, 0, 4 * directory, 64) != OK:
        return FULL
    if cov_split(ctx, a, b, keep) != OK or alias_split(ctx, a, b, keep) != OK:
        return FULL
    link = ld64(a + N_SUFFIX)
    st64(b + N_SUFFIX, link)
    # logged before the spaces are exchanged: a suffix that is taken back keeps the space of its slot
    new_tail = end | (tail & INTERNAL) | (old_space << 32)
    if log_undo(ctx, LOG_CAS64, b + N_TAIL, ld64(b + N_TAIL), new_tail) != OK:
        return FULL
    st64(b + N_TAIL, new_tail)
    st64r(b + N_START, depth | (space << 32))
    home = node_at(ctx, space)
    st64(home + N_OWNER, node)
    st64(home + N_COUNT, 1)
    if child_insert_private(ctx, space, ld64(line_at(ctx, moved & M32)), suffix) != OK:
        return FULL
    owner_at = node_at(ctx, old_space) + N_OWNER
    _, want = class_of((keep + 3) >> 2)
    shorter = 0
    if want < extent_lines(ctx, edge & M32):
        shorter = edge_copy(ctx, a, keep, want)
    if (
        # the suffix link before the tail: who resolves a stale entry between the two finds the block (M11)
        log_redo(ctx, LOG_CAS64, a + N_SUFFIX, link, suffix | (lshr(ld64(b + N_VERSION), 32) << 32)) != OK
        or log_redo(ctx, LOG_CAS64, a + N_TAIL, tail, depth | INTERNAL | (space << 32)) != OK
        or log_redo(ctx, LOG_BUMP, a, 0, 0) != OK
        or log_redo(ctx, LOG_CAS64, owner_at, ld64(owner_at), suffix) != OK
    ):
        return FULL
    if shorter != 0:
        if (
            log_redo(ctx, LOG_CAS64, a + N_EDGE, edge, shorter) != OK
            or log_redo(ctx, LOG_BUMP, a, 0, 0) != OK
            or free_later(ctx, edge & M32) != OK
        ):
            return FULL
    at(ctx, Site.SPLIT_PREPARED)
    return OK


@jit
def split(ctx, node, depth):
    """Cut a node's edge at an absolute depth; the suffix becomes its child and keeps the children. OK or
    FULL.

    Notes
    -----
    Gate of the node: exclusive, undo and redo lists empty. The suffix is born with its gate held. One store
    of the tail (end | internal | child space) publishes it: the prefix gets the space that the suffix's
    slot owned, the suffix the one with all the children, so no child changes. The space's owner is mended
    after, a hint until then. Crash: before the commit the undo list takes everything back; after it the
    redo list finishes.
    """
    status = _prepare(ctx, node, depth)
    if status != OK:
        undo_all(ctx)
        return status
    commit(ctx)
    count(ctx, SPLITS, 1)
    # owner mended, then the suffix is tested (release): store-load
    fence_full()
    at(ctx, Site.SPLIT_DONE)
    return OK


@jit
def split_apart(ctx, node, depth):
    """A split as an operation of its own; OK, RETRY (the node does not reach over `depth`), BUSY, FULL or
    CORRUPT.

    Nothing is open before it and after it. Crash: as in `split`.
    """
    status = set_aside(ctx, node)
    if status != RETRY:
        release(ctx)
        return status
    a = node_at(ctx, node)
    begin = ld64(a + N_START)
    if lshr(begin, 32) != NO_SPACE and (begin & M32) < depth < (ld64(a + N_TAIL) & M31):
        status = split(ctx, node, depth)
    release(ctx)
    return status
