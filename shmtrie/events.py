"""Events as indexes take them in: `EventBatch`, many in arrays; and all else about events, by import.

Structs and their JSON are in `event_types`, one event taken apart is in `event_parts`, the argument checks
are in `arguments`; all are to be had from here, so that this is the one module to import for events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt

from .arguments import as_rank, as_ranks, as_u64, as_worker_id, hash_array, offset_array
from .event_parts import (
    KIND_CLEAR,
    KIND_NONE,
    KIND_REMOVE,
    KIND_STORE,
    EventLike,
    EventParts,
    check_parts,
    split_event,
    take_apart,
)
from .event_types import (
    KvCacheEvent,
    KvCacheRemoveData,
    KvCacheStoreData,
    KvCacheStoredBlockData,
    RouterEvent,
    decode_event,
    encode_event,
)
from .scores import WorkerWithDpRank

__all__ = [
    "KIND_CLEAR",
    "KIND_NONE",
    "KIND_REMOVE",
    "KIND_STORE",
    "EventBatch",
    "EventLike",
    "EventParts",
    "KvCacheEvent",
    "KvCacheRemoveData",
    "KvCacheStoreData",
    "KvCacheStoredBlockData",
    "RouterEvent",
    "as_rank",
    "as_ranks",
    "as_u64",
    "as_worker_id",
    "check_parts",
    "decode_event",
    "encode_event",
    "hash_array",
    "offset_array",
    "split_event",
    "take_apart",
]


def _narrow(values: Any, dtype: type[np.unsignedinteger[Any]], name: str) -> npt.NDArray[Any]:
    """Check a one-dimensional integer or bool array against the range of a smaller unsigned type."""
    found = np.asarray(values)
    if found.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {found.shape}")
    if found.dtype.kind not in "uib" and len(found):
        raise TypeError(f"{name} must hold integers, got {found.dtype}")
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) <= np.iinfo(dtype).max:
        raise ValueError(f"{name} must stay in [0, {np.iinfo(dtype).max}]")
    return np.ascontiguousarray(found, dtype)


def _checked(taken: Sequence[tuple[int, Any, Any, Any, Any, Any]]) -> list[EventParts]:
    """Events one by one; TypeError or ValueError with the number of the first that is wrong."""
    parts = []
    for i, fields in enumerate(taken):
        try:
            parts.append(check_parts(*fields))
        except (TypeError, ValueError) as error:
            raise _named(i, error) from error
    return parts


def _named(i: int, error: Exception) -> Exception:
    """What is wrong with event `i`."""
    return (TypeError if isinstance(error, TypeError) else ValueError)(f"event {i}: {error}")


@dataclass(frozen=True, slots=True, eq=False)
class EventBatch:
    """Many events as arrays, for `apply_batch`.

    Parameters
    ----------
    kind : ndarray of uint8, shape (n,)
        1 store, 2 remove, 3 clear, 0 an event that is not supported (it gets that status).
    worker_id : ndarray of uint64, shape (n,)
        Workers.
    dp_rank : ndarray of uint32, shape (n,)
        Their data-parallel ranks.
    has_parent : ndarray of uint8, shape (n,)
        1 where a store goes behind `parent`, 0 where it starts at the root.
    parent : ndarray of uint64, shape (n,)
        External hashes; read where `has_parent` is 1.
    offsets : ndarray of int64, shape (n + 1,)
        Event i has the blocks [offsets[i], offsets[i + 1]); from 0 to m.
    local, external : ndarray of uint64, shape (m,)
        Local and external hashes of the blocks; the local ones of a remove are not read.
    event_id : ndarray of uint64, shape (n,)
        Ids.

    Raises
    ------
    TypeError, ValueError
        If types, lengths, kinds or offsets are wrong. Arrays of the right type are not copied; changing
        them afterwards is checked again by nobody but the index's own bounds.
    """

    kind: npt.NDArray[np.uint8]
    worker_id: npt.NDArray[np.uint64]
    dp_rank: npt.NDArray[np.uint32]
    has_parent: npt.NDArray[np.uint8]
    parent: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.int64]
    local: npt.NDArray[np.uint64]
    external: npt.NDArray[np.uint64]
    event_id: npt.NDArray[np.uint64]

    def __post_init__(self) -> None:
        for name in ("worker_id", "parent", "local", "external", "event_id"):
            object.__setattr__(self, name, hash_array(getattr(self, name)))
        for name, dtype in (("kind", np.uint8), ("has_parent", np.uint8), ("dp_rank", np.uint32)):
            object.__setattr__(self, name, _narrow(getattr(self, name), dtype, name))
        object.__setattr__(self, "offsets", offset_array(self.offsets, len(self.local)))
        n = len(self.kind)
        for name in ("worker_id", "dp_rank", "has_parent", "parent", "event_id"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"{name} has {len(getattr(self, name))} items, kind has {n}")
        if len(self.local) != len(self.external):
            raise ValueError(f"{len(self.local)} local hashes, {len(self.external)} external ones")
        if len(self.offsets) != n + 1 or self.offsets[0] != 0 or self.offsets[-1] != len(self.local):
            raise ValueError(f"offsets must be {n + 1} items from 0 to {len(self.local)}")
        if n and (self.kind.max() > KIND_CLEAR or self.has_parent.max() > 1):
            raise ValueError("kind must stay in [0, 3] and has_parent in [0, 1]")

    @classmethod
    def from_events(cls, events: Iterable[EventLike]) -> EventBatch:
        """Pack events.

        Parameters
        ----------
        events : iterable of RouterEvent or JSON bytes
            In the order in which they are to be applied.

        Returns
        -------
        EventBatch
            One entry per event.

        Raises
        ------
        TypeError, ValueError
            If one of them is wrong; says which.
        """
        taken = []
        for i, event in enumerate(events):
            try:
                taken.append(take_apart(event))
            except (TypeError, ValueError) as error:
                _checked(taken)  # one before it may be wrong, too
                raise _named(i, error) from error
        batch = cls._from_lists(taken)
        if batch is None:  # one of them is wrong, or no list of plain ints
            parts = _checked(taken)
            batch = cls._packed(
                [p.kind for p in parts],
                [p.rank.worker_id for p in parts],
                [p.rank.dp_rank for p in parts],
                [p.parent for p in parts],
                [len(p.external) for p in parts],
                np.concatenate([p.local for p in parts]),
                np.concatenate([p.external for p in parts]),
                [p.event_id for p in parts],
            )
        return batch

    @classmethod
    def _from_lists(cls, taken: list[tuple[int, Any, Any, Any, Any, Any]]) -> EventBatch | None:
        """The same of what `take_apart` gives, all checked at once; None if anything is unusual."""
        kinds, ranks, parents, local, external, ids = zip(*taken, strict=True) if taken else [()] * 6
        workers, dp_ranks = [rank[0] for rank in ranks], [rank[1] for rank in ranks]
        if not {list, tuple}.issuperset(map(type, external)):
            return None
        if not {int}.issuperset(map(type, chain(workers, dp_ranks))):
            return None
        if taken and min(workers) < 0:  # not the one that it has the bits of
            return None
        lengths = list(map(len, external))
        every = [[0] * n if some is None else some for some, n in zip(local, lengths, strict=True)]
        try:
            return cls._packed(
                kinds,
                workers,
                dp_ranks,
                parents,
                lengths,
                list(chain.from_iterable(every)),
                list(chain.from_iterable(external)),
                ids,
            )
        except (TypeError, ValueError):
            return None

    @classmethod
    def _packed(
        cls,
        kinds: Sequence[int],
        workers: Sequence[int],
        dp_ranks: Sequence[int],
        parents: Sequence[int | None],
        lengths: Sequence[int],
        local: Any,
        external: Any,
        ids: Sequence[int],
    ) -> EventBatch:
        """A batch of columns that are lists; they are checked and converted where all are."""
        columns: dict[str, Any] = {
            "kind": kinds,
            "worker_id": workers,
            "dp_rank": dp_ranks,
            "has_parent": [parent is not None for parent in parents],
            "parent": [0 if parent is None else parent for parent in parents],
            "offsets": list(accumulate(lengths, initial=0)),
            "local": local,
            "external": external,
            "event_id": ids,
        }
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, i: int) -> EventParts:
        """Take event `i` (0 <= i < n) apart; its hashes are views."""
        if not 0 <= i < len(self):
            raise IndexError(f"event {i} of {len(self)}")
        part = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        rank = WorkerWithDpRank(int(self.worker_id[i]), int(self.dp_rank[i]))
        parent = int(self.parent[i]) if self.has_parent[i] else None
        kind = int(self.kind[i])
        return EventParts(kind, rank, parent, self.local[part], self.external[part], int(self.event_id[i]))
