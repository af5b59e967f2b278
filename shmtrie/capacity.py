"""How much a segment holds, and where its sections lie in the file for a given capacity.

Sizes are fixed at creation. The geometry is a pure function of the resolved capacity, so an attacher derives
it anew and compares it with the section table that the creator wrote.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np

from .layout import (
    BUCKET,
    ITEMSIZE,
    LANE,
    MAX_LANES,
    MAX_NODES,
    MAX_SLOTS,
    NODE,
    PAGE,
    RANK_RECORD,
    RANK_STATE,
    SECTIONS,
    SPAN,
    SPAN_LINES,
)

__all__ = ["SECTION_DTYPES", "Capacity", "Geometry", "SectionPlace", "geometry"]

_MIN_NODES: Final = 64
_MIN_SPANS: Final = 32
_CLASS_SPANS: Final = 24  # every size class in use has a span that is partly free: half of the classes
_MIN_BUCKETS: Final = 4
_MAX_LINES: Final = (1 << 32) - SPAN_LINES  # line numbers have 32 bits
_MAX_BLOCKS: Final = 1 << 40

_LIMITS: Final = {
    "blocks": (1, _MAX_BLOCKS),
    "workers": (1, MAX_SLOTS),
    "lanes": (1, MAX_LANES),
    "nodes": (1, MAX_NODES),
    "aliases": (0, _MAX_BLOCKS),
    "extents": (1, _MAX_LINES),
}


# A line is eight words: what is in it depends on who owns it.
SECTION_DTYPES: Final[dict[str, Any]] = {
    "lanes": LANE,
    "rank_records": RANK_RECORD,
    "rank_states": RANK_STATE,
    "nodes": NODE,
    "node_claims": np.dtype("<u4"),
    "children": np.dtype(("<u8", (8,))),
    "spans": SPAN,
    "line_claims": np.dtype("<u4"),
    "extents": np.dtype(("<u8", (8,))),
}


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Capacity:
    """Sizes of a segment, fixed when it is created; `Index.resize` copies into another one.

    Parameters
    ----------
    blocks : int
        Unique blocks (places of the trie) to plan for. Not a limit of its own: extents and nodes run out.
    workers : int
        Ranks at one time, 1 to 65,535.
    lanes : int
        Writer processes at one time, 1 to 48.
    nodes : int, optional
        Nodes beside the root. Default ``blocks / 4``, with exact_holes ``blocks / 2``, at least 64.
    aliases : int
        Blocks whose external hash differs from the one that the edge carries, counted per rank: 0 where all
        engines use one hash seed.
    extents : int, optional
        64-byte lines for hashes, coverage lists and aliases; rounded up to spans of 1,024 lines. The default
        follows from the other fields, with a quarter to spare.

    Raises
    ------
    TypeError
        If a field is no integer.
    ValueError
        If a field is out of range, or the defaults would be.
    """

    blocks: int = 1_000_000
    workers: int = 256
    lanes: int = 16
    nodes: int | None = None
    aliases: int = 0
    extents: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if value is None and name in ("nodes", "extents"):
                continue
            if isinstance(value, bool):
                raise TypeError(f"Capacity.{name} must be an int, got a bool")
            try:
                number = operator.index(value)
            except TypeError:
                raise TypeError(f"Capacity.{name} must be an int, got {type(value).__name__}") from None
            if not low <= number <= high:
                raise ValueError(f"Capacity.{name} must be in [{low}, {high}], got {number}")
            object.__setattr__(self, name, number)  # numpy ints become plain ones

    def resolved(self, exact_holes: bool = False) -> Capacity:
        """The capacity with every default filled in and `extents` in whole spans.

        Parameters
        ----------
        exact_holes : bool
            Whether the segment keeps what is behind a removed block; that takes more nodes.

        Returns
        -------
        Capacity
            No field is None.

        Raises
        ------
        ValueError
            If a default comes out beyond its limit; the message says which field to set.
        """
        nodes, lines = self.nodes, self.extents
        if nodes is None:
            nodes = max(_MIN_NODES, _ceil_div(self.blocks, 2 if exact_holes else 4))
        if lines is None:
            # Four blocks of two hashes a line, eight aliases a line, a quarter to spare for the rounding to
            # size classes; and coverage lists for the share of nodes that many ranks hold.
            lines = _ceil_div(self.blocks * 5, 16) + _ceil_div(self.aliases * 5, 32) + nodes // 16
            lines = max(lines + _CLASS_SPANS * SPAN_LINES, _MIN_SPANS * SPAN_LINES)
        lines = _ceil_div(lines, SPAN_LINES) * SPAN_LINES
        for name, value in (("nodes", nodes), ("extents", lines)):
            if value > _LIMITS[name][1]:
                raise ValueError(
                    f"Capacity(blocks={self.blocks}, aliases={self.aliases}) needs {value} {name}, "
                    f"the limit is {_LIMITS[name][1]}: plan for fewer blocks or set {name}"
                )
        return Capacity(self.blocks, self.workers, self.lanes, nodes, self.aliases, lines)

    def size(self, exact_holes: bool = False) -> int:
        """Bytes of the segment's file.

        Parameters
        ----------
        exact_holes : bool
            As in `resolved`.

        Returns
        -------
        int
            What ``Index.create`` will reserve in /dev/shm.

        Raises
        ------
        ValueError
            As `resolved`.
        """
        return geometry(self.resolved(exact_holes)).total_bytes

    def fields_below(self, other: Capacity) -> list[str]:
        """Names of the fields in which this resolved capacity is smaller than another resolved one."""
        return [f.name for f in fields(self) if getattr(self, f.name) < getattr(other, f.name)]


class SectionPlace(NamedTuple):
    """Where a section lies: byte offset in the file, number of items, bytes of an item."""

    offset: int
    n_items: int
    itemsize: int


class Geometry(NamedTuple):
    """Places of all sections by name, in file order, and the bytes of the whole file."""

    sections: dict[str, SectionPlace]
    total_bytes: int


def geometry(capacity: Capacity) -> Geometry:
    """Lay out the sections one after the other, each on a page of its own.

    Parameters
    ----------
    capacity : Capacity
        A resolved one.

    Returns
    -------
    Geometry
        `nodes` and `node_claims` have one item more than the capacity says: node 0 is the root. Line number n
        of the extents, counted from 1, is item n - 1 of `line_claims` and `extents`.
    """
    nodes, lines = capacity.nodes, capacity.extents
    if nodes is None or lines is None:
        raise ValueError("geometry needs a resolved capacity")
    counts = {
        "lanes": capacity.lanes,
        "rank_records": capacity.workers,
        "rank_states": capacity.workers,
        "nodes": nodes + 1,
        "node_claims": nodes + 1,
        # two entries a node: half full when every node hangs in the table
        "children": max(_MIN_BUCKETS, _ceil_div(nodes * 2, BUCKET)),
        "spans": lines // SPAN_LINES,
        "line_claims": lines,
        "extents": lines,
    }
    sections, at = {}, PAGE
    for name in SECTIONS:
        place = SectionPlace(at, counts[name], ITEMSIZE[name])
        sections[name] = place
        at += _ceil_div(place.n_items * place.itemsize, PAGE) * PAGE
    return Geometry(sections, at)
