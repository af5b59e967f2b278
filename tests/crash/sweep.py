"""Deaths inside an operation, in one process: a writer abandons its work at each of its points in turn.

Needs the test build. An abandoned operation leaves its record, gates and lists as a killed process would, and
its seat's lock goes as with a process; so thousands of deaths take seconds. Then somebody recovers, in one of
the ways there are, perhaps dies in the middle of that and is recovered in turn, and everything is compared
with the oracle. Each point once by SIGKILL in a process of its own as well: `Sweep.kill`.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import shmtrie.lanework
from shmtrie.capacity import Capacity
from shmtrie.contexts import WriterContext
from shmtrie.index import Index
from shmtrie.kernels import context as c
from shmtrie.kernels import hooks
from shmtrie.kernels.hooks import HookAbandon, Site
from tests.backends import segment_name
from tests.concurrency.board import Board
from tests.concurrency.stage import Stage
from tests.concurrency.worker import Worker
from tests.differential import Mismatch, expect
from tests.hooks import HookControl, die
from tests.reference import OK, Op, Rank
from tests.system.children import Child

MOST = 5_000  # points of one operation
DEPTH = 3  # deaths of recoverers on top of one another
THOROUGH = 8  # every so manieth death is followed by a comparison of every node


class Local:
    """A writer or reader of this process, in the place of an `Actor`."""

    def __init__(self, board: Board) -> None:
        self.control = HookControl()
        self.worker = Worker(self.control, board)
        self.lane, self.pid = -1, 0

    def call(self, method: str, *arguments: Any) -> Any:
        """Run a command."""
        return getattr(self.worker, method)(*arguments)

    def apply(self, *ops: Op) -> str:
        """Apply operations; "ok", or what the first refused one answered."""
        for op in ops:
            outcome, _ = self.worker.apply(op)
            if outcome != OK:
                return outcome
        return OK

    def find(self, query: Sequence[int]) -> dict[Rank, int]:
        """Scores of a query."""
        return self.worker.find(query)

    def take_lane(self) -> None:
        """Open a writer; what a dead one has left in its lane is recovered."""
        self.lane = self.worker.open_writer(0.002)

    def die(self) -> int:
        """Leave everything as it is but the seat's lock; the lane."""
        writer, self.worker._writer = self.worker.writer, None
        return die(writer)


class Cast(NamedTuple):
    """What a `Stage` wants of a fleet."""

    writers: list[Local]
    readers: list[Local]


class Recovering(WriterContext):
    """The context of a recoverer, with its points under control."""

    control: HookControl | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if Recovering.control is not None:
            self.words[c.C_HOOK] = Recovering.control.address


@contextmanager
def open_stage(
    lanes: dict[Rank, int] | None = None, capacity: Capacity | None = None, exact_holes: bool = False
) -> Iterator[Stage]:
    """A segment with three lanes of this process."""
    assert hooks.TEST_BUILD, "set SHMTRIE_TEST_BUILD=1"
    shmtrie.lanework.WriterContext = Recovering  # type: ignore[misc]
    name, board = segment_name("crash"), Board()
    capacity = capacity or Capacity(blocks=4_000, workers=64, lanes=4)
    with Index.create(name, capacity, exact_holes=exact_holes) as index:
        try:
            cast = Cast([Local(board) for _ in range(3)], [Local(board)])
            for actor in (*cast.writers, *cast.readers):
                actor.worker.attach(name, actor in cast.writers)
            for actor in cast.writers:
                actor.take_lane()
            yield Stage(cast, index, lanes)  # type: ignore[arg-type]
            for actor in (*cast.writers, *cast.readers):
                actor.worker.detach()
        finally:
            Index.unlink(name)


def _before(random: random.Random) -> str:
    """Some stores and removals of other ranks around the paths of the cases: another tree for each seed."""
    steps = []
    for _ in range(random.randrange(7)):
        rank = random.randint(40, 45)
        path = ",".join(str(b) for b in range(1, random.randint(2, 8)))
        if random.random() < 0.5:
            path += f",{random.randint(1, 9)}"
        steps.append(f"S {rank} {path}")
        if random.random() < 0.3:
            steps.append(f"R {rank} {path} @ {random.randint(1, path.count(',') + 1)}")
    return "; ".join(steps)


