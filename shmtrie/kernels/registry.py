"""Ranks and slots: assignment, marking, ownership; and the lane's private map from ranks to slots.

A slot is FREE, ACTIVE or DYING. Registration and marking hold the kernel lock of the registry (the caller's
business); one header word (assignment epoch | number of DYING slots) tells readers when they have to test
slots one by one (M4).
"""

from __future__ import annotations

from shmtrie.atomics import cas64, fence_full, ld32, ld64, ld64s, lshr, pl8, pl64, ps64, st32, st64, st64s
from shmtrie.kernels.build import entry, inl, jit
from shmtrie.kernels.context import (
    ALL_ONES,
    C_EPOCH_SEEN,
    C_HEADER_EPOCH,
    C_LANE,
    C_MINE,
    C_N_SLOTS,
    C_RANK_MAP,
    C_RANK_MAP_MASK,
    C_RECORDS,
    C_STALE,
    C_STATES,
    STORE,
    get,
    put,
)
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.parts import mix
from shmtrie.layout import (
    EPOCH,
    H_EPOCH,
    H_SLOTS_HIGH,
    M32,
    R_BLOCKS,
    R_EVENT_ID,
    R_STATE,
    RANK_STATE_BYTES,
    SLOT_ACTIVE,
    SLOT_DYING,
    SLOT_EPOCH,
    SLOT_FREE,
    SLOT_GENERATION,
    SLOT_OWNER,
)

AHEAD = 64  # ranks that are registered at a time
LONGEST_AHEAD = 128  # blocks of a first store for which one is


@inl
def state_at(ctx, slot):
    return get(ctx, C_STATES) + slot * RANK_STATE_BYTES + R_STATE


@inl
def slot_generation(state):
    return (state >> SLOT_GENERATION) & 0xFFFF


@inl
def slot_owner(state):
    """Lane + 1 of the owner, 0 for nobody."""
    return (state >> SLOT_OWNER) & 0xFF


@jit
def _find(ctx, worker_id, dp_rank):
    high = ld64(get(ctx, C_HEADER_EPOCH) - H_EPOCH + H_SLOTS_HIGH)
    slots = get(ctx, C_N_SLOTS)
    for slot in range(high if 0 <= high <= slots else slots):
        r = get(ctx, C_RECORDS) + slot * 16
        if (
            pl64(r) == worker_id
            and (pl64(r + 8) & M32) == dp_rank
            and (ld64(state_at(ctx, slot)) & 0xFF) == SLOT_ACTIVE
        ):
            return slot
    return -1


@entry("int64(int64, int64, int64)")
def registry_find(ctx, worker_id, dp_rank):
    """Slot of an ACTIVE rank, or -1."""
    return _find(ctx, worker_id, dp_rank)


REDATED = (1 << 20) - 1  # so many epochs


@jit
def _redate(ctx, epoch):
    """Let slots that are very old seem younger: a reader would take them for ones that were assigned after
    its call. Registry lock held.
    """
    for slot in range(get(ctx, C_N_SLOTS)):
        state = ld64s(state_at(ctx, slot))
        if ((epoch - lshr(state, SLOT_EPOCH)) & M32) > 1 << 30:
            then = (epoch - (1 << 30)) & M32
            cas64(state_at(ctx, slot), state, (state & M32) | (then << SLOT_EPOCH))


@jit
def _publish_epoch(ctx, step, more):
    """Store the epoch word, moved by `step`, with the DYING slots counted anew, and `more`; the epoch.
    Registry lock held.

    Counted, not changed by one: a process that died between its two stores left the count off.
    """
    epoch_at = get(ctx, C_HEADER_EPOCH)
    dying = more
    for slot in range(get(ctx, C_N_SLOTS)):
        dying += (ld64(state_at(ctx, slot)) & 0xFF) == SLOT_DYING
    epoch = lshr(ld64s(epoch_at), EPOCH) + step
    st64s(epoch_at, (epoch << EPOCH) | dying)
    if (epoch & REDATED) == 0:
        _redate(ctx, epoch)
    return epoch


@jit
def _next_free(ctx, slot):
    """The first free slot from `slot` on, or -1."""
    for other in range(slot, get(ctx, C_N_SLOTS)):
        if (ld64(state_at(ctx, other)) & 0xFF) == SLOT_FREE:
            return other
    return -1


