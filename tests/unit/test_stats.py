"""`index_stats`: numbers that can be worked out by hand, and sums that have to fit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from shmtrie.errors import EventStatus, ParentBlockNotFound
from shmtrie.layout import LANE_BYTES
from shmtrie.segment import Segment
from shmtrie.stats import IndexStats, index_stats
from shmtrie.verify import verify
from shmtrie.writer import Writer
from tests.backends import segment_name
from tests.unit.damage import World


@pytest.fixture(scope="module")
def whole() -> Iterator[World]:
    world = World(segment_name("stats"))
    yield world
    world.close()


@pytest.fixture
def world(whole: World) -> Iterator[World]:
    yield whole
    whole.restore()


def check_sums(segment: Segment, stats: IndexStats) -> None:
    parts = stats.sections.values()
    assert all(min(part) >= 0 for part in parts), stats.sections
    sums = [sum(column) for column in zip(*parts, strict=True)]
    assert sums == [stats.bytes_used, stats.bytes_slack, stats.bytes_free]
    assert sum(sums) == stats.bytes_total == segment.total_bytes


def test_an_empty_segment() -> None:
    name = segment_name("empty")
    with Segment.create(name) as segment:
        stats = index_stats(segment)
        check_sums(segment, stats)
        Segment.unlink(name)
    assert (stats.blocks, stats.unique_blocks, stats.nodes, stats.ranks, stats.lanes) == (0, 0, 0, 0, 0)
    assert (stats.bytes_per_block, stats.bytes_slack, stats.rejected) == (0.0, 0, {})


def test_sizes(world: World) -> None:
    stats = index_stats(world.segment, give_ups=3)
    check_sums(world.segment, stats)
    counts = verify(world.segment).counts
    assert stats.blocks == counts["blocks"] == 177
    assert stats.unique_blocks == counts["unique_blocks"] == 26
    assert stats.nodes == stats.child_entries == counts["nodes"] == 6
    assert stats.coverage_words == counts["coverage_words"] == 3 + 2 + 1 + 5 + 40 + 1
    assert (stats.ranks, stats.lanes, stats.give_ups) == (48, 0, 3)
    extents = stats.sections["extents"]
    assert extents.used + extents.slack == 64 * counts["extent_lines"]
    assert stats.sections["nodes"].used == 7 * 128
    assert stats.sections["lanes"] == (0, 0, stats.sections["lanes"].free)
    apart = stats.sections["header"].used
    assert stats.bytes_per_block == pytest.approx((stats.bytes_used + stats.bytes_slack - apart) / 26)


def test_counters(world: World) -> None:
    before = index_stats(world.segment)
    assert (before.splits, before.reclaims, before.duplicate_store) == (1, 1, 0)
    with Writer(world.segment) as writer:
        writer.store(1, None, [1, 2], [1, 2])
        with pytest.raises(ParentBlockNotFound):
            writer.store(1, 12_345, [9], [9])
        writer.remove(1, [503])
        stats = index_stats(world.segment)
        assert stats.lanes == 1 and stats.sections["lanes"].used == LANE_BYTES
    assert stats.events - before.events == 3
    assert stats.blocks_stored - before.blocks_stored == 2
    assert stats.blocks_removed - before.blocks_removed == 1
    assert stats.duplicate_store == 1
    assert stats.truncations - before.truncations == 1
    assert stats.rejected == {EventStatus.PARENT_BLOCK_NOT_FOUND: 1}
    assert stats.blocks == before.blocks - 1 and stats.unique_blocks == before.unique_blocks - 1


def test_as_dict_is_plain(world: World) -> None:
    stats = index_stats(world.segment)
    values = json.loads(json.dumps(stats.as_dict()))
    assert set(values) == {field for field in IndexStats.__dataclass_fields__}
    assert set(values["sections"]["extents"]) == {"used", "slack", "free"}
    assert values["rejected"] == {} and values["blocks"] == stats.blocks


def test_what_is_emptied_costs_nothing(world: World) -> None:
    with Writer(world.segment) as writer:
        for worker in np.unique(world.view("rank_records")["worker_id"]).tolist():
            writer.remove_worker(worker)
    stats = index_stats(world.segment)
    check_sums(world.segment, stats)
    assert (stats.blocks, stats.unique_blocks, stats.nodes, stats.ranks) == (0, 0, 0, 0)
    used = {name: part.used + part.slack for name, part in stats.sections.items()}
    assert used["extents"] == used["line_claims"] == used["children"] == 0
