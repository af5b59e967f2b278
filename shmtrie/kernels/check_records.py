"""Which words open operations have their hands on, and whether the records of idle lanes are at rest (I16).

What a record names is marked: a finding about it may be an operation under way, or one that a dead lane left
for its recovery. An open record is no damage.
"""

from __future__ import annotations

from shmtrie.atomics import ld32, ld64, ld64a, lshr
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.check_words import (
    K_LANES,
    K_N_LANES,
    K_OPEN,
    L_NAMED,
    M_FREED,
    M_MADE,
    M_NAMED,
    M_SPACE,
    M_TODO,
    N_GATES,
    N_OPEN_LANES,
    Fault,
    add,
    found,
    mark_line,
    mark_node,
    marks,
)
from shmtrie.kernels.context import (
    C_BASE,
    C_CLAIMS,
    C_EXTENTS,
    C_N_LINES,
    C_N_NODES,
    C_NODE_CLAIMS,
    C_NODES,
    get,
    put,
)
from shmtrie.layout import (
    CHUNK_LINES,
    GATE_CHUNKS,
    GATE_OWNER,
    GATE_SHARED,
    GATES_A_CHUNK,
    L_CHUNKS,
    L_GATES,
    L_NCHUNKS,
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
    L_TODO_SCAN,
    L_UNDO,
    LANE_BYTES,
    LANE_GATES,
    LANE_LOG,
    LANE_TODO,
    LINE,
    LOG_A_CHUNK,
    LOG_CAS32,
    LOG_CHILD,
    LOG_CHUNKS,
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


@inl
def _is_claim(ctx, address):
    """Whether it is the address of a claim word."""
    node, line = address - get(ctx, C_NODE_CLAIMS), address - get(ctx, C_CLAIMS)
    return (address & 3) == 0 and (0 <= node < get(ctx, C_N_NODES) * 4 or 0 < line <= get(ctx, C_N_LINES) * 4)


@inl
def _first_chunk(k):
    """Where the chunks of a list begin in the record's table of them."""
    return 0 if k == 0 else GATE_CHUNKS + (k - 1) * LOG_CHUNKS


@inl
def _entry(ctx, r, k, i):
    """Address of entry `i` of list `k` of a record (0 gates, 1 undo, 2 redo); 0 when it lies nowhere."""
    at, base, size = (
        (r + L_GATES, LANE_GATES, 8) if k == 0 else (r + (L_UNDO if k == 1 else L_REDO), LANE_LOG, 24)
    )
    if i < base:
        return at + i * size
    in_chunk = GATES_A_CHUNK if k == 0 else LOG_A_CHUNK
    chunk = (i - base) // in_chunk + _first_chunk(k)
    line = ld32(r + L_CHUNKS + chunk * 4)
    if line == 0 or line + CHUNK_LINES - 1 > get(ctx, C_N_LINES):
        return 0
    return get(ctx, C_EXTENTS) + line * LINE + (i - base) % in_chunk * size


@jit
def _read_list(ctx, chk, r, k, n, making):
    """Mark what n entries of an undo or redo list name; `making`: the marks of a claim made meanwhile."""
    for i in range(n):
        e = _entry(ctx, r, k, i)
        if e == 0:
            found(chk, Fault.LANE_WORDS, (r - get(chk, K_LANES)) // LANE_BYTES, k, i, 0)
            return
        word, old, new = ld64(e), ld64(e + 8), ld64(e + 16)
        kind, address = lshr(word, LOG_KIND), get(ctx, C_BASE) + (word & OFFSET_MASK)
        bits = M_NAMED
        if kind == LOG_CAS32 and _is_claim(ctx, address) and ld32(address) == new:
            bits = making  # its claim; without it somebody else has what is named by now
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
def _length(ctx, chk, r, k):
    """Length of a list, its chunks marked; -1 if the words make no sense."""
    n, chunks = (
        ld64(r + (L_NGATES if k == 0 else L_NUNDO if k == 1 else L_NREDO)),
        ld64(r + L_NCHUNKS + k * 8),
    )
    if chunks < 0 or chunks > (GATE_CHUNKS if k == 0 else LOG_CHUNKS):
        return -1
    for i in range(chunks):
        mark_line(ctx, chk, ld32(r + L_CHUNKS + (_first_chunk(k) + i) * 4), L_NAMED)
    most = LANE_GATES + chunks * GATES_A_CHUNK if k == 0 else LANE_LOG + chunks * LOG_A_CHUNK
    return n if 0 <= n <= most else -1


@jit
def _read_record(ctx, chk, lane, r):
    op, word = ld64a(r + L_OP), ld64(r + L_PHASE)
    phase = word & 0xFF
    todo = ld64(r + L_NTODO)
    gates, undo, redo = _length(ctx, chk, r, 0), _length(ctx, chk, r, 1), _length(ctx, chk, r, 2)
    if gates < 0 or undo < 0 or redo < 0 or todo < 0 or todo > LANE_TODO or phase > PHASE_RELEASE:
        found(chk, Fault.LANE_WORDS, lane, word, todo, 0)
    scan = ld64(r + L_TODO_SCAN)
    if scan < 0 or scan > get(ctx, C_N_NODES):
        found(chk, Fault.LANE_WORDS, lane, word, scan, 0)
        scan = 0
    for node in range(1, scan):
        mark_node(ctx, chk, node, M_TODO)
    for k in range(min(todo, LANE_TODO)):
        mark_node(ctx, chk, ld64(r + L_TODO + k * 8), M_TODO)
    change = ld64(r + L_SPACE_CHANGE)
    if (op & 1) != 0 or phase != PHASE_IDLE:
        put(chk, K_OPEN, get(chk, K_OPEN) | (1 << lane))
        add(chk, N_OPEN_LANES, 1)
        found(chk, Fault.LANE_OPEN, lane, phase, op, 1)
    else:
        chunks = ld64(r + L_NCHUNKS) + ld64(r + L_NCHUNKS + 8) + ld64(r + L_NCHUNKS + 16)
        if gates + undo + redo + chunks + ld64(r + L_REDO_AT) != 0 or change != 0:
            found(chk, Fault.LANE_LISTS, lane, gates | (undo << 32), redo | (chunks << 32), 0)
    for i in range(gates):
        e = _entry(ctx, r, 0, i)
        if e != 0:
            mark_node(ctx, chk, ld64(e), M_NAMED)
    _read_list(ctx, chk, r, 1, undo, M_NAMED | M_MADE if phase == PHASE_UNDO else M_NAMED)
    _read_list(ctx, chk, r, 2, redo, M_NAMED)
    if change != 0:
        mark_node(ctx, chk, ld64(r + L_SPACE), M_SPACE)
        mark_node(ctx, chk, ld64(r + L_SPACE_VALUE) & M32, M_NAMED)


@jit
def read_records(ctx, chk):
    """Mark what the lanes' records name."""
    for lane in range(get(chk, K_N_LANES)):
        _read_record(ctx, chk, lane, get(chk, K_LANES) + lane * LANE_BYTES)


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
        found(chk, Fault.GATE_STRAY, node, word, 0, 0)
    elif (marks(chk, node) & M_NAMED) == 0:
        found(chk, Fault.GATE_UNLISTED, node, word, 0, 0)
    else:
        found(chk, Fault.GATE_HELD, node, word, 0, 1)
    add(chk, N_GATES, 1)
    return 1
