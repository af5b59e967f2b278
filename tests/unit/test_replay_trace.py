"""Reading traces, plain and gzip, good and bad; the built-in generator."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from shmtrie.replay.trace import TRACE_BLOCK_TOKENS, TraceError, generate_trace, read_trace

GOOD = {"timestamp": 7, "input_length": 700, "output_length": 5, "hash_ids": [0, 3]}


def lines(*requests: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_reads_requests(file: Path, pack: Any) -> None:
    file.write_bytes(pack(lines(GOOD, GOOD | {"timestamp": 8.5, "model": "ignored"})))
    first, second = read_trace(file)
    assert first == (7, 700, 5, (0, 3))
    assert second.timestamp == 8.5


def test_concatenated_gzip_and_empty_lines(file: Path) -> None:
    file.write_bytes(gzip.compress(lines(GOOD) + b"\n  \n") + gzip.compress(lines(GOOD)))
    assert len(read_trace(file)) == 2


def test_orders_by_time_and_keeps_file_order_within(file: Path) -> None:
    shuffled = [GOOD | {"timestamp": at, "output_length": i} for i, at in enumerate([9, 4, 9, 4])]
    file.write_bytes(lines(*shuffled))
    assert [request.output_length for request in read_trace(file)] == [1, 3, 0, 2]


def test_limit_counts_requests_of_the_file(file: Path) -> None:
    file.write_bytes(lines(GOOD, GOOD, GOOD) + b"not reached")
    assert len(read_trace(file, 2)) == 2


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"1",
        b"\xff\xfe{}",
        b'{"timestamp": 0, "input_length": 1, "output_length": 1}',
        lines(GOOD | {"hash_ids": [1, "2"]}),
        lines(GOOD | {"hash_ids": None}),
        lines(GOOD | {"hash_ids": [1.5]}),
        lines(GOOD | {"input_length": -1}),
        lines(GOOD | {"output_length": 1 << 40}),
        lines(GOOD | {"timestamp": -1}),
        lines(GOOD | {"timestamp": "0"}),
        b'{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": []}',
    ],
)
def test_bad_line_is_named(file: Path, line: bytes) -> None:
    file.write_bytes(lines(GOOD) + b"\n" + line)
    with pytest.raises(TraceError, match=r"trace\.jsonl, line 3: "):
        read_trace(file)


def test_truncated_gzip(file: Path) -> None:
    file.write_bytes(gzip.compress(lines(GOOD) * 500)[:-30])
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(file)


@pytest.mark.parametrize("content", [b"", b"\n\n", gzip.compress(b"")])
def test_empty_trace(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(TraceError, match="holds no request"):
        read_trace(file)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(TraceError, match="cannot read"):
            read_trace(path)


def test_generator_is_deterministic() -> None:
    assert generate_trace(300, seed=5) == generate_trace(300, seed=5)
    assert generate_trace(300, seed=5) != generate_trace(300, seed=6)
    assert generate_trace(300, seed=5)[:100] == generate_trace(100, seed=5)
    with pytest.raises(ValueError, match="at least one"):
        generate_trace(0)


def test_generator_makes_conversations(file: Path) -> None:
    trace = generate_trace(800)
    assert [request.timestamp for request in trace] == sorted(request.timestamp for request in trace)
    parents: dict[int, int | None] = {}
    longest = 0
    for request in trace:
        assert len(request.hash_ids) == -(-request.input_length // TRACE_BLOCK_TOKENS)
        assert request.output_length >= 1
        before: int | None = None
        for block in request.hash_ids:
            # equal ids stand for equal prefixes
            assert parents.setdefault(block, before) == before
            before = block
        longest = max(longest, len(request.hash_ids))
    seen: set[int] = set()
    again = 0
    for request in trace:
        again += len(seen & set(request.hash_ids))
        seen.update(request.hash_ids)
    assert again > len(seen) / 4, "turns repeat what was said before"
    # What it makes is what a file holds.
    file.write_bytes(lines(*(request._asdict() for request in trace)))
    assert read_trace(file) == trace
