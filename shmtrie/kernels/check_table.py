"""Node slots, the spaces they own, and the child table (I2, I3, I5, I16, I19)."""

from __future__ import annotations

from shmtrie.atomics import ctz, ld32, ld64, ld64a, lshr, st32
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.check_records import check_gate
from shmtrie.kernels.check_words import (
    K_ENTRIES,
    K_LISTED,
    K_OWNERS,
    M_ENTRY,
    M_FREED,
    M_LIVE,
    M_MADE,
    M_NAMED,
    N_ENTRIES,
    N_LIVE,
    N_RECORDED,
    Fault,
    add,
    found,
    in_motion,
    mark_node,
    marks,
)
from shmtrie.kernels.children import child_hash, child_tag, home_bucket, other_bucket
from shmtrie.kernels.context import (
    C_CHILDREN,
    C_EXTENTS,
    C_HEADER_EPOCH,
    C_N_BUCKETS,
    C_N_LINES,
    C_N_NODES,
    C_NODE_CLAIMS,
    C_NODES,
    C_SEED,
    get,
    put,
)
from shmtrie.layout import (
    H_EPOCH,
    H_NODES_HIGH,
    INTERNAL,
    LINE,
    M32,
    N_COVERAGE,
    N_EDGE,
    N_GATE,
    N_QUARANTINED,
    N_START,
    N_TAIL,
    N_VERSION,
    NO_SPACE,
    NODE_BYTES,
)
from shmtrie.vectors import eq8, eq16


@inl
def node_line(ctx, node):
    return get(ctx, C_NODES) + node * NODE_BYTES


@inl
def claim_of(ctx, node):
    return ld32(get(ctx, C_NODE_CLAIMS) + node * 4)


@inl
def u32_at(chk, k, i):
    return get(chk, k) + i * 4


# ------------------------------------------------------------------------------------------------ slots
@jit
def _highest(ctx):
    """One more than the highest claimed node id."""
    claims = get(ctx, C_NODE_CLAIMS)
    total = get(ctx, C_N_NODES)
    group = (total + 15) // 16 - 1  # the section is padded to whole pages
    while group > 0 and eq16(claims + group * 64, -1, 0) == 0xFFFF:
        group -= 1
    node = min(group * 16 + 15, total - 1)
    while node > 0 and claim_of(ctx, node) == 0:
        node -= 1
    return node + 1


@jit
def _own_space(chk, node, space, bits):
    """Enter the owner of a space: there is one. A node that is being made gives way."""
    at = u32_at(chk, K_OWNERS, space)
    other = ld32(at) - 1
    if other < 0 or (marks(chk, other) & M_MADE) != 0:
        st32(at, node + 1)
    elif (bits & M_MADE) == 0:
        found(chk, Fault.SPACE_TWICE, node, space, other, in_motion(chk, node) | in_motion(chk, other))


@jit
def _read_slot(ctx, chk, node, listed):
    """One node slot: is it live, and which space does it own."""
    a = node_line(ctx, node)
    bits = marks(chk, node)
    claim = claim_of(ctx, node)
    version = ld64a(a + N_VERSION)
    begin, tail = ld64(a + N_START), ld64(a + N_TAIL)
    generation = lshr(version, 32)
    hangs = lshr(begin, 32) != NO_SPACE
    moving = in_motion(chk, node) | check_gate(chk, node, ld64(a + N_GATE))
    if ld64(a + N_QUARANTINED) != 0:
        found(chk, Fault.QUARANTINED, node, claim, version, 0)
    if generation == 0:  # never used: it will own the space of its own number
        if claim != 0 and (bits & M_NAMED) == 0:
            found(chk, Fault.NODE_GENERATION, node, begin, tail, moving)
        space = node
    else:
        space = lshr(tail, 32)
        if space == 0 or space >= listed:
            found(chk, Fault.SPACE_RANGE, node, space, version, moving)
            space = -1
        if claim == 0 and hangs:
            found(chk, Fault.FREE_HANGS, node, lshr(begin, 32), version, moving)
    if space >= 0:
        _own_space(chk, node, space, bits)
    if claim == 0:
        return
    if hangs and generation != 0 and (bits & M_MADE) == 0:
        mark_node(ctx, chk, node, M_LIVE)
        add(chk, N_LIVE, 1)
    elif (bits & (M_MADE | M_FREED | M_NAMED)) != 0:
        add(chk, N_RECORDED, 1)
    elif generation != 0:
        found(chk, Fault.LEAK_NODE, node, claim, version, moving)


