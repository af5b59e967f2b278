"""Coverage: which rank covers how much of an edge.

A word is slot | flags | start | cutoff, both relative to the node's start: three inline words on the reader
line, then a list extent, then a dense u32 array by slot (without the slot field) where a list would be
larger. "Full" means start 0 and cutoff >= length, so a split or an append leaves the words of other ranks
untouched.

The own word is entered by CAS from 0 under the shared gate, as a word that covers nothing; a change of
form, a split copy and the reallocation of an extent hold the gate exclusively, so an edit is never lost
(M2). Removing never allocates.
"""

from __future__ import annotations

from shmtrie.atomics import cas64, ctz, ld32, ld64, ld64s, lshr, st32
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import C_HOLES, C_MINE, C_N_LINES, C_N_SLOTS, C_STATES, FULL, OK, RETRY, get
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import log_redo, log_undo, pop_undo
from shmtrie.kernels.protocol import count
from shmtrie.kernels.spans import line_at
from shmtrie.layout import (
    COUNTERS,
    COV_ALIAS,
    COV_PRESENT,
    COV_SLOT,
    COV_START,
    FORM_LIST,
    HEAD_FORM,
    HEAD_WORDS,
    INLINE_WORDS,
    LOG_CAS32,
    LOG_CAS64,
    M12,
    M31,
    M32,
    N_COVERAGE,
    N_INLINE,
    N_START,
    N_TAIL,
    R_BLOCKS,
    R_DEGRADED,
    R_STATE,
    RANK_STATE_BYTES,
    SLOT_ACTIVE,
)
from shmtrie.vectors import eq8, max16, max16_of

CUT_SHORT = COUNTERS.index("cut_short")


@inl
def word_cutoff(w):
    """Blocks that a word covers from the node's start on; 0 behind a hole (start > 0) or when it covers
    nothing.
    """
    return w & M12 if ((w >> COV_START) & M12) == 0 else 0


@inl
def word_begin(w):
    """The first position that a word covers; 0 unless the segment has exact holes."""
    return (w >> COV_START) & M12


@inl
def word_covers(low, position):
    return word_begin(low) <= position < (low & M12)


@inl
def word_blocks(low, length):
    """Blocks of an edge that a word covers. One that begins at or behind the end covers nothing: a split gave
    the rest to the suffix.
    """
    return max(min(low & M12, length) - word_begin(low), 0)


@inl
def word_from(low, begin):
    """The word with another first position."""
    return (low & ~(M12 << COV_START)) | (begin << COV_START)


@inl
def without(low, lo, hi, have, exact):
    """(the word, the position behind the last one that goes) when a rank loses positions [lo, hi), and unless
    `exact` all behind them; its coverage reaches up to `have`. The word is 0 if nothing is left, -1 if there
    would be a hole.
    """
    begin = word_begin(low)
    if exact == 0 or hi >= have:
        return (low & ~M12) | lo if lo > begin else 0, have
    if lo > begin:
        return -1, hi
    return word_from(low, max(begin, hi)), hi


@inl
def make_word(slot, cutoff, flags):
    return (slot << COV_SLOT) | COV_PRESENT | flags | cutoff


@inl
def head_words(head):
    return lshr(head, HEAD_WORDS)


@inl
def head_form(head):
    return (head >> HEAD_FORM) & 0xFF


@inl
def head_fits(ctx, head):
    """The extent that a head names lies in the section (a torn or foreign head is not followed)."""
    words = head_words(head)
    lines = (words + 7) >> 3 if head_form(head) == FORM_LIST else (words + 15) >> 4
    line = head & M32
    return words > 0 and line > 0 and line + lines <= get(ctx, C_N_LINES) + 1


