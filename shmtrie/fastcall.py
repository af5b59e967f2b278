"""The hot calls of readers as builtins (see `pyapi`): `find_matches`, and the best matches.

They take any one-dimensional contiguous buffer of 8-byte integers, or a list or tuple of ints. Other
arguments of `find_matches` go through a Python function that converts them or raises; best matches are left
to the caller then, by None.

`plain_finds` is the fallback with the same contract, for interpreters where the trick is not available;
tests run both.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .arguments import query_array
from .atomics import pl64, ps64
from .contexts import Context
from .errors import StaleHandle
from .kernels import query
from .kernels.best import find_top
from .kernels.build import centry, inl, jit
from .kernels.context import C_OUT_DEPTHS, C_OUT_RECORDS, get
from .kernels.find import find
from .layout import MAX_STORE
from .pyapi import (
    F_BYTES,
    F_CLOSED,
    F_CONTEXT,
    F_CONVERT,
    F_ENTERED,
    F_FALSE,
    F_NONE,
    F_OPEN_AT,
    F_RESULT,
    F_RESULT_AT,
    F_RESULT_AT_2,
    F_RESULT_AT_3,
    F_SCRATCH,
    F_TRUE,
    F_VIEW,
    F_VIEW_2,
    add_reference,
    attribute_offsets,
    available,
    bytes_data,
    bytes_size,
    call,
    copy_bytes,
    drop_reference,
    frame_of,
    hashes_in,
    int_in,
    is_plain,
    make_builtin,
    new_bytes,
    new_frame,
    new_object,
    no_memory,
    none,
    release_buffer,
    tuple_item,
    type_of,
)
from .scores import OverlapScores
from .segment import Segment

__all__ = ["Finds", "available", "fast_finds", "plain_finds"]


class Finds(NamedTuple):
    """The hot calls of an index.

    Attributes
    ----------
    find : callable
        `IndexQueries.find_matches`.
    best : callable
        Of the hashes, the number of results, and None or the ranks that count, as bytes of rank records,
        sorted: the raw bytes of a result, or None: not taken.
    contexts : collection of Context
        What the calls count is counted there; of threads that ended it is gone.
    """

    find: Callable[..., OverlapScores]
    best: Callable[[Any, int, bytes | None], bytes | None]
    contexts: Collection[Context]


def find_matches(local_hashes: Any, early_exit: bool = False) -> tuple[npt.NDArray[np.uint64], bool]:
    """Convert the arguments of the call of this name; what is wrong with them is told in its name, too."""
    return query_array(local_hashes), bool(early_exit)


def _closed(*_: Any, **__: Any) -> OverlapScores:
    raise StaleHandle("this index was closed: attach anew")


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
def _new_scores(frame, raw):
    """An `OverlapScores` that owns its bytes; 0 with an error set when there is no memory."""
    if raw == 0:
        return raw
    scores = new_object(pl64(frame + F_RESULT), 0)
    if scores == 0:
        drop_reference(raw)
        return scores
    ps64(scores + pl64(frame + F_RESULT_AT), raw)
    add_reference(pl64(frame + F_FALSE))
    ps64(scores + pl64(frame + F_RESULT_AT_2), pl64(frame + F_FALSE))
    ps64(scores + pl64(frame + F_RESULT_AT_3), none(frame))
    return scores


@jit
def _scores(frame, q, n, held, early):
    """The answer to a query; lets go of its view."""
    ctx = pl64(frame + F_CONTEXT)
    raw = _result(ctx, find(ctx, q, n, early, 0))
    # Letting a buffer go may run Python code, and so may a new object (it may start the collector); that may
    # ask this very index: neither the frame's view nor the areas of the context are needed any more.
    if held != 0:
        release_buffer(frame + held)
    return _new_scores(frame, raw)


@jit
def _converted(frame, args, n, names):
    """The answer to arguments that a Python function has to look at; 0 with an error set."""
    pair = call(pl64(frame + F_CONVERT), args, n, names)
    if pair == 0:
        return pair
    early = tuple_item(pair, 1) == pl64(frame + F_TRUE)
    q, n_hashes, held = _take(frame, tuple_item(pair, 0))
    result = _scores(frame, q, n_hashes, held, early) if n_hashes >= 0 else no_memory()
    drop_reference(pair)
    return result


@centry("int64(int64, int64, int64, int64)")
def find_builtin(self, args, n, names):
    """PyObject *(PyObject *frame, PyObject *const *args, Py_ssize_t n, PyObject *names)."""
    frame = frame_of(self)
    if pl64(pl64(frame + F_OPEN_AT)) == 0:
        return call(pl64(frame + F_CLOSED), args, n, names)
    early, known = 0, names == 0 and n == 1
    if names == 0 and n == 2:
        early = pl64(args + 8) == pl64(frame + F_TRUE)
        known = early or pl64(args + 8) == pl64(frame + F_FALSE)
    if known:
        q, n_hashes, held = _take(frame, pl64(args))
        if n_hashes >= 0:
            return _scores(frame, q, n_hashes, held, early)
    return _converted(frame, args, n, names)


@centry("int64(int64, int64, int64)")
def best_builtin(self, args, n_args):
    """The best matches: of hashes, how many, and None or the sorted records of ranks that count."""
    frame = frame_of(self)
    if pl64(pl64(frame + F_OPEN_AT)) == 0:
        return call(pl64(frame + F_CLOSED), args, 0, 0)
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
    contexts = Context(segment), Context(segment)
    first, second = (new_frame(context, segment.open_word) for context in contexts)
    objects = (False, True, find_matches, _closed, OverlapScores)
    first[F_FALSE // 8 : F_RESULT // 8 + 1] = [id(item) for item in objects]
    first[F_RESULT_AT // 8 : F_RESULT_AT_3 // 8 + 1] = attribute_offsets(
        OverlapScores, ("_raw", "_details", "_scores")
    )
    first.kept += objects
    second[F_CLOSED // 8] = id(_closed)
    second.kept += (_closed,)
    doc = b"find_matches(local_hashes, early_exit=False)\n--\n\nSee `Index.find_matches`."
    find = make_builtin(b"find_matches", find_builtin.address, first, keywords=True, doc=doc)
    return Finds(find, make_builtin(b"best", best_builtin.address, second), contexts)


def plain_finds(segment: Segment) -> Finds:
    """The same contract without the trick: numba's dispatcher, and a context for each thread."""
    local, open_word = threading.local(), segment.open_word
    contexts: weakref.WeakSet[Context] = weakref.WeakSet()

    def mine() -> Context:
        if not open_word[0]:
            _closed()
        context: Context | None = getattr(local, "context", None)
        if context is None:
            context = local.context = Context(segment)
            contexts.add(context)
        return context

    def find(*arguments: Any, **names: Any) -> OverlapScores:
        context, (hashes, early) = mine(), find_matches(*arguments, **names)
        return OverlapScores(
            context.result(query.find_plain(context.address, hashes.ctypes.data, len(hashes), early))
        )

    def best(hashes: Any, count: int, among: bytes | None) -> bytes | None:
        context = mine()
        if not isinstance(hashes, np.ndarray) or hashes.dtype.str not in ("<u8", "<i8"):
            return None
        flags = hashes.flags
        if hashes.ndim != 1 or not (flags.c_contiguous and flags.aligned) or len(hashes) > MAX_STORE:
            return None
        # never empty: an address, whatever is in it
        ranks = np.frombuffer((among or b"") + b"\0" * 16, np.uint8)
        where = (0, 0) if among is None else (ranks.ctypes.data, len(among) // 16)
        return context.result(
            query.find_best(context.address, hashes.ctypes.data, len(hashes), count, *where)
        )

    return Finds(find, best, contexts)
