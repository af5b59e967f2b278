"""Aliases: a rank's own external hashes for a node, where they differ from the edge's.

The rank's coverage word carries a flag, and an alias extent holds its hash of every position it covers. A
directory extent on the node (words: slot + 1 | lines | extent) names them. Linking, replacing and freeing
hold the gate exclusively, with a bump before the free. Positions at or beyond the rank's cutoff may be
written in place, behind a bump: nobody covers them, but a reader may have counted them before.
"""

from __future__ import annotations

from shmtrie.atomics import cas64, ctz, fence_release, ld64, lshr, st64, st64r
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import C_N_LINES, FULL, OK, get
from shmtrie.kernels.coverage import cov_find
from shmtrie.kernels.edges import edge_fits, edge_length
from shmtrie.kernels.extents import claim_lines, free_later
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import log_redo, log_undo
from shmtrie.kernels.protocol import bump
from shmtrie.kernels.spans import line_at
from shmtrie.layout import ALIAS_LINES, ALIAS_SLOT, COV_ALIAS, LOG_BUMP, LOG_CAS64, M12, M32, N_ALIAS, N_EDGE
from shmtrie.vectors import eq8, zero_line

SLOT_MASK = ~((1 << ALIAS_SLOT) - 1)


@inl
def directory_fits(ctx, head):
    line, words = head & M32, lshr(head, 32)
    return words > 0 and line > 0 and line + ((words + 7) >> 3) <= get(ctx, C_N_LINES) + 1


@inl
def alias_find(ctx, a, slot):
    """(address, directory word) of a rank's alias extent; address 0: none."""
    head = ld64(a + N_ALIAS)
    if head != 0 and directory_fits(ctx, head):
        x = line_at(ctx, head & M32)
        for k in range(lshr(head, 32) >> 3):
            m = eq8(x + k * 64, SLOT_MASK, (slot + 1) << ALIAS_SLOT)
            if m != 0:
                return x + k * 64 + ctz(m) * 8, ld64(x + k * 64 + ctz(m) * 8)
    return 0, 0


@inl
def alias_fits(ctx, word, position):
    line, lines = word & M32, (word >> ALIAS_LINES) & 0xFFFF
    return 0 <= position < lines * 8 and line > 0 and line + lines <= get(ctx, C_N_LINES) + 1


@inl
def alias_hash(ctx, a, slot, position):
    """(found, hash) of a rank's own hash at a position. Stable under the gate, else validated by the
    version.
    """
    word_at, word = alias_find(ctx, a, slot)
    if word_at == 0 or not alias_fits(ctx, word, position):
        return 0, 0
    return 1, ld64(line_at(ctx, word & M32) + position * 8)


@inl
def edge_hash_at(ctx, a, position):
    """Address of the external hash at a position of the edge (bounds are the caller's business)."""
    edge = ld64(a + N_EDGE)
    return line_at(ctx, edge & M32) + (lshr(edge, 32) + position) * 8


@inl
def own_hashes(ctx, a, slot, low):
    """(address, number) of a rank's hashes from position 0 on: its aliases, or the edge's. Zeros where torn
    words name none.

    Stable under the gate; otherwise what is read there is any hash, which the caller's look at the version
    refuses.
    """
    if (low & COV_ALIAS) != 0:
        word_at, word = alias_find(ctx, a, slot)
        if word_at == 0 or not alias_fits(ctx, word, 0):
            return 0, 0
        return line_at(ctx, word & M32), ((word >> ALIAS_LINES) & 0xFFFF) * 8
    edge = ld64(a + N_EDGE)
    if not edge_fits(ctx, edge):
        return 0, 0
    return line_at(ctx, edge & M32) + lshr(edge, 32) * 8, lshr(edge, 32)


# ------------------------------------------------------------------------------------------------ changes
@jit
def _link(ctx, a, word):
    """Enter a new directory word, growing the directory when it is full; OK or FULL. Undone by the undo list.

    Without the flag in the coverage word the entry means nothing yet.
    """
    head = ld64(a + N_ALIAS)
    words = lshr(head, 32)
    if head != 0:
        x = line_at(ctx, head & M32)
        for k in range(words >> 3):
            m = eq8(x + k * 64, -1, 0)
            if m != 0:
                word_at = x + k * 64 + ctz(m) * 8
                if log_undo(ctx, LOG_CAS64, word_at, 0, word) != OK:
                    return FULL
                cas64(word_at, 0, word)
                at(ctx, Site.ALIAS_LINKED)
                return OK
    want = max(8, words * 2)
    line = claim_lines(ctx, want >> 3)
    if line == 0:
        return FULL
    y = line_at(ctx, line)
    for k in range(want >> 3):
        zero_line(y + k * 64)
    for k in range(words):
        st64(y + k * 8, ld64(line_at(ctx, head & M32) + k * 8))
    st64(y + words * 8, word)
    fresh = line | (want << 32)
    if head != 0 and free_later(ctx, head & M32) != OK:
        return FULL
    if log_undo(ctx, LOG_BUMP, a, 0, 0) != OK or log_undo(ctx, LOG_CAS64, a + N_ALIAS, head, fresh) != OK:
        return FULL
    st64r(a + N_ALIAS, fresh)
    at(ctx, Site.ALIAS_LINKED)
    bump(a)
    return OK


