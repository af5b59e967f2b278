"""Words for events that were refused: what, why, and what to do."""

from __future__ import annotations

import numpy as np

from .contexts import WriterContext, signed
from .errors import EventStatus
from .events import EventParts
from .kernels import context as c
from .kernels import registry
from .laneinfo import lane_info
from .layout import SLOT_OWNER
from .segment import Segment

__all__ = ["describe", "table_use"]

_TABLES = {
    c.TABLE_NODES: "nodes",
    c.TABLE_EXTENTS: "extents",
    c.TABLE_CHILDREN: "children",
    c.TABLE_LOG: "the lane's transaction record",
}


def describe(
    segment: Segment, context: WriterContext, patience: float, status: EventStatus, parts: EventParts
) -> str:
    """Say of an event that a lane has just been refused what its user needs to know.

    Parameters
    ----------
    context : WriterContext
        Of the lane, as the refusal left it.
    patience : float
        Seconds that it waited.
    """
    what = f"segment {segment.name!r}, rank {tuple(parts.rank)}"
    if status == EventStatus.CAPACITY_EXCEEDED:
        return f"{what}: {_fullness(segment, _TABLES.get(context.get(c.C_FULL_TABLE), 'ranks'))}"
    if status == EventStatus.BUSY:
        lane = context.get(c.C_BUSY_LANE)
        holder = lane_info(segment, lane).describe() if 0 <= lane < segment.capacity.lanes else "?"
        node = context.get(c.C_BUSY_NODE)
        return f"{what}: node {node} is held by {holder} for more than {patience:g} s: try again"
    if status == EventStatus.RANK_OWNED_ELSEWHERE:
        return f"{what}: {_owner(segment, context, parts)}"
    if status == EventStatus.PARENT_BLOCK_NOT_FOUND:
        return f"{what}: does not hold the parent block {parts.parent}: store its chain first"
    if status == EventStatus.BLOCK_NOT_FOUND:
        return f"{what}: has never stored anything"
    if status == EventStatus.INVALID_BLOCK_SEQUENCE:
        return f"{what}: a hash of the store is its parent's, occurs twice, or is held at or above it"
    if status == EventStatus.SEGMENT_CORRUPT:
        return f"{what}: a node that the store needs is damaged: verify it, and make the segment anew"
    if status == EventStatus.SEGMENT_RETIRED:
        return f"segment {segment.name!r} is retired: attach anew"
    return what


def _owner(segment: Segment, context: WriterContext, parts: EventParts) -> str:
    """Who owns a rank, and what to do."""
    rank = parts.rank
    slot = int(registry.registry_find(context.address, signed(rank.worker_id), rank.dp_rank))
    states = segment.view("rank_states")["state"]
    owner = (int(states[slot]) >> SLOT_OWNER & 0xFF) - 1 if slot >= 0 else -1
    if owner < 0:
        return "belonged to another lane just now: try again"
    if owner >= segment.capacity.lanes:
        return "belongs to a lane that does not exist: see `shmtrie verify`"
    holder = lane_info(segment, owner).describe()
    return f"belongs to {holder}: send its events there, or release it there"


def _fullness(segment: Segment, table: str) -> str:
    """Which table is full, how full, and what to do."""
    if table.startswith("the"):
        return f"the store touches more nodes than {table} holds: split it"
    used, total = table_use(segment, table)
    if table == "extents":
        table = "extents (extents in use / lines of 64 bytes)"
    return f"{table} full ({used} of {total}): remove blocks, or resize the segment"


def table_use(segment: Segment, table: str) -> tuple[int, int | None]:
    """(entries in use, their limit) of nodes, extents (lines), ranks or children."""
    view, capacity = segment.view, segment.capacity
    if table == "nodes":
        return int(np.count_nonzero(view("node_claims")[1:])), capacity.nodes
    if table == "extents":
        return int(np.count_nonzero(view("line_claims"))), capacity.extents
    if table == "ranks":
        return int(np.count_nonzero(view("rank_states")["state"] & np.uint64(0xFF))), capacity.workers
    return int(np.count_nonzero(view("children"))), view("children").size
