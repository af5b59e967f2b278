"""The layout of a segment: every section, record, field and bit, declared once.

Offsets are derived from numpy structured dtypes; kernels import the resulting integers. A segment carries
`LAYOUT_HASH` in its header, so that a process with another layout is refused at attach.

Sections, in file order (each starts on a page)::

    header | lanes | rank_records | rank_states | nodes | node_claims | children | spans | line_claims |
    extents

Words are little-endian. An *offset* in a transaction record is in bytes from the start of the segment; an
extent is named by a 32-bit *line* number (64-byte lines, counted from 1, so that 0 means none).
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

# ------------------------------------------------------------------------------------------------ limits
LINE, PAGE = 64, 4096  # bytes
MAX_LANES, MAX_SLOTS = 48, 65_535
MAX_NODES = 2**32 - 2
MAX_EDGE = 2_048  # blocks; a longer chain goes on in a child
MAX_STORE = 1 << 20  # blocks of one store or one query
MAX_DEPTH = 2**31 - 1
SPAN_LINES = 1_024  # lines of one span (64 KiB)
BUCKET = 8  # entries of one child bucket (one line)
LANE_GATES = 4_096  # nodes that one transaction can hold
LANE_LOG = 4_096  # entries of its undo list and of its redo list; both go on in chunks
CHUNK_LINES = SPAN_LINES  # an extent that a list goes on in
GATE_CHUNKS, LOG_CHUNKS = 160, 1_536  # chunks of the gate list, and of each log
GATES_A_CHUNK, LOG_A_CHUNK = CHUNK_LINES * LINE // 8, CHUNK_LINES * LINE // 24
LANE_TODO = 256  # nodes left for a later reclaim test
M12, M31, M32 = (1 << 12) - 1, (1 << 31) - 1, (1 << 32) - 1


def _record(fields: list[tuple[Any, ...]], size: int) -> np.dtype:
    """A structured dtype of `size` bytes from (name, format[, shape]) rows laid out one after the other."""
    names, formats, offsets, at = [], [], [], 0
    for row in fields:
        name = row[0]
        if name == "_line":  # move to the next cache line
            at = -(-at // LINE) * LINE
            continue
        dtype = np.dtype(row[1:] if len(row) > 2 else row[1])
        names.append(name)
        formats.append(dtype)
        offsets.append(at)
        at += dtype.itemsize
    assert at <= size, (at, size)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def offset(dtype: np.dtype, field: str) -> int:
    """Byte offset of a field in a record."""
    assert dtype.fields is not None
    return int(dtype.fields[field][1])


# ------------------------------------------------------------------------------------------------ header
SECTIONS = (
    "lanes",
    "rank_records",
    "rank_states",
    "nodes",
    "node_claims",
    "children",
    "spans",
    "line_claims",
    "extents",
)
SECTION = np.dtype([("offset", "<u8"), ("count", "<u8"), ("itemsize", "<u8")])
MAGIC = b"shmtrie\0"
LAYOUT_VERSION = 1
WORD_MARK = 0x0102_0304_0506_0708  # reads differently on a machine of another byte order
FLAG_EXACT_HOLES = 1

HEADER = _record(
    [
        ("magic", "S8"),
        ("layout_version", "<u4"),
        ("header_crc", "<u4"),  # CRC-32 of the immutable part with this field 0
        ("word_mark", "<u8"),
        ("layout_hash", "<u8"),
        ("uuid", "V16"),
        ("boot_id", "V16"),
        ("total_bytes", "<u8"),
        ("created_ns", "<u8"),
        ("creator_pid", "<u8"),
        ("seed", "<u8"),  # of the child table's hash
        ("flags", "<u4"),
        ("block_size", "<u4"),
        ("capacity", "<u8", (8,)),  # blocks, workers, lanes, nodes, aliases, extents, 0, 0
        ("model", "S256"),
        ("sections", SECTION, (16,)),
        ("_line",),
        ("immutable_end", "V64"),
        ("ready", "<u8"),  # stored last by the creator
        ("_line",),
        ("retired", "<u8"),
        ("registering", "<u8"),  # lane + 1 of who holds the registry lock; for messages only
        ("_line",),
        ("epoch", "<u8"),  # assignment epoch << 16 | number of DYING slots
        ("slots_high", "<u8"),  # slots ever assigned
        ("_line",),
        ("nodes_high", "<u8"),  # node ids ever claimed are below it
    ],
    PAGE,
)
RETIRED, SUCCEEDING = 1, 2  # values of `retired`: for good; while a successor is being made
H_IMMUTABLE_END = offset(HEADER, "immutable_end")
H_READY = offset(HEADER, "ready")
H_RETIRED = offset(HEADER, "retired")
H_EPOCH = offset(HEADER, "epoch")
H_SLOTS_HIGH = offset(HEADER, "slots_high")
H_NODES_HIGH = offset(HEADER, "nodes_high")

# ------------------------------------------------------------------------------------------------ lanes
# locks on bytes of the file: a lane's seat, registration of ranks, creator, succession, taking a seat
LOCK_LANE, LOCK_REGISTRY, LOCK_CREATOR, LOCK_SUCCESSION, LOCK_TAKING = 0, 64, 65, 66, 128
LANE_FREE, LANE_ACTIVE, LANE_RECOVERING = 0, 1, 2
# counters of rare or per-event things, one writer each
COUNTERS = (
    "events",
    "blocks_stored",
    "blocks_removed",
    "duplicate_stores",
    "splits",
    "repairs",
    "reclaims",
    "truncations",
    "replans",
    "busy",
    "rejected_parent",
    "rejected_block",
    "rejected_sequence",
    "rejected_capacity",
    "rejected_owner",
    "recoveries",
    "recovery_tries",
    "cut_short",
    "rejected_corrupt",
    "quarantined",
)
_LANE_NEEDS = 8 * LINE + 8 * (len(COUNTERS) + LANE_TODO + LANE_GATES + 6 * LANE_LOG)
_LANE_NEEDS += 4 * (GATE_CHUNKS + 2 * LOG_CHUNKS)
LANE = _record(
    [
        ("state", "<u4"),
        ("generation", "<u4"),
        ("pid", "<u8"),
        ("start_time", "<u8"),
        ("pid_namespace", "<u8"),
        ("joined_ns", "<u8"),
        ("_line",),
        ("op_counter", "<u8"),  # odd while an operation runs
        ("_line",),
        ("phase", "<u8"),  # phase | operation number << 8
        ("n_gates", "<u8"),
        ("n_undo", "<u8"),
        ("n_redo", "<u8"),
        ("redo_at", "<u8"),  # redo entries before it are done
        ("n_todo", "<u8"),
        ("todo_scan", "<u8"),  # node ids below it are all to be tested: the list was full
        ("_line",),
        ("space", "<u8"),  # the section under a space lock: which space,
        ("space_count", "<u8"),  # its count word before the lock,
        ("space_entry", "<u8"),  # offset of the entry,
        ("space_value", "<u8"),  # the entry's value while the child is in,
        ("space_change", "<i8"),  # +1 the entry comes in, -1 it goes, 0 none
        ("_line",),
        ("counters", "<u8", (len(COUNTERS),)),
        ("_line",),
        ("n_chunks", "<u8", (3,)),  # extents in which the lists below go on: gates, undo, redo
        ("_line",),
        ("todo", "<u8", (LANE_TODO,)),
        ("gates", "<u8", (LANE_GATES,)),
        ("undo", "<u8", (LANE_LOG, 3)),  # kind << 56 | offset, old, new
        ("redo", "<u8", (LANE_LOG, 3)),
        ("chunks", "<u4", (GATE_CHUNKS + 2 * LOG_CHUNKS,)),  # their first lines
    ],
    -(-_LANE_NEEDS // PAGE) * PAGE,
)
L_OP = offset(LANE, "op_counter")
L_PHASE = offset(LANE, "phase")
L_NGATES = offset(LANE, "n_gates")
L_NUNDO = offset(LANE, "n_undo")
L_NREDO = offset(LANE, "n_redo")
L_REDO_AT = offset(LANE, "redo_at")
L_NTODO = offset(LANE, "n_todo")
L_SPACE = offset(LANE, "space")
L_SPACE_COUNT = offset(LANE, "space_count")
L_SPACE_ENTRY = offset(LANE, "space_entry")
L_SPACE_VALUE = offset(LANE, "space_value")
L_SPACE_CHANGE = offset(LANE, "space_change")
L_COUNTERS = offset(LANE, "counters")
L_TODO = offset(LANE, "todo")
L_TODO_SCAN = offset(LANE, "todo_scan")
L_GATES = offset(LANE, "gates")
L_UNDO = offset(LANE, "undo")
L_REDO = offset(LANE, "redo")
L_NCHUNKS = offset(LANE, "n_chunks")
L_CHUNKS = offset(LANE, "chunks")
LANE_BYTES = LANE.itemsize

PHASE_IDLE, PHASE_UNDO, PHASE_REDO, PHASE_RELEASE = 0, 1, 2, 3
# kinds of list entries (top byte of the first word)
LOG_CAS64, LOG_CAS32, LOG_BUMP, LOG_NODE, LOG_CHILD, LOG_FREE, LOG_UNLINK = range(7)
LOG_KIND = 56

# ------------------------------------------------------------------------------------------------ ranks
RANK_RECORD = _record([("worker_id", "<u8"), ("dp_rank", "<u4"), ("flags", "<u4")], 16)
SLOT_FREE, SLOT_ACTIVE, SLOT_DYING = 0, 1, 2
SLOT_OWNER, SLOT_GENERATION, SLOT_EPOCH = 8, 16, 32  # shifts in `state`
EPOCH = 16  # shift in the header's epoch word
RANK_STATE = _record(
    [
        ("state", "<u8"),  # state 8 | owner lane + 1: 8 | generation 16 | epoch of assignment 32
        ("blocks", "<i8"),
        ("last_event_id", "<u8"),
        ("has_event_id", "<u4"),
        ("degraded", "<u4"),
        ("known", "<u4"),  # a store of the rank has been applied since it got the slot
    ],
    LINE,
)
R_STATE = offset(RANK_STATE, "state")
R_BLOCKS = offset(RANK_STATE, "blocks")
R_EVENT_ID = offset(RANK_STATE, "last_event_id")
R_HAS_EVENT_ID = offset(RANK_STATE, "has_event_id")
R_DEGRADED = offset(RANK_STATE, "degraded")
R_KNOWN = offset(RANK_STATE, "known")
RANK_STATE_BYTES = RANK_STATE.itemsize

# ------------------------------------------------------------------------------------------------ nodes
NODE = _record(
    [
        # reader line
        ("tail", "<u8"),  # end depth 31 | internal 1 | child space 32
        ("version", "<u8"),  # shape_version 32 | generation 32
        ("start", "<u8"),  # start depth 32 | space it hangs in 32
        ("edge", "<u8"),  # extent line 32 | capacity in blocks 32
        ("coverage", "<u8"),  # extent line 32 | form 8 | words 24; 0 = inline
        ("inline", "<u8", (3,)),
        # writer line
        ("shape_gate", "<u8"),  # shared holders by lane 48 | exclusive owner + 1: 8
        ("suffix", "<u8"),  # node 32 | its generation 32
        ("owner", "<u8"),  # of the space with this node slot's number
        ("count", "<u8"),  # children of that space 32 | lock: lane + 1
        ("alias", "<u8"),  # extent line 32 | words 32: directory of alias extents
        ("quarantined", "<u8"),  # 1: damaged, and set aside by a writer
    ],
    2 * LINE,
)
N_TAIL = offset(NODE, "tail")
N_VERSION = offset(NODE, "version")
N_START = offset(NODE, "start")
N_EDGE = offset(NODE, "edge")
N_COVERAGE = offset(NODE, "coverage")
N_INLINE = offset(NODE, "inline")
N_GATE = offset(NODE, "shape_gate")
N_SUFFIX = offset(NODE, "suffix")
N_OWNER = offset(NODE, "owner")
N_COUNT = offset(NODE, "count")
N_ALIAS = offset(NODE, "alias")
N_QUARANTINED = offset(NODE, "quarantined")
NODE_BYTES = NODE.itemsize
INLINE_WORDS = 3
INTERNAL = 1 << 31  # in `tail`
NO_SPACE = M32  # a free node hangs here
GATE_OWNER = 48  # shift of the exclusive owner
GATE_SHARED = (1 << 48) - 1

# coverage words: low 32 bits = cutoff 12 | start 12 | flags 8, both relative to the node's start;
# inline and list words carry the slot in the high half, the dense form is the low half alone, by slot
COV_START = 12
COV_ALIAS = 1 << 24
COV_PRESENT = 1 << 31
COV_SLOT = 32
FORM_INLINE, FORM_LIST, FORM_DENSE = 0, 1, 2
HEAD_FORM, HEAD_WORDS = 32, 40

# alias directory words: slot + 1: 16 | capacity in lines 16 | extent line 32
ALIAS_SLOT, ALIAS_LINES = 48, 32

# ------------------------------------------------------------------------------------------------ extents
# word: class in lines 16 | converting lane + 1: 8 | turns 32
SPAN = np.dtype([("word", "<u8"), ("used", "<u8")])
SPAN_BYTES = SPAN.itemsize
SPAN_CONVERTING, SPAN_TURN = 16, 32
SPAN_TAIL = 0xFFFF  # class of the spans behind the first of an extent longer than a span
CLAIM_OP_BITS = 26  # claim words: operation number 26 | lane + 1: 6; 0 = free


def _class_sizes() -> list[int]:
    """Exact to 16 lines, then cuts of 1,024 lines, each at most a quarter above the class below."""
    sizes = list(range(17))
    while sizes[-1] < SPAN_LINES:
        cuts = {SPAN_LINES // n for n in range(1, SPAN_LINES // sizes[-1])}
        sizes.append(max((x for x in cuts if x * 8 <= sizes[-1] * 9), default=min(cuts)))
    return sizes


CLASS_SIZES = _class_sizes()  # lines of each class; index 0 is none
N_CLASSES = len(CLASS_SIZES)
CLASS_OF = np.searchsorted(CLASS_SIZES, np.arange(SPAN_LINES + 1)).astype(np.int64)  # class by lines needed


def size_class(lines: int) -> tuple[int, int]:
    """Index and size in lines of the smallest class that holds `lines`, 1 <= lines <= 1,024."""
    index = int(CLASS_OF[lines])
    return index, CLASS_SIZES[index]


ITEMSIZE = {
    "lanes": LANE_BYTES,
    "rank_records": RANK_RECORD.itemsize,
    "rank_states": RANK_STATE_BYTES,
    "nodes": NODE_BYTES,
    "node_claims": 4,
    "children": LINE,
    "spans": SPAN_BYTES,
    "line_claims": 4,
    "extents": LINE,
}


def _hash() -> int:
    parts = [
        repr((d.names, [str(d.fields[n][0]) + "@" + str(d.fields[n][1]) for n in d.names or ()], d.itemsize))
        for d in (HEADER, LANE, RANK_RECORD, RANK_STATE, NODE, SPAN)
        if d.fields is not None
    ]
    parts.append(
        repr((LAYOUT_VERSION, SECTIONS, ITEMSIZE, MAX_EDGE, SPAN_LINES, CLASS_SIZES, BUCKET, CLAIM_OP_BITS))
    )
    return int.from_bytes(hashlib.sha256("".join(parts).encode()).digest()[:8], "little")


LAYOUT_HASH = _hash()
