"""Extents, spans and claims: who uses which lines, and does everything claimed have a user (I8, I13, I14)."""

from __future__ import annotations

from shmtrie.atomics import ctz, ld32, ld64, lshr, pl8, ps8
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.check_words import (
    K_LANES,
    K_LINE_MARKS,
    K_N_LANES,
    K_OPEN,
    L_NAMED,
    L_USED,
    N_EXTENT_LINES,
    N_EXTENTS,
    N_RECORDED_EXTENTS,
    S_MOVING,
    Fault,
    add,
    found,
)
from shmtrie.kernels.context import C_CLAIMS, C_N_LINES, C_N_SPANS, C_SPANS, get
from shmtrie.layout import (
    COUNTERS,
    L_COUNTERS,
    L_OP,
    LANE_BYTES,
    SPAN_BYTES,
    SPAN_CONVERTING,
    SPAN_LINES,
    SPAN_TAIL,
)
from shmtrie.vectors import eq16

TRIES = COUNTERS.index("recovery_tries")


@inl
def span_word(ctx, span):
    return ld64(get(ctx, C_SPANS) + span * SPAN_BYTES)


@jit
def use_extent(ctx, chk, node, line, lines):
    """Enter that a node uses `lines` lines from `line` on: 1 if they may be read, 0 after a finding.

    An extent is read for its first user only, so the work is bounded whatever the words say.
    """
    moving = get(chk, S_MOVING)
    if line <= 0 or lines <= 0 or line + lines - 1 > get(ctx, C_N_LINES):
        found(chk, Fault.EXTENT_RANGE, node, line, lines, moving)
        return 0
    span = (line - 1) // SPAN_LINES
    at = (line - 1) % SPAN_LINES
    size = span_word(ctx, span) & 0xFFFF
    fits = size != 0 and size != SPAN_TAIL and lines <= size
    if fits and size > SPAN_LINES:
        fits = at == 0
    elif fits:
        fits = at % size == 0
    if not fits:
        found(chk, Fault.EXTENT_CLASS, node, line, size | (lines << 32), moving)
        return 0
    if ld32(get(ctx, C_CLAIMS) + line * 4) == 0:
        found(chk, Fault.EXTENT_UNCLAIMED, node, line, lines, moving)
    a = get(chk, K_LINE_MARKS) + line
    mark = pl8(a)
    if (mark & L_USED) != 0:
        found(chk, Fault.EXTENT_SHARED, node, line, lines, moving)
        return 0
    ps8(a, mark | L_USED)
    return 1


@jit
def _claim(chk, span, line, at, size):
    """A claimed line: it begins an extent, which has a user or is named by a record."""
    is_first = size != 0 and size != SPAN_TAIL
    if is_first and size > SPAN_LINES:
        is_first = at == 0
    elif is_first:
        is_first = at % size == 0 and at + size <= SPAN_LINES
    mark = pl8(get(chk, K_LINE_MARKS) + line)
    if not is_first:
        found(chk, Fault.CLAIM_PLACE, line, span, size, mark & L_NAMED)
    add(chk, N_EXTENTS, 1)
    add(chk, N_EXTENT_LINES, size if is_first else 0)
    if (mark & L_USED) == 0:
        if (mark & L_NAMED) != 0:
            add(chk, N_RECORDED_EXTENTS, 1)
        elif is_first:
            found(chk, Fault.LEAK_EXTENT, line, size, 0, 0)


@jit
def _check_claims(ctx, chk, span, size):
    """The number of claims in a span."""
    n = 0
    first = span * SPAN_LINES + 1
    claims = get(ctx, C_CLAIMS) + first * 4
    for k in range(0, SPAN_LINES, 16):
        m = ~eq16(claims + k * 4, -1, 0) & 0xFFFF
        while m != 0:
            at = k + ctz(m)
            m &= m - 1
            n += 1
            _claim(chk, span, first + at, at, size)
    return n


@jit
def _deaths(chk):
    """How many processes may have died in an allocation: recoveries begun, and lanes open now."""
    deaths = 0
    for lane in range(get(chk, K_N_LANES)):
        r = get(chk, K_LANES) + lane * LANE_BYTES
        deaths += ld64(r + L_COUNTERS + TRIES * 8) + (ld64(r + L_OP) & 1)
    return min(max(deaths, 0), SPAN_LINES)


@jit
def check_spans(ctx, chk):
    """Every span: its class, its state, its claims and its count of them."""
    total = get(ctx, C_N_SPANS)
    slack = _deaths(chk)
    tails = 0  # spans that still belong to the extent before
    for span in range(total):
        word = span_word(ctx, span)
        used = ld64(get(ctx, C_SPANS) + span * SPAN_BYTES + 8)
        size = word & 0xFFFF
        turning = lshr(word, SPAN_CONVERTING) & 0xFF
        if turning != 0:
            is_open = turning <= 48 and ((get(chk, K_OPEN) >> (turning - 1)) & 1) != 0
            found(chk, Fault.SPAN_TURNING, span, turning - 1, size, is_open)
        if (size == SPAN_TAIL) != (tails > 0):
            found(chk, Fault.SPAN_TAILS, span, size, tails, turning)
            tails = 0
        if tails > 0:
            tails -= 1
        elif size > SPAN_LINES and size != SPAN_TAIL:
            tails = size // SPAN_LINES - 1
            if size % SPAN_LINES != 0 or span + tails >= total:
                found(chk, Fault.SPAN_CLASS, span, size, 0, turning)
                tails = 0
        n = _check_claims(ctx, chk, span, size)
        # a death between a claim and its count, or between a count and its claim, leaves the count off by one
        if abs(n - used) > slack:
            found(chk, Fault.SPAN_USED, span, used, n, turning)
