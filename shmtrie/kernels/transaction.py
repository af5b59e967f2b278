"""Operations as small transactions: begin, roll back, commit, release.

A lane's record goes IDLE -> UNDO -> REDO -> RELEASE -> IDLE.

- UNDO: gates are listed and taken, changes are announced and made; nothing that a reader counts. A busy
  gate or a
  full table rolls back (`undo_all`), and nothing was visible.
- REDO is the commit: the planned list is carried out, own words deepest first, bumps, then frees.
- RELEASE: gates go, one by one.

One operation may run several of them with the same gates (a split is one of its own); the operation counter
is odd all the while. Entries are done and undone by CAS from exactly the one value to the other and popped
one by one, so doing one twice is harmless, also for another process that finishes a dead lane's record.
"""

from __future__ import annotations

from shmtrie.atomics import add64, cas32, cas64, fence_full, ld32, ld64, ld64s, lshr, pl64, st32, st64, st64r
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.children import child_count, space_owner
from shmtrie.kernels.context import (
    C_BASE,
    C_CLAIMS,
    C_HEADER_EPOCH,
    C_N_NODES,
    C_NODE_CLAIMS,
    C_OPERATION,
    C_RECORD,
    FULL,
    OK,
    get,
    put,
)
from shmtrie.kernels.coverage import cov_max
from shmtrie.kernels.extents import claim_lines, free_claim
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import (
    ENTRY_OFFSET,
    GATES,
    N_KINDS,
    REDO,
    UNDO,
    entry_fits,
    gate_entry,
    is_child,
    listed,
    pop_undo,
    push_todo,
    redo_entry,
    undo_entry,
)
from shmtrie.kernels.protocol import bump, claim_value, gate_drop, node_at
from shmtrie.kernels.spaces import child_lock, child_unlink, end_life
from shmtrie.layout import (
    CHUNK_LINES,
    GATE_CHUNKS,
    GATES_A_CHUNK,
    H_EPOCH,
    H_RETIRED,
    L_CHUNKS,
    L_NCHUNKS,
    L_NGATES,
    L_NREDO,
    L_NUNDO,
    L_OP,
    L_PHASE,
    L_REDO_AT,
    LANE_GATES,
    LANE_LOG,
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
    M31,
    M32,
    N_QUARANTINED,
    N_START,
    N_TAIL,
    NO_SPACE,
    PHASE_IDLE,
    PHASE_REDO,
    PHASE_RELEASE,
    PHASE_UNDO,
)


@inl
def _set_phase(ctx, phase):
    st64r(get(ctx, C_RECORD) + L_PHASE, phase | (get(ctx, C_OPERATION) << 8))


@jit
def _empty_lists(r):
    for k in range(3):
        st64(r + L_NCHUNKS + k * 8, 0)
    st64(r + L_NGATES, 0)
    st64(r + L_NUNDO, 0)
    st64(r + L_NREDO, 0)
    st64(r + L_REDO_AT, 0)


@inl
def begin(ctx):
    """Start an operation: the operation counter becomes odd.

    The add is sequentially consistent, as are the loads of a slot's state behind it and, on the other side,
    the store of DYING and the load of this counter: either the remover sees the operation, or the operation
    sees DYING (M8).
    """
    r = get(ctx, C_RECORD)
    op = add64(r + L_OP, 1) + 1
    # both only after damage: every operation leaves its lists empty and the counter even
    if (op & 1) == 0:
        op = add64(r + L_OP, 1) + 1
    if (pl64(r + L_NGATES) | pl64(r + L_NUNDO) | pl64(r + L_NREDO) | pl64(r + L_REDO_AT)) != 0:
        _empty_lists(r)
    put(ctx, C_OPERATION, op >> 1)
    _set_phase(ctx, PHASE_UNDO)
    at(ctx, Site.OPERATION_BEGUN)


@inl
def finish(ctx):
    """End an operation: the record is idle, the counter even."""
    _set_phase(ctx, PHASE_IDLE)
    add64(get(ctx, C_RECORD) + L_OP, 1)
    at(ctx, Site.OPERATION_ENDED)


