"""`rebuild`: a segment made anew from store events, under the same name.

Unlike unlink, create and load one after the other it leaves the old segment in force until the new one is
complete, and for good when it dies or an event is refused: no router ever finds the name gone, or leading to
half of the content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .capacity import Capacity
from .errors import EventStatus
from .events import EventLike
from .header import Header, salvage_page
from .kernels.build import ensure
from .succession import Succession
from .writer import Writer

__all__ = ["Rebuilt", "rebuild"]


class Rebuilt(NamedTuple):
    """What came of a rebuild: whether the new segment is in force, and how many events had which status."""

    done: bool
    statuses: dict[str, int]


def rebuild(
    name: str,
    chunks: Iterable[Sequence[EventLike]],
    capacity: Capacity | None = None,
    block_size: int | None = None,
    model: str | None = None,
) -> Rebuilt:
    """Make a segment anew from events, which need not be its own dump, and let it take the name.

    Parameters
    ----------
    name : str
        Of a segment, broken or not; any file in shared memory will do.
    chunks : iterable of sequences of RouterEvent or JSON bytes
        Parents first; what a call applies at once.
    capacity, block_size, model : optional
        Of the new segment; by default what the old header says. If that cannot be read `capacity` is needed.

    Returns
    -------
    Rebuilt
        Not done if an event was refused: the old segment stays as it is then.

    Raises
    ------
    Busy
        If another process is at it.
    ValueError
        If the old header cannot be read, and no capacity is given.
    SegmentNotFound, SegmentPermission, SegmentNoSpace, SegmentExists, SegmentCorrupt

    Notes
    -----
    What writers apply to the old segment meanwhile is lost with it. They, and who has it attached for
    reading, see that it is retired. Its writers are stopped only when the new one takes over.
    """
    ensure()
    with Succession(name) as succession:
        said = salvage_page(succession.page, succession.name)
        if said is None and capacity is None:
            raise ValueError(f"the header of segment {name!r} cannot be read: give the capacity")
        header = Header.new(
            capacity or (said.capacity if said is not None else Capacity()),
            block_size or (said.block_size if said is not None else None),
            model or (said.model if said is not None else None),
            said is not None and said.exact_holes,
        )
        new = succession.make(header)
        counts: Counter[str] = Counter()
        with Writer(new) as writer:
            for events in chunks:
                counts.update(EventStatus(int(code)).name for code in writer.apply_events(events))
        fine = {EventStatus.OK.name, EventStatus.UNSUPPORTED.name}
        if not counts.keys() <= fine:
            return Rebuilt(False, dict(counts))
        succession.hand_over()
        return Rebuilt(True, dict(counts))
