"""A workload: queries and events in one order, as arrays, and the file that every measured program reads.

The file is little-endian: u64 n_ops, n_blocks, n_workers; u8 kind[n_ops]; u8 has_parent[n_ops]; i32
worker[n_ops]; u64 parent[n_ops]; i64 offset[n_ops + 1]; u64 local[n_blocks]; u64 external[n_blocks]; and,
behind what other programs read, i64 place[n_blocks].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shmtrie import EventBatch
from shmtrie.replay.blocks import mix64

QUERY, STORE, REMOVE, CLEAR = 0, 1, 2, 3
_LOCAL_SALT = np.uint64(0x9E3779B97F4A7C15)
_EXTERNAL_SALT = np.uint64(0xD1B54A32D192ED03)
_NO_PLACES: npt.NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Workload:
    """Operations of a workload, in order.

    Attributes
    ----------
    kind : ndarray of uint8, shape (n,)
        0 query, 1 store, 2 remove, 3 clear.
    has_parent, worker, parent : ndarray, shape (n,)
        As in `EventBatch`.
    offsets : ndarray of int64, shape (n + 1,)
        Blocks of each operation.
    local, external : ndarray of uint64, shape (m,)
        Hashes; those of a query are what engines of one hash seed call its blocks.
    place : ndarray of int64, shape (m,)
        Each block's number in the tree of all prompts: names its whole prefix.
    """

    name: str
    workers: int
    kind: npt.NDArray[np.uint8]
    has_parent: npt.NDArray[np.uint8]
    worker: npt.NDArray[np.int32]
    parent: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.int64]
    local: npt.NDArray[np.uint64]
    external: npt.NDArray[np.uint64]
    place: npt.NDArray[np.int64]
    seeds: bool = False

    @cached_property
    def queries(self) -> npt.NDArray[np.int64]:
        """Numbers of the operations that ask."""
        return np.flatnonzero(self.kind == QUERY)

    @cached_property
    def events(self) -> npt.NDArray[np.int64]:
        """Numbers of the operations that change something."""
        return np.flatnonzero(self.kind != QUERY)

    @cached_property
    def event_blocks(self) -> int:
        """Blocks in all events."""
        return int(np.diff(self.offsets)[self.events].sum())

    @cached_property
    def unique_blocks(self) -> int:
        """Different places ever stored."""
        stores = np.repeat(self.kind == STORE, np.diff(self.offsets))
        return len(np.unique(self.place[stores]))

    @cached_property
    def segment_blocks(self) -> int:
        """A size that no moment of the stream exceeds."""
        return max(4096, self.unique_blocks)

    def part(self, op: int) -> slice:
        """Blocks of operation `op`."""
        return slice(int(self.offsets[op]), int(self.offsets[op + 1]))

    def batch(self, ops: npt.NDArray[np.int64]) -> EventBatch:
        """Events `ops` as packed arrays."""
        starts, ends = self.offsets[ops], self.offsets[ops + 1]
        offsets = np.zeros(len(ops) + 1, np.int64)
        np.cumsum(ends - starts, out=offsets[1:])
        if len(ops) and ops[-1] - ops[0] + 1 == len(ops):
            blocks: Any = slice(int(starts[0]), int(ends[-1]))
        else:
            blocks = np.repeat(starts - offsets[:-1], ends - starts) + np.arange(offsets[-1])
        return EventBatch(
            self.kind[ops],
            self.worker[ops].astype(np.uint64),
            np.zeros(len(ops), np.uint32),
            self.has_parent[ops],
            self.parent[ops],
            offsets,
            self.local[blocks],
            self.external[blocks],
            ops.astype(np.uint64),
        )

    def batches(self, events: int) -> list[EventBatch]:
        """The whole event stream in packed batches of so many events."""
        return [self.batch(self.events[i : i + events]) for i in range(0, len(self.events), events)]

    def between(self, first: int, last: int) -> Workload:
        """Operations [first, last) as a workload of their own; hashes are shared."""
        ops = slice(first, last)
        columns = (self.kind[ops], self.has_parent[ops], self.worker[ops], self.parent[ops])
        hashes = (self.local, self.external, self.place)
        return Workload(
            self.name, self.workers, *columns, self.offsets[first : last + 1], *hashes, self.seeds
        )

    def query_arrays(
        self, ops: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Local hashes of queries one behind the other, and their offsets."""
        batch_offsets = np.zeros(len(ops) + 1, np.int64)
        np.cumsum(self.offsets[ops + 1] - self.offsets[ops], out=batch_offsets[1:])
        parts = [self.local[self.part(int(op))] for op in ops]
        return np.concatenate([np.empty(0, np.uint64), *parts]), batch_offsets

    def save(self, path: Path) -> None:
        """Write the file described above."""
        with open(path, "wb") as out:
            np.array([len(self.kind), len(self.local), self.workers], np.uint64).tofile(out)
            columns = (self.kind, self.has_parent, self.worker, self.parent, self.offsets)
            for column in (*columns, self.local, self.external, self.place):
                column.tofile(out)

    @classmethod
    def load(cls, path: Path, seeds: bool = False) -> Workload:
        """Map a file written by `save`."""
        raw = np.memmap(path, np.uint8, "r")
        n, m, workers = (int(x) for x in raw[:24].view(np.uint64))
        at = 24
        columns = []
        kinds: tuple[tuple[type[Any], int], ...] = (
            *((np.uint8, n), (np.uint8, n), (np.int32, n), (np.uint64, n), (np.int64, n + 1)),
            *((np.uint64, m), (np.uint64, m), (np.int64, m)),
        )
        for dtype, count in kinds:
            size = np.dtype(dtype).itemsize * count
            columns.append(np.frombuffer(raw[at : at + size].tobytes(), dtype))
            at += size
        return cls(path.stem, workers, *columns, seeds=seeds)