@inl
def is_retired(ctx):
    """Whether the segment is retired, or about to be: asked after `begin`, before anything is changed.

    Sequentially consistent against the operation counter, as is the other side: either a resizer sees this
    operation, and waits for it, or the operation sees the mark, and changes nothing.
    """
    return ld64s(get(ctx, C_HEADER_EPOCH) - H_EPOCH + H_RETIRED) != 0


@jit
def undo_one(ctx, kind, address, old, new):
    """Take back one entry of an undo list; OK, or BUSY at a space lock."""
    if kind == LOG_CAS32:
        free_claim(ctx, address, new)
        return OK
    if not entry_fits(ctx, kind, address):
        return OK
    if kind == LOG_CAS64:
        cas64(address, new, old)
    elif kind == LOG_BUMP:
        bump(address)
    elif kind == LOG_NODE:
        end_life(address)
    elif kind == LOG_CHILD and is_child(ctx, old, new) and ld64(address) == new:
        status = child_lock(ctx, old, address, new)
        if status != OK:
            return status
        child_unlink(ctx, old, address, new)
    return OK


@jit
def undo_all(ctx):
    """Roll back: everything announced since the last commit, newest first; OK, or BUSY at a space lock.

    Notes
    -----
    BUSY comes in recovery only: the entry into a live space is the last thing of a transaction that can fail,
    so a living lane never has one to take back.
    Crash at any line: the recoverer goes on with the same entry.
    """
    r = get(ctx, C_RECORD)
    n = listed(r, UNDO, pl64(r + L_NUNDO))
    while n > 0:
        e = undo_entry(ctx, r, n - 1)
        if e != 0:
            word = ld64(e)
            status = undo_one(
                ctx, lshr(word, LOG_KIND), get(ctx, C_BASE) + (word & ENTRY_OFFSET), ld64(e + 8), ld64(e + 16)
            )
            if status != OK:
                return status
        n -= 1
        st64r(r + L_NUNDO, n)
        at(ctx, Site.UNDO_DONE)
    st64(r + L_NUNDO, 0)
    st64(r + L_NREDO, 0)
    return OK


@jit
def redo_all(ctx):
    """Carry out the redo list from where it stands (the record says REDO)."""
    r = get(ctx, C_RECORD)
    n = listed(r, REDO, pl64(r + L_NREDO))
    k = max(pl64(r + L_REDO_AT), 0)
    while k < n:
        e = redo_entry(ctx, r, k)
        if e == 0:
            break
        word = ld64(e)
        kind, address = lshr(word, LOG_KIND), get(ctx, C_BASE) + (word & ENTRY_OFFSET)
        old, new = ld64(e + 8), ld64(e + 16)
        if not entry_fits(ctx, kind, address):
            kind = N_KINDS
        if kind == LOG_CAS64:
            cas64(address, old, new)
        elif kind == LOG_CAS32:
            cas32(address, old, new)
        elif kind == LOG_BUMP:
            bump(address)
        elif kind == LOG_UNLINK and is_child(ctx, new, old):
            child_unlink(ctx, new, address, old)
            # The parent is tried next, and has to be on the list before this entry counts as done: who
            # finishes a dead lane's record knows of it from here alone. The count is down before the owner is
            # read, and before the parent's coverage is (store-load; a splitter mends the owner, a remover
            # clears its word, then reads the count): one of the two sees the other.
            fence_full()
            owner = space_owner(ctx, new)
            if owner != 0:
                push_todo(ctx, owner)
        elif kind == LOG_FREE:
            at(ctx, Site.REDO_BEFORE_FREE)
            free_claim(ctx, address, old)
        k += 1
        st64r(r + L_REDO_AT, k)
        at(ctx, Site.REDO_DONE)
    # the undo list goes while the record still says REDO: nobody may undo what is committed
    st64r(r + L_NUNDO, 0)
    st64r(r + L_NREDO, 0)
    st64r(r + L_REDO_AT, 0)


@jit
def commit(ctx):
    """Nothing can fail any more: say so, carry out the redo list, stay in the operation with its gates."""
    _set_phase(ctx, PHASE_REDO)
    at(ctx, Site.REDO_SET)
    redo_all(ctx)
    _set_phase(ctx, PHASE_UNDO)


