"""Builtins of CPython's fastest calling convention, made from numba C callbacks, and their talk with Python.

A numba dispatcher costs about 0.5 us a call, the same kernel behind METH_FASTCALL a tenth. A builtin is bound
to its *frame*, an array of words: its context, and what it needs to tell types and to hold buffers; the
frame keeps alive what its words are addresses of. A builtin holds the GIL from the first to the last line, so
threads take turns on the frame.

Between the first look at an argument and the end of the kernel no Python code may run, or it could call the
same builtin and change its frame or the argument. So lists, tuples, ints and ranks are taken by exact type
only, and nothing here that may raise is called on anything else. What a builtin does not take it leaves to
its caller, which converts or raises.

Addresses and objects are int64 here: they are passed on, never counted with.
"""

from __future__ import annotations

from typing import Any

from numba import types

from .atomics import ld32, pl8, pl64, ps64
from .kernels.build import inl, jit
from .kernels.context import C_OUT_DEPTHS, C_OUT_RECORDS, get
from .layout import M32, MAX_STORE

_p, _i32 = types.int64, types.int32


def _extern(name: str, returns: Any, *arguments: Any) -> Any:
    return types.ExternalFunction(name, returns(*arguments))


get_buffer = _extern("PyObject_GetBuffer", _i32, _p, _p, _i32)
release_buffer = _extern("PyBuffer_Release", types.void, _p)
clear_error = _extern("PyErr_Clear", types.void)
occurred = _extern("PyErr_Occurred", _p)
no_memory = _extern("PyErr_NoMemory", _p)
new_object = _extern("PyType_GenericAlloc", _p, _p, _p)
call = _extern("PyObject_Vectorcall", _p, _p, _p, _p, _p)
call_one = _extern("PyObject_CallOneArg", _p, _p, _p)
dict_item = _extern("PyDict_GetItem", _p, _p, _p)
copy_dict = _extern("PyDict_Copy", _p, _p)
set_item = _extern("PyDict_SetItem", _i32, _p, _p, _p)
new_bytes = _extern("PyBytes_FromStringAndSize", _p, _p, _p)
bytes_data = _extern("PyBytes_AsString", _p, _p)
bytes_size = _extern("PyBytes_Size", _p, _p)
as_unsigned = _extern("PyLong_AsUnsignedLongLong", _p, _p)
as_signed = _extern("PyLong_AsLongLongAndOverflow", _p, _p, _p)
new_int = _extern("PyLong_FromLongLong", _p, _p)
add_reference = _extern("Py_IncRef", types.void, _p)
drop_reference = _extern("Py_DecRef", types.void, _p)
list_size = _extern("PyList_Size", _p, _p)
list_item = _extern("PyList_GetItem", _p, _p, _p)
tuple_size = _extern("PyTuple_Size", _p, _p)
tuple_item = _extern("PyTuple_GetItem", _p, _p, _p)

copy_bytes = _extern("memcpy", _p, _p, _p, _p)
compare_bytes = _extern("memcmp", _i32, _p, _p, _p)

# ------------------------------------------------------------------------------------------ frame
# byte offsets of the words of a frame
(
    F_CONTEXT,
    F_NONE,  # addresses of None and of types
    F_INT,
    F_LIST,
    F_TUPLE,
    F_RANK,
    F_ARRAY,
    F_BYTES,
    F_UINT64,  # of dtypes, 0 where arrays are laid out in another way
    F_INT64,
    F_SCRATCH,  # addresses of two areas for the ints of a list
    F_SCRATCH_2,
    F_OVERFLOW,
    F_ENTERED,  # 1 while a builtin reads its arguments
    F_OPEN_AT,  # address of a word that is 1 as long as the segment's handle is open
    # of a writer
    F_TURN,  # 1 while a thread has its turn without the GIL
    F_DESCRIPTOR,  # of the seat, and the offset by which it is known
    F_MARK,
    F_GENERATION_AT,
    F_GENERATION,
    # of a reader
    F_FALSE,  # addresses of objects
    F_TRUE,
    F_CONVERT,  # and of functions: for arguments that are not taken, and when the handle is closed
    F_CLOSED,
    F_RESULT,  # the type of a result, and where in it are its attributes
    F_RESULT_AT,
    F_RESULT_AT_2,
    F_RESULT_AT_3,
    F_KNOWN,  # what was made before, and the function that makes it
    F_MAKE,
) = (8 * k for k in range(30))
F_VIEW, F_VIEW_2 = 8 * 30, 8 * 46  # two Py_buffer
FRAME_WORDS = 62
LIST_ROOM = 8_192  # ints of a list that a builtin takes

O_TYPE = 8  # of PyObject: behind the reference count
# of PyArrayObject, and two of its flags
A_DATA, A_NDIM, A_SHAPE, A_DTYPE, A_FLAGS = 16, 24, 32, 56, 64
CONTIGUOUS_ALIGNED = 0x0001 | 0x0100
# Py_buffer of the stable ABI: buf, obj, len, itemsize, readonly | ndim, format, shape, strides, ...
_BUF, _LEN, _ITEMSIZE, _FLAGS, _FORMAT = 0, 16, 24, 32, 40
_CONTIGUOUS_WITH_FORMAT = 0x0020 | 0x0010 | 0x0008 | 0x0004  # PyBUF_C_CONTIGUOUS | STRIDES | ND | FORMAT


@inl
def frame_of(self):
    """Address of the words of a builtin's frame."""
    return pl64(self + A_DATA)


@inl
def type_of(item):
    """Address of an object's type."""
    return pl64(item + O_TYPE)


@inl
def is_plain(frame, item):
    """Reading its hashes, and letting its buffer go, runs no Python code."""
    kind = type_of(item)
    return kind == pl64(frame + F_ARRAY) or kind == pl64(frame + F_LIST) or kind == pl64(frame + F_TUPLE)