@jit
def alias_prepare(ctx, a, slot, low, have, lo, hi, hashes):
    """See that the rank's alias extent will hold `hashes` at positions [lo, hi) once committed; OK or FULL.

    Parameters
    ----------
    low : int64
        Low half of the rank's coverage word as it stands.
    have : int64
        Length of the edge before this store, in blocks.
    lo, hi : int64
        Positions in the edge, in blocks.
    hashes : int64
        Address of the hash of position `lo`.

    Notes
    -----
    Gate: exclusive. Positions beyond the cutoff are written in place, behind a bump: a reader that counted
    them before they were removed must not show the new hashes, which may never be committed. A change of
    covered ones (a rename) makes a new extent that the commit links instead of the old one. Crash: the undo
    list frees the new one; the redo list finishes.
    """
    # a word may reach beyond the end: the rank has the rest in the suffix, under a word of its own
    cutoff = min(low & M12, have)
    word_at, word = 0, 0
    if (low & COV_ALIAS) != 0:
        word_at, word = alias_find(ctx, a, slot)
    if word_at != 0 and alias_fits(ctx, word, hi - 1):
        x = line_at(ctx, word & M32)
        same = 1
        for p in range(lo, min(hi, cutoff)):
            if ld64(x + p * 8) != ld64(hashes + (p - lo) * 8):
                same = 0
                break
        if same != 0:
            bump(a)
            fence_release()
            for p in range(max(lo, cutoff), hi):
                st64(x + p * 8, ld64(hashes + (p - lo) * 8))
            return OK
    keep = max(hi, cutoff)
    lines = (keep + (keep >> 2) + 7) >> 3 if lo > 0 else (keep + 7) >> 3
    line = claim_lines(ctx, lines)
    if line == 0:
        return FULL
    y = line_at(ctx, line)
    x, held = own_hashes(ctx, a, slot, low if word_at != 0 else 0)
    for p in range(min(cutoff, held)):
        st64(y + p * 8, ld64(x + p * 8))
    for p in range(lo, hi):
        st64(y + p * 8, ld64(hashes + (p - lo) * 8))
    fresh = ((slot + 1) << ALIAS_SLOT) | (lines << ALIAS_LINES) | line
    if word_at == 0:
        word_at, word = alias_find(ctx, a, slot)  # left by a word that was dropped without its alias
    if word_at == 0:
        return _link(ctx, a, fresh)
    if (
        log_redo(ctx, LOG_CAS64, word_at, word, fresh) != OK
        or log_redo(ctx, LOG_BUMP, a, 0, 0) != OK
        or free_later(ctx, word & M32) != OK
    ):
        return FULL
    return OK


@jit
def alias_drop(ctx, a, slot):
    """The commit unlinks and frees the rank's alias extent; OK or FULL. Gate: exclusive."""
    word_at, word = alias_find(ctx, a, slot)
    if word_at == 0:
        return OK
    if (
        log_redo(ctx, LOG_CAS64, word_at, word, 0) != OK
        or log_redo(ctx, LOG_BUMP, a, 0, 0) != OK
        or free_later(ctx, word & M32) != OK
    ):
        return FULL
    return OK


@jit
def alias_split(ctx, a, b, cut):
    """Give the suffix `b` (not reachable yet) copies of the aliases behind `cut`; OK or FULL. Gate of `a`:
    exclusive.
    """
    head = ld64(a + N_ALIAS)
    if head == 0:
        return OK
    x = line_at(ctx, head & M32)
    words = lshr(head, 32)
    n = 0
    for k in range(words):
        w = ld64(x + k * 8)
        if w != 0:
            _, low, _ = cov_find(ctx, b, lshr(w, ALIAS_SLOT) - 1)
            n += (low & COV_ALIAS) != 0
    if n == 0:
        return OK
    want = (n + 7) & ~7
    line = claim_lines(ctx, want >> 3)
    if line == 0:
        return FULL
    y = line_at(ctx, line)
    for k in range(want >> 3):
        zero_line(y + k * 64)
    n = 0
    for k in range(words):
        w = ld64(x + k * 8)
        if w == 0:
            continue
        _, low, _ = cov_find(ctx, b, lshr(w, ALIAS_SLOT) - 1)
        if (low & COV_ALIAS) == 0:
            continue
        blocks = min(low & M12, edge_length(b))
        lines = (blocks + 7) >> 3
        copy = claim_lines(ctx, lines)
        if copy == 0:
            return FULL
        z = line_at(ctx, copy)
        if not alias_fits(ctx, w, cut + blocks - 1):
            blocks = 0
        for p in range(blocks):
            st64(z + p * 8, ld64(line_at(ctx, w & M32) + (cut + p) * 8))
        st64(y + n * 8, (w & SLOT_MASK) | (lines << ALIAS_LINES) | copy)
        n += 1
    st64(b + N_ALIAS, line | (want << 32))
    return OK


@jit
def aliases_free_later(ctx, a):
    """The commit frees the directory and whatever it still names; OK or FULL."""
    head = ld64(a + N_ALIAS)
    if head == 0 or not directory_fits(ctx, head):
        return OK
    x = line_at(ctx, head & M32)
    for k in range(lshr(head, 32)):
        w = ld64(x + k * 8)
        if w != 0 and free_later(ctx, w & M32) != OK:
            return FULL
    return free_later(ctx, head & M32)
