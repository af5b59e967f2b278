"""The readers' walk, hand over hand from the root.

A node's tail, edge and coverage are loaded between two looks at its version, and its parent's generation
and tail are looked at once more behind it. What changed is read again, at most `REDOS` times; then the walk
stops with what is proven (a lower bound) and counts a give-up.

Depths are kept in a scratch array by slot. Before a node is counted no depth exceeds its start, and the
ranks that go on are those whose depth is the start: so the effect of a node that has to be read again is
undone by min(depth, start).
"""

from __future__ import annotations

from shmtrie.atomics import ctz, fence_acquire, ld32, ld64, ld64a, lshr, pl64, ps64, st32
from shmtrie.kernels.aliases import alias_hash
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.children import child_hash, child_tag, home_bucket, other_bucket, prefetch_child
from shmtrie.kernels.context import (
    C_DEPTHS,
    C_EXTENTS,
    C_GIVEUPS,
    C_HASHES,
    C_N_NODES,
    C_N_SLOTS,
    C_NEW_HASHES,
    C_REDOS,
    C_SEED,
    C_SLOTS,
    get,
    put,
)
from shmtrie.kernels.coverage import cov_find, head_fits, head_form, head_words, word_cutoff
from shmtrie.kernels.edges import edge_fits, mismatch
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.protocol import node_at
from shmtrie.layout import (
    COV_ALIAS,
    COV_SLOT,
    FORM_LIST,
    INLINE_WORDS,
    LINE,
    M31,
    M32,
    N_COVERAGE,
    N_EDGE,
    N_INLINE,
    N_START,
    N_TAIL,
    N_VERSION,
)
from shmtrie.vectors import clamp16, dense_first, dense_next, eq8, eq16

REDOS = 64


STEPS = 1 << 21  # node steps and redos of one query


@inl
def _apply_words(x, words, depths, slots, n_slots, seen, start, matched, length):
    """Count a node's inline or list words: (ranks seen, does any cover the whole edge)."""
    alive = 0
    for k in range(words):
        w = ld64(x + k * 8)
        slot = lshr(w, COV_SLOT)
        cut = word_cutoff(w)
        if cut != 0 and slot < n_slots:
            if start == 0:
                if ld32(depths + slot * 4) == 0:
                    st32(slots + seen * 4, slot)
                    seen += 1
                st32(depths + slot * 4, min(cut, matched))
                alive |= cut >= length
            elif ld32(depths + slot * 4) == start:
                st32(depths + slot * 4, start + min(cut, matched))
                alive |= cut >= length
    return seen, alive


@inl
def _apply_dense(x, words, depths, slots, seen, dense, start, matched, length):
    """Count a node's dense coverage: does any rank cover the whole edge."""
    alive = 0
    if start == 0:
        for k in range(0, words, 16):
            alive |= dense_first(x + k * 4, depths + k * 4, matched, length)
    elif dense != 0:
        for k in range(0, min(words, dense), 16):
            alive |= dense_next(x + k * 4, depths + k * 4, start, matched, length)
    else:
        for k in range(seen):
            slot = ld32(slots + k * 4)
            if slot < words and ld32(depths + slot * 4) == start:
                cut = word_cutoff(ld32(x + slot * 4))
                if cut != 0:
                    st32(depths + slot * 4, start + min(cut, matched))
                    alive |= cut >= length
    return alive


@inl
def _clamp(depths, slots, seen, dense, limit):
    """Undo a node that begins at `limit`."""
    for k in range(0, dense, 16):
        clamp16(depths + k * 4, limit)
    if dense == 0:
        for k in range(seen):
            slot = ld32(slots + k * 4)
            if ld32(depths + slot * 4) > limit:
                st32(depths + slot * 4, limit)


@jit
def _last_hashes(ctx, a, start, edge, seen, dense):
    """The rank's own hash of its last matched block in this node, for every rank that has one in it."""
    depths, slots, hashes = get(ctx, C_DEPTHS), get(ctx, C_SLOTS), get(ctx, C_NEW_HASHES)
    x = get(ctx, C_EXTENTS) + (edge & M32) * LINE + lshr(edge, 32) * 8
    for k in range(dense if dense != 0 else seen):
        slot = k if dense != 0 else ld32(slots + k * 4)
        depth = ld32(depths + slot * 4)
        if depth > start:
            _, low, _ = cov_find(ctx, a, slot)
            h = 0
            if (low & COV_ALIAS) != 0:
                _, h = alias_hash(ctx, a, slot, depth - 1 - start)
            elif depth - 1 - start < lshr(edge, 32):
                h = ld64(x + (depth - 1 - start) * 8)
            ps64(hashes + slot * 8, h)


@jit
def _keep_hashes(ctx, start, seen, dense):
    depths, slots = get(ctx, C_DEPTHS), get(ctx, C_SLOTS)
    hashes, kept = get(ctx, C_NEW_HASHES), get(ctx, C_HASHES)
    for k in range(dense if dense != 0 else seen):
        slot = k if dense != 0 else ld32(slots + k * 4)
        if ld32(depths + slot * 4) > start:
            ps64(kept + slot * 8, pl64(hashes + slot * 8))


