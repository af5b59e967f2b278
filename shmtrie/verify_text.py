"""What the findings of a check mean: which invariant is broken, how bad that is, and a text for people."""

from __future__ import annotations

from typing import Final, NamedTuple

from .kernels.check_words import Fault
from .layout import M32

__all__ = ["RULES", "Finding", "Rule"]

_U64: Final = (1 << 64) - 1


class Finding(NamedTuple):
    """One thing that is not as it should be.

    Attributes
    ----------
    invariant, what : str
        Which one is broken, and how.
    repairable, at_rest : bool
        As in `Rule`.
    moving : bool
        An open operation has its hands on it.
    row : tuple of int
        Code, subject and values of a finding of the kernel, else empty.
    """

    invariant: str
    what: str
    repairable: bool
    at_rest: bool
    moving: bool
    row: tuple[int, ...]


class Rule(NamedTuple):
    """One kind of finding.

    Attributes
    ----------
    invariant : str
        ``"I1"`` and so on.
    text : str
        Template: ``s`` the subject, ``x`` and ``y`` the values, ``xl`` ... ``yh`` halves, ``hx``, ``hy`` hex.
    repairable : bool
        Writers mend it, or it only costs space.
    at_rest : bool
        It compares things that writers change one after the other, so it means nothing beside a running one.
    """

    invariant: str
    text: str
    repairable: bool = False
    at_rest: bool = False

    def describe(self, subject: int, x: int, y: int) -> str:
        """The text for one finding."""
        x, y = x & _U64, y & _U64
        return self.text.format(
            s=subject, x=x, y=y, xl=x & M32, xh=x >> 32, yl=y & M32, yh=y >> 32, hx=hex(x), hy=hex(y)
        )


