"""Every access to shared words: atomics and fences on raw addresses, as numba intrinsics.

All values are int64 (addresses, and words as bit patterns), because numba turns uint64 mixed with int64 into
float64. 32-bit loads are zero-extended. "Relaxed" loads and stores are LLVM `monotonic` atomics: never torn,
never hoisted out of a loop. Plain loads (`pl64`) are for private memory and for extents whose content is
validated by a version check after the last load, or immutable while it is reachable. Vector operations are in
vectors.py, what makes an address a pointer in addresses.py; these and kernels/build.py are the only ones that
know llvmlite.
"""

from __future__ import annotations

import platform

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from shmtrie.addresses import pointer

I = types.int64  # noqa: E741
_i1, _i8, _i32, _i64 = (ir.IntType(n) for n in (1, 8, 32, 64))
_ZERO = ir.Constant(_i64, 0)


def _declare(b, name, ret, args):
    return b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(ret, args), name)


# ------------------------------------------------------------------------------------------ loads and stores
def _load(order, width):
    t = ir.IntType(width)

    def codegen(context, b, sig, args):
        value = b.load_atomic(pointer(b, args[0], t), order, width // 8)
        return value if width == 64 else b.zext(value, _i64)

    return codegen


def _store(order, width):
    t = ir.IntType(width)

    def codegen(context, b, sig, args):
        value = args[1] if width == 64 else b.trunc(args[1], t)
        b.store_atomic(value, pointer(b, args[0], t), order, width // 8)
        return _ZERO

    return codegen


@intrinsic
def ld64(typingctx, address):
    """Relaxed 64-bit load."""
    return I(I), _load("monotonic", 64)


@intrinsic
def ld64a(typingctx, address):
    """Acquire 64-bit load."""
    return I(I), _load("acquire", 64)


@intrinsic
def ld64s(typingctx, address):
    """Sequentially consistent 64-bit load."""
    return I(I), _load("seq_cst", 64)


@intrinsic
def ld32(typingctx, address):
    """Relaxed 32-bit load."""
    return I(I), _load("monotonic", 32)


@intrinsic
def st64(typingctx, address, value):
    """Relaxed 64-bit store."""
    return I(I, I), _store("monotonic", 64)


@intrinsic
def st64r(typingctx, address, value):
    """Release 64-bit store."""
    return I(I, I), _store("release", 64)


@intrinsic
def st64s(typingctx, address, value):
    """Sequentially consistent 64-bit store."""
    return I(I, I), _store("seq_cst", 64)


@intrinsic
def st32(typingctx, address, value):
    """Relaxed 32-bit store."""
    return I(I, I), _store("monotonic", 32)


@intrinsic
def pl64(typingctx, address):
    """Plain 64-bit load: private memory, or shared memory that nobody changes meanwhile."""

    def codegen(context, b, sig, args):
        return b.load(pointer(b, args[0], _i64), align=8)

    return I(I), codegen


@intrinsic
def ps64(typingctx, address, value):
    """Plain 64-bit store: private memory."""

    def codegen(context, b, sig, args):
        b.store(args[1], pointer(b, args[0], _i64), align=8)
        return _ZERO

    return I(I, I), codegen


@intrinsic
def pl8(typingctx, address):
    """Plain 8-bit load, zero-extended: private memory."""

    def codegen(context, b, sig, args):
        return b.zext(b.load(pointer(b, args[0], _i8)), _i64)

    return I(I), codegen


@intrinsic
def ps8(typingctx, address, value):
    """Plain 8-bit store: private memory."""

    def codegen(context, b, sig, args):
        b.store(b.trunc(args[1], _i8), pointer(b, args[0], _i8))
        return _ZERO

    return I(I, I), codegen


# ------------------------------------------------------------------------------------------ read-modify-write
def _cas(width):
    t = ir.IntType(width)

    def codegen(context, b, sig, args):
        old, new = (x if width == 64 else b.trunc(x, t) for x in args[1:])
        pair = b.cmpxchg(pointer(b, args[0], t), old, new, "seq_cst", "monotonic")
        return b.zext(b.extract_value(pair, 1), _i64)

    return codegen


@intrinsic
def cas64(typingctx, address, old, new):
    """Compare and swap 64 bits; 1 if it was done. Sequentially consistent on success."""
    return I(I, I, I), _cas(64)


@intrinsic
def cas32(typingctx, address, old, new):
    """Compare and swap 32 bits; 1 if it was done. Sequentially consistent on success."""
    return I(I, I, I), _cas(32)


def _rmw(op):
    def codegen(context, b, sig, args):
        return b.atomic_rmw(op, pointer(b, args[0], _i64), args[1], "seq_cst")

    return codegen


@intrinsic
def add64(typingctx, address, value):
    """Fetch and add, sequentially consistent; the old value."""
    return I(I, I), _rmw("add")


@intrinsic
def and64(typingctx, address, value):
    """Fetch and and, sequentially consistent."""

    def codegen(context, b, sig, args):
        b.atomic_rmw("and", pointer(b, args[0], _i64), args[1], "seq_cst")
        return _ZERO

    return I(I, I), codegen


def _fence(order):
    def codegen(context, b, sig, args):
        b.fence(order)
        return _ZERO

    return codegen


@intrinsic
def fence_acquire(typingctx):
    """Loads before it are not moved behind it."""
    return I(), _fence("acquire")


@intrinsic
def fence_release(typingctx):
    """Stores behind it are not moved before it."""
    return I(), _fence("release")


@intrinsic
def fence_full(typingctx):
    """Store-load fence."""
    return I(), _fence("seq_cst")


@intrinsic
def pause(typingctx):
    """Tell the core that this is a spin."""
    x86 = platform.machine() in ("x86_64", "AMD64")

    def codegen(context, b, sig, args):
        if x86:
            b.call(_declare(b, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        else:
            b.call(_declare(b, "llvm.aarch64.hint", ir.VoidType(), [_i32]), [ir.Constant(_i32, 1)])
        return _ZERO

    return I(), codegen


@intrinsic
def prefetch(typingctx, address):
    """Ask for the line of an address."""

    def codegen(context, b, sig, args):
        p8 = _i8.as_pointer()
        f = b.module.declare_intrinsic(
            "llvm.prefetch", [p8], ir.FunctionType(ir.VoidType(), [p8, _i32, _i32, _i32])
        )
        b.call(f, [b.inttoptr(args[0], p8), *(ir.Constant(_i32, k) for k in (0, 3, 1))])
        return _ZERO

    return I(I), codegen


# ------------------------------------------------------------------------------------------ bit operations
@intrinsic
def lshr(typingctx, value, n):
    """Logical shift right."""

    def codegen(context, b, sig, args):
        return b.lshr(args[0], args[1])

    return I(I, I), codegen


@intrinsic
def ctz(typingctx, value):
    """Number of trailing zero bits of a value that is not 0."""

    def codegen(context, b, sig, args):
        return b.cttz(args[0], ir.Constant(_i1, 1))

    return I(I), codegen


@intrinsic
def ones(typingctx, value):
    """Number of bits that are set."""

    def codegen(context, b, sig, args):
        return b.ctpop(args[0])

    return I(I), codegen


@intrinsic
def mulhi(typingctx, x, y):
    """High 64 bits of the unsigned product."""
    wide = ir.IntType(128)

    def codegen(context, b, sig, args):
        product = b.mul(b.zext(args[0], wide), b.zext(args[1], wide))
        return b.trunc(b.lshr(product, ir.Constant(wide, 64)), _i64)

    return I(I, I), codegen
