"""Checks of the arguments that every index takes: hashes, ranks, offsets.

They live in one place so that all indexes agree on what a wrong argument is, and find it before anything is
touched. Hashes are 64-bit patterns: the signed and the unsigned spelling of one pattern are the same hash.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .layout import MAX_STORE
from .scores import WorkerWithDpRank

__all__ = [
    "as_count",
    "as_rank",
    "as_ranks",
    "as_u64",
    "as_worker_id",
    "hash_array",
    "offset_array",
    "query_array",
]

_MASK: Final = (1 << 64) - 1
_U64: Final = np.dtype(np.uint64)


def as_u64(value: Any) -> int:
    """Check one hash and return it as unsigned 64-bit int.

    Parameters
    ----------
    value : int or object with __index__
        -2**63 <= value < 2**64; negative ones are taken modulo 2**64.

    Returns
    -------
    int
        0 <= result < 2**64.

    Raises
    ------
    TypeError
        If `value` is a bool or no integer (float, str, None).
    ValueError
        If it is out of range.
    """
    if isinstance(value, (bool, np.bool_)):
        raise TypeError("expected a 64-bit int, got a bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"expected a 64-bit int, got {type(value).__name__}") from None
    if not -(1 << 63) <= number <= _MASK:
        raise ValueError(f"{number} does not fit 64 bits: need -2**63 <= value < 2**64")
    return number & _MASK


def as_count(k: Any) -> int:
    """Check how many results are asked for.

    Parameters
    ----------
    k : int or object with __index__
        0 <= k < 2**63.

    Returns
    -------
    int
        The number.

    Raises
    ------
    TypeError
        If it is a bool or no integer.
    ValueError
        If it is negative or out of range.
    """
    number = as_u64(k)
    if number >> 63:
        raise ValueError("k must not be negative")
    return number


def _unsigned(value: Any, bits: int, name: str) -> int:
    """Check an id, where, unlike for a hash, a negative number is a mistake."""
    number = as_u64(value)
    if number >> bits or operator.index(value) < 0:
        raise ValueError(f"{name} must be in [0, 2**{bits}), got {value}")
    return number


def as_rank(worker: Any) -> WorkerWithDpRank:
    """Check a worker argument and return the rank that it names.

    Parameters
    ----------
    worker : int or (int, int)
        A worker id, meaning its dp_rank 0, or (worker_id, dp_rank).

    Returns
    -------
    WorkerWithDpRank
        0 <= worker_id < 2**64, 0 <= dp_rank < 2**32.

    Raises
    ------
    TypeError
        If it is neither.
    ValueError
        If a number is out of range or a tuple has not two items.
    """
    if not isinstance(worker, tuple):
        return WorkerWithDpRank(_unsigned(worker, 64, "worker_id"), 0)
    if len(worker) != 2:
        raise ValueError(f"a rank is (worker_id, dp_rank), got {len(worker)} items")
    return WorkerWithDpRank(_unsigned(worker[0], 64, "worker_id"), _unsigned(worker[1], 32, "dp_rank"))


def as_worker_id(worker_id: Any) -> int:
    """Check a worker id.

    Parameters
    ----------
    worker_id : int or object with __index__
        0 <= worker_id < 2**64.

    Returns
    -------
    int
        The id.

    Raises
    ------
    TypeError
        If it is a bool, a tuple or no integer.
    ValueError
        If it is out of range.
    """
    return _unsigned(worker_id, 64, "worker_id")


def as_ranks(workers: Any) -> list[WorkerWithDpRank]:
    """Check several worker arguments.

    Parameters
    ----------
    workers : iterable of int or (int, int), or ndarray of WORKER_DTYPE, shape (n,)
        As in `as_rank`; the array may be the `workers` of a result.

    Returns
    -------
    list of WorkerWithDpRank
        In the order given.

    Raises
    ------
    TypeError, ValueError
        If it is not iterable, or as `as_rank`.
    """
    if isinstance(workers, np.ndarray):
        workers = workers.tolist()
    try:
        each = iter(workers)
    except TypeError:
        raise TypeError(f"expected several workers, got {type(workers).__name__}") from None
    return [as_rank(worker) for worker in each]


def query_array(values: Any) -> npt.NDArray[np.uint64]:
    """`hash_array` of a query, which has at most `MAX_STORE` blocks (ValueError); a plain ndarray."""
    local = hash_array(values)
    if type(local) is not np.ndarray:
        local = local.view(np.ndarray)
    if len(local) > MAX_STORE:
        raise ValueError(f"a query has at most {MAX_STORE} blocks, got {len(local)}")
    return local


def hash_array(values: Any) -> npt.NDArray[np.uint64]:
    """Check hashes and return them as a contiguous uint64 array.

    Parameters
    ----------
    values : ndarray of uint64 or int64, buffer of 8-byte ints, or sequence of ints, shape (n,)
        Any stride, byte order and alignment; ints as in `as_u64`.

    Returns
    -------
    ndarray of uint64, shape (n,)
        C-contiguous and aligned, native byte order. May share memory with `values`: copy before keeping.

    Raises
    ------
    TypeError
        If `values` is of another type (str, bytes, set, iterator) or holds anything but integers, or
        integers of another width than 8 bytes in an array or buffer.
    ValueError
        If it is not one-dimensional or an int is out of range.
    """
    if isinstance(values, (list, tuple)):
        return _hashes_from_ints(values)
    if type(values) is np.ndarray and values.dtype is _U64 and values.ndim == 1:
        # What routers pass: nothing to convert, so spend as little as possible.
        flags = values.flags
        if flags.c_contiguous and flags.aligned:
            return values
    if not isinstance(values, np.ndarray):
        if isinstance(values, (str, bytes, bytearray)):
            raise TypeError(f"hashes must be integers, got {type(values).__name__}")
        if not hasattr(values, "__array__"):
            try:
                values = memoryview(values)
            except TypeError:
                if isinstance(values, Sequence):
                    return _hashes_from_ints(values)
                raise TypeError(
                    f"hashes must be an array, a buffer or a sequence, got {type(values).__name__}"
                ) from None
        values = np.asarray(values)
    if values.ndim != 1:
        raise ValueError(f"hashes must be one-dimensional, got shape {values.shape}")
    if values.dtype.kind == "O":
        return _hashes_from_ints(values.tolist())
    if values.dtype.kind not in "ui" or values.dtype.itemsize != 8:
        raise TypeError(f"hashes must be uint64 or int64, got an array of {values.dtype}")
    native: npt.NDArray[Any] = np.require(values, values.dtype.newbyteorder("="), ["C", "A"])
    return native.view(np.uint64)


def _hashes_from_ints(values: Sequence[Any]) -> npt.NDArray[np.uint64]:
    # numpy would take floats, bools and digit strings without a word; array() takes bools only.
    if not {bool, np.bool_}.isdisjoint(map(type, values)):
        raise TypeError("hashes must be integers, got a bool")
    try:
        return np.frombuffer(array("Q", values), np.uint64)
    except (TypeError, OverflowError, IndexError):
        # Negative, too large, no integer at all, or an `__index__` that changes the list: one by one gives
        # the value or the exact error.
        return np.array([as_u64(v) for v in values], np.uint64)


def offset_array(values: Any, total: int) -> npt.NDArray[np.int64]:
    """Check the offsets that cut an array of `total` items into n pieces.

    Parameters
    ----------
    values : ndarray of int64 or uint64, or sequence of ints, shape (n + 1,)
        Piece i is [values[i], values[i + 1]).
    total : int
        Items in the array that is cut.

    Returns
    -------
    ndarray of int64, shape (n + 1,)
        Contiguous.

    Raises
    ------
    TypeError
        As `hash_array`.
    ValueError
        If there is none, or they decrease, or leave [0, total].
    """
    offsets = hash_array(values).view(np.int64)
    if not len(offsets):
        raise ValueError("offsets need one item more than there are pieces, so at least one")
    if offsets[0] < 0 or offsets[-1] > total or bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError(f"offsets must not decrease and must stay in [0, {total}]")
    return offsets
