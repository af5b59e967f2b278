"""Every access to shared words: atomics, fences and vector operations on raw addresses, as numba intrinsics.

All values are int64 (addresses, and words as bit patterns), because numba turns uint64 mixed with int64 into
float64. 32-bit loads are zero-extended. "Relaxed" loads and stores are LLVM `monotonic` atomics: never torn,
never hoisted out of a loop. Plain loads (`pl64`) and vector loads are for private memory and for extents whose
content is validated by a version check after the last load, or immutable while it is reachable.

This is the only file, beside kernels/build.py, that knows llvmlite.
"""

from __future__ import annotations

import platform

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I = types.int64  # noqa: E741
_i1, _i8, _i16, _i32, _i64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
_V8 = ir.VectorType(_i64, 8)
_V16 = ir.VectorType(_i32, 16)
_ZERO = ir.Constant(_i64, 0)


def _ptr(b, address, type_):
    return b.inttoptr(address, type_.as_pointer())


def _splat(b, value, n):
    t = ir.VectorType(value.type, n)
    one = b.insert_element(ir.Constant(t, ir.Undefined), value, ir.Constant(_i32, 0))
    return b.shuffle_vector(one, ir.Constant(t, ir.Undefined), ir.Constant(ir.VectorType(_i32, n), [0] * n))


def _mask(b, bits, n):
    return b.zext(b.bitcast(bits, ir.IntType(n)), _i64)


def _declare(b, name, ret, args):
    return b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(ret, args), name)


