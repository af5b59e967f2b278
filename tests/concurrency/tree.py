"""The tree of a segment as it lies in memory, read without any of the index's code but its layout.

Only for moments at which nobody writes. ``problems`` says what must not be so then: a gate that is held, an
empty node or tail, an entry or an extent that nobody owns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shmtrie.layout import (
    ALIAS_SLOT,
    COV_SLOT,
    COV_START,
    FORM_LIST,
    HEAD_FORM,
    HEAD_WORDS,
    INTERNAL,
    M12,
    M31,
    M32,
    NO_SPACE,
    PHASE_IDLE,
    SLOT_ACTIVE,
)
from shmtrie.segment import Segment


@dataclass
class Node:
    """One node; depths in blocks from the root, `cover` gives (start, cutoff) in the edge by slot."""

    number: int
    start: int
    end: int
    internal: bool
    hangs_in: int
    space: int
    local: list[int]
    external: list[int]
    cover: dict[int, tuple[int, int]]

    @property
    def length(self) -> int:
        """Blocks of the edge."""
        return self.end - self.start


class Tree:
    """A copy of the tree.

    Parameters
    ----------
    segment : Segment
        Attached, at rest.

    Attributes
    ----------
    nodes : dict
        Claimed nodes but the root, by number.
    problems : list of str
        Empty when all is well.
    """

    def __init__(self, segment: Segment) -> None:
        self._views = {
            name: segment.view(name)
            for name in ("nodes", "node_claims", "line_claims", "extents", "children", "lanes", "rank_states")
        }
        self._words = self._views["extents"].reshape(-1)
        self.problems: list[str] = []
        self._lines: Counter[int] = Counter()
        records, claims = self._views["nodes"], self._views["node_claims"]
        claimed = [n for n in range(1, len(records)) if claims[n]]
        self.nodes = {n: self._node(n, records[n]) for n in claimed}
        self._check_shape()
        self._check_table()
        self._check_rest(records)

    @property
    def edges(self) -> list[int]:
        """Sorted edge lengths."""
        return sorted(node.length for node in self.nodes.values())

    def blocks(self, slot: int) -> int:
        """Blocks that the rank in a slot covers."""
        parts = ((n.length, n.cover[slot]) for n in self.nodes.values() if slot in n.cover)
        return sum(min(cutoff, length) - start for length, (start, cutoff) in parts)

    # -- reading ----------------------------------------------------------------------------------

    def _line(self, line: int, words: int) -> list[int]:
        self._lines[line] += 1
        at = (line - 1) * 8
        found: list[int] = self._words[at : at + words].tolist()
        return found

    def _node(self, number: int, record: Any) -> Node:
        tail, begin, edge, head = (int(record[f]) for f in ("tail", "start", "edge", "coverage"))
        start, end, capacity = begin & M32, tail & M31, edge >> 32
        columns = self._line(edge & M32, capacity * 2)
        length = max(0, min(end - start, capacity))
        cover: dict[int, tuple[int, int]] = {}
        for slot, low in self._words_of(record, head):
            if slot in cover:
                self.problems.append(f"node {number}: slot {slot} twice")
            first, cutoff = (low >> COV_START) & M12, low & M12
            if first < min(cutoff, length):  # a word that begins behind the end covers nothing
                cover[slot] = first, cutoff
        directory = int(record["alias"])
        if directory:
            for word in self._line(directory & M32, directory >> 32):
                if word:
                    self._lines[word & M32] += 1
                    if word >> ALIAS_SLOT == 0:
                        self.problems.append(f"node {number}: alias of no slot")
        return Node(
            number,
            start,
            end,
            bool(tail & INTERNAL),
            begin >> 32,
            tail >> 32,
            columns[:length],
            columns[capacity : capacity + length],
            cover,
        )

    def _words_of(self, record: Any, head: int) -> Iterator[tuple[int, int]]:
        if head == 0:
            for word in record["inline"].tolist():
                if word:
                    yield word >> COV_SLOT, word & M32
            return
        words, is_list = head >> HEAD_WORDS, (head >> HEAD_FORM) & 0xFF == FORM_LIST
        if is_list:
            for word in self._line(head & M32, words):
                if word:
                    yield word >> COV_SLOT, word & M32
            return
        for i, word in enumerate(self._line(head & M32, words // 2)):
            for slot, low in ((2 * i, word & M32), (2 * i + 1, word >> 32)):
                if low:
                    yield slot, low

    # -- rules ------------------------------------------------------------------------------------

    def _check_shape(self) -> None:
        root_space = int(self._views["nodes"]["tail"][0]) >> 32
        owner = {node.space: node for node in self.nodes.values()}
        if len(owner) != len(self.nodes) or root_space in owner:
            self.problems.append("a child space with two owners")
        children: Counter[int] = Counter()
        keys: set[tuple[int, int]] = set()
        active = self._views["rank_states"]["state"] & 0xFF
        for node in self.nodes.values():
            name = f"node {node.number} [{node.start}, {node.end})"
            parent = owner.get(node.hangs_in)
            children[node.hangs_in] += 1
            if node.length <= 0 or not node.local:
                self.problems.append(f"{name}: no edge")
                continue
            if (parent is None and node.hangs_in != root_space) or node.hangs_in == NO_SPACE:
                self.problems.append(f"{name}: hangs nowhere")
            elif node.start != (0 if parent is None else parent.end):
                self.problems.append(f"{name}: does not begin where its parent ends")
            if parent is not None and not parent.internal:
                self.problems.append(f"{name}: its parent is not internal")
            if (node.hangs_in, node.local[0]) in keys:
                self.problems.append(f"{name}: two children of one key")
            keys.add((node.hangs_in, node.local[0]))
            lost = [slot for slot in node.cover if active[slot] != SLOT_ACTIVE]
            if lost:
                self.problems.append(f"{name}: covered by slots {lost}, which are not in use")
        for node in self.nodes.values():
            most = max((cutoff for _, cutoff in node.cover.values()), default=0)
            if not children[node.space] and most < node.length:
                what = "empty node" if most == 0 else f"tail behind {most} blocks that nobody covers"
                self.problems.append(f"node {node.number} [{node.start}, {node.end}): {what}")
        counts = self._views["nodes"]["count"]
        for space in [root_space, *owner]:
            if int(counts[space]) != children[space]:
                self.problems.append(
                    f"space {space}: count {int(counts[space]):#x}, {children[space]} children"
                )

    def _check_table(self) -> None:
        entries = self._views["children"].reshape(-1)
        named = Counter(int(word) & M32 for word in entries[entries != 0].tolist())
        if named != Counter(self.nodes.keys()):
            odd = (named - Counter(self.nodes)) + (Counter(self.nodes) - named)
            self.problems.append(f"child table and nodes differ: {sorted(odd)}")

    def _check_rest(self, records: Any) -> None:
        held = [n for n in range(len(records)) if int(records["shape_gate"][n])]
        if held:
            self.problems.append(f"gates held: {[(n, hex(int(records['shape_gate'][n]))) for n in held]}")
        claimed = {n + 1 for n in self._views["line_claims"].nonzero()[0].tolist()}
        twice = [line for line, n in self._lines.items() if n > 1]
        if twice:
            self.problems.append(f"extents with two owners: {twice}")
        if claimed != set(self._lines):
            lost, foreign = sorted(claimed - set(self._lines)), sorted(set(self._lines) - claimed)
            self.problems.append(f"extents that nobody owns: {lost}; in use and free: {foreign}")
        for lane, record in enumerate(self._views["lanes"]):
            phase, counter = int(record["phase"]) & 0xFF, int(record["op_counter"])
            lists = {f: int(record[f]) for f in ("n_gates", "n_undo", "n_redo", "n_todo", "space_change")}
            if phase != PHASE_IDLE or counter & 1 or any(lists.values()):
                self.problems.append(f"lane {lane}: phase {phase}, operation {counter}, lists {lists}")