@inl
def needs_test(ctx, node):
    """A node without children whose edge has a tail that nobody covers (all of it: the node is empty)."""
    if node <= 0 or node >= get(ctx, C_N_NODES):
        return 0
    a = node_at(ctx, node)
    if child_count(ctx, a) != 0:
        return 0
    begin = ld64(a + N_START)
    if lshr(begin, 32) == NO_SPACE or ld32(get(ctx, C_NODE_CLAIMS) + node * 4) == 0:
        return 0
    if cov_max(ctx, a) >= (ld64(a + N_TAIL) & M31) - (begin & M32):
        return 0
    return 1 if ld64(a + N_QUARANTINED) == 0 else 0


@inl
def _chunk_word(r, k, i):
    """Address of the table word of chunk `i` of list `k` (0 gates, 1 undo, 2 redo)."""
    return r + L_CHUNKS + (((GATE_CHUNKS + (k - 1) * LOG_CHUNKS) if k > 0 else 0) + i) * 4


@jit
def reserve_lists(ctx, gates, undo, redo):
    """See that the lists of the record have room for so many entries in all; OK or FULL.

    Notes
    -----
    Long lists go on in extents. A chunk is entered in the record while its claim is still in the undo list,
    so one of the two frees it: claim values are not used twice. Chunks live until the gates are gone.
    """
    r = get(ctx, C_RECORD)
    for k in range(3):
        need, base, per_chunk, most = gates, LANE_GATES, GATES_A_CHUNK, GATE_CHUNKS
        if k > 0:
            need, base, per_chunk, most = (undo if k == 1 else redo), LANE_LOG, LOG_A_CHUNK, LOG_CHUNKS
        have = pl64(r + L_NCHUNKS + k * 8)
        if have < 0:
            return FULL
        while base + have * per_chunk < need:
            line = claim_lines(ctx, CHUNK_LINES) if have < most else 0
            if line == 0:
                return FULL
            st32(_chunk_word(r, k, have), line)
            have += 1
            st64r(r + L_NCHUNKS + k * 8, have)
            pop_undo(ctx)
    return OK


@jit
def _free_chunks(ctx, r):
    value = claim_value(ctx)
    for k in range(3):
        most = GATE_CHUNKS if k == GATES else LOG_CHUNKS
        for i in range(min(pl64(r + L_NCHUNKS + k * 8), most)):
            free_claim(ctx, get(ctx, C_CLAIMS) + ld32(_chunk_word(r, k, i)) * 4, value)
        st64r(r + L_NCHUNKS + k * 8, 0)


@jit
def release(ctx):
    """Let all gates go, then test the nodes that were held: what needs tidying goes to the to-do list.

    Notes
    -----
    Who releases a gate tests (M15): a lane that emptied the node while we held the gate has given up its own
    test. Its clearing came before its change of the gate word and ours comes after it, so we see it.
    Crash: the gates stay listed until their tests are noted; letting one go twice is harmless.
    """
    r = get(ctx, C_RECORD)
    _set_phase(ctx, PHASE_RELEASE)
    at(ctx, Site.RELEASE_SET)
    n = listed(r, GATES, pl64(r + L_NGATES))
    nodes = get(ctx, C_N_NODES)
    for k in range(n):
        e = gate_entry(ctx, r, n - 1 - k)
        node = ld64(e) if e != 0 else -1
        if 0 <= node < nodes:
            gate_drop(ctx, node)
        at(ctx, Site.GATE_DROPPED)
    # store-load: our gates are gone before the words are read; a lane that found one taken cleared its word
    # before it looked
    fence_full()
    for k in range(n):
        e = gate_entry(ctx, r, k)
        node = ld64(e) if e != 0 else -1
        if needs_test(ctx, node) != 0:
            push_todo(ctx, node)
    st64r(r + L_NGATES, 0)
    if pl64(r + L_NCHUNKS) + pl64(r + L_NCHUNKS + 8) + pl64(r + L_NCHUNKS + 16) != 0:
        _free_chunks(ctx, r)
    _set_phase(ctx, PHASE_UNDO)
