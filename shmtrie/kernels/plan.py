"""The plan of a store: a pure read of the path, validated node by node.

Rows of TOUCHED name the nodes that will change, from the root down; nodes that the rank covers already
under the same hashes need no gate and have no row. What is planned stands while (version, tail) of a row's
node stand; the execution checks them under the gate and plans anew when they moved.
"""

from __future__ import annotations

from shmtrie.atomics import fence_acquire, ld64, ld64a, lshr, pl64
from shmtrie.kernels.aliases import own_hashes
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.children import child_find, child_hash, prefetch_child
from shmtrie.kernels.context import (
    BAD_SEQUENCE,
    C_BUSY_NODE,
    C_CUTS,
    C_EXACT,
    C_EXTENTS,
    C_FULL_TABLE,
    C_HAS_ALIASES,
    C_N_CUTS,
    C_N_TOUCHED,
    C_REST,
    C_REST_DEPTH,
    C_REST_NODE,
    C_SEED,
    C_SPLIT_DEPTH,
    C_SPLIT_NODE,
    C_TOUCHED,
    C_TOUCHED_ROOM,
    CORRUPT,
    FULL,
    HOLE,
    OK,
    RETRY,
    ROWS,
    SUSPECT,
    TABLE_LOG,
    get,
    put,
)
from shmtrie.kernels.coverage import cov_find, cov_room, word_begin, word_blocks
from shmtrie.kernels.edges import edge_fits, edge_length, mismatch
from shmtrie.kernels.lookup import lookup_entry, lookup_lacks
from shmtrie.kernels.places import is_above, own_word
from shmtrie.kernels.protocol import node_at, scratch_get, scratch_put
from shmtrie.kernels.resolve import entry_prefetch, resolve
from shmtrie.layout import (
    COV_ALIAS,
    INTERNAL,
    LINE,
    M12,
    M31,
    M32,
    MAX_EDGE,
    N_EDGE,
    N_START,
    N_TAIL,
    N_VERSION,
    NO_SPACE,
)

# a row of TOUCHED: positions are absolute depths; [LO, MID) lies in the edge already, [MID, HI) is appended
(T_NODE, T_LO, T_MID, T_HI, T_INDEX, T_VERSION, T_TAIL, T_FLAGS, T_LOW, T_WORD, T_WIDE, T_NEW) = range(12)
T_WIDTH = 12
EXCLUSIVE, ALIAS, EXTEND, FIRST_CHILD, CREDIT, VERIFIED, FRESH = 1, 2, 4, 8, 16, 32, 64
# a row of CUTS
(X_NODE, X_DEPTH, X_TOP, X_WORD, X_WIDE, X_LOW, X_NEW) = range(7)  # depths of the first place and the last
X_WIDTH = 7
MAX_CUTS = 1_024
WALK = 1 << 20


@inl
def row_get(ctx, k, field):
    return scratch_get(get(ctx, C_TOUCHED), k, T_WIDTH, field)


@inl
def row_put(ctx, k, field, value):
    scratch_put(get(ctx, C_TOUCHED), k, T_WIDTH, field, value)


@inl
def cut_get(ctx, k, field):
    return scratch_get(get(ctx, C_CUTS), k, X_WIDTH, field)


@inl
def cut_put(ctx, k, field, value):
    scratch_put(get(ctx, C_CUTS), k, X_WIDTH, field, value)


@inl
def _row(ctx, node, version, tail, lo, mid, hi, index, flags):
    """Add a row; OK, or ROWS when the scratch area has to grow."""
    k = get(ctx, C_N_TOUCHED)
    if k >= get(ctx, C_TOUCHED_ROOM):
        return ROWS
    row_put(ctx, k, T_NODE, node)
    row_put(ctx, k, T_LO, lo)
    row_put(ctx, k, T_MID, mid)
    row_put(ctx, k, T_HI, hi)
    row_put(ctx, k, T_INDEX, index)
    row_put(ctx, k, T_VERSION, version)
    row_put(ctx, k, T_TAIL, tail)
    row_put(ctx, k, T_FLAGS, flags)
    put(ctx, C_N_TOUCHED, k + 1)
    return OK


@inl
def _hashes_differ(ctx, a, slot, low, position, external, m):
    """Whether the event's hashes of m matched blocks differ from what the rank's word stands for there."""
    if (low & COV_ALIAS) != 0:
        m = max(min(m, (low & M12) - position), 0)
    x, held = own_hashes(ctx, a, slot, low)
    return 1 if position + m > held or mismatch(x + position * 8, external, m) != m else 0


