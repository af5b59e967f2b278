"""Request traces: reading Mooncake-format files, and a built-in generator that needs no file.

A trace is a list of requests ordered by time. Each request names the 512-token blocks of its prompt by
ids: within one trace, equal ids stand for the same tokens behind the same prefix. The last block of a
prompt may be partly filled; it has an id nevertheless.
"""

from __future__ import annotations

import gzip
import math
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO, Final, NamedTuple, cast

import msgspec

from ..errors import ShmtrieError

__all__ = ["TRACE_BLOCK_TOKENS", "TraceError", "TraceRequest", "generate_trace", "read_trace"]

TRACE_BLOCK_TOKENS: Final = 512
"""Tokens in one block of a trace."""

# 2**20 blocks of 16 tokens: the longest query of the index. A longer request is a broken line, and would
# only make the simulation run out of memory.
_MAX_TOKENS: Final = 1 << 24
_GZIP_MAGIC: Final = b"\x1f\x8b"


class TraceError(ShmtrieError, ValueError):
    """A trace cannot be read; the message names the file and the line."""


class TraceRequest(NamedTuple):
    """One request of a trace.

    Parameters
    ----------
    timestamp : float
        Arrival, milliseconds from the start of the trace.
    input_length, output_length : int
        Tokens of the prompt and of the answer.
    hash_ids : tuple of int
        One id per 512-token block of the prompt, from its start.
    """

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=_MAX_TOKENS)]


class _Line(msgspec.Struct):
    """What a line must hold; other keys are ignored."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[int, ...]


_decoder: Final = msgspec.json.Decoder(_Line)


def read_trace(path: str | Path, limit: int | None = None) -> list[TraceRequest]:
    """Read a Mooncake-format trace: one JSON object per line, plain or gzip.

    Parameters
    ----------
    path : str or Path
        The file. gzip is recognised by its content, whatever the name.
    limit : int, optional
        Stop after that many requests of the file.

    Returns
    -------
    list of TraceRequest
        Ordered by timestamp; requests of one timestamp stay in file order. Empty lines are skipped.

    Raises
    ------
    TraceError
        If the file cannot be read, holds no request, or has a line that is no request.
    """
    requests: list[TraceRequest] = []
    try:
        with open(path, "rb") as raw:
            zipped = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw
            for request in _parse(stream, path):
                if limit is not None and len(requests) >= limit:
                    break
                requests.append(request)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"cannot read the trace {path}: {reason}") from error
    if not requests:
        raise TraceError(f"the trace {path} holds no request")
    requests.sort(key=lambda request: request.timestamp)
    return requests


def _parse(stream: BinaryIO, path: str | Path) -> Iterator[TraceRequest]:
    for number, line in enumerate(stream, 1):
        text = line.strip()
        if not text:
            continue
        try:
            fields = _decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(
                f"{path}, line {number}: {error}; a line is a JSON object with timestamp (ms), "
                "input_length, output_length (tokens) and hash_ids (one int per 512-token block)"
            ) from error
        yield TraceRequest(fields.timestamp, fields.input_length, fields.output_length, fields.hash_ids)


# --- the built-in generator -------------------------------------------------------------------------


@dataclass(slots=True)
class _Session:
    """A conversation: the ids of its filled blocks, and how many tokens it has so far."""

    tokens: int
    ids: list[int] = field(default_factory=list)


class _Draws:
    """Distributions made from `random.random` alone, the one method that Python keeps stable by seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def exponential(self, mean: float) -> float:
        return -mean * math.log(1.0 - self._random())

    def below(self, n: int) -> int:
        return int(self._random() * n)

    def chance(self, p: float) -> bool:
        return self._random() < p


def generate_trace(requests: int = 4000, seed: int = 0) -> list[TraceRequest]:
    """Make a conversation-like trace: shared system prompts, sessions of several turns, short answers.

    Parameters
    ----------
    requests : int
        How many, >= 1.
    seed : int
        Same seed, same trace.

    Returns
    -------
    list of TraceRequest
        Ordered by timestamp (whole milliseconds). A turn's prompt is everything said in its session before,
        the last answer included, and a new message; a few messages are long documents.

    Raises
    ------
    ValueError
        If `requests` < 1.

    Notes
    -----
    About 3.4 arrivals a second and 24 blocks per prompt, as in the published conversation trace.
    """
    if requests < 1:
        raise ValueError(f"a trace needs at least one request, got {requests}")
    draws = _Draws(seed)
    # The first system prompt serves half of all sessions; lengths as they come, partial blocks included.
    systems = [_Session(tokens=300 + draws.below(4000)) for _ in range(12)]
    next_id = 0
    for system in systems:
        for _ in range(system.tokens // TRACE_BLOCK_TOKENS):
            system.ids.append(next_id)
            next_id += 1
    made: list[TraceRequest] = []
    waiting: list[tuple[float, _Session]] = []
    now = 0.0
    while len(made) < requests:
        now += draws.exponential(290.0)
        # Whoever has thought long enough goes on; otherwise a new session starts.
        due = next((i for i, (at, _) in enumerate(waiting) if at <= now), None)
        if due is not None:
            session = waiting.pop(due)[1]
        else:
            system = systems[0] if draws.chance(0.5) else systems[draws.below(len(systems))]
            session = _Session(system.tokens, list(system.ids))
        long_message = draws.chance(0.2)
        session.tokens += 1 + int(draws.exponential(18_000.0 if long_message else 1_500.0))
        full, rest = divmod(session.tokens, TRACE_BLOCK_TOKENS)
        while len(session.ids) < full:
            session.ids.append(next_id)
            next_id += 1
        ids = tuple(session.ids)
        if rest:  # a partly filled block is named by what it holds now, so by a new id at every turn
            ids = (*ids, next_id)
            next_id += 1
        output = 1 + int(draws.exponential(340.0))
        made.append(TraceRequest(float(int(now)), session.tokens, output, ids))
        session.tokens += output
        if draws.chance(0.5) and session.tokens < 120_000:
            waiting.append((now + 5_000.0 + draws.exponential(60_000.0), session))
    return made
