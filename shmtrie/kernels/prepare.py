"""The part of a store that can fail: gates, words that cover nothing yet, longer edges, new nodes, the redo
list.

A busy gate or a full table anywhere in here rolls back, and nothing was visible.
"""

from __future__ import annotations

from shmtrie.atomics import ld32, ld64, lshr, pl64, st64
from shmtrie.kernels.aliases import alias_drop, alias_prepare
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.children import child_insert_private
from shmtrie.kernels.context import (
    C_N_CUTS,
    C_N_NODES,
    C_N_TOUCHED,
    C_REST,
    C_REST_DEPTH,
    C_REST_NODE,
    C_SPLIT_DEPTH,
    C_SPLIT_NODE,
    C_STATES,
    C_TOP,
    C_TOUCHED_ROOM,
    CORRUPT,
    FULL,
    OK,
    RETRY,
    ROWS,
    get,
    put,
)
from shmtrie.kernels.coverage import (
    cov_enter,
    log_blocks,
    log_word,
    make_word,
    word_begin,
    word_blocks,
    word_from,
)
from shmtrie.kernels.edges import edge_extend, edge_length, edge_new, publish_tail
from shmtrie.kernels.forms import cov_grow
from shmtrie.kernels.lists import log_redo
from shmtrie.kernels.nodes import claim_node, make_node
from shmtrie.kernels.plan import (
    ALIAS,
    CREDIT,
    EXCLUSIVE,
    EXTEND,
    FIRST_CHILD,
    FRESH,
    T_FLAGS,
    T_HI,
    T_INDEX,
    T_LO,
    T_LOW,
    T_MID,
    T_NEW,
    T_NODE,
    T_TAIL,
    T_VERSION,
    T_WIDE,
    T_WORD,
    VERIFIED,
    X_DEPTH,
    X_LOW,
    X_NEW,
    X_NODE,
    X_WIDE,
    X_WORD,
    cut_get,
    cut_put,
    row_get,
    row_put,
)
from shmtrie.kernels.protocol import gate_exclusive, gate_shared, node_at
from shmtrie.kernels.sound import set_aside, sound
from shmtrie.kernels.spaces import child_insert
from shmtrie.kernels.split import split
from shmtrie.kernels.transaction import reserve_lists
from shmtrie.layout import (
    COV_ALIAS,
    COV_PRESENT,
    INTERNAL,
    LOG_CAS32,
    M12,
    M32,
    MAX_EDGE,
    N_COUNT,
    N_INLINE,
    N_START,
    N_TAIL,
    N_VERSION,
    R_KNOWN,
    RANK_STATE_BYTES,
)

SMALL = 256  # rows for which the record's own lists are long enough
ROW_LOG = 12  # entries that a row may need in either list


@inl
def _gate(ctx, node, exclusive):
    return gate_exclusive(ctx, node) if exclusive != 0 else gate_shared(ctx, node)


@jit
def take_gates(ctx):
    """Take the gates of all rows, from the root down; the plan is checked under each. OK, RETRY, BUSY, FULL
    or CORRUPT.
    """
    for k in range(get(ctx, C_N_TOUCHED)):
        node, flags = row_get(ctx, k, T_NODE), row_get(ctx, k, T_FLAGS)
        status = _gate(ctx, node, flags & EXCLUSIVE)
        if status != OK:
            return status
        a = node_at(ctx, node)
        if (flags & VERIFIED) == 0 and (
            ld64(a + N_VERSION) != row_get(ctx, k, T_VERSION) or ld64(a + N_TAIL) != row_get(ctx, k, T_TAIL)
        ):
            return RETRY
        if sound(ctx, node) == 0:
            return set_aside(ctx, node)
    return OK


@jit
def reserve(ctx, n):
    """Room in the record for what the plan needs; OK or FULL."""
    rows, gates_only = get(ctx, C_N_TOUCHED), 0
    fresh = (n - get(ctx, C_REST) + MAX_EDGE - 1) // MAX_EDGE
    cuts = get(ctx, C_N_CUTS)
    if rows + fresh + cuts <= SMALL:
        return OK
    for k in range(rows):
        if (row_get(ctx, k, T_FLAGS) & EXCLUSIVE) == 0:
            gates_only += 1
    logged = gates_only + (rows - gates_only) * ROW_LOG + (fresh + cuts) * ROW_LOG + 64
    return reserve_lists(ctx, rows + fresh + cuts + 64, logged, logged)


