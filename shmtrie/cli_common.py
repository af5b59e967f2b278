"""What the commands of ``shmtrie`` share: exit codes, attaching, files of events."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from shmtrie.event_types import RouterEvent
    from shmtrie.index import Index

EXIT_REPAIRABLE, EXIT_CORRUPT, EXIT_REFUSED, EXIT_UNSETTLED = 1, 2, 1, 1
EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 3, 64, 130
LOAD_CHUNK = 4_096  # events a call


class Finish(Exception):
    """Ends a command with an exit code of its own."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@contextmanager
def attached(name: str, timeout: float = 5.0, read_only: bool = True) -> Iterator[Index]:
    """Attach to a segment for a command."""
    from shmtrie.index import Index

    index = Index.attach(name, read_only=read_only, timeout=timeout)
    try:
        yield index
    finally:
        index.close()


def chunks(file: IO[bytes], source: str, advance: Callable[[int], None]) -> Iterator[list[RouterEvent]]:
    """Read events, one a line, some at a time; `source` is the file's name, `advance` gets the bytes read."""
    from shmtrie.event_types import decode_event

    chunk: list[RouterEvent] = []
    for number, line in enumerate(file, 1):
        advance(len(line))
        if line.strip():
            try:
                chunk.append(decode_event(line))
            except ValueError as error:
                raise ValueError(f"{source}, line {number}: {error}") from error
        if len(chunk) == LOAD_CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


@contextmanager
def opened(path: str, mode: str) -> Iterator[IO[bytes]]:
    """Open a file, or stdin and stdout for ``-``."""
    if path == "-":
        stream = sys.stdout.buffer if "w" in mode else sys.stdin.buffer
        yield stream
        stream.flush()
    else:
        with open(path, mode) as file:
            yield file
