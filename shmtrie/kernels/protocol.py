"""Gates, versions and the lane record: the primitives of every change.

A *gate* is a node's word of 48 shared holder bits (by lane) and one exclusive owner byte. It is only ever
tried, never waited for while another is held; a drain is bounded. The owner byte is set first, so newcomers
back off while the owner waits for the shared holders to leave (M10 of the protocol models: one bit for
"exclusive" would not say whose it is).

The lane *record* lists the gates before they are taken and every change before it is made: whoever holds a
dead lane's record can go back or go on (see transaction.py).
"""

from __future__ import annotations

from shmtrie.atomics import and64, cas64, ctz, ld64, ld64a, lshr, pause, pl64, ps64, st64, st64r
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import (
    BUSY,
    C_BUSY_LANE,
    C_BUSY_NODE,
    C_LANE,
    C_NODES,
    C_OPERATION,
    C_RECORD,
    C_WITHDREW,
    FULL,
    OK,
    get,
    put,
)
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import pop_gate, push_gate, push_todo
from shmtrie.layout import (
    CLAIM_OP_BITS,
    COUNTERS,
    GATE_OWNER,
    GATE_SHARED,
    L_COUNTERS,
    M32,
    N_GATE,
    N_QUARANTINED,
    N_VERSION,
    NODE_BYTES,
)

GATE_TRIES = 16
DRAIN_SPINS = 256  # about 10 us of pauses; a holder that is not running will not leave sooner
OWNER_MASK = 0xFF << GATE_OWNER
CLAIM_OP_MASK = (1 << CLAIM_OP_BITS) - 1
QUARANTINED = COUNTERS.index("quarantined")


@inl
def quarantine(ctx, a):
    """Mark a node as damaged; it counts once."""
    if cas64(a + N_QUARANTINED, 0, 1) != 0:
        count(ctx, QUARANTINED, 1)


@inl
def node_at(ctx, node):
    return get(ctx, C_NODES) + node * NODE_BYTES


@inl
def claim_value(ctx):
    """What this operation writes into the claim words of the nodes and extents that it takes."""
    return ((get(ctx, C_OPERATION) & CLAIM_OP_MASK) << 6) | (get(ctx, C_LANE) + 1)


@inl
def count(ctx, counter, n):
    """Add to a counter of the own lane (one writer: no atomic add needed)."""
    a = get(ctx, C_RECORD) + L_COUNTERS + counter * 8
    st64(a, pl64(a) + n)


# ------------------------------------------------------------------------------------------------ gates
@jit
def gate_shared(ctx, node):
    """Take a node's gate shared, listed in the record first; OK, BUSY or FULL.

    Notes
    -----
    Crash: a listed gate that was not taken is left alone by recovery (the bit is not set).
    """
    a = node_at(ctx, node) + N_GATE
    me = get(ctx, C_LANE)
    bit = 1 << me
    w = ld64(a)
    if (w & bit) != 0 or ((w >> GATE_OWNER) & 0xFF) == me + 1:
        return OK
    if push_gate(ctx, node) != OK:
        return FULL
    for _ in range(GATE_TRIES):
        w = ld64(a)
        owner = (w >> GATE_OWNER) & 0xFF
        if owner == 0:
            if cas64(a, w, w | bit) != 0:
                at(ctx, Site.GATE_SHARED)
                return OK
        else:
            put(ctx, C_BUSY_LANE, owner - 1)
        pause()
    put(ctx, C_BUSY_NODE, node)
    pop_gate(ctx)
    return BUSY


@jit
def gate_exclusive(ctx, node):
    """Take a node's gate exclusively, from nothing or from shared; OK, BUSY or FULL.

    Notes
    -----
    A withdrawal after a drain that took too long puts the node on the to-do list: a lane that emptied the
    node meanwhile may have left the reclaim to us (M15).
    """
    a = node_at(ctx, node) + N_GATE
    me = get(ctx, C_LANE)
    bit = 1 << me
    w = ld64(a)
    if ((w >> GATE_OWNER) & 0xFF) == me + 1:
        return OK
    listed = w & bit
    if listed == 0 and push_gate(ctx, node) != OK:
        return FULL
    taken = 0
    for _ in range(GATE_TRIES):
        w = ld64(a)
        owner = (w >> GATE_OWNER) & 0xFF
        if owner == 0:
            if cas64(a, w, w | ((me + 1) << GATE_OWNER)) != 0:
                taken = 1
                break
        else:
            put(ctx, C_BUSY_LANE, owner - 1)
        pause()
    if taken != 0:
        at(ctx, Site.GATE_OWNED)
        for _ in range(DRAIN_SPINS):
            # acquire: what the holders who left have written is seen by us
            others = ld64a(a) & GATE_SHARED & ~bit
            if others == 0:
                at(ctx, Site.GATE_EXCLUSIVE)
                return OK
            pause()
        others = ld64(a) & GATE_SHARED & ~bit
        if others != 0:
            put(ctx, C_BUSY_LANE, ctz(others))
        and64(a, ~OWNER_MASK)
        push_todo(ctx, node)
    put(ctx, C_BUSY_NODE, node)
    put(ctx, C_WITHDREW, taken)
    if listed == 0:
        pop_gate(ctx)
    return BUSY


@inl
def gate_drop(ctx, node):
    """Let a gate go, however it is held. The record's list is the caller's business."""
    a = node_at(ctx, node) + N_GATE
    me = get(ctx, C_LANE)
    w = ld64(a)
    mask = 1 << me
    if ((w >> GATE_OWNER) & 0xFF) == me + 1:
        mask |= OWNER_MASK
    if (w & mask) != 0:
        and64(a, ~mask)


# ------------------------------------------------------------------------------------------------ versions
@inl
def bump(a):
    """shape_version + 1, after a publication; the caller holds the gate exclusively.

    Release: who sees the new version sees the publication. The next publication, a free or a reuse of
    hashes comes after, so a reader that mixed old and new words finds another version (M6b).
    """
    v = ld64(a + N_VERSION)
    st64r(a + N_VERSION, (v & ~M32) | ((v + 1) & M32))


@inl
def bump_generation(a):
    """The node id begins another life: generation + 1 (never 0), version 0."""
    g = (lshr(ld64(a + N_VERSION), 32) + 1) & M32
    if g == 0:
        g = 1
    st64r(a + N_VERSION, g << 32)


@inl
def scratch_put(base, row, width, field, value):
    ps64(base + (row * width + field) * 8, value)


@inl
def scratch_get(base, row, width, field):
    return pl64(base + (row * width + field) * 8)
