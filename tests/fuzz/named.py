"""Damage by name: one for each number that kernels once took from a segment without a look at its bounds.

Each is done to one image, and then lived with under several plans (see ``tests.fuzz.run``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from shmtrie.layout import (
    FORM_DENSE,
    HEADER,
    L_CHUNKS,
    L_GATES,
    L_NCHUNKS,
    L_REDO,
    L_TODO,
    L_UNDO,
    LANE,
    LOG_BUMP,
    LOG_CAS32,
    LOG_CAS64,
    LOG_CHILD,
    LOG_FREE,
    LOG_KIND,
    LOG_NODE,
    LOG_UNLINK,
    M31,
    M32,
    NODE,
    RANK_STATE,
    SPAN_LINES,
    offset,
)
from tests.fuzz.damage import Damage, Target

U64 = 2**64 - 1


class Named(NamedTuple):
    """Which image, and what is overwritten in it."""

    image: str
    damage: Callable[[Target], list[Damage]]


def _node(target: Target, node: int, field: str, value: int, k: int = 0) -> Damage:
    at = target.place("nodes", node, offset(NODE, field) + 8 * k)
    return Damage(at, value & U64, f"node {node} {field}: {value & U64:#x}")


def _nodes(field: str, change: Callable[[int, Target], int], image: str = "at rest") -> Named:
    """A word of every live node but the root, so that whatever is done meets it."""
    return Named(
        image,
        lambda t: [_node(t, n, field, change(int(t.nodes[field][n]), t)) for n in t.live if n],
    )


def _lane(image: str, field: str, value: int, lane: int = 0) -> Named:
    at = offset(LANE, field)
    return Named(image, lambda t: [Damage(t.place("lanes", lane, at), value & U64, f"lane {lane} {field}")])


def _lists(image: str, first: int, width: int, value: int, n: int = 64) -> Named:
    """The first word of many entries of a list of lane 0."""
    return Named(
        image,
        lambda t: [Damage(t.place("lanes", 0, first + k * width), value & U64, "list") for k in range(n)],
    )


def _entries(image: str, first: int, kind: int, at: int, **words: int) -> Named:
    """Entries of a log of lane 0 that are all of one kind and name one place; `n_undo` or `n_redo` says 8."""
    name, phase = ("n_undo", 1) if first == L_UNDO else ("n_redo", 2)

    def damage(t: Target) -> list[Damage]:
        found = [Damage(t.place("lanes", 0, offset(LANE, name)), 8, name)]
        op = int(t.lanes["phase"][0]) >> 8
        found.append(Damage(t.place("lanes", 0, offset(LANE, "phase")), op << 8 | phase, "phase"))
        found.append(Damage(t.place("lanes", 0, offset(LANE, "redo_at")), 0, "redo_at"))
        values = (kind << LOG_KIND | at, words.get("old", 0), words.get("new", 0))
        for k in range(8):
            for j, value in enumerate(values):
                found.append(Damage(t.place("lanes", 0, first + k * 24 + 8 * j), value & U64, f"entry {k}"))
        return found

    return Named(image, damage)


def _children(t: Target, node: int) -> Iterator[int]:
    space = int(t.nodes["tail"][node]) >> 32
    return (n for n in t.live if int(t.nodes["start"][n]) >> 32 == space)


def _circle(t: Target) -> list[Damage]:
    """Suffix links from each node to itself, words beyond every end."""
    found = []
    for node in t.live:
        if node and not int(t.nodes["coverage"][node]):
            found.append(_node(t, node, "suffix", int(t.nodes["version"][node]) & ~M32 | node))
            for k in range(3):
                word = int(t.nodes["inline"][node][k])
                found += [_node(t, node, "inline", word | 0xFFF, k)] if word else []
    return found


def _parents(t: Target) -> list[Damage]:
    """Every space is owned by a node below it."""
    found = []
    for node in t.live:
        child = next(_children(t, node), None)
        if node and child is not None:
            found.append(_node(t, int(t.nodes["tail"][node]) >> 32, "owner", child))
            tail = int(t.nodes["tail"][child])
            found.append(_node(t, child, "tail", tail & M32 | int(t.nodes["start"][child]) & ~M32))
    return found


def _loop(t: Target) -> list[Damage]:
    """Nodes without a block, each of which hangs in its own space."""
    found = []
    for node in t.live:
        if node and int(t.nodes["start"][node]) >> 32 == 0:
            start = int(t.nodes["start"][node]) & M32
            space = int(t.nodes["tail"][node]) >> 32
            found.append(_node(t, node, "tail", start | 1 << 31 | space << 32))
    return found


def _free_spaces(t: Target) -> list[Damage]:
    return [_node(t, n, "tail", 1 << 62) for n in range(1, t.n_nodes) if n not in t.live]


def _spans(t: Target) -> list[Damage]:
    """The last spans say that they belong to extents which would reach beyond the section."""
    n = t.n_lines // SPAN_LINES
    words = ((0, 60_416), (8, 0))
    return [Damage(t.place("spans", k, j), v, f"span {k}") for k in (n - 1, n - 2) for j, v in words]


def _slots(field: str, value: int) -> Named:
    at = offset(RANK_STATE, field)
    return Named(
        "at rest",
        lambda t: [
            Damage(t.place("rank_states", int(s), at), int(t.states[field][s]) & 0xFF | value, f"slot {s}")
            for s in t.slots
        ],
    )


def _list_slots(t: Target) -> list[Damage]:
    """Coverage words of slots that do not exist, in lists that will have to grow."""
    found = []
    for line, lines in t.heads:
        for k in range(8 * lines):
            at = t.place("extents", line - 1) + 8 * k
            word = int(t.words[at // 8])
            if word >> 32:
                found.append(Damage(at, word | 0x4000 << 48, f"coverage extent {line}"))
    return found


def _directories(change: Callable[[int], int]) -> Named:
    """The words of all alias directories."""

    def damage(t: Target) -> list[Damage]:
        places = [t.place("extents", d - 1) + 8 * k for d in t.directories for k in range(8)]
        return [Damage(at, change(int(t.words[at // 8])), "alias directory") for at in places]

    return Named("at rest", damage)


def _chunks(value: int) -> Named:
    """The numbers of chunks of lane 0."""
    return Named(
        "long",
        lambda t: [Damage(t.place("lanes", 0, L_NCHUNKS + 8 * k), value, "n_chunks") for k in range(3)],
    )


def _padding(t: Target) -> list[Damage]:
    """Words behind the last slot in all dense arrays."""
    found = []
    for head in {int(h) for h in t.nodes["coverage"][t.live] if int(h) >> 32 & 0xFF == FORM_DENSE}:
        at = t.place("extents", (head & M32) - 1) + 4 * (head >> 40) - 8
        found.append(Damage(at, 0x8000_0008_8000_0008, "the end of an array"))
    return found


def _header(field: str, value: int) -> Named:
    return Named("worker", lambda t: [Damage(offset(HEADER, field), value & U64, field)])


_WILD = 1 << 38 | 8  # an offset between the header and the next section, as kernels see them
NAMED = {
    "free node's space": Named("at rest", _free_spaces),
    "root's tail": Named("at rest", lambda t: [_node(t, 0, "tail", 5 | 7 << 32)]),
    "root's space": Named("at rest", lambda t: [_node(t, 0, "tail", 1 << 31 | 1 << 50)]),
    "alias directory, line": _nodes("alias", lambda w, t: w | M32 if w else 0),
    "alias directory, no line": _nodes("alias", lambda w, t: w & ~M32),
    "alias directory, words": _nodes("alias", lambda w, t: w | 0xFFFF << 40 if w else 0),
    "aliases, lines": _directories(lambda w: w | M32),
    "aliases, few lines": _directories(lambda w: w & ~(0xFFFF << 32)),
    "alias of no slot": _directories(lambda w: w & ~(0xFFFF << 48)),
    "coverage, line": _nodes("coverage", lambda w, t: w | M32 if w else 0),
    "coverage, words": _nodes("coverage", lambda w, t: w | 0x4000 << 40 if w else 0),
    "coverage, few words": _nodes("coverage", lambda w, t: w & ~(0xFFFFFF << 40) | 9 << 40 if w else 0),
    "coverage, form": _nodes("coverage", lambda w, t: w | 6 << 32 if w else 0),
    "coverage, slots": Named("at rest", _list_slots),
    "coverage, behind the last slot": Named("at rest", _padding),
    "edge, line": _nodes("edge", lambda w, t: w | M32),
    "edge, last line": _nodes("edge", lambda w, t: w & ~M32 | t.n_lines),
    "edge, capacity": _nodes("edge", lambda w, t: w | M31 << 32),
    "edge, small capacity": _nodes("edge", lambda w, t: w & M32 | 1 << 32),
    "tail, space": _nodes("tail", lambda w, t: w | 1 << 52),
    "tail, end": _nodes("tail", lambda w, t: w & ~M31 | 0x7FFF_0000),
    "tail, no blocks": Named("at rest", _loop),
    "start, space": _nodes("start", lambda w, t: w | 1 << 50),
    "start, depth": _nodes("start", lambda w, t: w & ~M32 | 0x7FFF_FFFF),
    "suffix": _nodes("suffix", lambda w, t: w | M32),
    "suffix, in a circle": Named("at rest", _circle),
    "owner": _nodes("owner", lambda w, t: U64),
    "owners, in a circle": Named("at rest", _parents),
    "count, lock of nobody": _nodes("count", lambda w, t: w | 200 << 32),
    "gates, owner of nobody": _nodes("shape_gate", lambda w, t: 200 << 48),
    "generations": _nodes("version", lambda w, t: w ^ 1 << 40),
    "nodes_high": _header("nodes_high", 1 << 50),
    "nodes_high, negative": _header("nodes_high", -1),
    "slots_high": _header("slots_high", 1 << 50),
    "slots_high, negative": _header("slots_high", -1),
    "to-do, length": _lane("to-do", "n_todo", 1 << 50),
    "to-do, negative": _lane("to-do", "n_todo", -5),
    "to-do, scan": _lane("to-do", "todo_scan", 1 << 60),
    "to-do, nodes": _lists("to-do", L_TODO, 8, 1 << 33),
    "gate list, length": _lane("prepared", "n_gates", 1 << 50),
    "gate list, negative": _lane("prepared", "n_gates", -1),
    "gate list, beyond": _lane("prepared", "n_gates", 4_200),
    "gate list, nodes": _lists("prepared", L_GATES, 8, _WILD),
    "gate list, negative nodes": _lists("split", L_GATES, 8, -1),
    "undo, length": _lane("prepared", "n_undo", 1 << 50),
    "undo, beyond": _lane("prepared", "n_undo", 4_100),
    "undo, negative": _lane("prepared", "n_undo", -1),
    "redo, length": _lane("split", "n_redo", 1 << 50),
    "redo, negative": _lane("split", "n_redo", -1),
    "redo, at": _lane("split", "redo_at", -(1 << 40)),
    "phase": _lane("split", "phase", U64),
    "operation counter": _lane("prepared", "op_counter", 6),
    "space note": _lane("reclaim", "space", 1 << 40),
    "space note, entry": _lane("two", "space_entry", _WILD, 1),
    "space note, entry at an odd place": _lane("two", "space_entry", 4_099, 1),
    "space note, count": _lane("two", "space_count", U64, 1),
    "chunks": Named(
        "long",
        lambda t: [
            Damage(t.place("lanes", 0, L_CHUNKS + (160 + 1_536 * k) * 4 & ~7), U64, "chunk") for k in range(2)
        ],
    ),
    "chunks, number": _chunks(1 << 40),
    "chunks, negative": _chunks(U64),
    "spans of an extent": Named("at rest", _spans),
    "owner of a rank": _slots("state", 200 << 8),
    "state of a rank": _slots("state", 99),
}
for _first, _text in ((L_UNDO, "undo"), (L_REDO, "redo")):
    for _kind in (LOG_CAS64, LOG_CAS32, LOG_BUMP, LOG_NODE, LOG_CHILD, LOG_FREE, LOG_UNLINK, 77):
        for _at, _where in ((_WILD, "nowhere"), (1 << 55, "far"), (4_097, "odd"), (0, "header")):
            NAMED[f"{_text} entry {_kind}, {_where}"] = _entries("prepared", _first, _kind, _at)


def _named_children(first: int, kind: int, **words: int) -> Named:
    """Entries that name a word of the child table, of a space or node that does not exist."""

    def damage(t: Target) -> list[Damage]:
        at = t.offsets["children"] + int(t.entries[0]) * 8
        return _entries("prepared", first, kind, at, **words).damage(t)

    return Named("prepared", damage)


NAMED["undo child, space"] = _named_children(L_UNDO, LOG_CHILD, old=1 << 40, new=1)
NAMED["undo child, node"] = _named_children(L_UNDO, LOG_CHILD, old=1, new=M32)
NAMED["redo unlink, space"] = _named_children(L_REDO, LOG_UNLINK, old=1, new=1 << 40)
NAMED["redo unlink, node"] = _named_children(L_REDO, LOG_UNLINK, old=M32, new=1)