@jit
def split_planned(ctx):
    """Split where the plan says so: the row is then about the prefix. OK, RETRY, BUSY, FULL or CORRUPT."""
    node = get(ctx, C_SPLIT_NODE)
    last = get(ctx, C_N_TOUCHED) - 1
    status = gate_exclusive(ctx, node)
    if status != OK:
        return status
    a = node_at(ctx, node)
    if ld64(a + N_VERSION) != row_get(ctx, last, T_VERSION) or ld64(a + N_TAIL) != row_get(ctx, last, T_TAIL):
        return RETRY
    if sound(ctx, node) == 0:
        return set_aside(ctx, node)
    status = split(ctx, node, get(ctx, C_SPLIT_DEPTH))
    row_put(ctx, last, T_FLAGS, row_get(ctx, last, T_FLAGS) | VERIFIED)
    return status


@jit
def enter_words(ctx, slot, local, external):
    """Own words, longer edges, tails, aliases of the rows; OK, RETRY or FULL."""
    for k in range(get(ctx, C_N_TOUCHED)):
        node, flags = row_get(ctx, k, T_NODE), row_get(ctx, k, T_FLAGS)
        a = node_at(ctx, node)
        start = ld64(a + N_START) & M32
        have = edge_length(a)
        if (flags & CREDIT) != 0:
            status, word_at, low, wide = cov_enter(ctx, a, slot)
            if status == RETRY and (flags & EXCLUSIVE) != 0:
                status, word_at, low, wide = cov_grow(ctx, a, slot)
            if status != OK:
                return status
            lo, mid, hi, i = (
                row_get(ctx, k, T_LO),
                row_get(ctx, k, T_MID),
                row_get(ctx, k, T_HI),
                row_get(ctx, k, T_INDEX),
            )
            row_put(ctx, k, T_WORD, word_at)
            row_put(ctx, k, T_WIDE, wide)
            row_put(ctx, k, T_LOW, low)
            # what the rank covers touches what comes in; a word that begins behind the end covers nothing
            begin, cutoff = word_begin(low), low & M12
            if begin >= have:
                begin, cutoff = lo - start, 0
            new = (low & COV_ALIAS) | COV_PRESENT | max(cutoff, hi - start)
            if (flags & ALIAS) != 0:  # its extent ends where the edge does
                new = COV_ALIAS | COV_PRESENT | max(min(cutoff, have), hi - start)
            new = word_from(new, min(begin, lo - start))
            row_put(ctx, k, T_NEW, new)
            if (flags & EXTEND) != 0:
                first = 1 if (flags & FIRST_CHILD) != 0 else 0
                j = i + mid - lo
                status = edge_extend(ctx, a, local + j * 8, external + j * 8, hi - mid, INTERNAL * first)
                if status != OK:
                    return status
            if (flags & ALIAS) != 0:
                status = alias_prepare(ctx, a, slot, low, have, lo - start, hi - start, external + i * 8)
                if status != OK:
                    return status
        if (flags & (FIRST_CHILD | EXTEND)) == FIRST_CHILD:
            status = publish_tail(ctx, a, ld64(a + N_TAIL) | INTERNAL)
            if status != OK:
                return status
    return OK


@jit
def new_nodes(ctx, slot, local, external, n):
    """The chain of new nodes for the rest of the store, which nobody can reach yet; OK, ROWS, FULL or
    CORRUPT.
    """
    i = get(ctx, C_REST)
    depth = get(ctx, C_REST_DEPTH)
    above = get(ctx, C_REST_NODE)
    space = lshr(ld64(node_at(ctx, above) + N_TAIL), 32)
    if space >= get(ctx, C_N_NODES):
        return CORRUPT
    top = 0
    while i < n:
        blocks = min(n - i, MAX_EDGE)
        k = get(ctx, C_N_TOUCHED)
        if k >= get(ctx, C_TOUCHED_ROOM):
            return ROWS
        node = claim_node(ctx)
        if node == 0:
            return FULL
        edge = edge_new(ctx, local + i * 8, external + i * 8, blocks)
        more = INTERNAL if i + blocks < n else 0
        if edge == 0 or make_node(ctx, node, depth, space, edge, depth + blocks, more) != OK:
            return FULL
        a = node_at(ctx, node)
        st64(a + N_INLINE, make_word(slot, 0, 0))
        if top == 0:
            top = node
        elif child_insert_private(ctx, space, pl64(local + i * 8), node) != OK:
            return FULL
        space = lshr(ld64(a + N_TAIL), 32)
        st64(node_at(ctx, space) + N_COUNT, 1 if more != 0 else 0)
        row_put(ctx, k, T_NODE, node)
        row_put(ctx, k, T_FLAGS, CREDIT | FRESH)
        row_put(ctx, k, T_WORD, a + N_INLINE)
        row_put(ctx, k, T_WIDE, 1)
        row_put(ctx, k, T_LOW, COV_PRESENT)
        row_put(ctx, k, T_NEW, COV_PRESENT | blocks)
        put(ctx, C_N_TOUCHED, k + 1)
        i += blocks
        depth += blocks
    put(ctx, C_TOP, top)
    return OK


