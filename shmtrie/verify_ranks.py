"""The part of `verify` about ranks: slots, the epoch word, and the counts of blocks (I17, I18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .layout import (
    EPOCH,
    LOCK_LANE,
    M32,
    SLOT_ACTIVE,
    SLOT_DYING,
    SLOT_EPOCH,
    SLOT_FREE,
    SLOT_OWNER,
)
from .scores import WorkerWithDpRank
from .segment import Segment
from .verify_text import Finding

__all__ = ["check_blocks", "check_ranks"]

_Words = npt.NDArray[np.uint64]


def check_ranks(segment: Segment) -> list[Finding]:
    """Check slots against each other and against the header (I1, I18); conclusive only at rest."""
    states: _Words = segment.view("rank_states")["state"].copy()
    header = segment.header
    epoch, high = int(header["epoch"]), int(header["slots_high"])
    kinds, owners, ages = _fields(states)
    found = []

    def find(what: str, invariant: str = "I18", repairable: bool = False) -> None:
        found.append(Finding(invariant, what, repairable, True, False, ()))

    for slot in np.flatnonzero(kinds > SLOT_DYING)[:20]:
        find(f"slot {slot} is in an unknown state: {hex(states[slot])}")
    used = np.flatnonzero((kinds == SLOT_ACTIVE) | (kinds == SLOT_DYING))
    for slot in used[owners[used] > segment.capacity.lanes][:20]:
        find(f"slot {slot} belongs to lane {int(owners[slot]) - 1}, which does not exist")
    for slot in np.flatnonzero((kinds == SLOT_FREE) & (owners != 0))[:20]:
        find(f"slot {slot} is free but belongs to lane {int(owners[slot]) - 1}")
    for rank, slots in _twice(segment, np.flatnonzero(kinds == SLOT_ACTIVE)):
        find(f"rank {tuple(rank)} has slots {', '.join(map(str, slots))}")
    dying = int(np.count_nonzero(kinds == SLOT_DYING))
    if epoch & 0xFFFF != dying:
        # one that counts too many costs readers time; the next registration or removal counts anew
        text = f"{dying} slots are being removed, the epoch word counts {epoch & 0xFFFF}"
        find(text, repairable=epoch & 0xFFFF > dying)
    now = epoch >> EPOCH & M32
    for slot in used[(np.uint64(now) - ages[used]) & np.uint64(M32) >= 1 << 31][:20]:
        find(f"slot {slot} was assigned in epoch {int(ages[slot])}, the epoch word says {now}")
    if high > len(states) or (len(used) and high <= int(used[-1])):
        last = int(used[-1]) if len(used) else -1
        find(f"slot {last} is in use, but slots_high is {high} (of {len(states)} slots)", "I1")
    return found


def check_blocks(
    segment: Segment, recounted: npt.NDArray[Any], is_held: Callable[[Segment, int], bool]
) -> list[Finding]:
    """Compare the `blocks` and `known` of ACTIVE slots with what their coverage words sum up to (I17).

    They change one after the other, in one commit: one that a death cut in half is finished by the recovery,
    and a rank that is taken over is counted anew. So a difference in blocks is repairable where no living
    lane owns the slot.
    """
    view = segment.view("rank_states")
    kinds, owners, _ = _fields(view["state"].copy())
    found = []
    for slot in np.flatnonzero((kinds == SLOT_ACTIVE) & (view["blocks"] != recounted))[:20]:
        owner = int(owners[slot]) - 1
        is_orphan = not 0 <= owner < segment.capacity.lanes or not is_held(segment, LOCK_LANE + owner)
        what = f"slot {slot} counts {view['blocks'][slot]} blocks, its coverage words {recounted[slot]}"
        found.append(Finding("I17", what, is_orphan, True, False, ()))
    for slot in np.flatnonzero((kinds == SLOT_ACTIVE) & (recounted > 0) & (view["known"] == 0))[:20]:
        what = f"slot {slot} covers {recounted[slot]} blocks, but its rank counts as one that stored nothing"
        found.append(Finding("I17", what, False, True, False, ()))
    return found


def _fields(states: _Words) -> tuple[_Words, _Words, _Words]:
    """State, owner + 1 and assignment epoch of state words."""
    byte = np.uint64(0xFF)
    return states & byte, states >> np.uint64(SLOT_OWNER) & byte, states >> np.uint64(SLOT_EPOCH)


def _twice(segment: Segment, active: npt.NDArray[np.intp]) -> list[tuple[WorkerWithDpRank, list[int]]]:
    """Ranks that several ACTIVE slots have."""
    records = segment.view("rank_records")
    slots: dict[WorkerWithDpRank, list[int]] = {}
    for slot in active.tolist():
        rank = WorkerWithDpRank(int(records["worker_id"][slot]), int(records["dp_rank"][slot]))
        slots.setdefault(rank, []).append(slot)
    return [(rank, several) for rank, several in slots.items() if len(several) > 1]
