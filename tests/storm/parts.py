"""What is known of the processes of a storm in all of them: the scene, the parts, and the words by which they
tell one another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shmtrie.errors import EventStatus
from tests.concurrency.streams import Step
from tests.reference import OK
from tests.storm.journal import Journal, shared_words

# words of a part
STATE, BEAT, COMMAND, LANE, FUSE_AT, FUSE_PART, FUSE_SIGNAL, FUSE_END, FUSE_SKIPS = range(9)
STARTING, OPEN, IDLE, CLOSED, FAILED = range(5)  # in STATE
CLOSE = 1  # in COMMAND: finish what was cut, then close and end
NOWHERE, AT_OPERATION, AT_OPENING, AT_RECOVERY = range(4)  # in FUSE_AT: where the fuse is lit
# columns of the journals
(KIND, FIRST, COUNT, INVOKE, RETURN, STATUSES, BUSY_TIMES), OP_WIDTH = range(7), 7
ATTEMPT, RESUMED = range(2)  # in KIND
(BEGIN, END, QUERY, ANSWER, GAVE_UP, ABOUT), CALL_WIDTH = range(6), 6
(DEAD_LANE, TAKEN, DONE, PHASE, ODD, MET), RECOVERY_WIDTH = range(6), 6
#: By status of an event in a row that has returned; a row of a resumption has 1 where one is known.
OUTCOMES = {
    EventStatus.OK: OK,
    EventStatus.PARENT_BLOCK_NOT_FOUND: "ParentBlockNotFound",
    EventStatus.BLOCK_NOT_FOUND: "BlockNotFound",
    EventStatus.INVALID_BLOCK_SEQUENCE: "InvalidBlockSequence",
    EventStatus.CAPACITY_EXCEEDED: "CapacityExceeded",
    EventStatus.RANK_OWNED_ELSEWHERE: "RankOwnedElsewhere",
}
EVENTS = ("store", "remove", "clear")
UNUSED = 0xDEAD_BEEF_0BAD_CAFE  # an external hash that no stream has


@dataclass
class Scene:
    """What everybody has to know in one act; a forked process has a copy."""

    name: str
    seed: int
    queries: list[Any]
    first_id: int = 0  # of the events of the plans
    batches: int = 1  # longest batch; 1: a call for each operation
    event_ns: int = 900  # about what one of a batch takes
    pause: float = 200e-6  # mean seconds between two calls of a writer
    patience: float = 0.05
    spoil: Callable[[], None] | None = None


@dataclass
class Part:
    """One writer or reader, whichever process plays it.

    Attributes
    ----------
    ops : Journal
        Of a writer: each attempt at an operation of the plan.
    calls : Journal
        Finds: of a reader all, of a writer those after the death of the one before it.
    recoveries : Journal
        Of a writer: dead lanes that it took.
    failures : Journal
        Tracebacks.
    """

    number: int
    role: str  # writer, reader or mender
    plan: Sequence[Step] = ()
    ops: Journal = field(default_factory=lambda: Journal(OP_WIDTH, 40_000, 1 << 20))
    calls: Journal = field(default_factory=lambda: Journal(CALL_WIDTH, 100_000, 8 << 20))
    recoveries: Journal = field(default_factory=lambda: Journal(RECOVERY_WIDTH, 20_000))
    failures: Journal = field(default_factory=lambda: Journal(1, 64, 1 << 16))
    words: memoryview = field(default_factory=lambda: shared_words(16))
    starts: int = 0

    def __str__(self) -> str:
        return f"{self.role} {self.number}"