RULES: Final[dict[int, Rule]] = {
    Fault.BAD_ROOT: Rule("I1", "the root is not as it was made: tail {hx}, version {hy}"),
    Fault.HIGH_NODES: Rule("I1", "node {s} is claimed, but nodes_high is {x} (of {y} slots)", at_rest=True),
    Fault.ENTRY_RANGE: Rule("I2", "bucket {s} of the child table has entry {hx}, which names no node slot"),
    Fault.ENTRY_DEAD: Rule("I2", "entry {hx} of the child table names node {s}, which is not live"),
    Fault.ENTRY_PLACE: Rule("I2", "entry {hx} of node {s} has the tag or bucket of another key"),
    Fault.ENTRY_TWICE: Rule("I2", "node {s} has a second entry in the child table"),
    Fault.NODE_UNREACHED: Rule(
        "I2", "node {s} hangs in space {x}, but no entry of the child table leads to it"
    ),
    Fault.PARENT_NONE: Rule("I2", "node {s} hangs in space {x}, which is no node's child space"),
    Fault.PARENT_DEAD: Rule("I2", "node {s} hangs below node {x}, which is not live"),
    Fault.PARENT_END: Rule("I2", "node {s} does not start where its parent, node {x}, ends"),
    Fault.KEY_TWICE: Rule("I3", "nodes {s} and {x} have the same space and first local hash"),
    Fault.NOT_INTERNAL: Rule("I4", "node {s} has a child, node {x}, but is not marked internal"),
    Fault.SPACE_RANGE: Rule("I5", "node slot {s} owns space {x}, which it cannot"),
    Fault.SPACE_TWICE: Rule("I5", "node slots {s} and {y} own the same space, {x}"),
    Fault.SPACE_OWNER: Rule("I5", "space {x} is node {s}'s, but its owner word says {y}"),
    Fault.SPACE_COUNT: Rule("I6", "node {s} counts {xl} children, the table has {y}", at_rest=True),
    Fault.SPACE_LOCKED: Rule("I6", "space {x} of node {s} is locked by lane {y}", at_rest=True),
    Fault.EDGE_WORD: Rule("I7", "node {s} has an impossible edge: line {xl}, capacity {xh}"),
    Fault.EDGE_LENGTH: Rule("I7", "node {s} has {x} blocks in an edge with room for {y}"),
    Fault.EXTENT_RANGE: Rule("I8", "node {s} uses lines outside the section: {y} from {x} on"),
    Fault.EXTENT_CLASS: Rule("I8", "node {s} uses {yh} lines from {x} on, which is no extent of class {yl}"),
    Fault.EXTENT_UNCLAIMED: Rule("I8", "node {s} uses the extent at line {x}, which nobody claimed"),
    Fault.EXTENT_SHARED: Rule("I8", "node {s} uses the extent at line {x}, which has another user"),
    Fault.COVER_HEAD: Rule("I9", "node {s} has an impossible coverage head {hx}"),
    Fault.WORD_TWICE: Rule("I9", "node {s} has two coverage words of slot {x}"),
    Fault.WORD_EMPTY: Rule("I9", "node {s} has a coverage word of slot {x} that covers nothing: {hy}"),
    Fault.WORD_START: Rule(
        "I9", "node {s} has a coverage word of slot {x} that starts behind the head: {hy}"
    ),
    Fault.WORD_LONG: Rule(
        "I9", "slot {x} covers {yl} blocks of node {s}, which has {yh} and never had a child"
    ),
    Fault.WORD_FLAGS: Rule("I9", "node {s} has a coverage word of slot {x} with impossible flags: {hy}"),
    Fault.WORD_SLOT: Rule("I10", "node {s} has a coverage word of slot {x}, which does not exist"),
    Fault.WORD_FREE_SLOT: Rule("I10", "node {s} has a coverage word of slot {x}, which has no rank"),
    Fault.NODE_EMPTY: Rule("I11", "node {s} has no children, and nobody covers it", True, True),
    Fault.TAIL_UNCOVERED: Rule(
        "I11", "node {s} has no children, and of its {y} blocks {x} are covered", True, True
    ),
    Fault.ALIAS_HEAD: Rule("I12", "node {s} has an impossible alias directory: {hx}"),
    Fault.ALIAS_SLOT_BAD: Rule("I12", "node {s} has an alias entry of a slot that does not exist: {hx}"),
    Fault.ALIAS_TWICE: Rule("I12", "node {s} has two alias entries of slot {x}"),
    Fault.ALIAS_MISSING: Rule("I12", "slot {x} has aliases for node {s} by its coverage word, but no entry"),
    Fault.ALIAS_UNFLAGGED: Rule(
        "I12", "node {s} has {x} alias entries of slots whose coverage words know nothing"
    ),
    Fault.ALIAS_SHORT: Rule("I12", "slot {x} covers {yh} blocks of node {s}, its aliases have {yl} lines"),
    Fault.LEAK_NODE: Rule(
        "I13", "node id {s} is claimed by {hx}, but neither live nor named by a record", at_rest=True
    ),
    Fault.LEAK_EXTENT: Rule(
        "I13", "the extent at line {s} ({x} lines) is claimed, but nobody uses it", at_rest=True
    ),
    Fault.CLAIM_PLACE: Rule(
        "I14", "line {s} is claimed in the middle of an extent (span {x}, class {y})", at_rest=True
    ),
    Fault.SPAN_TAILS: Rule(
        "I14", "span {s} has class {x}, but {y} spans should belong to the extent before it"
    ),
    Fault.SPAN_TURNING: Rule(
        "I14", "span {s} is being turned by lane {x}, which is not in an operation", at_rest=True
    ),
    Fault.SPAN_CLASS: Rule("I14", "span {s} has an impossible class: {x} lines", at_rest=True),
    Fault.SPAN_USED: Rule("I14", "span {s} counts {x} claims, it has {y}", True, True),
    Fault.SUFFIX_RANGE: Rule("I15", "node {s} has a suffix link to no node slot: {hx}"),
    Fault.SUFFIX_PATH: Rule(
        "I15", "node {s} has a suffix link to node {x}, which is not the rest of its edge"
    ),
    Fault.GATE_STRAY: Rule(
        "I16", "the gate of node {s} is held by a lane that is in no operation: {hx}", at_rest=True
    ),
    Fault.GATE_UNLISTED: Rule(
        "I16", "the gate of node {s} is held, but on no record's list: {hx}", at_rest=True
    ),
    Fault.GATE_HELD: Rule("I16", "the gate of node {s} is held: {hx}", at_rest=True),
    Fault.LANE_OPEN: Rule("I16", "lane {s} is in an operation (phase {x}, counter {y})", at_rest=True),
    Fault.LANE_LISTS: Rule(
        "I16", "lane {s} is in no operation, but its record lists something", at_rest=True
    ),
    Fault.LANE_WORDS: Rule(
        "I16", "lane {s} has an impossible record: phase word {hx}, lengths {hy}", at_rest=True
    ),
    Fault.NODE_GENERATION: Rule("I19", "node id {s} is claimed but was never made"),
    Fault.FREE_HANGS: Rule("I19", "node id {s} is free, but hangs in space {x}"),
    Fault.QUARANTINED: Rule("I20", "node {s} is damaged, and a writer has set it aside"),
    Fault.NODE_MOVED: Rule("I2", "node {s} changed faster than it could be read", at_rest=True),
}
