"""`verify` beside writers, behind dead ones, and on garbage."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy as np
import pytest

from shmtrie.contexts import Context
from shmtrie.dump import dump_events
from shmtrie.errors import ShmtrieError
from shmtrie.lanes import LaneSeat
from shmtrie.layout import LOG_CAS32, LOG_KIND, PHASE_UNDO
from shmtrie.segment import Segment
from shmtrie.stats import index_stats
from shmtrie.verify import verify
from shmtrie.writer import Writer
from tests.backends import segment_name
from tests.system.children import Child
from tests.unit.damage import World

U = np.uint64


@pytest.fixture
def world() -> Iterator[World]:
    world = World(segment_name("verify-live"))
    yield world
    world.close()


def churn(name: str, base: int, seconds: float) -> int:
    """Store, cut, extend and clear chains that share their head with everybody; the number of events."""
    rng = random.Random(base)
    n, deadline = 0, time.monotonic() + seconds
    with Segment.attach(name, read_only=False) as segment, Writer(segment, patience=1.0) as writer:
        while time.monotonic() < deadline:
            worker, kind = base + rng.randrange(6), rng.randrange(8)
            length, fork = rng.randrange(1, 24), rng.randrange(24)
            local = [k if k < fork else 1_000 * rng.randrange(1, 4) + k for k in range(1, length + 1)]
            hashes = [h + (worker << 20 if kind == 7 else 0) for h in local]
            try:
                if kind == 0:
                    writer.clear(worker)
                elif kind < 4:
                    writer.remove(worker, hashes[fork:] or hashes)
                else:
                    writer.store(worker, None, local, hashes)
            except ShmtrieError:
                pass
            n += 1
    return n


# -- beside writers ------------------------------------------------------------------------------------


def test_running_writers_are_no_damage(world: World) -> None:
    name = world.segment.name
    bodies = [lambda _, base=base: churn(name, base, 2.0) for base in (100, 200)]
    assert verify(world.segment).ok  # and the kernel is loaded
    with Segment.attach(name) as segment, Child(bodies[0]) as a, Child(bodies[1]) as b:
        looks = 0
        while not (a.connection.poll(0) and b.connection.poll(0)):
            report = verify(segment)
            assert report.ok, report.broken
            looks += 1
        assert a.hear() > 0 and b.hear() > 0
        assert looks > 3
        report = verify(segment)
        assert (report.broken, report.unsettled) == ([], []) or report.repairable, report.broken


def test_damage_is_found_beside_a_lane_at_work(world: World) -> None:
    seat = LaneSeat.take(world.segment, 1)
    world.view("lanes")["op_counter"][1] = 1
    world.put(world.node(7), "start", world.get(world.node(7), "start") + 1)
    world.view("rank_states")["blocks"][0] += 1
    report = verify(world.segment)
    seat.leave()
    assert {invariant for invariant, _ in report.broken} == {"I2", "I9", "I15"}
    assert {"I16", "I17"} <= {invariant for invariant, _ in report.unsettled}


# -- behind dead ones ----------------------------------------------------------------------------------


def open_record(world: World, gates: list[int]) -> None:
    """Lane 1 died in an operation that held the gates of these nodes."""
    lane = world.view("lanes")[1:2]
    lane["op_counter"], lane["phase"] = 7, PHASE_UNDO | 3 << 8
    lane["n_gates"] = len(gates)
    lane["gates"][0, : len(gates)] = gates
    for node in gates:
        world.put(node, "shape_gate", 2 << 48)


def test_what_a_dead_lane_had_in_hand_is_unsettled(world: World) -> None:
    node = world.node(7)
    open_record(world, [node])
    claimed, line = world.freed(), world.free_line()
    world.view("node_claims")[claimed] = world.view("line_claims")[line - 1] = 3 << 6 | 2
    base = world.segment.base
    places = (
        world.segment.section_address("node_claims") - base + claimed * 4,
        world.segment.section_address("line_claims") - base + (line - 1) * 4,
    )
    lane = world.view("lanes")[1:2]
    for k, place in enumerate(places):
        lane["undo"][0, k] = (LOG_CAS32 << LOG_KIND | place, 0, 3 << 6 | 2)
    lane["n_undo"] = 2
    world.view("spans")["used"][(line - 1) // 1024] += U(1)
    report = verify(world.segment)
    assert report.ok, report.broken
    assert {invariant for invariant, _ in report.unsettled} == {"I16"}
    assert (report.counts["nodes_in_records"], report.counts["extents_in_records"]) == (1, 1)
    # a writer that takes the lane over leaves nothing
    with Writer(world.segment), Writer(world.segment) as second:
        assert second.lane == 1
        report = verify(world.segment)
    assert (report.broken, report.unsettled) == ([], [])


def test_a_gate_that_no_record_lists_is_damage(world: World) -> None:
    open_record(world, [world.node(7)])
    world.put(world.node(1), "shape_gate", 2)
    report = verify(world.segment)
    assert [invariant for invariant, _ in report.broken] == ["I16"]


def test_empty_nodes_on_a_list_are_unsettled(world: World) -> None:
    node = world.node(501)
    world.words(node)["inline"] = 0
    world.view("rank_states")["blocks"][world.slot(1)] -= 3
    assert not verify(world.segment).ok
    lane = world.view("lanes")[2:3]
    lane["todo"][0, 0], lane["n_todo"] = node, 1
    report = verify(world.segment)
    assert report.ok and [invariant for invariant, _ in report.unsettled] == ["I11"]


def test_block_counts_are_owed_by_who_lives(world: World) -> None:
    with Writer(world.segment) as writer:
        writer.store(1, None, [1], [1])  # takes the rank over
        world.view("rank_states")["blocks"][world.slot(1)] += 1
        report = verify(world.segment)
        world.view("rank_states")["blocks"][world.slot(1)] -= 1
    assert [invariant for invariant, _ in report.broken] == ["I17"] and not report.repairable


def test_killed_writers_leave_what_a_record_explains(world: World) -> None:
    name = world.segment.name

    def body(connection: Connection, base: int) -> None:
        connection.send("go")
        churn(name, base, 30.0)

    for k in range(6):
        with Child(lambda connection, base=100 * (k + 1): body(connection, base)) as child:
            child.hear()
            time.sleep(0.15 + 0.02 * k)  # where it is hit does not matter
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
        report = verify(world.segment)
        assert report.ok or report.repairable, report.broken
        with Writer(world.segment):
            report = verify(world.segment)
        assert report.ok or report.repairable, report.broken
        assert not report.unsettled


# -- on garbage ----------------------------------------------------------------------------------------


def test_no_content_is_too_much(world: World) -> None:
    context = Context(world.segment)
    rng = np.random.default_rng(7)
    words = np.frombuffer(world.segment.mapping, np.uint64)
    used = np.flatnonzero(words)  # a word that is 0 is damaged below
    places = np.concatenate((rng.choice(used, 300), rng.integers(512, len(words), 100)))
    for place in places:
        old = words[place]
        words[place] = rng.choice(
            [
                old ^ (U(1) << rng.integers(0, 64, dtype=U)),
                rng.integers(0, 2**64, dtype=U),
                U(2**64 - 1),
                U(0),
            ]
        )
        verify(world.segment)
        index_stats(world.segment)
        dump_events(world.segment, context)
        words[place] = old
    del words
    assert verify(world.segment).ok


def test_garbage_everywhere(world: World) -> None:
    context = Context(world.segment)
    rng = np.random.default_rng(8)
    words = np.frombuffer(world.segment.mapping, np.uint64)
    for share in (0.001, 0.03, 0.5):
        places = np.flatnonzero(rng.random(len(words) - 512) < share) + 512  # not the header
        words[places] = rng.integers(0, 2**64, len(places), dtype=U)
        report = verify(world.segment)
        assert not report.ok
        index_stats(world.segment)
        dump_events(world.segment, context)
    del words
