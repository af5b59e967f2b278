"""The best matches as builtins (see `pyapi`): `best_match`, and any number of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .arguments import as_ranks, query_array
from .atomics import pl64
from .contexts import Context
from .kernels.best import find_top
from .kernels.build import centry, jit
from .pyapi import (
    F_BYTES,
    F_CLOSED,
    F_CONTEXT,
    F_CONVERT,
    F_KNOWN,
    F_MAKE,
    F_NONE,
    F_OPEN_AT,
    add_reference,
    bytes_data,
    bytes_size,
    call,
    call_one,
    converted,
    dict_item,
    drop_reference,
    frame_of,
    int_in,
    no_memory,
    none,
    release_buffer,
    result_bytes,
    take_hashes,
    tuple_item,
    tuple_size,
    type_of,
)
from .pyframe import make_builtin, new_frame
from .workers import known_matches, matches_in, rank_records

__all__ = ["best_match", "make_best"]


def best_match(local_hashes: Any, among: Any = None) -> tuple[npt.NDArray[np.uint64], bytes | None]:
    """Convert the arguments of the call of this name; what is wrong with them is told in its name, too."""
    local = query_array(local_hashes)
    return local, None if among is None else rank_records(as_ranks(among))


@jit
def _matches(frame, q, n, held, count, among):
    """The best matches as a tuple; lets go of the query's view. `among` is None or bytes."""
    records, n_records = 0, 0
    if type_of(among) == pl64(frame + F_BYTES):
        records, n_records = bytes_data(among), bytes_size(among) >> 4
    ctx = pl64(frame + F_CONTEXT)
    raw = result_bytes(ctx, find_top(ctx, q, n, count, records, n_records))
    if held != 0:  # may run Python code, and that may ask this very index: nothing of it is needed any more
        release_buffer(frame + held)
    if raw == 0:
        return raw
    found = dict_item(pl64(frame + F_KNOWN), raw)
    if found != 0:
        add_reference(found)
    else:
        found = call_one(pl64(frame + F_MAKE), raw)
    drop_reference(raw)
    return found


@jit
def _first(frame, matches):
    """The first match of a tuple, or None; the tuple is dropped."""
    if matches == 0:
        return matches
    first = none(frame)
    if tuple_size(matches) > 0:
        drop_reference(first)
        first = tuple_item(matches, 0)
        add_reference(first)
    drop_reference(matches)
    return first


@jit
def _any_number(frame, args, n):
    """The matches that three arguments ask for; None: not taken."""
    if n != 3:
        return none(frame)
    known, count = int_in(frame, pl64(args + 8))
    among = pl64(args + 16)
    if known == 0 or count < 0 or (among != pl64(frame + F_NONE) and type_of(among) != pl64(frame + F_BYTES)):
        return none(frame)
    q, n_hashes, held = take_hashes(frame, pl64(args))
    return _matches(frame, q, n_hashes, held, count, among) if n_hashes >= 0 else none(frame)


@jit
def _converted(frame, args, n, names):
    """The best match for arguments that a Python function has to look at; 0 with an error set."""
    pair = converted(frame, args, n, names)
    if pair == 0:
        return pair
    q, n_hashes, held = take_hashes(frame, tuple_item(pair, 0))
    if n_hashes >= 0:
        best = _first(frame, _matches(frame, q, n_hashes, held, 1, tuple_item(pair, 1)))
    else:
        best = no_memory()
    drop_reference(pair)
    return best


@centry("int64(int64, int64, int64, int64)")
def best_builtin(self, args, n, names):
    """PyObject *(PyObject *frame, PyObject *const *args, Py_ssize_t n, PyObject *names).

    `best_match` with a frame that has a function for its arguments, `Finds.best` with another one: two
    kernels would have the walk compiled twice.
    """
    frame = frame_of(self)
    if pl64(pl64(frame + F_OPEN_AT)) == 0:
        return call(pl64(frame + F_CLOSED), args, n, names)
    if pl64(frame + F_CONVERT) == 0:
        return _any_number(frame, args, n)
    if n == 1 and names == 0:
        q, n_hashes, held = take_hashes(frame, pl64(args))
        if n_hashes >= 0:
            return _first(frame, _matches(frame, q, n_hashes, held, 1, pl64(frame + F_NONE)))
    return _converted(frame, args, n, names)


def make_best(
    context: Context, open_word: npt.NDArray[np.int64], closed: Callable[..., Any], name: bytes
) -> Callable[..., Any]:
    """One of the two calls, `name` says which; `closed` is called when `open_word` says so."""
    frame = new_frame(context, open_word)
    frame.keep({F_CLOSED: closed, F_KNOWN: known_matches, F_MAKE: matches_in})
    if name != b"best_match":
        return make_builtin(name, best_builtin.address, frame, keywords=True)
    frame.keep({F_CONVERT: best_match})
    doc = b"best_match(local_hashes, among=None)\n--\n\nSee `Index.best_match`."
    return make_builtin(name, best_builtin.address, frame, keywords=True, doc=doc)
