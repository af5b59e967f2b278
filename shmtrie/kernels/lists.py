"""The lists of a lane's record: gates, undo, redo, to-do.

Entries are written before the length that makes them count. The first three go on in extents, *chunks*, when
a transaction is a long one. Words of a record are read back by who wrote them, and by recoverers. Either way
a number that damage has changed must not become an address: lengths are cut to what there is room for, and an
entry may lie nowhere.
"""

from __future__ import annotations

from shmtrie.atomics import ld32, lshr, pl64, st64, st64r
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import (
    C_BASE,
    C_CHILDREN,
    C_EXTENTS,
    C_FULL_TABLE,
    C_N_BUCKETS,
    C_N_LINES,
    C_N_NODES,
    C_N_SLOTS,
    C_N_SPANS,
    C_NODES,
    C_RECORD,
    C_SPANS,
    C_STATES,
    FULL,
    OK,
    TABLE_LOG,
    get,
    put,
)
from shmtrie.kernels.hooks import Site, at
from shmtrie.layout import (
    CHUNK_LINES,
    GATE_CHUNKS,
    GATES_A_CHUNK,
    L_CHUNKS,
    L_GATES,
    L_NCHUNKS,
    L_NGATES,
    L_NREDO,
    L_NTODO,
    L_NUNDO,
    L_REDO,
    L_TODO,
    L_TODO_SCAN,
    L_UNDO,
    LANE_GATES,
    LANE_LOG,
    LANE_TODO,
    LINE,
    LOG_A_CHUNK,
    LOG_BUMP,
    LOG_CAS32,
    LOG_CAS64,
    LOG_CHILD,
    LOG_CHUNKS,
    LOG_FREE,
    LOG_KIND,
    LOG_NODE,
    LOG_UNLINK,
    M32,
    NODE_BYTES,
    RANK_STATE_BYTES,
    SPAN_BYTES,
)

GATES, UNDO, REDO = 0, 1, 2
N_KINDS = LOG_UNLINK + 1
ENTRY_OFFSET = (1 << LOG_KIND) - 1  # of an entry's first word


@jit
def _room_in_chunks(r, k):
    """Entries that list `k` has room for with its chunks; without, when their number
    is impossible.
    """
    chunks = pl64(r + L_NCHUNKS + k * 8)
    if chunks < 0 or chunks > (GATE_CHUNKS if k == GATES else LOG_CHUNKS):
        chunks = 0
    return LANE_GATES + chunks * GATES_A_CHUNK if k == GATES else LANE_LOG + chunks * LOG_A_CHUNK


@inl
def listed(r, k, n):
    """The length of list `k`, whose word says `n`, within its room."""
    # both lists have 4,096 entries in the record itself; a negative number looks long as well
    return n if lshr(n, 12) == 0 else min(max(n, 0), _room_in_chunks(r, k))


