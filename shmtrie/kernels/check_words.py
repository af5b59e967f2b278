"""The check's own memory: words of its private array, marks by node and by line, and the list of findings.

Nothing of the segment is written. Kernels get the address of the array as `chk`, beside the reader context
`ctx`; `get` and `put` of the context serve for both.
"""

from __future__ import annotations

from enum import IntEnum

from numba import types

from shmtrie.atomics import lshr, pl8, pl64, ps8, ps64
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.context import C_N_LINES, C_N_NODES, get, put

# words of the array
(
    K_LANES,  # address of lane record 0
    K_N_LANES,
    K_OPEN,  # bit mask of the lanes that are in an operation
    K_LISTED,  # node ids above it were never used
    # private areas, zero at the start
    K_FINDINGS,  # rows of ROW words
    K_FOUND,  # rows written
    K_TOTALS,  # findings by code
    K_NODE_MARKS,  # u8 by node
    K_LINE_MARKS,  # u8 by line number
    K_OWNERS,  # u32 by space: the node whose tail has it, + 1
    K_ENTRIES,  # u32 by space: child entries
    K_BLOCKS,  # i64 by slot: blocks that its words cover
    K_SEEN,  # i64 by slot: node whose word was met last, + 1
    K_ALIAS_SEEN,  # the same of alias directories
    K_ALIAS_WORD,  # i64 by slot: the directory's word
    K_COVER,  # copy of a node's coverage words
    K_COVER_BYTES,
    K_DIRECTORY,  # copy of a node's alias directory
    K_DIRECTORY_BYTES,
    # the node under inspection, as it stood at one version
    S_VERSION,
    S_TAIL,
    S_START,
    S_EDGE,
    S_HEAD,
    S_ALIAS,
    S_SUFFIX,
    S_MOVING,  # an open operation has its hands on it
    S_FLAGGED,  # coverage words with the alias flag
    # counts
    N_LIVE,
    N_RECORDED,  # node ids that only lane records name
    N_ENTRIES,
    N_UNIQUE,  # blocks of all edges
    N_WORDS,  # coverage words
    N_DYING,  # those of slots that are being removed
    N_ALIASES,  # alias extents
    N_EXTENTS,  # claimed ones
    N_EXTENT_LINES,  # lines of those
    N_RECORDED_EXTENTS,
    N_OPEN_LANES,
    N_GATES,  # gate words that are held
) = range(40)
CHECK_WORDS = 48
ROW = 5  # code, subject, two values, 1 if it may be an operation under way

# marks of a node
M_LIVE, M_NAMED, M_MADE, M_FREED, M_TODO, M_ENTRY, M_SPACE = 1, 2, 4, 8, 16, 32, 64
# marks of a line
L_USED, L_NAMED = 1, 2

KEPT = 64  # rows of one kind that are written


class Fault(IntEnum):
    """What can be found; texts and consequences are in shmtrie/verify_text.py."""

    BAD_ROOT = 0
    HIGH_NODES = 1
    ENTRY_RANGE = 2
    ENTRY_DEAD = 3
    ENTRY_PLACE = 4
    ENTRY_TWICE = 5
    NODE_UNREACHED = 6
    PARENT_NONE = 7
    PARENT_DEAD = 8
    PARENT_END = 9
    KEY_TWICE = 10
    NOT_INTERNAL = 11
    SPACE_RANGE = 12
    SPACE_TWICE = 13
    SPACE_OWNER = 14
    SPACE_COUNT = 15
    SPACE_LOCKED = 16
    EDGE_WORD = 17
    EDGE_LENGTH = 18
    EXTENT_RANGE = 19
    EXTENT_CLASS = 20
    EXTENT_UNCLAIMED = 21
    EXTENT_SHARED = 22
    COVER_HEAD = 23
    WORD_TWICE = 24
    WORD_EMPTY = 25
    WORD_START = 26
    WORD_LONG = 27
    WORD_FLAGS = 28
    WORD_SLOT = 29
    WORD_FREE_SLOT = 30
    NODE_EMPTY = 31
    TAIL_UNCOVERED = 32
    ALIAS_HEAD = 33
    ALIAS_SLOT_BAD = 34
    ALIAS_TWICE = 35
    ALIAS_MISSING = 36
    ALIAS_UNFLAGGED = 37
    ALIAS_SHORT = 38
    LEAK_NODE = 39
    LEAK_EXTENT = 40
    CLAIM_PLACE = 41
    SPAN_TAILS = 42
    SPAN_TURNING = 43
    SPAN_CLASS = 44
    SPAN_USED = 45
    SUFFIX_RANGE = 46
    SUFFIX_PATH = 47
    GATE_STRAY = 48
    GATE_UNLISTED = 49
    GATE_HELD = 50
    LANE_OPEN = 51
    LANE_LISTS = 52
    LANE_WORDS = 53
    NODE_GENERATION = 54
    FREE_HANGS = 55
    NODE_MOVED = 56
    QUARANTINED = 57


N_FAULTS = 58


@jit
def _enter(chk, code, subject, x, y, moving):
    totals = get(chk, K_TOTALS) + code * 8
    ps64(totals, pl64(totals) + 1)
    n = get(chk, K_FOUND)
    if pl64(totals) <= KEPT:
        row = get(chk, K_FINDINGS) + n * ROW * 8
        ps64(row, code)
        ps64(row + 8, subject)
        ps64(row + 16, x)
        ps64(row + 24, y)
        ps64(row + 32, moving)
        put(chk, K_FOUND, n + 1)


@inl
def found(chk, code, subject, x, y, moving):
    """Enter a finding; beyond the first few of a kind they are only counted.

    numba compiles a function anew for every constant it is called with: the shifts hide them.
    """
    _enter(chk, types.int64(code), lshr(subject, 0), lshr(x, 0), lshr(y, 0), 1 if moving != 0 else 0)


@inl
def doubt(chk, first):
    """The findings from number `first` on may be of an operation under way."""
    for n in range(first, get(chk, K_FOUND)):
        ps64(get(chk, K_FINDINGS) + (n * ROW + 4) * 8, 1)


@inl
def add(chk, counter, n):
    put(chk, counter, get(chk, counter) + n)


@inl
def marks(chk, node):
    """The marks of a node that is in range."""
    return pl8(get(chk, K_NODE_MARKS) + node)


@inl
def mark_node(ctx, chk, node, bits):
    if 0 <= node < get(ctx, C_N_NODES):
        a = get(chk, K_NODE_MARKS) + node
        ps8(a, pl8(a) | bits)


@inl
def mark_line(ctx, chk, line, bits):
    if 0 < line <= get(ctx, C_N_LINES):
        a = get(chk, K_LINE_MARKS) + line
        ps8(a, pl8(a) | bits)


@inl
def in_motion(chk, node):
    """An open operation names the node, or makes it, or names its space."""
    return marks(chk, node) & (M_NAMED | M_MADE | M_FREED | M_SPACE)
