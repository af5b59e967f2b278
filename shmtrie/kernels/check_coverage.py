"""Coverage words and aliases of one node, on a copy of them (I9, I10, I12)."""

from __future__ import annotations

from shmtrie.atomics import ctz, ld64, lshr, pl64, ps64
from shmtrie.kernels.build import jit
from shmtrie.kernels.check_extents import use_extent
from shmtrie.kernels.check_words import (
    K_ALIAS_SEEN,
    K_ALIAS_WORD,
    K_BLOCKS,
    K_COVER,
    K_COVER_BYTES,
    K_DIRECTORY,
    K_DIRECTORY_BYTES,
    K_SEEN,
    N_ALIASES,
    N_DYING,
    N_WORDS,
    S_ALIAS,
    S_FLAGGED,
    S_HEAD,
    S_MOVING,
    Fault,
    add,
    found,
)
from shmtrie.kernels.context import C_HOLES, C_N_SLOTS, C_STATES, get, put
from shmtrie.kernels.coverage import head_form, head_words
from shmtrie.layout import (
    ALIAS_LINES,
    ALIAS_SLOT,
    COV_ALIAS,
    COV_PRESENT,
    COV_SLOT,
    COV_START,
    FORM_DENSE,
    FORM_LIST,
    INLINE_WORDS,
    LINE,
    M12,
    M32,
    R_STATE,
    RANK_STATE_BYTES,
    SLOT_ACTIVE,
    SLOT_DYING,
)
from shmtrie.vectors import eq16

KNOWN_FLAGS = COV_ALIAS | COV_PRESENT | 0xFFFFFF


# ------------------------------------------------------------------------------------------------ aliases
@jit
def check_aliases(ctx, chk, node):
    """The directory: one entry a slot, each with an extent of its own. What it says is kept by slot."""
    head, moving = get(chk, S_ALIAS), get(chk, S_MOVING)
    put(chk, S_FLAGGED, 0)
    if head == 0:
        return
    words = lshr(head, 32)
    if words <= 0 or words % 8 != 0 or words * 8 > get(chk, K_DIRECTORY_BYTES):
        found(chk, Fault.ALIAS_HEAD, node, head, 0, moving)
        return
    if use_extent(ctx, chk, node, head & M32, words >> 3) == 0:
        return
    n = 0
    for k in range(words):
        word = pl64(get(chk, K_DIRECTORY) + k * 8)
        if word == 0:
            continue
        slot = lshr(word, ALIAS_SLOT) - 1
        if slot < 0 or slot >= get(ctx, C_N_SLOTS):
            found(chk, Fault.ALIAS_SLOT_BAD, node, word, k, moving)
            continue
        seen = get(chk, K_ALIAS_SEEN) + slot * 8
        if pl64(seen) == node:
            found(chk, Fault.ALIAS_TWICE, node, slot, k, moving)
            continue
        ps64(seen, node)
        ps64(get(chk, K_ALIAS_WORD) + slot * 8, word)
        use_extent(ctx, chk, node, word & M32, lshr(word, ALIAS_LINES) & 0xFFFF)
        n += 1
    add(chk, N_ALIASES, n)
    put(chk, S_FLAGGED, -n)


