"""The store: one transaction over the nodes of its plan.

Order: split if needed (a step of its own); gates, from the root down, each checked against the plan; own
words entered as covering nothing, longer edges, tails; new nodes; the one child entry into a live space
last. Up to there a busy gate or a full table rolls back and nothing was visible. Then the commit: own words
deepest first, so that a reader sees the store when the word nearest the root comes, all of it or nothing.
"""

from __future__ import annotations

from shmtrie.atomics import ld64, lshr, pl64, ps64
from shmtrie.kernels.alias_room import alias_room
from shmtrie.kernels.build import jit
from shmtrie.kernels.context import (
    BAD_SEQUENCE,
    BUSY,
    C_BUSY_NODE,
    C_EXACT,
    C_HOLES,
    C_N_CUTS,
    C_N_TOUCHED,
    C_REST,
    C_SEEN,
    C_SEEN_MASK,
    C_SEEN_STAMP,
    C_SPLIT_DEPTH,
    C_SPLIT_NODE,
    FULL,
    GROW_ALIASES,
    HOLE,
    NO_PARENT,
    OK,
    RETRY,
    SUSPECT,
    get,
    put,
)
from shmtrie.kernels.coverage import cov_find, cov_max_mine, cut_short, word_begin, word_blocks
from shmtrie.kernels.cuts import take_cuts
from shmtrie.kernels.edges import edge_length
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import has_todo
from shmtrie.kernels.parts import mix
from shmtrie.kernels.plan import (
    ALIAS,
    CREDIT,
    FRESH,
    MAX_CUTS,
    T_FLAGS,
    T_LO,
    T_LOW,
    T_NEW,
    T_NODE,
    X_DEPTH,
    X_LOW,
    X_NODE,
    X_TOP,
    cut_get,
    find_moved,
    plan_path,
    row_get,
)
from shmtrie.kernels.prepare import (
    enter_top,
    enter_words,
    new_nodes,
    plan_commit,
    reserve,
    split_planned,
    take_gates,
)
from shmtrie.kernels.protocol import count, node_at
from shmtrie.kernels.reclaim import work_todo
from shmtrie.kernels.resolve import enter, resolve, scrub
from shmtrie.kernels.sound import set_aside
from shmtrie.kernels.split import split_apart
from shmtrie.kernels.transaction import commit, release, undo_all
from shmtrie.layout import COUNTERS, COV_ALIAS, M12, M32, N_START

REPLANS = 64
DUPLICATES = COUNTERS.index("duplicate_stores")
REPLANNED = COUNTERS.index("replans")


@jit
def repeats(ctx, has_parent, parent, external, n):
    """1 if a hash occurs twice in the store or equals the parent. The scratch table has room for 2n
    entries.
    """
    stamp = get(ctx, C_SEEN_STAMP) + 1
    put(ctx, C_SEEN_STAMP, stamp)
    table, mask = get(ctx, C_SEEN), get(ctx, C_SEEN_MASK)
    for i in range(n):
        h = pl64(external + i * 8)
        if has_parent != 0 and h == parent:
            return 1
        k = lshr(mix(h), 11) & mask
        while (pl64(table + k * 8) >> 21) == stamp:
            if pl64(external + (pl64(table + k * 8) & 0x1FFFFF) * 8) == h:
                return 1
            k = (k + 1) & mask
        ps64(table + k * 8, (stamp << 21) | i)
    return 0


@jit
def _forget(ctx, slot):
    """Before the commit: lookup entries of cut places and of renamed ones go."""
    for k in range(get(ctx, C_N_CUTS)):
        node = cut_get(ctx, k, X_NODE)
        a = node_at(ctx, node)
        start = ld64(a + N_START) & M32
        low, lo = cut_get(ctx, k, X_LOW), cut_get(ctx, k, X_DEPTH) - start
        hi = min(low & M12, edge_length(a))
        if get(ctx, C_EXACT) != 0:
            hi = min(hi, cut_get(ctx, k, X_TOP) + 1 - start)
        scrub(ctx, a, node, slot, low, lo, hi)
    for k in range(get(ctx, C_N_TOUCHED)):
        if (row_get(ctx, k, T_FLAGS) & ALIAS) != 0:
            node, low = row_get(ctx, k, T_NODE), row_get(ctx, k, T_LOW)
            a = node_at(ctx, node)
            length = edge_length(a)
            appended = row_get(ctx, k, T_LO) - (ld64(a + N_START) & M32) >= (low & M12)
            if (low & COV_ALIAS) == 0 or not appended:
                scrub(ctx, a, node, slot, low, 0, min(low & M12, length))