@inl
def converted(frame, args, n, names):
    """What a Python function makes of the arguments, a new reference; 0 with an error set."""
    made = call(pl64(frame + F_CONVERT), args, n, names)
    if made != 0 and pl64(pl64(frame + F_OPEN_AT)) == 0:  # closed by what the conversion ran
        drop_reference(made)
        return call(pl64(frame + F_CLOSED), args, 0, 0)  # raises
    return made


@inl
def none(frame):
    """A new reference to None."""
    value = pl64(frame + F_NONE)
    add_reference(value)
    return value


@inl
def is_hashes(view):
    """The buffer is one-dimensional, of native 8-byte integers, aligned, and not longer than a query may
    be.
    """
    if pl64(view + _ITEMSIZE) != 8 or (pl64(view + _FLAGS) >> 32) != 1:
        return False
    if (pl64(view + _BUF) & 7) != 0 and pl64(view + _LEN) != 0:
        return False
    text = pl64(view + _FORMAT)
    if text == 0 or pl64(view + _LEN) > MAX_STORE * 8:
        return False
    kind = pl8(text)
    if kind == 60 or kind == 61 or kind == 64:  # < = @
        text += 1
        kind = pl8(text)
    # Q q L l
    return (kind == 81 or kind == 113 or kind == 76 or kind == 108) and pl8(text + 1) == 0


@jit
def int_in(frame, item):
    """(1, 64-bit pattern) of an int in [-2**63, 2**64), exactly an int and no bool; else (0, 0)."""
    if type_of(item) != pl64(frame + F_INT):
        return 0, 0
    value = as_signed(item, frame + F_OVERFLOW)
    over = ld32(frame + F_OVERFLOW)
    if over == 0:
        return 1, value
    if over != 1:  # below
        return 0, 0
    value = as_unsigned(item)
    if value == -1 and occurred() != 0:
        clear_error()
        return 0, 0
    return 1, value


@jit
def id_in(frame, item):
    """The same of an id: an int in [0, 2**64)."""
    known, value = int_in(frame, item)
    # the overflow word says how the value was found: a negative pattern is a large id only with it
    if known != 0 and value < 0 and ld32(frame + F_OVERFLOW) == 0:
        return 0, 0
    return known, value


@jit
def rank_in(frame, item):
    """(1, worker_id, dp_rank) of an int, or a tuple of two; else (0, 0, 0)."""
    kind = type_of(item)
    if kind == pl64(frame + F_INT):
        known, worker_id = id_in(frame, item)
        return known, worker_id, 0
    if (kind != pl64(frame + F_TUPLE) and kind != pl64(frame + F_RANK)) or tuple_size(item) != 2:
        return 0, 0, 0
    known, worker_id = id_in(frame, tuple_item(item, 0))
    both, dp_rank = id_in(frame, tuple_item(item, 1))
    if known == 0 or both == 0 or dp_rank < 0 or dp_rank > M32:
        return 0, 0, 0
    return 1, worker_id, dp_rank


@jit
def ints_in(frame, item, to):
    """Copy the ints of a list or tuple: their number; -1 when anything else is in it, or too many."""
    kind = type_of(item)
    is_list = kind == pl64(frame + F_LIST)
    if not is_list and kind != pl64(frame + F_TUPLE):
        return -1
    n = list_size(item) if is_list else tuple_size(item)
    if n > LIST_ROOM:
        return -1
    for i in range(n):
        known, value = int_in(frame, list_item(item, i) if is_list else tuple_item(item, i))
        if known == 0:
            return -1
        ps64(to + i * 8, value)
    return n


@inl
def _is_plain_array(frame, item):
    """An array's words are the hashes. It is read as it is laid out: for a buffer numpy makes a description
    first, which takes longer than a query. Nothing can free the words before Python code runs again.
    """
    dtype = pl64(item + A_DTYPE)
    return (
        (dtype == pl64(frame + F_UINT64) or dtype == pl64(frame + F_INT64))
        and ld32(item + A_NDIM) == 1
        and (ld32(item + A_FLAGS) & CONTIGUOUS_ALIGNED) == CONTIGUOUS_ALIGNED
        and pl64(pl64(item + A_SHAPE)) <= MAX_STORE
    )


@jit
def hashes_in(frame, item, view, to):
    """(address, number, 1 if `view` has to be released) of the hashes of an argument; number -1: not taken.

    `view` is an offset in the frame, `to` the address of an area for the ints of a list.
    """
    kind = type_of(item)
    if kind == pl64(frame + F_ARRAY) and _is_plain_array(frame, item):
        return pl64(item + A_DATA), pl64(pl64(item + A_SHAPE)), 0
    if kind == pl64(frame + F_LIST) or kind == pl64(frame + F_TUPLE):
        return to, ints_in(frame, item, to), 0
    if get_buffer(item, frame + view, _CONTIGUOUS_WITH_FORMAT) != 0:
        clear_error()
        return 0, -1, 0
    if not is_hashes(frame + view):
        release_buffer(frame + view)
        return 0, -1, 0
    return pl64(frame + view + _BUF), pl64(frame + view + _LEN) >> 3, 1


@inl
def result_bytes(ctx, k):
    """The result in the OUT areas as new bytes; 0 with an error set when there is no memory."""
    result = new_bytes(0, k * 20)
    if result == 0:
        return result
    out = bytes_data(result)
    copy_bytes(out, get(ctx, C_OUT_RECORDS), k * 16)
    copy_bytes(out + k * 16, get(ctx, C_OUT_DEPTHS), k * 4)
    return result


@inl
def take_hashes(frame, item):
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
