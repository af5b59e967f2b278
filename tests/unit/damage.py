"""A small segment with one of everything in it, and the means to damage it word by word."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmtrie.capacity import Capacity
from shmtrie.layout import M31, M32, SPAN_LINES
from shmtrie.segment import Segment
from shmtrie.writer import Writer


def own(rank: int, hashes: list[int]) -> list[int]:
    """External hashes that only this rank uses."""
    return [h + 1_000_000 * rank for h in hashes]


class World:
    """The segment, and where things are in it.

    Nodes, by first local hash: 1 [1..6] with children 7 [7..12] (its suffix) and 101; 201 with a list of
    coverage words, 301 with a dense array, 501 alone. Rank 3 has aliases for 1 and 7. One node id was used
    and given back.
    """

    def __init__(self, name: str) -> None:
        self.segment = Segment.create(name, Capacity(blocks=2_000, workers=80, lanes=3, aliases=500))
        try:
            with Writer(self.segment) as writer:
                fill(writer)
        except BaseException:
            self.close()
            raise
        self._copy = bytes(self.segment.mapping)

    def close(self) -> None:
        """Remove the segment."""
        self.segment.close()
        Segment.unlink(self.segment.name)

    def restore(self) -> None:
        """Undo all damage."""
        self.segment.mapping[:] = self._copy

    def view(self, section: str) -> Any:
        """A section as an array."""
        return self.segment.view(section)

    # -- words ------------------------------------------------------------------------------------
    def words(self, node: int) -> Any:
        """The words of a node, writeable, by field name."""
        return self.view("nodes")[node : node + 1]

    def get(self, node: int, field: str) -> int:
        """A word of a node."""
        return int(self.words(node)[field][0])

    def put(self, node: int, field: str, value: int) -> None:
        """Overwrite a word of a node."""
        self.words(node)[field] = np.uint64(value & (2**64 - 1))

    def live(self) -> list[int]:
        """Ids of the live nodes."""
        hangs = self.view("nodes")["start"] >> np.uint64(32) != M32
        return [int(k) for k in np.flatnonzero(hangs & (self.view("node_claims") != 0)) if k]

    def node(self, first: int) -> int:
        """The live node whose first local hash it is."""
        (found,) = (k for k in self.live() if int(self.line(self.edge(k))[0]) == first)
        return found

    def edge(self, node: int) -> int:
        """Line of a node's edge."""
        return self.get(node, "edge") & M32

    def line(self, line: int) -> Any:
        """Eight words of a line of the extents."""
        return self.view("extents")[line - 1]

    def length(self, node: int) -> int:
        """Blocks of a node's edge."""
        return (self.get(node, "tail") & M31) - (self.get(node, "start") & M32)

    def space(self, node: int) -> int:
        """Number of the node's child space."""
        return self.get(node, "tail") >> 32

    def entry(self, node: int) -> tuple[int, int]:
        """Bucket and place of the child entry that names a node."""
        ((bucket, place),) = np.argwhere(self.view("children") & np.uint64(M32) == node)
        return int(bucket), int(place)

    def freed(self) -> int:
        """A node id that was used and given back."""
        generation = self.view("nodes")["version"] >> np.uint64(32)
        return int(np.flatnonzero((generation != 0) & (self.view("node_claims") == 0))[0])

    def add_end(self, node: int, blocks: int) -> None:
        """Move a node's end."""
        self.put(node, "tail", self.get(node, "tail") + blocks)

    def free_line(self) -> int:
        """A free line that begins an extent of a span in use."""
        spans, claims = self.view("spans"), self.view("line_claims")
        for span, word in enumerate(spans["word"]):
            size = int(word) & 0xFFFF
            if 0 < size <= SPAN_LINES:
                for at in range(0, SPAN_LINES - size + 1, size):
                    if claims[span * SPAN_LINES + at] == 0:
                        return span * SPAN_LINES + at + 1
        raise AssertionError("no free extent")

    def slot(self, worker_id: int) -> int:
        """Slot of a rank."""
        return int(np.flatnonzero(self.view("rank_records")["worker_id"] == worker_id)[0])


def fill(writer: Writer) -> None:
    """Store what the class describes."""
    chain = list(range(1, 13))
    writer.store(1, None, chain, chain)
    writer.store(2, None, [*chain[:6], *range(101, 105)], [*chain[:6], *range(101, 105)])
    writer.store(3, None, chain, own(3, chain))
    for worker, first, n in [(w, 201, 4) for w in range(10, 15)] + [(w, 301, 3) for w in range(20, 60)]:
        writer.store(worker, None, list(range(first, first + n)), list(range(first, first + n)))
    writer.store(1, None, [401, 402, 403], [401, 402, 403])
    writer.store(1, None, [501, 502, 503], [501, 502, 503])
    writer.remove(1, [401, 402, 403])
