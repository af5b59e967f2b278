"""Races of processes that create, attach and unlink under one name: short ones in tests, long ones in
``scripts/creators.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from shmtrie.capacity import Capacity
from shmtrie.errors import SegmentNotFound, ShmtrieError
from shmtrie.header import unfinished_page
from shmtrie.segment import Segment
from tests.system.children import Child, outcome
from tests.system.headers import make_stale

SMALL = Capacity(blocks=100, workers=4, lanes=1, extents=1)
SHM = Path("/dev/shm")
LEFTOVERS: Final = ("empty", "unfinished", "stale")  # of a creator that died, and from before a boot


def create(name: str, **arguments: Any) -> str:
    """What becomes of creating a segment: its uuid or the error."""
    try:
        with Segment.create(name, SMALL, **arguments) as made:
            return str(made.uuid)
    except ShmtrieError as error:
        return type(error).__name__


def _leave(name: str, leftover: str) -> None:
    if leftover == "stale":
        Segment.create(name, SMALL).close()
        make_stale(SHM / name)
    elif leftover:
        (SHM / name).write_bytes(unfinished_page(1) if leftover == "unfinished" else b"")


def race_creators(
    name: str,
    creators: int,
    rounds: int,
    exist_ok: bool,
    leftover: str = "",
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """All create at once: exactly one segment comes of it, and all can attach to it.

    Parameters
    ----------
    name : str
        Free.
    creators, rounds : int
        Processes, and how often they race.
    exist_ok : bool
        Whether who comes late attaches by the same call; otherwise it is refused, and attaches then.
    leftover : str
        What is under the name before: one of `LEFTOVERS`, or nothing.
    progress : callable
        Gets the number of rounds done.
    """

    def body(connection: Connection) -> None:
        for _ in range(rounds):
            connection.send(None)
            connection.recv()
            made = create(name, exist_ok=exist_ok, timeout=60.0)
            try:
                with Segment.attach(name, timeout=60.0) as found:
                    connection.send((made, str(found.uuid)))
            except ShmtrieError as error:
                connection.send((made, type(error).__name__))

    with ExitStack() as stack:
        children = [stack.enter_context(Child(body)) for _ in range(creators)]
        for turn in range(rounds):
            for child in children:
                child.hear()
            _leave(name, leftover)
            for child in children:
                child.say()
            answers = [child.hear(120.0) for child in children]
            made, found = Counter(a for a, _ in answers), Counter(b for _, b in answers)
            with Segment.attach(name) as segment:
                winner = str(segment.uuid)
            Segment.unlink(name)
            expected = {winner: creators} if exist_ok else {winner: 1, "SegmentExists": creators - 1}
            assert made == expected, (turn, made)
            assert found == {winner: creators}, (turn, found)
            progress(turn + 1)


def race_attachers(
    name: str, attachers: int, rounds: int, progress: Callable[[int], None] = lambda _: None
) -> Counter[str]:
    """Segments come and go under who attaches: it finds a whole one, or none; what was found how often."""

    def attach(connection: Connection) -> Counter[str]:
        seen: Counter[str] = Counter()
        while seen.total() <= 10 or not connection.poll():  # also a child that gets the core late has a look
            try:
                with Segment.attach(name, read_only=bool(seen.total() % 2), timeout=60.0) as found:
                    seen["ok" if int(found.view("nodes")["version"][0]) == 1 << 32 else "torn"] += 1
            except SegmentNotFound:
                seen["none"] += 1
        return seen

    total: Counter[str] = Counter()
    with ExitStack() as stack:
        children = [stack.enter_context(Child(attach)) for _ in range(attachers)]
        for turn in range(rounds):
            Segment.create(name, SMALL, timeout=60.0).close()
            Segment.unlink(name)
            progress(turn + 1)
        for child in children:
            child.say()
            seen = child.hear(120.0)
            assert set(seen) <= {"ok", "none"} and seen.total() > 10, seen
            assert child.wait() == 0
            total += seen
    return total


def race_unlinkers(name: str, processes: int, rounds: int) -> Counter[str]:
    """Each creates and unlinks: each removes only what is there, and nobody sees another error."""

    def body(connection: Connection) -> Counter[str]:
        seen: Counter[str] = Counter()
        for _ in range(rounds):
            seen[outcome(lambda: Segment.create(name, SMALL, timeout=60.0))] += 1
            seen[outcome(lambda: Segment.unlink(name))] += 1
        return seen

    total: Counter[str] = Counter()
    with ExitStack() as stack:
        children = [stack.enter_context(Child(body)) for _ in range(processes)]
        for child in children:
            seen = child.hear(600.0)
            assert set(seen) <= {"ok", "SegmentExists", "SegmentNotFound"}, seen
            total += seen
    return total
