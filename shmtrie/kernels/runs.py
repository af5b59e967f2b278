"""The kernel part of a dump: nodes, their order, who covers them, the runs of one rank. Read-only, bounded.

First all live nodes are listed, each as it stood at one version; whatever is read of a node later counts only
if it still stands at that version. So what is left is a tree that stood at one instant, between the first and
the second pass; what writers change meanwhile is missing, and everything below it.
"""

from __future__ import annotations

from shmtrie.atomics import fence_acquire, ld32, ld64, ld64a, lshr, pl8, pl64, ps64
from shmtrie.kernels.aliases import alias_find
from shmtrie.kernels.build import entry, inl, jit
from shmtrie.kernels.context import (
    C_EXTENTS,
    C_N_LINES,
    C_N_NODES,
    C_N_SLOTS,
    C_NODE_CLAIMS,
    C_NODES,
    get,
)
from shmtrie.kernels.coverage import cov_find, head_fits, head_form, head_words, word_cutoff
from shmtrie.kernels.edges import edge_fits
from shmtrie.kernels.nodes import nodes_high
from shmtrie.layout import (
    ALIAS_LINES,
    COV_ALIAS,
    COV_SLOT,
    FORM_LIST,
    INLINE_WORDS,
    LINE,
    M31,
    M32,
    N_COVERAGE,
    N_EDGE,
    N_INLINE,
    N_START,
    N_TAIL,
    N_VERSION,
    NO_SPACE,
    NODE_BYTES,
)

READS = 64  # copies of one node
# a listed node: its words at one version, and its first local hash
R_NODE, R_VERSION, R_TAIL, R_BEGIN, R_EDGE, R_FIRST = range(6)
R_WIDTH = 6
# a pair of a node and a rank that covers its head; the last two are scratch
P_SLOT, P_ROW, P_LOW, P_STATE, P_KIDS = range(5)
P_WIDTH = 5
REACHED, FULL, EMITTED = 1, 2, 4  # of P_STATE
# a run: is there a parent, its hash, the blocks of the run
U_HAS_PARENT, U_PARENT, U_FIRST, U_END = range(4)
U_WIDTH = 4


@inl
def _row(rows, k):
    return rows + k * R_WIDTH * 8


@inl
def _pair(pairs, k):
    return pairs + k * P_WIDTH * 8


@inl
def row_stands(a, row):
    """The node still stands as it was listed; loads before are not moved behind."""
    fence_acquire()
    return (
        ld64(a + N_VERSION) == pl64(row + R_VERSION * 8)
        and ld64(a + N_TAIL) == pl64(row + R_TAIL * 8)
        and ld64(a + N_START) == pl64(row + R_BEGIN * 8)
        and ld64(a + N_EDGE) == pl64(row + R_EDGE * 8)
    )


@inl
def row_length(row):
    return (pl64(row + R_TAIL * 8) & M31) - (pl64(row + R_BEGIN * 8) & M32)


# ------------------------------------------------------------------------------------------------ nodes
@jit
def _list_node(ctx, a, node, row):
    """Copy a node's words into a row: 1 if it is live and stood still."""
    for _ in range(READS):
        version = ld64a(a + N_VERSION)
        begin = ld64a(a + N_START)  # acquire: the place comes last when a node is made
        tail, edge = ld64(a + N_TAIL), ld64(a + N_EDGE)
        length, space = (tail & M31) - (begin & M32), lshr(begin, 32)
        if lshr(version, 32) == 0 or space == NO_SPACE or ld32(get(ctx, C_NODE_CLAIMS) + node * 4) == 0:
            return 0
        if length <= 0 or length > lshr(edge, 32) or not edge_fits(ctx, edge):
            length = 0
        if space >= get(ctx, C_N_NODES) or lshr(tail, 32) >= get(ctx, C_N_NODES):
            length = 0
        ps64(row + R_NODE * 8, node)
        ps64(row + R_VERSION * 8, version)
        ps64(row + R_TAIL * 8, tail)
        ps64(row + R_BEGIN * 8, begin)
        ps64(row + R_EDGE * 8, edge)
        if length > 0:
            ps64(row + R_FIRST * 8, ld64(get(ctx, C_EXTENTS) + (edge & M32) * LINE))
            if row_stands(a, row):
                return 1
    return 0


