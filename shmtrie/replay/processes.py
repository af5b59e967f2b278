"""Running the tasks: in child processes that live as long as the parent, or in the calling process.

A child gets its work over a pipe and ends when the pipe does, so it cannot outlive a parent that was
killed. It is a daemon as well, so an exception in the parent takes it along. Everything that waits has a
deadline and notices a child that died.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import ShmtrieError
from .sources import IndexSource, SharedSource
from .tasks import RouterTask, WriterTask

__all__ = ["ChildFailed", "Crew", "Port", "start_crew"]

I64 = npt.NDArray[np.int64]

START_SECONDS: Final = 300.0
"""Patience with a child that starts: it may have to wait until the kernels are compiled."""
ROUND_SECONDS: Final = 120.0
"""Patience with one answer."""
_STOP_SECONDS: Final = 5.0
_WARM_UP_WORKER: Final = 1 << 62

WRITER: Final = "writer"
ROUTER: Final = "router"


class ChildFailed(ShmtrieError):
    """A writer or router process died, raised, or did not answer in time."""


class Port(Protocol):
    """The caller's end of a task."""

    def send(self, method: str, *arguments: Any) -> None:
        """Start a call."""
        ...

    def receive(self) -> Any:
        """Wait for the result of the oldest call that was sent.

        Receive from the writers before the routers: in one process nothing happens before it is wanted.
        """
        ...


class Crew(NamedTuple):
    """All tasks of a replay."""

    writers: list[Port]
    routers: list[Port]


class _LocalPort:
    """A task in this process: a call is made when its result is wanted."""

    def __init__(self, task: WriterTask | RouterTask) -> None:
        self._task = task
        self._calls: list[tuple[str, tuple[Any, ...]]] = []

    def send(self, method: str, *arguments: Any) -> None:
        self._calls.append((method, arguments))

    def receive(self) -> Any:
        method, arguments = self._calls.pop(0)
        return getattr(self._task, method)(*arguments)


class _ChildPort:
    """A task in a child process."""

    def __init__(self, role: str, number: int, writers: int, source: SharedSource, progress: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._label = f"{role} {number}"
        self._pipe, theirs = context.Pipe()
        arguments = (role, number, writers, source, progress, theirs)
        self._process = context.Process(
            target=_child, args=arguments, name=f"shmtrie-replay-{role}-{number}", daemon=True
        )
        self._process.start()
        # The child has its own copy; with this one open its death would not end the pipe.
        theirs.close()

    def send(self, method: str, *arguments: Any) -> None:
        try:
            self._pipe.send((method, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise self._failure("ended before it got its work") from None

    def receive(self, seconds: float = ROUND_SECONDS) -> Any:
        try:
            if not self._pipe.poll(seconds):
                raise self._failure(f"did not answer within {seconds:.0f} s")
            ok, result = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._failure("ended unexpectedly") from None
        if not ok:
            raise ChildFailed(f"{self._label} failed:\n{result}")
        return result

    def dismiss(self) -> None:
        """Tell the child to end."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._pipe.close()

    def stop(self, deadline: float) -> None:
        """Wait for the end until `deadline` (monotonic seconds), then enforce it."""
        self._process.join(max(0.0, deadline - time.monotonic()))
        for end in (self._process.terminate, self._process.kill):
            if self._process.is_alive():
                end()
                self._process.join(1.0)

    def _failure(self, what: str) -> ChildFailed:
        self._process.join(0.5)
        code = self._process.exitcode
        state = "still running" if code is None else f"exit code {code}"
        return ChildFailed(f"{self._label} (process {self._process.pid}, {state}) {what}")


@contextlib.contextmanager
def start_crew(source: IndexSource, writers: int, routers: int) -> Iterator[Crew]:
    """Start the tasks of a replay and end them with the ``with`` block.

    Parameters
    ----------
    source : IndexSource
        With a `SharedSource` every task gets a process of its own; with any other all run in this one.
    writers, routers : int
        How many of each.

    Yields
    ------
    Crew
        Ready: every task has its handle of the index.

    Raises
    ------
    ChildFailed
        If a process cannot start, here; if one fails later, from its `Port`.
    """
    if not isinstance(source, SharedSource):
        progress = np.zeros((writers, 2), np.int64)
        with contextlib.ExitStack() as stack:
            tasks = [WriterTask(stack.enter_context(source.writer()), progress, i) for i in range(writers)]
            askers = [RouterTask(stack.enter_context(source.reader()), progress) for _ in range(routers)]
            yield Crew([_LocalPort(task) for task in tasks], [_LocalPort(task) for task in askers])
        return
    shared = multiprocessing.get_context("spawn").RawArray("q", writers * 2)
    children: list[_ChildPort] = []
    try:
        for i in range(writers):
            children.append(_ChildPort(WRITER, i, writers, source, shared))
        for i in range(routers):
            children.append(_ChildPort(ROUTER, i, writers, source, shared))
        for child in children:
            child.receive(START_SECONDS)
        yield Crew(list(children[:writers]), list(children[writers:]))
    finally:
        for child in children:
            child.dismiss()
        deadline = time.monotonic() + _STOP_SECONDS
        for child in children:
            child.stop(deadline)


def _child(
    role: str, number: int, writers: int, source: SharedSource, shared: Any, pipe: Connection[Any, Any]
) -> None:
    """Body of a child process: open the index, say so, answer calls until told to end."""
    # Ctrl-C goes to the whole group; the parent decides, and its end ends the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    progress: I64 = np.frombuffer(shared, np.int64).reshape(writers, 2)
    try:
        with contextlib.ExitStack() as stack:
            task: WriterTask | RouterTask
            if role == WRITER:
                task = WriterTask(stack.enter_context(source.writer()), progress, number)
                task.warm_up(_WARM_UP_WORKER + number)
            else:
                task = RouterTask(stack.enter_context(source.reader()), progress)
                task.warm_up()
            pipe.send((True, None))
            while (call := pipe.recv()) is not None:
                method, arguments = call
                pipe.send((True, getattr(task, method)(*arguments)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The parent was killed, so nobody else removes the segment.
        source.discard()
    except Exception:
        with contextlib.suppress(OSError):
            pipe.send((False, traceback.format_exc()))
