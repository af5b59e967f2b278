"""`resize`: a segment's content in another one of other sizes, under the same name.

The old segment is brought to rest under the mark SUCCEEDING: its writers are told that it is retired, and
operations under way are waited for. Then everything is copied, node for node, what is held behind a cut
included; ranks keep their event ids and whether they are degraded. The change of hands is in `succession`.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from .capacity import Capacity
from .contexts import Context, WriterContext
from .dump import Tree, node_tree
from .errors import Busy, CapacityExceeded, SegmentCorrupt, SegmentPermission, SegmentRetired
from .header import Header
from .kernels import context as c
from .kernels import copy
from .kernels.build import ensure
from .laneinfo import lane_info
from .lanes import registry_lock
from .layout import EPOCH, NO_SPACE, SLOT_ACTIVE, SLOT_EPOCH
from .recovery import LaneRecovery
from .refusals import table_use
from .segment import Segment
from .succession import Succession

__all__ = ["resize"]

_TABLES = {c.TABLE_NODES: "nodes", c.TABLE_EXTENTS: "extents", c.TABLE_CHILDREN: "children"}
_KEPT = ("last_event_id", "has_event_id", "degraded", "known")  # of a rank's state


def resize(segment: Segment, capacity: Capacity, patience: float = 1.0) -> None:
    """Put a copy of other sizes in the place of a segment; see `Index.resize`."""
    if not isinstance(capacity, Capacity):
        raise TypeError(f"capacity must be a Capacity, got {type(capacity).__name__}")
    if not patience >= 0:
        raise ValueError(f"patience must be >= 0 seconds, got {patience}")
    if segment.read_only:
        raise SegmentPermission(f"segment {segment.name!r} is attached read-only: attach for writing")
    if segment.retired:
        raise SegmentRetired(f"segment {segment.name!r} is retired: attach anew")
    header = Header.new(capacity, segment.block_size, segment.model, segment.exact_holes)
    ensure()
    for kernel in (copy.open_lane, copy.trim, copy.copy_nodes):  # before writers are told
        kernel.compile()
    with Succession(segment.name, segment.identity) as succession:
        new = succession.make(header)
        succession.mark()
        _come_to_rest(segment, patience)
        _copy(segment, new, patience)
        succession.hand_over()


def _come_to_rest(segment: Segment, patience: float) -> None:
    """Wait until no lane is in an operation; dead ones are recovered.

    An operation that begins from now on sees the mark, and changes nothing.
    """
    recovery = LaneRecovery(segment, patience)
    lanes, n = segment.section_address("lanes"), segment.section_count("lanes")
    deadline, pause = time.monotonic() + patience, 0.0002
    while (lane := copy.open_lane(lanes, n)) >= 0:
        if recovery.recover_lane(lane):
            continue
        if time.monotonic() >= deadline:
            raise Busy(
                f"segment {segment.name!r} is not at rest after {patience:g} s: "
                f"{lane_info(segment, lane).describe()} is in the middle of an operation; it stays as it is"
            )
        time.sleep(pause)
        pause = min(pause * 2, 0.01)


def _copy(old: Segment, new: Segment, patience: float) -> None:
    source, target = Context(old), WriterContext(new, 0)
    # registrations and removals under way end, later ones see the mark
    with registry_lock(old, -1, patience):
        slots = _copy_ranks(old, new)
    tree = node_tree(old, source)
    _check_complete(old, tree)
    lengths, scratch = np.zeros(len(tree.rows), np.int64), np.zeros(len(tree.rows), np.int64)
    arrays = (tree.rows, tree.parents, tree.sequence)
    places = [array.ctypes.data for array in arrays]
    common = (*places, len(tree.sequence), slots.ctypes.data, lengths.ctypes.data)
    n = copy.trim(source.address, *common, scratch.ctypes.data)
    if n > (new.capacity.nodes or 0):
        raise _too_small(old, "nodes", n, new.capacity.nodes)
    nodes = np.zeros(len(tree.rows), np.int64)
    status = n
    if n >= 0:
        status = copy.copy_nodes(source.address, target.address, *common, nodes.ctypes.data)
    if status == c.FULL:
        table = _TABLES.get(target.get(c.C_FULL_TABLE), "extents")
        raise _too_small(old, table, *table_use(new, table))
    if status == copy.DAMAGED:
        raise _damaged(old)


def _copy_ranks(old: Segment, new: Segment) -> npt.NDArray[np.int64]:
    """Enter the known ranks into the new segment, as nobody's; their new slots by old slot, -1 for none."""
    states = old.view("rank_states")
    is_active = (states["state"] & np.uint64(0xFF)) == SLOT_ACTIVE
    kept = np.flatnonzero(is_active & (states["known"] != 0))
    n = len(kept)
    if n > new.capacity.workers:
        raise _too_small(old, "ranks", n, new.capacity.workers)
    slots = np.full(len(states), -1, np.int64)
    slots[kept] = np.arange(n)
    new.view("rank_records")[:n] = old.view("rank_records")[kept]
    fresh = new.view("rank_states")
    for field in _KEPT:
        fresh[field][:n] = states[field][kept]
    fresh["state"][:n] = SLOT_ACTIVE | 1 << SLOT_EPOCH
    new.header["slots_high"] = n
    new.header["epoch"] = 1 << EPOCH
    return slots


def _check_complete(old: Segment, tree: Tree) -> None:
    """Refuse to leave out nodes that are claimed and hang somewhere, but cannot be reached."""
    claimed = np.flatnonzero(old.view("node_claims")[1:]) + 1
    hanging = np.count_nonzero(old.view("nodes")["start"][claimed] >> np.uint64(32) != NO_SPACE)
    if hanging != len(tree.sequence):
        raise _damaged(old)


def _damaged(old: Segment) -> SegmentCorrupt:
    return SegmentCorrupt(
        f"segment {old.name!r} is damaged and stays as it is: `shmtrie verify` says where, `shmtrie rebuild` "
        f"makes it anew from a dump"
    )


def _too_small(old: Segment, table: str, used: int, total: int | None) -> CapacityExceeded:
    return CapacityExceeded(
        f"the content of segment {old.name!r} does not fit: {table} full ({used} of {total}); "
        f"it stays as it is: choose a larger capacity"
    )
