"""A query from its first hash to its result: the walk, then slots become ranks.

Lock-free, writes nothing to the segment, never waits, never raises on any content of it.
"""

from __future__ import annotations

from shmtrie.atomics import ctz, fence_acquire, ld32, ld64, ld64a, lshr, pl64, ps64, st32
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import (
    C_DEPTHS,
    C_HASHES,
    C_HEADER_EPOCH,
    C_OUT_DEPTHS,
    C_OUT_HASHES,
    C_OUT_RECORDS,
    C_RECORDS,
    C_SLOTS,
    C_STATES,
    get,
)
from shmtrie.kernels.walk import walk
from shmtrie.layout import EPOCH, M32, R_STATE, RANK_STATE_BYTES, SLOT_ACTIVE, SLOT_EPOCH
from shmtrie.vectors import copy_line, copy_record, count16, gt16, zero_line


@inl
def _emit(ctx, slot, k, details):
    depths = get(ctx, C_DEPTHS)
    depth = ld32(depths + slot * 4)
    if depth == 0:
        return k
    st32(depths + slot * 4, 0)
    st32(get(ctx, C_SLOTS) + k * 4, slot)
    st32(get(ctx, C_OUT_DEPTHS) + k * 4, depth)
    copy_record(get(ctx, C_OUT_RECORDS) + k * 16, get(ctx, C_RECORDS) + slot * 16)
    if details:
        ps64(get(ctx, C_OUT_HASHES) + k * 8, pl64(get(ctx, C_HASHES) + slot * 8))
    return k + 1


@inl
def _emit_chunk(ctx, slot, k):
    """Sixteen slots side by side, each of which has a depth."""
    depths = get(ctx, C_DEPTHS) + slot * 4
    records, out = get(ctx, C_RECORDS) + slot * 16, get(ctx, C_OUT_RECORDS) + k * 16
    for i in range(0, 256, 64):
        copy_line(out + i, records + i)
    copy_line(get(ctx, C_OUT_DEPTHS) + k * 4, depths)
    count16(get(ctx, C_SLOTS) + k * 4, slot)
    zero_line(depths)
    return k + 16


@inl
def was_assigned(ctx, slot, epoch):
    """Whether a slot's rank is ACTIVE and was assigned before a call that began in this epoch."""
    state = ld64a(get(ctx, C_STATES) + slot * RANK_STATE_BYTES + R_STATE)
    age = (lshr(epoch, EPOCH) - lshr(state, SLOT_EPOCH)) & M32
    return (state & 0xFF) == SLOT_ACTIVE and age < (1 << 31)


@jit
def _filter(ctx, n, epoch, details):
    """Ranks are being assigned or removed: keep those that are ACTIVE and were assigned before the call."""
    slots, records, depths = get(ctx, C_SLOTS), get(ctx, C_OUT_RECORDS), get(ctx, C_OUT_DEPTHS)
    hashes = get(ctx, C_OUT_HASHES)
    k = 0
    for i in range(n):
        slot = ld32(slots + i * 4)
        if was_assigned(ctx, slot, epoch):
            st32(slots + k * 4, slot)
            st32(depths + k * 4, ld32(depths + i * 4))
            copy_record(records + k * 16, records + i * 16)
            if details:
                ps64(hashes + k * 8, pl64(hashes + i * 8))
            k += 1
    return k


@inl
def find(ctx, q, n, early, details):
    """Ranks that hold a prefix of the query: their number; records, depths (and hashes) are in the OUT areas.

    Parameters
    ----------
    q, n : int64
        Address of n local hashes, 0 <= n <= MAX_STORE.
    early, details : int64
        Stop once a single rank is left; give the last matched external hash.
    """
    if n <= 0:
        return 0
    epoch = ld64a(get(ctx, C_HEADER_EPOCH))
    seen, dense = walk(ctx, q, n, early, details)
    k = 0
    if dense != 0:
        depths = get(ctx, C_DEPTHS)
        for i in range(0, dense, 16):
            m = gt16(depths + i * 4, -1, 0)
            if m == 0xFFFF and not details:
                k = _emit_chunk(ctx, i, k)
                continue
            while m != 0:
                k = _emit(ctx, i + ctz(m), k, details)
                m &= m - 1
    else:
        for i in range(seen):
            k = _emit(ctx, ld32(get(ctx, C_SLOTS) + i * 4), k, details)
    # slots become ranks inside the call (M4): only when one was assigned or marked meanwhile, or is dying,
    # is each one tested
    fence_acquire()
    if ld64(get(ctx, C_HEADER_EPOCH)) != epoch or (epoch & 0xFFFF) != 0:
        k = _filter(ctx, k, epoch, details)
    return k