@entry("int64(int64, int64, int64)")
def list_nodes(ctx, rows, room):
    """List the root and the live nodes; the number of rows. Beyond the room nodes are left out."""
    root = get(ctx, C_NODES)
    for k in range(R_WIDTH):  # depth 0, space 0
        ps64(rows + k * 8, 0)
    n = 1
    for node in range(1, nodes_high(ctx)):
        if n >= room:
            break
        if ld32(get(ctx, C_NODE_CLAIMS) + node * 4) != 0:
            n += _list_node(ctx, root + node * NODE_BYTES, node, _row(rows, n))
    return n


@entry("int64(int64, int64, int64, int64, int64, int64)")
def preorder(children, first, count, sequence, stack, n):
    """Order rows so that parents come first, siblings as they are given; the number of rows below the root.

    Parameters
    ----------
    children : int64
        Address of row numbers, those of one parent side by side.
    first, count : int64
        By row: where its children begin in there, and how many they are.
    sequence, stack : int64
        Out, and scratch: n words each.
    n : int64
        Rows; row 0 is the root.
    """
    m, top = 0, 1
    ps64(stack, 0)
    while top > 0 and m <= n:
        top -= 1
        row = pl64(stack + top * 8)
        if row != 0:
            ps64(sequence + m * 8, row)
            m += 1
        k = pl64(count + row * 8)
        begin = pl64(first + row * 8)
        while k > 0 and top < n:
            k -= 1
            ps64(stack + top * 8, pl64(children + (begin + k) * 8))
            top += 1
    return m


# ------------------------------------------------------------------------------------------------ coverage
@inl
def _enter_pair(pairs, room, n, slot, k, low, wanted):
    """Enter a pair if the rank is wanted and covers the node's head; the number of pairs."""
    if pl8(wanted + slot) == 0 or word_cutoff(low) == 0:
        return n
    if n < room:
        p = _pair(pairs, n)
        ps64(p + P_SLOT * 8, slot)
        ps64(p + P_ROW * 8, k)
        ps64(p + P_LOW * 8, low)
        ps64(p + P_STATE * 8, 0)
        ps64(p + P_KIDS * 8, 0)
    return n + 1


@jit
def _pairs_of(ctx, a, k, pairs, room, n, wanted):
    """Pairs of one node; the number of pairs."""
    head = ld64(a + N_COVERAGE)
    slots = get(ctx, C_N_SLOTS)
    x, words, wide = a + N_INLINE, INLINE_WORDS, True
    if head != 0:
        if not head_fits(ctx, head):
            return n
        x, wide = get(ctx, C_EXTENTS) + (head & M32) * LINE, head_form(head) == FORM_LIST
        words = min(head_words(head), (slots + 15) & ~15)
    for j in range(words):
        if wide:
            word = ld64(x + j * 8)
            slot, low = lshr(word, COV_SLOT), word & M32
        else:
            slot, low = j, ld32(x + j * 4)
        if low != 0 and slot < slots:
            n = _enter_pair(pairs, room, n, slot, k, low, wanted)
    return n


@entry("UniTuple(int64, 2)(int64, int64, int64, int64, int64, int64, int64)")
def list_pairs(ctx, rows, sequence, m, wanted, pairs, room):
    """Who covers the head of the nodes: (number of pairs, nodes left out because they changed).

    Parameters
    ----------
    sequence, m : int64
        Address of m row numbers; pairs come in this order.
    wanted : int64
        u8 by slot.
    pairs, room : int64
        Where pairs go, and how many fit; beyond that they are only counted.
    """
    n, moved = 0, 0
    for i in range(m):
        k = pl64(sequence + i * 8)
        row = _row(rows, k)
        a = get(ctx, C_NODES) + pl64(row + R_NODE * 8) * NODE_BYTES
        after = _pairs_of(ctx, a, k, pairs, room, n, wanted)
        if row_stands(a, row):
            n = after
        else:
            moved += 1
    return n, moved


