"""The process on the other side of an `Actor`: one handle of a segment, and at most one lane.

Started as ``python -m tests.concurrency.worker PARENT CONNECTION CONTROL BOARD SEAT`` with three inherited
descriptors: the connection by which it is told what to do, the memory of its `HookControl`, and the fleet's
`Board`. It ends when the connection does, when its parent dies, and when one command takes longer than
`LIMIT`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import signal
import sys
import time
import traceback
from array import array
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from shmtrie.errors import Busy, EventStatus, ShmtrieError
from shmtrie.events import EventBatch, KvCacheEvent, KvCacheRemoveData, KvCacheStoreData, RouterEvent
from shmtrie.events import KvCacheStoredBlockData as Block
from shmtrie.index import Index
from shmtrie.kernels import batch
from shmtrie.kernels import context as c
from shmtrie.writer import Writer
from tests.concurrency.board import Board
from tests.hooks import HookControl
from tests.reference import OK, Op, Rank

LIMIT = float(os.environ.get("SHMTRIE_TEST_TIMEOUT", "300"))  # seconds
PATIENCE = 20.0  # seconds that an operation of a stream is tried again while it is `Busy`
_PR_SET_PDEATHSIG = 1

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def as_event(op: Op, event_id: int = 0) -> RouterEvent:
    """A store, remove or clear as an event."""
    data: Any = "cleared"
    if op[0] == "store":
        data = KvCacheStoreData(op[2], [Block(external, local) for local, external in op[3]])
    elif op[0] == "remove":
        data = KvCacheRemoveData(list(op[2]))
    return RouterEvent(op[1][0], KvCacheEvent(event_id, data, op[1][1]))


def prepared(index: Index, writer: Writer, op: Op) -> Call:
    """The call that an operation is, with its arguments as arrays."""
    kind = op[0]
    if kind == "store":
        local, external = (np.array([b[i] for b in op[3]], np.uint64) for i in (0, 1))
        return writer.store, (op[1], op[2], local, external)
    if kind == "remove":
        return writer.remove, (op[1], np.array(op[2], np.uint64))
    if kind == "query":
        return index.find_matches, (np.array(op[1], np.uint64),)
    calls = {
        "clear": writer.clear,
        "remove_worker": writer.remove_worker,
        "release": writer.release,
        "move": writer.release,
    }
    return calls[kind], (op[1],)


class Worker:
    """What an `Actor` can ask for: every public method is a command.

    Operations are those of ``tests.reference``, and ``("release", rank)``, which is what ``move`` does here.
    """

    def __init__(self, control: HookControl, board: Board) -> None:
        self.control, self.board = control, board
        self._index: Index | None = None
        self._writer: Writer | None = None

    # -- handles ----------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        """The handle."""
        assert self._index is not None
        return self._index

    @property
    def writer(self) -> Writer:
        """The lane."""
        assert self._writer is not None
        return self._writer

    def attach(self, name: str, write: bool) -> None:
        """Attach, in place of what was attached before."""
        self.detach()
        self._index = Index.attach(name, read_only=not write)
        for context in self._reader_contexts():
            self.control.install(context.words)

    def detach(self) -> None:
        """Close everything."""
        self.close_writer()
        if self._index is not None:
            self._index.close()
            self._index = None

    def open_writer(self, patience: float) -> int:
        """Take a lane; its number."""
        self.close_writer()
        self._writer = self.index.writer(patience)
        self.control.install(self._writer._work.context.words)
        return self._writer.lane

    def close_writer(self) -> None:
        """Give the lane back."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _reader_contexts(self) -> Sequence[Any]:
        with self.index._context():
            pass  # one is there from now on
        return [*self.index._find_contexts, *self.index._spare]

    def reads_again(self) -> tuple[int, int]:
        """(nodes read again, queries given up) of this handle's finds so far."""
        contexts = self._reader_contexts()
        redos, given_up = (sum(x.get(word) for x in contexts) for word in (c.C_REDOS, c.C_GIVEUPS))
        return redos, given_up

    # -- single operations ------------------------------------------------------------------------

    def apply(self, op: Op) -> tuple[str, str]:
        """Apply one operation: (outcome, message)."""
        function, arguments = prepared(self.index, self.writer, op)
        try:
            function(*arguments)
        except ShmtrieError as error:
            return type(error).__name__, str(error)
        return OK, ""

    def tidy(self) -> None:
        """Do what had to be left for the next operation."""
        batch.tidy_up(self.writer._work.context.address)

    def find(self, query: Sequence[int]) -> dict[Rank, int]:
        """Scores of a query."""
        return {(r.worker_id, r.dp_rank): n for r, n in self.index.find_matches(list(query)).scores.items()}

    def find_details(self, query: Sequence[int]) -> dict[Rank, tuple[int, int]]:
        """Scores of a query with the last matched hashes."""
        found = self.index.find_match_details(list(query))
        rows = zip(found.workers, found.depths, found.last_hashes, strict=True)
        return {(int(w["worker_id"]), int(w["dp_rank"])): (int(d), int(h)) for w, d, h in rows}

    # -- streams ----------------------------------------------------------------------------------

    def perform(self, ops: Sequence[Op], how: str, seed: int) -> tuple[bytes, list[str], int]:
        """Apply operations as fast as possible, once the board says so.

        Parameters
        ----------
        ops : sequence of operations
            Each that is `Busy` is tried again until it is not.
        how : str
            ``calls``: one call each; ``batch``: packed, some ten in a kernel call.
        seed : int
            Of the short pauses between operations and of the sizes of batches.

        Returns
        -------
        times : bytes
            int64: begin and end of each operation, ns; operations of a batch share theirs.
        outcomes : list of str
        busy : int
            How often an operation was `Busy`.
        """
        rng = random.Random(seed)
        steps: list[tuple[Sequence[Op], Call | EventBatch]] = []
        at = 0
        while at < len(ops):
            size = 1 if how == "calls" else rng.randint(2, 16)
            some = ops[at : at + size]
            while len(some) > 1 and any(op[0] not in ("store", "remove", "clear") for op in some):
                some = some[:-1]
            alone = len(some) == 1
            steps.append(
                (
                    some,
                    prepared(self.index, self.writer, some[0])
                    if alone
                    else EventBatch.from_events(map(as_event, some)),
                )
            )
            at += len(some)
        pauses = [rng.choice((0.0, 0.0, 20e-6)) if rng.random() < 0.1 else -1.0 for _ in steps]
        times, outcomes, busy, now = array("q"), list[str](), 0, time.monotonic_ns
        self.board.wait_start()
        for (some, step), pause in zip(steps, pauses, strict=True):
            begin = now()
            if isinstance(step, EventBatch):
                got, again = self._batch(some, step)
                end = now()
                times.extend((begin, end) * len(some))
            else:
                got, again = self._call(step)
                times.extend((begin, now()))
            outcomes += got
            busy += again
            if pause >= 0:
                time.sleep(pause)
        return times.tobytes(), outcomes, busy

    @staticmethod
    def _call(step: Call) -> tuple[list[str], int]:
        function, arguments = step
        busy, deadline = 0, 0.0
        while True:
            try:
                function(*arguments)
            except Busy as error:
                busy += 1
                deadline = deadline or time.monotonic() + PATIENCE
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{function.__name__}{arguments} is busy for {PATIENCE} s: {error}"
                    ) from error
                continue
            except ShmtrieError as error:
                return [type(error).__name__], busy
            return [OK], busy

    def _batch(self, some: Sequence[Op], batch: EventBatch) -> tuple[list[str], int]:
        left, busy, deadline = list(range(len(some))), 0, time.monotonic() + PATIENCE
        statuses = np.zeros(len(some), np.uint8)
        while left:
            statuses[left] = self.writer.apply_batch(batch)
            left = [i for i in left if statuses[i] == EventStatus.BUSY]
            if left:
                busy += 1
                if time.monotonic() > deadline:
                    raise TimeoutError(f"a batch is busy for {PATIENCE} s")
                batch = EventBatch.from_events(as_event(some[i]) for i in left)
        return [_OUTCOME[EventStatus(int(s))] for s in statuses], busy

    # -- reading ----------------------------------------------------------------------------------

    def read(
        self, queries: Sequence[Sequence[int]], limit: int, seed: int
    ) -> tuple[bytes, list[bytes], tuple[int, int]]:
        """Ask queries from the start to the stop that the board shows, at most `limit` times.

        Returns
        -------
        calls : bytes
            int64, shape (n, 5): begin and end, ns; index of the query; index of the answer; 1 if the find
            gave up.
        answers : list of bytes
            Different answers: worker records, then depths.
        reads_again : (int, int)
            Nodes read again, finds given up.
        """
        rng, board, now, find = random.Random(seed), self.board, time.monotonic_ns, self.index.find_matches
        arrays = [np.array(q, np.uint64) for q in queries]
        order = [rng.randrange(len(arrays)) for _ in range(997)]
        log, results = array("q"), list[Any]()
        add, keep = log.extend, results.append
        contexts = self._reader_contexts()
        plain = contexts[0].words
        before = self.reads_again()
        given_up, i = int(plain[c.C_GIVEUPS]), 0
        board.wait_start()
        while not board.stopped and i < limit:
            which = order[i % 997]
            query = arrays[which]
            begin = now()
            found = find(query)
            end = now()
            i += 1
            lost = int(plain[c.C_GIVEUPS])
            add((begin, end, which, lost - given_up))
            given_up = lost
            keep(found)
        known: dict[bytes, int] = {}
        answers = [known.setdefault(r.workers.tobytes() + r.depths.tobytes(), len(known)) for r in results]
        rows = np.frombuffer(log.tobytes(), np.int64).reshape(-1, 4)
        column = np.array(answers, np.int64)
        calls: npt.NDArray[np.int64] = np.column_stack((rows[:, :3], column, rows[:, 3]))
        after = self.reads_again()
        return calls.tobytes(), list(known), (after[0] - before[0], after[1] - before[1])


_OUTCOME = {
    EventStatus.OK: OK,
    EventStatus.PARENT_BLOCK_NOT_FOUND: "ParentBlockNotFound",
    EventStatus.BLOCK_NOT_FOUND: "BlockNotFound",
    EventStatus.INVALID_BLOCK_SEQUENCE: "InvalidBlockSequence",
    EventStatus.CAPACITY_EXCEEDED: "CapacityExceeded",
    EventStatus.RANK_OWNED_ELSEWHERE: "RankOwnedElsewhere",
}


def serve(connection: Connection, worker: Worker) -> None:
    """Do what comes over the connection until it ends."""
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, OSError):
            return
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        try:
            answer: tuple[Any, ...] = ("done", getattr(worker, method)(*arguments))
        except Exception as error:
            answer = ("failed", f"{type(error).__name__}: {error}", traceback.format_exc())
        faulthandler.cancel_dump_traceback_later()
        connection.send(answer)


def main() -> None:
    """Entry point."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # died before we asked
        return
    connection, control, board, seat = (int(text) for text in sys.argv[2:6])
    serve(Connection(connection), Worker(HookControl(control), Board(board, seat)))


if __name__ == "__main__":
    main()
