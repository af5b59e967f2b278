"""`dump_events`: store events that rebuild the same scores in an empty index."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .contexts import Context
from .event_types import KvCacheEvent, KvCacheStoreData, KvCacheStoredBlockData, RouterEvent
from .kernels import runs
from .layout import M12, M31, M32, SLOT_ACTIVE, SLOT_OWNER
from .scores import WorkerWithDpRank
from .segment import Segment

__all__ = ["Tree", "dump_events", "node_tree"]

_ATTEMPTS: Final = 3
_OWNER: Final = np.uint64(0xFF << SLOT_OWNER)

_Ints = npt.NDArray[np.int64]


class Tree(NamedTuple):
    """The nodes as they stood: rows of words, each row's parent row, and rows in preorder."""

    rows: _Ints
    parents: _Ints
    sequence: _Ints
    lengths: _Ints


def dump_events(segment: Segment, context: Context) -> list[RouterEvent]:
    """Cut what every rank can reach into store events.

    Parameters
    ----------
    segment : Segment
        Attached either way.
    context : Context
        Of the segment, used by no other thread meanwhile.

    Returns
    -------
    list of RouterEvent
        By rank, in the order of (worker_id, dp_rank): one for each maximal unbranched run, parents first,
        siblings by their first local hash; ids 0, 1, ... Equal content gives equal lists. Hashes are
        unsigned, each rank's own.

    Raises
    ------
    StaleHandle
        If the handle is closed.

    Notes
    -----
    Blocks behind a cut are left out, events cannot express them. Beside writers, blocks that change meanwhile
    may be missing, with what is below them; every block listed was held at some moment of the call.
    """
    ranks = _active_ranks(segment)
    events: list[RouterEvent] = []
    for _ in range(_ATTEMPTS):
        events, moved = _dump(segment, context, ranks)
        if not moved:
            break
    return events


def _active_ranks(segment: Segment) -> list[tuple[WorkerWithDpRank, int, int]]:
    """(rank, slot, state word without the owner) of the ACTIVE slots, by rank."""
    states, records = segment.view("rank_states")["state"], segment.view("rank_records")
    found = []
    for slot in np.flatnonzero((states & np.uint64(0xFF)) == SLOT_ACTIVE).tolist():
        state = int(states[slot] & ~_OWNER)
        rank = WorkerWithDpRank(int(records["worker_id"][slot]), int(records["dp_rank"][slot]))
        if int(states[slot] & ~_OWNER) == state:
            found.append((rank, slot, state))
    return sorted(found)


def _dump(
    segment: Segment, context: Context, ranks: list[tuple[WorkerWithDpRank, int, int]]
) -> tuple[list[RouterEvent], int]:
    """(events, how often something was left out because it changed)."""
    tree = node_tree(segment, context)
    wanted = np.zeros(segment.section_count("rank_records"), np.uint8)
    wanted[[slot for _, slot, _ in ranks]] = 1
    pairs, moved = _pairs(context, tree, wanted)
    cutoffs = np.minimum(pairs[:, runs.P_LOW] & M12, tree.lengths[pairs[:, runs.P_ROW]])
    blocks = np.concatenate((np.zeros(1, np.int64), np.cumsum(cutoffs)))
    bounds = np.searchsorted(pairs[:, runs.P_SLOT], np.arange(len(wanted) + 1))
    places = np.zeros(len(tree.rows), np.int64)
    states = segment.view("rank_states")["state"]
    events: list[RouterEvent] = []
    for rank, slot, state in ranks:
        lo, hi = int(bounds[slot]), int(bounds[slot + 1])
        hashes = np.empty((2, int(blocks[hi] - blocks[lo])), np.uint64)
        found = np.empty((hi - lo, runs.U_WIDTH), np.uint64)
        n, left_out = runs.cut_runs(
            context.address,
            tree.rows.ctypes.data,
            tree.parents.ctypes.data,
            places.ctypes.data,
            pairs.ctypes.data,
            lo,
            hi,
            hashes[0:].ctypes.data,
            hashes[1:].ctypes.data,
            found.ctypes.data,
        )
        if int(states[slot] & ~_OWNER) != state:  # the rank was removed, and perhaps another has its slot
            moved += 1
            continue
        moved += left_out
        _append(events, rank, hashes, found[:n])
    return events, moved


