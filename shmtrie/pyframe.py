"""Making builtins (see `pyapi`), and the frames that they are bound to."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .contexts import Context
from .layout import M32
from .pyapi import (
    A_DATA,
    A_DTYPE,
    A_FLAGS,
    A_NDIM,
    A_SHAPE,
    CONTIGUOUS_ALIGNED,
    F_CONTEXT,
    F_INT,
    F_INT64,
    F_NONE,
    F_OPEN_AT,
    F_SCRATCH,
    F_SCRATCH_2,
    F_UINT64,
    FRAME_WORDS,
    LIST_ROOM,
    O_TYPE,
)
from .workers import WorkerWithDpRank

__all__ = ["Frame", "attribute_offsets", "available", "make_builtin", "new_frame"]

_METH_FASTCALL, _METH_KEYWORDS = 0x0080, 0x0002
_python = ctypes.PyDLL(None)  # of our own: what others say of the types of ctypes.pythonapi's is theirs


class Frame(np.ndarray[Any, np.dtype[np.int64]]):
    """The words of a builtin, and what has to live as long as it."""

    kept: tuple[object, ...] = ()

    def keep(self, objects: dict[int, object]) -> None:
        """Put the addresses of objects into words, and keep them alive."""
        for word, item in objects.items():
            self[word // 8] = id(item)
        self.kept += tuple(objects.values())


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def available() -> bool:
    """Whether builtins can be made here: CPython with a GIL, 64-bit, objects laid out as we know them."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    if sys.implementation.name != "cpython" or not gil or sys.maxsize <= 2**32:
        return False
    array = np.empty(1)
    if _word(array, A_DATA) != array.ctypes.data:
        return False
    known: tuple[object, ...] = (None, 1, "", b"", (), [], WorkerWithDpRank(1), array, int)
    return all(_word(x, O_TYPE) == id(type(x)) for x in known)


def _word(item: object, offset: int) -> int:
    return ctypes.c_int64.from_address(id(item) + offset).value


def _knows_arrays() -> bool:
    """Whether arrays are laid out as we know them."""
    table = np.zeros((3, 4), np.uint64)
    unaligned = np.zeros(25, np.uint8)[1:].view(np.int64)
    signed, swapped = table.view(np.int64)[1, 1:], np.zeros(5, ">u8")
    for array in (table[0], table[:, 1], table[:2], signed, unaligned, swapped):
        flags = array.flags.c_contiguous | array.flags.aligned << 8
        found = _word(array, A_DATA), _word(array, A_NDIM) & M32, _word(array, A_DTYPE)
        if found != (array.ctypes.data, array.ndim, id(array.dtype)):
            return False
        shape = ctypes.c_int64.from_address(_word(array, A_SHAPE)).value
        if shape != len(array) or _word(array, A_FLAGS) & CONTIGUOUS_ALIGNED != flags:
            return False
    return True


def new_frame(context: Context | None = None, open_word: npt.NDArray[np.int64] | None = None) -> Frame:
    """A frame for a builtin; on a context, and `open_word` as of `Segment`, if it is about one."""
    frame = np.zeros(FRAME_WORDS, np.int64).view(Frame)
    kinds = (int, list, tuple, WorkerWithDpRank, np.ndarray, bytes)
    frame.keep({F_NONE: None, **{F_INT + 8 * k: kind for k, kind in enumerate(kinds)}})
    if _knows_arrays():
        frame.keep({F_UINT64: np.dtype(np.uint64), F_INT64: np.dtype(np.int64)})
    if context is not None and open_word is not None:
        scratch = np.empty(2 * LIST_ROOM, np.int64)
        frame[F_CONTEXT // 8], frame[F_OPEN_AT // 8] = context.address, open_word.ctypes.data
        frame[F_SCRATCH // 8], frame[F_SCRATCH_2 // 8] = scratch.ctypes.data, scratch[LIST_ROOM:].ctypes.data
        frame.kept += (context, open_word, scratch)
    return frame


def attribute_offsets(kind: type, names: tuple[str, ...]) -> list[int]:
    """Where objects of a class with slots have these attributes."""
    item: Any = object.__new__(kind)
    values = [object() for _ in names]
    for name, value in zip(names, values, strict=True):
        setattr(item, name, value)
    words = [_word(item, at) for at in range(0, kind.__basicsize__, 8)]
    return [8 * words.index(id(value)) for value in values]


def _definition(name: bytes, address: int, flags: int, doc: bytes | None) -> _MethodDef:
    """The method definition of a C function, made once and never freed.

    A builtin reads its definition once more when it is freed itself. Of a handle that is collected in a cycle
    of references either may go first, the frame with all it keeps included; so may a module's globals at
    the end of the process.
    """
    definition = _definitions.get((name, address))
    if definition is None:
        definition = _definitions[name, address] = _MethodDef(name, address, flags, doc)
        _python.Py_IncRef(ctypes.py_object(definition))
    return definition


_definitions: dict[tuple[bytes, int], _MethodDef] = {}


def make_builtin(
    name: bytes, address: int, frame: Frame, keywords: bool = False, doc: bytes | None = None
) -> Callable[..., Any]:
    """A Python function of a C function (frame, arguments, number of those without a name).

    Parameters
    ----------
    keywords : bool
        The C function takes a fourth argument: names of the arguments behind those, a tuple or 0.
    doc : bytes, optional
        Its docstring; a signature may stand before it.
    """
    make = _python.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    flags = _METH_FASTCALL | (_METH_KEYWORDS if keywords else 0)
    definition = ctypes.addressof(_definition(name, address, flags, doc))
    function: Callable[..., Any] = make(definition, frame, None)
    return function
