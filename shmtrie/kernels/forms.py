"""Coverage forms: growing from inline words to a list to a dense array, and the copy that a split makes.

Both hold the gate exclusively, so no edit of a word is lost (M2). Words themselves are in coverage.py.
"""

from __future__ import annotations

from shmtrie.atomics import ctz, ld32, ld64, lshr, st32, st64, st64r
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import C_HEADER_EPOCH, C_N_SLOTS, FULL, OK, get
from shmtrie.kernels.coverage import head_form, head_words, make_word, slot_is_active
from shmtrie.kernels.extents import claim_lines, free_later
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import log_undo
from shmtrie.kernels.protocol import bump
from shmtrie.kernels.spans import line_at
from shmtrie.layout import (
    COV_PRESENT,
    COV_SLOT,
    COV_START,
    FORM_DENSE,
    FORM_LIST,
    H_EPOCH,
    H_SLOTS_HIGH,
    HEAD_FORM,
    HEAD_WORDS,
    INLINE_WORDS,
    LOG_BUMP,
    LOG_CAS64,
    M12,
    M32,
    N_COVERAGE,
    N_INLINE,
)
from shmtrie.vectors import gt16, zero_line


@inl
def _dense_words(ctx, slot):
    high = ld64(get(ctx, C_HEADER_EPOCH) - H_EPOCH + H_SLOTS_HIGH)
    return (min(max(high, slot + 1), get(ctx, C_N_SLOTS)) + 15) & ~15


@jit
def cov_extent(ctx, words, form):
    """A cleared extent of coverage words as a head, or 0."""
    lines = words >> 3 if form == FORM_LIST else words >> 4
    line = claim_lines(ctx, lines)
    if line == 0:
        return 0
    for k in range(lines):
        zero_line(line_at(ctx, line) + k * 64)
    return line | (form << HEAD_FORM) | (words << HEAD_WORDS)


@jit
def cov_grow(ctx, a, slot):
    """Change the form so that the rank gets a word: (status, address, low half, wide).

    Notes
    -----
    Gate: exclusive; the node is sound. The new extent is complete before the head names it; then comes the
    bump, and the old extent is freed by the commit. Inline words stay as they are: a reader that still has
    the old head may read them. Crash: the undo list puts the old head back, bumps, and frees the new extent,
    in this order.
    """
    head = ld64(a + N_COVERAGE)
    form, words = head_form(head), head_words(head)
    dense = _dense_words(ctx, slot)
    want = 8 if head == 0 else 2 * words
    to_list = form != FORM_DENSE and want * 8 <= dense * 4
    fresh = cov_extent(ctx, want, FORM_LIST) if to_list else cov_extent(ctx, dense, FORM_DENSE)
    if fresh == 0:
        return FULL, 0, 0, 1
    y = line_at(ctx, fresh & M32)
    n = 0
    if form == FORM_DENSE:
        x = line_at(ctx, head & M32)
        for k in range(min(words, dense)):
            st32(y + k * 4, ld32(x + k * 4))
    else:
        x, old = a + N_INLINE, INLINE_WORDS
        if head != 0:
            x, old = line_at(ctx, head & M32), words
        for k in range(old):
            w = ld64(x + k * 8)
            if w != 0:
                if to_list:
                    st64(y + n * 8, w)
                elif lshr(w, COV_SLOT) < dense:
                    st32(y + lshr(w, COV_SLOT) * 4, w & M32)
                n += 1
    word_at = y + n * 8 if to_list else y + slot * 4
    if to_list:
        st64(word_at, make_word(slot, 0, 0))
    if head != 0 and free_later(ctx, head & M32) != OK:
        return FULL, 0, 0, 1
    if log_undo(ctx, LOG_BUMP, a, 0, 0) != OK or log_undo(ctx, LOG_CAS64, a + N_COVERAGE, head, fresh) != OK:
        return FULL, 0, 0, 1
    st64r(a + N_COVERAGE, fresh)
    at(ctx, Site.HEAD_PUBLISHED)
    bump(a)
    return OK, word_at, COV_PRESENT if to_list else 0, 1 if to_list else 0


@inl
def _behind(w, cut):
    """What a word says of the part behind `cut`, rebased to it; 0 for nothing."""
    stop = w & M12
    if stop <= cut:
        return 0
    begin = (w >> COV_START) & M12
    begin = begin - cut if begin > cut else 0
    return (w & (M32 & ~0xFFFFFF)) | (begin << COV_START) | (stop - cut)


@jit
def cov_split(ctx, a, b, cut):
    """Give the suffix `b` (not reachable yet) the words of `a` behind `cut`; OK or FULL.

    Gate of `a`: exclusive. Slots that are not ACTIVE are left out: their sweep may already be past (M12).
    """
    head = ld64(a + N_COVERAGE)
    form, words = head_form(head), head_words(head)
    if head != 0 and form == FORM_DENSE:
        x = line_at(ctx, head & M32)
        n = 0
        for k in range(words >> 4):
            m = gt16(x + k * 64, M12, cut)
            while m != 0:
                n += 1
                m &= m - 1
        if n == 0:
            return OK
        # few ranks go on behind the cut: an array would cost the suffix a word for each rank there is
        few = n <= INLINE_WORDS or n * 32 <= words * 4
        y, fresh = b + N_INLINE, 0
        if not few or n > INLINE_WORDS:
            fresh = cov_extent(ctx, (n + 7) & ~7, FORM_LIST) if few else cov_extent(ctx, words, FORM_DENSE)
            if fresh == 0:
                return FULL
            y = line_at(ctx, fresh & M32)
        n = 0
        for k in range(words >> 4):
            m = gt16(x + k * 64, M12, cut)
            while m != 0:
                slot = k * 16 + ctz(m)
                m &= m - 1
                if slot_is_active(ctx, slot):
                    low = _behind(ld32(x + slot * 4), cut)
                    if few:
                        st64(y + n * 8, (slot << COV_SLOT) | COV_PRESENT | low)
                        n += 1
                    else:
                        st32(y + slot * 4, low)
        st64(b + N_COVERAGE, fresh)
        return OK
    x, old = a + N_INLINE, INLINE_WORDS
    if head != 0:
        x, old = line_at(ctx, head & M32), words
    n = 0
    for k in range(old):
        n += (ld64(x + k * 8) & M12) > cut
    y = b + N_INLINE
    if n > INLINE_WORDS:
        fresh = cov_extent(ctx, (n + 7) & ~7, FORM_LIST)
        if fresh == 0:
            return FULL
        y = line_at(ctx, fresh & M32)
        st64(b + N_COVERAGE, fresh)
    n = 0
    for k in range(old):
        w = ld64(x + k * 8)
        if (w & M12) > cut and slot_is_active(ctx, lshr(w, COV_SLOT)):
            st64(y + n * 8, (w & ~M32) | _behind(w, cut))
            n += 1
    return OK