@jit
def _in_chunk(ctx, r, k, i):
    """Address of entry `i` of what goes on in the chunks of list `k`; 0 where there is no room."""
    per_chunk, width, first = LOG_A_CHUNK, 24, GATE_CHUNKS + (k - 1) * LOG_CHUNKS
    if k == GATES:
        per_chunk, width, first = GATES_A_CHUNK, 8, 0
    if i < 0 or i >= _room_in_chunks(r, k) - LANE_LOG:
        return 0
    line = ld32(r + L_CHUNKS + (first + i // per_chunk) * 4)
    if line == 0 or line + CHUNK_LINES - 1 > get(ctx, C_N_LINES):
        return 0
    return get(ctx, C_EXTENTS) + line * LINE + (i % per_chunk) * width


@inl
def undo_entry(ctx, r, i):
    """Address of entry `i` of the undo list, or 0."""
    if lshr(i, 12) == 0:
        return r + L_UNDO + i * 24
    return _in_chunk(ctx, r, UNDO, i - LANE_LOG)


@inl
def redo_entry(ctx, r, i):
    """Address of entry `i` of the redo list, or 0."""
    if lshr(i, 12) == 0:
        return r + L_REDO + i * 24
    return _in_chunk(ctx, r, REDO, i - LANE_LOG)


@inl
def gate_entry(ctx, r, i):
    """Address of entry `i` of the gate list, or 0."""
    if lshr(i, 12) == 0:
        return r + L_GATES + i * 8
    return _in_chunk(ctx, r, GATES, i - LANE_GATES)


@inl
def _fill(ctx, e, kind, address, old, new):
    """Write one entry of either log; it counts once the list's length says so."""
    st64(e, (kind << LOG_KIND) | (address - get(ctx, C_BASE)))
    st64(e + 8, old)
    st64(e + 16, new)


@inl
def log_undo(ctx, kind, address, old, new):
    """Announce a change; OK or FULL. The change itself comes after."""
    r = get(ctx, C_RECORD)
    n = pl64(r + L_NUNDO)
    e = undo_entry(ctx, r, n)
    if e == 0:
        put(ctx, C_FULL_TABLE, TABLE_LOG)
        return FULL
    _fill(ctx, e, kind, address, old, new)
    # release: a recoverer that sees the length sees the entry
    st64r(r + L_NUNDO, n + 1)
    at(ctx, Site.UNDO_LOGGED)
    return OK


@inl
def pop_undo(ctx):
    a = get(ctx, C_RECORD) + L_NUNDO
    st64r(a, pl64(a) - 1)


@inl
def log_redo(ctx, kind, address, old, new):
    """Plan a change that the commit makes; OK or FULL."""
    r = get(ctx, C_RECORD)
    n = pl64(r + L_NREDO)
    e = redo_entry(ctx, r, n)
    if e == 0:
        put(ctx, C_FULL_TABLE, TABLE_LOG)
        return FULL
    _fill(ctx, e, kind, address, old, new)
    st64r(r + L_NREDO, n + 1)
    return OK


@inl
def todo_length(r):
    """Length of the to-do list; an impossible one counts as full."""
    n = pl64(r + L_NTODO)
    return n if 0 <= n <= LANE_TODO else LANE_TODO


@jit
def push_todo(ctx, node):
    """Remember a node whose reclaim test has to come later. A full list stands for all nodes: they are then
    tested one after the other, from the highest id down.
    """
    r = get(ctx, C_RECORD)
    n = todo_length(r)
    for k in range(n):
        if pl64(r + L_TODO + k * 8) == node:
            return
    if n < LANE_TODO:
        st64(r + L_TODO + n * 8, node)
        st64r(r + L_NTODO, n + 1)
    else:
        st64r(r + L_TODO_SCAN, get(ctx, C_N_NODES))


@inl
def has_todo(ctx):
    r = get(ctx, C_RECORD)
    return pl64(r + L_NTODO) + pl64(r + L_TODO_SCAN) != 0


@inl
def push_gate(ctx, node):
    r = get(ctx, C_RECORD)
    n = pl64(r + L_NGATES)
    e = gate_entry(ctx, r, n)
    if e == 0:
        put(ctx, C_FULL_TABLE, TABLE_LOG)
        return FULL
    st64(e, node)
    st64r(r + L_NGATES, n + 1)
    return OK


@inl
def pop_gate(ctx):
    a = get(ctx, C_RECORD) + L_NGATES
    st64r(a, pl64(a) - 1)


# ------------------------------------------------------------------------------------- what entries name
@inl
def _lies_in(address, first, n_bytes):
    return 0 <= address - first < n_bytes


@inl
def entry_fits(ctx, kind, address):
    """Whether a list entry of this kind may change what it names (claims: see `free_claim`)."""
    at = address - get(ctx, C_NODES)
    if 0 <= at < get(ctx, C_N_NODES) * NODE_BYTES:
        if kind == LOG_CAS64:
            return (at & 7) == 0
        return (kind == LOG_BUMP or kind == LOG_NODE) and (at & (NODE_BYTES - 1)) == 0
    if kind == LOG_FREE:
        return True
    if kind == LOG_CAS64 or kind == LOG_CAS32:
        return (address & (7 if kind == LOG_CAS64 else 3)) == 0 and (
            _lies_in(address, get(ctx, C_EXTENTS) + LINE, get(ctx, C_N_LINES) * LINE)
            or _lies_in(address, get(ctx, C_STATES), get(ctx, C_N_SLOTS) * RANK_STATE_BYTES)
            or _lies_in(address, get(ctx, C_SPANS), get(ctx, C_N_SPANS) * SPAN_BYTES)
            or is_child_word(ctx, address)
        )
    return (kind == LOG_CHILD or kind == LOG_UNLINK) and is_child_word(ctx, address)


@inl
def is_child_word(ctx, address):
    """Whether it is the address of an entry of the child table."""
    return (address & 7) == 0 and _lies_in(address, get(ctx, C_CHILDREN), get(ctx, C_N_BUCKETS) * LINE)


@inl
def is_child(ctx, space, entry):
    """Whether a space and the node of a child entry exist."""
    nodes = get(ctx, C_N_NODES)
    return 0 <= space < nodes and 0 < (entry & M32) < nodes
