"""The lane's lookup grows part by part: however hashes are spread nothing is lost, and no rehash is long."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from shmtrie.capacity import Capacity
from shmtrie.index import Index
from shmtrie.kernels import growth
from shmtrie.tables import AT_ONCE
from tests.system.index_tools import assert_valid, open_index, scores

MULTIPLIER = 0x1E3779B97F4A7C15
BACK = pow(MULTIPLIER, -1, 1 << 64)


def hash_of(mixed: int) -> int:
    """The hash that mixes to this number."""
    return (mixed ^ mixed >> 32) * BACK % (1 << 64)


def in_one_part(n: int, part: int = 7) -> list[int]:
    """Hashes whose entries are all in one part."""
    return [hash_of((k + 1) * 0x9E3779B97F4A7C15 % (1 << 64) & ~(0xFF << 12) | part << 12) for k in range(n)]


@pytest.fixture
def index() -> Iterator[Index]:
    with open_index(Capacity(blocks=300_000, workers=8, lanes=3)) as made:
        yield made
        assert_valid(made)


@pytest.mark.parametrize("size", [1, 20, 7_000])
def test_hashes_that_fall_into_one_part(index: Index, size: int) -> None:
    """Most parts stay empty; the one of them grows as far as it has to."""
    hashes = in_one_part(80_000)
    with index.writer() as writer:
        for first in range(0, len(hashes), size):
            some = hashes[first : first + size]
            writer.store(1, hashes[first - 1] if first else None, some, some)
        lookup = writer._work.context.lookup
        assert lookup.used == len(hashes) and lookup.n_lines > 2 * AT_ONCE
        assert scores(index, hashes) == {(1, 0): len(hashes)}
        for first in range(len(hashes) - 1_000, 0, -1_000):
            writer.remove(1, hashes[first : first + 1_000][::-1])
        assert scores(index, hashes) == {(1, 0): 1_000}
        writer.remove(1, hashes[:1_000])
        assert scores(index, hashes) == {} and writer._work.context.entries == (0, 0)


def test_a_rank_with_hashes_in_one_part_is_taken_over(index: Index) -> None:
    """What a lane reserves for a rank that it takes over says nothing of how its hashes are spread."""
    hashes = in_one_part(60_000)
    with index.writer() as writer:
        writer.store(1, None, hashes, hashes)
        writer.release(1)
        with index.writer() as other:
            other.remove(1, hashes[30_000:])
            assert other._work.context.entries == (30_000, 0)
            assert scores(index, hashes) == {(1, 0): 30_000}


def test_ranks_that_come_and_go_need_no_more_room(index: Index) -> None:
    """Another lane removes a rank: what is left of it in the lookup goes, instead of being spread out."""
    with index.writer() as writer, index.writer() as other:
        for turn in range(12):
            blocks = np.arange(turn * 20_000 + 1, turn * 20_000 + 20_001, dtype=np.uint64)
            for first in range(0, len(blocks), 2_000):
                some = blocks[first : first + 2_000]
                writer.store(1, int(blocks[first - 1]) if first else None, some, some)
            assert scores(index, blocks) == {(1, 0): len(blocks)}
            other.remove_worker(1)
            lookup = writer._work.context.lookup
            assert lookup.n_lines <= 2 * AT_ONCE and lookup.used < 50_000
        writer.store(1, None, blocks, blocks)
        writer.remove(1, blocks[::-1])
        assert scores(index, blocks) == {}


def test_no_rehash_is_a_long_one(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many entries there are, few are moved while an event waits."""
    moved: list[int] = []
    move = growth.lookup_move

    def watched(context: int, old: int, lines: int) -> int:
        moved.append(lines)
        return int(move(context, old, lines))

    monkeypatch.setattr(growth, "lookup_move", watched)
    blocks = np.arange(1, 250_001, dtype=np.uint64)
    most = 0
    with index.writer() as writer:
        for first in range(0, len(blocks), 50):
            moved.clear()
            some = blocks[first : first + 50]
            writer.store(1, int(blocks[first - 1]) if first else None, some, some)
            most = max(most, sum(moved))
        lookup = writer._work.context.lookup
        assert lookup.n_lines >= 8 * AT_ONCE and lookup.used == len(blocks)
        assert AT_ONCE // 2 <= most <= 2 * AT_ONCE
        writer.remove(1, blocks[::-1])
        assert writer._work.context.entries == (0, 0)
