"""`verify`: whole segments are clean, and every kind of damage is named by its invariant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import shmtrie.verify as verify_module
from shmtrie.layout import INTERNAL, M31, M32, NO_SPACE, SPAN_LINES, SPAN_TAIL
from shmtrie.segment import Segment
from shmtrie.verify import verify
from shmtrie.verify_text import RULES
from shmtrie.writer import Writer
from tests.backends import segment_name
from tests.unit.damage import World

U = np.uint64


@pytest.fixture(scope="module")
def whole() -> Iterator[World]:
    world = World(segment_name("verify"))
    yield world
    world.close()


@pytest.fixture
def world(whole: World) -> Iterator[World]:
    yield whole
    whole.restore()


def invariants(findings: list[tuple[str, str]]) -> set[str]:
    return {invariant for invariant, _ in findings}


# -- clean segments ------------------------------------------------------------------------------------


def test_an_empty_segment_is_clean() -> None:
    name = segment_name("empty")
    with Segment.create(name) as segment:
        report = verify(segment)
        Segment.unlink(name)
    assert (report.ok, report.repairable, report.broken, report.unsettled) == (True, False, [], [])
    assert set(report.counts.values()) == {0}


def test_a_segment_with_everything_is_clean(world: World) -> None:
    report = verify(world.segment)
    assert (report.ok, report.broken, report.unsettled) == (True, [], [])
    counts = report.counts
    assert counts["nodes"] == counts["child_entries"] == 6
    assert counts["unique_blocks"] == 6 + 6 + 4 + 4 + 3 + 3
    assert counts["blocks"] == 15 + 10 + 12 + 5 * 4 + 40 * 3
    assert counts["alias_extents"] == 2
    world.node(7), world.freed()  # the world is what its text says
    forms = {world.get(world.node(first), "coverage") >> 32 & 0xFF for first in (1, 201, 301)}
    assert forms == {0, 1, 2}


def test_read_only_attachment(world: World) -> None:
    before = bytes(world.segment.mapping)
    with Segment.attach(world.segment.name, read_only=True) as segment:
        assert verify(segment).ok
    assert bytes(world.segment.mapping) == before


def test_an_open_writer_at_rest_is_clean(world: World) -> None:
    with Writer(world.segment) as writer:
        writer.store(70, None, [1, 2, 3], [1, 2, 3])
        report = verify(world.segment)
        assert report.ok and report.unsettled == []


# -- damage --------------------------------------------------------------------------------------------


def _swap_spaces(w: World) -> None:
    w.put(w.node(201), "tail", (w.get(w.node(201), "tail") & M32) | w.space(w.node(501)) << 32)


def _second_entry(w: World) -> None:
    bucket, place = w.entry(w.node(501))
    line = w.view("children")[bucket]
    line[int(np.flatnonzero(line == 0)[0])] = line[place]


def _same_key(w: World) -> None:
    a, b = w.node(201), w.node(501)
    (bucket, place), old = w.entry(a), w.entry(b)
    line = w.view("children")[bucket]
    line[int(np.flatnonzero(line == 0)[0])] = (line[place] & ~U(M32)) | U(b)
    w.view("children")[old] = 0
    w.line(w.edge(b))[0] = w.line(w.edge(a))[0]


def _share_extent(w: World) -> None:
    w.put(w.node(201), "edge", w.get(w.node(501), "edge"))


def _misplace_extent(w: World) -> None:
    node = w.node(1)
    w.put(node, "edge", w.get(node, "edge") + 1)


def _double_word(w: World) -> None:
    words = w.words(w.node(1))["inline"][0]
    words[0] = words[1]


def _alias_directory(w: World) -> np.ndarray:
    words: np.ndarray = w.line(w.get(w.node(7), "alias") & M32)
    return words


def _drop_alias_flag(w: World) -> None:
    words = w.words(w.node(7))["inline"][0]
    words[words & U(1 << 24) != 0] &= ~U(1 << 24)


def _cut_all(w: World) -> None:
    w.words(w.node(501))["inline"] = 0


def _cut_one(w: World) -> None:
    w.words(w.node(501))["inline"][0][0] -= U(1)


def _wrong_suffix(w: World) -> None:
    other = w.node(201)
    w.put(w.node(1), "suffix", other | w.get(other, "version") >> 32 << 32)


def _claim_line(w: World) -> None:
    w.view("line_claims")[w.free_line() - 1] = 65


def _claim_inside(w: World) -> None:
    # the second line of an extent of several
    spans = w.view("spans")["word"] & U(0xFFFF)
    span = int(np.flatnonzero((spans > 1) & (spans <= SPAN_LINES))[0])
    w.view("line_claims")[span * SPAN_LINES + 1] = 65


def _span(w: World, value: int) -> None:
    w.view("spans")["word"][-1] = value


def _state(w: World, worker: int, change: Callable[[int], int]) -> None:
    states = w.view("rank_states")["state"]
    slot = w.slot(worker)
    states[slot] = U(change(int(states[slot])))


def _lane(w: World, field: str, value: int) -> None:
    w.view("lanes")[field][1] = value


def _header(field: str, value: int) -> Callable[[World], None]:
    return lambda w: w.segment.header.__setitem__(field, value)


def _node(first: int, field: str, change: Callable[[int], int]) -> Callable[[World], None]:
    def damage(w: World) -> None:
        node = w.node(first)
        w.put(node, field, change(w.get(node, field)))

    return damage


def _inline(first: int, change: Callable[[int], int]) -> Callable[[World], None]:
    def damage(w: World) -> None:
        words = w.words(w.node(first))["inline"][0]
        words[0] = U(change(int(words[0])))

    return damage


# what is done: the invariant that has to be named
DAMAGE: dict[str, tuple[str, Callable[[World], None]]] = {
    "header": ("I1", _header("block_size", 99)),
    "ready": ("I1", _header("ready", 2)),
    "nodes_high": ("I1", _header("nodes_high", 2)),
    "nodes_high beyond": ("I1", _header("nodes_high", 2**40)),
    "slots_high": ("I1", _header("slots_high", 1)),
    "root": ("I1", lambda w: w.put(0, "tail", 5)),
    "entry gone": ("I2", lambda w: w.view("children").__setitem__(w.entry(w.node(501)), 0)),
    "entry twice": ("I2", _second_entry),
    "entry tag": ("I2", lambda w: w.view("children")[w.entry(w.node(1))[0]].__iadd__(U(1 << 40))),
    "entry of nobody": ("I2", lambda w: w.view("children")[:, 0].fill(2**40 + 77)),
    "entry of a free node": ("I2", lambda w: w.view("children")[3].__setitem__(0, U(w.freed()))),
    "wrong space": ("I2", _node(501, "start", lambda x: x | 9 << 32)),
    "wrong start": ("I2", _node(7, "start", lambda x: x + 1)),
    "wrong end": ("I2", _node(1, "tail", lambda x: x - 1)),
    "key twice": ("I3", _same_key),
    "not internal": ("I4", _node(1, "tail", lambda x: x & ~INTERNAL)),
    "space twice": ("I5", _swap_spaces),
    "space of the root": ("I5", _node(501, "tail", lambda x: x & M32)),
    "space out of range": ("I5", _node(501, "tail", lambda x: x | 2**63)),
    "space owner": ("I5", lambda w: w.put(w.space(w.node(1)), "owner", 77)),
    "child count": ("I6", lambda w: w.put(w.space(w.node(1)), "count", 3)),
    "space lock": ("I6", lambda w: w.put(0, "count", w.get(0, "count") | 2 << 32)),
    "capacity": ("I7", _node(501, "edge", lambda x: x & M32)),
    "length": ("I7", _node(501, "tail", lambda x: x + 100)),
    "extent unclaimed": ("I8", lambda w: w.view("line_claims").__setitem__(w.edge(w.node(1)) - 1, 0)),
    "extent shared": ("I8", _share_extent),
    "extent misplaced": ("I8", _misplace_extent),
    "extent out of range": ("I8", _node(501, "edge", lambda x: x | M32)),
    "coverage form": ("I9", _node(201, "coverage", lambda x: x | 7 << 32)),
    "coverage words": ("I9", _node(201, "coverage", lambda x: x + (3 << 40))),
    "word twice": ("I9", _double_word),
    "word empty": ("I9", _inline(1, lambda x: x & ~0xFFF)),
    "word start": ("I9", _inline(1, lambda x: x | 1 << 12)),
    "word long": ("I9", _inline(501, lambda x: x + 2)),
    "word flags": ("I9", _inline(501, lambda x: x & ~(1 << 31))),
    "word of no slot": ("I10", _inline(501, lambda x: x | 0xFFFF << 32)),
    "word of a free slot": ("I10", _inline(501, lambda x: x | 79 << 32)),
    "nobody covers": ("I11", _cut_all),
    "tail": ("I11", _cut_one),
    "alias flag": ("I12", _drop_alias_flag),
    "alias entry": ("I12", lambda w: _alias_directory(w).fill(0)),
    "alias size": ("I12", lambda w: _alias_directory(w).__iand__(~U(0xFFFF << 32))),
    "alias of no slot": ("I12", lambda w: _alias_directory(w).__ior__(U(0xFFFF << 48))),
    "alias head": ("I12", _node(7, "alias", lambda x: x + (3 << 32))),
    "node leak": ("I13", lambda w: w.view("node_claims").__setitem__(w.freed(), 65)),
    "extent leak": ("I13", _claim_line),
    "claim inside": ("I14", _claim_inside),
    "span used": ("I14", lambda w: w.view("spans")["used"].__setitem__(0, 99)),
    "span of nobody": ("I14", lambda w: _span(w, SPAN_TAIL)),
    "span class": ("I14", lambda w: _span(w, SPAN_LINES + 3)),
    "span without tails": ("I14", lambda w: _span(w, 2 * SPAN_LINES)),
    "span turning": ("I14", lambda w: _span(w, 2 << 16)),
    "suffix": ("I15", _wrong_suffix),
    "suffix of nobody": ("I15", _node(1, "suffix", lambda x: M31)),
    "gate": ("I16", _node(501, "shape_gate", lambda x: 2)),
    "gate owner": ("I16", _node(501, "shape_gate", lambda x: 3 << 48)),
    "free gate": ("I16", lambda w: w.put(w.freed(), "shape_gate", 1)),
    "lane lists": ("I16", lambda w: _lane(w, "n_redo", 1)),
    "lane lengths": ("I16", lambda w: _lane(w, "n_gates", 2**50)),
    "lane phase": ("I16", lambda w: _lane(w, "phase", 9)),
    "blocks": ("I17", lambda w: w.view("rank_states")["blocks"].__setitem__(w.slot(2), 999)),
    "unknown": ("I17", lambda w: w.view("rank_states")["known"].__setitem__(w.slot(2), 0)),
    "lane scan": ("I16", lambda w: _lane(w, "todo_scan", 2**40)),
    "rank twice": ("I18", lambda w: w.view("rank_records")["worker_id"].__setitem__(w.slot(2), 1)),
    "slot state": ("I18", lambda w: _state(w, 59, lambda x: x | 7)),
    "slot owner": ("I18", lambda w: _state(w, 2, lambda x: x | 40 << 8)),
    "free slot's owner": ("I18", lambda w: w.view("rank_states")["state"].__setitem__(79, 1 << 8)),
    "dying": ("I18", lambda w: w.segment.header.__setitem__("epoch", w.segment.header["epoch"] + 1)),
    "epoch": ("I18", lambda w: _state(w, 2, lambda x: x + (9_999 << 32))),
    "never made": ("I19", lambda w: w.view("node_claims").__setitem__(8, 65)),
    "generation": ("I19", _node(501, "version", lambda x: x & M32)),
    "quarantined": ("I20", _node(501, "quarantined", lambda x: 1)),
    "free node hangs": ("I19", lambda w: w.put(w.freed(), "start", 3)),
}
REPAIRABLE = {"nobody covers", "tail", "span used", "blocks", "dying"}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named(world: World, what: str) -> None:
    invariant, damage = DAMAGE[what]
    damage(world)
    report = verify(world.segment)
    assert invariant in invariants(report.broken), (report.broken, report.unsettled)
    assert not report.ok
    assert report.repairable == (what in REPAIRABLE), report.broken
    assert all(text for _, text in report.broken)


def test_every_invariant_is_tested() -> None:
    listed = re.findall(r"^(I\d+) ", verify_module.__doc__ or "", re.MULTILINE)
    assert listed == [f"I{k}" for k in range(1, len(listed) + 1)]
    assert {invariant for invariant, _ in DAMAGE.values()} == set(listed)
    assert {rule.invariant for rule in RULES.values()} | {"I1", "I17", "I18"} == set(listed)
    page = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
    assert re.findall(r"^\| (I\d+) \|", page.read_text(), re.MULTILINE) == listed


def test_rules_can_be_told() -> None:
    for rule in RULES.values():
        assert rule.describe(1, -1, 2)


def test_much_damage_is_cut_short(world: World) -> None:
    world.view("nodes")["shape_gate"][1:200] = 1
    world.segment.header["nodes_high"] = 200
    report = verify(world.segment)
    stray = [text for invariant, text in report.broken if invariant == "I16"]
    assert len(stray) == 21 and stray[-1].startswith("179 more")


def test_no_space_means_none(world: World) -> None:
    assert world.get(world.freed(), "start") >> 32 == NO_SPACE
