"""One event taken apart: what kind it is, and its fields, as they were written or checked.

Checks of arguments are in `arguments`, the structs and their JSON in `event_types`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from .arguments import as_rank, as_u64, hash_array
from .event_types import (
    KvCacheEvent,
    KvCacheRemoveData,
    KvCacheStoreData,
    RouterEvent,
    WireEvent,
    content_of,
    decode_wire,
    in_domain,
    in_tier,
)
from .scores import WorkerWithDpRank

__all__ = [
    "KIND_CLEAR",
    "KIND_NONE",
    "KIND_REMOVE",
    "KIND_STORE",
    "EventLike",
    "EventParts",
    "check_parts",
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
    return check_parts(*take_apart(event))


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


def take_apart(event: EventLike) -> tuple[int, Any, Any, Any, Any, Any]:
    """The fields of `EventParts` as they were written, hashes as lists; the local ones of a remove are None.

    Raises
    ------
    TypeError, ValueError
        If it is no event, or what is in it is of no kind that there is. Ids, ranks and hashes are not looked
        at.
    """
    if isinstance(event, RouterEvent):
        inner = event.event
        if not isinstance(inner, KvCacheEvent):
            raise TypeError(f"expected a KvCacheEvent, got {type(inner).__name__}")
        return _fields(event, inner, inner.data)
    if isinstance(event, (bytes, bytearray, memoryview, str)):
        wire = decode_wire(event)
        return _fields(wire, wire.event, content_of(wire))
    raise TypeError(f"expected a RouterEvent or its JSON, got {type(event).__name__}")


def _fields(event: RouterEvent | WireEvent, inner: Any, data: object) -> tuple[int, Any, Any, Any, Any, Any]:
    rank, event_id = (event.worker_id, inner.dp_rank), inner.event_id
    if isinstance(data, KvCacheStoreData):
        if in_tier(event) and in_domain(event):
            blocks = data.blocks
            local, external = [x.tokens_hash for x in blocks], [x.block_hash for x in blocks]
            return KIND_STORE, rank, data.parent_hash, local, external, event_id
    elif isinstance(data, KvCacheRemoveData):
        if in_tier(event) and in_domain(event):
            return KIND_REMOVE, rank, None, None, data.block_hashes, event_id
    elif isinstance(data, str) and data == "cleared":
        if in_domain(event):
            return KIND_CLEAR, rank, None, (), (), event_id
    else:
        raise TypeError(f"event data must be a store, a remove or 'cleared', got {type(data).__name__}")
    return KIND_NONE, rank, None, (), (), event_id
