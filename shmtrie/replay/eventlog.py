"""What engines report, collected and packed for the writer that will apply it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from ..events import KIND_CLEAR, KIND_REMOVE, KIND_STORE, EventBatch
from .blocks import BlockMap

__all__ = ["Command", "EventLog", "RemoveWorker"]

_ROOT: Final = -1


class RemoveWorker(NamedTuple):
    """The worker is gone with all its ranks; not an event, a call of its own."""

    worker_id: int


Command = EventBatch | RemoveWorker
"""One call of a writer."""


class EventLog:
    """Events of the workers of one writer, in the order in which they happened.

    Parameters
    ----------
    blocks : BlockMap
        Gives the hashes of the places.
    call_events : int
        Events that go into one `EventBatch`, so into one call of the writer.

    Notes
    -----
    Event ids count per worker from 1 and go on through restarts.
    """

    def __init__(self, blocks: BlockMap, call_events: int = 64) -> None:
        if call_events < 1:
            raise ValueError(f"call_events must be >= 1, got {call_events}")
        self._blocks = blocks
        self._call_events = call_events
        self._ids: dict[int, int] = {}
        self._commands: list[Command] = []
        self._empty()

    def store(self, worker: int, parent: int | None, places: Sequence[int]) -> None:
        """Add a store of `places`, behind the place `parent` or, if that is None, from the root."""
        self._event(KIND_STORE, worker, _ROOT if parent is None else parent, places)

    def remove(self, worker: int, places: Sequence[int]) -> None:
        """Add a removal of `places`."""
        self._event(KIND_REMOVE, worker, _ROOT, places)

    def clear(self, worker: int) -> None:
        """Add an AllBlocksCleared."""
        self._event(KIND_CLEAR, worker, _ROOT, ())

    def remove_worker(self, worker: int) -> None:
        """Add the end of a worker; what follows for it registers it anew."""
        self._cut()
        self._commands.append(RemoveWorker(worker))

    def take(self) -> list[Command]:
        """Hand over everything collected since the last call and start anew."""
        self._cut()
        commands, self._commands = self._commands, []
        return commands

    def _event(self, kind: int, worker: int, parent: int, places: Iterable[int]) -> None:
        self._kind.append(kind)
        self._worker.append(worker)
        self._parent.append(parent)
        self._places.extend(places)
        self._ends.append(len(self._places))
        self._event_id.append(self._ids.setdefault(worker, 1))
        self._ids[worker] += 1
        if len(self._kind) >= self._call_events:
            self._cut()

    def _empty(self) -> None:
        self._kind: list[int] = []
        self._worker: list[int] = []
        self._parent: list[int] = []
        self._places: list[int] = []
        self._ends: list[int] = [0]
        self._event_id: list[int] = []

    def _cut(self) -> None:
        """Make a batch of what is waiting."""
        if not self._kind:
            return
        n = len(self._kind)
        parents = np.array(self._parent, np.int64)
        has_parent = parents != _ROOT
        places = np.array(self._places, np.int64)
        batch = EventBatch(
            kind=np.array(self._kind, np.uint8),
            worker_id=np.array(self._worker, np.uint64),
            dp_rank=np.zeros(n, np.uint32),
            has_parent=has_parent.astype(np.uint8),
            parent=np.where(has_parent, self._blocks.external(parents), np.uint64(0)),
            offsets=np.array(self._ends, np.int64),
            local=self._blocks.local(places),
            external=self._blocks.external(places),
            event_id=np.array(self._event_id, np.uint64),
        )
        self._commands.append(batch)
        self._empty()
