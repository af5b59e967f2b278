"""Damaged nodes are set aside: refused to stores, skipped by removals, not there for readers, named by
`verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from shmtrie.errors import EventStatus, SegmentCorrupt
from shmtrie.events import EventBatch, KvCacheEvent, KvCacheStoreData, KvCacheStoredBlockData, RouterEvent
from shmtrie.index import Index
from shmtrie.layout import FORM_LIST, M31, M32, NO_SPACE
from shmtrie.verify import verify
from shmtrie.writer import Writer
from tests.backends import segment_name
from tests.unit.damage import World


@pytest.fixture(scope="module")
def whole() -> Iterator[World]:
    world = World(segment_name("quarantine"))
    yield world
    world.close()


@pytest.fixture
def world(whole: World) -> Iterator[World]:
    yield whole
    whole.restore()


def _put(field: str, change: Callable[[int], int]) -> Callable[[World, int], None]:
    return lambda w, node: w.put(node, field, change(w.get(node, field)))


# what a writer must not follow in node 201, which five ranks cover by a list of words
DAMAGE: dict[str, Callable[[World, int], None]] = {
    "edge outside": _put("edge", lambda x: x | M32),
    "no edge": _put("edge", lambda x: 0),
    "capacity": _put("edge", lambda x: x & M32 | 4_000 << 32),
    "longer than its edge": _put("edge", lambda x: x & M32 | 2 << 32),
    "end before start": _put("tail", lambda x: x & ~M31),
    "child space outside": _put("tail", lambda x: x | 1 << 60),
    "child space of the root": _put("tail", lambda x: x & M32),
    "coverage outside": _put("coverage", lambda x: x | M32),
    "coverage of another form": _put("coverage", lambda x: x | 4 << 32),
    "coverage of many words": _put("coverage", lambda x: x & ((1 << 40) - 1) | 1 << 60),
    "coverage of an odd number of words": _put("coverage", lambda x: x + (1 << 40)),
    "aliases outside": _put("alias", lambda x: M32 | 8 << 32),
    "aliases, too many words": _put("alias", lambda x: 1 | 1 << 50),
}
PATH, HASHES = [201, 202, 203, 204], [201, 202, 203, 204]


def _set_aside(world: World, node: int) -> None:
    assert world.get(node, "quarantined") == 1
    assert world.get(node, "edge") == 0  # what everybody looks at before following a node
    report = verify(world.segment)
    assert "I20" in {invariant for invariant, _ in report.broken}
    assert not report.ok and not report.repairable
    assert any(f"node {node} is damaged" in what for _, what in report.broken)


# without its edge nobody can tell which key the node has: stores find no node there
UNREADABLE = {"edge outside", "no edge"}


@pytest.mark.parametrize("what", sorted(DAMAGE.keys() - UNREADABLE))
def test_a_store_is_refused(world: World, what: str) -> None:
    """It changes nothing, everything else goes on, and the path can be stored anew."""
    node = world.node(201)
    assert world.get(node, "coverage") >> 32 & 0xFF == FORM_LIST
    DAMAGE[what](world, node)
    index = Index(world.segment)
    with Writer(world.segment) as writer:
        with pytest.raises(SegmentCorrupt, match="damaged"):
            writer.store(70, None, [*PATH, 205], [*HASHES, 205])
        _set_aside(world, node)
        assert index.stats().quarantined == 1
        assert index.stats().rejected == {EventStatus.SEGMENT_CORRUPT: 1}
        assert index.find_matches(PATH).scores == {}
        assert (70, 0) not in [info.worker for info in index.workers()]
        writer.store(70, None, [501, 502, 503, 504], [501, 502, 503, 504])
        assert index.find_matches([501, 502, 503, 504]).scores == {(1, 0): 3, (70, 0): 4}
        writer.remove(70, [501, 502, 503, 504])
        assert index.find_matches([501, 502, 503]).scores == {(1, 0): 3}
        writer.store(10, None, PATH[:3], HASHES[:3])
        writer.store(70, None, [*PATH, 205], [*HASHES, 205])
        assert index.find_matches(PATH).scores == {(10, 0): 3, (70, 0): 4}
        writer.remove(70, HASHES)
        assert index.find_matches(PATH).scores == {(10, 0): 3}
        assert index.stats().quarantined == 1


@pytest.mark.parametrize("what", sorted(UNREADABLE))
def test_a_path_is_stored_anew(world: World, what: str) -> None:
    """Nobody sees the node any more, so its place is free; who has to change it sets it aside."""
    node = world.node(201)
    DAMAGE[what](world, node)
    index = Index(world.segment)
    with Writer(world.segment) as writer:
        writer.store(70, None, [*PATH, 205], [*HASHES, 205])
        assert index.find_matches(PATH).scores == {(70, 0): 4}
        writer.clear(11)
        _set_aside(world, node)
        assert index.stats().quarantined == 1
        assert index.find_matches(PATH).scores == {(70, 0): 4}


@pytest.mark.parametrize("what", DAMAGE)
def test_removals_pass_over_it(world: World, what: str) -> None:
    """What a rank has in it counts as removed: no query shows it any more, whoever gets the slot."""
    node = world.node(201)
    index = Index(world.segment)
    with Writer(world.segment) as writer:
        writer.store(10, None, [601, 602], [601, 602])
        DAMAGE[what](world, node)
        writer.remove(10, HASHES)
        writer.clear(11)
        writer.remove_worker(12)
        writer.clear(10)
        assert index.find_matches(PATH).scores.keys() <= {(13, 0), (14, 0)}
        assert index.find_matches([601, 602]).scores == {}
        writer.remove_worker(13)
        writer.remove_worker(14)
        assert index.find_matches(PATH).scores == {}
        assert writer.apply_batch(EventBatch.from_events([])).size == 0
    with Writer(world.segment) as writer:  # and a lane that enters what ranks hold comes by
        writer.store(11, None, [611, 612], [611, 612])
        assert index.find_matches([611, 612]).scores == {(11, 0): 2}


def test_a_known_rank_is_refused_once(world: World) -> None:
    """Not tried again by the slower way, which would find the path free by then."""
    DAMAGE["capacity"](world, world.node(201))
    index = Index(world.segment)
    with Writer(world.segment) as writer:
        writer.store(1, None, [801], [801])
        before = index.stats()
        with pytest.raises(SegmentCorrupt, match="damaged"):
            writer.store(1, None, [*PATH, 205], [*HASHES, 205])
        after = index.stats()
        assert after.events - before.events == 1
        assert after.rejected == {EventStatus.SEGMENT_CORRUPT: 1}
        assert index.find_matches(PATH).scores == {}
        assert [info.worker for info in index.workers() if info.degraded] == [(1, 0)]


def test_a_path_that_begins_with_hash_0_is_stored_anew(world: World) -> None:
    """A node that was set aside has no first hash; that is not 0."""
    index = Index(world.segment)
    with Writer(world.segment) as writer:
        writer.store(1, None, [0, 901], [900, 901])
        node = world.node(0)
        DAMAGE["capacity"](world, node)
        with pytest.raises(SegmentCorrupt):
            writer.store(1, None, [0, 901, 902], [900, 901, 902])
        _set_aside(world, node)
        writer.store(1, None, [0, 901, 902], [900, 901, 902])
        assert index.find_matches([0, 901, 902]).scores == {(1, 0): 3}


def test_a_batch_goes_on_behind_it(world: World) -> None:
    DAMAGE["capacity"](world, world.node(201))
    events = [
        RouterEvent(w, KvCacheEvent(1, KvCacheStoreData(None, [KvCacheStoredBlockData(h, h) for h in path])))
        for w, path in ((1, [1, 2, 3]), (10, [201, 202, 9]), (2, [701, 702]))
    ]
    with Writer(world.segment) as writer:
        statuses = writer.apply_batch(EventBatch.from_events(events))
    assert statuses.tolist() == [EventStatus.OK, EventStatus.SEGMENT_CORRUPT, EventStatus.OK]
    degraded = [info.worker for info in Index(world.segment).workers() if info.degraded]
    assert degraded == [(10, 0)]


def test_a_free_node_that_owns_no_space_is_not_used(world: World) -> None:
    node = world.freed()
    world.put(node, "tail", 1 << 60)
    with Writer(world.segment) as writer:
        for k in range(20):
            writer.store(1, None, [800 + k], [800 + k])
    assert world.view("node_claims")[node] == 0 and world.get(node, "quarantined") == 1
    assert Index(world.segment).stats().quarantined == 1


def test_a_node_that_no_entry_names_is_not_reclaimed(world: World) -> None:
    node = world.node(501)
    world.view("children")[world.entry(node)] = 0
    with Writer(world.segment) as writer:
        writer.remove(1, [501, 502, 503])
        _set_aside(world, node)
        writer.store(1, None, [501, 502], [501, 502])
        assert Index(world.segment).find_matches([501, 502]).scores == {(1, 0): 2}


def test_a_damaged_root_refuses_what_begins_there(world: World) -> None:
    world.put(0, "tail", world.get(0, "tail") | 5)
    with Writer(world.segment) as writer:
        with pytest.raises(SegmentCorrupt):
            writer.store(1, None, [1, 2, 3], [1, 2, 3])
        writer.store(1, 503, [504], [504])
    assert "I1" in {invariant for invariant, _ in verify(world.segment).broken}


def test_a_gate_that_is_held_delays_the_verdict(world: World) -> None:
    """Under a gate that another lane has nothing is judged: what looks damaged may be half done."""
    node = world.node(201)
    DAMAGE["coverage outside"](world, node)
    with Writer(world.segment) as other, Writer(world.segment, 0.001) as writer:
        world.put(node, "shape_gate", 1 << other.lane)
        statuses = writer.apply_events(
            [RouterEvent(10, KvCacheEvent(1, KvCacheStoreData(None, [KvCacheStoredBlockData(201, 201)])))]
        )
        assert statuses.tolist() == [EventStatus.BUSY]
        assert world.get(node, "quarantined") == 0
        world.put(node, "shape_gate", 0)
        # the withdrawal has left the node on the to-do list, and that comes first
        writer.store(10, None, PATH, HASHES)
        assert world.get(node, "quarantined") == 1


def test_what_hangs_nowhere_is_not_judged(world: World) -> None:
    """The words of a free node are left from an earlier life."""
    node = world.freed()
    assert world.get(node, "start") >> 32 == NO_SPACE
    world.put(node, "edge", 0)
    with Writer(world.segment) as writer:
        record = world.view("lanes")[writer.lane : writer.lane + 1]
        record["todo"][0, 0], record["n_todo"] = node, 1
        writer.store(1, None, [901], [901])
        assert np.all(world.view("nodes")["quarantined"] == 0)