@jit
def plan_path(ctx, slot, node, depth, local, external, n):
    """Follow the blocks from (node, depth) and write rows; OK, RETRY, ROWS, CORRUPT, or SUSPECT when the node
    in BUSY_NODE looks damaged.
    """
    put(ctx, C_N_TOUCHED, 0)
    put(ctx, C_N_CUTS, 0)
    put(ctx, C_SPLIT_NODE, 0)
    put(ctx, C_REST, n)
    i = 0
    parent_at, parent_tail, parent_generation = 0, 0, 0
    for _ in range(WALK):
        a = node_at(ctx, node)
        version = ld64a(a + N_VERSION)
        begin = ld64a(a + N_START)
        tail, edge = ld64(a + N_TAIL), ld64(a + N_EDGE)
        start, end = begin & M32, tail & M31
        low, m, room, differ = 0, 0, 1, 0
        if node == 0 and tail != INTERNAL:  # the root never changes
            return CORRUPT
        if node != 0:
            if lshr(begin, 32) == NO_SPACE:
                return RETRY
            if end <= start or end - start > lshr(edge, 32) or not edge_fits(ctx, edge):
                fence_acquire()
                if ld64(a + N_VERSION) != version:
                    return RETRY
                put(ctx, C_BUSY_NODE, node)
                return SUSPECT
            if depth < start or depth > end:
                return RETRY
            if n - i > end - depth:  # where the next child is, if there is one
                prefetch_child(
                    ctx, child_hash(get(ctx, C_SEED), lshr(tail, 32), pl64(local + (i + end - depth) * 8))
                )
            if depth < end:
                x = get(ctx, C_EXTENTS) + (edge & M32) * LINE + (depth - start) * 8
                m = mismatch(x, local + i * 8, min(n - i, end - depth))
            _, low, _ = cov_find(ctx, a, slot)
            room = cov_room(ctx, a, slot)
            if m > 0:
                differ = _hashes_differ(ctx, a, slot, low, depth - start, external + i * 8, m)
        fence_acquire()
        if ld64(a + N_VERSION) != version or ld64(a + N_TAIL) != tail:
            return RETRY
        if parent_at != 0:
            # hand over hand: the parent was still the same when the child was read (M1, M1b)
            if (
                ld64(parent_at + N_TAIL) != parent_tail
                or lshr(ld64(parent_at + N_VERSION), 32) != parent_generation
            ):
                return RETRY
            if m == 0 and depth < end:
                return RETRY
        flags = 0 if room != 0 else EXCLUSIVE
        # not covered: behind the cutoff, or (exact holes) in front of where the rank begins
        ahead = word_begin(low) - (depth - start)
        short = (low & M12) < depth - start + m or ahead > 0
        needs_alias = differ != 0 or ((low & COV_ALIAS) != 0 and short)
        if needs_alias:
            flags |= ALIAS | EXCLUSIVE
        has_row = 0
        covers = (low & M12) >= end - start
        if m > 0:
            if differ != 0 or short:
                if _row(ctx, node, version, tail, depth, depth + m, depth + m, i, flags | CREDIT) != OK:
                    return ROWS
                has_row = 1
                covers = depth + m == end
            i += m
            depth += m
        # the store ends before what the rank covers there: it is kept, behind a split
        apart = depth < end and ahead > m > 0 and word_blocks(low, end - start) > 0
        if i == n and not apart:
            return OK
        if depth < end:
            if has_row == 0 and _row(ctx, node, version, tail, depth, depth, depth, i, 0) != OK:
                return ROWS
            last = get(ctx, C_N_TOUCHED) - 1
            row_put(ctx, last, T_FLAGS, row_get(ctx, last, T_FLAGS) | EXCLUSIVE)
            put(ctx, C_SPLIT_NODE, node)
            put(ctx, C_SPLIT_DEPTH, depth)
            put(ctx, C_REST, i)
            put(ctx, C_REST_NODE, node)
            put(ctx, C_REST_DEPTH, depth)
            return OK
        child = child_find(ctx, lshr(tail, 32), depth, pl64(local + i * 8))
        fence_acquire()
        if ld64(a + N_TAIL) != tail or lshr(ld64(a + N_VERSION), 32) != lshr(version, 32):
            return RETRY
        if child != 0:
            parent_at, parent_tail, parent_generation = a, tail, lshr(version, 32)
            node = child
            continue
        inside = (tail & INTERNAL) != 0
        if node != 0:
            if has_row == 0:
                if _row(ctx, node, version, tail, depth, depth, depth, i, 0 if inside else flags) != OK:
                    return ROWS
            last = get(ctx, C_N_TOUCHED) - 1
            more = row_get(ctx, last, T_FLAGS)
            if not inside:
                more |= EXCLUSIVE
                if covers and end - start < MAX_EDGE:
                    k = min(n - i, MAX_EDGE - (end - start))
                    more |= EXTEND | CREDIT
                    if (low & COV_ALIAS) != 0 or differ != 0:
                        more |= ALIAS
                    row_put(ctx, last, T_HI, end + k)
                    i += k
                    depth += k
                if i < n:
                    more |= FIRST_CHILD
                row_put(ctx, last, T_FLAGS, more)
        put(ctx, C_REST, i)
        put(ctx, C_REST_NODE, node)
        put(ctx, C_REST_DEPTH, depth)
        return OK
    return RETRY


