"""The check's own memory: words of its private array, marks by node and by line, and the list of findings.

Nothing of the segment is written. Kernels get the address of the array as `chk`, beside the reader context
`ctx`; `get` and `put` of the context serve for both.
"""

from __future__ import annotations

from shmtrie.atomics import pl8, pl64, ps8, ps64
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

# what can be found; texts and consequences are in shmtrie/verify_text.py
(
    BAD_ROOT,
    HIGH_NODES,
    ENTRY_RANGE,
    ENTRY_DEAD,
    ENTRY_PLACE,
    ENTRY_TWICE,
    NODE_UNREACHED,
    PARENT_NONE,
    PARENT_DEAD,
    PARENT_END,
    KEY_TWICE,
    NOT_INTERNAL,
    SPACE_RANGE,
    SPACE_TWICE,
    SPACE_OWNER,
    SPACE_COUNT,
    SPACE_LOCKED,
    EDGE_WORD,
    EDGE_LENGTH,
    EXTENT_RANGE,
    EXTENT_CLASS,
    EXTENT_UNCLAIMED,
    EXTENT_SHARED,
    COVER_HEAD,
    WORD_TWICE,
    WORD_EMPTY,
    WORD_START,
    WORD_LONG,
    WORD_FLAGS,
    WORD_SLOT,
    WORD_FREE_SLOT,
    NODE_EMPTY,
    TAIL_UNCOVERED,
    ALIAS_HEAD,
    ALIAS_SLOT_BAD,
    ALIAS_TWICE,
    ALIAS_MISSING,
    ALIAS_UNFLAGGED,
    ALIAS_SHORT,
    LEAK_NODE,
    LEAK_EXTENT,
    CLAIM_PLACE,
    SPAN_TAILS,
    SPAN_TURNING,
    SPAN_CLASS,
    SPAN_USED,
    SUFFIX_RANGE,
    SUFFIX_PATH,
    GATE_STRAY,
    GATE_UNLISTED,
    GATE_HELD,
    LANE_OPEN,
    LANE_LISTS,
    LANE_WORDS,
    NODE_GENERATION,
    FREE_HANGS,
    NODE_MOVED,
) = range(57)
N_CODES = 64
KEPT = 64  # rows of one kind


@jit
def found(chk, code, subject, x, y, moving):
    """Enter a finding; beyond the first few of a kind they are only counted. There is room for N_CODES * KEPT."""
    totals = get(chk, K_TOTALS) + code * 8
    ps64(totals, pl64(totals) + 1)
    n = get(chk, K_FOUND)
    if pl64(totals) <= KEPT:
        row = get(chk, K_FINDINGS) + n * ROW * 8
        ps64(row, code)
        ps64(row + 8, subject)
        ps64(row + 16, x)
        ps64(row + 24, y)
        ps64(row + 32, 1 if moving != 0 else 0)
        put(chk, K_FOUND, n + 1)


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
