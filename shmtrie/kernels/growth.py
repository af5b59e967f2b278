"""Kernels that a lane's private tables grow by, between two events; see `shmtrie.tables`."""

from __future__ import annotations

from shmtrie.atomics import ld32, ld64, pl64
from shmtrie.kernels.alias_lookup import alias_entries_rehash, carry_alias_entries
from shmtrie.kernels.build import entry, inl
from shmtrie.kernels.context import C_ALIASES, C_LOOKUP, C_MINE, C_N_SLOTS, C_STALE, C_STATES, get, put
from shmtrie.kernels.lookup import carry_entries, lookup_rehash
from shmtrie.kernels.parts import D_WORDS, P_USED, PARTS, ROW
from shmtrie.layout import R_BLOCKS, RANK_STATE_BYTES


@entry("int64(int64, int64, int64)")
def lookup_move(ctx, old, lines):
    """Rehash the entries that a hash table of the lookup had into what has taken its place."""
    lookup_rehash(ctx, old, lines)
    return 0


@entry("int64(int64, int64, int64, int64)")
def lookup_carry(ctx, old, first, half):
    """The same of all its entries, without a look at the segment; see `carry_entries`."""
    carry_entries(ctx, old, first, half)
    return 0


@inl
def _entries(directory):
    """Entries of all hash tables of a lookup."""
    n, words = 0, 0
    for p in range(PARTS):  # those of one hash table lie side by side
        at = pl64(directory + p * ROW + D_WORDS)
        if at != words:
            n += pl64(at + P_USED)
        words = at
    return n


@entry("int64(int64)")
def lookup_stamp(ctx):
    """A number that moves when some entries of the lookups may be left over.

    Ranks that leave the lane move it; so does whatever else leaves more entries than its ranks have blocks.
    """
    blocks, used = 0, _entries(get(ctx, C_LOOKUP)) + _entries(get(ctx, C_ALIASES))
    for slot in range(get(ctx, C_N_SLOTS)):
        if ld32(get(ctx, C_MINE) + slot * 4) != 0:
            blocks += ld64(get(ctx, C_STATES) + slot * RANK_STATE_BYTES + R_BLOCKS)
    if used > blocks:
        put(ctx, C_STALE, get(ctx, C_STALE) + 1)
    return get(ctx, C_STALE)


@entry("int64(int64, int64, int64)")
def aliases_move(ctx, old, lines):
    """As `lookup_move`, of the lookup of aliases."""
    alias_entries_rehash(ctx, old, lines)
    return 0


@entry("int64(int64, int64, int64)")
def aliases_carry(ctx, old, lines):
    """The same of all its entries, without a look at the segment; the tables are of any size."""
    carry_alias_entries(ctx, old, lines)
    return 0
