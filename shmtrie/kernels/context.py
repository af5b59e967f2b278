"""The context: one private array of int64 words per handle, by which its kernels know everything.

Kernels get the raw address of the array (`ctx`); `get`/`put` read and write one word. The first part is the
geometry of the segment as addresses of this process; then the private tables and scratch areas of the handle;
then what a kernel reports beside its status.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from shmtrie.atomics import pl64, ps64
from shmtrie.kernels.build import inl

# words of the context
(
    C_BASE,  # address of the segment
    C_HEADER_EPOCH,  # addresses of header words
    C_NODES,  # address of node 0
    C_N_NODES,  # node ids are below it
    C_NODE_CLAIMS,
    C_CHILDREN,
    C_N_BUCKETS,
    C_SEED,
    C_SPANS,
    C_N_SPANS,
    C_CLAIMS,  # address of the claim word of line 0 (lines count from 1)
    C_EXTENTS,  # address of line 0
    C_N_LINES,  # valid line numbers are 1 .. N_LINES
    C_RECORDS,  # rank records
    C_STATES,  # rank states
    C_N_SLOTS,
    C_LANE,  # own lane number, -1 in a reader
    C_RECORD,  # address of the own lane record
    C_OPERATION,  # own operation number
    C_HOLES,  # 1 in a segment with exact_holes
    C_EXACT,  # 1 while a store keeps what is behind a block that it moves; 0: there was no room for a split
    # reader scratch; slots are u32
    C_DEPTHS,  # u32 by slot, zero between calls
    C_SLOTS,  # u32 list of slots seen
    C_OUT_RECORDS,
    C_OUT_DEPTHS,
    C_OUT_HASHES,
    C_HASHES,  # by slot
    C_NEW_HASHES,
    C_GIVEUPS,  # counted privately: readers write nothing to the segment
    C_REDOS,
    # private lookup
    C_LOOKUP,  # directory of its parts: lines of 8 entries
    C_ALIASES,  # the same of ranks' own hashes: lines of 4
    C_HAS_ALIASES,  # 1 once there was an entry of those
    C_STALE,  # moves when entries of either may be left over
    C_PART_NEEDS,  # by part: entries that an event may add to one of the two
    C_MINE,  # u32 by slot: all ones where this lane owns the rank
    C_EPOCH_SEEN,
    # private map (worker_id, dp_rank) -> slot: entries of 16 bytes
    C_RANK_MAP,
    C_RANK_MAP_MASK,
    # writer scratch
    C_TOUCHED,  # rows of the nodes that a store touches
    C_TOUCHED_ROOM,
    C_N_TOUCHED,
    C_CUTS,  # (node, depth) of places that a store moves away from
    C_N_CUTS,
    C_SEEN,  # stamped table for repeated hashes in a store
    C_SEEN_MASK,
    C_SEEN_STAMP,
    # hints for allocation
    C_NODE_HINTS,
    C_N_NODE_HINTS,
    C_NODE_CURSOR,
    C_LINE_HINTS,
    C_SPAN_CURSOR,
    # what a kernel reports
    C_FULL_TABLE,  # which table was full
    C_BUSY_LANE,
    C_BUSY_NODE,
    C_TODO_LANE,  # lane + 1 that keeps a node on the to-do list, or that has to test one itself; 0 none
    C_FINAL,  # 1: a full table is the answer; 0: the handle looks for dead lanes first
    C_WITHDREW,  # 1: the last gate that was busy had been owned, and was let go again
    C_NEEDED,  # how much room a kernel asks for: SCRATCH
    # a store's plan beside TOUCHED and CUTS
    C_SPLIT_NODE,  # node to split, 0 none
    C_SPLIT_DEPTH,
    C_REST,  # index of the first block that goes into new nodes
    C_REST_NODE,  # the node that gets them as a child
    C_REST_DEPTH,
    C_TOP,  # the first of the new nodes
) = cast("list[int]", [np.int64(k) for k in range(65)])  # no plain ints: helpers are then compiled once
C_HOOK = 120  # control array of the test build

CONTEXT_WORDS = 128
ALL_ONES = 0xFFFF_FFFF  # in C_MINE

STORE, REMOVE, CLEAR = 1, 2, 3  # kinds of events

# kernel status: errors.EventStatus, and beyond it what the handles settle
OK, NO_PARENT, NO_BLOCK, BAD_SEQUENCE, FULL, BUSY, RETIRED, UNSUPPORTED, CORRUPT = 0, 1, 2, 3, 4, 5, 8, 9, 10
RETRY, GROW, UNKNOWN_RANK, SCRATCH, ROWS, GROW_ALIASES, TODO, HOLE = 32, 33, 34, 35, 36, 37, 38, 39
SUSPECT = 40
# tables of FULL_TABLE
TABLE_NODES, TABLE_EXTENTS, TABLE_CHILDREN, TABLE_LOG = 1, 2, 3, 4


@inl
def get(ctx, k):
    return pl64(ctx + k * 8)


@inl
def put(ctx, k, value):
    ps64(ctx + k * 8, value)
