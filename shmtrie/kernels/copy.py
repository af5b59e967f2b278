"""The kernel part of a resize: nodes of one segment made anew in another, which nobody else has seen yet.

The old segment is at rest, and stays so: its writers have seen that it is retired. So nothing here is read
twice, and what does not fit together is damage. What is left out: words of ranks that are not wanted, nodes
and tails that nobody covers then. Node for node the rest is as it was, what is behind a cut included.
"""

from __future__ import annotations

from shmtrie.atomics import fence_full, ld32, ld64, ld64a, lshr, pl64, ps64, st32, st64
from shmtrie.kernels.aliases import alias_find, alias_fits
from shmtrie.kernels.build import entry, inl, jit
from shmtrie.kernels.children import child_insert_private
from shmtrie.kernels.context import (
    C_HEADER_EPOCH,
    C_N_SLOTS,
    C_NODES,
    C_RECORD,
    C_STATES,
    FULL,
    OK,
    get,
)
from shmtrie.kernels.coverage import head_fits, head_form, head_words
from shmtrie.kernels.extents import claim_lines
from shmtrie.kernels.forms import cov_extent
from shmtrie.kernels.nodes import claim_node, make_node
from shmtrie.kernels.protocol import gate_drop, node_at
from shmtrie.kernels.runs import R_BEGIN, R_EDGE, R_NODE, R_TAIL, R_WIDTH, row_length, row_stands
from shmtrie.kernels.spans import extent_lines, line_at
from shmtrie.kernels.transaction import begin, finish
from shmtrie.layout import (
    ALIAS_LINES,
    ALIAS_SLOT,
    COV_ALIAS,
    COV_SLOT,
    COV_START,
    FORM_DENSE,
    FORM_LIST,
    H_EPOCH,
    H_SLOTS_HIGH,
    INLINE_WORDS,
    INTERNAL,
    L_NGATES,
    L_NUNDO,
    L_OP,
    L_PHASE,
    LANE_BYTES,
    M12,
    M32,
    MAX_EDGE,
    N_ALIAS,
    N_COUNT,
    N_COVERAGE,
    N_INLINE,
    NODE_BYTES,
    PHASE_IDLE,
    R_BLOCKS,
    RANK_STATE_BYTES,
)
from shmtrie.vectors import zero_line

DAMAGED = -1  # beside OK and FULL


# ------------------------------------------------------------------------------------------------ rest
@entry("int64(int64, int64)")
def open_lane(lanes, n):
    """The first of n lanes that is in an operation, or whose record is not at rest; -1: none.

    The caller has marked the segment as retired, and the full fence is between that and the loads: of a lane
    and us, one sees the other (`is_retired`). Acquire: what an operation that has ended wrote is seen.
    """
    fence_full()
    for lane in range(n):
        r = lanes + lane * LANE_BYTES
        if (ld64a(r + L_OP) & 1) != 0 or (ld64a(r + L_PHASE) & 0xFF) != PHASE_IDLE:
            return lane
    return -1


# ------------------------------------------------------------------------------------------------ words
@inl
def _words(ctx, a):
    """(address, number, are they 64 bits wide) of a node's coverage words; number -1: damaged."""
    head = ld64(a + N_COVERAGE)
    if head == 0:
        return a + N_INLINE, INLINE_WORDS, True
    if not head_fits(ctx, head):
        return 0, -1, True
    return line_at(ctx, head & M32), head_words(head), head_form(head) == FORM_LIST


@inl
def _wanted(ctx, x, j, wide, slots, length):
    """(old slot, new slot, low half) of a word as it will be; new slot -1: it is left out.

    A cutoff beyond the end was left by a split: the suffix has a word of its own.
    """
    slot, low = j, 0
    if wide:
        word = ld64(x + j * 8)
        slot, low = lshr(word, COV_SLOT), word & M32
    else:
        low = ld32(x + j * 4)
    stop = min(low & M12, length)
    if slot >= get(ctx, C_N_SLOTS) or ((low >> COV_START) & M12) >= stop:
        return slot, -1, 0
    return slot, pl64(slots + slot * 8), (low & ~M12) | stop


