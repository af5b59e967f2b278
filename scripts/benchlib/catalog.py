"""The workloads by name: from a request trace, and made ones that each stress one thing.

Everything is drawn from `random.random` with a fixed seed, so a name is always the same workload.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shmtrie.replay import generate_trace, read_trace
from shmtrie.replay.blocks import plan
from shmtrie.replay.engine import Engine
from shmtrie.replay.routing import Backlog, choose, service_rate
from shmtrie.replay.trace import TraceRequest

from .model import Model
from .workload import Builder, Workload

CACHE_TOKENS = 1024 * 512  # what an engine caches


@dataclass(frozen=True)
class Sources:
    """Where the traces come from; None is the generator.

    Attributes
    ----------
    conversation, synthetic : Path or None
        Mooncake-format files.
    scale : float
        1 is the full size of every workload.
    """

    conversation: Path | None = None
    synthetic: Path | None = None
    scale: float = 1.0

    def requests(self, path: Path | None, limit: int, seed: int) -> list[TraceRequest]:
        """The first `limit` requests, scaled."""
        limit = self.scaled(limit)
        return read_trace(path, limit) if path is not None else generate_trace(limit, seed)

    def scaled(self, n: int, least: int = 64) -> int:
        """A count at this scale."""
        return max(min(n, least), int(n * self.scale))


class _Log:
    """Lets the simulated engines report to a builder, and keeps the model up to date for routing.

    What a request evicts before its next store is one event, as engines report it.
    """

    def __init__(self, builder: Builder, model: Model) -> None:
        self._builder, self._model = builder, model
        self._evicted: list[int] = []

    def store(self, worker: int, parent: int | None, places: Sequence[int]) -> None:
        self.flush(worker)
        self._builder.store(worker, parent, places)
        self._model.store(worker, places)

    def remove(self, worker: int, places: Sequence[int]) -> None:
        self._evicted.extend(places)
        self._model.remove(worker, places)

    def flush(self, worker: int) -> None:
        if self._evicted:
            self._builder.remove(worker, self._evicted)
            self._evicted = []


def from_trace(
    name: str, trace: Sequence[TraceRequest], workers: int, cut: int, seeds: bool = False
) -> Workload:
    """Route a trace over engines with bounded caches: best overlap against load.

    Parameters
    ----------
    workers : int
        Engines, each caching 524,288 tokens.
    cut : int
        Index blocks in one 512-token block of the trace.
    seeds : bool
        Every engine has a hash seed of its own.
    """
    planned = plan(trace, 512 // cut)
    builder, model = Builder(seeds), Model()
    log = _Log(builder, model)
    rate = service_rate(planned.requests, workers)
    backlog = Backlog(workers, rate)
    capacity = CACHE_TOKENS // 512 * cut
    engines = [Engine(w, capacity, cut, log) for w in range(workers)]  # type: ignore[arg-type]
    for request in planned.requests:
        places = planned.blocks.places(request.nodes, request.prompt_blocks)
        if not len(places):
            continue
        builder.query(places)
        found, depths = model.find(places.tolist())
        backlog.advance(request.time)
        worker, depth = choose(backlog.blocks, found.astype(np.uint64), depths, len(places), request.number)
        backlog.add(worker, request.total_blocks - depth)
        engines[worker].serve(request)
        log.flush(worker)
    n_places = len(planned.blocks._labels) * cut
    nodes, within = np.divmod(np.arange(n_places), cut)
    return builder.build(name, workers, planned.blocks._labels[nodes] * cut + within)


class _Places:
    """Hands out fresh places."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, n: int) -> np.ndarray:
        self._next += n
        return np.arange(self._next - n, self._next)


