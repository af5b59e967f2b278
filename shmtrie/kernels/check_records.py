"""Which words open operations have their hands on, and whether the records of idle lanes are at rest (I16).

What a record names is marked: a finding about it may be an operation under way, or one that a dead lane left
for its recovery. An open record is no damage.
"""

from __future__ import annotations

from shmtrie.atomics import ld64, ld64a, lshr
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.check_words import (
    GATE_HELD,
    GATE_STRAY,
    GATE_UNLISTED,
    K_LANES,
    K_N_LANES,
    K_OPEN,
    L_NAMED,
    LANE_LISTS,
    LANE_OPEN,
    LANE_WORDS,
    M_FREED,
    M_MADE,
    M_NAMED,
    M_SPACE,
    M_TODO,
    N_GATES,
    N_OPEN_LANES,
    add,
    found,
    mark_line,
    mark_node,
    marks,
)
from shmtrie.kernels.context import (
    C_BASE,
    C_CLAIMS,
    C_N_LINES,
    C_N_NODES,
    C_NODE_CLAIMS,
    C_NODES,
    get,
    put,
)
from shmtrie.layout import (
    GATE_OWNER,
    GATE_SHARED,
    L_GATES,
    L_NGATES,
    L_NREDO,
    L_NTODO,
    L_NUNDO,
    L_OP,
    L_PHASE,
    L_REDO,
    L_REDO_AT,
    L_SPACE,
    L_SPACE_CHANGE,
    L_SPACE_VALUE,
    L_TODO,
    L_UNDO,
    LANE_BYTES,
    LANE_GATES,
    LANE_LOG,
    LANE_TODO,
    LOG_CAS32,
    LOG_CHILD,
    LOG_FREE,
    LOG_KIND,
    LOG_UNLINK,
    M32,
    MAX_LANES,
    N_COUNT,
    N_OWNER,
    NODE_BYTES,
    PHASE_IDLE,
    PHASE_RELEASE,
    PHASE_UNDO,
)

OFFSET_MASK = (1 << LOG_KIND) - 1


@jit
def _name(ctx, chk, address, bits):
    """Mark what a listed address belongs to: a node, the space with a node slot's number, a line."""
    nodes, claims, lines = get(ctx, C_NODES), get(ctx, C_NODE_CLAIMS), get(ctx, C_CLAIMS)
    if nodes <= address < nodes + get(ctx, C_N_NODES) * NODE_BYTES:
        field = (address - nodes) % NODE_BYTES
        is_space = field == N_OWNER or field == N_COUNT
        mark_node(ctx, chk, (address - nodes) // NODE_BYTES, M_SPACE if is_space else M_NAMED)
    elif claims <= address < claims + get(ctx, C_N_NODES) * 4:
        mark_node(ctx, chk, (address - claims) >> 2, bits)
    elif lines < address <= lines + get(ctx, C_N_LINES) * 4:
        mark_line(ctx, chk, (address - lines) >> 2, L_NAMED)


@jit
def _read_list(ctx, chk, entries, n, making):
    """Mark what n entries of an undo or redo list name; `making`: the marks of a claim made meanwhile."""
    for k in range(n):
        e = entries + k * 24
        word, old, new = ld64(e), ld64(e + 8), ld64(e + 16)
        kind, address = lshr(word, LOG_KIND), get(ctx, C_BASE) + (word & OFFSET_MASK)
        bits = M_NAMED
        if kind == LOG_CAS32:
            bits = making
        elif kind == LOG_FREE:
            bits = M_NAMED | M_FREED
        _name(ctx, chk, address, bits)
        if kind == LOG_CHILD:
            mark_node(ctx, chk, old, M_SPACE)
            mark_node(ctx, chk, new & M32, M_NAMED)
        elif kind == LOG_UNLINK:
            mark_node(ctx, chk, new, M_SPACE)
            mark_node(ctx, chk, old & M32, M_NAMED)


@inl
def _length(r, field, limit):
    """(length of a list, 1 if the word makes no sense)."""
    n = ld64(r + field)
    return (n, 0) if 0 <= n <= limit else (0, 1)


@jit
def read_records(ctx, chk):
    """Mark what the lanes' records name."""
    for lane in range(get(chk, K_N_LANES)):
        r = get(chk, K_LANES) + lane * LANE_BYTES
        op, word = ld64a(r + L_OP), ld64(r + L_PHASE)
        phase = word & 0xFF
        is_open = (op & 1) != 0 or phase != PHASE_IDLE
        gates, x = _length(r, L_NGATES, LANE_GATES)
        undo, y = _length(r, L_NUNDO, LANE_LOG)
        redo, z = _length(r, L_NREDO, LANE_LOG)
        todo, w = _length(r, L_NTODO, LANE_TODO)
        if x + y + z + w != 0 or phase > PHASE_RELEASE:
            found(chk, LANE_WORDS, lane, word, x + 2 * y + 4 * z + 8 * w, 0)
        for k in range(todo):
            mark_node(ctx, chk, ld64(r + L_TODO + k * 8), M_TODO)
        if is_open:
            put(chk, K_OPEN, get(chk, K_OPEN) | (1 << lane))
            add(chk, N_OPEN_LANES, 1)
            found(chk, LANE_OPEN, lane, phase, op, 1)
        elif gates + undo + redo + ld64(r + L_REDO_AT) != 0 or ld64(r + L_SPACE_CHANGE) != 0:
            found(chk, LANE_LISTS, lane, gates | (undo << 16) | (redo << 32), ld64(r + L_SPACE_CHANGE), 0)
        for k in range(gates):
            mark_node(ctx, chk, ld64(r + L_GATES + k * 8), M_NAMED)
        _read_list(ctx, chk, r + L_UNDO, undo, M_NAMED | M_MADE if phase == PHASE_UNDO else M_NAMED)
        _read_list(ctx, chk, r + L_REDO, redo, M_NAMED)
        if ld64(r + L_SPACE_CHANGE) != 0:
            mark_node(ctx, chk, ld64(r + L_SPACE), M_SPACE)
            mark_node(ctx, chk, ld64(r + L_SPACE_VALUE) & M32, M_NAMED)


@jit
def check_gate(chk, node, word):
    """Who holds a gate is in an operation and has it on its list; 1 if somebody does."""
    if word == 0:
        return 0
    owner = lshr(word, GATE_OWNER)
    holders = word & GATE_SHARED
    if 0 < owner <= MAX_LANES:
        holders |= 1 << (owner - 1)
    if owner > MAX_LANES or (holders & ~get(chk, K_OPEN)) != 0:
        found(chk, GATE_STRAY, node, word, 0, 0)
    elif (marks(chk, node) & M_NAMED) == 0:
        found(chk, GATE_UNLISTED, node, word, 0, 0)
    else:
        found(chk, GATE_HELD, node, word, 0, 1)
    add(chk, N_GATES, 1)
    return 1
