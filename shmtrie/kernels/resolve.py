"""Both lookups together: where a rank holds a hash, and what changes when it gains or loses places."""

from __future__ import annotations

from shmtrie.atomics import ld64, lshr, pl64, ps64
from shmtrie.kernels.alias_lookup import (
    alias_entry_delete,
    alias_entry_find,
    alias_entry_put,
    alias_prefetch,
    alias_value,
)
from shmtrie.kernels.aliases import edge_hash_at, own_hashes
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import C_HAS_ALIASES, C_HOLES, get
from shmtrie.kernels.coverage import cov_max_mine, cov_mine_covers, word_begin
from shmtrie.kernels.lookup import (
    lookup_delete,
    lookup_find,
    lookup_has,
    lookup_prefetch,
    lookup_put,
    lookup_repair,
)
from shmtrie.kernels.places import own_word
from shmtrie.kernels.protocol import node_at
from shmtrie.layout import COV_ALIAS, M12, M31, M32, N_START, N_TAIL


# ------------------------------------------------------------------------------------------------ both
@inl
def entry_prefetch(ctx, slot, h):
    """A rank's hash will be asked for."""
    lookup_prefetch(ctx, h)
    if get(ctx, C_HAS_ALIASES) != 0:
        alias_prefetch(ctx, slot, h)


@jit
def resolve(ctx, slot, h, upward, passed):
    """The place that the rank covers under its own hash `h`: (node, depth), or (0, 0).

    Parameters
    ----------
    upward : int64
        Which entries a stale one takes along: 0 from the place to the rank's cutoff (a store goes on from
        there), 1 from where the rank's coverage begins to the place (a removal from the tail comes that way;
        at the beginning, behind a hole, it comes from the head: as 0), 2 none.
    passed : int64
        A lookup entry that is not looked at (see `lookup_entry`), or 0.
    """
    entry_at, node, depth = lookup_find(ctx, slot, h, passed)
    if node != 0:
        stale = lshr(pl64(entry_at), 32)
        if stale != node and upward != 2:
            a = node_at(ctx, node)
            begin, low = ld64(a + N_START) & M32, own_word(ctx, a, slot)
            end = min(ld64(a + N_TAIL) & M31, begin + (low & M12))
            first = begin + word_begin(low)
            if upward == 1 and (first < depth or first == begin):
                lookup_repair(ctx, stale, node, first, depth + 1)
            else:
                lookup_repair(ctx, stale, node, depth, end)
        return node, depth
    entry_at, node, depth = alias_entry_find(ctx, slot, h)
    if node != 0:
        value = pl64(entry_at + 8)
        if lshr(value, 32) != node:
            # an alias entry is redirected one by one: it says where it is in the hash and value alone
            ps64(entry_at + 8, alias_value(node, depth - (ld64(node_at(ctx, node) + N_START) & M32), slot))
    return node, depth


@jit
def scrub(ctx, a, node, slot, low, lo, hi):
    """Delete the entries of positions [lo, hi) that only this rank of the lane covers (with these hashes).

    The rank's word `low` is still in place; the caller cuts it next.
    """
    begin = ld64(a + N_START) & M32
    lo = max(lo, word_begin(low))
    if (low & COV_ALIAS) != 0:
        x, held = own_hashes(ctx, a, slot, low)
        hi = min(hi, held)
        for p in range(lo, hi):
            if p + 8 < hi:
                alias_prefetch(ctx, slot, pl64(x + (p + 8) * 8))
            alias_entry_delete(ctx, slot, pl64(x + p * 8), node, begin + p)
        return
    others = cov_max_mine(ctx, a, slot)
    x = edge_hash_at(ctx, a, 0)
    if get(ctx, C_HOLES) != 0:  # others may begin behind a position
        for p in range(lo, min(others, hi)):
            if cov_mine_covers(ctx, a, slot, p) == 0:
                lookup_delete(ctx, pl64(x + p * 8), node, begin + p)
    for p in range(max(lo, others), hi):
        if p + 8 < hi:
            lookup_prefetch(ctx, pl64(x + (p + 8) * 8))
        lookup_delete(ctx, pl64(x + p * 8), node, begin + p)


@jit
def enter(ctx, a, node, slot, low, lo, hi):
    """Enter positions [lo, hi), as far as a rank's word `low` covers them; the lane has none of them.

    The plan has just looked for them, so where they belong is in the cache.
    """
    begin = ld64(a + N_START) & M32
    lo = max(lo, word_begin(low))
    if (low & COV_ALIAS) != 0:
        x, held = own_hashes(ctx, a, slot, low)
        for p in range(lo, min(hi, held)):
            alias_entry_put(ctx, slot, pl64(x + p * 8), alias_value(node, p, slot))
        return begin
    x = edge_hash_at(ctx, a, 0)
    exact = get(ctx, C_HOLES)
    for p in range(lo, hi):
        # the ranks of a lane begin and end where they like there: what one needs another may have entered
        if exact == 0 or lookup_has(ctx, pl64(x + p * 8), node, begin + p) == 0:
            lookup_put(ctx, pl64(x + p * 8), node, p)
    return begin
