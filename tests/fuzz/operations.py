"""What is done to a damaged segment: everything that a reader, a writer or a tool can ask for.

Each step is timed by an alarm that kills the process. A step may raise the package's errors and nothing else.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import numpy as np

from shmtrie.errors import ShmtrieError
from shmtrie.events import EventBatch, KvCacheEvent, KvCacheRemoveData, RouterEvent
from shmtrie.index import Index
from shmtrie.laneinfo import lane_info
from shmtrie.segment import Segment
from shmtrie.writer import Writer
from tests.fuzz.images import CHAIN, PATH, WIDE, own

LIMIT = 2.0  # seconds of one step
OPEN_LIMIT = 20.0  # of taking a lane: a recovery waits a second for each lane whose lock it needs
PATIENCE = 0.001
Step = tuple[str, Callable[[], object]]

_CHAINS = [CHAIN, [*CHAIN[:6], 101, 102, 103, 104], [201, 202, 203, 204], WIDE, [*WIDE[:4], 351, 352]]
_CHAINS += [list(range(5_000, 7_100)), [*CHAIN, 605], list(range(700, 720)), [*range(700, 710), 1_710]]
_CHAINS += [list(range(800, 810)), [900, 901, 902, 903], [1, 2, 3, 45], [*CHAIN[:8], 41, 42]]
_PATHS = [PATH, PATH[:150], [*PATH[:100], 30_100], [*PATH[:299], 30_299]]
#: Names of the steps.
STEPS = ["attach", "open", "close", "end", "store", "remove", "clear", "remove_worker", "release"]
STEPS += ["apply_batch", "find", "early", "batch", "details", "best", "several", "workers", "stats"]
STEPS += ["verify", "dump", "lanes"]
_QUESTIONS = STEPS[10:]
_LONG = ("dump", "workers", "stats")


class Unexpected(Exception):
    """A step raised something that is no error of the package."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Die by a signal when it takes longer: its default action works inside a kernel, too.

    The processor's time counts, as a busy machine is no failure; only a far longer wait is one.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds + 60)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


