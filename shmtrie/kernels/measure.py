"""The kernel part of `stats`: what live nodes hold, how much of their extents they fill. Read-only, bounded.

Beside writers the sums are those of nodes read one after the other, each as it stood at some moment.
"""

from __future__ import annotations

from shmtrie.atomics import ld32, ld64, ld64a, lshr, pl64, ps64
from shmtrie.kernels.build import entry, inl, jit
from shmtrie.kernels.context import (
    C_EXTENTS,
    C_N_LINES,
    C_N_SLOTS,
    C_NODE_CLAIMS,
    C_NODES,
    get,
)
from shmtrie.kernels.coverage import head_form, head_words
from shmtrie.kernels.nodes import nodes_high
from shmtrie.layout import (
    ALIAS_LINES,
    FORM_LIST,
    INLINE_WORDS,
    LINE,
    M31,
    M32,
    MAX_EDGE,
    N_ALIAS,
    N_COVERAGE,
    N_EDGE,
    N_INLINE,
    N_START,
    N_TAIL,
    N_VERSION,
    NO_SPACE,
    NODE_BYTES,
)

# words of the result
M_NODES, M_UNIQUE, M_ROOM, M_WORDS, M_COVERAGE_BYTES, M_ALIAS_BYTES = range(6)
MEASURE_WORDS = 8


@inl
def _add(out, k, n):
    ps64(out + k * 8, pl64(out + k * 8) + n)


@inl
def _extent(ctx, line, lines):
    """Address of an extent, 0 when it does not lie in the section."""
    if line <= 0 or lines <= 0 or line + lines - 1 > get(ctx, C_N_LINES):
        return 0
    return get(ctx, C_EXTENTS) + line * LINE


@jit
def _coverage(ctx, out, a):
    head = ld64(a + N_COVERAGE)
    n = 0
    if head == 0:
        for k in range(INLINE_WORDS):
            n += ld64(a + N_INLINE + k * 8) != 0
        _add(out, M_WORDS, n)
        return
    words = head_words(head)
    size = 8 if head_form(head) == FORM_LIST else 4
    x = _extent(ctx, head & M32, (words * size + LINE - 1) // LINE)
    if x == 0 or words > ((get(ctx, C_N_SLOTS) + 15) & ~15):
        return
    for k in range(words):
        n += (ld64(x + k * 8) if size == 8 else ld32(x + k * 4)) != 0
    _add(out, M_WORDS, n)
    _add(out, M_COVERAGE_BYTES, n * size)


@jit
def _aliases(ctx, out, a):
    head = ld64(a + N_ALIAS)
    words = lshr(head, 32)
    if head == 0 or words > 2 * get(ctx, C_N_SLOTS) + 8:
        return
    x = _extent(ctx, head & M32, (words + 7) // 8)
    if x == 0:
        return
    for k in range(words):
        word = ld64(x + k * 8)
        if word != 0:
            _add(out, M_ALIAS_BYTES, 8 + (lshr(word, ALIAS_LINES) & 0xFFFF) * LINE)


@entry("int64(int64, int64)")
def measure(ctx, out):
    """Add up the live nodes into MEASURE_WORDS zeroed words at `out`; the number of nodes."""
    for node in range(1, nodes_high(ctx)):
        if ld32(get(ctx, C_NODE_CLAIMS) + node * 4) == 0:
            continue
        a = get(ctx, C_NODES) + node * NODE_BYTES
        version, begin = ld64a(a + N_VERSION), ld64(a + N_START)
        if lshr(version, 32) == 0 or lshr(begin, 32) == NO_SPACE:
            continue
        length = (ld64(a + N_TAIL) & M31) - (begin & M32)
        if length <= 0 or length > MAX_EDGE:
            continue
        _add(out, M_NODES, 1)
        _add(out, M_UNIQUE, length)
        _add(out, M_ROOM, lshr(ld64(a + N_EDGE), 32))
        _coverage(ctx, out, a)
        _aliases(ctx, out, a)
    return pl64(out + M_NODES * 8)