def fanout(n: int) -> Workload:
    """64 shared blocks held by 64 workers, then thousands of suffixes of 16."""
    rng, places, out = random.Random(1), _Places(), Builder()
    prefix = places.take(64)
    for worker in range(64):
        out.store(worker, None, prefix)
    suffixes = [(rng.randrange(64), places.take(16)) for _ in range(n * 2 // 3)]
    shown: list[np.ndarray] = []
    for i in range(n):
        fresh = i < len(suffixes)
        if (fresh and rng.random() < 0.5) or not shown:
            out.query(np.concatenate([prefix, places.take(16)]))
        else:
            out.query(np.concatenate([prefix, shown[rng.randrange(len(shown))]]))
        if fresh:
            out.store(suffixes[i][0], int(prefix[-1]), suffixes[i][1])
            shown.append(suffixes[i][1])
    return out.build("fanout", 64)


def decode(n: int) -> Workload:
    """Sessions on a worker each that grow by 1-4 blocks at a time, most often one."""
    rng, places, out = random.Random(2), _Places(), Builder()
    sessions = [(i % 64, places.take(128)) for i in range(max(16, n // 4))]
    for worker, path in sessions:
        out.store(worker, None, path)
    for step in range(n):
        for _ in range(48):
            i = rng.randrange(len(sessions))
            worker, path = sessions[i]
            more = places.take(1 if rng.random() < 0.66 else rng.randint(2, 4))
            out.store(worker, int(path[-1]), more)
            sessions[i] = worker, np.concatenate([path, more])
        del step
        out.query(sessions[rng.randrange(len(sessions))][1])
    return out.build("decode", 64)


def deep(n: int) -> Workload:
    """Chains of 4,096 blocks, stored 64 at a time by one of 16 workers each; asked for whole."""
    rng, places, out = random.Random(3), _Places(), Builder()
    done: list[np.ndarray] = []
    for i in range(n):
        chain, worker = places.take(4096), i % 16
        for at in range(0, 4096, 64):
            out.store(worker, int(chain[at - 1]) if at else None, chain[at : at + 64])
        done.append(chain)
        for _ in range(8):
            path = done[rng.randrange(len(done))]
            out.query(path if rng.random() < 0.5 else path[: rng.randint(2048, 4096)])
    return out.build("deep", 16)


def wide(n: int) -> Workload:
    """512 workers hold one system prompt of 128 blocks; requests add 24 of their own."""
    rng, places, out = random.Random(4), _Places(), Builder()
    prompt = places.take(128)
    for worker in range(512):
        out.store(worker, None, prompt)
    for _ in range(n):
        own = places.take(24)
        out.query(np.concatenate([prompt, own]))
        out.store(rng.randrange(512), int(prompt[-1]), own)
    return out.build("wide", 512)


def churn(n: int) -> Workload:
    """Branches come behind prefixes and grow, and go block by block from the tail: a bounded live set."""
    rng, places, out = random.Random(5), _Places(), Builder()
    workers = 38
    prefixes = [places.take(rng.randint(16, 48)) for _ in range(64)]
    held: set[tuple[int, int]] = set()
    live: deque[tuple[int, np.ndarray]] = deque()
    gone: deque[np.ndarray] = deque(maxlen=256)  # asked for as well: nothing may be left of them
    size, live_blocks = 0, max(600, n * 6 // 5)
    for _ in range(n):
        which = int(rng.random() ** 2 * len(prefixes))
        prefix, worker = prefixes[which], (which * 5 + int(rng.random() ** 2 * 18)) % workers
        depth = rng.randint(8, len(prefix))
        if (which, worker) not in held:
            held.add((which, worker))
            out.store(worker, None, prefix)
        branch = places.take(rng.randint(4, 64))
        draw = rng.random()
        if live and draw < 0.4:
            out.query(live[rng.randrange(len(live))][1])
        elif gone and draw < 0.45:
            out.query(gone[rng.randrange(len(gone))])
        else:
            out.query(np.concatenate([prefix[:depth], branch]))
        out.store(worker, int(prefix[depth - 1]), branch[:-1])
        out.store(worker, int(branch[-2]), branch[-1:])
        live.append((worker, np.concatenate([prefix[:depth], branch])))
        size += len(branch)
        while size > live_blocks:
            worker, path = live.popleft()
            gone.append(path)
            # The prefix stays; what is behind it goes from the tail, one event a block.
            for place in path[::-1][: len(path) - _shared(path, prefixes)]:
                out.remove(worker, [int(place)])
                size -= 1
    return out.build("churn", workers)


def _shared(path: np.ndarray, prefixes: Sequence[np.ndarray]) -> int:
    last = int(prefixes[-1][-1])
    return int(np.searchsorted(path, last, side="right"))


def uniform(name: str, blocks: int, holders: int, queries: int, seeds: bool = False) -> Workload:
    """Chains of 256 blocks of their own, each held by `holders` workers; then whole chains are asked for."""
    rng, out, n_workers = random.Random(6), Builder(seeds), 64
    chains = max(1, blocks // 256)
    for chain in range(chains):
        for k in range(holders):
            out.store((chain * holders + k) % n_workers, None, np.arange(256) + chain * 256)
    for _ in range(queries):
        out.query(np.arange(256) + rng.randrange(chains) * 256)
    return out.build(name, n_workers)


def catalog(sources: Sources) -> dict[str, Callable[[], Workload]]:
    """Makers of all workloads."""
    s = sources

    def conv(workers: int, cut: int, limit: int, seeds: bool = False) -> Callable[[], Workload]:
        name = f"conv_w{workers}_g{cut}" + ("_seeds" if seeds else "")
        return lambda: from_trace(name, s.requests(s.conversation, limit, 0), workers, cut, seeds)

    makers: dict[str, Callable[[], Workload]] = {
        "conv_w8_g1": conv(8, 1, 12_031),
        "conv_w64_g1": conv(64, 1, 12_031),
        "conv_w256_g1": conv(256, 1, 12_031),
        "conv_w64_g8": conv(64, 8, 6_000),
        "conv_w8_g32": conv(8, 32, 2_000),
        "conv_w64_g1_seeds": conv(64, 1, 12_031, seeds=True),
        "synth_w64_g1": lambda: from_trace("synth_w64_g1", s.requests(s.synthetic, 4_000, 1), 64, 1),
        "fanout": lambda: fanout(s.scaled(12_000)),
        "decode": lambda: decode(s.scaled(4_096)),
        "deep": lambda: deep(s.scaled(128, 8)),
        "wide": lambda: wide(s.scaled(3_000)),
        "churn": lambda: churn(s.scaled(8_000)),
        "million_u": lambda: uniform("million_u", s.scaled(1_000_000, 4096), 1, s.scaled(4_000)),
        "million_c4": lambda: uniform("million_c4", s.scaled(250_000, 4096), 4, s.scaled(4_000)),
        "million_c4_seeds": lambda: uniform(
            "million_c4_seeds", s.scaled(250_000, 4096), 4, s.scaled(4_000), seeds=True
        ),
    }
    return makers