class Sweep:
    """Deaths of one operation at all of its points.

    Parameters
    ----------
    stage : Stage
        From `open_stage`.
    seed : int
        Of the choices at each point: who recovers, and where recoverers die.

    Attributes
    ----------
    deaths, nested, kills : int
        Deaths in operations, of recoverers, and by SIGKILL.
    sites : set of Site
        Where.
    """

    def __init__(self, stage: Stage, seed: int = 0) -> None:
        self.stage, self.random = stage, random.Random(seed)
        self.before = _before(self.random) if seed else ""
        self.deaths, self.nested, self.kills = 0, 0, 0
        self.sites: set[Site] = set()
        self._last: Site | None = None

    def run(self, setup: str, script: str) -> None:
        """Die at every point of the last operation of a script; compare after each death."""
        for countdown in range(1, MOST):
            self.stage.thorough = countdown % THOROUGH == 1
            with self._told(setup, script, f"hit {countdown}"):
                actor, op = self._begin(setup, script)
                alive = self._abandon(actor, op, countdown)
                self._finish()
            if alive:
                return
        raise AssertionError("an operation with too many points")

    def kill(self, setup: str, script: str) -> None:
        """The same in a process of its own that is killed, at each kind of point that `run` came by."""
        for site in sorted(self.sites):
            self.stage.thorough = True
            with self._told(setup, script, f"SIGKILL at {site!r}"):
                actor, op = self._begin(setup, script)
                self._kill(actor, op, site)
                self._finish()

    @contextmanager
    def _told(self, setup: str, script: str, where: str) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            came = f"after {self.before!r}, {setup!r}, then a death in {script!r} at {where}, {self._last!r}"
            raise Mismatch(f"{error}\n{came}") from error

    def _begin(self, setup: str, script: str) -> tuple[Any, Op]:
        """Do all but the last operation; who performs that, and it."""
        stage = self.stage
        stage.begin()
        stage.play(self.before)
        stage.play(setup)
        *before, op = stage.ops(script)
        for early in before:
            stage.note(early, stage.actor(early).apply(early))
        return stage.actor(op), op

    def _finish(self) -> None:
        stage = self.stage
        stage.settle()
        if stage.thorough:
            stage.drain()
        else:  # what is left of this is counted after the next thorough one
            for worker_id in {rank[0] for rank in stage.oracle.ranks()}:
                expect(stage.writers[0].apply(("remove_worker", worker_id)) == OK, "removal of", worker_id)

    def _abandon(self, actor: Any, op: Op, countdown: int) -> bool:
        """Leave the operation at a point, or complete it, which is returned."""
        actor.control.arm(hooks.ABANDON, hooks.ANY_SITE, countdown)
        try:
            outcome, message = actor.call("apply", op)
        except HookAbandon:
            self.deaths += 1
            self._last = Site(int(actor.control.words[hooks.W_LAST]))
            self.sites.add(self._last)
            self._after_death(actor, actor.die(), op)
            return False
        actor.control.disarm()
        expect(outcome in self.stage.oracle.outcomes(op), op, "answered", outcome, message)
        self.stage.note(op, outcome)
        return True

    def _kill(self, actor: Any, op: Op, site: Site) -> None:
        """Let a child take the lane and the rank over, and be killed in the operation, should it come by."""
        control, name = HookControl(), self.stage.index.name
        actor.worker.close_writer()

        def body(connection: Connection) -> tuple[str, str]:
            child = Worker(control, Board())
            child.attach(name, True)
            connection.send(child.open_writer(0.002))
            control.arm(hooks.KILL, site)
            return child.apply(op)

        with Child(body) as child:
            lane = child.hear()
            if child.wait() == -signal.SIGKILL:
                self.kills += 1
                self._after_death(actor, lane, op)
                return
            outcome, message = child.hear()
        expect(outcome in self.stage.oracle.outcomes(op), op, "answered", outcome, message)
        self.stage.note(op, outcome)
        actor.take_lane()

    def _after_death(self, actor: Any, lane: int, op: Op) -> None:
        stage = self.stage
        if op[0] == "store":
            stage.queries.update(self._paths(op))
        during = stage.bounds_during(op)
        stage.check(during)  # readers go on as if nothing had happened
        self._recover(actor, lane, op)
        stage.check(during)
        report = stage.index.verify()
        # a removal that was cut leaves a hidden slot, which the next one frees
        settled = all(op[0] == "remove_worker" and invariant == "I10" for invariant, _ in report.unsettled)
        expect(report.ok and settled, "verify after the recovery:", report)
        if op[0] == "store":
            self._whole_or_not_at_all(op)
        if actor.worker._writer is None:
            actor.take_lane()
        outcome, message = actor.call("apply", op)  # the engine sends it again
        expect(outcome in stage.oracle.outcomes(op), op, "sent again is answered", outcome, message)
        stage.note(op, outcome)

    def _recover(self, actor: Any, lane: int, op: Op) -> None:
        """One of the ways in which a death is noticed; recoverers die, too."""
        others = [w for w in self.stage.writers if w is not actor]
        for _ in range(self.random.choice((0, 0, 1, DEPTH - 1))):
            control = Recovering.control = HookControl()
            control.arm(hooks.ABANDON, hooks.ANY_SITE, self.random.randint(1, 25))
            try:
                others[0].worker.writer._work.recover_lane(lane)  # type: ignore[attr-defined]
            except HookAbandon:
                self.nested += 1
            finally:
                Recovering.control = None
        way = self.random.randrange(3)
        if way == 0:
            others[1].worker.writer._work.recover_lane(lane)  # type: ignore[attr-defined]
        elif way == 1 and op[0] != "remove_worker":
            # somebody meets its gates, or finds a rank that it owned
            other = self.stage.ops("S 60 1-3")[0]
            other_rank: Rank = (60, 0)
            expect(others[1].apply(other) == OK, other, "is refused beside a dead lane")
            others[1].call("apply", ("remove", other_rank, [b[1] for b in other[3]]))
            others[1].call("apply", ("remove_worker", 60))
            actor.take_lane()
        else:
            actor.take_lane()

    def _paths(self, op: Op) -> set[tuple[int, ...]]:
        """Queries along a store that may not have come."""
        above = () if op[2] is None else self.stage.path(op[1], op[2])
        path = (*above, *(b[0] for b in op[3]))
        return {path, path[:-1]}

    def _whole_or_not_at_all(self, op: Op) -> None:
        """All queries show the store, or none does."""
        stage, rank = self.stage, op[1]
        before = {query: stage.oracle.bounds(rank, query) for query in stage.queries}
        later = stage.after(op)
        after = {query: later.bounds(rank, query) for query in stage.queries}
        found = {query: stage.scores(query).get(rank, 0) for query in stage.queries}
        is_before, is_after = (
            all(low <= found[q] <= high for q, (low, high) in state.items()) for state in (before, after)
        )
        expect(is_before or is_after, "a part of", op, "is there:", found, "before", before, "after", after)


def two_dead_lanes(stage: Stage, way: int) -> None:
    """One died with its child entry in, before its commit; the other holds the space lock that taking the
    entry back needs. A newcomer (way 0) or a lane that meets the first one's gate (1) recovers both.
    """
    stage.play("S 1 1-4; S 2 1-4; S 3 1-4; S 2 1-4 + 5; S 3 1-4 + 6")
    for script, site in (("S 1 1-4 + 7", Site.STORE_PREPARED), ("S 2 1-4 + 8", Site.SPACE_LOCKED)):
        (op,) = stage.ops(script)
        actor: Any = stage.actor(op)
        actor.control.arm(hooks.ABANDON, site)
        try:
            actor.call("apply", op)
        except HookAbandon:
            actor.die()
        else:
            raise AssertionError(f"{op} did not come by {site!r}")
    if way == 0:
        stage.writers[2].worker.close_writer()  # type: ignore[attr-defined]
        for actor in stage.writers:
            actor.take_lane()  # type: ignore[attr-defined]
    else:
        stage.play("S 3 1-4,7")
        for actor in stage.writers[:2]:
            actor.take_lane()  # type: ignore[attr-defined]
    stage.settle()
    stage.drain()
