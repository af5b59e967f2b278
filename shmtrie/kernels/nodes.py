"""Node ids: claiming a free one, and giving it its fields.

As in extents.py the truth is in the claim words; the private list of free ids and its cursor are hints.
"""

from __future__ import annotations

from shmtrie.atomics import cas32, cas64, ctz, fence_release, ld32, ld64, lshr, pl64, ps64, st64, st64r
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import (
    BUSY,
    C_FULL_TABLE,
    C_HEADER_EPOCH,
    C_N_NODE_HINTS,
    C_N_NODES,
    C_NODE_CLAIMS,
    C_NODE_CURSOR,
    C_NODE_HINTS,
    FULL,
    OK,
    TABLE_NODES,
    get,
    put,
)
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import log_undo, pop_undo
from shmtrie.kernels.protocol import bump_generation, claim_value, gate_exclusive, node_at, quarantine
from shmtrie.layout import (
    H_EPOCH,
    H_NODES_HIGH,
    INLINE_WORDS,
    LOG_CAS32,
    LOG_NODE,
    N_ALIAS,
    N_COUNT,
    N_COVERAGE,
    N_EDGE,
    N_INLINE,
    N_OWNER,
    N_START,
    N_SUFFIX,
    N_TAIL,
    N_VERSION,
)
from shmtrie.vectors import eq16

NODE_HINTS = 256  # private list of node ids that were seen free


@inl
def nodes_high(ctx):
    """Node ids that were ever claimed are below it, and it is no more than there are.

    Never negative: a `range` from 1 to the lowest number that there is would go on for ever.
    """
    high = ld64(get(ctx, C_HEADER_EPOCH) - H_EPOCH + H_NODES_HIGH)
    return high if 0 < high <= get(ctx, C_N_NODES) else get(ctx, C_N_NODES)


# ------------------------------------------------------------------------------------------------ node ids
@jit
def _hint_nodes(ctx):
    """Search free node ids from the cursor on; the number found."""
    total = get(ctx, C_N_NODES)
    claims = get(ctx, C_NODE_CLAIMS)
    cursor = get(ctx, C_NODE_CURSOR)
    hints = get(ctx, C_NODE_HINTS)
    found = 0
    rounds = (total + 15) // 16
    groups = rounds  # of 16 claim words; the section is padded to whole pages
    for _ in range(rounds):
        if cursor >= groups:
            cursor = 0
        m = eq16(claims + cursor * 64, -1, 0)
        while m != 0 and found < NODE_HINTS:
            node = cursor * 16 + ctz(m)
            m &= m - 1
            if 0 < node < total:
                ps64(hints + found * 8, node)
                found += 1
        cursor += 1
        if found >= NODE_HINTS - 16:
            break
    put(ctx, C_NODE_CURSOR, cursor)
    # taken from the end of the list: lowest ids first
    for k in range(found // 2):
        x = pl64(hints + k * 8)
        ps64(hints + k * 8, pl64(hints + (found - 1 - k) * 8))
        ps64(hints + (found - 1 - k) * 8, x)
    put(ctx, C_N_NODE_HINTS, found)
    return found


@inl
def _is_usable(ctx, node):
    """The space that the node owns exists; else the node is damaged, and marked. One word, so nothing that
    others do meanwhile can make it look so.
    """
    a = node_at(ctx, node)
    if lshr(ld64(a + N_TAIL), 32) < get(ctx, C_N_NODES):
        return True
    quarantine(ctx, a)
    return False


@jit
def claim_node(ctx):
    """A free node id, its gate held exclusively and listed; 0 when there is none.

    Notes
    -----
    Fields are set by `make_node`. Crash: undone by the undo entry of the claim word. The gate of a node that
    was just reclaimed may still be held by its reclaimer: that id is passed over.
    """
    value = claim_value(ctx)
    claims = get(ctx, C_NODE_CLAIMS)
    hints = get(ctx, C_NODE_HINTS)
    for _ in range(3):
        n = get(ctx, C_N_NODE_HINTS)
        while n > 0:
            n -= 1
            put(ctx, C_N_NODE_HINTS, n)
            node = pl64(hints + n * 8)
            a = claims + node * 4
            if ld32(a) != 0 or not _is_usable(ctx, node):
                continue
            if log_undo(ctx, LOG_CAS32, a, 0, value) != OK:
                return 0
            if cas32(a, 0, value) == 0:
                pop_undo(ctx)
                continue
            at(ctx, Site.NODE_CLAIMED)
            status = gate_exclusive(ctx, node)
            if status != OK:
                cas32(a, value, 0)
                pop_undo(ctx)
                if status != BUSY:
                    return 0
                continue
            high = get(ctx, C_HEADER_EPOCH) - H_EPOCH + H_NODES_HIGH
            for _ in range(1 << 20):  # each turn but the last one is another lane's that claims
                h = ld64(high)
                if h > node or cas64(high, h, node + 1) != 0:
                    break
            return node
        if _hint_nodes(ctx) == 0:
            break
    put(ctx, C_FULL_TABLE, TABLE_NODES)
    return 0


@jit
def make_node(ctx, node, depth, space, edge, end, internal):
    """Give a claimed node its fields: a child at `depth` hanging in `space`, covered by nobody.

    Notes
    -----
    The space it hangs in comes last (M16): until then a reader that came by a stale child entry refuses it.
    Crash: the node entry of the undo list takes it back to a free one.
    """
    a = node_at(ctx, node)
    own = lshr(ld64(a + N_TAIL), 32)
    if own >= get(ctx, C_N_NODES):
        return FULL
    if own == 0:  # never used (space 0 is the root's): it owns the space of its own number, whatever comes
        own = node
        st64(a + N_TAIL, own << 32)
    if log_undo(ctx, LOG_NODE, a, 0, 0) != OK:
        return FULL
    if lshr(ld64(a + N_VERSION), 32) == 0:
        bump_generation(a)
    # R40: a reader that reads any of the words below also finds the generation that was bumped before
    fence_release()
    st64(a + N_EDGE, edge)
    st64(a + N_COVERAGE, 0)
    for k in range(INLINE_WORDS):
        st64(a + N_INLINE + k * 8, 0)
    st64(a + N_SUFFIX, 0)
    st64(a + N_ALIAS, 0)
    home = node_at(ctx, own)
    st64(home + N_OWNER, node)
    st64(home + N_COUNT, 0)
    st64(a + N_TAIL, end | internal | (own << 32))
    st64r(a + N_START, depth | (space << 32))
    at(ctx, Site.NODE_MADE)
    return OK


@inl
def hint_node(ctx, node):
    n = get(ctx, C_N_NODE_HINTS)
    if n < NODE_HINTS:
        ps64(get(ctx, C_NODE_HINTS) + n * 8, node)
        put(ctx, C_N_NODE_HINTS, n + 1)
