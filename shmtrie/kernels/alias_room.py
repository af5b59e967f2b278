"""What a store's plan will enter into the lookup of aliases: whether that has room for it.

A node in which a rank gets its first hash of its own enters all that the rank covers there. What is read here
stands while the versions of the plan's rows do.
"""

from __future__ import annotations

from shmtrie.atomics import ld64, pl64
from shmtrie.kernels.alias_lookup import alias_mix, alias_part_room
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import C_ALIASES, C_N_TOUCHED, get
from shmtrie.kernels.coverage import word_covers
from shmtrie.kernels.parts import add_need, clear_needs, needs_fit
from shmtrie.kernels.places import FOUND, hash_at, own_alias, own_word
from shmtrie.kernels.plan import ALIAS, T_FLAGS, T_HI, T_INDEX, T_LO, T_NODE, T_TAIL, row_get
from shmtrie.kernels.protocol import node_at
from shmtrie.layout import COV_ALIAS, M12, M31, M32, N_START


@inl
def _alias_range(ctx, slot, k):
    """(word, from, to): positions that a row of the plan with an alias enters, at most: cuts of the same node
    make them fewer.
    """
    a = node_at(ctx, row_get(ctx, k, T_NODE))
    low, start = own_word(ctx, a, slot), ld64(a + N_START) & M32
    lo, hi = row_get(ctx, k, T_LO) - start, row_get(ctx, k, T_HI) - start
    if (low & COV_ALIAS) != 0 and lo >= (low & M12):
        return low, lo, hi  # the rest has its entries
    return low, 0, max(hi, min(low & M12, (row_get(ctx, k, T_TAIL) & M31) - start))


@jit
def _alias_needs(ctx, slot, external, n):
    """1 if there is room for n entries beside each of those that the plan enters into the lookup of aliases;
    with n = 0 they are added to the needs by part.
    """
    for k in range(get(ctx, C_N_TOUCHED)):
        if (row_get(ctx, k, T_FLAGS) & ALIAS) == 0:
            continue
        low, first, stop = _alias_range(ctx, slot, k)
        a = node_at(ctx, row_get(ctx, k, T_NODE))
        start = ld64(a + N_START) & M32
        lo, hi = row_get(ctx, k, T_LO) - start, row_get(ctx, k, T_HI) - start
        for p in range(first, stop):
            found, h = FOUND, 0
            if lo <= p < hi:
                h = pl64(external + (row_get(ctx, k, T_INDEX) + p - lo) * 8)
            elif not word_covers(low, p):
                continue
            elif (low & COV_ALIAS) != 0:
                found, h = own_alias(ctx, a, slot, p)
            else:
                found, h = hash_at(ctx, a, start + p)
            if found != FOUND:
                continue
            if n == 0:
                add_need(ctx, alias_mix(slot, h))
            elif not alias_part_room(ctx, slot, h, n):
                return 0
    return 1


@jit
def alias_room(ctx, slot, external):
    """1 when the lookup of aliases has room for what the plan enters there, else 0 with the needs by part."""
    n = 0
    for k in range(get(ctx, C_N_TOUCHED)):
        if (row_get(ctx, k, T_FLAGS) & ALIAS) != 0:
            _, first, stop = _alias_range(ctx, slot, k)
            n += max(stop - first, 0)
    if n == 0 or _alias_needs(ctx, slot, external, n) != 0:
        return 1
    clear_needs(ctx)
    _alias_needs(ctx, slot, external, 0)
    return needs_fit(ctx, get(ctx, C_ALIASES))
