"""`dump_events`: canonical, complete when nobody writes, never more than the truth when somebody does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shmtrie.contexts import Context
from shmtrie.dump import dump_events
from shmtrie.errors import ShmtrieError
from shmtrie.event_types import RouterEvent, decode_event, encode_event
from shmtrie.radix_tree import RadixTree
from shmtrie.segment import Segment
from shmtrie.verify import verify
from shmtrie.writer import Writer
from tests.backends import segment_name, stores_of
from tests.reference import MASK, Oracle
from tests.removals import ANY, LEAF_FIRST
from tests.system.children import Child
from tests.unit.damage import World, own
from tests.unit.test_verify_live import churn
from tests.workload import Workload


@pytest.fixture
def world() -> Iterator[World]:
    world = World(segment_name("dump"))
    yield world
    world.close()


def dump(segment: Segment) -> list[RouterEvent]:
    return dump_events(segment, Context(segment))


def runs(segment: Segment, rank: tuple[int, int]) -> list[tuple[int | None, list[tuple[int, int]]]]:
    """(parent, [(local, external), ...]) of one rank's events, in order."""
    return [(op[2], op[3]) for op in stores_of(dump(segment)) if op[1] == rank]


def straight(numbers: list[int]) -> list[tuple[int, int]]:
    return list(zip(numbers, numbers, strict=True))


# -- one dump ------------------------------------------------------------------------------------------


def test_nothing(world: World) -> None:
    with Writer(world.segment) as writer:
        for worker in range(60):
            writer.remove_worker(worker)
    assert dump(world.segment) == []


def test_runs_are_cut_where_the_rank_branches(world: World) -> None:
    segment = world.segment
    # 1 is split into [1..6] and [7..12], which is nobody's business
    assert runs(segment, (1, 0)) == [(None, straight(list(range(1, 13)))), (None, straight([501, 502, 503]))]
    chain = [*range(1, 7), *range(101, 105)]
    assert runs(segment, (2, 0)) == [(None, straight(chain))]
    with Writer(segment) as writer:
        writer.store(2, 6, [7, 8], [7, 8])
    parts = [(None, chain[:6]), (6, [7, 8]), (6, chain[6:])]
    assert runs(segment, (2, 0)) == [(parent, straight(part)) for parent, part in parts]


def test_each_rank_has_its_own_hashes(world: World) -> None:
    chain = list(range(1, 13))
    assert runs(world.segment, (3, 0)) == [(None, list(zip(chain, own(3, chain), strict=True)))]
    with Writer(world.segment) as writer:
        writer.store(3, 3_000_006, [900], [77])
    first, second, third = runs(world.segment, (3, 0))
    assert first == (None, list(zip(chain[:6], own(3, chain[:6]), strict=True)))
    assert second == (3_000_006, list(zip(chain[6:], own(3, chain[6:]), strict=True)))
    assert third == (3_000_006, [(900, 77)])


def test_order_ids_and_signs(world: World) -> None:
    big = [MASK, 0, 2**63]
    with Writer(world.segment) as writer:
        writer.store((MASK, 2**32 - 1), None, big, big)
        writer.store((0, 7), None, [5], [6])
        writer.store((0, 7), None, [MASK, 4], [8, 9])
    events = dump(world.segment)
    assert [event.event.event_id for event in events] == list(range(len(events)))
    ranks = [(event.worker_id, event.event.dp_rank) for event in events]
    assert ranks == sorted(ranks) and ranks[0] == (0, 7) and ranks[-1] == (MASK, 2**32 - 1)
    assert runs(world.segment, (0, 7)) == [(None, [(5, 6)]), (None, [(MASK, 8), (4, 9)])]
    assert runs(world.segment, (MASK, 2**32 - 1)) == [(None, straight(big))]
    assert [decode_event(encode_event(event)) for event in events] == events


def test_what_is_behind_a_cut_is_left_out(world: World) -> None:
    with Writer(world.segment) as writer:
        writer.store(2, 6, [7, 8], [7, 8])
        writer.remove(2, [4])
        assert runs(world.segment, (2, 0)) == [(None, straight([1, 2, 3]))]
        writer.remove(2, [1])
        assert runs(world.segment, (2, 0)) == []
        writer.store(2, None, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
    assert {parent for parent, _ in runs(world.segment, (2, 0))} <= {None, 6}


def test_removed_ranks_are_left_out(world: World) -> None:
    with Writer(world.segment) as writer:
        writer.remove_worker(3)
    assert runs(world.segment, (3, 0)) == []
    assert len(runs(world.segment, (20, 0))) == 1


def test_long_chains(world: World) -> None:
    chain = list(range(10_000, 15_000))
    with Writer(world.segment) as writer:
        writer.store(1, None, chain, chain)
    assert (None, straight(chain)) in runs(world.segment, (1, 0))


# -- loading it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["clean", "alias", "flip", "collide"])
def test_loading_a_dump_gives_the_same_dump(kind: str) -> None:
    with ExitStack() as stack:
        segments = []
        for part in ("from", "into"):
            segments.append(stack.enter_context(Segment.create(segment_name(f"dump-{part}-{kind}"))))
            stack.callback(Segment.unlink, segments[-1].name)
        source, target = (stack.enter_context(Writer(segment)) for segment in segments)
        oracle, tree = Oracle(), RadixTree()
        removals = ANY if kind == "flip" else LEAF_FIRST
        for op in Workload(oracle, 11, kind, removals, steps=150, drain=False):
            outcome = "ok"
            try:
                if op[0] == "store":
                    source.store(op[1], op[2], [block[0] for block in op[3]], [block[1] for block in op[3]])
                elif op[0] in ("remove", "clear", "remove_worker"):
                    getattr(source, op[0])(*op[1:])
            except ShmtrieError as error:
                outcome = type(error).__name__
            oracle.apply(op, outcome)
        events = dump(segments[0])
        assert len(events) >= 5
        assert not target.apply_events(events).any()
        tree.load_events(events)
        assert dump(segments[1]) == events
        assert tree.dump_events() == events


# -- beside writers ------------------------------------------------------------------------------------


def test_beside_writers_a_dump_can_be_loaded(world: World) -> None:
    name = world.segment.name
    steady = runs(world.segment, (1, 0))
    with Segment.attach(name) as segment, Child(lambda _: churn(name, 100, 2.0)) as child:
        context = Context(segment)
        dumps = 0
        while not child.connection.poll(0):
            known: set[tuple[object, int]] = set()
            for op in stores_of(dump_events(segment, context)):
                # a parent is never missing
                assert op[2] is None or (op[1], op[2]) in known
                known |= {(op[1], external) for _, external in op[3]}
            dumps += 1
        assert child.hear() > 0 and dumps > 3
        assert verify(segment).ok
    assert runs(world.segment, (1, 0)) == steady
