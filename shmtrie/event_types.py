"""The router event structs and their JSON.

The JSON is the one that Dynamo's router speaks: ``data`` is externally tagged (``{"stored": {...}}``,
``{"removed": {...}}`` or the bare string ``"cleared"``), unknown keys are ignored, what is absent has a
default. Structs hold ids and hashes as they were written; `shmtrie.events` checks and converts them.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

__all__ = [
    "KvCacheEvent",
    "KvCacheRemoveData",
    "KvCacheStoreData",
    "KvCacheStoredBlockData",
    "RouterEvent",
    "decode_event",
    "encode_event",
]

_DEVICE: Final = "device"
_OWN_DOMAIN: Final = "worker"


class KvCacheStoredBlockData(msgspec.Struct, gc=False):
    """One stored block: external hash, local hash, and what the wire says of multimodal content."""

    block_hash: int
    tokens_hash: int
    mm_extra_info: Any = None


class KvCacheStoreData(msgspec.Struct):
    """Blocks stored behind `parent_hash`, an external hash of the same rank; None is the root."""

    parent_hash: int | None = None
    blocks: list[KvCacheStoredBlockData] = []
    start_position: int | None = None


class KvCacheRemoveData(msgspec.Struct):
    """External hashes of blocks that the rank no longer holds."""

    block_hashes: list[int]


class KvCacheEvent(msgspec.Struct):
    """One change of one rank's cache; `event_id` counts per rank."""

    event_id: int
    data: KvCacheStoreData | KvCacheRemoveData | Literal["cleared"]
    dp_rank: int = 0


class RouterEvent(msgspec.Struct):
    """An event with the worker that it came from.

    Indexes here hold `storage_tier` ``"device"`` and, where it is given, `residency_domain` ``"worker"``.
    Other values, None included, make an event unsupported: it is skipped.
    """

    worker_id: int
    event: KvCacheEvent
    storage_tier: str = _DEVICE
    residency_domain: str | msgspec.UnsetType | None = msgspec.UNSET


def in_tier(event: RouterEvent | WireEvent) -> bool:
    """Whether the event speaks of device memory."""
    return event.storage_tier == _DEVICE


def in_domain(event: RouterEvent | WireEvent) -> bool:
    """Whether the event speaks of the worker's own cache; absent means that it does."""
    return event.residency_domain is msgspec.UNSET or event.residency_domain == _OWN_DOMAIN


# msgspec has no externally tagged unions, so the wire has structs of its own around the shared ones.
class _WireData(msgspec.Struct, gc=False):
    stored: KvCacheStoreData | msgspec.UnsetType = msgspec.UNSET
    removed: KvCacheRemoveData | msgspec.UnsetType = msgspec.UNSET


class _WireEvent(msgspec.Struct, gc=False):
    event_id: int
    data: _WireData | Literal["cleared"]
    dp_rank: int = 0


class WireEvent(msgspec.Struct, gc=False):
    """A `RouterEvent` as it is written; its event's data is for `content_of`."""

    worker_id: int
    event: _WireEvent
    storage_tier: str = _DEVICE
    residency_domain: str | msgspec.UnsetType | None = msgspec.UNSET


#: One event from its JSON; raises as `decode_event`.
decode_wire: Final = msgspec.json.Decoder(WireEvent).decode
_encoder: Final = msgspec.json.Encoder()


def decode_event(data: bytes | bytearray | memoryview | str) -> RouterEvent:
    """Read one event from its JSON.

    Parameters
    ----------
    data : bytes-like or str
        One JSON object. Unknown keys are ignored.

    Returns
    -------
    RouterEvent
        Ids and hashes as they were written; `split_event` checks their ranges.

    Raises
    ------
    ValueError
        If it is no JSON, or not an event (msgspec's errors are ValueErrors too).
    TypeError
        If `data` is neither bytes nor str.
    """
    wire = decode_wire(data)
    event = KvCacheEvent(wire.event.event_id, content_of(wire), wire.event.dp_rank)
    return RouterEvent(wire.worker_id, event, wire.storage_tier, wire.residency_domain)


def content_of(wire: WireEvent) -> KvCacheStoreData | KvCacheRemoveData | Literal["cleared"]:
    """The `data` of the `KvCacheEvent` that a wire event stands for; ValueError if there is none."""
    tagged = wire.event.data
    if isinstance(tagged, str):
        return tagged
    stored, removed = tagged.stored, tagged.removed
    if removed is msgspec.UNSET and stored is not msgspec.UNSET:
        return stored
    if stored is msgspec.UNSET and removed is not msgspec.UNSET:
        return removed
    raise ValueError('event data must be {"stored": ...}, {"removed": ...} or "cleared"')


def encode_event(event: RouterEvent) -> bytes:
    """Write one event as JSON.

    Parameters
    ----------
    event : RouterEvent
        Hashes are written as they are, signed or unsigned.

    Returns
    -------
    bytes
        One JSON object, without line break; `decode_event` gives an equal event.

    Raises
    ------
    TypeError
        If `event`, or what it holds, is of another type.
    """
    if not isinstance(event, RouterEvent):
        raise TypeError(f"expected a RouterEvent, got {type(event).__name__}")
    inner = event.event
    data: Any = inner.data
    if isinstance(data, KvCacheStoreData):
        data = {"stored": data}
    elif isinstance(data, KvCacheRemoveData):
        data = {"removed": data}
    elif data != "cleared":
        raise TypeError(f"event data must be a store, a remove or 'cleared', got {type(data).__name__}")
    wire: dict[str, Any] = {"worker_id": event.worker_id, "storage_tier": event.storage_tier}
    if event.residency_domain is not msgspec.UNSET:
        wire["residency_domain"] = event.residency_domain
    wire["event"] = {"event_id": inner.event_id, "data": data, "dp_rank": inner.dp_rank}
    return _encoder.encode(wire)
