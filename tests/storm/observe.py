"""What a process recovers, seen from inside of it."""

from __future__ import annotations

import time
from typing import Any

from shmtrie.lanes import LaneSeat
from tests.storm.journal import Journal
from tests.storm.parts import DONE

_now = time.monotonic_ns


def observe(journal: Journal) -> None:
    """Log what this process takes of dead lanes: when it had the lock, and when the lane was free."""
    take, recovered = LaneSeat.take.__func__, LaneSeat.recovered  # type: ignore[attr-defined]
    rows: dict[int, int] = {}

    def observed_take(cls: Any, segment: Any, lane: int | None = None, but: Any = ()) -> LaneSeat:
        seat: LaneSeat = take(cls, segment, lane, but)
        if seat.was_dead:
            record = segment.view("lanes")[seat.lane]
            phase, odd = int(record["phase"]) & 0xFF, int(record["op_counter"]) & 1
            rows[seat.lane] = journal.add(seat.lane, _now(), 0, phase, odd, int(lane is not None))
        return seat

    def observed_recovered(self: LaneSeat) -> None:
        recovered(self)
        journal.set(rows[self.lane], DONE, _now())

    LaneSeat.take = classmethod(observed_take)  # type: ignore[method-assign,assignment]
    LaneSeat.recovered = observed_recovered  # type: ignore[method-assign]