@inl
def _on_path(ctx, node, depth):
    """The place will be given another hash by this store: it lies in a row's range."""
    k = get(ctx, C_N_TOUCHED) - 1
    while k >= 0:
        if row_get(ctx, k, T_NODE) == node and row_get(ctx, k, T_LO) <= depth < row_get(ctx, k, T_HI):
            return 1
        k -= 1
    return 0


@inl
def _has_credit(ctx, node):
    """The node has a row with blocks for the rank."""
    for k in range(get(ctx, C_N_TOUCHED)):
        if row_get(ctx, k, T_NODE) == node and (row_get(ctx, k, T_FLAGS) & CREDIT) != 0:
            return 1
    return 0


@jit
def _keep_behind(ctx, slot):
    """Where to split an edge so that each row of CUTS is at an end of what the rank covers: OK, or HOLE
    and the place. Exact holes only.
    """
    for k in range(get(ctx, C_N_CUTS)):
        node, stop = cut_get(ctx, k, X_NODE), cut_get(ctx, k, X_TOP) + 1
        a = node_at(ctx, node)
        low, start = own_word(ctx, a, slot), ld64(a + N_START) & M32
        if stop - start >= min(low & M12, edge_length(a)):
            continue
        if cut_get(ctx, k, X_DEPTH) - start > word_begin(low) or _has_credit(ctx, node) != 0:
            put(ctx, C_SPLIT_NODE, node)
            put(ctx, C_SPLIT_DEPTH, stop)
            return HOLE
    return OK


@jit
def _moved(ctx, slot, parent, parent_depth, external, lo, hi, here):
    """Places off the new path that the rank holds under hashes [lo, hi) of the store: OK, BAD_SEQUENCE or
    FULL; HOLE where those of one node do not lie side by side, and what is between them has to be kept.

    `here` is the lookup entry of the new place of hash `lo`, or 0. Most hashes of a store that other ranks
    of the lane have as well lead there and nowhere else, which the entry alone tells.
    """
    exact, plain_only = get(ctx, C_EXACT), get(ctx, C_HAS_ALIASES) == 0
    for i in range(lo, min(lo + 8, hi)):
        entry_prefetch(ctx, slot, pl64(external + i * 8))
    for i in range(lo, hi):
        if i + 8 < hi:
            entry_prefetch(ctx, slot, pl64(external + (i + 8) * 8))
        if plain_only and lookup_lacks(ctx, pl64(external + i * 8)) != 0:
            continue
        passed = here + lookup_entry(0, i - lo) if here != 0 else 0
        node, depth = resolve(ctx, slot, pl64(external + i * 8), 2, passed)
        if node == 0 or _on_path(ctx, node, depth) != 0:
            continue
        if parent != 0 and is_above(ctx, node, depth, parent, parent_depth) != 0:
            return BAD_SEQUENCE
        k = 0
        cuts = get(ctx, C_N_CUTS)
        while k < cuts and cut_get(ctx, k, X_NODE) != node:
            k += 1
        if k == cuts:
            if cuts >= MAX_CUTS:
                put(ctx, C_FULL_TABLE, TABLE_LOG)
                return FULL
            put(ctx, C_N_CUTS, cuts + 1)
            cut_put(ctx, k, X_NODE, node)
            cut_put(ctx, k, X_DEPTH, depth)
            cut_put(ctx, k, X_TOP, depth)
        first, last = cut_get(ctx, k, X_DEPTH), cut_get(ctx, k, X_TOP)
        if exact != 0 and (depth > last + 1 or depth < first - 1):
            put(ctx, C_SPLIT_NODE, node)
            put(ctx, C_SPLIT_DEPTH, last + 1 if depth > last else depth + 1)
            return HOLE
        cut_put(ctx, k, X_DEPTH, min(depth, cut_get(ctx, k, X_DEPTH)))
        cut_put(ctx, k, X_TOP, max(depth, cut_get(ctx, k, X_TOP)))
    return OK


@jit
def find_moved(ctx, slot, parent, parent_depth, external, n):
    """Fill CUTS: what the rank holds elsewhere under hashes that this store gives to other places. OK,
    BAD_SEQUENCE or FULL; HOLE when that takes a split first, at SPLIT_NODE and SPLIT_DEPTH.

    Blocks that stay covered under their own hash need no look: an external hash has one place.
    """
    for k in range(get(ctx, C_N_TOUCHED)):
        i, node, lo = row_get(ctx, k, T_INDEX), row_get(ctx, k, T_NODE), row_get(ctx, k, T_LO)
        here = lookup_entry(node, lo - (ld64(node_at(ctx, node) + N_START) & M32))
        status = _moved(ctx, slot, parent, parent_depth, external, i, i + row_get(ctx, k, T_HI) - lo, here)
        if status != OK:
            return status
    status = _moved(ctx, slot, parent, parent_depth, external, get(ctx, C_REST), n, 0)
    if status == OK and get(ctx, C_EXACT) != 0:
        status = _keep_behind(ctx, slot)
    return status
