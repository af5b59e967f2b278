"""`IndexStats`: sizes and counters of a segment as of now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .contexts import Context
from .errors import EventStatus
from .kernels import measure
from .layout import COUNTERS, ITEMSIZE, LANE_ACTIVE, LINE, PAGE, SECTIONS, SLOT_ACTIVE, SPAN_TAIL
from .segment import Segment

__all__ = ["IndexStats", "SectionBytes", "index_stats"]


class SectionBytes(NamedTuple):
    """Bytes of a section: what is in use, what is reserved with it but empty, what is free.

    `slack` is the room in extents beyond their content: size classes, room to grow of edges, free words.
    """

    used: int
    slack: int
    free: int


@dataclass(frozen=True)
class IndexStats:
    """Sizes and counters of an index.

    Attributes
    ----------
    blocks : int
        Blocks held, summed over the ranks.
    unique_blocks : int
        Blocks of all edges: places that at least one rank holds, and removed ones between held ones.
    nodes, child_entries : int
        Nodes without the root; their entries in the child table.
    coverage_words : int
        Pairs of a node and a rank that holds a part of it.
    ranks : int
        Known ranks, those without blocks included.
    lanes : int
        Seats that writers have taken.
    bytes_total : int
        Size of the segment.
    bytes_used, bytes_slack, bytes_free : int
        Parts of it: in use, reserved with that but empty, free.
    bytes_per_block : float
        Bytes used and slack, without header and lanes, by unique block; 0 when there is none.
    sections : mapping of str to SectionBytes
        The same by section.
    events, blocks_stored, blocks_removed : int
        Events dealt with since creation, and hashes in stores and removes that were applied.
    duplicate_store : int
        Stores, not empty, that changed nothing.
    splits, repairs, reclaims, truncations : int
        Edges split, ranges of the lookup repaired, nodes and edge tails given back.
    busy, replans : int
        Events refused because another lane held a node for too long; plans made again.
    rejected : mapping of EventStatus to int
        Refused events by reason.
    recoveries : int
        Operations of dead lanes that were finished or taken back.
    cut_short : int
        Removals and moved hashes after which a rank lost more than was said: no room for a split.
    quarantined : int
        Nodes that were found damaged and set aside.
    give_ups : int
        Queries of this handle that stopped early because writers kept changing their path.
    """

    blocks: int
    unique_blocks: int
    nodes: int
    child_entries: int
    coverage_words: int
    ranks: int
    lanes: int
    bytes_total: int
    bytes_used: int
    bytes_slack: int
    bytes_free: int
    bytes_per_block: float
    sections: Mapping[str, SectionBytes] = field(default_factory=dict)
    events: int = 0
    blocks_stored: int = 0
    blocks_removed: int = 0
    duplicate_store: int = 0
    splits: int = 0
    repairs: int = 0
    reclaims: int = 0
    truncations: int = 0
    busy: int = 0
    replans: int = 0
    rejected: Mapping[EventStatus, int] = field(default_factory=dict)
    recoveries: int = 0
    cut_short: int = 0
    quarantined: int = 0
    give_ups: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts and numbers; sections become objects, reasons lower-case names."""
        values = asdict(self)
        values["sections"] = {name: part._asdict() for name, part in self.sections.items()}
        values["rejected"] = {status.name.lower(): n for status, n in self.rejected.items()}
        return values


_REASONS = {
    EventStatus.PARENT_BLOCK_NOT_FOUND: "rejected_parent",
    EventStatus.BLOCK_NOT_FOUND: "rejected_block",
    EventStatus.INVALID_BLOCK_SEQUENCE: "rejected_sequence",
    EventStatus.CAPACITY_EXCEEDED: "rejected_capacity",
    EventStatus.RANK_OWNED_ELSEWHERE: "rejected_owner",
    EventStatus.SEGMENT_CORRUPT: "rejected_corrupt",
}
_APART = ("header", "lanes")  # not what blocks take


def index_stats(segment: Segment, give_ups: int = 0) -> IndexStats:
    """Measure a segment; beside writers the numbers are of slightly different moments.

    Parameters
    ----------
    segment : Segment
        Attached either way.
    give_ups : int
        What the caller's contexts have counted.

    Returns
    -------
    IndexStats

    Raises
    ------
    StaleHandle
        If the handle is closed.
    """
    out = np.zeros(measure.MEASURE_WORDS, np.int64)
    context = Context(segment)
    measure.measure(context.address, out.ctypes.data)
    unique = int(out[measure.M_UNIQUE])
    filled = 16 * unique + int(out[measure.M_COVERAGE_BYTES]) + int(out[measure.M_ALIAS_BYTES])
    states = segment.view("rank_states")
    active = (states["state"] & np.uint64(0xFF)) == SLOT_ACTIVE
    entries = int(np.count_nonzero(segment.view("children")))
    lanes = int(np.count_nonzero(segment.view("lanes")["state"] == LANE_ACTIVE))
    sections = _sections(segment, filled, entries, int(np.count_nonzero(active)), lanes)
    used, slack, free = (sum(part) for part in zip(*sections.values(), strict=True))
    taken = sum(part.used + part.slack for name, part in sections.items() if name not in _APART)
    totals = segment.view("lanes")["counters"].sum(axis=0)
    counters = {name: int(n) for name, n in zip(COUNTERS, totals, strict=True)}
    del counters["recovery_tries"]  # what `verify` needs to know
    rejected = {status: counters.pop(name) for status, name in _REASONS.items()}
    return IndexStats(
        blocks=int(states["blocks"][active].sum()),
        unique_blocks=unique,
        nodes=int(out[measure.M_NODES]),
        child_entries=entries,
        coverage_words=int(out[measure.M_WORDS]),
        ranks=int(np.count_nonzero(active & (states["known"] != 0))),
        lanes=lanes,
        bytes_total=segment.total_bytes,
        bytes_used=used,
        bytes_slack=slack,
        bytes_free=free,
        bytes_per_block=taken / unique if unique else 0.0,
        sections=sections,
        duplicate_store=counters.pop("duplicate_stores"),
        rejected={status: n for status, n in rejected.items() if n},
        give_ups=give_ups,
        **counters,
    )


def _sections(segment: Segment, filled: int, entries: int, ranks: int, lanes: int) -> dict[str, SectionBytes]:
    """Bytes of every section; `filled` is the content of the extents."""
    spans = segment.view("spans")["word"] & np.uint64(0xFFFF)
    is_head = (spans != 0) & (spans != SPAN_TAIL)
    claims = segment.view("line_claims").reshape(len(spans), -1)
    in_span = np.count_nonzero(claims, axis=1)
    extents = int(in_span[is_head] @ spans[is_head].astype(np.int64))
    nodes = int(np.count_nonzero(segment.view("node_claims")))
    items = {
        "lanes": lanes,
        "rank_records": ranks,
        "rank_states": ranks,
        "nodes": nodes,
        "node_claims": nodes,
        "spans": int(np.count_nonzero(spans)),
        "line_claims": extents,
        "extents": extents,
    }
    found = {"header": SectionBytes(PAGE, 0, 0)}
    for name in SECTIONS:
        size = ITEMSIZE[name]
        total = segment.section_count(name) * size
        if name == "children":
            used, slack = entries * 8, 0
        else:
            used, slack = items[name] * size, 0
        if name == "extents":
            content = min(filled, extents * LINE)
            used, slack = content, extents * LINE - content
        found[name] = SectionBytes(used, slack, -(-total // PAGE) * PAGE - used - slack)
    return found
