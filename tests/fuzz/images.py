"""What gets damaged: segments with everything in them, and with what dead writers have left, as bytes.

Writers die at named points, so a test build makes them. All images of a kind are of one segment: a process
that has it mapped puts them in and out by copying.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shmtrie.capacity import Capacity
from shmtrie.kernels import hooks
from shmtrie.kernels.hooks import HookAbandon, Site
from shmtrie.segment import Segment
from shmtrie.writer import Writer
from tests.backends import segment_name
from tests.fuzz.guards import GuardedSegment, Guards
from tests.hooks import HookControl, die

SMALL = Capacity(blocks=4_000, workers=45, lanes=5, nodes=160, aliases=400, extents=8 * 1024)
LONG = Capacity(blocks=4_000, workers=48, lanes=3, nodes=700, extents=12 * 1024)
KINDS = {"small": SMALL, "holes": SMALL, "long": LONG}
CHAIN = list(range(1, 13))
WIDE = list(range(301, 309))
PATH = list(range(20_001, 20_301))  # of the long kind: 300 blocks, a node each


def own(rank: int, hashes: list[int]) -> list[int]:
    """External hashes that only this rank uses."""
    return [h + 1_000_000 * rank for h in hashes]


class Image(NamedTuple):
    """One state of a segment."""

    name: str
    content: bytes


def _chain(writer: Writer, rank: int, hashes: list[int]) -> None:
    writer.store(rank, None, hashes, hashes)


def fill(writer: Writer, other: Writer) -> None:
    """Splits, lists, dense arrays, aliases, chains of nodes, holes, tails cut off, nodes given back."""
    _chain(writer, 1, CHAIN)
    _chain(writer, 2, [*CHAIN[:6], 101, 102, 103, 104])
    writer.store(3, None, CHAIN, own(3, CHAIN))
    other.store(4, None, CHAIN[:8], own(4, CHAIN[:8]))
    for rank in range(10, 15):
        _chain(other, rank, [201, 202, 203, 204])
    for rank in range(16, 40):
        _chain(writer, rank, WIDE)
    other.store(15, None, WIDE, own(15, WIDE))
    _chain(writer, 16, [*WIDE[:4], 351, 352])  # splits the dense node
    _chain(other, 5, list(range(5_000, 7_100)))
    for k in range(20):
        writer.store(1, 12, [600 + k], [600 + k])
    _chain(writer, 6, list(range(700, 720)))
    for cut in (715, 710, 705):
        _chain(other, 7, [*range(700, cut), 1_000 + cut])
    _chain(writer, 8, list(range(800, 840)))
    writer.remove(8, list(range(810, 840)))
    writer.remove(6, [703])
    for first in (900, 910, 920):
        _chain(writer, 9, list(range(first, first + 4)))
    writer.remove(9, [*range(910, 914)])
    writer.remove(3, own(3, CHAIN[9:]))


def _die_at(writer: Writer, site: int, countdown: int, action: Callable[[], object]) -> None:
    """Let an operation end at a point as by a crash; the writer is dead then."""
    control = HookControl()
    control.install(writer._work.context.words)
    control.arm(hooks.ABANDON, site, countdown)
    try:
        action()
    except HookAbandon:
        die(writer)
    else:
        raise AssertionError(f"no hit {countdown} of {site!r}")


def _deaths(segment: Segment) -> dict[str, Callable[[Writer, Writer], None]]:
    def two(one: Writer, other: Writer) -> None:
        _die_at(one, Site.STORE_PREPARED, 1, lambda: one.store(1, 3, [31, 32], [31, 32]))
        _die_at(other, Site.SPACE_LOCKED, 1, lambda: other.store(5, None, [5_000, 9_001], [5_000, 9_001]))

    def todo(one: Writer, other: Writer) -> None:
        record = segment.view("lanes")[one.lane : one.lane + 1]
        live = np.flatnonzero(segment.view("node_claims")[:40])[1:6]
        record["todo"][0, : len(live)] = live
        record["n_todo"] = len(live)
        record["todo_scan"] = 20
        _die_at(one, Site.GATE_DROPPED, 1, lambda: one.store(2, None, [51, 52, 53], [51, 52, 53]))

    return {
        "at rest": lambda one, other: None,
        "prepared": lambda one, other: _die_at(
            one,
            Site.STORE_PREPARED,
            1,
            lambda: one.store(1, None, [*CHAIN[:8], 41, 42], [*CHAIN[:8], 41, 42]),
        ),
        "split": lambda one, other: _die_at(
            one, Site.REDO_DONE, 2, lambda: one.store(1, None, [*CHAIN[:3], 43], [*CHAIN[:3], 43])
        ),
        "aliases": lambda one, other: _die_at(
            one, Site.STORE_PREPARED, 1, lambda: one.store(16, None, WIDE, own(16, WIDE))
        ),
        "reclaim": lambda one, other: _die_at(one, Site.NODE_ENDED, 1, lambda: one.remove(1, [605])),
        "freeing": lambda one, other: _die_at(
            one, Site.REDO_BEFORE_FREE, 2, lambda: one.remove(9, [900, 901, 902, 903])
        ),
        "extension": lambda one, other: _die_at(
            one,
            Site.EDGE_PUBLISHED,
            1,
            lambda: one.store(8, 809, list(range(850, 890)), list(range(850, 890))),
        ),
        "worker": lambda one, other: _die_at(one, Site.SWEEP_CUT, 3, lambda: one.remove_worker(1)),
        "span": lambda one, other: _die_at(
            one,
            Site.SPAN_TURNING,
            1,
            lambda: one.store(1, None, list(range(2_000, 3_000)), list(range(2_000, 3_000))),
        ),
        "to-do": todo,
        "two": two,
    }


def _holes(segment: Segment) -> dict[str, Callable[[Writer, Writer], None]]:
    """Deaths in removals that split, and in a store that moves hashes out of the middle of a rank's part."""
    return {
        "holes": lambda one, other: one.remove(2, [3, 102]),
        "hole split": lambda one, other: _die_at(one, Site.REDO_DONE, 3, lambda: one.remove(16, [WIDE[1]])),
        "hole moved": lambda one, other: _die_at(
            one, Site.STORE_PREPARED, 1, lambda: one.store(8, None, [881, 882], [803, 807])
        ),
    }