def _append(
    events: list[RouterEvent],
    rank: WorkerWithDpRank,
    hashes: npt.NDArray[np.uint64],
    found: npt.NDArray[np.uint64],
) -> None:
    """One event for each run of a rank."""
    if not len(found):
        return
    end = int(found[-1, runs.U_END])
    blocks = list(map(KvCacheStoredBlockData, hashes[1, :end].tolist(), hashes[0, :end].tolist()))
    for has_parent, parent, begin, stop in found.tolist():
        data = KvCacheStoreData(parent if has_parent else None, blocks[begin:stop])
        events.append(RouterEvent(rank.worker_id, KvCacheEvent(len(events), data, rank.dp_rank)))


def node_tree(segment: Segment, context: Context) -> Tree:
    """List the nodes and put them in order; nodes whose parent is not listed are left out.

    Parameters
    ----------
    segment : Segment
        Attached either way.
    context : Context
        Of the segment, used by no other thread meanwhile.

    Returns
    -------
    Tree
    """
    room = int(np.count_nonzero(segment.view("node_claims"))) + 1_024
    rows = np.zeros((room, runs.R_WIDTH), np.int64)
    n = runs.list_nodes(context.address, rows.ctypes.data, room)
    rows = rows[:n]
    words = rows.view(np.uint64)
    start, end = rows[:, runs.R_BEGIN] & M32, rows[:, runs.R_TAIL] & M31
    hang, space = (_high(words[:, column]) for column in (runs.R_BEGIN, runs.R_TAIL))
    # the space a node hangs in is its parent's; a node that was being split may be listed beside its suffix
    owner = np.full(segment.section_count("nodes"), -1, np.int64)
    owner[space[::-1]] = np.arange(n)[::-1]  # the first one wins, the root before all
    parents = np.full(n, -1, np.int64)
    parents[1:] = owner[hang[1:]]
    parents[(end[parents] != start) | (parents == np.arange(n))] = -1
    parents[0] = -1
    linked = np.flatnonzero(parents >= 0)
    children = linked[np.lexsort((words[linked, runs.R_FIRST], parents[linked]))]
    count = np.bincount(parents[linked], minlength=n)
    first = np.cumsum(count) - count
    sequence, stack = np.empty(n + 1, np.int64), np.empty(n + 1, np.int64)
    addresses = [array.ctypes.data for array in (children, first, count, sequence, stack)]
    m = runs.preorder(*addresses, n)
    return Tree(rows, parents, sequence[:m], end - start)


def _pairs(context: Context, tree: Tree, wanted: npt.NDArray[np.uint8]) -> tuple[_Ints, int]:
    """Pairs of a slot and a node whose head it covers, by slot, parents first; nodes left out."""
    room, n, moved = 4 * len(tree.rows) + 64, 0, 0
    pairs = np.empty((0, runs.P_WIDTH), np.int64)
    for _ in range(_ATTEMPTS):
        pairs = np.empty((room, runs.P_WIDTH), np.int64)
        arguments: list[Any] = [tree.sequence.ctypes.data, len(tree.sequence), wanted.ctypes.data]
        n, moved = runs.list_pairs(
            context.address, tree.rows.ctypes.data, *arguments, pairs.ctypes.data, room
        )
        if n <= room:
            break
        room, n, moved = n + n // 8, room, moved + 1
    pairs = pairs[:n]
    return pairs[np.argsort(pairs[:, runs.P_SLOT].astype(np.uint16), kind="stable")], moved


def _high(words: npt.NDArray[np.uint64]) -> _Ints:
    """The high halves of words."""
    return (words >> np.uint64(32)).astype(np.int64)