# ------------------------------------------------------------------------------------------ loads and stores
def _load(order, width):
    t = ir.IntType(width)

    def codegen(context, b, sig, args):
        value = b.load_atomic(_ptr(b, args[0], t), order, width // 8)
        return value if width == 64 else b.zext(value, _i64)

    return codegen


def _store(order, width):
    t = ir.IntType(width)

    def codegen(context, b, sig, args):
        value = args[1] if width == 64 else b.trunc(args[1], t)
        b.store_atomic(value, _ptr(b, args[0], t), order, width // 8)
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
        return b.load(_ptr(b, args[0], _i64), align=8)

    return I(I), codegen


@intrinsic
def ps64(typingctx, address, value):
    """Plain 64-bit store: private memory."""

    def codegen(context, b, sig, args):
        b.store(args[1], _ptr(b, args[0], _i64), align=8)
        return _ZERO

    return I(I, I), codegen


@intrinsic
def pl8(typingctx, address):
    """Plain 8-bit load, zero-extended: private memory."""

    def codegen(context, b, sig, args):
        return b.zext(b.load(_ptr(b, args[0], _i8)), _i64)

    return I(I), codegen


@intrinsic
def ps8(typingctx, address, value):
    """Plain 8-bit store: private memory."""

    def codegen(context, b, sig, args):
        b.store(b.trunc(args[1], _i8), _ptr(b, args[0], _i8))
        return _ZERO

    return I(I, I), codegen


# ------------------------------------------------------------------------------------------ read-modify-write
def _cas(width):
    t = ir.IntType(width)

    def codegen(context, b, sig, args):
        old, new = (x if width == 64 else b.trunc(x, t) for x in args[1:])
        pair = b.cmpxchg(_ptr(b, args[0], t), old, new, "seq_cst", "monotonic")
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
        return b.atomic_rmw(op, _ptr(b, args[0], _i64), args[1], "seq_cst")

    return codegen


@intrinsic
def add64(typingctx, address, value):
    """Fetch and add, sequentially consistent; the old value."""
    return I(I, I), _rmw("add")


@intrinsic
def and64(typingctx, address, value):
    """Fetch and and, sequentially consistent."""

    def codegen(context, b, sig, args):
        b.atomic_rmw("and", _ptr(b, args[0], _i64), args[1], "seq_cst")
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
        b.call(f, [_ptr(b, args[0], _i8), *(ir.Constant(_i32, k) for k in (0, 3, 1))])
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
def mulhi(typingctx, x, y):
    """High 64 bits of the unsigned product."""
    wide = ir.IntType(128)

    def codegen(context, b, sig, args):
        product = b.mul(b.zext(args[0], wide), b.zext(args[1], wide))
        return b.trunc(b.lshr(product, ir.Constant(wide, 64)), _i64)

    return I(I, I), codegen


# ------------------------------------------------------------------------------------------ vectors
def _load8(b, address):
    return b.load(_ptr(b, address, _V8), align=8)


def _load16(b, address):
    return b.load(_ptr(b, address, _V16), align=4)


def _store16(b, value, address):
    b.store(value, _ptr(b, address, _V16), align=4)


@intrinsic
def ne8(typingctx, a, q):
    """Mask of the 8 words at `a` that differ from those at `q`."""

    def codegen(context, b, sig, args):
        return _mask(b, b.icmp_unsigned("!=", _load8(b, args[0]), _load8(b, args[1])), 8)

    return I(I, I), codegen


@intrinsic
def eq8(typingctx, a, mask, value):
    """Mask of the 8 words at `a` with (word & mask) == value."""

    def codegen(context, b, sig, args):
        masked = b.and_(_load8(b, args[0]), _splat(b, args[1], 8))
        return _mask(b, b.icmp_unsigned("==", masked, _splat(b, args[2], 8)), 8)

    return I(I, I, I), codegen


@intrinsic
def eq16(typingctx, a, mask, value):
    """Mask of the 16 u32 at `a` with (word & mask) == value."""

    def codegen(context, b, sig, args):
        m, v = (_splat(b, b.trunc(x, _i32), 16) for x in args[1:])
        return _mask(b, b.icmp_unsigned("==", b.and_(_load16(b, args[0]), m), v), 16)

    return I(I, I, I), codegen


@intrinsic
def gt16(typingctx, a, mask, value):
    """Mask of the 16 u32 at `a` with (word & mask) > value, unsigned."""

    def codegen(context, b, sig, args):
        m, v = (_splat(b, b.trunc(x, _i32), 16) for x in args[1:])
        return _mask(b, b.icmp_unsigned(">", b.and_(_load16(b, args[0]), m), v), 16)

    return I(I, I, I), codegen


@intrinsic
def max16(typingctx, a, mask):
    """Largest (word & mask) of 16 u32."""

    def codegen(context, b, sig, args):
        v = b.and_(_load16(b, args[0]), _splat(b, b.trunc(args[1], _i32), 16))
        return b.zext(_reduce_max(b, v), _i64)

    return I(I, I), codegen


@intrinsic
def max16_of(typingctx, a, select, skip):
    """Largest cutoff of 16 coverage words whose `select` word is not 0 and that have no bit of `skip`."""

    def codegen(context, b, sig, args):
        v, s = _load16(b, args[0]), _load16(b, args[1])
        zero = ir.Constant(_V16, [0] * 16)
        k = _splat(b, b.trunc(args[2], _i32), 16)
        use = b.and_(b.icmp_unsigned("!=", s, zero), b.icmp_unsigned("==", b.and_(v, k), zero))
        cut = b.and_(v, _splat(b, ir.Constant(_i32, 0xFFF), 16))
        return b.zext(_reduce_max(b, b.select(use, cut, zero)), _i64)

    return I(I, I, I), codegen


def _reduce_max(b, v):
    n = 16
    while n > 1:
        n //= 2
        undefined = ir.Constant(v.type, ir.Undefined)
        halves = [
            b.shuffle_vector(v, undefined, ir.Constant(ir.VectorType(_i32, n), list(range(k, k + n)))) for k in (0, n)
        ]
        v = b.select(b.icmp_unsigned(">", *halves), *halves)
    return b.extract_element(v, ir.Constant(_i32, 0))


def _covered(b, word):
    """Vector (cutoff where start is 0, else 0) of 16 coverage words."""
    zero = ir.Constant(_V16, [0] * 16)
    start = b.and_(word, _splat(b, ir.Constant(_i32, 0xFFF000), 16))
    cut = b.and_(word, _splat(b, ir.Constant(_i32, 0xFFF), 16))
    return b.select(b.icmp_unsigned("==", start, zero), cut, zero)


@intrinsic
def dense_first(typingctx, coverage, depth, matched, length):
    """First node: depth[k] = min(cutoff[k], matched) for 16 slots; mask of the slots that cover `length`."""

    def codegen(context, b, sig, args):
        cut = _covered(b, _load16(b, args[0]))
        top, full = (_splat(b, b.trunc(x, _i32), 16) for x in args[2:])
        _store16(b, b.select(b.icmp_unsigned("<", cut, top), cut, top), args[1])
        return _mask(b, b.icmp_unsigned(">=", cut, full), 16)

    return I(I, I, I, I), codegen


@intrinsic
def dense_next(typingctx, coverage, depth, start, matched, length):
    """Deeper node: slots whose depth is `start` and that cover something go on to start + min(cutoff, matched)."""

    def codegen(context, b, sig, args):
        cut, d = _covered(b, _load16(b, args[0])), _load16(b, args[1])
        at, top, full = (_splat(b, b.trunc(x, _i32), 16) for x in args[2:])
        alive = b.and_(b.icmp_unsigned("==", d, at), b.icmp_unsigned("!=", cut, ir.Constant(_V16, [0] * 16)))
        to = b.add(at, b.select(b.icmp_unsigned("<", cut, top), cut, top))
        _store16(b, b.select(alive, to, d), args[1])
        return _mask(b, b.and_(alive, b.icmp_unsigned(">=", cut, full)), 16)

    return I(I, I, I, I, I), codegen


@intrinsic
def clamp16(typingctx, depth, limit):
    """depth[k] = min(depth[k], limit) for 16 u32."""

    def codegen(context, b, sig, args):
        d, top = _load16(b, args[0]), _splat(b, b.trunc(args[1], _i32), 16)
        _store16(b, b.select(b.icmp_unsigned("<", d, top), d, top), args[0])
        return _ZERO

    return I(I, I), codegen


@intrinsic
def copy_line(typingctx, to, source):
    """Copy 64 bytes."""

    def codegen(context, b, sig, args):
        b.store(_load8(b, args[1]), _ptr(b, args[0], _V8), align=8)
        return _ZERO

    return I(I, I), codegen


@intrinsic
def zero_line(typingctx, to):
    """Clear 64 bytes."""

    def codegen(context, b, sig, args):
        b.store(ir.Constant(_V8, [0] * 8), _ptr(b, args[0], _V8), align=8)
        return _ZERO

    return I(I), codegen


@intrinsic
def copy_record(typingctx, to, source):
    """Copy 16 bytes."""
    pair = ir.VectorType(_i64, 2)

    def codegen(context, b, sig, args):
        b.store(b.load(_ptr(b, args[1], pair), align=8), _ptr(b, args[0], pair), align=8)
        return _ZERO

    return I(I, I), codegen
