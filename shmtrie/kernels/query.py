"""Kernels that Python calls to ask the index: one query, many queries, the best match."""

from __future__ import annotations

from shmtrie.atomics import ld32, pl64, ps64, st32
from shmtrie.kernels.best import find_top
from shmtrie.kernels.build import entry
from shmtrie.kernels.context import C_OUT_DEPTHS, C_OUT_RECORDS, get
from shmtrie.kernels.find import find
from shmtrie.vectors import copy_record


@entry("int64(int64, int64, int64, int64)")
def find_plain(ctx, q, n, early):
    """Number of ranks; records and depths are in the OUT areas. `early`: stops once a single rank is left."""
    return find(ctx, q, n, early, 0)


@entry("int64(int64, int64, int64)")
def find_details(ctx, q, n):
    """The same, with the last matched external hashes."""
    return find(ctx, q, n, 0, 1)


@entry("int64(int64, int64, int64, int64, int64, int64)")
def find_best(ctx, q, n, count, among, n_among):
    """Number of best matches, best first, in the OUT areas; see `find_top`."""
    return find_top(ctx, q, n, count, among, n_among)


@entry("UniTuple(int64, 2)(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def find_many(ctx, q, offsets, first, last, out_offsets, records, depths, room):
    """Queries [first, last) in one call: (next query, results so far).

    Parameters
    ----------
    q, offsets : int64
        Addresses of the local hashes and of the int64 offsets of the queries in them.
    out_offsets, records, depths : int64
        Addresses of int64 result offsets (that of query `first` is set), 16-byte records and u32 depths.
    room : int64
        Results that fit; stops before a query whose results may not.
    """
    k = pl64(out_offsets + first * 8)
    for i in range(first, last):
        lo = pl64(offsets + i * 8)
        n = find(ctx, q + lo * 8, pl64(offsets + i * 8 + 8) - lo, 0, 0)
        if k + n > room:
            return i, k
        for j in range(n):
            copy_record(records + (k + j) * 16, get(ctx, C_OUT_RECORDS) + j * 16)
            st32(depths + (k + j) * 4, ld32(get(ctx, C_OUT_DEPTHS) + j * 4))
        k += n
        ps64(out_offsets + i * 8 + 8, k)
    return last, k