class Builder:
    """Collects operations given by places.

    Parameters
    ----------
    seeds : bool
        Every worker names its blocks with a hash seed of its own.
    """

    def __init__(self, seeds: bool = False) -> None:
        self._seeds = seeds
        self._kind: list[int] = []
        self._worker: list[int] = []
        self._parent: list[int] = []
        self._places: list[npt.NDArray[np.int64]] = []

    def _add(
        self, kind: int, worker: int, parent: int, places: Sequence[int] | npt.NDArray[np.int64]
    ) -> None:
        self._kind.append(kind)
        self._worker.append(worker)
        self._parent.append(parent)
        self._places.append(np.asarray(places, np.int64))

    def query(self, places: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Ask for a path from the root."""
        self._add(QUERY, 0, -1, places)

    # named as in `replay.eventlog.EventLog`: engines report to either
    def store(self, worker: int, parent: int | None, places: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """A worker stores places behind the place `parent`, None for the root."""
        self._add(STORE, worker, -1 if parent is None else int(parent), places)

    def remove(self, worker: int, places: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """A worker evicts places."""
        self._add(REMOVE, worker, -1, places)

    def clear(self, worker: int) -> None:
        """A worker forgets everything."""
        self._add(CLEAR, worker, -1, _NO_PLACES)

    def build(self, name: str, workers: int, labels: npt.NDArray[np.int64] | None = None) -> Workload:
        """Make the workload.

        Parameters
        ----------
        name : str
            Its name.
        workers : int
            Worker ids are below this.
        labels : ndarray of int64, optional
            Per place a number of its tokens; places with equal tokens share it. Default: all differ.
        """
        offsets = np.zeros(len(self._kind) + 1, np.int64)
        np.cumsum([len(p) for p in self._places], out=offsets[1:])
        place = np.concatenate([_NO_PLACES, *self._places])
        worker, parent = np.array(self._worker, np.int32), np.array(self._parent, np.int64)
        tokens = place if labels is None else labels[place]
        salt = np.zeros(len(worker), np.uint64)
        if self._seeds:
            salt = mix64(worker.astype(np.uint64) + np.uint64(1))
        per_block = np.repeat(salt, np.diff(offsets))
        has_parent = (parent >= 0).astype(np.uint8)
        return Workload(
            name,
            workers,
            np.array(self._kind, np.uint8),
            has_parent,
            worker,
            np.where(has_parent == 1, mix64(parent.astype(np.uint64) + _EXTERNAL_SALT + salt), np.uint64(0)),
            offsets,
            mix64(tokens.astype(np.uint64) + _LOCAL_SALT),
            mix64(place.astype(np.uint64) + _EXTERNAL_SALT + per_block),
            place,
            self._seeds,
        )