@inl
def _count_at(depths, slots, seen, dense, depth):
    """Ranks whose depth is exactly `depth`."""
    n = 0
    if dense != 0:
        for k in range(0, dense, 16):
            m = eq16(depths + k * 4, -1, depth)
            while m != 0:
                n += 1
                m &= m - 1
    else:
        for k in range(seen):
            n += ld32(depths + ld32(slots + k * 4) * 4) == depth
    return n


@inl
def walk(ctx, q, n, early, details):
    """Leave in the scratch array how deep each rank covers the query: (ranks listed, dense size).

    A dense size other than 0 says that the depths of slots [0, size) count, else those of the listed slots.
    """
    nodes_end = get(ctx, C_N_NODES)
    extents, seed, n_slots = get(ctx, C_EXTENTS), get(ctx, C_SEED), get(ctx, C_N_SLOTS)
    depths, slots = get(ctx, C_DEPTHS), get(ctx, C_SLOTS)
    root = node_at(ctx, 0)
    seen, dense, redos = 0, 0, 0
    start, space = 0, 0
    parent, parent_tail, parent_generation = root, ld64(root + N_TAIL), lshr(ld64a(root + N_VERSION), 32)
    h = child_hash(seed, 0, pl64(q))
    for _ in range(STEPS):
        tag = child_tag(h)
        bucket = home_bucket(ctx, h)
        m = eq8(bucket, ~M32, tag)
        second = 0
        matched, torn, alive, length, ahead = 0, 0, 0, 0, 0
        next_parent, next_tail, next_version = 0, 0, 0
        while True:
            if m == 0:
                if second != 0:
                    break
                second = 1
                bucket = other_bucket(ctx, h)
                m = eq8(bucket, ~M32, tag)
                continue
            node = ld64(bucket + ctz(m) * 8) & M32
            m &= m - 1
            if node == 0 or node >= nodes_end:
                continue
            a = node_at(ctx, node)
            version = ld64a(a + N_VERSION)
            # acquire: the place comes last when a node is made, so the words read next are of this life
            begin = ld64a(a + N_START)
            tail = ld64(a + N_TAIL)
            at(ctx, Site.READER_LOADED)
            edge, head = ld64(a + N_EDGE), ld64(a + N_COVERAGE)
            length = (tail & M31) - start
            if begin != start | (space << 32):
                continue  # a stale or foreign entry
            matched = 0
            if 0 < length <= lshr(edge, 32) and edge_fits(ctx, edge):
                limit = n - start
                if limit > length:
                    limit = length
                    ahead = child_hash(seed, lshr(tail, 32), pl64(q + (start + length) * 8))
                    prefetch_child(ctx, ahead)
                matched = mismatch(extents + (edge & M32) * LINE, q + start * 8, limit)
            if matched == 0:
                # No verdict on words that do not belong together, or on an extent that is somebody else's by
                # now: when a publication came between, the node is read again, else a rank would dip.
                fence_acquire()
                if ld64(a + N_VERSION) != version:
                    torn = 1
                    break
                continue
            at(ctx, Site.READER_NODE)
            words = head_words(head)
            if head == 0:
                seen, alive = _apply_words(
                    a + N_INLINE, INLINE_WORDS, depths, slots, n_slots, seen, start, matched, length
                )
            elif not head_fits(ctx, head):
                torn = 1
            else:
                x = extents + (head & M32) * LINE
                if head_form(head) == FORM_LIST:
                    seen, alive = _apply_words(x, words, depths, slots, n_slots, seen, start, matched, length)
                else:
                    words = min(words, n_slots)
                    if start == 0:
                        dense = words
                    alive = _apply_dense(x, words, depths, slots, seen, dense, start, matched, length)
            if details:
                _last_hashes(ctx, a, start, edge, seen, dense)
            at(ctx, Site.READER_CHECK)
            fence_acquire()
            if (
                ld64(a + N_VERSION) != version
                or ld64(a + N_TAIL) != tail
                or ld64(parent + N_TAIL) != parent_tail
                or lshr(ld64(parent + N_VERSION), 32) != parent_generation
            ):
                torn = 1
            next_parent, next_tail, next_version = a, tail, version
            break
        if torn != 0:
            _clamp(depths, slots, seen, dense, start)
            redos += 1
            put(ctx, C_REDOS, get(ctx, C_REDOS) + 1)
            if redos >= REDOS:
                put(ctx, C_GIVEUPS, get(ctx, C_GIVEUPS) + 1)
                break
            if start == 0:
                seen, dense = 0, 0
            elif (
                ld64(parent + N_TAIL) != parent_tail
                or lshr(ld64(parent + N_VERSION), 32) != parent_generation
            ):
                # the parent is another one now: from the root
                _clamp(depths, slots, seen, dense, 0)
                seen, dense = 0, 0
                start, space = 0, 0
                parent, parent_tail = root, ld64(root + N_TAIL)
                parent_generation = lshr(ld64a(root + N_VERSION), 32)
            h = child_hash(seed, space, pl64(q + start * 8))
            continue
        if matched == 0:
            break
        if details:
            _keep_hashes(ctx, start, seen, dense)
        start += matched
        if alive == 0 or matched < length or start >= n:
            break
        if early and _count_at(depths, slots, seen, dense, start) == 1:
            break
        h = ahead
        space = lshr(next_tail, 32)
        parent, parent_tail, parent_generation = next_parent, next_tail, lshr(next_version, 32)
    return seen, dense