class Play:
    """A random plan of steps on one segment.

    Parameters
    ----------
    segment : Segment
        Attached for writing; a damaged one.
    reader : Segment
        The same, read-only.
    kind : str
        Of the images.
    random : Random
        Of the plan.
    tell : callable
        Gets the name of each step before it begins.
    """

    def __init__(
        self, segment: Segment, reader: Segment, kind: str, random: Random, tell: Callable[[str], None]
    ) -> None:
        self.segment, self.random, self.tell = segment, random, tell
        self.index = Index(reader)
        self.chains = _PATHS if kind == "long" else _CHAINS
        self.ranks = [1, 2, 3] if kind == "long" else [1, 2, 3, 5, 8, 9, 16, 40]
        self.writers: list[Writer] = []

    def run(self, damage: Callable[[], None]) -> None:
        """Everything: writers may be open before the damage is done, and go on behind it."""
        random = self.random
        early = random.random() < 0.4
        if early:
            self.do("open", self._open, OPEN_LIMIT)
            for name, step in self._writes(random.randrange(4)):
                self.do(name, step)
        damage()
        for name, step in self._reads():
            self.do(name, step)
        if not early or random.random() < 0.5:
            self.do("open", self._open, OPEN_LIMIT)
        for name, step in self._writes(random.randint(3, 9)):
            self.do(name, step)
        if random.random() < 0.4:
            self.do("open", self._open, OPEN_LIMIT)
            for name, step in self._writes(3):
                self.do(name, step)
        for name, step in self._reads():
            self.do(name, step)
        for writer in self.writers:
            self.do("close", writer.close, OPEN_LIMIT)

    def do(self, name: str, step: Callable[[], object], limit: float = LIMIT) -> None:
        """One step."""
        self.tell(name)
        try:
            with limited(limit):
                step()
        except ShmtrieError as error:
            if name in _QUESTIONS:
                raise Unexpected(f"{name}: a question raised {error!r}") from error
        except Exception as error:
            raise Unexpected(f"{name}: {error!r}") from error

    # ------------------------------------------------------------------------------------------ readers
    def _query(self) -> Any:
        chain = self.random.choice(self.chains)
        return np.array(
            chain[: self.random.randint(1, len(chain))] if self.random.random() < 0.3 else chain, np.uint64
        )

    def _reads(self) -> list[Step]:
        index, random = self.index, self.random
        queries = [self._query() for _ in range(3)]
        flat, cuts = np.concatenate(queries), np.cumsum([0, *map(len, queries)])
        steps: list[Step] = [
            ("find", lambda: [index.find_matches(q).scores for q in map(np.uint64, self.chains)]),
            ("early", lambda: index.find_matches(queries[0], early_exit=True)),
            ("batch", lambda: index.find_matches_batch(flat, cuts)),
            ("details", lambda: [index.find_match_details(q).last_hashes for q in queries]),
            ("best", lambda: index.best_match(queries[1])),
            ("several", lambda: index.best_matches(queries[2], 3)),
            ("workers", index.workers),
            ("stats", lambda: index.stats().as_dict()),
            ("verify", index.verify),
            ("dump", index.dump_events),
            (
                "lanes",
                lambda: [lane_info(self.segment, k).describe() for k in range(self.segment.capacity.lanes)],
            ),
        ]
        return [step for step in steps if random.random() < (0.15 if step[0] in _LONG else 0.35)]

    # ------------------------------------------------------------------------------------------ writers
    def _open(self) -> None:
        self.writers.append(Writer(self.segment, PATIENCE))

    def _hashes(self, rank: int, chain: list[int]) -> list[int]:
        return own(rank, chain) if rank in (3, 4, 15) else chain

    def _writes(self, n: int) -> list[Step]:
        return [self._write() for _ in range(n)]

    def _write(self) -> Step:
        random, rank = self.random, self.random.choice(self.ranks)
        chain = random.choice(self.chains)
        hashes = self._hashes(rank, chain)
        fresh = [random.randrange(1 << 40) for _ in range(random.choice((1, 2, 3, 30)))]
        at = random.randrange(len(chain))
        writer = len(self.writers) - 1

        def call(name: str, *arguments: Any) -> Step:
            def step() -> None:
                if self.writers:
                    getattr(self.writers[writer], name)(*arguments)

            return name, step

        way = random.randrange(14)
        if way <= 1:
            return call("store", rank, None, chain, hashes)
        if way == 2:
            return call("store", rank, hashes[-1], fresh, fresh)
        if way == 3:
            return call("store", rank, None, chain[:at] + fresh, hashes[:at] + fresh)
        if way == 4:
            return call("store", rank, hashes[at], fresh, fresh)
        if way == 5:
            return call("store", random.randrange(41, 60), None, chain, own(50, chain))
        if way == 6:
            return call("store", rank, None, chain, own(60, chain))
        if way == 7:
            return call("store", rank, None, fresh + chain[-3:], fresh + hashes[-3:])
        if way <= 9:
            end = random.choice((len(hashes), len(hashes), at + 1, at + 3))
            return call("remove", rank, hashes[at : end : random.choice((1, 1, 2))])
        if way == 10:
            return call("remove", rank, hashes[::-1])
        if way == 11:
            return call("clear", rank)
        if way == 12:
            return call("remove_worker", rank) if random.random() < 0.6 else call("release", rank)
        events = [
            RouterEvent(r, KvCacheEvent(1, KvCacheRemoveData(self._hashes(r, chain)[at:])))
            for r in self.ranks
        ]
        return call("apply_batch", EventBatch.from_events(events))

    def end(self) -> None:
        """Let the locks of the writers go, whatever state their records are in."""
        for writer in self.writers:
            with suppress(Exception):
                seat = writer._work.seat
                writer._closed = seat._left = True
                seat._file.close()
        self.writers.clear()
