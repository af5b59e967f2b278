"""Space comes back at once: tails that nobody covers are dropped, empty nodes are reclaimed, upward.

Who clears an own word, or releases a gate, tests; the test is repeated under the exclusive gate. What
cannot be done, because a gate or a space lock is busy, stays on the record's to-do list, which the lane's
operations, its close and its recovery work off. The redo lists here are short and begin empty: they cannot be
full.
"""

from __future__ import annotations

from shmtrie.atomics import ld32, ld64, lshr, pl64, st64, st64r
from shmtrie.kernels.aliases import aliases_free_later, directory_fits
from shmtrie.kernels.build import jit
from shmtrie.kernels.children import child_count, entry_of, first_hash
from shmtrie.kernels.context import (
    C_BUSY_LANE,
    C_BUSY_NODE,
    C_FULL_TABLE,
    C_N_NODES,
    C_NODE_CLAIMS,
    C_RECORD,
    C_TODO_LANE,
    C_WITHDREW,
    OK,
    RETRY,
    get,
    put,
)
from shmtrie.kernels.coverage import cov_max
from shmtrie.kernels.edges import edge_copy
from shmtrie.kernels.extents import free_later
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import log_redo, push_todo, todo_length
from shmtrie.kernels.protocol import count, gate_exclusive, node_at
from shmtrie.kernels.sound import mark, set_aside
from shmtrie.kernels.spaces import child_lock
from shmtrie.kernels.spans import class_of, extent_lines, line_at
from shmtrie.kernels.transaction import commit, needs_test, release, undo_all
from shmtrie.layout import (
    COUNTERS,
    L_NTODO,
    L_TODO,
    L_TODO_SCAN,
    LANE_TODO,
    LOG_BUMP,
    LOG_CAS64,
    LOG_FREE,
    LOG_UNLINK,
    M31,
    M32,
    N_ALIAS,
    N_COVERAGE,
    N_EDGE,
    N_START,
    N_TAIL,
    NO_SPACE,
)

RECLAIMS, TRUNCATIONS = COUNTERS.index("reclaims"), COUNTERS.index("truncations")
SCAN_STEP = 1_024  # node ids that one operation tests when the to-do list was full
ALIASES_A_TURN = 1_024


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
def _thin_aliases(ctx, a):
    """Free the aliases of a node that nobody covers, in turns, as far as they are too many for one list."""
    head = ld64(a + N_ALIAS)
    if head == 0 or not directory_fits(ctx, head) or lshr(head, 32) <= ALIASES_A_TURN:
        return
    x = line_at(ctx, head & M32)
    n = 0
    for k in range(lshr(head, 32)):
        w = ld64(x + k * 8)
        if w != 0:
            log_redo(ctx, LOG_CAS64, x + k * 8, w, 0)
            free_later(ctx, w & M32)
            n += 1
            if n == ALIASES_A_TURN:
                commit(ctx)
                n = 0
    commit(ctx)


@jit
def tidy_held(ctx, node):
    """Truncate or reclaim a sound node whose gate is held exclusively (and which nobody changes).

    Notes
    -----
    The parent of a reclaimed node is on the to-do list then. A busy space lock leaves the node as it is: its
    release puts it on the list. Crash: before the commit nothing has happened; after it, the redo list ends
    the node's life under the space lock it found or finds held, then frees what belonged to it.
    """
    a = node_at(ctx, node)
    begin = ld64(a + N_START)
    space = lshr(begin, 32)
    if node == 0 or space == NO_SPACE or child_count(ctx, a) != 0:
        return
    keep = cov_max(ctx, a)
    if keep > 0:
        if keep < (ld64(a + N_TAIL) & M31) - (begin & M32):
            _truncate(ctx, a, keep)
        return
    at(ctx, Site.RECLAIM_GATED)
    _thin_aliases(ctx, a)
    claim_at = get(ctx, C_NODE_CLAIMS) + node * 4
    claim = ld32(claim_at)
    word_at, entry = entry_of(ctx, space, first_hash(ctx, a), node)
    if word_at == 0:  # a node hangs by one entry as long as it lives, and nobody else can take that out now
        mark(ctx, a)
        return
    if child_lock(ctx, space, word_at, entry) != OK:
        put(ctx, C_TODO_LANE, get(ctx, C_BUSY_LANE) + 1)
        return
    log_redo(ctx, LOG_UNLINK, word_at, entry, space)
    free_later(ctx, ld64(a + N_EDGE) & M32)
    head = ld64(a + N_COVERAGE)
    if head != 0:
        free_later(ctx, head & M32)
    aliases_free_later(ctx, a)
    log_redo(ctx, LOG_FREE, claim_at, claim, 0)
    commit(ctx)
    count(ctx, RECLAIMS, 1)


@jit
def _tidy(ctx, node):
    """Test a node and do what is due; 1 if it is not done. No gates are held."""
    if needs_test(ctx, node) == 0:
        return 0
    if gate_exclusive(ctx, node) != OK:
        put(ctx, C_TODO_LANE, get(ctx, C_BUSY_LANE) + 1)
        # The holder tests when it lets go. But who tried and withdrew may have made it leave the node to us.
        return get(ctx, C_WITHDREW)
    if set_aside(ctx, node) == RETRY:
        tidy_held(ctx, node)
    release(ctx)
    return needs_test(ctx, node)


@jit
def _work_scan(ctx, r):
    """Test the next node ids of a scan that a full list has made necessary."""
    left = min(max(pl64(r + L_TODO_SCAN), 0), get(ctx, C_N_NODES))
    stop = max(left - SCAN_STEP, 0)
    node = left
    while node > stop:
        node -= 1
        if _tidy(ctx, node) != 0:
            push_todo(ctx, node)
    # full again: the step is repeated, or the scan begun anew
    if pl64(r + L_NTODO) < LANE_TODO:
        st64r(r + L_TODO_SCAN, stop)


@jit
def work_todo(ctx):
    """Work off the to-do list; what cannot be done now stays on it, and TODO_LANE says who is in the way.

    Notes
    -----
    An entry goes when its node needs no test any more, so a death repeats tests, which is harmless, and loses
    none. A parent that comes onto the list takes the place of its child and is next.
    """
    r = get(ctx, C_RECORD)
    # what the operation has to say of itself is not about these nodes
    lane, busy, table = get(ctx, C_BUSY_LANE), get(ctx, C_BUSY_NODE), get(ctx, C_FULL_TABLE)
    put(ctx, C_TODO_LANE, 0)
    k = todo_length(r) - 1
    while k >= 0:
        if _tidy(ctx, ld64(r + L_TODO + k * 8)) != 0:
            k -= 1
            continue
        last = max(todo_length(r) - 1, 0)
        st64(r + L_TODO + k * 8, ld64(r + L_TODO + last * 8))
        st64r(r + L_NTODO, last)
        if k >= last:
            k -= 1
    if pl64(r + L_TODO_SCAN) != 0:
        _work_scan(ctx, r)
    put(ctx, C_BUSY_LANE, lane)
    put(ctx, C_BUSY_NODE, busy)
    put(ctx, C_FULL_TABLE, table)