# ------------------------------------------------------------------------------------------------ reading
@inl
def cov_find(ctx, a, slot):
    """(address, low half, is it a 64-bit word) of a rank's word; address 0: none.

    Stable under the gate; without it the caller validates by the version.
    """
    head = ld64(a + N_COVERAGE)
    if head == 0:
        for k in range(INLINE_WORDS):
            w = ld64(a + N_INLINE + k * 8)
            if w != 0 and lshr(w, COV_SLOT) == slot:
                return a + N_INLINE + k * 8, w & M32, 1
        return 0, 0, 1
    if not head_fits(ctx, head):
        return 0, 0, 1
    x = line_at(ctx, head & M32)
    words = head_words(head)
    if head_form(head) == FORM_LIST:
        for k in range(words >> 3):
            m = eq8(x + k * 64, ~M32, slot << COV_SLOT)
            while m != 0:
                j = ctz(m)
                m &= m - 1
                w = ld64(x + k * 64 + j * 8)
                if w != 0 and lshr(w, COV_SLOT) == slot:
                    return x + k * 64 + j * 8, w & M32, 1
        return 0, 0, 1
    if 0 <= slot < words:
        return x + slot * 4, ld32(x + slot * 4), 0
    return 0, 0, 0


@jit
def cov_max(ctx, a):
    """The largest cutoff in a node, whoever has it, of words that cover something of it."""
    head = ld64(a + N_COVERAGE)
    length = (ld64(a + N_TAIL) & M31) - (ld64(a + N_START) & M32)
    top = 0
    if head == 0:
        for k in range(INLINE_WORDS):
            w = ld64(a + N_INLINE + k * 8)
            if word_begin(w) < length:
                top = max(top, w & M12)
        return top
    if not head_fits(ctx, head):
        return 0
    x = line_at(ctx, head & M32)
    words = head_words(head)
    if head_form(head) == FORM_LIST:
        for k in range(words):
            w = ld64(x + k * 8)
            if word_begin(w) < length:
                top = max(top, w & M12)
    elif get(ctx, C_HOLES) != 0:
        for k in range(words):
            w = ld32(x + k * 4)
            if word_begin(w) < length:
                top = max(top, w & M12)
    else:
        for k in range(words >> 4):
            top = max(top, max16(x + k * 64, M12))
    return top


@jit
def cov_mine_covers(ctx, a, slot, position):
    """1 if a rank of this lane other than `slot` covers a position under the edge's own hash."""
    head = ld64(a + N_COVERAGE)
    mine, n = get(ctx, C_MINE), get(ctx, C_N_SLOTS)
    x, words, wide = a + N_INLINE, INLINE_WORDS, 1
    if head != 0:
        if not head_fits(ctx, head):
            return 0
        x, words = line_at(ctx, head & M32), head_words(head)
        wide = 1 if head_form(head) == FORM_LIST else 0
    for k in range(words):
        w = ld64(x + k * 8) if wide != 0 else ld32(x + k * 4)
        s = lshr(w, COV_SLOT) if wide != 0 else k
        if w != 0 and (w & COV_ALIAS) == 0 and s != slot and s < n and ld32(mine + s * 4) != 0:
            if word_covers(w & M32, position):
                return 1
    return 0


@jit
def cov_max_mine(ctx, a, slot):
    """The largest cutoff of this lane's ranks other than `slot` whose hashes are the edge's own."""
    head = ld64(a + N_COVERAGE)
    mine = get(ctx, C_MINE)
    n = get(ctx, C_N_SLOTS)
    top = 0
    if head == 0 or head_form(head) == FORM_LIST:
        x, words = a + N_INLINE, INLINE_WORDS
        if head != 0:
            if not head_fits(ctx, head):
                return 0
            x, words = line_at(ctx, head & M32), head_words(head)
        for k in range(words):
            w = ld64(x + k * 8)
            if w != 0 and (w & COV_ALIAS) == 0:
                s = lshr(w, COV_SLOT)
                if s != slot and s < n and ld32(mine + s * 4) != 0:
                    top = max(top, w & M12)
        return top
    if not head_fits(ctx, head):
        return 0
    x = line_at(ctx, head & M32)
    # the mask of own slots is padded to 16; `slot` itself is left out for the moment
    masked = ld32(mine + slot * 4) if 0 <= slot < n else 0
    if masked != 0:
        st32(mine + slot * 4, 0)
    for k in range(min(head_words(head), (n + 15) & ~15) >> 4):
        top = max(top, max16_of(x + k * 64, mine + k * 64, COV_ALIAS))
    if masked != 0:
        st32(mine + slot * 4, masked)
    return top


