"""The indexes that the shared tests run on, and how they are called.

A test that takes the ``backend`` fixture runs once for each entry of ``BACKENDS``; one whose module does
not exist is skipped. ``backend.open()`` gives a context manager of an empty index that takes writes
directly; for a shared-memory index that is a ``LaneIndex``, which sends each rank's writes to its lane.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import re
import secrets
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.concurrency.tree import Tree
from tests.reference import MASK, Op, Rank

Open = Callable[[], AbstractContextManager[Any]]

# Part of every segment name of this test run; the session check looks for it in /dev/shm.
RUN = f"t{os.getpid():x}x{secrets.token_hex(3)}"
_numbers = itertools.count()


def segment_name(hint: str = "") -> str:
    """A segment name that nothing else uses, with a readable part."""
    return f"{RUN}-{next(_numbers)}-{re.sub('[^a-z0-9]+', '-', hint.lower())[:40]}".rstrip("-")


# -- forms of arguments and results --------------------------------------------------------------


def as_signed(value: int) -> int:
    """The same 64-bit pattern as a signed int."""
    return value - 2**64 if value >= 2**63 else value


def shaped(values: Sequence[int], way: int) -> Any:
    """The same hashes in one of the forms that an index has to accept."""
    unsigned = np.array([v & MASK for v in values], dtype=np.uint64)
    forms: tuple[Callable[[], Any], ...] = (
        lambda: list(values),
        lambda: unsigned,
        lambda: unsigned.view(np.int64),
        lambda: [as_signed(v & MASK) for v in values],
        lambda: array("Q", unsigned.tolist()),
        lambda: np.repeat(unsigned, 2)[::2],
        lambda: tuple(values),
    )
    return forms[way % len(forms)]()


def footprint(index: Any) -> dict[str, int]:
    """The part of ``stats`` that an emptied index must share with a new one."""
    stats = index.stats() if hasattr(index, "stats") else None
    return {f: getattr(stats, f) for f in ("blocks", "unique_blocks", "nodes") if hasattr(stats, f)}


def pairs(result: Any) -> dict[Rank, int]:
    """Scores of a result, read from its arrays."""
    workers, depths = result.workers, result.depths
    return {(int(w["worker_id"]), int(w["dp_rank"])): int(d) for w, d in zip(workers, depths, strict=True)}


def stores_of(events: Iterable[Any]) -> list[Op]:
    """Dump events as store operations, in order."""
    ops: list[Op] = []
    for router in events:
        event, rank = router.event, (router.worker_id, router.event.dp_rank)
        parent = None if event.data.parent_hash is None else event.data.parent_hash & MASK
        blocks = [(b.tokens_hash & MASK, b.block_hash & MASK) for b in event.data.blocks]
        ops.append(("store", rank, parent, blocks))
    return ops


def canonical(events: Iterable[Any]) -> Counter[Any]:
    """A dump as a multiset of (rank, parent, blocks): order and event ids aside."""
    return Counter((op[1], op[2], tuple(op[3])) for op in stores_of(events))


class ByEvents:
    """An index whose write calls go through its event methods instead.

    Parameters
    ----------
    index : object
        Index with the event methods.
    how : str
        ``event`` (RouterEvent), ``json`` (its bytes), ``many`` (``apply_events``) or ``batch``
        (``apply_batch``).
    """

    def __init__(self, index: Any, how: str) -> None:
        self._index, self._how, self._ids = index, how, itertools.count()
        self._ev = importlib.import_module("shmtrie.events")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def _send(self, worker: int | Rank, data: Any) -> None:
        ev, (worker_id, dp_rank) = self._ev, (worker, 0) if isinstance(worker, int) else worker
        event = ev.RouterEvent(worker_id, ev.KvCacheEvent(next(self._ids), data, dp_rank))
        if self._how in ("event", "json"):
            self._index.apply_event(event if self._how == "event" else ev.encode_event(event))
            return
        (status,) = (
            self._index.apply_events([event])
            if self._how == "many"
            else self._index.apply_batch(ev.EventBatch.from_events([event]))
        )
        if status:
            raise importlib.import_module("shmtrie.errors").exception_for(int(status), f"status of {event}")

    def store(self, worker: int | Rank, parent: int | None, local: Any, external: Any) -> None:
        """Store, as an event."""
        both = zip(local, external, strict=True)
        blocks = [self._ev.KvCacheStoredBlockData(int(e) & MASK, int(t) & MASK) for t, e in both]
        self._send(worker, self._ev.KvCacheStoreData(None if parent is None else int(parent) & MASK, blocks))

    def remove(self, worker: int | Rank, external: Sequence[int]) -> None:
        """Remove, as an event."""
        self._send(worker, self._ev.KvCacheRemoveData([int(e) & MASK for e in external]))

    def clear(self, worker: int | Rank) -> None:
        """Clear, as an event."""
        self._send(worker, "cleared")


class LaneIndex:
    """A shared-memory index with its writers in one process: a rank's writes go to the rank's lane.

    Parameters
    ----------
    index : Index
        Attached for writing.
    lanes : int
        Number of writers; ranks are dealt out in the order in which they come.
    stack : ExitStack
        Closes the writers.
    """

    def __init__(self, index: Any, lanes: int, stack: ExitStack) -> None:
        self.index, self.lanes = index, lanes
        self._writers = [stack.enter_context(index.writer()) for _ in range(lanes)]
        self._lane: dict[Rank, int] = {}
        self._registered: set[Rank] = set()

    def __getattr__(self, name: str) -> Any:
        # Events carry their rank, so whoever sends events sends all of them over the first lane.
        on_lane = name in ("apply_event", "apply_events", "apply_batch")
        return getattr(self._writers[0] if on_lane else self.index, name)

    def _rank(self, worker: int | Rank) -> Rank:
        return (worker, 0) if isinstance(worker, int) else (worker[0], worker[1])

    def writer_of(self, worker: int | Rank) -> Any:
        """The writer that a rank's events go to."""
        return self._writers[self._lane.setdefault(self._rank(worker), len(self._lane) % self.lanes)]

    def store(self, worker: int | Rank, parent: int | None, local: Any, external: Any) -> None:
        """Store on the rank's lane."""
        self.writer_of(worker).store(worker, parent, local, external)
        if len(external):
            self._registered.add(self._rank(worker))

    def remove(self, worker: int | Rank, external: Any) -> None:
        """Remove on the rank's lane."""
        self.writer_of(worker).remove(worker, external)

    def clear(self, worker: int | Rank) -> None:
        """Clear on the rank's lane."""
        self.writer_of(worker).clear(worker)

    def remove_worker(self, worker_id: int) -> None:
        """Remove all ranks of a worker, from the lane of one of them."""
        mine = [r for r in self._lane if r[0] == worker_id]
        (self.writer_of(mine[-1]) if mine else self._writers[0]).remove_worker(worker_id)
        self._registered.difference_update(mine)

    def move(self, rank: Rank) -> None:
        """Hand a rank over to the next lane."""
        if self.lanes > 1 and rank in self._registered:
            self.writer_of(rank).release(rank)
            self._lane[rank] = (self._lane[rank] + 1) % self.lanes