@jit
def read_slots(ctx, chk):
    """The root, and every slot that was ever used."""
    root = node_line(ctx, 0)
    tail, version, begin = ld64(root + N_TAIL), ld64(root + N_VERSION), ld64(root + N_START)
    is_root = tail == INTERNAL and version == 1 << 32 and begin == -1 << 32 and claim_of(ctx, 0) == M32
    if not is_root or ld64(root + N_EDGE) != 0 or ld64(root + N_COVERAGE) != 0:
        found(chk, Fault.BAD_ROOT, 0, tail, version, 0)
    mark_node(ctx, chk, 0, M_LIVE)
    check_gate(chk, 0, ld64(root + N_GATE))
    st32(u32_at(chk, K_OWNERS, 0), 1)
    high = ld64(get(ctx, C_HEADER_EPOCH) - H_EPOCH + H_NODES_HIGH)
    claimed = _highest(ctx)
    total = get(ctx, C_N_NODES)
    if high < claimed or high > total:
        found(chk, Fault.HIGH_NODES, claimed - 1, high, total, in_motion(chk, claimed - 1))
    listed = min(max(high, claimed), total)
    put(chk, K_LISTED, listed)
    for node in range(1, listed):
        _read_slot(ctx, chk, node, listed)


# ------------------------------------------------------------------------------------------------ entries
@inl
def first_of(ctx, a):
    """(1, first local hash of a node's edge), or (0, 0) when its edge word leads nowhere."""
    line = ld64(a + N_EDGE) & M32
    if line == 0 or line > get(ctx, C_N_LINES):
        return 0, 0
    return 1, ld64(get(ctx, C_EXTENTS) + line * LINE)


@jit
def _same_key(ctx, bucket, tag, node, begin, local):
    """Another node of a bucket with the same tag, space, start and first hash, or 0."""
    m = eq8(bucket, ~M32, tag)
    while m != 0:
        other = ld64(bucket + ctz(m) * 8) & M32
        m &= m - 1
        if 0 < other < get(ctx, C_N_NODES) and other != node:
            b = node_line(ctx, other)
            has, first = first_of(ctx, b)
            if has != 0 and first == local and ld64(b + N_START) == begin:
                return other
    return 0


@jit
def _check_entry(ctx, chk, bucket, word):
    node = word & M32
    total = get(ctx, C_N_NODES)
    if node == 0 or node >= total:
        found(chk, Fault.ENTRY_RANGE, (bucket - get(ctx, C_CHILDREN)) // LINE, word, 0, 0)
        return
    a = node_line(ctx, node)
    version = ld64a(a + N_VERSION)
    begin = ld64(a + N_START)
    space = lshr(begin, 32)
    has, local = first_of(ctx, a)
    moving = in_motion(chk, node) | (ld64(a + N_GATE) != 0)
    if claim_of(ctx, node) == 0 or space >= total or has == 0:
        found(chk, Fault.ENTRY_DEAD, node, word, version, moving)
        return
    add(chk, N_ENTRIES, 1)
    st32(u32_at(chk, K_ENTRIES, space), ld32(u32_at(chk, K_ENTRIES, space)) + 1)
    h = child_hash(get(ctx, C_SEED), space, local)
    home, other = home_bucket(ctx, h), other_bucket(ctx, h)
    if (word & ~M32) != child_tag(h) or (bucket != home and bucket != other):
        found(chk, Fault.ENTRY_PLACE, node, word, version, moving)
        return
    if (marks(chk, node) & M_ENTRY) != 0:
        found(chk, Fault.ENTRY_TWICE, node, word, version, moving)
    mark_node(ctx, chk, node, M_ENTRY)
    twin = _same_key(ctx, home, child_tag(h), node, begin, local)
    if twin == 0:
        twin = _same_key(ctx, other, child_tag(h), node, begin, local)
    if twin > node:
        found(chk, Fault.KEY_TWICE, node, twin, version, moving | in_motion(chk, twin))


@jit
def check_entries(ctx, chk):
    """Every entry of the child table: it names a live node, from one of the two buckets of its key."""
    table = get(ctx, C_CHILDREN)
    for bucket in range(get(ctx, C_N_BUCKETS)):
        line = table + bucket * LINE
        m = ~eq8(line, -1, 0) & 0xFF
        while m != 0:
            word = ld64(line + ctz(m) * 8)
            m &= m - 1
            if word != 0:
                _check_entry(ctx, chk, line, word)
