"""`Index`: the shared-memory index as a user sees it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np

from .capacity import Capacity
from .errors import EventStatus, SegmentPermission, ShmtrieError, exception_for
from .events import EventLike
from .kernels.build import ensure
from .queries import IndexQueries
from .recovery import RecoveryReport, recover_segment
from .resize import resize
from .segment import Segment
from .shmfile import valid_name
from .succession import remove_leftover
from .writer import Writer

__all__ = ["Capacity", "Index"]


class Index(IndexQueries):
    """An index of which rank holds which blocks, in a POSIX shared memory segment.

    Made by `create` and `attach`; a context manager. Read methods may be called from any thread, take no
    lock and leave no trace in the segment. Writing goes through `writer`; `apply_event`, `remove_worker`
    and `load_events` open one of their own when needed.

    Notes
    -----
    A forked child may go on reading. Readers go on answering from a retired or unlinked segment; see
    `retired`.
    """

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self._writer: Writer | None = None

    # ------------------------------------------------------------------------------------------ make, find
    @classmethod
    def create(
        cls,
        name: str,
        capacity: Capacity | None = None,
        *,
        block_size: int | None = None,
        model: str | None = None,
        exact_holes: bool = False,
        exist_ok: bool = False,
        mode: int = 0o600,
    ) -> Self:
        """Make a segment and reserve all of its memory.

        Parameters
        ----------
        name : str
            POSIX name, with or without the leading slash.
        capacity : Capacity, optional
            Default ``Capacity()``: a million blocks, 256 ranks, 16 lanes, 62 MiB.
        block_size : int, optional
            Tokens a block; a stamp that attachers can ask for.
        model : str, optional
            Another stamp.
        exact_holes : bool
            Keep what is behind a removed block.
        exist_ok : bool
            Attach, for writing, to a compatible segment that exists.
        mode : int
            Permission bits.

        Returns
        -------
        Index
            Attached for reading and writing.

        Raises
        ------
        SegmentExists, SegmentIncompatible, SegmentCorrupt, SegmentNoSpace, SegmentPermission
        """
        ensure()  # first: who loses patience with the compiler leaves no segment behind
        return cls(Segment.create(name, capacity, block_size, model, exact_holes, exist_ok, mode))

    @classmethod
    def attach(
        cls,
        name: str,
        read_only: bool = True,
        timeout: float = 5.0,
        block_size: int | None = None,
        model: str | None = None,
    ) -> Self:
        """Attach to a segment that exists.

        Parameters
        ----------
        name : str
            With or without the leading slash.
        read_only : bool
            Map with PROT_READ; `writer` needs False.
        timeout : float
            Seconds to wait for a creation in progress.
        block_size, model : optional
            What the segment must be stamped with; not compared when None.

        Returns
        -------
        Index

        Raises
        ------
        SegmentNotFound, SegmentIncompatible, SegmentCorrupt, SegmentPermission
        """
        return cls(Segment.attach(name, read_only, timeout, block_size, model))

    @staticmethod
    def list() -> list[str]:
        """Names of the segments on this host that this process may read."""
        return Segment.list()

    @staticmethod
    def unlink(name: str) -> None:
        """Retire a segment and remove its name; who is attached keeps it. Raises SegmentNotFound,
        SegmentPermission.
        """
        with suppress(ShmtrieError):  # of a resize that died: nobody would come by it afterwards
            remove_leftover(valid_name(name))
        Segment.unlink(name)

    # ------------------------------------------------------------------------------------------ writing
    def writer(self, patience: float = 0.05) -> Writer:
        """Take a lane.

        Parameters
        ----------
        patience : float
            Seconds to wait for a node that another lane holds, before an event is `Busy`.

        Returns
        -------
        Writer
            A context manager; give it back with `close`.

        Raises
        ------
        LaneUnavailable, SegmentRetired, SegmentPermission
        """
        return Writer(self._open(), patience)

    def apply_event(self, event: EventLike) -> EventStatus:
        """Apply one event through a writer of this handle's own, opened at the first call; see
        `Writer.apply_event`.
        """
        return self._own_writer().apply_event(event)

    def remove_worker(self, worker_id: int) -> None:
        """Forget all ranks of a worker; see `Writer.remove_worker`."""
        self._own_writer().remove_worker(worker_id)

    def load_events(self, events: Iterable[EventLike]) -> int:
        """Apply a dump.

        Parameters
        ----------
        events : iterable of RouterEvent or JSON bytes
            Parents first.

        Returns
        -------
        int
            Events applied.

        Raises
        ------
        ShmtrieError
            For the first refused event, after all the others were applied.
        """
        statuses = self._own_writer().apply_events(events)
        refused = np.flatnonzero((statuses != EventStatus.OK) & (statuses != EventStatus.UNSUPPORTED))
        if len(refused):
            i = int(refused[0])
            raise exception_for(
                EventStatus(int(statuses[i])),
                f"event {i} of the dump, the first of {len(refused)} that were refused",
            )
        return int(np.count_nonzero(statuses == EventStatus.OK))

    def resize(self, capacity: Capacity, patience: float = 1.0) -> None:
        """Put a copy of other sizes in this segment's place, under its name.

        Everything is copied, what is held behind a cut included; ranks keep their last event ids, and belong
        to the next lane that gets an event of them. Name, block size, model and mode stay. Until the copy is
        complete this segment is in force; then it is `retired`: attach anew, this handle included.

        Parameters
        ----------
        capacity : Capacity
            Of the copy. Both segments exist for a while, so there has to be room for both.
        patience : float
            Seconds to wait for operations under way.

        Raises
        ------
        CapacityExceeded
            If the content does not fit; says which table is too small.
        Busy
            If a writer is stopped in the middle of an operation, or another process resizes or rebuilds.
        SegmentNoSpace, SegmentPermission, SegmentRetired, SegmentCorrupt
            Whatever is raised, this segment goes on as it is, unless it is said to be retired.

        Notes
        -----
        Writers get `SegmentRetired` from the moment the copy begins. What they get it for is not in the
        copy: apply it again after attaching anew. A resize that dies half-way leaves this segment in force,
        and an unfinished file, which the next resize or `recover` removes.
        """
        resize(self._open(), capacity, patience)

    def recover(self, patience: float = 1.0) -> RecoveryReport:
        """Bring the records of all dead lanes to rest, let their ranks go, and free what can be freed.

        Writers do that when it stands in their way. Lanes whose processes live, stopped ones included, are
        left alone.

        Parameters
        ----------
        patience : float
            Seconds to wait for other lanes.

        Returns
        -------
        RecoveryReport

        Raises
        ------
        SegmentPermission, SegmentRetired
        """
        segment = self._open()
        if segment.read_only:
            raise SegmentPermission(f"segment {segment.name!r} is attached read-only: attach for writing")
        return recover_segment(segment, patience)

    def flush(self) -> int:
        """Nothing is queued: events are applied when the call returns. Always 0."""
        self._open()
        return 0

    # ------------------------------------------------------------------------------------------ life
    def close(self) -> None:
        """Give the handle up; idempotent. Results and other handles are not affected."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._segment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " (closed)" if self._segment.closed else " (read-only)" if self._segment.read_only else ""
        return f"<Index {self._segment.name!r}{state}>"

    # ------------------------------------------------------------------------------------------ inside
    def _own_writer(self) -> Writer:
        if self._writer is None:
            self._writer = self.writer()
        return self._writer
