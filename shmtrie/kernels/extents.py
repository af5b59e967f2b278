"""Allocation of node ids and of extents (runs of 64-byte lines).

The truth is in the claim words: 0 = free, else (operation number, lane) of whoever took it; a word is taken
by CAS from 0, announced in the undo list before, and only exactly that value is ever freed. Everything else
is a hint: the private lists of free ids, the cursors, and the `used` count of a span. A lost hint costs a
search.

Lines come in spans of 1,024. A span serves one size class; one whose claim words are all free can be turned
into any class, through a CONVERTING state that names the lane. A claimer reads the span's word again after
its CAS, the converter reads the claim words after its CAS: one of the two sees the other (both are
sequentially consistent), so no extent is ever claimed in a span of another class.
"""

from __future__ import annotations

import numpy as np

from shmtrie.atomics import add64, cas32, cas64, fence_full, fence_release, ld32, ld64, lshr, pl64, ps64, st64
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import (
    C_CLAIMS,
    C_EXTENTS,
    C_FULL_TABLE,
    C_LANE,
    C_LINE_HINTS,
    C_N_NODES,
    C_N_SPANS,
    C_NODE_CLAIMS,
    C_SPAN_CURSOR,
    C_SPANS,
    OK,
    TABLE_EXTENTS,
    get,
    put,
)
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.nodes import hint_node
from shmtrie.kernels.protocol import claim_value, log_redo, log_undo, pop_undo
from shmtrie.layout import (
    CLASS_OF,
    CLASS_SIZES,
    LINE,
    LOG_CAS32,
    LOG_CAS64,
    LOG_FREE,
    M32,
    SPAN_BYTES,
    SPAN_CONVERTING,
    SPAN_LINES,
    SPAN_TAIL,
    SPAN_TURN,
)
from shmtrie.vectors import eq16

HINTS = 63  # the same a size class; word 0 is the number of them
CLASS_WORDS = HINTS + 1
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
def _claim_line(ctx, line, word_at, word):
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


