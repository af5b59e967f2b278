"""Events as indexes take them in: one event checked and taken apart, and `EventBatch`, many in arrays.

The structs and their JSON are in `event_types`, the argument checks in `arguments`; both are to be had from
here, so that this is the one module to import for events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from .arguments import as_rank, as_ranks, as_u64, as_worker_id, hash_array, offset_array
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
    "read_event",
    "split_event",
    "take_apart",
]

KIND_NONE: Final = 0
KIND_STORE: Final = 1
KIND_REMOVE: Final = 2
KIND_CLEAR: Final = 3

EventLike: TypeAlias = "RouterEvent | bytes | bytearray | memoryview | str"
"""An event or its JSON."""


class EventParts(NamedTuple):
    """One checked event, taken apart.

    Parameters
    ----------
    kind : int
        `KIND_STORE`, `KIND_REMOVE`, `KIND_CLEAR`, or `KIND_NONE` for an event that is not supported.
    rank : WorkerWithDpRank
        The rank that it is about.
    parent : int or None
        Unsigned external hash behind which a store goes; None is the root.
    local : ndarray of uint64, shape (n,)
        Local hashes of a store; zeros for a remove.
    external : ndarray of uint64, shape (n,)
        External hashes of a store or remove.
    event_id : int
        0 <= event_id < 2**64.
    """

    kind: int
    rank: WorkerWithDpRank
    parent: int | None
    local: npt.NDArray[np.uint64]
    external: npt.NDArray[np.uint64]
    event_id: int


_NO_HASHES: Final = np.empty(0, np.uint64)


def split_event(event: EventLike) -> EventParts:
    """Check an event and take it apart.

    Parameters
    ----------
    event : RouterEvent or its JSON
        A "cleared" event counts whatever its storage tier: engines clear all tiers at once.

    Returns
    -------
    EventParts
        Kind `KIND_NONE` and no hashes if the event is about another storage tier or residency domain.

    Raises
    ------
    TypeError, ValueError
        If it is no event or holds anything of a wrong type or out of range.
    """
    return check_parts(*take_apart(read_event(event)))


def check_parts(kind: int, rank: Any, parent: Any, local: Any, external: Any, event_id: Any) -> EventParts:
    """Check and convert what `take_apart` gives; raises as `split_event`."""
    checked, event_id = as_rank(rank), as_u64(event_id)
    if kind == KIND_NONE:
        return EventParts(kind, checked, None, _NO_HASHES, _NO_HASHES, event_id)
    parent = None if parent is None else as_u64(parent)
    hashes = hash_array(external)
    return EventParts(
        kind, checked, parent, np.zeros_like(hashes) if local is None else hash_array(local), hashes, event_id
    )


def read_event(event: EventLike) -> RouterEvent:
    """An event that may be JSON as a struct; TypeError or ValueError if it is neither."""
    if isinstance(event, RouterEvent):
        return event
    if isinstance(event, (bytes, bytearray, memoryview, str)):
        return decode_event(event)
    raise TypeError(f"expected a RouterEvent or its JSON, got {type(event).__name__}")


def take_apart(event: RouterEvent) -> tuple[int, Any, Any, Any, Any, Any]:
    """The fields of `EventParts` as they were written, hashes as lists; the local ones of a remove are None.

    Raises
    ------
    TypeError
        If what is in the event is of no kind that there is. Ids, ranks and hashes are not looked at.
    """
    inner = event.event
    if not isinstance(inner, KvCacheEvent):
        raise TypeError(f"expected a KvCacheEvent, got {type(inner).__name__}")
    rank, event_id, data = (event.worker_id, inner.dp_rank), inner.event_id, inner.data
    if isinstance(data, KvCacheStoreData):
        if event.in_tier and event.in_domain:
            blocks = data.blocks
            local, external = [x.tokens_hash for x in blocks], [x.block_hash for x in blocks]
            return KIND_STORE, rank, data.parent_hash, local, external, event_id
    elif isinstance(data, KvCacheRemoveData):
        if event.in_tier and event.in_domain:
            return KIND_REMOVE, rank, None, None, data.block_hashes, event_id
    elif isinstance(data, str) and data == "cleared":
        if event.in_domain:
            return KIND_CLEAR, rank, None, (), (), event_id
    else:
        raise TypeError(f"event data must be a store, a remove or 'cleared', got {type(data).__name__}")
    return KIND_NONE, rank, None, (), (), event_id


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
        parts = []
        for i, event in enumerate(events):
            try:
                parts.append(split_event(event))
            except TypeError as error:
                raise TypeError(f"event {i}: {error}") from error
            except ValueError as error:
                raise ValueError(f"event {i}: {error}") from error
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(p.external) for p in parts], out=offsets[1:])
        return cls(
            np.array([p.kind for p in parts], np.uint8),
            np.array([p.rank.worker_id for p in parts], np.uint64),
            np.array([p.rank.dp_rank for p in parts], np.uint32),
            np.array([p.parent is not None for p in parts], np.uint8),
            np.array([p.parent or 0 for p in parts], np.uint64),
            offsets,
            np.concatenate([p.local for p in parts] or [_NO_HASHES]),
            np.concatenate([p.external for p in parts] or [_NO_HASHES]),
            np.array([p.event_id for p in parts], np.uint64),
        )

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
