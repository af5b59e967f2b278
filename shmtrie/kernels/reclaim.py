"""Space comes back at once: tails that nobody covers are dropped, empty nodes are reclaimed, upward.

Who clears an own word, or releases a gate, tests; the test is repeated under the exclusive gate. A busy
gate leaves the work to its holder (the last one out does it), a busy space lock leaves the node on the
record's to-do list, which the lane's next operation, its close and its recovery work off.
"""

from __future__ import annotations

from shmtrie.atomics import fence_full, ld32, ld64, lshr, pl64, st64, st64r
from shmtrie.kernels.aliases import aliases_free_later
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.children import child_count, first_hash, parent_of
from shmtrie.kernels.context import C_NODE_CLAIMS, C_RECORD, OK, get
from shmtrie.kernels.coverage import cov_max
from shmtrie.kernels.edges import edge_copy
from shmtrie.kernels.extents import class_of, extent_lines, free_later
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.protocol import count, gate_exclusive, log_redo, node_at, push_todo
from shmtrie.kernels.spaces import child_lock
from shmtrie.kernels.transaction import commit, needs_test, release, undo_all
from shmtrie.layout import (
    COUNTERS,
    L_NTODO,
    L_TODO,
    LOG_BUMP,
    LOG_CAS64,
    LOG_FREE,
    LOG_UNLINK,
    M31,
    M32,
    N_COVERAGE,
    N_EDGE,
    N_START,
    N_TAIL,
    NO_SPACE,
)

RECLAIMS, TRUNCATIONS = COUNTERS.index("reclaims"), COUNTERS.index("truncations")
CLIMB = 1 << 20  # nodes above one another that one tidying may reclaim


@jit
def _truncate(ctx, a, keep):
    """Drop the tail behind `keep` blocks, and give back what the edge no longer needs if that is worth a
    copy.
    """
    tail = ld64(a + N_TAIL)
    new = (tail & ~M31) | ((ld64(a + N_START) & M32) + keep)
    log_redo(ctx, LOG_CAS64, a + N_TAIL, tail, new)
    log_redo(ctx, LOG_BUMP, a, 0, 0)
    edge = ld64(a + N_EDGE)
    have = extent_lines(ctx, edge & M32)
    _, want = class_of((keep + 3) >> 2)
    if want * 4 <= have * 3:
        smaller = edge_copy(ctx, a, keep, want)
        if smaller != 0 and extent_lines(ctx, smaller & M32) < have:
            log_redo(ctx, LOG_CAS64, a + N_EDGE, edge, smaller)
            log_redo(ctx, LOG_BUMP, a, 0, 0)
            free_later(ctx, edge & M32)
        else:
            undo_all(ctx)
            log_redo(ctx, LOG_CAS64, a + N_TAIL, tail, new)
            log_redo(ctx, LOG_BUMP, a, 0, 0)
    commit(ctx)
    count(ctx, TRUNCATIONS, 1)
    at(ctx, Site.TAIL_CUT)


@jit
def tidy_held(ctx, node):
    """Truncate or reclaim a node whose gate is held exclusively (and which nobody changes); its parent if
    that has to be tried.

    Notes
    -----
    Crash: before the commit nothing has happened; after it, the redo list ends the node's life under the
    space lock it found or finds held, then frees what belonged to it.
    """
    a = node_at(ctx, node)
    begin = ld64(a + N_START)
    space = lshr(begin, 32)
    if node == 0 or space == NO_SPACE or child_count(ctx, a) != 0:
        return 0
    keep = cov_max(ctx, a)
    if keep > 0:
        if keep < (ld64(a + N_TAIL) & M31) - (begin & M32):
            _truncate(ctx, a, keep)
        return 0
    at(ctx, Site.RECLAIM_GATED)
    parent = parent_of(ctx, a)
    claim_at = get(ctx, C_NODE_CLAIMS) + node * 4
    claim = ld32(claim_at)
    status, word_at = child_lock(ctx, space, first_hash(ctx, a), node)
    if status != OK:
        push_todo(ctx, node)
        return 0
    log_redo(ctx, LOG_UNLINK, word_at, ld64(word_at), space)
    free_later(ctx, ld64(a + N_EDGE) & M32)
    head = ld64(a + N_COVERAGE)
    if head != 0:
        free_later(ctx, head & M32)
    aliases_free_later(ctx, a)
    log_redo(ctx, LOG_FREE, claim_at, claim, 0)
    commit(ctx)
    count(ctx, RECLAIMS, 1)
    # the count of the parent's space is down before its coverage is read (store-load; the other side clears
    # a word, then reads the count)
    fence_full()
    return parent


@jit
def tidy(ctx, node):
    """Test a node and do what is due, then its parent. No gates are held; best effort: never an error."""
    for _ in range(CLIMB):
        if needs_test(ctx, node) == 0:
            return
        if gate_exclusive(ctx, node) != OK:
            return
        parent = tidy_held(ctx, node)
        release(ctx)
        if parent == 0:
            return
        node = parent


@inl
def has_todo(ctx):
    return pl64(get(ctx, C_RECORD) + L_NTODO) != 0


@jit
def work_todo(ctx):
    """Work off the to-do list. Entries go when they are done: a crash repeats tests, which is harmless."""
    r = get(ctx, C_RECORD)
    n = pl64(r + L_NTODO)
    for k in range(n):
        tidy(ctx, ld64(r + L_TODO + k * 8))
    rest = pl64(r + L_NTODO) - n
    for k in range(rest):
        st64(r + L_TODO + k * 8, ld64(r + L_TODO + (n + k) * 8))
    st64r(r + L_NTODO, rest)
