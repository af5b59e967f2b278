"""`Indexer`: what every index of the package can do, whatever it keeps its blocks in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from .errors import EventStatus
from .events import EventLike, RouterEvent
from .scores import OverlapScores

__all__ = ["Indexer"]


@runtime_checkable
class Indexer(Protocol):
    """An index of which rank holds which blocks.

    Notes
    -----
    Read methods may be called from any thread. A write that has returned is seen by every query that starts
    afterwards, unless the index queues events; then `flush` is the point from which it is.
    """

    def apply_event(self, event: EventLike) -> EventStatus | None:
        """Apply one event.

        Parameters
        ----------
        event : RouterEvent or its JSON
            A store, a remove or a clear of one rank.

        Returns
        -------
        EventStatus or None
            `OK`, or `UNSUPPORTED` for an event that was skipped because it is about another storage tier;
            None from an index that only queues it.

        Raises
        ------
        ShmtrieError
            If the event was refused; nothing has changed then.
        TypeError, ValueError
            If it is no event.
        """
        ...

    def find_matches(self, local_hashes: Any, early_exit: bool = False) -> OverlapScores:
        """Count, per rank, the leading blocks of a query that it holds.

        Parameters
        ----------
        local_hashes : array or sequence of 64-bit ints, shape (n,)
            Local hashes of the query from its first block on.
        early_exit : bool
            Allow to stop once a single rank is left; its score is then a lower bound.

        Returns
        -------
        OverlapScores
            Blocks, for every rank with at least one.
        """
        ...

    def remove_worker(self, worker_id: int) -> None:
        """Forget all ranks of a worker; an unknown worker is fine.

        Parameters
        ----------
        worker_id : int
            0 <= worker_id < 2**64.
        """
        ...

    def dump_events(self) -> Sequence[RouterEvent]:
        """Return store events, parents first, that rebuild the same scores in an empty index."""
        ...

    def flush(self) -> int:
        """Wait until everything accepted so far is applied.

        Returns
        -------
        int
            Events that were still queued at the call; 0 from an index that applies at once.
        """
        ...

    def stats(self) -> Any:
        """Return counters and sizes as a named tuple or frozen dataclass of the index's own."""
        ...

    def close(self) -> None:
        """Give up the handle; using it afterwards raises `StaleHandle`, closing it again is fine."""
        ...
