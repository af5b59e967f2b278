"""The best matches of a query: only the slots of the greatest depth are looked at one by one.

Lock-free and bounded as `find` is.
"""

from __future__ import annotations

from shmtrie.atomics import ctz, fence_acquire, ld32, ld64, ld64a, pl64, st32
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import (
    C_DEPTHS,
    C_HEADER_EPOCH,
    C_OUT_DEPTHS,
    C_OUT_RECORDS,
    C_RECORDS,
    C_SLOTS,
    C_STATES,
    get,
)
from shmtrie.kernels.find import was_assigned
from shmtrie.kernels.walk import walk
from shmtrie.layout import M32, R_BLOCKS, RANK_STATE_BYTES
from shmtrie.vectors import copy_record, eq16, largest, zero_line


@inl
def _compare(x, y):
    """-1, 0 or 1 as rank record x is below, equal to or above y, by (worker_id, dp_rank), unsigned."""
    a, b = pl64(x) ^ (-1 << 63), pl64(y) ^ (-1 << 63)
    if a == b:
        a, b = pl64(x + 8) & M32, pl64(y + 8) & M32
    return (a > b) - (a < b)


@inl
def _is_among(record, among, n):
    """Whether a record is in n sorted ones."""
    low, high = 0, n
    while low < high:
        middle = (low + high) >> 1
        side = _compare(among + middle * 16, record)
        if side == 0:
            return True
        if side < 0:
            low = middle + 1
        else:
            high = middle
    return False


@inl
def _is_before(ctx, slot, other):
    """Whether a slot's rank goes before another one of the same depth: fewer blocks, then the lower rank."""
    states, records = get(ctx, C_STATES), get(ctx, C_RECORDS)
    x = ld64(states + slot * RANK_STATE_BYTES + R_BLOCKS)
    y = ld64(states + other * RANK_STATE_BYTES + R_BLOCKS)
    if x != y:
        return x < y
    return _compare(records + slot * 16, records + other * 16) < 0


@inl
def _greatest(ctx, seen, dense):
    """The greatest depth of the slots."""
    depths, slots = get(ctx, C_DEPTHS), get(ctx, C_SLOTS)
    top = largest(depths, (dense + 15) & ~15)
    if dense == 0:
        for i in range(seen):
            top = max(top, ld32(depths + ld32(slots + i * 4) * 4))
    return top


@inl
def _pick(ctx, slot, best, among, n_among):
    """The better one of a slot and the best so far; a slot that is not among those that count is zeroed."""
    if among != 0 and not _is_among(get(ctx, C_RECORDS) + slot * 16, among, n_among):
        st32(get(ctx, C_DEPTHS) + slot * 4, 0)
        return best
    if best < 0 or _is_before(ctx, slot, best):
        return slot
    return best


@jit
def _best_at(ctx, seen, dense, depth, among, n_among):
    """The best slot of a depth, -1 when none of them counts."""
    depths, slots = get(ctx, C_DEPTHS), get(ctx, C_SLOTS)
    best = -1
    for i in range(0, dense, 16):
        m = eq16(depths + i * 4, -1, depth)
        while m != 0:
            best = _pick(ctx, i + ctz(m), best, among, n_among)
            m &= m - 1
    if dense == 0:
        for i in range(seen):
            slot = ld32(slots + i * 4)
            if ld32(depths + slot * 4) == depth:
                best = _pick(ctx, slot, best, among, n_among)
    return best


@jit
def _select(ctx, seen, dense, epoch, count, among, n_among):
    depths, header = get(ctx, C_DEPTHS), get(ctx, C_HEADER_EPOCH)
    records, out, out_depths = get(ctx, C_RECORDS), get(ctx, C_OUT_RECORDS), get(ctx, C_OUT_DEPTHS)
    k = 0
    while k < count:
        depth = _greatest(ctx, seen, dense)
        if depth == 0:
            break
        slot = _best_at(ctx, seen, dense, depth, among, n_among)
        if slot < 0:
            continue  # all of that depth are zeroed
        copy_record(out + k * 16, records + slot * 16)
        st32(out_depths + k * 4, depth)
        st32(depths + slot * 4, 0)
        # slots become ranks inside the call (M4), as in `find`: the record is read before the test
        fence_acquire()
        if (ld64(header) != epoch or (epoch & 0xFFFF) != 0) and not was_assigned(ctx, slot, epoch):
            continue
        k += 1
    slots = get(ctx, C_SLOTS)
    for i in range(0, dense, 16):
        zero_line(depths + i * 4)
    if dense == 0:
        for i in range(seen):
            st32(depths + ld32(slots + i * 4) * 4, 0)
    return k


@inl
def find_top(ctx, q, n, count, among, n_among):
    """The best matches, best first: their number; records and depths are in the OUT areas.

    Parameters
    ----------
    q, n : int64
        Address of n local hashes, 0 <= n <= MAX_STORE.
    count : int64
        At most so many.
    among, n_among : int64
        Address of so many rank records, sorted; only these count. 0: all do.
    """
    if n <= 0 or count <= 0:
        return 0
    epoch = ld64a(get(ctx, C_HEADER_EPOCH))
    seen, dense = walk(ctx, q, n, 0, 0)
    return _select(ctx, seen, dense, epoch, count, among, n_among)
