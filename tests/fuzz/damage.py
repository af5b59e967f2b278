"""Damage: a few words of an image overwritten, by a seed. Metadata is hit more often than hashes.

A damage is (offset in the file, 64-bit value); its text says what was hit. Offsets are whole words.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import numpy as np

from shmtrie.layout import (
    COUNTERS,
    HEADER,
    L_CHUNKS,
    L_COUNTERS,
    L_GATES,
    L_OP,
    L_REDO,
    L_TODO,
    L_UNDO,
    LINE,
    M32,
    MAX_EDGE,
    NODE,
    NODE_BYTES,
    RANK_STATE,
    SPAN_LINES,
    offset,
)
from shmtrie.segment import Segment

U64 = 2**64 - 1
_NODE_FIELDS = [*NODE.names[:5], "inline", *NODE.names[6:]]  # type: ignore[index]
# section or kind of word, and how often it is hit
_WEIGHTS = {
    "node": 40,
    "child": 8,
    "coverage": 10,
    "alias": 6,
    "edge": 2,
    "lane": 18,
    "list": 12,
    "span": 5,
    "line claim": 4,
    "node claim": 4,
    "rank state": 7,
    "rank record": 2,
    "header": 4,
    "anywhere": 4,
}


class Damage(NamedTuple):
    """One word to overwrite."""

    at: int
    value: int
    what: str


class Target:
    """Where the words of an image are.

    Parameters
    ----------
    segment : Segment
        With the image in it, whole.
    """

    def __init__(self, segment: Segment) -> None:
        self.sections = segment._sections
        self.total = segment.total_bytes
        #: Where kernels see the sections, from the start of the segment: what lists of changes name.
        self.offsets = {name: segment.section_address(name) - segment.base for name in self.sections}
        self.n_nodes, self.n_lines = segment.section_count("nodes"), segment.section_count("extents")
        self.nodes = segment.view("nodes").copy()
        claims = segment.view("node_claims")
        self.live = [int(k) for k in np.flatnonzero(claims)]
        self.free = [int(k) for k in np.flatnonzero((claims == 0) & (self.nodes["version"] != 0))] or [1]
        self.entries = np.flatnonzero(segment.view("children").reshape(-1))
        self.claims = np.flatnonzero(segment.view("line_claims"))
        self.spans = np.flatnonzero(segment.view("spans")["word"])
        self.states = segment.view("rank_states").copy()
        self.slots = np.flatnonzero(self.states["state"])
        self.lanes = segment.view("lanes").copy()
        self.words = np.frombuffer(bytes(segment.mapping), np.uint64)
        heads = self.nodes["coverage"][self.live]
        self.heads = [
            (int(h) & M32, (int(h) >> 40) // (16 if int(h) >> 32 & 0xFF == 2 else 8)) for h in heads if h
        ]
        self.directories = [int(h) & M32 for h in self.nodes["alias"][self.live] if h]
        self.edges = [int(h) & M32 for h in self.nodes["edge"][self.live] if int(h) & M32]

    def place(self, section: str, item: int, inside: int = 0) -> int:
        """File offset of a word of an item."""
        place = self.sections[section]
        return place.offset + item * place.itemsize + inside & ~7


def _line_word(target: Target, random: Random, line: int, lines: int) -> int:
    return target.place("extents", line - 1) + 8 * random.randrange(8 * max(1, lines))


def _choose(target: Target, random: Random) -> tuple[int, str]:
    """A word, and what it is."""
    kind = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    if kind == "node":
        node = random.choice(target.live if random.random() < 0.85 else target.free)
        field = random.choice(_NODE_FIELDS)
        inside = offset(NODE, field) + (8 * random.randrange(3) if field == "inline" else 0)
        return target.place("nodes", node, inside), f"node {node} {field}"
    if kind == "child":
        k = (
            int(random.choice(target.entries))
            if random.random() < 0.8
            else random.randrange(len(target.entries) * 4)
        )
        return target.place("children", k // 8, k % 8 * 8), f"child entry {k}"
    if kind == "coverage" and target.heads:
        line, lines = random.choice(target.heads)
        return _line_word(target, random, line, lines), f"coverage extent {line}"
    if kind == "alias" and target.directories:
        line = random.choice(target.directories)
        return _line_word(target, random, line, 1), f"alias directory {line}"
    if kind == "edge":
        line = random.choice(target.edges)
        return _line_word(target, random, line, 1), f"edge {line}"
    lane = random.randrange(len(target.lanes))
    if kind == "lane":
        end = L_COUNTERS + 8 * len(COUNTERS) + LINE
        inside = random.choice((random.randrange(0, end, 8), random.randrange(L_OP, L_COUNTERS, 8)))
        return target.place("lanes", lane, inside), f"lane {lane} byte {inside}"
    if kind == "list":
        lane = random.choice(
            [k for k in range(len(target.lanes)) if target.lanes["phase"][k] & 0xFF] or [lane]
        )
        name = random.choice(("todo", "gates", "undo", "redo", "undo", "redo", "chunks"))
        n = {"chunks": 4}.get(name) or min(int(target.lanes["n_" + name][lane]), 300) + 1
        width = {"undo": 24, "redo": 24, "chunks": 4}.get(name, 8)
        first = {"todo": L_TODO, "gates": L_GATES, "undo": L_UNDO, "redo": L_REDO, "chunks": L_CHUNKS}[name]
        if name == "chunks":  # the tables of the three lists begin at different places
            first += random.choice((0, 160, 160 + 1_536)) * 4
        inside = first + random.randrange(n * width) & ~7
        return target.place("lanes", lane, inside), f"lane {lane} {name} + {inside - first}"
    if kind == "span":
        span = (
            int(random.choice(target.spans))
            if random.random() < 0.7
            else random.randrange(target.n_lines // SPAN_LINES)
        )
        inside = random.choice((0, 0, 8))
        return target.place("spans", span, inside), f"span {span} + {inside}"
    if kind == "line claim":
        k = int(random.choice(target.claims)) if random.random() < 0.7 else random.randrange(target.n_lines)
        return target.place("line_claims", k), f"claim of line {k + 1}"
    if kind == "node claim":
        k = random.choice(target.live) if random.random() < 0.7 else random.randrange(target.n_nodes)
        return target.place("node_claims", k), f"claim of node {k}"
    if kind in ("rank state", "rank record"):
        slot = int(random.choice(target.slots))
        if kind == "rank record":
            return target.place("rank_records", slot, random.choice((0, 8))), f"record of slot {slot}"
        inside = offset(RANK_STATE, random.choice(RANK_STATE.names))  # type: ignore[arg-type]
        return target.place("rank_states", slot, inside), f"state of slot {slot} + {inside}"
    if kind == "header":
        field = random.choice(("epoch", "slots_high", "nodes_high", "nodes_high", "retired", "ready"))
        return offset(HEADER, field), f"header {field}"
    at = random.randrange(64, target.total // 8) * 8
    return at, f"word at {at}"


def _value(target: Target, random: Random, at: int, what: str) -> tuple[int, str]:
    """Another value for a word, and how it was made."""
    old = int(target.words[at // 8])
    node, line = random.choice(target.live), random.choice(target.edges)
    numbers = [
        node, line, random.choice(target.free), target.n_nodes - 1, target.n_nodes, target.n_lines,
        target.n_lines + 1, MAX_EDGE, MAX_EDGE + 1, SPAN_LINES, 0, 1, M32, 0x7FFFFFFF, 0x80000000, 0xFFFF,
        random.randrange(1 << 32), random.randrange(target.n_nodes * 2), random.randrange(target.n_lines * 2),
    ]  # fmt: skip
    if what.startswith("lane") and random.random() < 0.2:
        section = random.choice(list(target.offsets))
        place = target.sections[section]
        part = target.offsets[section] + random.randrange(place.n_items * place.itemsize // 8 + 2) * 8
        part |= random.choice((old >> 56, random.randrange(8))) << 56
        return part, f"an entry for {section}"
    way = random.randrange(10)
    if way <= 2:
        bit = random.randrange(64)
        return old ^ (1 << bit), f"bit {bit}"
    if way == 3:
        return random.getrandbits(64), "random"
    if way == 4:
        value = random.choice((0, U64, 1, 1 << 63, (1 << 63) - 1))
        return value, f"{value:#x}"
    if way == 5:
        step = random.choice((1, -1, 1 << 32, -(1 << 32), 1 << 40, -(1 << 40), 1 << 12, 8, -8, 64))
        return (old + step) & U64, f"{step:+#x}"
    if way == 6:
        part = random.choice(numbers)
        return (old & ~M32) | (part & M32), f"low half {part}"
    if way == 7:
        part = random.choice(numbers)
        return (old & M32) | ((part & M32) << 32), f"high half {part}"
    if way == 8:
        other = target.place("nodes", node) + (at - target.sections["nodes"].offset) % NODE_BYTES
        if at < target.sections["nodes"].offset:
            other = random.randrange(target.total // 8) * 8
        return int(target.words[other // 8]), f"the word at {other}"
    part = random.choice(numbers)
    return part, f"{part}"


def damages(target: Target, random: Random) -> list[Damage]:
    """One to four words to overwrite, most often one."""
    found = []
    for _ in range(random.choice((1, 1, 1, 1, 2, 2, 3, 4))):
        at, what = _choose(target, random)
        value, how = _value(target, random, at, what)
        found.append(Damage(at, value, f"{what}: {how}"))
    return found


def apply(segment: Any, found: list[Damage]) -> None:
    """Overwrite the words."""
    words = np.frombuffer(segment.mapping, np.uint64)
    for damage in found:
        words[damage.at // 8] = np.uint64(damage.value)
