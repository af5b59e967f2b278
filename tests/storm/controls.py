"""Negative controls: writers of a storm that do wrong on purpose, each of which a storm has to find.

Each is called in a process before it attaches, and changes the product there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from shmtrie.contexts import WriterContext
from shmtrie.lanes import LaneSeat
from shmtrie.layout import PHASE_UNDO
from shmtrie.ranks import disown
from shmtrie.recovery import LaneRecovery
from shmtrie.writer import Writer
from tests.storm.parts import UNUSED

SHARE = 0.01  # of the events that are acknowledged and not applied


def _one_in_many() -> bool:
    return random.random() < SHARE


def lose_removals() -> None:
    """Some removals are acknowledged and never done."""
    remove = Writer.remove

    def spoilt(self: Writer, worker: Any, block_hashes: Any) -> None:
        if not _one_in_many() or int(block_hashes[0]) == UNUSED:
            remove(self, worker, block_hashes)

    Writer.remove = spoilt  # type: ignore[method-assign]


def lose_stores() -> None:
    """Some stores are acknowledged and never done."""
    store = Writer.store

    def spoilt(self: Writer, worker: Any, parent: Any, local: Any, external: Any) -> None:
        if not _one_in_many():
            store(self, worker, parent, local, external)

    Writer.store = spoilt  # type: ignore[method-assign]


def skip_recovery() -> None:
    """The record of a dead lane is wiped: nothing is taken back or finished."""

    def spoilt(self: LaneRecovery, seat: LaneSeat, context: WriterContext, seconds: float) -> int:
        _forget(self, seat, "n_gates", "n_undo", "n_redo", "phase")
        counters = self._segment.view("lanes")["op_counter"]
        counters[seat.lane] += counters[seat.lane] & np.uint64(1)
        n = disown(self._segment.view("rank_states"), context, seat.lane)
        seat.recovered()
        return n

    LaneRecovery.settle = spoilt  # type: ignore[method-assign]


def forget_the_undo_list() -> None:
    """What a dead lane had changed before its commit stays."""
    settle = LaneRecovery.settle

    def spoilt(self: LaneRecovery, seat: LaneSeat, context: WriterContext, seconds: float) -> int:
        if int(self._segment.view("lanes")["phase"][seat.lane]) & 0xFF == PHASE_UNDO:
            _forget(self, seat, "n_undo")
        return settle(self, seat, context, seconds)

    LaneRecovery.settle = spoilt  # type: ignore[method-assign]


def _forget(recovery: LaneRecovery, seat: LaneSeat, *fields: str) -> None:
    for name in fields:
        recovery._segment.view("lanes")[name][seat.lane] = 0


#: Name -> what it does, and the longest batch of the storm that has to find it.
CONTROLS: dict[str, tuple[Callable[[], None], int]] = {
    "lose removals": (lose_removals, 1),
    "lose stores": (lose_stores, 1),
    "skip recovery": (skip_recovery, 100),
    "forget the undo list": (forget_the_undo_list, 100),
}
