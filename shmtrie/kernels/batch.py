"""Kernels that Python calls to change the index: events, one or packed, sweeps, what was left for later."""

from __future__ import annotations

from shmtrie.atomics import ld32, ld64, ld64s, lshr, pl8, pl64, ps8, st32, st64, st64r
from shmtrie.kernels.build import entry, inl, jit
from shmtrie.kernels.children import child_hash, prefetch_child
from shmtrie.kernels.context import (
    BUSY,
    C_BUSY_LANE,
    C_FINAL,
    C_HOLES,
    C_LANE,
    C_N_NODES,
    C_NEEDED,
    C_RECORD,
    C_SEED,
    C_SEEN_MASK,
    C_STATES,
    CLEAR,
    CORRUPT,
    FULL,
    GROW,
    GROW_ALIASES,
    NO_BLOCK,
    OK,
    REMOVE,
    RETIRED,
    ROWS,
    SCRATCH,
    STORE,
    TODO,
    UNKNOWN_RANK,
    UNSUPPORTED,
    get,
    put,
)
from shmtrie.kernels.holes import remove_exactly
from shmtrie.kernels.lists import has_todo, push_todo, todo_length
from shmtrie.kernels.lookup import lookup_prefetch
from shmtrie.kernels.parts import lookup_room
from shmtrie.kernels.protocol import count, node_at
from shmtrie.kernels.reclaim import work_todo
from shmtrie.kernels.registry import rank_slot, refresh_mine, slot_generation, slot_owner, state_at
from shmtrie.kernels.remove import remove, sweep
from shmtrie.kernels.store import store
from shmtrie.kernels.transaction import begin, finish, is_retired
from shmtrie.layout import (
    COUNTERS,
    L_NTODO,
    L_TODO,
    L_TODO_SCAN,
    N_TAIL,
    R_DEGRADED,
    R_EVENT_ID,
    R_HAS_EVENT_ID,
    R_KNOWN,
    RANK_STATE_BYTES,
    SLOT_ACTIVE,
)

FIRST_HASHES = 2  # of the next event, that are asked for
EVENTS, STORED, REMOVED = (COUNTERS.index(x) for x in ("events", "blocks_stored", "blocks_removed"))
REJECTED = COUNTERS.index("rejected_parent") - 1  # + status
REJECTED_CORRUPT = COUNTERS.index("rejected_corrupt")


@inl
def _room(ctx, kind, external, n):
    """OK when the private tables have room for a store or removal of n blocks, else GROW or SCRATCH with the
    need.
    """
    if kind != STORE and (kind != REMOVE or get(ctx, C_HOLES) == 0):
        return OK
    if kind == STORE and lookup_room(ctx, external, n) == 0:
        return GROW
    if 2 * n > get(ctx, C_SEEN_MASK) + 1:
        put(ctx, C_NEEDED, n)
        return SCRATCH
    return OK


@jit
def _mark(ctx, slot, kind, status, event_id, has_event_id):
    """What an event leaves in its rank's state."""
    s = get(ctx, C_STATES) + slot * RANK_STATE_BYTES
    if status == OK:
        if kind == CLEAR:
            st32(s + R_DEGRADED, 0)
        if has_event_id != 0:
            st64(s + R_EVENT_ID, event_id)
            st32(s + R_HAS_EVENT_ID, 1)
    elif ld32(s + R_KNOWN) != 0:
        st32(s + R_DEGRADED, 1)


@inl
def _is_held_up(ctx, status):
    """Another lane is in the way, or may be: a dead one has reserved what a table lacks."""
    return status == BUSY or (status == FULL and get(ctx, C_FINAL) == 0)


@jit
def apply_one(ctx, kind, worker_id, dp_rank, has_parent, parent, local, external, n, event_id, has_event_id):
    """Apply one event of a rank that this lane owns; a status, or UNKNOWN_RANK, GROW, SCRATCH (nothing
    done).
    """
    slot, generation = rank_slot(ctx, worker_id, dp_rank)
    if slot < 0:
        return UNKNOWN_RANK
    room = _room(ctx, kind, external, n)
    if room != OK:
        return room
    put(ctx, C_BUSY_LANE, -1)  # nobody yet
    begin(ctx)
    # M8: the slot is looked at while the operation counter is odd, so a remover waits for us or we see its
    # mark
    state = ld64s(state_at(ctx, slot))
    if (
        (state & 0xFF) != SLOT_ACTIVE
        or slot_generation(state) != generation
        or slot_owner(state) != get(ctx, C_LANE) + 1
    ):
        finish(ctx)
        return UNKNOWN_RANK
    if is_retired(ctx):
        finish(ctx)
        return RETIRED
    refresh_mine(ctx)
    if has_todo(ctx):
        work_todo(ctx)
    known_at = get(ctx, C_STATES) + slot * RANK_STATE_BYTES + R_KNOWN
    status = OK
    if kind == STORE:
        status = store(ctx, slot, has_parent, parent, local, external, n)
        if status == OK:
            count(ctx, STORED, n)
    elif ld32(known_at) == 0:
        status = NO_BLOCK if kind == REMOVE else OK
    elif kind == REMOVE:
        if get(ctx, C_HOLES) != 0:
            status = remove_exactly(ctx, slot, external, n)
        else:
            status = remove(ctx, slot, external, n)
        count(ctx, REMOVED, n)
    else:
        status, _ = sweep(ctx, slot, 1)
    # not settled yet: what a rank and the counters say of it is the caller's to decide
    if status == ROWS or status == GROW_ALIASES or _is_held_up(ctx, status):
        finish(ctx)
        return status
    # inside the operation: afterwards the slot may be another rank's
    _mark(ctx, slot, kind, status, event_id, has_event_id)
    finish(ctx)
    count(ctx, EVENTS, 1)
    if status != OK:
        count(ctx, REJECTED_CORRUPT if status == CORRUPT else REJECTED + status, 1)
    return status