@jit
def _hint_span(ctx, hints, span, size):
    """Enter free extents of a span into the hints of its class; the number found."""
    first = span * SPAN_LINES + 1
    claims = get(ctx, C_CLAIMS)
    n = pl64(hints)
    found = 0
    line = first + (SPAN_LINES // size - 1) * size
    while line >= first and n < HINTS:  # the lowest comes out first
        if ld32(claims + line * 4) == 0:
            n += 1
            found += 1
            ps64(hints + n * 8, line)
        line -= size
    ps64(hints, n)
    return found


@jit
def _turn_span(ctx, span, size):
    """Turn a span without claimed extents into class `size`; 1 if it was done.

    Notes
    -----
    Crash: CONVERTING is undone by its undo entry; after the last store the entry no longer matches.
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
    empty = 1
    for k in range(0, SPAN_LINES, 16):
        if eq16(claims + k * 4, -1, 0) != 0xFFFF:
            empty = 0
            break
    if empty == 0:
        cas64(word_at, turning, word)
        pop_undo(ctx)
        return 0
    if old > SPAN_LINES:  # an extent of several spans: the others come free as well
        for k in range(1, old // SPAN_LINES):
            tail_at = span_word_at(ctx, span + k)
            tail = ld64(tail_at)
            if (
                tail & 0xFFFF
            ) == SPAN_TAIL:  # not so when a turn was cut short by a death: it has been let go
                cas64(tail_at, tail, (lshr(tail, SPAN_TURN) + 1) << SPAN_TURN)
    turn = (lshr(word, SPAN_TURN) + 1) & M32
    st64(word_at + 8, 0)
    cas64(word_at, turning, size | (turn << SPAN_TURN))
    pop_undo(ctx)
    return 1


@jit
def _find_span(ctx, index, size, patient):
    """Make hints for a class; 1 if there are some.

    A span of the class with room comes first, then one without claims, then (patience 1) a larger class,
    whose extents then serve this class too. Patience 2 looks at every claim word instead of the `used`
    counts.
    """
    total = get(ctx, C_N_SPANS)
    hints = get(ctx, C_LINE_HINTS) + index * CLASS_WORDS * 8
    cursor = get(ctx, C_SPAN_CURSOR)
    empty, larger, larger_size = -1, -1, 0
    looks = total if patient != 0 else min(total, 96)
    for _ in range(looks):
        word_at = span_word_at(ctx, cursor)
        word = ld64(word_at)
        used = ld64(word_at + 8)
        have = word & 0xFFFF
        stable = ((word >> SPAN_CONVERTING) & 0xFF) == 0 and have != SPAN_TAIL
        if stable and have == size and (used < SPAN_LINES // size or patient == 2):
            if _hint_span(ctx, hints, cursor, size) > 0:
                put(ctx, C_SPAN_CURSOR, cursor)
                return 1
        elif stable and patient == 2:
            if _turn_span(ctx, cursor, size) != 0 and _hint_span(ctx, hints, cursor, size) > 0:
                return 1
            if have > size and have <= SPAN_LINES and (larger < 0 or have < larger_size):
                if _hint_span(ctx, hints, cursor, have) > 0:
                    return 1
        elif stable and (have == 0 or used <= 0):
            if empty < 0:
                empty = cursor
        elif stable and have > size and have <= SPAN_LINES and used < SPAN_LINES // have:
            if larger < 0 or have < larger_size:
                larger = cursor
                larger_size = have
        cursor += 1
        if cursor >= total:
            cursor = 0
    put(ctx, C_SPAN_CURSOR, cursor)
    if empty >= 0 and _turn_span(ctx, empty, size) != 0:
        put(ctx, C_SPAN_CURSOR, empty)
        return 1 if _hint_span(ctx, hints, empty, size) > 0 else 0
    if patient != 0 and larger >= 0 and _hint_span(ctx, hints, larger, larger_size) > 0:
        return 1
    return 0


@jit
def claim_lines(ctx, lines):
    """An extent of at least `lines` lines; its first line, or 0 when there is no room.

    Notes
    -----
    Crash: undone by the undo entry of the claim word. Content is whatever was there.
    """
    if lines > SPAN_LINES:
        return _claim_spans(ctx, lines)
    index, size = class_of(lines)
    hints = get(ctx, C_LINE_HINTS) + index * CLASS_WORDS * 8
    for patient in range(-1, 3):
        if patient >= 0 and _find_span(ctx, index, size, patient) == 0:
            continue
        n = pl64(hints)
        while n > 0:
            line = pl64(hints + n * 8)
            n -= 1
            ps64(hints, n)
            word_at = span_word_at(ctx, (line - 1) >> 10)
            word = ld64(word_at)
            have = word & 0xFFFF
            # a larger class only when nothing else is left: hints of such extents do not outlive the call
            if (
                have < size
                or (have > size and patient < 1)
                or have > SPAN_LINES
                or ((word >> SPAN_CONVERTING) & 0xFF) != 0
            ):
                continue
            # a hint may be from before its span was turned: it has to be a place of an extent of the class
            # it has now
            place = (line - 1) & (SPAN_LINES - 1)
            if place % have != 0 or place + have > SPAN_LINES:
                continue
            if _claim_line(ctx, line, word_at, word) != 0:
                return line
    put(ctx, C_FULL_TABLE, TABLE_EXTENTS)
    return 0


@jit
def _claim_spans(ctx, lines):
    """An extent of several spans (dense coverage of more than 16,384 ranks)."""
    need = (lines + SPAN_LINES - 1) // SPAN_LINES
    total = get(ctx, C_N_SPANS)
    if need >= 63:
        put(ctx, C_FULL_TABLE, TABLE_EXTENTS)
        return 0
    for first in range(total - need + 1):
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
        turned = 0
        while turned < need and _turn_span(ctx, first + turned, SPAN_TAIL) != 0:
            turned += 1
        if turned == need:
            word_at = span_word_at(ctx, first)
            word = ld64(word_at)
            cas64(word_at, word, (word & ~0xFFFF) | (need * SPAN_LINES))
            line = first * SPAN_LINES + 1
            if _claim_line(ctx, line, word_at, ld64(word_at)) != 0:
                return line
        for k in range(turned):  # back to an empty span
            word_at = span_word_at(ctx, first + k)
            word = ld64(word_at)
            cas64(word_at, word, word & ~0xFFFF)
    put(ctx, C_FULL_TABLE, TABLE_EXTENTS)
    return 0


@inl
def free_later(ctx, line):
    """The commit frees this extent."""
    a = get(ctx, C_CLAIMS) + line * 4
    return log_redo(ctx, LOG_FREE, a, ld32(a), 0)


@jit
def free_claim(ctx, a, value):
    """Free a claim word that still has `value`, and mend the hints. Safe to repeat: values do not return."""
    lines = get(ctx, C_CLAIMS)
    nodes = get(ctx, C_NODE_CLAIMS)
    if nodes <= a < nodes + get(ctx, C_N_NODES) * 4:
        if cas32(a, value, 0) != 0:
            hint_node(ctx, (a - nodes) >> 2)
        return
    if ld32(a) != value:
        return
    line = (a - lines) >> 2
    span = (line - 1) >> 10
    word_at = span_word_at(ctx, span)
    # the count first: once the claim is gone the span may be turned, and its count starts anew
    left = add64(word_at + 8, -1) - 1
    if cas32(a, value, 0) == 0:
        add64(word_at + 8, 1)
        return
    size = ld64(word_at) & 0xFFFF
    if 0 < size <= SPAN_LINES:
        index, _ = class_of(size)
        hints = get(ctx, C_LINE_HINTS) + index * CLASS_WORDS * 8
        n = pl64(hints)
        if left > 0:
            if n < HINTS:
                ps64(hints, n + 1)
                ps64(hints + (n + 1) * 8, line)
            return
        # The span is empty and may serve any class: hints would spread the next extents of this class over
        # all the spans that it has ever had, and keep each of them.
        kept = 0
        for k in range(1, n + 1):
            hint = pl64(hints + k * 8)
            if (hint - 1) >> 10 != span:
                kept += 1
                ps64(hints + kept * 8, hint)
        ps64(hints, kept)
