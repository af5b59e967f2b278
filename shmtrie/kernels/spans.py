"""Spans: 1,024 lines that are cut into extents of one size class, and the claim words of these.

A span whose claim words are all free can be turned into any class, through a CONVERTING state that names the
lane. A claimer reads the span's word again after its CAS, the converter reads the claim words after its CAS:
one of the two sees the other (both are sequentially consistent), so no extent is ever claimed in a span of
another class.
"""

from __future__ import annotations

import numpy as np

from shmtrie.atomics import add64, cas32, cas64, fence_full, fence_release, ld32, ld64, lshr, pl64, st64
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import (
    C_BASE,
    C_CLAIMS,
    C_EXTENTS,
    C_FULL_TABLE,
    C_LANE,
    C_N_SPANS,
    C_RECORD,
    C_SPANS,
    OK,
    TABLE_EXTENTS,
    get,
    put,
)
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import ENTRY_OFFSET, UNDO, listed, log_undo, pop_undo, undo_entry
from shmtrie.kernels.protocol import claim_value
from shmtrie.layout import (
    CLASS_OF,
    CLASS_SIZES,
    L_NUNDO,
    LINE,
    LOG_CAS32,
    LOG_CAS64,
    MAX_LANES,
    SPAN_BYTES,
    SPAN_CONVERTING,
    SPAN_LINES,
    SPAN_TAIL,
    SPAN_TURN,
)
from shmtrie.vectors import eq16

SIZES = np.array(CLASS_SIZES, np.int64)


@inl
def class_of(lines):
    """Index and size of the smallest class that holds `lines` (layout.size_class)."""
    index = CLASS_OF[lines]
    return index, SIZES[index]


@inl
def line_at(ctx, line):
    return get(ctx, C_EXTENTS) + line * LINE


@inl
def span_word_at(ctx, span):
    return get(ctx, C_SPANS) + span * SPAN_BYTES


@inl
def extent_lines(ctx, line):
    """Lines of the extent that begins at `line`: its span's class."""
    return ld64(span_word_at(ctx, (line - 1) >> 10)) & 0xFFFF


@inl
def claim_line(ctx, line, word_at, word):
    """Try to take the extent at `line` of a span whose word was `word`; 1 if it was taken."""
    a = get(ctx, C_CLAIMS) + line * 4
    value = claim_value(ctx)
    if ld32(a) != 0 or log_undo(ctx, LOG_CAS32, a, 0, value) != OK:
        return 0
    if cas32(a, 0, value) == 0:
        pop_undo(ctx)
        return 0
    at(ctx, Site.LINES_CLAIMED)
    fence_full()
    if ld64(word_at) != word:  # the span is being turned, or was
        cas32(a, value, 0)
        pop_undo(ctx)
        return 0
    add64(word_at + 8, 1)
    # R40: whoever reads what we write into the extent also sees the version bumped before it was freed
    fence_release()
    return 1


@inl
def _let_tails_go(ctx, span, spans):
    """The spans behind the first one of a free extent come free as well, the last one first.

    So a death in between leaves those in front as tails, and behind them others may have made extents since:
    whoever turns the first span again must not take their tails for ours.
    """
    n = 1
    while n < spans and (ld64(span_word_at(ctx, span + n)) & 0xFFFF) == SPAN_TAIL:
        n += 1
    while n > 1:
        n -= 1
        tail_at = span_word_at(ctx, span + n)
        tail = ld64(tail_at)
        cas64(tail_at, tail, (lshr(tail, SPAN_TURN) + 1) << SPAN_TURN)