@entry("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def trim(ctx, rows, parents, sequence, m, slots, lengths, children):
    """Find what has to be copied: the number of nodes, or DAMAGED.

    Parameters
    ----------
    rows, parents, sequence, m : int64
        The nodes as `runs.list_nodes` and `runs.preorder` give them.
    slots : int64
        i64 by old slot: the new one, or -1.
    lengths, children : int64
        i64 by row, zeros. Out: blocks of the node that are kept, 0 leaves it out; children that are.
    """
    n = 0
    for i in range(m - 1, -1, -1):  # children first
        k = pl64(sequence + i * 8)
        row = rows + k * R_WIDTH * 8
        a = get(ctx, C_NODES) + pl64(row + R_NODE * 8) * NODE_BYTES
        x, words, wide = _words(ctx, a)
        if words < 0 or not row_stands(a, row):
            return DAMAGED
        length = row_length(row)
        if pl64(children + k * 8) == 0:
            top = 0
            for j in range(words):
                _, slot, low = _wanted(ctx, x, j, wide, slots, length)
                if slot >= 0:
                    top = max(top, low & M12)
            length = top
        ps64(lengths + k * 8, length)
        if length > 0:
            parent = children + pl64(parents + k * 8) * 8
            ps64(parent, pl64(parent) + 1)
            n += 1
    return n


# ------------------------------------------------------------------------------------------------ copies
@jit
def _copy_aliases(src, dst, a, b, x, words, wide, slots, length, flagged):
    """Give the copy `b` of node `a` its `flagged` aliases; OK, FULL or DAMAGED."""
    want = (flagged + 7) & ~7
    line = claim_lines(dst, want >> 3)
    if line == 0:
        return FULL
    y = line_at(dst, line)
    for k in range(want >> 3):
        zero_line(y + k * 64)
    n = 0
    for j in range(words):
        old, slot, low = _wanted(src, x, j, wide, slots, length)
        if slot < 0 or (low & COV_ALIAS) == 0:
            continue
        stop = low & M12
        word_at, word = alias_find(src, a, old)
        if word_at == 0 or not alias_fits(src, word, stop - 1):
            return DAMAGED
        lines = (stop + 7) >> 3
        extent = claim_lines(dst, lines)
        if extent == 0:
            return FULL
        for p in range(stop):
            st64(line_at(dst, extent) + p * 8, ld64(line_at(src, word & M32) + p * 8))
        st64(y + n * 8, ((slot + 1) << ALIAS_SLOT) | (lines << ALIAS_LINES) | extent)
        n += 1
    st64(b + N_ALIAS, line | (want << 32))
    return OK


@jit
def _copy_words(src, dst, a, b, slots, length):
    """Give the copy `b` of node `a` its coverage, and count the ranks' blocks; OK, FULL or DAMAGED."""
    x, words, wide = _words(src, a)
    n, flagged = 0, 0
    for j in range(words):
        _, slot, low = _wanted(src, x, j, wide, slots, length)
        if slot >= 0:
            n += 1
            flagged += (low & COV_ALIAS) != 0
    y, to_list = b + N_INLINE, True
    if n > INLINE_WORDS:
        dense = (ld64(get(dst, C_HEADER_EPOCH) - H_EPOCH + H_SLOTS_HIGH) + 15) & ~15
        want = (n + 7) & ~7
        to_list = want * 8 <= dense * 4
        head = cov_extent(dst, want, FORM_LIST) if to_list else cov_extent(dst, dense, FORM_DENSE)
        if head == 0:
            return FULL
        st64(b + N_COVERAGE, head)
        y = line_at(dst, head & M32)
    n = 0
    for j in range(words):
        _, slot, low = _wanted(src, x, j, wide, slots, length)
        if slot < 0:
            continue
        if to_list:
            st64(y + n * 8, (slot << COV_SLOT) | low)
        else:
            st32(y + slot * 4, low)
        n += 1
        blocks = get(dst, C_STATES) + slot * RANK_STATE_BYTES + R_BLOCKS
        st64(blocks, ld64(blocks) + (low & M12) - ((low >> COV_START) & M12))
    if flagged != 0:
        return _copy_aliases(src, dst, a, b, x, words, wide, slots, length, flagged)
    return OK


@jit
def _copy_node(src, dst, row, space, slots, length):
    """Make a node anew as a child in `space`: (status, its id)."""
    a = get(src, C_NODES) + pl64(row + R_NODE * 8) * NODE_BYTES
    edge, tail = pl64(row + R_EDGE * 8), pl64(row + R_TAIL * 8)
    start = pl64(row + R_BEGIN * 8) & M32
    line = claim_lines(dst, (length + 3) >> 2)
    if line == 0:
        return FULL, 0
    capacity = min(extent_lines(dst, line) * 4, MAX_EDGE)
    x, y = line_at(src, edge & M32), line_at(dst, line)
    for k in range(length):
        st64(y + k * 8, ld64(x + k * 8))
    x += lshr(edge, 32) * 8
    y += capacity * 8
    for k in range(length):
        st64(y + k * 8, ld64(x + k * 8))
    node = claim_node(dst)
    if node == 0:
        return FULL, 0
    edge = line | (capacity << 32)
    if make_node(dst, node, start, space, edge, start + length, tail & INTERNAL) != OK:
        return FULL, 0
    status = _copy_words(src, dst, a, node_at(dst, node), slots, length)
    if status != OK:
        return status, 0
    if child_insert_private(dst, space, ld64(line_at(dst, line)), node) != OK:
        return FULL, 0
    count_at = node_at(dst, space) + N_COUNT
    st64(count_at, ld64(count_at) + 1)
    # nothing is ever taken back here: a copy that fails goes as a whole
    gate_drop(dst, node)
    st64(get(dst, C_RECORD) + L_NGATES, 0)
    st64(get(dst, C_RECORD) + L_NUNDO, 0)
    return OK, node


@entry("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def copy_nodes(src, dst, rows, parents, sequence, m, slots, lengths, nodes):
    """Copy the nodes that `trim` kept; OK, FULL (the table is in the context of `dst`) or DAMAGED.

    Parameters
    ----------
    src, dst : int64
        A context of the old segment, and a writer's context of the new one, which is empty; its rank states
        and `slots_high` are set.
    rows, parents, sequence, m, slots, lengths : int64
        As in `trim`.
    nodes : int64
        i64 by row, zeros. Out: the ids of the copies.
    """
    begin(dst)
    status = OK
    for i in range(m):
        k = pl64(sequence + i * 8)
        length = pl64(lengths + k * 8)
        if length == 0:
            continue
        # every node of the copy has the space of its own number, the root that of number 0
        space = pl64(nodes + pl64(parents + k * 8) * 8)
        status, node = _copy_node(src, dst, rows + k * R_WIDTH * 8, space, slots, length)
        if status != OK:
            break
        ps64(nodes + k * 8, node)
    finish(dst)
    return status