@jit
def _assign(ctx, slot, worker_id, dp_rank, epoch):
    """Give a rank a free slot, in an epoch that was published before."""
    r = get(ctx, C_RECORDS) + slot * 16
    s = get(ctx, C_STATES) + slot * RANK_STATE_BYTES
    st64(r, worker_id)
    st64(r + 8, dp_rank)
    st64(s + R_BLOCKS, 0)
    st64(s + R_EVENT_ID, 0)
    st64(s + R_EVENT_ID + 8, 0)  # has_event_id, degraded
    st64(s + R_EVENT_ID + 16, 0)  # known
    high_at = get(ctx, C_HEADER_EPOCH) - H_EPOCH + H_SLOTS_HIGH
    if ld64(high_at) <= slot:
        st64(high_at, slot + 1)
    new = SLOT_ACTIVE | ((get(ctx, C_LANE) + 1) << SLOT_OWNER)
    new |= (slot_generation(ld64(state_at(ctx, slot))) << SLOT_GENERATION) | ((epoch & M32) << SLOT_EPOCH)
    st64s(state_at(ctx, slot), new)


@entry("int64(int64, int64, int64)")
def registry_assign(ctx, worker_id, dp_rank):
    """Give a rank a free slot, owned by this lane; the slot, or -1 when all are taken. Registry lock held.

    Notes
    -----
    The epoch moves before the slot is ACTIVE: a reader that started earlier tests the slot and leaves it
    out. Crash: before the last store the slot is still FREE.
    """
    slot = _next_free(ctx, 0)
    if slot >= 0:
        _assign(ctx, slot, worker_id, dp_rank, _publish_epoch(ctx, 1, 0))
    return slot


@inl
def _repeats(hashes, n):
    """Whether a hash occurs twice."""
    for i in range(1, n):
        h = pl64(hashes + i * 8)
        for j in range(i):
            if pl64(hashes + j * 8) == h:
                return True
    return False


@entry("int64(int64, int64, int64, int64, int64)")
def registry_assign_ahead(ctx, columns, first, last, out):
    """Give slots to the rank of event `first` of a batch and to those of later ones that will need one: how
    many, `AHEAD` at most. Registry lock held, room in the lane's map.

    Parameters
    ----------
    columns : int64
        As of `batch.apply_events`.
    out : int64
        Address of int64 pairs: event, slot.

    Notes
    -----
    Only ranks get one that store from the root, no hash twice, and that nobody has registered; 0 when that of
    event `first` does not. Slots go in the order of events, so that the same ranks get the last ones.
    All slots were free before the epoch moved, so who began after that has met nothing of an older rank in
    them, and one epoch does for all. Crash: as of `registry_assign`; a slot that no store came to is freed
    with the lane.
    """
    kinds, workers, ranks = pl64(columns), pl64(columns + 8), pl64(columns + 16)
    parents_given, offsets, external = pl64(columns + 24), pl64(columns + 40), pl64(columns + 56)
    slot, epoch, k = 0, 0, 0
    for i in range(first, last):
        if k == AHEAD or (k == 0 and i > first):
            break
        worker_id, dp_rank = pl64(workers + i * 8), ld32(ranks + i * 4)
        lo = pl64(offsets + i * 8)
        n = pl64(offsets + i * 8 + 8) - lo
        if (
            pl8(kinds + i) != STORE
            or pl8(parents_given + i) != 0
            or n <= 0
            or rank_slot(ctx, worker_id, dp_rank)[0] >= 0
            or _find(ctx, worker_id, dp_rank) >= 0
        ):
            continue
        if n > LONGEST_AHEAD:  # a slot may be for this one, later
            break
        if _repeats(external + lo * 8, n):
            continue
        slot = _next_free(ctx, slot)
        if slot < 0:
            break
        if k == 0:
            epoch = _publish_epoch(ctx, 1, 0)
        _assign(ctx, slot, worker_id, dp_rank, epoch)
        # before the map, as in `WriterContext.map_rank`
        st32(get(ctx, C_MINE) + slot * 4, ALL_ONES)
        _map_put(ctx, worker_id, dp_rank, slot, slot_generation(ld64(state_at(ctx, slot))))
        ps64(out + k * 16, i)
        ps64(out + k * 16 + 8, slot)
        slot += 1
        k += 1
    return k