# -- the backends --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backend:
    """One index under test.

    Parameters
    ----------
    name : str
        Key in ``BACKENDS``.
    module : str
        What must exist for the backend to run.
    lanes : int
        Writers of a shared-memory index, 0 for an index in this process.
    exact_holes : bool
        Scores are the held prefix always.
    compressed : bool
        A chain is one node: what lies behind a hole of an edge is forgotten, as the scenarios have it.
    """

    name: str
    module: str
    lanes: int = 0
    exact_holes: bool = False
    compressed: bool = True

    @property
    def missing(self) -> bool:
        """Whether the index does not exist."""
        return importlib.util.find_spec("shmtrie") is None or importlib.util.find_spec(self.module) is None

    @contextmanager
    def open(self, how: str = "calls") -> Iterator[Any]:
        """Make an empty index; ``how`` = ``calls``, or a way of ``ByEvents`` for all its writes."""
        module = importlib.import_module(self.module)
        with ExitStack() as stack:
            if not self.lanes:
                index: Any = module.RadixTree(exact_holes=self.exact_holes)
                stack.callback(index.close)
            else:
                name = segment_name(os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[-1])
                # One lane more than the writers here: loading a dump opens one of the index's own.
                capacity = module.Capacity(blocks=20_000, workers=64, lanes=self.lanes + 1)
                segment = module.Index.create(name, capacity, exact_holes=self.exact_holes)
                stack.callback(module.Index.unlink, name)
                stack.callback(segment.close)
                index = LaneIndex(segment, self.lanes, stack)
            yield index if how == "calls" else ByEvents(index, how)

    def edges(self, index: Any) -> list[int] | None:
        """Sorted edge lengths of all nodes but the root, in blocks, from memory; None for the plain tree."""
        return Tree(index.segment).edges if self.lanes else None

    def duplicates(self, index: Any) -> int:
        """Duplicate stores counted so far."""
        return int(index.stats().duplicate_store)

    def repairs(self, index: Any) -> int | None:
        """Lookup repairs so far; None if nobody counts, or ranks share a lane, which knows its splits."""
        return int(index.stats().repairs) if self.lanes > 1 else None


BACKENDS = {
    b.name: b
    for b in (
        Backend("radix", "shmtrie.radix_tree", compressed=False),
        Backend("radix-holes", "shmtrie.radix_tree", compressed=False, exact_holes=True),
        Backend("shm", "shmtrie.index", lanes=1),
        Backend("shm-lanes", "shmtrie.index", lanes=6),
        Backend("shm-holes", "shmtrie.index", lanes=1, exact_holes=True),
        Backend("shm-holes-lanes", "shmtrie.index", lanes=6, exact_holes=True),
    )
}


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every index under test, one by one."""
    chosen = BACKENDS[request.param]
    if chosen.missing:
        pytest.skip(f"{chosen.module} does not exist")
    return chosen
