"""Simulated engines: bounded caches, and event streams that a real engine could have sent."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from shmtrie.events import KIND_CLEAR, KIND_REMOVE, KIND_STORE, EventBatch
from shmtrie.replay.blocks import BlockMap, PlannedRequest, Workload, plan
from shmtrie.replay.engine import Engine
from shmtrie.replay.eventlog import Command, EventLog, RemoveWorker
from shmtrie.replay.trace import TraceRequest, generate_trace

Event = tuple[int, int | None, list[int]]


def requests(load: Workload) -> list[PlannedRequest]:
    return load.requests


def load_of(*rows: tuple[int, list[int], int], block_tokens: int = 512) -> Workload:
    return plan([TraceRequest(0.0, tokens, output, tuple(ids)) for tokens, ids, output in rows], block_tokens)


def events_of(commands: Sequence[Command]) -> Iterator[Event]:
    """Kind, parent and external hashes of every event; a removed worker is a clear here."""
    for command in commands:
        if isinstance(command, RemoveWorker):
            yield KIND_CLEAR, None, []
            continue
        for i in range(len(command)):
            part = command.external[command.offsets[i] : command.offsets[i + 1]].tolist()
            parent = int(command.parent[i]) if command.has_parent[i] else None
            yield int(command.kind[i]), parent, part


class Stream:
    """Follows a stream and insists on what engines keep to."""

    def __init__(self, parents: dict[int, int | None], leaf_first: bool = True) -> None:
        self.held: set[int] = set()
        self.parents = parents
        self.children: dict[int, list[int]] = {}
        for block, parent in parents.items():
            if parent is not None:
                self.children.setdefault(parent, []).append(block)
        self.leaf_first = leaf_first
        self.counts = [0, 0, 0, 0]

    def follow(self, commands: Sequence[Command]) -> None:
        for kind, parent, blocks in events_of(commands):
            self.counts[kind] += 1
            if kind == KIND_STORE:
                assert blocks
                assert parent is None or parent in self.held
                assert [self.parents[block] for block in blocks] == [parent, *blocks[:-1]]
                assert not self.leaf_first or self.held.isdisjoint(blocks)
                self.held.update(blocks)
            elif kind == KIND_REMOVE:
                assert blocks
                for block in blocks:
                    assert block in self.held
                    self.held.remove(block)
                    assert not (self.leaf_first and self.near(block))
            else:
                self.held.clear()

    def near(self, block: int) -> bool:
        """Whether a block right behind `block` is held."""
        return not self.held.isdisjoint(self.children.get(block, ()))


def all_parents(load: Workload) -> dict[int, int | None]:
    """External hash -> the one before it; None in front."""
    parents: dict[int, int | None] = {}
    for request in load.requests:
        before = None
        for block in load.blocks.external(load.blocks.places(request.nodes, request.total_blocks)).tolist():
            assert parents.setdefault(block, before) == before
            before = block
    return parents


def external_of(blocks: BlockMap, places: set[int]) -> set[int]:
    return set(blocks.external(np.array(sorted(places), np.int64)).tolist())


def test_prefill_append_hit_and_eviction() -> None:
    load = load_of((1024, [1, 2], 1024), (1536, [1, 2, 3], 0), (1024, [9, 8], 0))
    log = EventLog(load.blocks)
    engine = Engine(3, 5, 1, log)
    a, b, c = requests(load)
    assert engine.serve(a) == 0
    places = load.blocks.places(a.nodes, 4)
    e = load.blocks.external(places).tolist()
    assert list(events_of(log.take())) == [
        (KIND_STORE, None, e[:2]),
        (KIND_STORE, e[1], [e[2]]),
        (KIND_STORE, e[2], [e[3]]),
    ]
    assert engine.serve(b) == 2
    third = load.blocks.external(load.blocks.places(b.nodes, 3)).tolist()[2]
    assert list(events_of(log.take())) == [(KIND_STORE, e[1], [third])]
    # Full: the answer of the first request is the least recently used; its deeper block goes first.
    assert engine.serve(c) == 0
    kinds = list(events_of(log.take()))
    assert kinds[:2] == [(KIND_REMOVE, None, [e[3]]), (KIND_REMOVE, None, [e[2]])]
    assert engine.serve(b) == 3
    assert log.take() == []
    assert engine.used == 5


def test_event_ids_and_workers() -> None:
    load = load_of((1024, [1, 2], 1024), (1024, [3, 4], 0))
    log = EventLog(load.blocks, call_events=2)
    first, second = Engine(1, 10, 1, log), Engine(5, 10, 1, log)
    first.serve(requests(load)[0])
    second.serve(requests(load)[1])
    first.restart(announce=False)
    second.restart(announce=True)
    first.serve(requests(load)[1])
    commands = log.take()
    batches = [command for command in commands if isinstance(command, EventBatch)]
    assert [type(command) for command in commands] == [EventBatch, EventBatch, RemoveWorker, EventBatch]
    assert [len(batch) for batch in batches] == [2, 2, 2]
    assert np.concatenate([batch.worker_id for batch in batches]).tolist() == [1, 1, 1, 5, 5, 1]
    assert np.concatenate([batch.event_id for batch in batches]).tolist() == [1, 2, 3, 1, 2, 4]
    assert not any(batch.dp_rank.any() for batch in batches)
    assert log.take() == []


def test_request_longer_than_the_cache() -> None:
    load = load_of((5120, list(range(10)), 2000), (5120, list(range(10)), 2000))
    log = EventLog(load.blocks)
    engine = Engine(0, 4, 1, log)
    assert engine.serve(requests(load)[0]) == 0
    assert engine.serve(requests(load)[1]) == 4
    stream = Stream(all_parents(load))
    stream.follow(log.take())
    assert len(stream.held) == engine.used == 4


def test_answer_stops_where_the_cache_ends() -> None:
    load = load_of((1024, [1, 2], 5000))
    engine = Engine(0, 6, 1)
    engine.serve(requests(load)[0])
    assert engine.used == 6


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_cache_needs_a_block(capacity: int) -> None:
    with pytest.raises(ValueError, match="at least one block"):
        Engine(0, capacity, 1)


@pytest.mark.parametrize("block_tokens", [512, 128, 16])
@pytest.mark.parametrize("cache_tokens", [4096, 40_960, 262_144])
def test_streams_are_engine_valid(block_tokens: int, cache_tokens: int) -> None:
    load = plan(generate_trace(100, seed=cache_tokens), block_tokens)
    capacity = cache_tokens // block_tokens
    log = EventLog(load.blocks)
    engine = Engine(7, capacity, load.blocks.cut, log)
    stream = Stream(all_parents(load))
    for i, request in enumerate(load.requests):
        hit = engine.cached_prefix(request)
        external = load.blocks.external(load.blocks.places(request.nodes, request.prompt_blocks)).tolist()
        assert hit == next((n for n, block in enumerate(external) if block not in stream.held), len(external))
        assert engine.serve(request) == hit
        stream.follow(log.take())
        assert engine.used == len(stream.held) <= capacity
        assert external_of(load.blocks, engine.held_places()) == stream.held
        kept = min(request.total_blocks, capacity)
        if request.prompt_blocks <= capacity:
            answer = load.blocks.external(load.blocks.places(request.nodes, kept)).tolist()
            assert set(answer) <= stream.held, "what was just served is cached"
        if i in (60, 90):
            engine.restart(announce=i == 60)
            stream.follow(log.take())
            assert not stream.held and engine.cached_prefix(request) == 0
    assert stream.counts[KIND_REMOVE] or capacity * block_tokens > 200_000


@pytest.mark.parametrize("block_tokens", [512, 64])
def test_mid_chain_evictions_make_holes(block_tokens: int) -> None:
    load = plan(generate_trace(200, seed=1), block_tokens)
    log = EventLog(load.blocks)
    engine = Engine(0, 60 * 512 // block_tokens, load.blocks.cut, log)
    stream = Stream(all_parents(load), leaf_first=False)
    rng = random.Random(0)
    assert not engine.evict_inside(rng)
    holes = again = 0
    for request in load.requests:
        engine.serve(request)
        stream.follow(log.take())
        for _ in range(2):
            before = set(stream.held)
            happened = engine.evict_inside(rng)
            stream.follow(log.take())
            gone = before - stream.held
            assert len(gone) == happened
            holes += any(stream.near(block) for block in gone)
        hit = engine.cached_prefix(request)
        again += hit < min(request.prompt_blocks, engine.capacity)
        assert engine.used == len(stream.held) <= engine.capacity
        assert external_of(load.blocks, engine.held_places()) == stream.held
    assert holes > 20 and again > 20


def test_same_as_a_cache_kept_block_by_block() -> None:
    """The order per node against the plain thing: one LRU list of blocks."""
    load = plan(generate_trace(400, seed=2))
    engine, held = Engine(0, 150, 1), OrderedDict[int, None]()
    for request in load.requests:
        prompt, total = (min(n, 150) for n in (request.prompt_blocks, request.total_blocks))
        if prompt < request.prompt_blocks:
            total = prompt
        hit = next((i for i, n in enumerate(request.nodes[:prompt]) if n not in held), prompt)
        assert engine.serve(request) == hit
        for node in reversed(request.nodes[:total]):
            held.pop(node, None)
            held[node] = None
        while len(held) > 150:
            held.popitem(last=False)
        assert engine.held_places() == set(held)
