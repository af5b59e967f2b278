"""Taking a rank over: the lane enters what the rank covers into its lookups."""

from __future__ import annotations

from shmtrie.atomics import ld64, lshr
from shmtrie.kernels.alias_lookup import alias_entry_put, alias_mix, alias_part_room, alias_value
from shmtrie.kernels.build import entry, jit
from shmtrie.kernels.children import space_owner
from shmtrie.kernels.context import GROW, GROW_ALIASES, OK
from shmtrie.kernels.coverage import word_begin, word_blocks
from shmtrie.kernels.edges import edge_length
from shmtrie.kernels.lookup import lookup_has, lookup_put
from shmtrie.kernels.nodes import nodes_high
from shmtrie.kernels.parts import add_need, clear_needs, mix, part_room, part_row
from shmtrie.kernels.places import FOUND, HOPS, hash_at, own_alias, own_word, reached_suffix
from shmtrie.kernels.protocol import node_at
from shmtrie.layout import COV_ALIAS, M12, M32, N_START


@jit
def _adopt_node(ctx, slot, node, low):
    """Enter what a rank covers in a node; OK, or GROW, GROW_ALIASES with the needs."""
    a = node_at(ctx, node)
    start = ld64(a + N_START) & M32
    first, stop = word_begin(low), max(min(low & M12, edge_length(a)), 0)
    if (low & COV_ALIAS) != 0:
        for p in range(first, stop):
            found, h = own_alias(ctx, a, slot, p)
            if found == 0:
                continue
            if not alias_part_room(ctx, slot, h, 1):
                clear_needs(ctx)
                for rest in range(p, stop):
                    add_need(ctx, alias_mix(slot, own_alias(ctx, a, slot, rest)[1]))
                return GROW_ALIASES
            alias_entry_put(ctx, slot, h, alias_value(node, p, slot))
        return OK
    for p in range(first, stop):
        found, h = hash_at(ctx, a, start + p)
        if found == FOUND and lookup_has(ctx, h, node, start + p) == 0:
            # asked for an entry that is not there yet: a suffix is come by twice, and needs no room then
            if not part_room(part_row(ctx, mix(h)), 1):
                clear_needs(ctx)
                for rest in range(p, stop):
                    add_need(ctx, mix(hash_at(ctx, a, start + rest)[1]))
                return GROW
            lookup_put(ctx, h, node, p)
    return OK


@entry("int64(int64, int64)")
def adopt_slot(ctx, slot):
    """Enter into the lookup what a rank covers: the lane takes it over. OK, or GROW, GROW_ALIASES with the
    need (call again).

    A word that reaches beyond its node's end, looked at when the node has been entered, sends the pass along
    the suffix chain, whatever ids the suffixes have (M12).
    """
    high = nodes_high(ctx)
    for node in range(1, high):
        link = node
        for _ in range(HOPS):
            if link == 0:
                break
            a = node_at(ctx, link)
            low = own_word(ctx, a, slot)
            if low == 0:
                break
            status = _adopt_node(ctx, slot, link, low)
            if status != OK:
                return status
            link = reached_suffix(ctx, a, low)
    return OK


@entry("UniTuple(int64, 3)(int64, int64)")
def covered_blocks(ctx, slot):
    """Blocks that a rank covers under the edges' hashes, and under its own; and a check sum of where.

    Two passes with one result saw no split: one between two looks may count its suffix twice, or not at all.
    """
    high = nodes_high(ctx)
    plain, aliased, check = 0, 0, 0
    for node in range(1, high):
        a = node_at(ctx, node)
        low = own_word(ctx, a, slot)
        space = lshr(ld64(a + N_START), 32)
        # not a suffix whose split has stopped before its commit: the prefix has its blocks
        if low != 0 and (space == 0 or space_owner(ctx, space) != 0):
            blocks = word_blocks(low, edge_length(a))
            if (low & COV_ALIAS) != 0:
                aliased += blocks
            else:
                plain += blocks
            check = mix(check ^ (node << 12) ^ blocks)
    return plain, aliased, check
