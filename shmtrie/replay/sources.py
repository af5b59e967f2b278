"""Where a replay's index comes from: the one place that creates, attaches and removes it.

`SharedSource` is the product: a segment that every process attaches. `TreeSource` is the exact baseline in
the calling process; with it a replay needs no segment and no child processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from ..radix_tree import RadixTree
from .tasks import ReadIndex, WriteIndex

__all__ = ["IndexFigures", "IndexSource", "SharedSource", "TreeSource"]

# Attaching waits for a creation that is still going on; it never is here, so this is generous.
_ATTACH_SECONDS = 30.0


class IndexFigures(NamedTuple):
    """What the index says of itself at the end.

    Parameters
    ----------
    nodes : int
        Nodes in use.
    unique_blocks : int
        Different blocks in it.
    bytes_used, bytes_slack, segment_bytes : int or None
        Bytes in use, reserved with them but empty, and of the whole segment; None without one.
    bytes_per_block : float or None
        Bytes used and slack per different block.
    broken : list of str or None
        Invariants found broken by `verify`; None if it was not asked or there is no verify.
    """

    nodes: int
    unique_blocks: int
    bytes_used: int | None
    bytes_slack: int | None
    segment_bytes: int | None
    bytes_per_block: float | None
    broken: list[str] | None


class IndexSource(Protocol):
    """Gives read and write handles of one index."""

    def reader(self) -> contextlib.AbstractContextManager[ReadIndex]:
        """Open a handle for finds."""
        ...

    def writer(self) -> contextlib.AbstractContextManager[WriteIndex]:
        """Open a handle for events; it has a lane of its own."""
        ...

    def figures(self, verify: bool) -> IndexFigures:
        """Ask for size and, with `verify`, for broken invariants."""
        ...


class TreeSource:
    """A `RadixTree` in this process.

    Parameters
    ----------
    exact_holes : bool
        As for `RadixTree`.
    """

    def __init__(self, exact_holes: bool = False) -> None:
        self._tree = RadixTree(exact_holes=exact_holes)

    @contextlib.contextmanager
    def reader(self) -> Iterator[ReadIndex]:
        """Give the tree itself."""
        yield self._tree

    @contextlib.contextmanager
    def writer(self) -> Iterator[WriteIndex]:
        """Give the tree itself."""
        yield self._tree

    def figures(self, verify: bool) -> IndexFigures:
        """Ask the tree."""
        stats: Any = self._tree.stats()
        return IndexFigures(stats.nodes, stats.unique_blocks, None, None, None, None, None)


class SharedSource:
    """A segment by name; small and picklable, so that child processes get one too.

    Parameters
    ----------
    name : str
        Of the segment.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    @contextlib.contextmanager
    def create(
        cls, blocks: int, nodes: int, workers: int, lanes: int, block_tokens: int, exact_holes: bool
    ) -> Iterator[SharedSource]:
        """Make a segment for the duration of a ``with`` block and remove it afterwards, whatever happens.

        Parameters
        ----------
        blocks, nodes, workers, lanes : int
            Its capacity.
        block_tokens : int
            Stamped as its block size.
        exact_holes : bool
            As for `Index.create`.
        """
        # Here and not at the top: a replay on the tree needs neither numba nor shared memory.
        from ..capacity import Capacity
        from ..index import Index

        name = f"shmtrie-replay-{os.getpid()}"
        capacity = Capacity(blocks=blocks, nodes=nodes, workers=workers, lanes=lanes)
        index = Index.create(name, capacity, block_size=block_tokens, exact_holes=exact_holes)
        try:
            yield cls(name)
        finally:
            index.close()
            cls(name).discard()

    def discard(self) -> None:
        """Remove the segment's name; a segment that is gone already is fine."""
        from ..errors import SegmentNotFound
        from ..index import Index

        with contextlib.suppress(SegmentNotFound):
            Index.unlink(self.name)

    @contextlib.contextmanager
    def reader(self) -> Iterator[ReadIndex]:
        """Attach read-only."""
        from ..index import Index

        index = Index.attach(self.name, read_only=True, timeout=_ATTACH_SECONDS)
        try:
            yield index
        finally:
            index.close()

    @contextlib.contextmanager
    def writer(self) -> Iterator[WriteIndex]:
        """Attach read-write and take a lane."""
        from ..index import Index

        index = Index.attach(self.name, read_only=False, timeout=_ATTACH_SECONDS)
        try:
            with index.writer() as writer:
                yield writer
        finally:
            index.close()

    def figures(self, verify: bool) -> IndexFigures:
        """Attach, ask, detach."""
        from ..index import Index

        index = Index.attach(self.name, read_only=True, timeout=_ATTACH_SECONDS)
        try:
            stats: Any = index.stats()
            broken: list[str] | None = None
            if verify:
                report: Any = index.verify()
                broken = [] if report.ok else [f"{which}: {what}" for which, what in report.broken]
            return IndexFigures(
                nodes=stats.nodes,
                unique_blocks=stats.unique_blocks,
                bytes_used=stats.bytes_used,
                bytes_slack=stats.bytes_slack,
                segment_bytes=stats.bytes_total,
                bytes_per_block=stats.bytes_per_block,
                broken=broken,
            )
        finally:
            index.close()
