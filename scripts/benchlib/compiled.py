"""Loops around the find kernel, compiled here: what a find costs without Python in front of it.

Results go to the context's own areas, as a native caller's reused buffer would be filled.
"""

from __future__ import annotations

import time
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from shmtrie import Index
from shmtrie.atomics import pl64, ps64
from shmtrie.contexts import Context
from shmtrie.kernels.find import find

from .passes import Figures, percentiles
from .workload import Workload

_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))
_STATIC_QUERIES = 20_000
_HOT_QUERIES = 400
_HOT_TURNS = 200
_STRIDE = 7919


@numba.njit(nogil=True, error_model="numpy")
def _run(ctx, hashes, offsets, order, n, turns):  # type: ignore[no-untyped-def]
    """Every query of `order`, `turns` times in a row; the number of results."""
    total = 0
    for i in range(n):
        k = pl64(order + i * 8)
        lo = pl64(offsets + k * 8)
        length = pl64(offsets + k * 8 + 8) - lo
        for _ in range(turns):
            total += find(ctx, hashes + lo * 8, length, 0, 0)
    return total


@numba.njit(nogil=True, error_model="numpy")
def _run_timed(ctx, hashes, offsets, n, first, count, stamp, out):  # type: ignore[no-untyped-def]
    """`count` queries, striding through all; nanoseconds of each at `out`."""
    total = 0
    for i in range(count):
        k = (first + i * _STRIDE) % n
        lo = pl64(offsets + k * 8)
        length = pl64(offsets + k * 8 + 8) - lo
        _clock_gettime(np.int32(1), types.uintp(stamp))
        start = pl64(stamp) * 1_000_000_000 + pl64(stamp + 8)
        total += find(ctx, hashes + lo * 8, length, 0, 0)
        _clock_gettime(np.int32(1), types.uintp(stamp))
        ps64(out + i * 8, pl64(stamp) * 1_000_000_000 + pl64(stamp + 8) - start)
    return total


class KernelFinds:
    """Asks queries of a workload without Python.

    Parameters
    ----------
    index : Index
        Attached.
    hashes, offsets : ndarray
        The queries, as `find_matches_batch` takes them.
    """

    def __init__(self, index: Index, hashes: npt.NDArray[np.uint64], offsets: npt.NDArray[np.int64]) -> None:
        self._context = Context(index.segment)
        self._hashes, self._offsets = hashes, offsets
        self._stamp, self._out = np.zeros(2, np.int64), np.zeros(4096, np.int64)
        self._first = 0

    @classmethod
    def of(cls, index: Index, workload: Workload) -> KernelFinds:
        """All queries of a workload, in order."""
        return cls(index, *workload.query_arrays(workload.queries))

    def seconds(self, order: npt.NDArray[np.int64], turns: int = 1) -> float:
        """Duration of the queries `order`, each so many times in a row."""
        order = np.ascontiguousarray(order, np.int64)
        addresses = (self._hashes.ctypes.data, self._offsets.ctypes.data, order.ctypes.data)
        start = time.perf_counter()
        _run(self._context.address, *addresses, len(order), turns)
        return time.perf_counter() - start

    def timed(self, count: int = 4096) -> npt.NDArray[np.int64]:
        """Nanoseconds of each of the next queries; the array is used again by the next call."""
        count = min(count, len(self._out))
        n = len(self._offsets) - 1
        addresses = (self._hashes.ctypes.data, self._offsets.ctypes.data)
        ends = (self._first, count, self._stamp.ctypes.data, self._out.ctypes.data)
        _run_timed(self._context.address, *addresses, n, *ends)
        self._first = (self._first + count * _STRIDE) % n
        return self._out[:count]


def shuffled(n: int) -> npt.NDArray[np.int64]:
    """A fixed order of n queries, at most as many as the native program takes."""
    return np.random.default_rng(1).permutation(n)[:_STATIC_QUERIES].astype(np.int64)


def kernel_pass(index: Index, workload: Workload) -> Figures:
    """Static: all queries on the final tree in shuffled order, per query; hot: one query again and again."""
    finds = KernelFinds.of(index, workload)
    order = shuffled(len(workload.queries))
    finds.seconds(order[:64])
    static = [finds.seconds(order) for _ in range(3)]
    hot = []
    for k in order[:_HOT_QUERIES]:
        one = np.array([k], np.int64)
        finds.seconds(one, 20)
        hot.append(finds.seconds(one, _HOT_TURNS) / _HOT_TURNS)
    hashes, offsets = workload.query_arrays(workload.queries[order])
    batch: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        index.find_matches_batch(hashes, offsets)
        batch.append(time.perf_counter() - start)
    timed = np.concatenate([finds.timed().copy() for _ in range(4)])
    return {
        "static_ns": float(np.median(static)) / len(order) * 1e9,
        "batch_ns": float(np.median(batch)) / len(order) * 1e9,
        "hot_ns": float(np.median(hot)) * 1e9,
        **percentiles(timed, "kernel_find"),
    }


def warm_up() -> Any:
    """Compile; a few seconds."""
    _run.compile("int64(int64, int64, int64, int64, int64, int64)")
    _run_timed.compile("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
