"""Vector operations on lines of words, as numba intrinsics: comparing edges, searching buckets, counting
coverage.

Vector loads are plain: for private memory, and for extents whose content is validated by a version check
after the last load or immutable while it is reachable. Generic LLVM vectors; no processor's own
instructions.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shmtrie.addresses import pointer

I = types.int64  # noqa: E741
_i32, _i64 = ir.IntType(32), ir.IntType(64)
_V8 = ir.VectorType(_i64, 8)
_V16 = ir.VectorType(_i32, 16)
_ZERO = ir.Constant(_i64, 0)


def _splat(b, value, n):
    t = ir.VectorType(value.type, n)
    one = b.insert_element(ir.Constant(t, ir.Undefined), value, ir.Constant(_i32, 0))
    return b.shuffle_vector(one, ir.Constant(t, ir.Undefined), ir.Constant(ir.VectorType(_i32, n), [0] * n))


def _mask(b, bits, n):
    return b.zext(b.bitcast(bits, ir.IntType(n)), _i64)


def _load8(b, address):
    return b.load(pointer(b, address, _V8), align=8)


def _load16(b, address):
    return b.load(pointer(b, address, _V16), align=4)


def _store16(b, value, address):
    b.store(value, pointer(b, address, _V16), align=4)


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
def largest(typingctx, a, n):
    """The largest of n u32, a multiple of 16; 0 for none."""

    def codegen(context, b, sig, args):
        best = cgutils.alloca_once_value(b, ir.Constant(_V16, [0] * 16))
        with cgutils.for_range(b, b.lshr(args[1], ir.Constant(_i64, 4))) as loop:
            v, top = _load16(b, b.add(args[0], b.shl(loop.index, ir.Constant(_i64, 6)))), b.load(best)
            b.store(b.select(b.icmp_unsigned(">", v, top), v, top), best)
        return b.zext(_reduce_max(b, b.load(best)), _i64)

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
            b.shuffle_vector(v, undefined, ir.Constant(ir.VectorType(_i32, n), list(range(k, k + n))))
            for k in (0, n)
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
    """Deeper node: slots whose depth is `start` and that cover something go on to start + min(cutoff,
    matched).
    """

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
        b.store(_load8(b, args[1]), pointer(b, args[0], _V8), align=8)
        return _ZERO

    return I(I, I), codegen


@intrinsic
def pack8(typingctx, to, source, mask):
    """Copy those of the 8 words at `source` that the mask has, to words side by side."""

    def codegen(context, b, sig, args):
        v, word = _load8(b, args[1]), pointer(b, args[0], _i64)
        chosen = b.bitcast(b.trunc(args[2], ir.IntType(8)), ir.VectorType(ir.IntType(1), 8))
        kind = ir.FunctionType(ir.VoidType(), [_V8, word.type, chosen.type])
        name = "llvm.masked.compressstore.v8i64"
        b.call(b.module.globals.get(name) or ir.Function(b.module, kind, name), [v, word, chosen])
        return _ZERO

    return I(I, I, I), codegen


@intrinsic
def zero_line(typingctx, to):
    """Clear 64 bytes."""

    def codegen(context, b, sig, args):
        b.store(ir.Constant(_V8, [0] * 8), pointer(b, args[0], _V8), align=8)
        return _ZERO

    return I(I), codegen


@intrinsic
def count16(typingctx, to, first):
    """Store the u32 first, first + 1, ... first + 15."""

    def codegen(context, b, sig, args):
        steps = ir.Constant(_V16, list(range(16)))
        _store16(b, b.add(_splat(b, b.trunc(args[1], _i32), 16), steps), args[0])
        return _ZERO

    return I(I, I), codegen


@intrinsic
def copy_record(typingctx, to, source):
    """Copy 16 bytes."""
    pair = ir.VectorType(_i64, 2)

    def codegen(context, b, sig, args):
        b.store(b.load(pointer(b, args[1], pair), align=8), pointer(b, args[0], pair), align=8)
        return _ZERO

    return I(I, I), codegen