@jit
def turn_span(ctx, span, size, keep):
    """Turn a span without claimed extents into class `size`; 1 if it was done.

    Notes
    -----
    Crash: CONVERTING is undone by its undo entry; after the last store the entry no longer matches. With
    `keep` the turn itself stays on the undo list, as do both entries.
    """
    word_at = span_word_at(ctx, span)
    word = ld64(word_at)
    old = word & 0xFFFF
    if ((word >> SPAN_CONVERTING) & 0xFF) != 0 or old == SPAN_TAIL:
        return 0
    turning = word | ((get(ctx, C_LANE) + 1) << SPAN_CONVERTING)
    if log_undo(ctx, LOG_CAS64, word_at, word, turning) != OK:
        return 0
    if cas64(word_at, word, turning) == 0:
        pop_undo(ctx)
        return 0
    at(ctx, Site.SPAN_TURNING)
    fence_full()
    claims = get(ctx, C_CLAIMS) + (span * SPAN_LINES + 1) * 4
    claimed = 0
    for k in range(0, SPAN_LINES, 16):
        m = ~eq16(claims + k * 4, -1, 0) & 0xFFFF
        while m != 0:
            claimed += 1
            m &= m - 1
    if claimed != 0:
        # Deaths between a claim and its count left the count too low, and the span would be tried each time.
        # It is mended to 1 only, and only where that cannot be too much: claimers may be about to count.
        used = ld64(word_at + 8)
        if used <= 0 and claimed > MAX_LANES:
            add64(word_at + 8, 1 - used)
        cas64(word_at, turning, word)
        pop_undo(ctx)
        return 0
    if old > SPAN_LINES:
        _let_tails_go(ctx, span, min(old // SPAN_LINES, get(ctx, C_N_SPANS) - span))
    turn = (lshr(word, SPAN_TURN) + 1) << SPAN_TURN
    st64(word_at + 8, 0)
    if keep != 0 and log_undo(ctx, LOG_CAS64, word_at, turn, size | turn) != OK:
        cas64(word_at, turning, turn)
        pop_undo(ctx)
        return 0
    cas64(word_at, turning, size | turn)
    if keep == 0:
        pop_undo(ctx)
    return 1


@jit
def _take_back(ctx, mark):
    """Undo the newest entries down to `mark`, all of them turns of spans."""
    r = get(ctx, C_RECORD)
    spans = get(ctx, C_SPANS)
    for _ in range(listed(r, UNDO, pl64(r + L_NUNDO)) - mark):
        e = undo_entry(ctx, r, pl64(r + L_NUNDO) - 1)
        word_at = get(ctx, C_BASE) + (ld64(e) & ENTRY_OFFSET) if e != 0 else 0
        if spans <= word_at < spans + get(ctx, C_N_SPANS) * SPAN_BYTES and (word_at & 7) == 0:
            cas64(word_at, ld64(e + 16), ld64(e + 8))
        pop_undo(ctx)


@jit
def claim_spans(ctx, lines):
    """An extent of several spans (dense coverage of more than 16,384 ranks).

    Notes
    -----
    The turned spans are on the undo list until the transaction commits: a death in between, or a transaction
    that is rolled back, leaves them empty, unless another lane has turned them since.
    """
    need = (lines + SPAN_LINES - 1) // SPAN_LINES
    total = get(ctx, C_N_SPANS)
    if need >= 63:
        put(ctx, C_FULL_TABLE, TABLE_EXTENTS)
        return 0
    for first in range(total - need + 1):
        size = ld64(span_word_at(ctx, first)) & 0xFFFF
        if SPAN_LINES < size < SPAN_TAIL and ld64(span_word_at(ctx, first) + 8) <= 0:
            turn_span(ctx, first, 0, 0)  # a freed extent of several spans: they come free
        good = 1
        for k in range(need):
            word = ld64(span_word_at(ctx, first + k))
            if (word & 0xFFFF) == SPAN_TAIL or ((word >> SPAN_CONVERTING) & 0xFF) != 0:
                good = 0
                break
            if (word & 0xFFFF) != 0 and ld64(span_word_at(ctx, first + k) + 8) > 0:
                good = 0
                break
        if good == 0:
            continue
        mark = pl64(get(ctx, C_RECORD) + L_NUNDO)
        turned = 0
        while turned < need and turn_span(ctx, first + turned, SPAN_TAIL, 1) != 0:
            turned += 1
        word_at = span_word_at(ctx, first)
        tail = ld64(word_at)
        head = (tail & ~0xFFFF) | (need * SPAN_LINES)
        line = first * SPAN_LINES + 1
        if turned == need and log_undo(ctx, LOG_CAS64, word_at, tail, head) == OK:
            if cas64(word_at, tail, head) != 0 and claim_line(ctx, line, word_at, head) != 0:
                return line
        _take_back(ctx, mark)
    put(ctx, C_FULL_TABLE, TABLE_EXTENTS)
    return 0
