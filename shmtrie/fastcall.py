"""The hot calls of readers as builtins (see `pyapi`): `find`, and the best matches.

They take any one-dimensional contiguous buffer of 8-byte integers, or a list or tuple of ints, and return
the raw bytes of a result; for everything else None, and the caller converts the argument or raises.

`plain_finds` is the fallback with the same contract, for interpreters where the trick is not available;
tests run both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .atomics import pl64, ps64
from .contexts import Context
from .kernels import query
from .kernels.best import find_top
from .kernels.build import centry, inl
from .kernels.context import C_OUT_DEPTHS, C_OUT_RECORDS, get
from .kernels.find import find
from .layout import MAX_STORE
from .pyapi import (
    F_BYTES,
    F_CONTEXT,
    F_ENTERED,
    F_NONE,
    F_SCRATCH,
    F_VIEW,
    F_VIEW_2,
    as_unsigned,
    available,
    bytes_data,
    bytes_size,
    copy_bytes,
    hashes_in,
    int_in,
    is_plain,
    make_builtin,
    new_bytes,
    new_frame,
    none,
    release_buffer,
    type_of,
)
from .segment import Segment

__all__ = ["Finds", "available", "fast_finds", "plain_finds"]


class Finds(NamedTuple):
    """The hot calls of an index; each returns the raw bytes of a result, or None: not taken.

    Attributes
    ----------
    find, early : callable
        Of the hashes; `early` with early exit.
    best : callable
        Of the hashes, the number of results, and None or the ranks that count: bytes of rank records, sorted.
    kept : tuple of Context
        Has to live as long as the others may be called.
    """

    find: Callable[[Any], bytes | None]
    early: Callable[[Any], bytes | None]
    best: Callable[[Any, int, bytes | None], bytes | None]
    kept: tuple[Context, ...]


@inl
def _result(ctx, k):
    """The result in the OUT areas as new bytes; 0 with an error set when there is no memory."""
    result = new_bytes(0, k * 20)
    if result == 0:
        return result
    out = bytes_data(result)
    copy_bytes(out, get(ctx, C_OUT_RECORDS), k * 16)
    copy_bytes(out + k * 16, get(ctx, C_OUT_DEPTHS), k * 4)
    return result


@inl
def _take(frame, item):
    """The query's hashes: (address, number, view that has to be released or 0), number -1: not taken.

    Taking an odd kind of buffer may run Python code, and that may let other threads run. Calls from there
    take plain arguments only, which they hold in a view of their own.
    """
    if pl64(frame + F_ENTERED) == 0:
        ps64(frame + F_ENTERED, 1)
        q, n, held = hashes_in(frame, item, F_VIEW, pl64(frame + F_SCRATCH))
        ps64(frame + F_ENTERED, 0)
        return q, n, held * F_VIEW
    if not is_plain(frame, item):
        return 0, -1, 0
    q, n, held = hashes_in(frame, item, F_VIEW_2, pl64(frame + F_SCRATCH))
    return q, n, held * F_VIEW_2


@inl
def _find(self, args, n_args, early):
    frame = as_unsigned(self)
    if n_args != 1:
        return none(frame)
    q, n, held = _take(frame, pl64(args))
    if n < 0:
        return none(frame)
    ctx = pl64(frame + F_CONTEXT)
    result = _result(ctx, find(ctx, q, n, early, 0))
    # last: letting a buffer go may run Python code, and that may ask this very index
    if held != 0:
        release_buffer(frame + held)
    return result


@centry("int64(int64, int64, int64)")
def find_builtin(self, args, n):
    """PyObject *(PyObject *self, PyObject *const *args, Py_ssize_t n): self is the frame's address as int."""
    return _find(self, args, n, 0)


@centry("int64(int64, int64, int64)")
def find_early_builtin(self, args, n):
    """The same with early_exit."""
    return _find(self, args, n, 1)


@centry("int64(int64, int64, int64)")
def best_builtin(self, args, n_args):
    """The best matches: of hashes, how many, and None or the sorted records of ranks that count."""
    frame = as_unsigned(self)
    if n_args != 3:
        return none(frame)
    known, count = int_in(frame, pl64(args + 8))
    choice, among, n_among = pl64(args + 16), 0, 0
    if type_of(choice) == pl64(frame + F_BYTES):
        among, n_among = bytes_data(choice), bytes_size(choice) >> 4
    elif choice != pl64(frame + F_NONE):
        known = 0
    if known == 0 or count < 0:
        return none(frame)
    q, n, held = _take(frame, pl64(args))
    if n < 0:
        return none(frame)
    ctx = pl64(frame + F_CONTEXT)
    result = _result(ctx, find_top(ctx, q, n, count, among, n_among))
    if held != 0:
        release_buffer(frame + held)
    return result


def fast_finds(segment: Segment) -> Finds:
    """The hot calls as builtins.

    Raises
    ------
    RuntimeError
        Where `available` says no.
    """
    if not available():
        raise RuntimeError("no builtins on this interpreter")
    contexts = tuple(Context(segment) for _ in range(3))
    kernels = ((b"find", find_builtin), (b"find_early", find_early_builtin), (b"best", best_builtin))
    made = [
        make_builtin(name, kernel.address, new_frame(context))
        for (name, kernel), context in zip(kernels, contexts, strict=True)
    ]
    return Finds(made[0], made[1], made[2], contexts)


def plain_finds(segment: Segment) -> Finds:
    """The same contract without the trick: numba's dispatcher, and a context for each thread."""
    local = threading.local()

    def run(kernel: Any, hashes: Any, *arguments: Any) -> bytes | None:
        if not isinstance(hashes, np.ndarray) or hashes.dtype.str not in ("<u8", "<i8"):
            return None
        flags = hashes.flags
        if hashes.ndim != 1 or not (flags.c_contiguous and flags.aligned) or len(hashes) > MAX_STORE:
            return None
        context: Context | None = getattr(local, "context", None)
        if context is None:
            context = local.context = Context(segment)
        return context.result(kernel(context.address, hashes.ctypes.data, len(hashes), *arguments))

    def best(hashes: Any, count: int, among: bytes | None) -> bytes | None:
        if among is None:
            return run(query.find_best, hashes, count, 0, 0)
        ranks = np.frombuffer(among + b"\0" * 16, np.uint8)  # never empty: an address, whatever is in it
        return run(query.find_best, hashes, count, ranks.ctypes.data, len(among) // 16)

    return Finds(lambda q: run(query.find_plain, q), lambda q: run(query.find_early, q), best, ())
