"""The lane's lookup grows part by part: however hashes are spread nothing is lost, and no rehash is long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from shmtrie.capacity import Capacity
from shmtrie.index import Index
from shmtrie.kernels import growth
from shmtrie.tables import AT_ONCE, AWAY
from shmtrie.writer import Writer
from tests.system.index_tools import assert_valid, open_index, scores

MULTIPLIER = 0x1E3779B97F4A7C15
BACK = pow(MULTIPLIER, -1, 1 << 64)


def hash_of(mixed: int) -> int:
    """The hash that mixes to this number."""
    return (mixed ^ mixed >> 32) * BACK % (1 << 64)


def in_one_part(n: int, part: int = 7) -> list[int]:
    """Hashes whose entries are all in one part."""
    return [hash_of((k + 1) * 0x9E3779B97F4A7C15 % (1 << 64) & ~(0xFF << 12) | part << 12) for k in range(n)]


def in_one_line(n: int, line: int = 4_090) -> list[int]:
    """Hashes whose entries all belong in one line, in whatever part."""
    return [hash_of((k + 1) * 0x9E3779B97F4A7C15 % (1 << 64) & ~0xFFF | line) for k in range(n)]


class Growth:
    """How often a hash table of the lookup was rehashed, and how often its entries were carried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        for name in ("lookup_move", "lookup_carry"):
            monkeypatch.setattr(growth, name, self._counted(name, getattr(growth, name)))

    def _counted(self, name: str, kernel: Any) -> Any:
        def run(*arguments: int) -> int:
            self.calls.append(name)
            return int(kernel(*arguments))

        run.compile = kernel.compile  # type: ignore[attr-defined]
        return run

    def take(self) -> tuple[int, int]:
        """Rehashed, carried since the last time."""
        calls, self.calls = self.calls, []
        return calls.count("lookup_move"), calls.count("lookup_carry")


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> Growth:
    return Growth(monkeypatch)


def assert_found(writer: Writer, hashes: list[int]) -> None:
    """Each entry leads to its place: removed one by one from the end, nothing is left."""
    for first in range(len(hashes) // 1_000 * 1_000, -1, -1_000):
        writer.remove(1, hashes[first : first + 1_000][::-1])
        assert writer._work.context.entries == (first, 0)


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


def test_growth_needs_no_look_at_the_segment(index: Index, grown: Growth) -> None:
    """Entries are carried by their lines and tags, and are found where they are then."""
    hashes = np.random.default_rng(5).integers(0, 2**64, 280_000, np.uint64).tolist()
    with index.writer() as writer:
        for first in range(0, len(hashes), 500):
            some = hashes[first : first + 500]
            writer.store(1, hashes[first - 1] if first else None, some, some)
        rehashed, carried = grown.take()
        assert carried > 10 and rehashed <= 4 and writer._work.context.lookup.n_lines >= 12 * AT_ONCE
        assert scores(index, hashes) == {(1, 0): len(hashes)}
        assert_found(writer, hashes)


@pytest.mark.parametrize("crowd", [100, 248, 249, 300, 3_000])
def test_entries_far_from_their_line(index: Index, grown: Growth, crowd: int) -> None:
    """A line and its next 31 are full: five bits are too few for what stands behind. Lines are a ring."""
    rest = np.random.default_rng(crowd).integers(0, 2**64, 60_000, np.uint64).tolist()
    hashes = [*in_one_line(crowd), *rest]
    with index.writer() as writer:
        for first in range(0, len(hashes), 50):
            some = hashes[first : first + 50]
            writer.store(1, hashes[first - 1] if first else None, some, some)
            if first == 3_000:
                far = bool(writer._work.context.lookup._words[0, AWAY])
                assert far == (crowd > 256) or 240 < crowd <= 256
        rehashed, carried = grown.take()
        assert rehashed + carried >= 2 and (rehashed > 0 or crowd < 256)
        assert_found(writer, hashes)


def test_growth_after_a_rank_has_left(index: Index, grown: Growth) -> None:
    """What only that rank needed is left out; the next time there is nothing to look for. Others share their
    blocks, so that their number does not give it away.
    """
    blocks = list(range(1, 10_001))
    more = np.random.default_rng(3).integers(2**40, 2**60, 120_000, np.uint64).tolist()
    with index.writer() as writer:
        for rank in (2, 3):
            writer.store(rank, None, more[:9_000], more[:9_000])
        writer.store(1, None, blocks, blocks)
        assert grown.take() == (0, 0)
        writer.release(1)
        seen = []
        for first in range(9_000, len(more), 500):
            some = more[first : first + 500]
            for rank in (2, 3):
                writer.store(rank, more[first - 1], some, some)
            seen.append(grown.take())
        rehashed, carried = next(pair for pair in seen if pair != (0, 0))
        assert rehashed > 0 and carried == 0
        assert writer._work.context.entries[0] == len(more)
        assert sum(carried for _, carried in seen) > 0


def test_an_interrupted_growth_leaves_the_table_as_it_was(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = list(range(1, 60_001))
    with index.writer() as writer:
        table = writer._work.context.lookup
        for name, at in (("lookup_carry", 1), ("lookup_carry", 2), ("lookup_move", 1)):
            kernel, left = getattr(growth, name), at

            def interrupted(*arguments: int, kernel: Any = kernel) -> int:
                nonlocal left
                left -= 1
                kernel(*arguments)
                if left == 0:
                    raise KeyboardInterrupt
                return 0

            with monkeypatch.context() as patch:
                patch.setattr(growth, name, interrupted)
                held = writer._work.context.entries[0]
                if name == "lookup_move":  # has to look
                    table._words[:, AWAY] = 1
                with suppress(KeyboardInterrupt):
                    for first in range(held, len(blocks), 500):
                        some = blocks[first : first + 500]
                        writer.store(1, blocks[first - 1] if first else None, some, some)
                held = writer._work.context.entries[0]
                assert left == 0 and 0 < held < len(blocks) and table.used == held
        assert scores(index, blocks) == {(1, 0): held}
        assert_found(writer, blocks[:held])


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