# ------------------------------------------------------------------------------------------------ runs
@jit
def _copy_blocks(ctx, pair, row, local, external):
    """Copy the hashes of a pair's blocks: 1 if they are what they were listed as."""
    a = get(ctx, C_NODES) + pl64(row + R_NODE * 8) * NODE_BYTES
    slot, low, edge = pl64(pair + P_SLOT * 8), pl64(pair + P_LOW * 8), pl64(row + R_EDGE * 8)
    n = min(word_cutoff(low), row_length(row))
    x = get(ctx, C_EXTENTS) + (edge & M32) * LINE
    y = x + lshr(edge, 32) * 8
    if (low & COV_ALIAS) != 0:
        found, word = alias_find(ctx, a, slot)
        lines = lshr(word, ALIAS_LINES) & 0xFFFF
        line = word & M32
        if found == 0 or n > lines * (LINE // 8) or line == 0 or line + lines > get(ctx, C_N_LINES) + 1:
            return 0
        y = get(ctx, C_EXTENTS) + line * LINE
    for k in range(n):
        ps64(local + k * 8, ld64(x + k * 8))
        ps64(external + k * 8, ld64(y + k * 8))
    if (low & COV_ALIAS) != 0:
        # hashes behind the cutoff are written before it moves: they count while the word is what it was
        fence_acquire()
        _, now, _ = cov_find(ctx, a, slot)
        if now != low:
            return 0
    return 1 if row_stands(a, row) else 0


@inl
def _above(pairs, lo, parents, places, pair):
    """The rank's pair of a pair's parent node: its number, -1 for the root, -2 when it has none."""
    parent = pl64(parents + pl64(pair + P_ROW * 8) * 8)
    if parent == 0:
        return -1
    place = pl64(places + parent * 8) - 1
    return place if place >= lo else -2


@jit
def _reach(rows, parents, places, pairs, lo, hi):
    """Mark the pairs that the rank can reach, and count how often each goes on below its end."""
    for i in range(lo, hi):
        pair = _pair(pairs, i)
        row = _row(rows, pl64(pair + P_ROW * 8))
        above = _above(pairs, lo, parents, places, pair)
        reached = above == -1
        if above >= 0:
            upper = _pair(pairs, above)
            reached = pl64(upper + P_STATE * 8) == REACHED | FULL
            if reached:
                ps64(upper + P_KIDS * 8, pl64(upper + P_KIDS * 8) + 1)
        full = word_cutoff(pl64(pair + P_LOW * 8)) >= row_length(row)
        ps64(pair + P_STATE * 8, (REACHED if reached else 0) | (FULL if full else 0))
        ps64(places + pl64(pair + P_ROW * 8) * 8, i + 1)


@entry("UniTuple(int64, 2)(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def cut_runs(ctx, rows, parents, places, pairs, lo, hi, local, external, runs):
    """Cut what one rank reaches into maximal unbranched runs: (runs, nodes left out because they changed).

    Parameters
    ----------
    parents, places : int64
        By row: the parent's row (0 is the root, -1 none), and scratch, zero before the first rank.
    pairs, lo, hi : int64
        The rank's pairs are [lo, hi), parents first.
    local, external : int64
        Where the hashes of the runs go, one behind the other; there is room for all pairs.
    runs : int64
        Where the runs go: room for hi - lo.
    """
    _reach(rows, parents, places, pairs, lo, hi)
    n_runs, n, moved, last = 0, 0, 0, -2
    for i in range(lo, hi):
        pair = _pair(pairs, i)
        state = pl64(pair + P_STATE * 8)
        if (state & REACHED) == 0:
            continue
        above = _above(pairs, lo, parents, places, pair)
        if above >= 0 and (pl64(_pair(pairs, above) + P_STATE * 8) & EMITTED) == 0:
            continue
        row = _row(rows, pl64(pair + P_ROW * 8))
        if _copy_blocks(ctx, pair, row, local + n * 8, external + n * 8) == 0:
            moved += 1
            continue
        ps64(pair + P_STATE * 8, state | EMITTED)
        run = runs + n_runs * U_WIDTH * 8
        if above < 0 or above != last or pl64(_pair(pairs, above) + P_KIDS * 8) != 1:
            ps64(run + U_HAS_PARENT * 8, 1 if above >= 0 else 0)
            # a pair's low half is not needed any more: it keeps the rank's hash of the node's last block
            ps64(run + U_PARENT * 8, pl64(_pair(pairs, above) + P_LOW * 8) if above >= 0 else 0)
            ps64(run + U_FIRST * 8, n)
            n_runs += 1
            run += U_WIDTH * 8
        n += min(word_cutoff(pl64(pair + P_LOW * 8)), row_length(row))
        ps64(run - U_WIDTH * 8 + U_END * 8, n)
        ps64(pair + P_LOW * 8, pl64(external + (n - 1) * 8))
        last = i
    return n_runs, moved
