"""`verify`: check the invariants of a segment, read-only, beside writers too.

=== ==================================================================================================
I1  Header, checksum and section table fit each other and the file; the root is as it was made; every
    node id and slot in use is below its high-water mark.
I2  Every live node (claimed, and hanging in a space) is reached once: one entry of the child table
    names it, from one of the two buckets of its key and with its tag; the space is that of a live
    node that ends where it starts. Every entry names a live node.
I3  No two children have one key (space, first local hash).
I4  A node that has a child is marked internal.
I5  Node slots and spaces are a permutation: no two slots own one space; a slot that was never used
    owns the space of its own number, the root that of number 0. The owner word of a live node's space
    names the node.
I6  The count word of a live node's space is the number of entries in it, and its lock is open at
    rest.
I7  0 < length <= capacity <= 2,048 blocks, and the edge's extent holds the capacity.
I8  An extent in use begins at a multiple of its span's class, fits in it, is claimed, and has one
    user: no two overlap.
I9  A coverage head names a well-formed list or dense array. A node has one word a slot, with start <
    cutoff, start = 0 unless exact_holes, cutoff <= length unless the node is internal.
I10 The slot of a coverage word has a rank. (One that is being removed is noted.)
I11 A node without children is covered by somebody, up to its end. *
I12 A coverage word has the alias flag exactly when the node's directory has an entry of the slot, one
    entry a slot; the alias extent holds every position below the cutoff.
I13 No leak: claimed node ids are the live nodes and those that open records name; claimed extents are
    edges, coverage, alias directories, aliases, and those that open records name.
I14 Claims lie at multiples of their span's class; an extent of several spans has all of them; only a
    lane in an operation turns a span; a span counts its claims. (The count: *)
I15 A suffix link with the current generation leads from a node to its child that starts at the node's
    end.
I16 At rest every operation counter is even, every record IDLE with empty lists, no gate is held. An
    open operation is no damage but noted, and so is what it has its hands on; the gates that it holds
    are on its list.
I17 A rank's `blocks` is what its coverage words sum up to. (* when no living lane owns the rank)
I18 No two ACTIVE slots have one rank; owners are lanes; the epoch word counts the DYING slots, and no
    slot was assigned later than it says.
I19 A node slot that was ever used has a generation other than 0, and a free one hangs nowhere.
I20 No node is quarantined.
=== ==================================================================================================

* repairable: writers mend it, or it costs no more than space.

Beside running writers some of this cannot be decided in one look. A check that met changes is repeated; what
is found again, word for word, on something that no open operation has its hands on, is broken. The rest is
listed as unsettled, and so is whatever compares counts. A check that met no change decides everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .contexts import Context
from .errors import SegmentRetired, ShmtrieError
from .header import check_page
from .kernels import check
from .kernels import check_words as w
from .layout import LOCK_LANE, LOCK_REGISTRY, PHASE_IDLE
from .segment import Segment
from .verify_ranks import check_blocks, check_ranks
from .verify_text import RULES, Finding

__all__ = ["VerifyReport", "verify"]

_LOOKS: Final = 3
_ROOM: Final = w.N_FAULTS * w.KEPT
_SHOWN: Final = 20  # texts of one kind
_RECORD: Final = [
    "generation",
    "op_counter",
    "phase",
    "n_gates",
    "n_undo",
    "n_redo",
    "redo_at",
    "n_todo",
    "todo_scan",
]
_COUNTS: Final = {
    "nodes": w.N_LIVE,
    "nodes_in_records": w.N_RECORDED,
    "child_entries": w.N_ENTRIES,
    "unique_blocks": w.N_UNIQUE,
    "coverage_words": w.N_WORDS,
    "dying_words": w.N_DYING,
    "alias_extents": w.N_ALIASES,
    "extents": w.N_EXTENTS,
    "extents_in_records": w.N_RECORDED_EXTENTS,
    "extent_lines": w.N_EXTENT_LINES,
    "open_lanes": w.N_OPEN_LANES,
    "gates_held": w.N_GATES,
}


@dataclass(frozen=True)
class VerifyReport:
    """What a check found.

    Attributes
    ----------
    ok : bool
        Nothing is broken.
    repairable : bool
        Something is, but only what writers mend, or what costs no more than space.
    broken : list of (str, str)
        Invariant, and what breaks it.
    unsettled : list of (str, str)
        The same of what may be an operation under way, of a running writer or of a dead one whose lane nobody
        has taken over yet.
    counts : dict of str to int
        Nodes, child entries, blocks, extents and so on, as counted.
    """

    ok: bool
    repairable: bool
    broken: list[tuple[str, str]] = field(default_factory=list)
    unsettled: list[tuple[str, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


class _Look(NamedTuple):
    """What one pass found; `still`: nothing that counts changed meanwhile."""

    still: bool
    findings: list[Finding]
    counts: dict[str, int]


def verify(segment: Segment) -> VerifyReport:
    """Check the invariants of a segment.

    Parameters
    ----------
    segment : Segment
        Attached either way; nothing is written.

    Returns
    -------
    VerifyReport

    Raises
    ------
    StaleHandle
        If the handle is closed.

    Notes
    -----
    Takes no lock, is bounded, and survives any content. Beside writers it looks up to three times.
    """
    context = Context(segment)
    look, confirmed = _look(segment, context), set[tuple[int, ...]]()
    for _ in range(_LOOKS - 1):
        if look.still:
            break
        confirmed = {finding.row for finding in look.findings if not finding.moving}
        look = _look(segment, context)
    broken = _check_header(segment)
    unsettled: list[tuple[str, str]] = []
    repairs = 0
    for finding in look.findings:
        is_sure = not finding.moving
        if not look.still:
            is_sure = is_sure and not finding.at_rest and finding.row in confirmed
        (broken if is_sure else unsettled).append((finding.invariant, finding.what))
        repairs += is_sure and finding.repairable
    if not look.still:
        unsettled.append(("I16", "writers are at work: what compares counts could not be settled"))
    return VerifyReport(not broken, 0 < len(broken) == repairs, broken, unsettled, look.counts)


def _check_header(segment: Segment) -> list[tuple[str, str]]:
    page = segment.header.tobytes()
    try:
        check_page(page, segment.total_bytes, segment.name)
    except ShmtrieError as error:
        return [("I1", str(error))]
    return [] if segment.header["ready"] == 1 else [("I1", "the segment is not marked ready")]


# ------------------------------------------------------------------------------------------------ one look
def _look(segment: Segment, context: Context) -> _Look:
    before = _moment(segment)
    areas = _areas(segment)
    words = np.zeros(w.CHECK_WORDS, np.int64)
    for index, area in areas.items():
        words[index] = area.ctypes.data
    words[w.K_LANES] = segment.section_address("lanes")
    words[w.K_N_LANES] = segment.section_count("lanes")
    words[w.K_COVER_BYTES] = areas[w.K_COVER].nbytes
    words[w.K_DIRECTORY_BYTES] = areas[w.K_DIRECTORY].nbytes
    n = check.check_segment(context.address, words.ctypes.data)
    findings = check_ranks(segment) + check_blocks(segment, areas[w.K_BLOCKS], _is_held)
    after = _moment(segment)
    rows = areas[w.K_FINDINGS].reshape(-1, w.ROW)[:n]
    findings += _texts(rows, areas[w.K_TOTALS])
    counts = {name: int(words[index]) for name, index in _COUNTS.items()}
    counts["blocks"] = int(areas[w.K_BLOCKS].sum())
    if counts["dying_words"]:
        what = f"{counts['dying_words']} coverage words are of ranks that are being removed"
        findings.append(Finding("I10", what, False, True, True, ()))
    return _Look(before == after and not any(before[0]), findings, counts)


def _areas(segment: Segment) -> dict[int, npt.NDArray[np.generic]]:
    """The kernel's private memory, zeroed."""
    nodes, slots = segment.section_count("nodes"), segment.section_count("rank_records")
    lines = segment.section_count("extents")
    padded = (slots + 15) & ~15
    sizes: dict[int, tuple[int, type[np.generic]]] = {
        w.K_FINDINGS: (_ROOM * w.ROW, np.int64),
        w.K_TOTALS: (w.N_FAULTS, np.int64),
        w.K_NODE_MARKS: (nodes, np.uint8),
        w.K_LINE_MARKS: (lines + 1, np.uint8),
        w.K_OWNERS: (nodes, np.uint32),
        w.K_ENTRIES: (nodes, np.uint32),
        w.K_BLOCKS: (slots, np.int64),
        w.K_SEEN: (slots, np.int64),
        w.K_ALIAS_SEEN: (slots, np.int64),
        w.K_ALIAS_WORD: (slots, np.int64),
        # a list is never larger than the dense form; a directory at most doubles beyond one entry a slot
        w.K_COVER: (padded // 2, np.uint64),
        w.K_DIRECTORY: (2 * padded, np.uint64),
    }
    return {index: np.zeros(n, kind) for index, (n, kind) in sizes.items()}


def _moment(segment: Segment) -> tuple[tuple[bool, ...], bytes]:
    """(which lanes may be at work, and whether ranks may be; a digest of what moves when they are)."""
    lanes = segment.view("lanes")
    is_odd = (lanes["op_counter"] & np.uint64(1)) != 0
    is_open = is_odd | ((lanes["phase"] & np.uint64(0xFF)) != PHASE_IDLE)
    busy = [bool(is_open[lane]) and _is_held(segment, LOCK_LANE + lane) for lane in range(len(lanes))]
    states = segment.view("rank_states")
    epoch = segment.header["epoch"].tobytes()
    digest = b"".join(lanes[name].tobytes() for name in _RECORD)
    return (*busy, _is_held(segment, LOCK_REGISTRY)), digest + epoch + states["state"].tobytes()


def _is_held(segment: Segment, byte: int) -> bool:
    """Whether somebody alive holds a byte of the file; who cannot be asked counts as alive."""
    try:
        return segment.is_locked(byte)
    except (SegmentRetired, OSError):
        return True


def _texts(rows: npt.NDArray[np.generic], totals: npt.NDArray[np.generic]) -> list[Finding]:
    """Findings of the kernel as text, of each kind the first few and a count."""
    findings = []
    shown: dict[int, int] = {}
    for row in rows[np.argsort(rows[:, 4], kind="stable")].tolist():  # what is sure comes first
        code, subject, x, y, moving = row
        rule = RULES[code]
        shown[code] = shown.get(code, 0) + 1
        if shown[code] <= _SHOWN:
            what = rule.describe(subject, x, y)
        elif shown[code] == _SHOWN + 1:
            what = f"{int(totals[code]) - _SHOWN} more like this: {rule.describe(subject, x, y)}"
        else:
            continue
        key = (code, subject, x, y)
        findings.append(Finding(rule.invariant, what, rule.repairable, rule.at_rest, bool(moving), key))
    return findings
