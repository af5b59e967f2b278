"""`find_matches` as a builtin (see `pyapi`), and the hot calls of an index together.

It takes any one-dimensional contiguous buffer of 8-byte integers, or a list or tuple of ints, and makes the
result itself. Other arguments go through a Python function that converts them or raises.

`plain_finds` is the fallback with the same contract, for interpreters where the trick is not available;
tests run both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import fastbest, fastscores
from .arguments import query_array
from .atomics import pl64, ps64
from .contexts import Context, SpareContexts
from .errors import StaleHandle
from .kernels import query
from .kernels.build import centry, inl, jit
from .kernels.find import find
from .pyapi import (
    F_CLOSED,
    F_CONTEXT,
    F_CONVERT,
    F_FALSE,
    F_OPEN_AT,
    F_RESULT,
    F_RESULT_AT,
    F_RESULT_AT_2,
    F_RESULT_AT_3,
    F_TRUE,
    add_reference,
    call,
    converted,
    drop_reference,
    frame_of,
    new_object,
    no_memory,
    none,
    release_buffer,
    result_bytes,
    take_hashes,
    tuple_item,
)
from .pyframe import attribute_offsets, available, make_builtin, new_frame
from .scores import OverlapScores
from .segment import Segment
from .workers import Match, matches_in

__all__ = ["Finds", "available", "fast_finds", "plain_finds"]


class Finds(NamedTuple):
    """The hot calls of an index.

    Attributes
    ----------
    find, best_match : callable
        `IndexQueries.find_matches` and `IndexQueries.best_match`.
    best : callable
        Of the hashes, the number of results, and None or the ranks that count, as bytes of rank records,
        sorted: the matches, best first; None: these hashes are not taken.
    contexts : iterable of Context
        What the calls count is counted there.
    """

    find: Callable[..., OverlapScores]
    best_match: Callable[..., Match | None]
    best: Callable[[Any, int, bytes | None], tuple[Match, ...] | None]
    contexts: Iterable[Context]


def find_matches(local_hashes: Any, early_exit: bool = False) -> tuple[npt.NDArray[np.uint64], bool]:
    """Convert the arguments of the call of this name; what is wrong with them is told in its name, too."""
    return query_array(local_hashes), bool(early_exit)


def closed(*_: Any, **__: Any) -> Any:
    """Whatever is asked of a closed handle."""
    raise StaleHandle("this index was closed: attach anew")


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
    raw = result_bytes(ctx, find(ctx, q, n, early, 0))
    # Letting a buffer go may run Python code, and so may a new object (it may start the collector); that may
    # ask this very index: neither the frame's view nor the areas of the context are needed any more.
    if held != 0:
        release_buffer(frame + held)
    return _new_scores(frame, raw)


@jit
def _converted(frame, args, n, names):
    """The answer to arguments that a Python function has to look at; 0 with an error set."""
    pair = converted(frame, args, n, names)
    if pair == 0:
        return pair
    early = tuple_item(pair, 1) == pl64(frame + F_TRUE)
    q, n_hashes, held = take_hashes(frame, tuple_item(pair, 0))
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
        q, n_hashes, held = take_hashes(frame, pl64(args))
        if n_hashes >= 0:
            return _scores(frame, q, n_hashes, held, early)
    return _converted(frame, args, n, names)


def fast_finds(segment: Segment) -> Finds:
    """The hot calls as builtins.

    Raises
    ------
    RuntimeError
        Where `available` says no.
    """
    if not available():
        raise RuntimeError("no builtins on this interpreter")
    fastscores.install()
    contexts = [Context(segment) for _ in range(3)]
    frame = new_frame(contexts[0], segment.open_word)
    frame.keep(
        {F_FALSE: False, F_TRUE: True, F_CONVERT: find_matches, F_CLOSED: closed, F_RESULT: OverlapScores}
    )
    frame[F_RESULT_AT // 8 : F_RESULT_AT_3 // 8 + 1] = attribute_offsets(
        OverlapScores, ("_raw", "_details", "_scores")
    )
    doc = b"find_matches(local_hashes, early_exit=False)\n--\n\nSee `Index.find_matches`."
    find = make_builtin(b"find_matches", find_builtin.address, frame, keywords=True, doc=doc)
    one, many = (
        fastbest.make_best(context, segment.open_word, closed, name)
        for context, name in zip(contexts[1:], (b"best_match", b"best"), strict=True)
    )
    return Finds(find, one, many, contexts)


def plain_finds(segment: Segment) -> Finds:
    """The same contract without the trick: numba's dispatcher, and a context for each thread."""
    contexts, open_word = SpareContexts(segment), segment.open_word

    def require_open() -> None:
        if not open_word[0]:
            closed()

    def find(*arguments: Any, **names: Any) -> OverlapScores:
        require_open()
        hashes, early = find_matches(*arguments, **names)
        with contexts.lent() as context:
            n = query.find_plain(context.address, hashes.ctypes.data, len(hashes), early)
            return OverlapScores(context.result(n))

    def best(local_hashes: Any, count: int, among: bytes | None) -> tuple[Match, ...]:
        require_open()
        hashes = query_array(local_hashes)
        # never empty: an address, whatever is in it
        ranks = np.frombuffer((among or b"") + b"\0" * 16, np.uint8)
        where = (0, 0) if among is None else (ranks.ctypes.data, len(among) // 16)
        with contexts.lent() as context:
            n = query.find_best(context.address, hashes.ctypes.data, len(hashes), count, *where)
            return matches_in(context.result(n))

    def best_match(*arguments: Any, **names: Any) -> Match | None:
        require_open()
        hashes, among = fastbest.best_match(*arguments, **names)
        found = best(hashes, 1, among)
        return found[0] if found else None

    return Finds(find, best_match, best, contexts)