def _long(one: Writer, other: Writer) -> None:
    """A store over 300 nodes: its lists go on in extents."""
    _chain(one, 1, PATH)
    for k in range(1, len(PATH)):
        _chain(other, 2, [*PATH[:k], 30_000 + k])
    _die_at(one, Site.STORE_PREPARED, 1, lambda: _chain(one, 3, PATH))


def make(segment: Segment, kind: str) -> list[Image]:
    """All images of a kind, made in a segment of its capacity that is new, and again afterwards."""
    empty = bytes(segment.mapping)
    found = []
    deaths: dict[str, Any] = {"long": _long}
    if kind != "long":
        deaths = _deaths(segment) if kind == "small" else _holes(segment)
    for name, death in deaths.items():
        one, other, third = (Writer(segment, 0.002) for _ in range(3))
        third.store(40, None, [1, 2, 3, 45], [1, 2, 3, 45])
        if kind != "long":
            fill(one, other)
        death(one, other)
        for writer in (third, other, one):
            if not writer._closed and (name in ("at rest", "holes") or writer is third):
                writer.close()
            elif not writer._closed:
                die(writer)
        found.append(Image(name, bytes(segment.mapping)))
        segment.mapping[:] = empty
    return found


def make_all(names: Callable[[str], str]) -> dict[str, list[Image]]:
    """The images of all kinds, as kernels see them through guards; in a process without a test build, by
    another one.
    """
    if not hooks.TEST_BUILD:
        root = str(Path(__file__).resolve().parents[2])
        env = dict(os.environ, SHMTRIE_TEST_BUILD="1", PYTHONPATH=root)
        command = [sys.executable, "-m", "tests.fuzz.images"]
        done = subprocess.run(command, cwd=root, env=env, stdout=subprocess.PIPE, check=True, timeout=600)
        return {kind: [Image(*pair) for pair in pairs] for kind, pairs in pickle.loads(done.stdout).items()}
    found = {}
    for kind, capacity in KINDS.items():
        name = names(f"fuzz-{kind}")
        with GuardedSegment.create(name, capacity, exact_holes=kind == "holes") as segment:
            try:
                found[kind] = make(segment, kind)
            finally:
                Segment.unlink(name)
    return found


if __name__ == "__main__":
    GuardedSegment.guards = Guards()
    made = make_all(segment_name)
    sys.stdout.buffer.write(pickle.dumps({kind: [tuple(x) for x in some] for kind, some in made.items()}))