@entry("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def apply_event(
    ctx, kind, worker_id, dp_rank, has_parent, parent, local, external, n, event_id, has_event_id
):
    """Apply one event; see `apply_one`."""
    return apply_one(
        ctx, kind, worker_id, dp_rank, has_parent, parent, local, external, n, event_id, has_event_id
    )


@inl
def _look_ahead(ctx, kind, has_parent, parent, local, external, n):
    """Ask for the memory that an event begins with: it comes while the event before is applied."""
    if kind == STORE and has_parent != 0:
        lookup_prefetch(ctx, parent)
    elif kind == STORE and n > 0:
        space = lshr(ld64(node_at(ctx, 0) + N_TAIL), 32)
        prefetch_child(ctx, child_hash(get(ctx, C_SEED), space, pl64(local)))
    if kind != CLEAR:
        for k in range(min(n, FIRST_HASHES)):
            lookup_prefetch(ctx, pl64(external + k * 8))


@entry("UniTuple(int64, 2)(int64, int64, int64, int64, int64)")
def apply_events(ctx, columns, first, last, statuses):
    """Apply packed events [first, last): (index of the first one not dealt with, why it stopped there).

    Parameters
    ----------
    columns : int64
        Address of the addresses of the columns of an EventBatch: kind u8, worker_id u64, dp_rank u32,
        has_parent u8, parent u64, offsets i64, local u64, external u64, event_id u64.
    statuses : int64
        Address of one u8 an event.

    Notes
    -----
    Stops, with nothing of that event done, at a rank that the lane's map does not know, at a private table
    that has to grow, at a full table (a dead lane may be what fills it) and at BUSY; these are the caller's
    to settle.
    """
    kinds, workers, ranks = pl64(columns), pl64(columns + 8), pl64(columns + 16)
    parents_given, parents, offsets = pl64(columns + 24), pl64(columns + 32), pl64(columns + 40)
    local, external, ids = pl64(columns + 48), pl64(columns + 56), pl64(columns + 64)
    for i in range(first, last):
        lo, hi = pl64(offsets + i * 8), pl64(offsets + i * 8 + 8)
        if i + 1 < last:
            _look_ahead(
                ctx,
                pl8(kinds + i + 1),
                pl8(parents_given + i + 1),
                pl64(parents + i * 8 + 8),
                local + hi * 8,
                external + hi * 8,
                pl64(offsets + i * 8 + 16) - hi,
            )
        if pl8(kinds + i) == 0:
            ps8(statuses + i, UNSUPPORTED)
            continue
        status = apply_one(
            ctx,
            pl8(kinds + i),
            pl64(workers + i * 8),
            ld32(ranks + i * 4),
            pl8(parents_given + i),
            pl64(parents + i * 8),
            local + lo * 8,
            external + lo * 8,
            hi - lo,
            pl64(ids + i * 8),
            1,
        )
        if status >= GROW or status == RETIRED or _is_held_up(ctx, status):
            return i, status
        ps8(statuses + i, status)
    return last, OK


@entry("UniTuple(int64, 2)(int64, int64, int64)")
def sweep_slot(ctx, slot, first):
    """Take a slot's rank out of all nodes, from node id `first` on: (status, where to go on)."""
    begin(ctx)
    if is_retired(ctx):
        finish(ctx)
        return RETIRED, first
    refresh_mine(ctx)
    status, node = sweep(ctx, slot, first)
    finish(ctx)
    return status, node


@entry("int64(int64)")
def tidy_up(ctx):
    """Work off the to-do list, or a part of it: OK, or TODO when something is left (call again)."""
    begin(ctx)
    if not is_retired(ctx):
        work_todo(ctx)
    finish(ctx)
    return TODO if has_todo(ctx) else OK


@entry("int64(int64, int64)")
def take_todo(ctx, other):
    """Take over the to-do list of a lane that was recovered; `other` is the context of its recovery.

    Crash: what is on both lists is tested twice, which is harmless.
    """
    r = get(other, C_RECORD)
    n = todo_length(r)
    for k in range(n):
        push_todo(ctx, ld64(r + L_TODO + k * 8))
    if pl64(r + L_TODO_SCAN) != 0:
        st64r(get(ctx, C_RECORD) + L_TODO_SCAN, get(ctx, C_N_NODES))
    st64r(r + L_TODO_SCAN, 0)
    st64r(r + L_NTODO, 0)
    return n
