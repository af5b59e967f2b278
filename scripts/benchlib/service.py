"""ai-dynamo-runtime's standalone indexer over HTTP: what one copy a host costs as a service."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from . import dynamo
from .passes import percentiles
from .results import Results, Say
from .side_by_side import Plan
from .workload import STORE, Workload

SECTION = "service"
_BLOCK_TOKENS = 16
_WAIT = 60.0


def available() -> bool:
    """Whether the indexer and pyzmq are installed."""
    try:
        import zmq  # noqa: F401
    except ImportError:
        return False
    return dynamo.available()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def _server(threads: int) -> Iterator[int]:
    port = _free_port()
    child = subprocess.Popen(
        [sys.executable, "-m", "dynamo.indexer", "--port", str(port), "--threads", str(threads)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + _WAIT
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).read()
                break
            if child.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the standalone indexer does not start")
            time.sleep(0.02)
        yield port
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _post(connection: http.client.HTTPConnection, path: str, body: Any) -> Any:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    said = reply.read()
    if reply.status >= 300:
        raise RuntimeError(f"{path}: {reply.status} {said[:200]!r}")
    return json.loads(said)


def _engine_event(workload: Workload, op: int) -> list[Any]:
    """An event as vLLM publishes it: struct with a tag, as array."""
    external = workload.external[workload.part(op)].tolist()
    if workload.kind[op] == STORE:
        parent = int(workload.parent[op]) if workload.has_parent[op] else None
        tokens = np.repeat(workload.place[workload.part(op)] & 0x7FFFFFFF, _BLOCK_TOKENS).tolist()
        return ["BlockStored", external, parent, tokens, _BLOCK_TOKENS, None]
    return ["BlockRemoved", external]


def measure(workload: Workload, plan: Plan, results: Results, say: Say) -> None:
    """Feed the stores of a workload through ZeroMQ, then ask one query after the other."""
    import zmq

    queries_asked = 200 if plan.quick else 2_000
    threads = 4
    say(f"service: {workload.name}, {threads} threads")
    context = zmq.Context()
    sockets, connection = {}, None
    try:
        with _server(threads) as port:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT)
            for worker in range(workload.workers):
                publisher = context.socket(zmq.PUB)
                publisher.set_hwm(0)
                bound = publisher.bind_to_random_port("tcp://127.0.0.1")
                sockets[worker] = publisher
                _post(
                    connection,
                    "/register",
                    {
                        "instance_id": worker,
                        "endpoint": f"tcp://127.0.0.1:{bound}",
                        "model_name": "bench",
                        "block_size": _BLOCK_TOKENS,
                    },
                )
            hashes = _feed(workload, sockets, connection)
            took = []
            for k in range(queries_asked):
                query = hashes[k * 7919 % len(hashes)]
                start = time.perf_counter_ns()
                _post(connection, "/query_by_hash", {"block_hashes": query, "model_name": "bench"})
                took.append(time.perf_counter_ns() - start)
            results.add(SECTION, workload.name, "dynamo indexer HTTP", percentiles(took, "find"))
    finally:
        if connection is not None:
            connection.close()
        for publisher in sockets.values():
            publisher.close(0)
        context.term()


def _feed(workload: Workload, sockets: Any, connection: http.client.HTTPConnection) -> list[list[int]]:
    """Publish all events; wait until the index has them; the queries in its own local hashes."""
    encode = msgspec.msgpack.encode
    sequence = dict.fromkeys(sockets, 0)
    # Subscribers connect in their own time: a first block per worker, until it is there.
    waiting, end = set(sockets), time.monotonic() + _WAIT
    while waiting:
        for worker in waiting:
            event = ["BlockStored", [1], None, [1] * _BLOCK_TOKENS, _BLOCK_TOKENS, None]
            _publish(sockets[worker], sequence, worker, encode([time.time(), [event], 0]))
        time.sleep(0.05)
        known = json.loads(_get(connection, "/dump"))
        events = next(iter(known.values()), {}).get("events", []) if known else []
        waiting = set(sockets) - {event["worker_id"] for event in events}
        if time.monotonic() > end:
            raise TimeoutError(f"the indexer does not hear {len(waiting)} of its engines")
    for op in workload.events.tolist():
        worker = int(workload.worker[op])
        event = _engine_event(workload, op)
        _publish(sockets[worker], sequence, worker, encode([time.time(), [event], 0]))
    return _local_hashes(workload, connection)


def _publish(publisher: Any, sequence: dict[int, int], worker: int, payload: bytes) -> None:
    publisher.send_multipart([b"", sequence[worker].to_bytes(8, "big"), payload])
    sequence[worker] += 1


def _get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    return connection.getresponse().read()


def _local_hashes(workload: Workload, connection: http.client.HTTPConnection) -> list[list[int]]:
    """The indexer hashes tokens itself: its dump says what it calls each external hash."""
    known: dict[int, int] = {}
    last, end = -1, time.monotonic() + _WAIT
    while len(known) != last and time.monotonic() < end:
        last = len(known)
        time.sleep(0.5)
        for tree in json.loads(_get(connection, "/dump")).values():
            for event in tree["events"]:
                for block in event["event"]["data"]["stored"]["blocks"]:
                    known[block["block_hash"]] = block["tokens_hash"]
    found = []
    for op in workload.queries.tolist():
        # a block that it never heard of is called anything that it does not know
        query = [known.get(e, e) for e in workload.external[workload.part(op)].tolist()]
        found.append([h - (1 << 64) if h >> 63 else h for h in query])
    return found