@jit
def _remember(ctx, slot):
    """After the commit: lookup entries of what is covered now."""
    for k in range(get(ctx, C_N_TOUCHED)):
        flags = row_get(ctx, k, T_FLAGS)
        if (flags & CREDIT) == 0:
            continue
        node, low, new = row_get(ctx, k, T_NODE), row_get(ctx, k, T_LOW), row_get(ctx, k, T_NEW)
        a = node_at(ctx, node)
        if get(ctx, C_N_CUTS) != 0:  # one may have been of this node, after its row
            _, new, _ = cov_find(ctx, a, slot)
        length = edge_length(a)
        old_cut, new_cut = min(low & M12, length), min(new & M12, length)
        if (flags & ALIAS) != 0:
            appended = row_get(ctx, k, T_LO) - (ld64(a + N_START) & M32) >= (low & M12)
            enter(ctx, a, node, slot, new, old_cut if (low & COV_ALIAS) != 0 and appended else 0, new_cut)
        elif (flags & FRESH) != 0:
            enter(ctx, a, node, slot, new, 0, new_cut)
        elif get(ctx, C_HOLES) != 0:
            # what lies in front of the old word, and behind it; a place is not entered twice
            begin = min(word_begin(low), old_cut) if word_blocks(low, length) != 0 else new_cut
            enter(ctx, a, node, slot, new, 0, begin)
            enter(ctx, a, node, slot, new, max(begin, old_cut), new_cut)
        else:
            enter(ctx, a, node, slot, new, max(old_cut, cov_max_mine(ctx, a, slot)), new_cut)


@jit
def _execute(ctx, slot, above, above_depth, local, external, n):
    status = OK
    if get(ctx, C_SPLIT_NODE) != 0:
        status = split_planned(ctx)
    if status == OK:
        status = reserve(ctx, n)
    if status == OK:
        status = take_gates(ctx)
    if status == OK:
        status = enter_words(ctx, slot, local, external)
    if status == OK:
        status = take_cuts(ctx, slot, above, above_depth)
    if status == OK and get(ctx, C_REST) < n:
        status = new_nodes(ctx, slot, local, external, n)
    if status == OK:
        status = plan_commit(ctx, slot)
    if status == OK and get(ctx, C_REST) < n:
        status = enter_top(ctx, local)
    at(ctx, Site.STORE_PREPARED)
    if status != OK:
        undo_all(ctx)
        release(ctx)
        return status
    _forget(ctx, slot)
    commit(ctx)
    _remember(ctx, slot)
    release(ctx)
    return OK


@jit
def store(ctx, slot, has_parent, parent, local, external, n):
    """Apply one store event of a rank; OK, NO_PARENT, BAD_SEQUENCE, FULL, BUSY, CORRUPT, ROWS or
    GROW_ALIASES.

    Unless it is OK nothing has changed.

    Parameters
    ----------
    slot : int64
        Slot of the rank, ACTIVE and owned by this lane.
    has_parent, parent : int64
        Whether there is a parent, and its external hash.
    local, external : int64
        Addresses of n local and n external hashes.
    n : int64
        Blocks, 0 <= n <= MAX_STORE; the lookup has room for as many.

    Notes
    -----
    Runs between `begin` and `finish`. Crash: see transaction.py.
    """
    if n > 1 or has_parent != 0:
        if repeats(ctx, has_parent, parent, external, n) != 0:
            return BAD_SEQUENCE
    put(ctx, C_EXACT, get(ctx, C_HOLES))
    splits, tries = 0, 0
    while tries < REPLANS:
        above, above_depth = 0, -1
        if has_parent != 0:
            above, above_depth = resolve(ctx, slot, parent, 0, 0)
            if above == 0:
                return NO_PARENT
        if n == 0:
            return OK
        status = plan_path(ctx, slot, above, above_depth + 1, local, external, n)
        if status == SUSPECT:
            status = set_aside(ctx, get(ctx, C_BUSY_NODE))
            release(ctx)
        if status == OK:
            status = find_moved(ctx, slot, above, above_depth, external, n)
        at(ctx, Site.STORE_PLANNED)
        if status == HOLE:
            # a step of its own, then a new plan; where it cannot be, the rank loses what is behind
            splits += 1
            status = FULL
            if splits <= MAX_CUTS:
                status = split_apart(ctx, get(ctx, C_SPLIT_NODE), get(ctx, C_SPLIT_DEPTH))
            if status == FULL:
                put(ctx, C_EXACT, 0)
            elif status == RETRY:
                tries += 1
            elif status != OK:
                return status
            continue
        if status == OK and alias_room(ctx, slot, external) == 0:
            return GROW_ALIASES
        if status == OK:
            if get(ctx, C_N_TOUCHED) == 0 and get(ctx, C_N_CUTS) == 0 and get(ctx, C_REST) == n:
                count(ctx, DUPLICATES, 1)
                return OK
            status = _execute(ctx, slot, above, above_depth, local, external, n)
            if has_todo(ctx):
                work_todo(ctx)
            if status == OK and get(ctx, C_EXACT) != get(ctx, C_HOLES):
                cut_short(ctx, slot)
        if status != RETRY:
            return status
        count(ctx, REPLANNED, 1)
        tries += 1
    return BUSY
