"""Nodes that are damaged: what a writer demands of a node before it works on it, and how it sets one aside.

A *sound* node is consistent in itself: its numbers lie in their sections and fit each other, so whoever holds
its gate may follow them. One that is not is *quarantined*: it counts as not there. Its edge word becomes 0,
at which readers and writers stop by the bounds that they check anyway; the mark is for `stats` and `verify`.
Its memory is lost until the segment is made anew.

No healthy node is ever judged unsound: a holder of the gate sees no publication under way, since those hold
it exclusively.
"""

from __future__ import annotations

from shmtrie.atomics import cas64, ld64, lshr
from shmtrie.kernels.aliases import directory_fits
from shmtrie.kernels.build import jit
from shmtrie.kernels.context import C_N_NODES, C_N_SLOTS, CORRUPT, OK, RETRY, get
from shmtrie.kernels.coverage import head_fits, head_form, head_words
from shmtrie.kernels.edges import edge_fits
from shmtrie.kernels.protocol import bump, gate_exclusive, node_at, quarantine
from shmtrie.layout import (
    FORM_DENSE,
    FORM_LIST,
    M31,
    M32,
    N_ALIAS,
    N_COVERAGE,
    N_EDGE,
    N_QUARANTINED,
    N_START,
    N_TAIL,
    NO_SPACE,
)


@jit
def _extents_fit(ctx, head, directory):
    """A coverage head and an alias directory that are not both empty."""
    slots = (get(ctx, C_N_SLOTS) + 15) & ~15
    if head != 0:
        form, words = head_form(head), head_words(head)
        part = 7 if form == FORM_LIST else 15
        if (form != FORM_LIST and form != FORM_DENSE) or words > slots or (words & part) != 0:
            return 0
        if not head_fits(ctx, head):
            return 0
    if directory != 0:
        # it doubles when every slot has an entry
        words = lshr(directory, 32)
        if words > 2 * slots or (words & 7) != 0 or not directory_fits(ctx, directory):
            return 0
    return 1


@jit
def sound(ctx, node):
    """1 for a node that may be worked on, or that hangs nowhere. Gate: held, shared will do."""
    a = node_at(ctx, node)
    begin, tail, edge = ld64(a + N_START), ld64(a + N_TAIL), ld64(a + N_EDGE)
    space, own = lshr(begin, 32), lshr(tail, 32)
    if space == NO_SPACE:
        return 1
    length, nodes = (tail & M31) - (begin & M32), get(ctx, C_N_NODES)
    if length <= 0 or length > lshr(edge, 32) or not edge_fits(ctx, edge):
        return 0
    # space 0 is the root's
    if space >= nodes or own >= nodes or own == 0 or ld64(a + N_QUARANTINED) != 0:
        return 0
    head, directory = ld64(a + N_COVERAGE), ld64(a + N_ALIAS)
    return 1 if (head | directory) == 0 else _extents_fit(ctx, head, directory)


@jit
def mark(ctx, a):
    """Quarantine a node. Gate: exclusive. Crash: whoever meets the node next goes on."""
    quarantine(ctx, a)
    edge = ld64(a + N_EDGE)
    if edge != 0 and cas64(a + N_EDGE, edge, 0) != 0:
        bump(a)


@jit
def set_aside(ctx, node):
    """Quarantine a node that does not look sound, judged under its exclusive gate, which the caller lets go:
    CORRUPT, RETRY when it is sound, BUSY or FULL.
    """
    status = gate_exclusive(ctx, node)
    if status != OK:
        return status
    if sound(ctx, node) != 0:
        return RETRY
    mark(ctx, node_at(ctx, node))
    return CORRUPT
