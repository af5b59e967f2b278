"""Removal: one own word goes down, then what nobody covers any more goes.

A removal never splits and never allocates, so it cannot fail for space (with exact holes: holes.py). It is
one transaction a node; one that was cut short by a busy gate or a death may be there in part, and applying it
again completes it.
"""

from __future__ import annotations

from shmtrie.atomics import fence_acquire, ld32, ld64, ld64a, lshr, pl64
from shmtrie.kernels.aliases import alias_drop, own_hashes
from shmtrie.kernels.build import jit
from shmtrie.kernels.children import child_count
from shmtrie.kernels.context import BUSY, C_MINE, CORRUPT, HOLE, OK, RETRY, get
from shmtrie.kernels.coverage import cov_find, log_blocks, log_word, without, word_begin, word_blocks
from shmtrie.kernels.edges import edge_length
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import has_todo
from shmtrie.kernels.nodes import nodes_high
from shmtrie.kernels.places import HOPS, own_word, reached_suffix
from shmtrie.kernels.protocol import gate_exclusive, gate_shared, node_at
from shmtrie.kernels.reclaim import tidy_held, work_todo
from shmtrie.kernels.resolve import resolve, scrub
from shmtrie.kernels.sound import set_aside, sound
from shmtrie.kernels.transaction import commit, release
from shmtrie.layout import (
    COV_ALIAS,
    M12,
    M31,
    M32,
    N_START,
    N_TAIL,
    N_VERSION,
    NO_SPACE,
)

TRIES = 64


@jit
def cut(ctx, slot, node, depth, top, exact):
    """The rank's coverage of a node ends at an absolute depth; OK, RETRY (the block at depth `top`, the last
    that this is about, is elsewhere now), BUSY or FULL.

    Parameters
    ----------
    exact : int64
        1: only the blocks from `depth` to `top` go. At the beginning of what the rank covers that moves the
        word's start; in the middle nothing is changed and HOLE returned: the edge has to be split first.

    Notes
    -----
    A node without children is taken exclusively: its tail goes in the same turn. Crash: the word, the rank's
    count and its aliases change together, by the commit; what that left behind is tidied by whoever releases
    the gate, recovery included.
    """
    a = node_at(ctx, node)
    low, start = own_word(ctx, a, slot), ld64(a + N_START) & M32
    drop = depth <= start + word_begin(low)
    if exact != 0 and top + 1 < start + min(low & M12, edge_length(a)):
        drop = False
    alone = child_count(ctx, a) == 0 or (drop and (low & COV_ALIAS) != 0)
    status = gate_exclusive(ctx, node) if alone else gate_shared(ctx, node)
    if status != OK:
        return status
    at(ctx, Site.REMOVE_GATED)
    begin, end = ld64(a + N_START), ld64(a + N_TAIL) & M31
    start = begin & M32
    if lshr(begin, 32) == NO_SPACE:
        release(ctx)
        return OK
    if sound(ctx, node) == 0:  # counts as not there: nobody will see what the rank has in it
        status = set_aside(ctx, node)
        release(ctx)
        return OK if status == CORRUPT else status
    if top >= end:
        release(ctx)
        return RETRY
    word_at, low, wide = cov_find(ctx, a, slot)
    have, keep = min(low & M12, end - start), max(depth - start, 0)
    if word_at != 0 and keep < (low & M12):
        new, stop = without(low, keep, top + 1 - start, have, exact)
        if new == -1:
            release(ctx)
            return HOLE
        if ld32(get(ctx, C_MINE) + slot * 4) != 0:
            scrub(ctx, a, node, slot, low, keep, stop)
        if new == 0 and (low & COV_ALIAS) != 0:
            if not alone:
                release(ctx)
                return RETRY
        # the lists begin empty: they cannot be full
        log_word(ctx, slot, word_at, wide, low, new)
        if new == 0 and (low & COV_ALIAS) != 0:
            # behind the word: a reader that still counts the rank finds its hashes
            alias_drop(ctx, a, slot)
        log_blocks(ctx, slot, word_blocks(new, end - start) - word_blocks(low, end - start))
        commit(ctx)
        at(ctx, Site.WORD_CUT)
        if alone:
            tidy_held(ctx, node)
    release(ctx)
    if has_todo(ctx):
        work_todo(ctx)
    return OK


@jit
def remove(ctx, slot, external, n):
    """Remove blocks of a rank by its own hashes; OK, BUSY or FULL. Unknown hashes are skipped.

    A run of hashes that goes up or down an edge is one cut at its lowest position.
    """
    i = 0
    while i < n:
        status = OK
        taken = 1
        for _ in range(TRIES):
            taken = 1
            node, depth = resolve(ctx, slot, pl64(external + i * 8), 1, 0)
            status = OK
            if node == 0:
                break
            a = node_at(ctx, node)
            version = ld64a(a + N_VERSION)
            start = ld64(a + N_START) & M32
            low = own_word(ctx, a, slot)
            x, held = own_hashes(ctx, a, slot, low)
            status, top = RETRY, depth
            if 0 <= depth - start < held:
                if ld64(x + (depth - start) * 8) == pl64(external + i * 8):
                    status = OK
                while i + taken < n and depth > start:
                    if ld64(x + (depth - 1 - start) * 8) != pl64(external + (i + taken) * 8):
                        break
                    depth -= 1
                    taken += 1
            fence_acquire()
            if status != OK or ld64(a + N_VERSION) != version:
                status = RETRY
                continue
            at(ctx, Site.REMOVE_PLANNED)
            status = cut(ctx, slot, node, depth, top, 0)
            if status != RETRY:
                break
        if status != OK:
            return BUSY if status == RETRY else status
        i += taken
    return OK


@jit
def sweep(ctx, slot, begin):
    """Take a rank out of every node, from node id `begin` on: (status, next node id).

    A word that reaches beyond its node's end sends the pass along the suffix chain: a split may have copied
    it into a node whose id is already past (M12). BUSY: call again with the id that came back.
    """
    high = nodes_high(ctx)
    for node in range(begin, high):
        a = node_at(ctx, node)
        low = own_word(ctx, a, slot)
        if low == 0:
            continue
        at(ctx, Site.SWEEP_NODE)
        link = node
        hops = 0
        # a suffix may have an id beyond the ones that this pass looks at
        while link != 0 and hops < HOPS:
            b = node_at(ctx, link)
            low = own_word(ctx, b, slot)
            at(ctx, Site.SWEEP_CUT)
            if low != 0:
                status = RETRY
                for _ in range(TRIES):
                    status = cut(ctx, slot, link, 0, 0, 0)
                    if status != RETRY:
                        break
                if status != OK:
                    # in the middle of a chain the word that led here is gone: start over, that is cheap by
                    # now
                    return (BUSY if status == RETRY else status), (node if hops == 0 else 1)
            # Read behind the cut: a split that came before it shows here, one that comes after it finds no
            # word to copy.
            link = reached_suffix(ctx, b, low)
            hops += 1
    return OK, high
