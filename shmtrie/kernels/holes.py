"""Removal in a segment with exact holes: what lies behind a removed block stays.

A rank covers [start, cutoff) of an edge. A run of blocks that ends at the cutoff takes the cutoff along, one
that begins at the start moves the start; one in between is made the end of a node first: the edge is split
behind it, a complete step of its own. So a removal may need space; where that lacks the rank is cut as usual,
which is counted, and it is degraded.
"""

from __future__ import annotations

from shmtrie.atomics import fence_acquire, ld64, ld64a, pl64, ps64
from shmtrie.kernels.aliases import own_hashes
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import BUSY, C_SEEN, CORRUPT, FULL, HOLE, OK, RETRY, get
from shmtrie.kernels.coverage import cut_short, word_begin
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.places import own_word
from shmtrie.kernels.protocol import node_at
from shmtrie.kernels.remove import TRIES, cut
from shmtrie.kernels.resolve import resolve
from shmtrie.kernels.split import split_apart
from shmtrie.layout import M32, N_START, N_VERSION

# a row of the plan: two words, largest first: node (not 0); depth 32 | number of the hash in the event 21
DEPTH_AT = 21
INDEX = (1 << DEPTH_AT) - 1


@inl
def _less(rows, i, j):
    x, y = pl64(rows + i * 16), pl64(rows + j * 16)
    return x < y or (x == y and pl64(rows + i * 16 + 8) < pl64(rows + j * 16 + 8))


@inl
def _swap(rows, i, j):
    for k in range(0, 16, 8):
        x = pl64(rows + i * 16 + k)
        ps64(rows + i * 16 + k, pl64(rows + j * 16 + k))
        ps64(rows + j * 16 + k, x)


@jit
def _sift(rows, i, n):
    """Let row i sink in a heap with the least on top."""
    for _ in range(32):
        k = 2 * i + 1
        if k >= n:
            break
        if k + 1 < n and _less(rows, k + 1, k):
            k += 1
        if not _less(rows, k, i):
            break
        _swap(rows, i, k)
        i = k


@jit
def _plan(ctx, slot, rows, external, n):
    """Rows of the event's hashes, node by node, the deepest first; those that nobody knows come last."""
    for i in range(n):
        node, depth = resolve(ctx, slot, pl64(external + i * 8), 2, 0)
        ps64(rows + i * 16, node)
        ps64(rows + i * 16 + 8, (depth << DEPTH_AT) | i)
    for i in range(n // 2 - 1, -1, -1):
        _sift(rows, i, n)
    for end in range(n - 1, 0, -1):
        _swap(rows, 0, end)
        _sift(rows, 0, end)


@jit
def _remove_run(ctx, slot, rows, i, n, external):
    """Remove the blocks of rows from i on that lie side by side: (OK or BUSY, how many)."""
    taken = 1
    for _ in range(TRIES):
        index = pl64(rows + i * 16 + 8) & INDEX
        node, depth = resolve(ctx, slot, pl64(external + index * 8), 1, 0)
        if node == 0:
            return OK, 1
        a = node_at(ctx, node)
        version = ld64a(a + N_VERSION)
        start, low = ld64(a + N_START) & M32, own_word(ctx, a, slot)
        x, held = own_hashes(ctx, a, slot, low)
        status, lo, taken = RETRY, depth, 1
        if 0 <= depth - start < held:
            if ld64(x + (depth - start) * 8) == pl64(external + index * 8):
                status = OK
            # not below its beginning: an alias extent still has the hashes that went from there
            while i + taken < n and lo - start > word_begin(low):
                below = pl64(external + (pl64(rows + (i + taken) * 16 + 8) & INDEX) * 8)
                if ld64(x + (lo - 1 - start) * 8) != below:
                    break
                lo -= 1
                taken += 1
        fence_acquire()
        if status != OK or ld64(a + N_VERSION) != version:
            continue
        at(ctx, Site.REMOVE_PLANNED)
        status = cut(ctx, slot, node, lo, depth, 1)
        if status == HOLE:
            status = split_apart(ctx, node, depth + 1)
            if status == OK or status == CORRUPT:  # (a node that was set aside has no blocks)
                continue
            if status == FULL:
                status = cut(ctx, slot, node, lo, depth, 0)
                if status == OK:
                    cut_short(ctx, slot)
        if status != RETRY:
            return status, taken
    return BUSY, taken


@jit
def remove_exactly(ctx, slot, external, n):
    """Remove blocks of a rank by its own hashes, these and no others; OK or BUSY. Unknown hashes are skipped.

    The blocks of one event count together, the deepest first: what takes the end of the rank's coverage, in
    whatever order, splits nothing.

    Notes
    -----
    The scratch table of stores has room for two words a hash; it is left zeroed, as stamps of old stores are
    looked for in there. Crash: one transaction a run, and one a split; applied again it completes.
    """
    rows = get(ctx, C_SEEN)
    if n == 1:
        ps64(rows, 1)
        ps64(rows + 8, 0)
    else:
        _plan(ctx, slot, rows, external, n)
    i, status = 0, OK
    while i < n and status == OK:
        if pl64(rows + i * 16) == 0:
            break
        status, taken = _remove_run(ctx, slot, rows, i, n, external)
        i += taken
    for k in range(2 * n):
        ps64(rows + k * 8, 0)
    return status
