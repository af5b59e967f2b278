"""One event applied by a builtin (see `pyapi`): what a writer does when nothing is in the way.

It takes arrays, or lists and tuples of ints, of a rank that the lane knows. Whatever else comes up - other
arguments, a rank to register, a table that has to grow, a gate to wait for, a seat that may be lost - it
leaves to its caller, with nothing done, and so without an error of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from numba import types

from .atomics import ld32, pl64, ps64
from .contexts import WriterContext
from .kernels.batch import apply_one
from .kernels.build import TEST_BUILD, centry, inl, jit
from .kernels.context import (
    BAD_SEQUENCE,
    C_HOOK,
    C_TODO_LANE,
    CLEAR,
    CORRUPT,
    NO_BLOCK,
    NO_PARENT,
    OK,
    REMOVE,
    STORE,
    get,
)
from .lanes import LaneSeat
from .pyapi import (
    F_CONTEXT,
    F_DESCRIPTOR,
    F_ENTERED,
    F_GENERATION,
    F_GENERATION_AT,
    F_MARK,
    F_NONE,
    F_OPEN_AT,
    F_SCRATCH,
    F_SCRATCH_2,
    F_TURN,
    F_VIEW,
    F_VIEW_2,
    LIST_ROOM,
    frame_of,
    hashes_in,
    int_in,
    is_plain,
    new_int,
    rank_in,
    release_buffer,
)
from .pyframe import available, make_builtin, new_frame
from .segment import Segment

__all__ = ["DONE", "LOOK", "NOT_DONE", "Apply", "FastApply"]

Apply = Callable[[int, Any, Any, Any, Any, "int | None"], int]
"""Of kind, rank, parent, local hashes, external hashes, event id: DONE, NOT_DONE (and nothing is), LOOK
(done, and a lane is in the way of a reclaim), or the `EventStatus` by which the event was refused."""

DONE: Final = 0
NOT_DONE: Final = -1
LOOK: Final = -2

_SEEK_CUR = 1
_lseek = types.ExternalFunction("lseek", types.int64(types.int32, types.int64, types.int32))


@jit
def _may_write(frame):
    """Nobody else has the turn, the segment's handle is open, and the seat is still ours: as `Turn` asks.

    A forked child fails at the mark: the descriptor of the seat is closed there.
    """
    return (
        pl64(frame + F_TURN) == 0
        and pl64(pl64(frame + F_OPEN_AT)) != 0
        and ld32(pl64(frame + F_GENERATION_AT)) == pl64(frame + F_GENERATION)
        and _lseek(pl64(frame + F_DESCRIPTOR), 0, _SEEK_CUR) == pl64(frame + F_MARK)
    )


@jit
def _optional(frame, item):
    """(1, is it given, 64-bit pattern) of an int or None; else (0, 0, 0)."""
    if item == pl64(frame + F_NONE):
        return 1, 0, 0
    known, value = int_in(frame, item)
    return known, known, value


@jit
def _apply(frame, args):
    known_kind, kind = int_in(frame, pl64(args))
    known_rank, worker_id, dp_rank = rank_in(frame, pl64(args + 8))
    known_parent, has_parent, parent = _optional(frame, pl64(args + 16))
    known_id, has_id, event_id = _optional(frame, pl64(args + 40))
    if known_kind == 0 or known_rank == 0 or known_parent == 0 or known_id == 0:
        return NOT_DONE
    local, external, n, held, held_2 = 0, 0, 0, 0, 0
    if kind in (STORE, REMOVE):
        if not is_plain(frame, pl64(args + 32)):
            return NOT_DONE
        external, n, held_2 = hashes_in(frame, pl64(args + 32), F_VIEW_2, pl64(frame + F_SCRATCH_2))
        local = external
        if kind == STORE and n >= 0:
            n_local = -1
            if is_plain(frame, pl64(args + 24)):
                local, n_local, held = hashes_in(frame, pl64(args + 24), F_VIEW, pl64(frame + F_SCRATCH))
            if n_local != n:
                n = -1
    elif kind != CLEAR:
        return NOT_DONE
    status = NOT_DONE
    # a long event is for the kernel that lets other threads run
    if 0 <= n <= LIST_ROOM and _may_write(frame):
        ctx = pl64(frame + F_CONTEXT)
        status = apply_one(
            ctx, kind, worker_id, dp_rank, has_parent, parent, local, external, n, event_id, has_id
        )
        if status == OK:
            status = LOOK if get(ctx, C_TODO_LANE) != 0 else DONE
        elif status != NO_PARENT and status != NO_BLOCK and status != BAD_SEQUENCE and status != CORRUPT:
            status = NOT_DONE  # a kernel has counted those: they are not tried again
    if held != 0:
        release_buffer(frame + F_VIEW)
    if held_2 != 0:
        release_buffer(frame + F_VIEW_2)
    return status


@inl
def _has_hook(frame):
    """Pause and crash points may leave a kernel by an exception, which only the dispatcher passes on."""
    return TEST_BUILD and get(pl64(frame + F_CONTEXT), C_HOOK) != 0


@centry("int64(int64, int64, int64)")
def apply_builtin(self, args, n):
    """PyObject *(PyObject *frame, PyObject *const *args, Py_ssize_t n)."""
    frame = frame_of(self)
    status = NOT_DONE
    if n == 6 and pl64(frame + F_ENTERED) == 0 and not _has_hook(frame):
        ps64(frame + F_ENTERED, 1)
        status = _apply(frame, args)
        ps64(frame + F_ENTERED, 0)
    return new_int(status)


def _not_done(*_: Any) -> int:
    return NOT_DONE


class FastApply:
    """The builtin of one writer, or its fallback, which does nothing.

    Parameters
    ----------
    segment : Segment
        Attached for writing.
    context : WriterContext
        Of the lane.
    seat : LaneSeat
        Active.

    Attributes
    ----------
    apply : Apply
        The builtin.
    """

    def __init__(self, segment: Segment, context: WriterContext, seat: LaneSeat) -> None:
        self.apply: Apply = _not_done
        self._frame = frame = new_frame(context, segment.open_word)
        if not available():
            return
        descriptor, mark, generation_at, generation = seat.proof()
        frame[F_DESCRIPTOR // 8], frame[F_MARK // 8] = descriptor, mark
        frame[F_GENERATION_AT // 8], frame[F_GENERATION // 8] = generation_at, generation
        self.apply = make_builtin(b"apply", apply_builtin.address, frame)

    def hold(self, taken: bool) -> None:
        """Whether a thread has its turn elsewhere; the builtin does nothing meanwhile."""
        self._frame[F_TURN // 8] = taken