@jit
def enter_top(ctx, local):
    """Enter the chain of new nodes where readers can reach it, the last step that can fail: OK, RETRY, BUSY
    or FULL.
    """
    depth = get(ctx, C_REST_DEPTH)
    space = lshr(ld64(node_at(ctx, get(ctx, C_REST_NODE)) + N_TAIL), 32)
    return child_insert(ctx, space, depth, pl64(local + get(ctx, C_REST) * 8), get(ctx, C_TOP))


@jit
def _change_of_blocks(ctx):
    """Blocks that the rows bring in, less those that the cuts take away."""
    change = 0
    for k in range(get(ctx, C_N_TOUCHED)):
        if (row_get(ctx, k, T_FLAGS) & CREDIT) != 0:
            length = edge_length(node_at(ctx, row_get(ctx, k, T_NODE)))
            change += word_blocks(row_get(ctx, k, T_NEW), length) - word_blocks(
                row_get(ctx, k, T_LOW), length
            )
    for k in range(get(ctx, C_N_CUTS)):
        length = edge_length(node_at(ctx, cut_get(ctx, k, X_NODE)))
        change += word_blocks(cut_get(ctx, k, X_NEW), length) - word_blocks(cut_get(ctx, k, X_LOW), length)
    return change


@jit
def plan_commit(ctx, slot):
    """The redo list: what the rank is known for; rows deepest first; then the cuts. OK or FULL."""
    known_at = get(ctx, C_STATES) + slot * RANK_STATE_BYTES + R_KNOWN
    if ld32(known_at) == 0 and log_redo(ctx, LOG_CAS32, known_at, 0, 1) != OK:
        return FULL
    if log_blocks(ctx, slot, _change_of_blocks(ctx)) != OK:
        return FULL
    k = get(ctx, C_N_TOUCHED) - 1
    while k >= 0:
        if (row_get(ctx, k, T_FLAGS) & CREDIT) != 0:
            low, new = row_get(ctx, k, T_LOW), row_get(ctx, k, T_NEW)
            if (
                low != new
                and log_word(ctx, slot, row_get(ctx, k, T_WORD), row_get(ctx, k, T_WIDE), low, new) != OK
            ):
                return FULL
        k -= 1
    for k in range(get(ctx, C_N_CUTS)):
        node = cut_get(ctx, k, X_NODE)
        low, new = cut_get(ctx, k, X_LOW), cut_get(ctx, k, X_NEW)
        word_at = cut_get(ctx, k, X_WORD)
        for j in range(get(ctx, C_N_TOUCHED)):
            # the node also gets a credit: its word will have changed by then (the cut lies behind the
            # store's end)
            if row_get(ctx, j, T_NODE) == node and (row_get(ctx, j, T_FLAGS) & CREDIT) != 0:
                low = row_get(ctx, j, T_NEW)
                new = (low & ~M12) | (cut_get(ctx, k, X_DEPTH) - (ld64(node_at(ctx, node) + N_START) & M32))
                word_at = row_get(ctx, j, T_WORD)
                cut_put(ctx, k, X_WIDE, row_get(ctx, j, T_WIDE))
        if log_word(ctx, slot, word_at, cut_get(ctx, k, X_WIDE), low, new) != OK:
            return FULL
        if new == 0 and (low & COV_ALIAS) != 0 and alias_drop(ctx, node_at(ctx, node), slot) != OK:
            return FULL
    return OK
