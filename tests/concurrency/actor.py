"""Processes of a test as objects: an `Actor` each, a `Fleet` for those that run together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from shmtrie.kernels import hooks
from tests.concurrency.board import Board
from tests.hooks import HookControl, wait_until
from tests.reference import OK, Op, Rank

TIMEOUT = 60.0  # seconds until an answer counts as a hang
ROOT = Path(__file__).resolve().parents[2]


class ActorError(AssertionError):
    """A command failed in its process; the text is its traceback."""


class Actor:
    """One subprocess with one handle of a segment, and a lane if it is told to take one.

    Parameters
    ----------
    test_build : bool
        Whether its kernels have the points at which `control` pauses it.
    board : Board
        Of the fleet.
    seat : int
        Its number in the fleet.

    Attributes
    ----------
    control : HookControl
        Pauses it.
    pid, lane : int
        Its process; the lane it has, -1 without one.

    Notes
    -----
    One command at a time: `begin` and `end`, or `call` for both.
    """

    def __init__(self, test_build: bool, board: Board, seat: int = 0) -> None:
        self._memory = os.memfd_create("shmtrie-hooks")
        os.ftruncate(self._memory, 8 * hooks.CONTROL_WORDS)
        self.control = HookControl(self._memory)
        self.lane, self.busy = -1, False
        self._connection, there = Pipe()
        env = dict(
            os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        )
        env["SHMTRIE_TEST_BUILD"] = "1" if test_build else ""
        given = (there.fileno(), self._memory, board.descriptor)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.concurrency.worker", *map(str, (os.getpid(), *given, seat))],
            env=env,
            cwd=ROOT,
            pass_fds=given,
        )
        there.close()
        self.pid = self._process.pid

    # -- commands ---------------------------------------------------------------------------------

    def begin(self, method: str, *arguments: Any) -> None:
        """Send a command; see `worker.Worker` for what there is."""
        assert not self.busy, f"process {self.pid} is still busy"
        self._connection.send((method, arguments))
        self.busy = True

    def end(self, timeout: float = TIMEOUT) -> Any:
        """Wait for the answer to the command.

        Raises
        ------
        ActorError
            The command failed, or the process is gone.
        TimeoutError
        """
        try:
            if not self._connection.poll(timeout):
                raise TimeoutError(f"process {self.pid} says nothing for {timeout} s")
            kind, *answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise ActorError(f"process {self.pid} ended with code {self._process.poll()}") from error
        self.busy = False
        if kind == "failed":
            raise ActorError(f"process {self.pid}: {answer[1]}")
        return answer[0]

    def call(self, method: str, *arguments: Any, timeout: float = TIMEOUT) -> Any:
        """Send a command and wait for its answer."""
        self.begin(method, *arguments)
        return self.end(timeout)

    @property
    def answered(self) -> bool:
        """Whether the answer to the last command is there."""
        return self._connection.poll(0)

    # -- shorthands -------------------------------------------------------------------------------

    def attach(self, name: str, patience: float | None = None) -> None:
        """Attach to a segment; with a patience, for writing and with a lane."""
        self.call("attach", name, patience is not None)
        if patience is not None:
            self.lane = self.call("open_writer", patience)

    def apply(self, *ops: Op) -> str:
        """Apply operations; "ok", or what the first refused one answered."""
        for op in ops:
            outcome, _ = self.call("apply", op)
            if outcome != OK:
                return str(outcome)
        return OK

    def outcome(self) -> tuple[str, str]:
        """End a `begin("apply", ...)`: outcome and message."""
        outcome, message = self.end()
        return outcome, message

    def find(self, query: Sequence[int]) -> dict[Rank, int]:
        """Scores of a query, asked in its process."""
        found: dict[Rank, int] = self.call("find", query)
        return found

    def pause_at(self, site: int, countdown: int, method: str, *arguments: Any) -> int | None:
        """Let it do something until it pauses; the site where it does, None when it answered first."""
        self.control.arm(hooks.PAUSE, site, countdown)
        self.begin(method, *arguments)
        wait_until(
            lambda: self.control.state == hooks.PAUSED or self.answered, TIMEOUT, f"pause of {self.pid}"
        )
        if self.control.state == hooks.PAUSED:
            return int(self.control.words[hooks.W_LAST])
        self.control.disarm()
        return None

    def resume_pause(self) -> None:
        """Let it go on from where it pauses."""
        self.control.wait_released()

    # -- signals ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """SIGSTOP, and wait until it is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what=f"stop of {self.pid}")

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait(TIMEOUT)
        self._connection.close()
        with contextlib.suppress(OSError):
            os.close(self._memory)
        self._memory = -1

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None


class Fleet(AbstractContextManager["Fleet"]):
    """Actors that share a `Board`; they are killed at the end of the ``with``.

    Parameters
    ----------
    writers, readers : int
        How many of each; they are all alike, and get their part by what they attach.
    test_build : bool
        As of `Actor`.
    """

    def __init__(self, writers: int, readers: int, test_build: bool = False) -> None:
        self.board, self.test_build = Board(), test_build
        self._actors: list[Actor] = []
        self._writers, self._readers = writers, readers
        try:
            for seat in range(writers + readers):
                self._actors.append(Actor(test_build, self.board, seat))
        except BaseException:
            self.close()
            raise

    @property
    def actors(self) -> list[Actor]:
        """Everybody."""
        return list(self._actors)

    @property
    def writers(self) -> list[Actor]:
        """Those meant to write."""
        return self._actors[: self._writers]

    @property
    def readers(self) -> list[Actor]:
        """Those meant to read."""
        return self._actors[self._writers :]

    def reset(self) -> None:
        """Everybody detached and idle; who was killed, or left in the middle of something, is replaced."""
        for seat, actor in enumerate(self._actors):
            if not actor.alive or actor.busy:
                actor.kill()
                self._actors[seat] = Actor(self.test_build, self.board, seat)
            else:
                actor.control.disarm()
                actor.begin("detach")
        for actor in self._actors:
            if actor.busy:
                actor.end()
            actor.lane = -1

    def close(self) -> None:
        """Kill everybody."""
        for actor in self._actors:
            actor.kill()
        self._actors.clear()

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextlib.contextmanager
def together(board: Board, actors: Sequence[Actor], stop_after: float | None = None) -> Iterator[None]:
    """Start those who were told to `perform` or `read`, run the body, then let readers stop.

    Parameters
    ----------
    board : Board
        Of their fleet, reset before they were told.
    actors : sequence of Actor
        All of them.
    stop_after : float, optional
        Seconds that readers go on at least.
    """
    begin = time.monotonic()
    board.start(len(actors))
    try:
        yield
        if stop_after is not None:
            wait_until(lambda: time.monotonic() - begin >= stop_after, stop_after + 10)
    finally:
        board.stop()


def eventually(condition: Callable[[], bool], what: str, timeout: float = TIMEOUT) -> None:
    """`wait_until` with the time-out of actors."""
    wait_until(condition, timeout, what)
