"""`RadixTree`: the index in plain Python objects of one process, exact and simple.

It answers what the shared-memory index answers, from one node per block, and is what to compare that with and
what to use where one process is enough. Without `exact_holes` every score is the reachable prefix, the lower
end of what is allowed; with it, it is the held prefix.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .arguments import as_rank, as_u64, as_worker_id, hash_array
from .errors import EventStatus, exception_for
from .events import (
    KIND_CLEAR,
    KIND_REMOVE,
    KIND_STORE,
    EventBatch,
    EventLike,
    EventParts,
    split_event,
)
from .radix_nodes import Nodes, TreeStats
from .radix_queries import TreeQueries

__all__ = ["RadixTree", "TreeStats"]


class RadixTree(TreeQueries):
    """Exact index of one process.

    Parameters
    ----------
    exact_holes : bool
        False: removing a block forgets all of the rank's blocks behind it, and a store behind them is
        refused. True: it forgets that block only, what is behind counts again once the hole is filled, and
        stores go behind anything that is held.

    Notes
    -----
    Any method may be called from any thread; one lock makes them take turns. Workers are named by an int,
    the worker id with dp_rank 0, or by (worker_id, dp_rank). Hashes are as `hash_array` takes them. Wrong
    arguments raise TypeError or ValueError before anything is touched, and every method but `close` raises
    `StaleHandle` after it. The read methods are in `TreeQueries`.
    """

    def __init__(self, exact_holes: bool = False) -> None:
        super().__init__(Nodes(bool(exact_holes)))

    # --- writing ------------------------------------------------------------------------------------

    def store(self, worker: Any, parent_hash: Any, local_hashes: Any, block_hashes: Any) -> None:
        """Record blocks that a rank holds from now on.

        Parameters
        ----------
        worker : int or (int, int)
            The rank.
        parent_hash : int or None
            The rank's external hash of the block before the first; None if that starts at the root.
        local_hashes, block_hashes : array or sequence of 64-bit ints, shape (n,)
            Local and external hashes. A known external hash moves here.

        Raises
        ------
        ParentBlockNotFound
            If the rank does not hold the parent.
        InvalidBlockSequence
            If an external hash is the parent's, occurs twice, or is held at the parent or above it.
        """
        rank = as_rank(worker)
        parent = None if parent_hash is None else as_u64(parent_hash)
        local, external = hash_array(local_hashes), hash_array(block_hashes)
        if len(local) != len(external):
            raise ValueError(f"{len(local)} local hashes, {len(external)} external ones: need as many")
        self._run(EventParts(KIND_STORE, rank, parent, local, external, 0))

    def remove(self, worker: Any, block_hashes: Any) -> None:
        """Forget blocks of a rank, whatever their order; hashes it does not hold are skipped.

        Parameters
        ----------
        worker : int or (int, int)
            The rank.
        block_hashes : array or sequence of 64-bit ints, shape (n,)
            External hashes.

        Raises
        ------
        BlockNotFound
            If the rank never stored anything, or its worker was removed since.
        """
        external = hash_array(block_hashes)
        self._run(EventParts(KIND_REMOVE, as_rank(worker), None, external, external, 0))

    def clear(self, worker: Any) -> None:
        """Forget all blocks of a rank, which stays known; an unknown rank is fine.

        Parameters
        ----------
        worker : int or (int, int)
            The rank.
        """
        none = np.empty(0, np.uint64)
        self._run(EventParts(KIND_CLEAR, as_rank(worker), None, none, none, 0))

    def remove_worker(self, worker_id: int) -> None:
        """Forget all ranks of a worker; an unknown worker is fine.

        Parameters
        ----------
        worker_id : int
            0 <= worker_id < 2**64.
        """
        worker_id = as_worker_id(worker_id)
        with self._lock:
            self._open().remove_worker(worker_id)

    def apply_event(self, event: EventLike) -> EventStatus:
        """Apply one event and record its id for the rank.

        Parameters
        ----------
        event : RouterEvent or its JSON
            The event.

        Returns
        -------
        EventStatus
            `OK`, or `UNSUPPORTED` for an event of another storage tier or residency domain, which is skipped.

        Raises
        ------
        ParentBlockNotFound, BlockNotFound, InvalidBlockSequence
            As `store` and `remove`.
        """
        return self._run(split_event(event), is_event=True)

    def apply_events(self, events: Iterable[EventLike]) -> npt.NDArray[np.uint8]:
        """Apply events one after the other; a refused one does not stop those behind it.

        Parameters
        ----------
        events : iterable of RouterEvent or JSON
            If one of them is no event at all, none is applied.

        Returns
        -------
        ndarray of uint8, shape (n,)
            An `EventStatus` per event.
        """
        return self.apply_batch(EventBatch.from_events(events))

    def apply_batch(self, batch: EventBatch) -> npt.NDArray[np.uint8]:
        """Apply packed events; see `apply_events`.

        Parameters
        ----------
        batch : EventBatch
            n events.

        Returns
        -------
        ndarray of uint8, shape (n,)
            An `EventStatus` per event.
        """
        if not isinstance(batch, EventBatch):
            raise TypeError(f"expected an EventBatch, got {type(batch).__name__}")
        with self._lock:
            self._open()
            return np.array([self._apply(batch[i], True) for i in range(len(batch))], np.uint8)

    def load_events(self, events: Iterable[EventLike]) -> int:
        """Apply the events of a dump.

        Parameters
        ----------
        events : iterable of RouterEvent or JSON
            Parents first.

        Returns
        -------
        int
            How many there were.

        Raises
        ------
        ShmtrieError
            For the first event that was refused; all others have been applied.
        """
        statuses = self.apply_events(events)
        for i in np.flatnonzero(statuses):
            status = EventStatus(int(statuses[i]))
            raise exception_for(status, f"event {i} of {len(statuses)} was refused: {status.name}")
        return len(statuses)

    def _run(self, parts: EventParts, is_event: bool = False) -> EventStatus:
        with self._lock:
            status = self._apply(parts, is_event)
        if status in (EventStatus.OK, EventStatus.UNSUPPORTED):
            return status
        raise exception_for(status, _reason(status, parts))

    def _apply(self, parts: EventParts, is_event: bool) -> EventStatus:
        tree = self._open()
        status = EventStatus.OK
        if parts.kind == KIND_STORE:
            status = tree.store(parts.rank, parts.parent, parts.local.tolist(), parts.external.tolist())
        elif parts.kind == KIND_REMOVE:
            status = tree.remove(parts.rank, parts.external.tolist())
        elif parts.kind == KIND_CLEAR:
            tree.clear(parts.rank)
        else:
            status = EventStatus.UNSUPPORTED
        known = tree.ranks.get(parts.rank)
        if status is not EventStatus.OK:
            self._rejected[status] += 1
        if known is not None:
            if status is EventStatus.OK and is_event:
                known.last_event_id = parts.event_id
            elif status not in (EventStatus.OK, EventStatus.UNSUPPORTED):
                known.degraded = True
        return status

    # --- the handle ---------------------------------------------------------------------------------

    def flush(self) -> int:
        """Return 0: every event is applied when its call returns."""
        self._open()
        return 0

    def close(self) -> None:
        """Drop everything; closing twice is fine."""
        with self._lock:
            self._tree = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _reason(status: EventStatus, parts: EventParts) -> str:
    who = f"rank ({parts.rank.worker_id}, {parts.rank.dp_rank})"
    if status is EventStatus.PARENT_BLOCK_NOT_FOUND:
        return f"{who} does not hold the parent {parts.parent}: store its path, or clear the rank"
    if status is EventStatus.BLOCK_NOT_FOUND:
        return f"{who} is unknown: nothing was stored since it or its worker was removed"
    return (
        f"{who}: an external hash of the store (parent {parts.parent}) is the parent's, occurs twice, or is "
        "held at the parent or above it; the engine's block hashes contradict themselves, so clear the rank"
    )
