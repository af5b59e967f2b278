"""events.py and event_types.py: JSON, packing, and events that are none."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from shmtrie import events as events_module
from shmtrie.events import (
    KIND_CLEAR,
    KIND_NONE,
    KIND_REMOVE,
    KIND_STORE,
    EventBatch,
    KvCacheEvent,
    KvCacheRemoveData,
    KvCacheStoreData,
    KvCacheStoredBlockData,
    RouterEvent,
    decode_event,
    encode_event,
    split_event,
)

TOP = (1 << 64) - 1
HALF = 1 << 63


def stored(*blocks: tuple[int, int], parent: int | None = None) -> KvCacheStoreData:
    return KvCacheStoreData(parent, [KvCacheStoredBlockData(external, local) for external, local in blocks])


# --- JSON -------------------------------------------------------------------------------------------

STORE_JSON = (
    b'{"worker_id":7,"storage_tier":"device","residency_domain":"worker","event":{"event_id":1,"data":{"stored":'
    b'{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":123,"tokens_hash":45,'
    b'"mm_extra_info":null}]}},"dp_rank":0}}'
)


def test_json_of_a_router() -> None:
    event = decode_event(STORE_JSON)
    assert event == RouterEvent(7, KvCacheEvent(1, stored((123, 45))), "device", "worker")
    assert json.loads(encode_event(event)) == json.loads(STORE_JSON)


def test_json_defaults_and_unknown_keys() -> None:
    text = (
        '{"worker_id":1,"later":[{}],"event":{"event_id":2,"more":0,"data":{"removed":'
        '{"block_hashes":[-1,18446744073709551615],"x":null}}}}'
    )
    event = decode_event(text)
    assert event == RouterEvent(1, KvCacheEvent(2, KvCacheRemoveData([-1, TOP])))
    assert event.storage_tier == "device"
    assert event.event.dp_rank == 0
    assert event.residency_domain is msgspec.UNSET
    assert b"residency_domain" not in encode_event(event)
    bare = decode_event(b'{"worker_id":1,"event":{"event_id":2,"data":{"stored":{"blocks":[]}}}}')
    assert bare.event.data == KvCacheStoreData(None, [])


@pytest.mark.parametrize(
    "event",
    [
        RouterEvent(7, KvCacheEvent(1, stored((0, TOP), (TOP, 0), parent=HALF), 3)),
        RouterEvent(7, KvCacheEvent(1, stored((-1, -HALF), parent=0), 3), "disk"),
        RouterEvent(TOP, KvCacheEvent(TOP, KvCacheRemoveData([]), 0)),
        RouterEvent(0, KvCacheEvent(0, "cleared"), residency_domain=None),
        RouterEvent(
            0, KvCacheEvent(0, KvCacheStoreData(None, [KvCacheStoredBlockData(1, 2, {"a": [1]})], 4))
        ),
    ],
)
def test_json_round_trip(event: RouterEvent) -> None:
    data = encode_event(event)
    for form in (data, bytearray(data), memoryview(data), data.decode()):
        assert decode_event(form) == event


def wire(data: str, **more: str) -> str:
    keys = "".join(f',"{k}":{v}' for k, v in more.items())
    return f'{{"worker_id":1{keys},"event":{{"event_id":2,"data":{data}}}}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"worker_id":1}',
        wire('"purged"'),
        wire("null"),
        wire("{}"),
        wire('{"moved":{}}'),
        wire('{"removed":{"block_hashes":[1]},"stored":{"blocks":[]}}'),
        wire('{"removed":{}}'),
        wire('{"removed":{"block_hashes":[1.5]}}'),
        wire('{"removed":{"block_hashes":[true]}}'),
        wire('{"removed":{"block_hashes":["1"]}}'),
        wire('{"stored":{"blocks":[{"block_hash":1}]}}'),
        wire('"cleared"', storage_tier="null"),
        wire('"cleared"') + "x",
    ],
)
def test_json_that_is_no_event(text: str) -> None:
    with pytest.raises(ValueError):
        decode_event(text)
    with pytest.raises(ValueError):
        split_event(text.encode())


def test_encode_wants_an_event() -> None:
    bare: Any = KvCacheEvent(1, "cleared")
    unknown: Any = RouterEvent(1, KvCacheEvent(1, 5))  # type: ignore[arg-type]
    wrong: list[Any] = [None, "cleared", bare, unknown]
    for value in wrong:
        with pytest.raises(TypeError):
            encode_event(value)
    wrong = [None, 5, [], bare, unknown]
    for value in wrong:
        with pytest.raises(TypeError):
            split_event(value)


# --- packing ----------------------------------------------------------------------------------------


def test_split_takes_hashes_modulo_2_64() -> None:
    parts = split_event(RouterEvent(7, KvCacheEvent(9, stored((-1, 0), (0, -HALF), parent=-2), 3)))
    assert (parts.kind, parts.rank, parts.parent, parts.event_id) == (KIND_STORE, (7, 3), TOP - 1, 9)
    assert parts.external.tolist() == [TOP, 0]
    assert parts.local.tolist() == [0, HALF]
    parts = split_event(RouterEvent(7, KvCacheEvent(9, KvCacheRemoveData([-1]))))
    assert (parts.kind, parts.external.tolist(), len(parts.local)) == (KIND_REMOVE, [TOP], 1)


@pytest.mark.parametrize(
    ("tier", "domain", "kind", "clear"),
    [
        ("device", msgspec.UNSET, KIND_STORE, KIND_CLEAR),
        ("device", "worker", KIND_STORE, KIND_CLEAR),
        ("host_pinned", msgspec.UNSET, KIND_NONE, KIND_CLEAR),  # engines clear all tiers at once
        ("device", None, KIND_NONE, KIND_NONE),
        ("device", "cluster", KIND_NONE, KIND_NONE),
    ],
)
def test_events_of_elsewhere_are_not_supported(tier: str, domain: Any, kind: int, clear: int) -> None:
    assert split_event(RouterEvent(7, KvCacheEvent(9, stored((1, 2))), tier, domain)).kind == kind
    assert split_event(RouterEvent(7, KvCacheEvent(9, "cleared"), tier, domain)).kind == clear


BAD_EVENTS: list[tuple[Any, type[Exception]]] = [
    (RouterEvent(-1, KvCacheEvent(1, "cleared")), ValueError),
    (RouterEvent(1, KvCacheEvent(1, "cleared", 1 << 32)), ValueError),
    (RouterEvent(1, KvCacheEvent(TOP + 1, "cleared")), ValueError),
    (RouterEvent(1, KvCacheEvent(1, stored((TOP + 1, 1)))), ValueError),
    (RouterEvent(1, KvCacheEvent(1, stored((1, 1), parent=TOP + 1))), ValueError),
    (RouterEvent(1, KvCacheEvent(1, KvCacheRemoveData([1.5]))), TypeError),  # type: ignore[list-item]
    (RouterEvent(1, KvCacheEvent(1, "gone")), TypeError),  # type: ignore[arg-type]
    (RouterEvent(1, KvCacheEvent(1, None)), TypeError),  # type: ignore[arg-type]
    (RouterEvent(1, None), TypeError),  # type: ignore[arg-type]
    (RouterEvent("1", KvCacheEvent(1, "cleared")), TypeError),  # type: ignore[arg-type]
    (b"{", ValueError),
    (3, TypeError),
]


@pytest.mark.parametrize(("event", "error"), BAD_EVENTS)
def test_bad_events_are_named(event: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        split_event(event)
    with pytest.raises(error, match="event 1: "):
        EventBatch.from_events([STORE_JSON, event])


def test_batch_of_events() -> None:
    events: list[Any] = [
        RouterEvent(7, KvCacheEvent(1, stored((11, 1), (12, 2)), 3)),
        STORE_JSON,
        RouterEvent(7, KvCacheEvent(2, stored((0, 0), parent=0), 3)),
        RouterEvent(8, KvCacheEvent(3, KvCacheRemoveData([TOP, 5]))),
        RouterEvent(8, KvCacheEvent(4, "cleared")),
        RouterEvent(8, KvCacheEvent(5, stored((1, 1))), "disk"),
    ]
    batch = EventBatch.from_events(iter(events))
    assert len(batch) == 6
    assert batch.kind.tolist() == [KIND_STORE, KIND_STORE, KIND_STORE, KIND_REMOVE, KIND_CLEAR, KIND_NONE]
    assert batch.worker_id.tolist() == [7, 7, 7, 8, 8, 8]
    assert batch.dp_rank.tolist() == [3, 0, 3, 0, 0, 0]
    assert batch.has_parent.tolist() == [0, 0, 1, 0, 0, 0]
    assert batch.offsets.tolist() == [0, 2, 3, 4, 6, 6, 6]
    assert batch.external.tolist() == [11, 12, 123, 0, TOP, 5]
    assert batch.local[:4].tolist() == [1, 2, 45, 0]
    assert batch.event_id.tolist() == [1, 1, 2, 3, 4, 5]
    dtypes = {name: getattr(batch, name).dtype.str for name in batch.__slots__}
    assert dtypes == {
        "kind": "|u1",
        "worker_id": "<u8",
        "dp_rank": "<u4",
        "has_parent": "|u1",
        "parent": "<u8",
        "offsets": "<i8",
        "local": "<u8",
        "external": "<u8",
        "event_id": "<u8",
    }
    for i, event in enumerate(events):
        want, got = split_event(event), batch[i]
        assert (got.kind, got.rank, got.parent, got.event_id) == (
            want.kind,
            want.rank,
            want.parent,
            want.event_id,
        )
        assert got.external.tolist() == want.external.tolist()
    assert len(EventBatch.from_events([])) == 0
    with pytest.raises(IndexError):
        _ = batch[6]


UNUSUAL: list[Any] = [
    RouterEvent(7, KvCacheEvent(-1, stored((-1, 0), (0, -HALF), parent=-2), 3)),
    RouterEvent(np.uint64(7), KvCacheEvent(np.int64(1), stored((1, 2)), np.uint32(3))),  # type: ignore[arg-type]
    RouterEvent(7, KvCacheEvent(1, stored((np.uint64(TOP), np.int64(-1)), parent=np.int64(-3)))),  # type: ignore[arg-type]
    RouterEvent(7, KvCacheEvent(1, KvCacheRemoveData(np.array([1, 2], np.uint64)))),  # type: ignore[arg-type]
    RouterEvent(7, KvCacheEvent(1, KvCacheRemoveData(array("q", [-1, 2])))),  # type: ignore[arg-type]
    RouterEvent(7, KvCacheEvent(1, KvCacheRemoveData((1, -2)))),  # type: ignore[arg-type]
    RouterEvent(7, KvCacheEvent(1, KvCacheRemoveData([]))),
    RouterEvent(7, KvCacheEvent(1, stored())),
    RouterEvent(TOP, KvCacheEvent(TOP, stored((TOP, TOP), parent=TOP), (1 << 32) - 1)),
]


@pytest.mark.parametrize("event", UNUSUAL)
def test_unusual_events_in_a_batch(event: Any) -> None:
    """They are converted one by one, to the same."""
    batch = EventBatch.from_events([STORE_JSON, event, STORE_JSON])
    for i, one in enumerate([STORE_JSON, event, STORE_JSON]):
        want, got = split_event(one), batch[i]
        assert want[:3] == got[:3] and want.event_id == got.event_id
        assert want.local.tolist() == got.local.tolist()
        assert want.external.tolist() == got.external.tolist()


@pytest.mark.parametrize(
    "hashes", [b"ab", "ab", {1, 2}, iter([1, 2]), [True], [1.0], np.array([1.0]), np.zeros((2, 2), np.uint64)]
)
def test_hashes_that_a_batch_does_not_take(hashes: Any) -> None:
    """Nor does one event: what can be iterated over is not enough."""
    event = RouterEvent(7, KvCacheEvent(1, KvCacheRemoveData(hashes)))
    with pytest.raises((TypeError, ValueError)):
        split_event(event)
    with pytest.raises((TypeError, ValueError), match="event 1: "):
        EventBatch.from_events([STORE_JSON, event, STORE_JSON])


@pytest.mark.parametrize("last", [b"{", RouterEvent(1, KvCacheEvent(TOP + 1, "cleared")), 3])
def test_the_first_wrong_event_is_named(last: Any) -> None:
    with pytest.raises(ValueError, match="event 1: "):
        EventBatch.from_events([STORE_JSON, RouterEvent(-1, KvCacheEvent(1, "cleared")), last])


def columns(**changed: Any) -> dict[str, Any]:
    good: dict[str, Any] = {
        "kind": [1, 2],
        "worker_id": [1, 2],
        "dp_rank": [0, 0],
        "has_parent": [False, True],
        "parent": [0, 9],
        "offsets": [0, 1, 3],
        "local": [1, 2, 3],
        "external": [1, 2, 3],
        "event_id": [1, 2],
    }
    return good | changed


def test_batch_from_lists_and_without_copies() -> None:
    batch = EventBatch(**columns())
    assert batch.has_parent.tolist() == [0, 1]
    assert batch[1].external.tolist() == [2, 3]
    again = EventBatch(**{name: getattr(batch, name) for name in batch.__slots__})
    assert all(np.shares_memory(getattr(batch, n), getattr(again, n)) for n in batch.__slots__)
    strided = EventBatch(**columns(local=np.arange(6, dtype=np.uint64)[::2]))
    assert strided.local.flags.c_contiguous


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"kind": [1, 4]}, ValueError),
        ({"kind": [1, -1]}, ValueError),
        ({"kind": [1, 256]}, ValueError),
        ({"kind": [1.0, 2.0]}, TypeError),
        ({"kind": [[1], [2]]}, ValueError),
        ({"kind": [1]}, ValueError),
        ({"kind": [], "offsets": [0]}, ValueError),
        ({"has_parent": [0, 2]}, ValueError),
        ({"dp_rank": [0, 1 << 32]}, ValueError),
        ({"dp_rank": ["a", "b"]}, TypeError),
        ({"worker_id": [1]}, ValueError),
        ({"worker_id": np.array([1, 2], np.int32)}, TypeError),
        ({"parent": [1, 2, 3]}, ValueError),
        ({"event_id": [1, TOP + 1]}, ValueError),
        ({"offsets": [0, 3]}, ValueError),
        ({"offsets": [0, 1, 2]}, ValueError),
        ({"offsets": [1, 1, 3]}, ValueError),
        ({"offsets": [0, 4, 3]}, ValueError),
        ({"offsets": [0, -1, 3]}, ValueError),
        ({"offsets": []}, ValueError),
        ({"external": [1, 2]}, ValueError),
        ({"local": [1.0, 2.0, 3.0]}, TypeError),
        ({"local": np.zeros((3, 1), np.uint64)}, ValueError),
    ],
)
def test_batch_checks_its_columns(changed: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        EventBatch(**columns(**changed))


def test_import_of_the_modules_is_light() -> None:
    """Event decoding is used in processes that never touch a segment; numba takes a second to import."""
    package = str(Path(events_module.__file__).parent)
    code = (
        "import sys, types; top = types.ModuleType('shmtrie'); top.__path__ = [sys.argv[1]];"
        "sys.modules['shmtrie'] = top; import shmtrie.events, shmtrie.radix_tree, shmtrie.indexer;"
        "assert not {'numba', 'posix_ipc'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