@entry("int64(int64, int64)")
def registry_mark(ctx, slot):
    """Mark an ACTIVE slot DYING: no query that starts from now on shows it. 1 if it was done. Registry lock
    held.

    Notes
    -----
    Crash: the count of DYING slots is never too low, so readers hide what is marked; one that is too high
    makes them look at every slot, until the next registration or removal counts anew.
    """
    state = ld64s(state_at(ctx, slot))
    if (state & 0xFF) != SLOT_ACTIVE:
        return 0
    _publish_epoch(ctx, 0, 1)
    # sequentially consistent against the operation counters of the other lanes (M8)
    st64s(state_at(ctx, slot), (state & ~0xFF) | SLOT_DYING)
    at(ctx, Site.SLOT_MARKED)
    # the epoch behind it: a lane that sees it move also sees the mark (`refresh_mine`)
    _publish_epoch(ctx, 1, 0)
    # the caller looks at the operation counters next, by plain loads
    fence_full()
    return 1


@entry("int64(int64, int64)")
def registry_free(ctx, slot):
    """Free a DYING slot that was swept; its generation moves on. Registry lock held."""
    state = ld64s(state_at(ctx, slot))
    if (state & 0xFF) != SLOT_DYING:
        return 0
    st64s(state_at(ctx, slot), SLOT_FREE | (((slot_generation(state) + 1) & 0xFFFF) << SLOT_GENERATION))
    _publish_epoch(ctx, 0, 0)
    return 1


@entry("int64(int64, int64, int64, int64)")
def registry_own(ctx, slot, old, new):
    """Change the owner of an ACTIVE slot from one lane + 1 to another (0: nobody); 1 if it was done."""
    state = ld64s(state_at(ctx, slot))
    if (state & 0xFF) != SLOT_ACTIVE or slot_owner(state) != old:
        return 0
    return cas64(state_at(ctx, slot), state, (state & ~(0xFF << SLOT_OWNER)) | (new << SLOT_OWNER))


# ------------------------------------------------------------------------------------------------ private map
# entries of 16 bytes: worker id; slot + 1: 16 | generation 16 | dp rank 32 (0 = empty)
@jit
def rank_slot(ctx, worker_id, dp_rank):
    """Slot of a rank that this lane owns as far as its map knows, or -1. The caller checks the slot's
    state.
    """
    mask = get(ctx, C_RANK_MAP_MASK)
    k = mix(worker_id ^ (dp_rank * 0x2545F4914F6CDD1D)) & mask
    for _ in range(mask + 1):
        e = get(ctx, C_RANK_MAP) + k * 16
        value = pl64(e + 8)
        if value == 0:
            return -1, 0
        if pl64(e) == worker_id and lshr(value, 32) == dp_rank:
            return (value & 0xFFFF) - 1, (value >> 16) & 0xFFFF
        k = (k + 1) & mask
    return -1, 0


@jit
def _map_put(ctx, worker_id, dp_rank, slot, generation):
    mask = get(ctx, C_RANK_MAP_MASK)
    k = mix(worker_id ^ (dp_rank * 0x2545F4914F6CDD1D)) & mask
    for _ in range(mask + 1):
        e = get(ctx, C_RANK_MAP) + k * 16
        value = pl64(e + 8)
        if value == 0 or (pl64(e) == worker_id and lshr(value, 32) == dp_rank):
            ps64(e, worker_id)
            ps64(e + 8, (slot + 1) | (generation << 16) | (dp_rank << 32))
            return 1
        k = (k + 1) & mask
    return 0


@entry("int64(int64, int64, int64, int64, int64)")
def rank_map_put(ctx, worker_id, dp_rank, slot, generation):
    """Enter or renew a rank; 0 when the map is full."""
    return _map_put(ctx, worker_id, dp_rank, slot, generation)


@jit
def refresh_mine(ctx):
    """Slots were assigned or marked since the last operation: take those that are no longer this lane's out
    of its mask.

    A slot that went to another lane would otherwise pass for one whose places are in the lookup.
    """
    epoch = lshr(ld64s(get(ctx, C_HEADER_EPOCH)), EPOCH)
    if epoch == get(ctx, C_EPOCH_SEEN):
        return
    put(ctx, C_EPOCH_SEEN, epoch)
    mine = get(ctx, C_MINE)
    for slot in range(get(ctx, C_N_SLOTS)):
        if ld32(mine + slot * 4) != 0:
            state = ld64s(state_at(ctx, slot))
            if (state & 0xFF) != SLOT_ACTIVE or slot_owner(state) != get(ctx, C_LANE) + 1:
                st32(mine + slot * 4, 0)
                put(ctx, C_STALE, get(ctx, C_STALE) + 1)
