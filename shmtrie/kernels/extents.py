"""Allocation of node ids and of extents (runs of 64-byte lines).

The truth is in the claim words: 0 = free, else (operation number, lane) of whoever took it; a word is taken
by CAS from 0, announced in the undo list before, and only exactly that value is ever freed. Everything else
is a hint: the private lists of free ids, the cursors, and the `used` count of a span. A lost hint costs a
search. Spans and their classes are in spans.py.
"""

from __future__ import annotations

from shmtrie.atomics import add64, cas32, ld32, ld64, pl64, ps64
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import (
    C_CLAIMS,
    C_FULL_TABLE,
    C_LINE_HINTS,
    C_N_LINES,
    C_N_NODES,
    C_N_SPANS,
    C_NODE_CLAIMS,
    C_SPAN_CURSOR,
    OK,
    TABLE_EXTENTS,
    get,
    put,
)
from shmtrie.kernels.lists import log_redo
from shmtrie.kernels.nodes import hint_node
from shmtrie.kernels.spans import claim_line, claim_spans, class_of, line_at, span_word_at, turn_span
from shmtrie.layout import LOG_FREE, SPAN_CONVERTING, SPAN_LINES, SPAN_TAIL

HINTS = 63  # the same a size class; word 0 is the number of them
CLASS_WORDS = HINTS + 1


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
            if turn_span(ctx, cursor, size, 0) != 0 and _hint_span(ctx, hints, cursor, size) > 0:
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
    if empty >= 0 and turn_span(ctx, empty, size, 0) != 0:
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
        return claim_spans(ctx, lines)
    if lines <= 0:
        return 0
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
            if claim_line(ctx, line, word_at, word) != 0:
                # a page that this process has not met is read first: its neighbours are mapped then, too
                ld64(line_at(ctx, line))
                return line
    put(ctx, C_FULL_TABLE, TABLE_EXTENTS)
    return 0


@inl
def free_later(ctx, line):
    """The commit frees this extent."""
    if line <= 0 or line > get(ctx, C_N_LINES):
        return OK
    a = get(ctx, C_CLAIMS) + line * 4
    return log_redo(ctx, LOG_FREE, a, ld32(a), 0)


@jit
def free_claim(ctx, a, value):
    """Free a claim word that still has `value`, and mend the hints. Safe to repeat: values do not return."""
    lines = get(ctx, C_CLAIMS)
    nodes = get(ctx, C_NODE_CLAIMS)
    if (a & 3) != 0:
        return
    if nodes <= a < nodes + get(ctx, C_N_NODES) * 4:
        if cas32(a, value, 0) != 0:
            hint_node(ctx, (a - nodes) >> 2)
        return
    line = (a - lines) >> 2
    if line <= 0 or line > get(ctx, C_N_LINES) or ld32(a) != value:
        return
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
