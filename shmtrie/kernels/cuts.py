"""The places that a store moves away from, as it gives their hashes to others: gated and judged again."""

from __future__ import annotations

from shmtrie.atomics import ld64, lshr
from shmtrie.kernels.build import jit
from shmtrie.kernels.context import BAD_SEQUENCE, C_EXACT, C_N_CUTS, OK, RETRY, get
from shmtrie.kernels.coverage import cov_find, without, word_begin
from shmtrie.kernels.edges import edge_length
from shmtrie.kernels.places import is_above, own_word, suffix_at
from shmtrie.kernels.plan import X_DEPTH, X_LOW, X_NEW, X_NODE, X_TOP, X_WIDE, X_WORD, cut_get, cut_put
from shmtrie.kernels.protocol import gate_exclusive, gate_shared, node_at
from shmtrie.kernels.sound import set_aside, sound
from shmtrie.layout import COV_ALIAS, M12, M31, M32, N_START, N_TAIL, NO_SPACE


@jit
def take_cuts(ctx, slot, above, above_depth):
    """Gate the places that the store moves away from; OK, RETRY, BUSY, FULL, CORRUPT, or BAD_SEQUENCE if one
    of them is the parent's or above it.

    That was looked at when the plan was made; but a split between the two looks, at the parent and at the
    place, could hide it.
    """
    for k in range(get(ctx, C_N_CUTS)):
        node, depth = cut_get(ctx, k, X_NODE), cut_get(ctx, k, X_DEPTH)
        a = node_at(ctx, node)
        start = ld64(a + N_START) & M32
        low, have = own_word(ctx, a, slot), edge_length(a)
        stop = cut_get(ctx, k, X_TOP) + 1 - start
        new, _ = without(low, depth - start, stop, min(low & M12, have), get(ctx, C_EXACT))
        exclusive = 1 if new == 0 and (low & COV_ALIAS) != 0 else 0
        status = gate_exclusive(ctx, node) if exclusive != 0 else gate_shared(ctx, node)
        if status != OK:
            return status
        if sound(ctx, node) == 0:
            return set_aside(ctx, node)
        # a split may have taken some of the places away: the plan is made anew
        end = ld64(a + N_TAIL) & M31
        if lshr(ld64(a + N_START), 32) == NO_SPACE or depth < start or cut_get(ctx, k, X_TOP) >= end:
            return RETRY
        word_at, low, wide = cov_find(ctx, a, slot)
        if word_at == 0 or (low & M12) <= depth - start or word_begin(low) >= stop:
            return RETRY
        new, _ = without(low, depth - start, stop, min(low & M12, end - start), get(ctx, C_EXACT))
        if new == -1 or (new == 0 and (low & COV_ALIAS) != 0 and exclusive == 0):
            return RETRY
        cut_put(ctx, k, X_WORD, word_at)
        cut_put(ctx, k, X_WIDE, wide)
        cut_put(ctx, k, X_LOW, low)
        cut_put(ctx, k, X_NEW, new)
        if above != 0:
            parent = suffix_at(ctx, above, above_depth)
            if parent == 0:
                return RETRY
            if is_above(ctx, node, depth, parent, above_depth) != 0:
                return BAD_SEQUENCE
    return OK