@jit
def _check_flag(ctx, chk, node, slot, stop):
    """A word with the alias flag has an entry in the directory, whose extent holds what it covers here."""
    put(chk, S_FLAGGED, get(chk, S_FLAGGED) + 1)
    if pl64(get(chk, K_ALIAS_SEEN) + slot * 8) != node:
        found(chk, Fault.ALIAS_MISSING, node, slot, stop, get(chk, S_MOVING))
        return
    lines = lshr(pl64(get(chk, K_ALIAS_WORD) + slot * 8), ALIAS_LINES) & 0xFFFF
    if stop > lines * (LINE // 8):
        found(chk, Fault.ALIAS_SHORT, node, slot, lines | (stop << 32), get(chk, S_MOVING))


# ------------------------------------------------------------------------------------------------ words
@jit
def _check_word(ctx, chk, node, slot, low, length, internal):
    """One coverage word; its cutoff, 0 when it begins behind the end: the suffix has what it covered."""
    moving = get(chk, S_MOVING)
    begin, stop = (low >> COV_START) & M12, low & M12
    if slot < 0 or slot >= get(ctx, C_N_SLOTS):
        found(chk, Fault.WORD_SLOT, node, slot, low, moving)
        return stop
    add(chk, N_WORDS, 1)
    seen = get(chk, K_SEEN) + slot * 8
    if pl64(seen) == node:
        found(chk, Fault.WORD_TWICE, node, slot, low, moving)
    ps64(seen, node)
    if begin >= stop:
        found(chk, Fault.WORD_EMPTY, node, slot, low, moving)
    if begin != 0 and get(ctx, C_HOLES) == 0:
        found(chk, Fault.WORD_START, node, slot, low, moving)
    if stop > length and not internal:
        found(chk, Fault.WORD_LONG, node, slot, stop | (length << 32), moving)
    if (low & COV_PRESENT) == 0 or (low & ~KNOWN_FLAGS) != 0:
        found(chk, Fault.WORD_FLAGS, node, slot, low, moving)
    state = ld64(get(ctx, C_STATES) + slot * RANK_STATE_BYTES + R_STATE) & 0xFF
    if state == SLOT_DYING:
        add(chk, N_DYING, 1)
    elif state != SLOT_ACTIVE:
        found(chk, Fault.WORD_FREE_SLOT, node, slot, state, moving)
    if (low & COV_ALIAS) != 0:
        _check_flag(ctx, chk, node, slot, min(stop, length))
    blocks = get(chk, K_BLOCKS) + slot * 8
    ps64(blocks, pl64(blocks) + max(0, min(stop, length) - begin))
    return stop if begin < length else 0


@jit
def _check_wide(ctx, chk, node, x, words, length, internal):
    """Inline or list words; the largest cutoff."""
    top = 0
    for k in range(words):
        word = pl64(x + k * 8)
        if word != 0:
            stop = _check_word(ctx, chk, node, lshr(word, COV_SLOT), word & M32, length, internal)
            top = max(top, stop)
    return top


@jit
def _check_dense(ctx, chk, node, x, words, length, internal):
    """Words by slot; the largest cutoff."""
    top = 0
    for k in range(0, words, 16):
        m = ~eq16(x + k * 4, -1, 0) & 0xFFFF
        while m != 0:
            slot = k + ctz(m)
            m &= m - 1
            pair = pl64(x + (slot & ~1) * 4)
            low = lshr(pair, 32) if (slot & 1) != 0 else pair & M32
            top = max(top, _check_word(ctx, chk, node, slot, low, length, internal))
    return top


@jit
def check_coverage(ctx, chk, node, length, internal):
    """All words of the copied node; the largest cutoff. `check_aliases` came before."""
    head, moving = get(chk, S_HEAD), get(chk, S_MOVING)
    x = get(chk, K_COVER)
    top = 0
    if head == 0:
        # the copy is of the reader line's last words
        top = _check_wide(ctx, chk, node, x + LINE - INLINE_WORDS * 8, INLINE_WORDS, length, internal)
    else:
        form, words = head_form(head), head_words(head)
        n_bytes = words * (8 if form == FORM_LIST else 4)
        is_known = form == FORM_LIST or form == FORM_DENSE
        if not is_known or words <= 0 or n_bytes % LINE != 0 or n_bytes > get(chk, K_COVER_BYTES):
            found(chk, Fault.COVER_HEAD, node, head, 0, moving)
        elif use_extent(ctx, chk, node, head & M32, n_bytes // LINE) != 0:
            if form == FORM_LIST:
                top = _check_wide(ctx, chk, node, x, words, length, internal)
            else:
                top = _check_dense(ctx, chk, node, x, words, length, internal)
    if get(chk, S_FLAGGED) < 0:
        found(chk, Fault.ALIAS_UNFLAGGED, node, -get(chk, S_FLAGGED), 0, moving)
    return top