@inl
def cov_room(ctx, a, slot):
    """1 if the rank has a word in the node or one is free for it (a hint: the CAS decides)."""
    word_at, _, _ = cov_find(ctx, a, slot)
    if word_at != 0:
        return 1
    head = ld64(a + N_COVERAGE)
    if head == 0:
        for k in range(INLINE_WORDS):
            if ld64(a + N_INLINE + k * 8) == 0:
                return 1
    elif head_form(head) == FORM_LIST and head_fits(ctx, head):
        x = line_at(ctx, head & M32)
        for k in range(head_words(head) >> 3):
            if eq8(x + k * 64, -1, 0) != 0:
                return 1
    return 0


# ------------------------------------------------------------------------------------------------ own words
@inl
def log_word(ctx, slot, word_at, wide, old, new):
    """Plan that an own word's low half goes from `old` to `new`, 0 to free it; OK or FULL."""
    if wide != 0:
        free_or_new = (slot << COV_SLOT) | new if new != 0 else 0
        return log_redo(ctx, LOG_CAS64, word_at, (slot << COV_SLOT) | old, free_or_new)
    return log_redo(ctx, LOG_CAS32, word_at, old, new)


@inl
def log_blocks(ctx, slot, change):
    """Plan that a rank's count of blocks changes with its words; OK or FULL. Only its own lane counts."""
    if change == 0:
        return OK
    count_at = get(ctx, C_STATES) + slot * RANK_STATE_BYTES + R_BLOCKS
    blocks = ld64(count_at)
    return log_redo(ctx, LOG_CAS64, count_at, blocks, blocks + change)


@jit
def cut_short(ctx, slot):
    """The rank has lost more than its event said: there was no room for a split."""
    st32(get(ctx, C_STATES) + slot * RANK_STATE_BYTES + R_DEGRADED, 1)
    count(ctx, CUT_SHORT, 1)


@jit
def _enter(ctx, word_at, slot):
    """Announce and reserve a free word: OK, RETRY (somebody took it) or FULL."""
    w = make_word(slot, 0, 0)
    if log_undo(ctx, LOG_CAS64, word_at, 0, w) != OK:
        return FULL
    if cas64(word_at, 0, w) != 0:
        at(ctx, Site.WORD_ENTERED)
        return OK
    pop_undo(ctx)
    return RETRY


@jit
def cov_enter(ctx, a, slot):
    """The rank's word, entered as covering nothing where it has none: (status, address, low half, wide).

    RETRY: no word is free any more, the form has to change (`cov_grow`, under the exclusive gate).
    """
    word_at, low, wide = cov_find(ctx, a, slot)
    if word_at != 0:
        return OK, word_at, low, wide
    head = ld64(a + N_COVERAGE)
    if head == 0:
        for k in range(INLINE_WORDS):
            if ld64(a + N_INLINE + k * 8) == 0:
                status = _enter(ctx, a + N_INLINE + k * 8, slot)
                if status != RETRY:
                    return status, a + N_INLINE + k * 8, COV_PRESENT, 1
    elif head_form(head) == FORM_LIST and head_fits(ctx, head):
        x = line_at(ctx, head & M32)
        for k in range(head_words(head) >> 3):
            m = eq8(x + k * 64, -1, 0)
            while m != 0:
                j = ctz(m)
                m &= m - 1
                status = _enter(ctx, x + k * 64 + j * 8, slot)
                if status != RETRY:
                    return status, x + k * 64 + j * 8, COV_PRESENT, 1
    return RETRY, 0, 0, 1


# ------------------------------------------------------------------------------------------------ split copy
@inl
def slot_is_active(ctx, slot):
    return (
        slot < get(ctx, C_N_SLOTS)
        and (ld64s(get(ctx, C_STATES) + slot * RANK_STATE_BYTES + R_STATE) & 0xFF) == SLOT_ACTIVE
    )
