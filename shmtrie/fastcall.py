"""The hot call: `find` as a builtin of CPython's fastest calling convention, made from a numba C callback.

A numba dispatcher costs about 0.5 us a call; the same kernel behind METH_FASTCALL costs a tenth. The
builtin takes any one-dimensional contiguous buffer of 8-byte integers and returns the raw bytes of a
result; for everything else it returns None, and the caller converts the argument or raises. It holds the
GIL from the first to the last line, so threads take turns on its context.

`plain_find` is the fallback with the same contract, for interpreters where the trick is not available;
tests run both.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from .atomics import ld32, pl8, pl64, ps64, st32
from .contexts import Context
from .kernels import query
from .kernels.build import centry, inl
from .kernels.context import C_OUT_DEPTHS, C_OUT_RECORDS, C_QUERY_NONE, C_QUERY_VIEW, get
from .kernels.find import find
from .layout import M32, MAX_STORE
from .segment import Segment
from .vectors import copy_record

RawFind = Callable[[Any], "bytes | None"]

_u = types.uintp
_GetBuffer = types.ExternalFunction("PyObject_GetBuffer", types.int32(_u, _u, types.int32))
_Release = types.ExternalFunction("PyBuffer_Release", types.void(_u))
_Clear = types.ExternalFunction("PyErr_Clear", types.void())
_NewBytes = types.ExternalFunction("PyBytes_FromStringAndSize", _u(_u, types.intp))
_BytesData = types.ExternalFunction("PyBytes_AsString", _u(_u))
_AsAddress = types.ExternalFunction("PyLong_AsUnsignedLongLong", types.uint64(_u))
_IncRef = types.ExternalFunction("Py_IncRef", types.void(_u))

# Py_buffer of the stable ABI: buf, obj, len, itemsize, readonly | ndim, format, shape, strides, ...
_BUF, _LEN, _ITEMSIZE, _FLAGS, _FORMAT = 0, 16, 24, 32, 40
_BUFFER_BYTES = 128
_CONTIGUOUS_WITH_FORMAT = 0x0020 | 0x0010 | 0x0008 | 0x0004  # PyBUF_C_CONTIGUOUS | STRIDES | ND | FORMAT
_METH_FASTCALL = 0x0080


@inl
def _is_hashes(view):
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


@inl
def _none(ctx):
    none = get(ctx, C_QUERY_NONE)
    _IncRef(_u(none))
    return _u(none)


@inl
def _call(self, args, n, early):
    ctx = np.int64(_AsAddress(self))
    view = get(ctx, C_QUERY_VIEW)
    if n != 1:
        return _none(ctx)
    if _GetBuffer(_u(pl64(np.int64(args))), _u(view), _CONTIGUOUS_WITH_FORMAT) != 0:
        _Clear()
        return _none(ctx)
    if not _is_hashes(view):
        _Release(_u(view))
        return _none(ctx)
    k = find(ctx, pl64(view + _BUF), pl64(view + _LEN) >> 3, early, 0)
    result = _NewBytes(_u(0), k * 20)
    if result == _u(0):
        _Release(_u(view))
        return _u(0)
    out = np.int64(_BytesData(result))
    records, depths = get(ctx, C_OUT_RECORDS), get(ctx, C_OUT_DEPTHS)
    for i in range(k):
        copy_record(out + i * 16, records + i * 16)
        # the record's last four bytes are padding
        ps64(out + i * 16 + 8, pl64(out + i * 16 + 8) & M32)
    out += k * 16
    for i in range(k):
        st32(out + i * 4, ld32(depths + i * 4))
    # last: letting a buffer go may run Python code, and that may ask this very index
    _Release(_u(view))
    return result


@centry("uintp(uintp, uintp, intp)")
def find_builtin(self, args, n):
    """PyObject *(PyObject *self, PyObject *const *args, Py_ssize_t n): self is the context's address as
    int.
    """
    return _call(self, args, n, 0)


@centry("uintp(uintp, uintp, intp)")
def find_early_builtin(self, args, n):
    """The same with early_exit."""
    return _call(self, args, n, 1)


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def available() -> bool:
    """Whether builtins can be made here: CPython with a GIL, 64-bit."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return sys.implementation.name == "cpython" and gil and sys.maxsize > 2**32


class _Builtin:
    """Makes and keeps what a builtin points to: as long as the function lives, so must its definition and
    context.
    """

    def __init__(self) -> None:
        self._make = ctypes.pythonapi.PyCFunction_NewEx
        self._make.restype = ctypes.py_object
        self._make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]

    def __call__(self, address: int, context: Context) -> RawFind:
        definition = _MethodDef(b"find", address, _METH_FASTCALL, None)
        view = np.zeros(_BUFFER_BYTES, np.uint8)
        context.words[C_QUERY_VIEW] = view.ctypes.data
        context.words[C_QUERY_NONE] = id(None)
        function: Any = self._make(ctypes.addressof(definition), context.address, None)
        # a builtin has no room for attributes: the context keeps the rest, the owner of the builtin keeps
        # the context
        context.kept.append((definition, view))
        return function  # type: ignore[no-any-return]


def fast_finds(segment: Segment) -> tuple[RawFind, RawFind, object]:
    """(find, find with early exit, what the caller has to keep alive as long as it may call them).

    Raises
    ------
    RuntimeError
        Where `available` says no.
    """
    if not available():
        raise RuntimeError("no builtins on this interpreter")
    make = _Builtin()
    plain, early = Context(segment), Context(segment)
    return (
        make(find_builtin.address, plain),
        make(find_early_builtin.address, early),
        (plain, early),
    )


def plain_finds(segment: Segment) -> tuple[RawFind, RawFind, object]:
    """The same contract without the trick: numba's dispatcher, and a context for each thread."""
    local = threading.local()

    def run(kernel: Any, hashes: Any) -> bytes | None:
        if not isinstance(hashes, np.ndarray) or hashes.dtype.str not in ("<u8", "<i8"):
            return None
        flags = hashes.flags
        if hashes.ndim != 1 or not (flags.c_contiguous and flags.aligned) or len(hashes) > MAX_STORE:
            return None
        context: Context | None = getattr(local, "context", None)
        if context is None:
            context = local.context = Context(segment)
        return context.result(kernel(context.address, hashes.ctypes.data, len(hashes)))

    return (lambda q: run(query.find_plain, q)), (lambda q: run(query.find_early, q)), None
