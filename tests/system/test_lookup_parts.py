"""The lane's lookup grows part by part: however hashes are spread nothing is lost, and no rehash is long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shmtrie.capacity import Capacity
from shmtrie.index import Index
from shmtrie.kernels import growth
from shmtrie.tables import AT_ONCE, AWAY, Table
from tests.system.index_tools import assert_valid, open_index, scores

MULTIPLIER = 0x1E3779B97F4A7C15
SALT = 0x2545F4914F6CDD1D  # of a slot, in the lookup of aliases
TURN = 1 << 63  # between two ranks' hashes of a block
BACK = pow(MULTIPLIER, -1, 1 << 64)


def hash_of(mixed: int) -> int:
    """The hash that mixes to this number."""
    return (mixed ^ mixed >> 32) * BACK % (1 << 64)


def in_one_part(n: int, part: int = 7) -> list[int]:
    """Mixed hashes whose entries are all in one part."""
    return [(k + 1) * 0x9E3779B97F4A7C15 % (1 << 64) & ~(0xFF << 12) | part << 12 for k in range(n)]


def in_one_line(n: int, line: int = 4_090) -> list[int]:
    """Mixed hashes whose entries all belong in one line, in whatever part."""
    return [(k + 1) * 0x9E3779B97F4A7C15 % (1 << 64) & ~0xFFF | line for k in range(n)]


class Growth:
    """How often a hash table was rehashed, how often its entries were carried, and lines it took."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, int]] = []
        for name in ("lookup_move", "lookup_carry", "aliases_move", "aliases_carry"):
            monkeypatch.setattr(growth, name, self._counted(name, getattr(growth, name)))

    def _counted(self, name: str, kernel: Any) -> Any:
        def run(*arguments: int) -> int:
            lines = AT_ONCE if name == "lookup_carry" else arguments[2]
            self.calls.append((name.partition("_")[2], lines))
            return int(kernel(*arguments))

        run.compile = kernel.compile  # type: ignore[attr-defined]
        return run

    def take(self) -> tuple[int, int]:
        """Rehashed, carried since the last time."""
        calls, self.calls = [name for name, _ in self.calls], []
        return calls.count("move"), calls.count("carry")

    def take_lines(self) -> int:
        """Lines of all tables that were moved since the last time."""
        calls, self.calls = self.calls, []
        return sum(lines for _, lines in calls)


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> Growth:
    return Growth(monkeypatch)


@pytest.fixture
def index() -> Iterator[Index]:
    with open_index(Capacity(blocks=300_000, workers=8, lanes=3, aliases=300_000)) as made:
        yield made
        assert_valid(made)


class Chain:
    """A chain that rank 1 of a lane holds; with `own` hashes another lane's rank came first with others."""

    def __init__(self, index: Index, own: bool) -> None:
        self.writer, self.own, self.hashes = index.writer(), own, [0] * 0
        self._other = index.writer() if own else None
        self._index = index

    @property
    def table(self) -> Table:
        context = self.writer._work.context
        return context.aliases if self.own else context.lookup

    def spread(self, mixed: int) -> int:
        """The hash of rank 1 whose entry belongs where this mixed hash says."""
        if not self.own:
            return hash_of(mixed)
        slot = self.writer._work.context._mapped[1, 0][0]
        return hash_of(mixed) ^ slot * SALT % (1 << 64)

    def append(self, hashes: list[int]) -> None:
        if self._other is not None:
            others = [h ^ TURN for h in self.hashes[-1:] + hashes]
            parent = others.pop(0) if self.hashes else None
            self._other.store(2, parent, hashes, others)
        self.writer.store(1, self.hashes[-1] if self.hashes else None, hashes, hashes)
        self.hashes += hashes

    def grow(self, hashes: list[int], size: int) -> None:
        for first in range(0, len(hashes), size):
            self.append(hashes[first : first + size])

    def assert_found(self) -> None:
        """Each entry leads to its place: removed one by one from the end, nothing is left."""
        ranks = [(1, 0), (2, 0)][: 1 + self.own]
        n = len(self.hashes)
        assert scores(self._index, self.hashes) == dict.fromkeys(ranks, n)
        for first in range((n - 1) // 1_000 * 1_000, -1, -1_000):
            self.writer.remove(1, self.hashes[first : first + 1_000][::-1])
            assert self.writer._work.context.entries == ((0, first) if self.own else (first, 0))

    def close(self) -> None:
        self.writer.close()
        if self._other is not None:
            self._other.close()


@pytest.fixture(params=[False, True], ids=["edges", "own"])
def chain(index: Index, request: pytest.FixtureRequest) -> Iterator[Chain]:
    made = Chain(index, request.param)
    yield made
    made.close()


@pytest.mark.parametrize("size", [20, 7_000])
def test_hashes_that_fall_into_one_part(chain: Chain, size: int) -> None:
    """Most parts stay empty; the one of them grows as far as it has to."""
    chain.append([1])
    hashes = in_one_part(80_000)
    chain.grow([chain.spread(mixed) for mixed in hashes], size)
    assert chain.table.used == len(hashes) + 1 and chain.table.n_lines > 2 * AT_ONCE
    chain.assert_found()


@pytest.mark.parametrize("size", [1, 7])
def test_short_stores_grow_a_part(chain: Chain, size: int) -> None:
    chain.append([1])
    chain.grow([chain.spread(mixed) for mixed in in_one_part(30_000)], size)
    chain.assert_found()


def test_a_rank_with_hashes_in_one_part_is_taken_over(index: Index, chain: Chain) -> None:
    """What a lane reserves for a rank that it takes over says nothing of how its hashes are spread."""
    chain.append([1])
    chain.grow([chain.spread(mixed) for mixed in in_one_part(60_000)], 60_000)
    chain.writer.release(1)
    with index.writer() as other:
        other.remove(1, chain.hashes[30_000:])
        assert other._work.context.entries == ((0, 30_000) if chain.own else (30_000, 0))
        assert scores(index, chain.hashes)[1, 0] == 30_000


def test_growth_needs_no_look_at_the_segment(chain: Chain, grown: Growth) -> None:
    """Entries are carried by their lines and tags, and are found where they are then."""
    chain.grow(np.random.default_rng(5).integers(0, 2**64, 280_000, np.uint64).tolist(), 500)
    rehashed, carried = grown.take()
    assert carried > 10 and rehashed <= 4 and chain.table.n_lines >= 12 * AT_ONCE
    chain.assert_found()


@pytest.mark.parametrize("crowd", [100, 248, 249, 300, 3_000])
def test_entries_far_from_their_line(index: Index, grown: Growth, crowd: int) -> None:
    """A line and its next 31 are full: five bits are too few for what stands behind. Lines are a ring."""
    rest = np.random.default_rng(crowd).integers(0, 2**64, 60_000, np.uint64).tolist()
    hashes = [hash_of(mixed) for mixed in in_one_line(crowd)] + rest
    chain = Chain(index, own=False)
    chain.grow(hashes[:3_050], 50)
    far = bool(chain.table._words[0, AWAY])
    assert far == (crowd > 256) or 240 < crowd <= 256
    chain.grow(hashes[3_050:], 50)
    rehashed, carried = grown.take()
    assert rehashed + carried >= 2 and (rehashed > 0 or crowd < 256)
    chain.assert_found()
    chain.close()


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


def test_growth_of_aliases_after_a_rank_has_left(index: Index, grown: Growth) -> None:
    """The same of hashes of its own; a rank with many blocks in the other lookup hides them."""
    chain = Chain(index, own=True)
    many = np.random.default_rng(4).integers(2**40, 2**60, 25_000, np.uint64).tolist()
    left = [h ^ TURN for h in many[:10_000]]
    chain.writer.store(5, None, many, many)
    chain.writer.store(4, None, many[:10_000], left)
    assert chain.table.used == len(left)
    chain.writer.release(4)
    grown.take()
    seen = []
    for first in range(0, 60_000, 500):
        chain.append(list(range(first + 1, first + 501)))
        seen.append((*grown.take(), chain.table.used - len(chain.hashes)))
    assert seen[0] == (0, 0, 10_000)
    rehashed, _, left_over = next(turn for turn in seen if turn[:2] != (0, 0))
    assert rehashed > 0 and left_over == 0
    assert sum(carried for _, carried, _ in seen[-60:]) > 0
    chain.close()


def test_an_interrupted_growth_leaves_the_table_as_it_was(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = list(range(1, 60_001))
    chain.grow(blocks[:12_000], 500)
    for name, at in (("carry", 1), ("carry", 2), ("move", 1)):
        kernel_name = ("aliases_" if chain.own else "lookup_") + name
        kernel, left = getattr(growth, kernel_name), at

        def interrupted(*arguments: int, kernel: Any = kernel) -> int:
            nonlocal left
            left -= 1
            kernel(*arguments)
            if left == 0:
                raise KeyboardInterrupt
            return 0

        with monkeypatch.context() as patch:
            patch.setattr(growth, kernel_name, interrupted)
            if name == "move":  # has to look
                chain.table._words[:, AWAY] = 1
            with pytest.raises(KeyboardInterrupt):
                chain.grow(blocks[len(chain.hashes) :], 500)
        assert left == 0 and 0 < len(chain.hashes) < len(blocks) and chain.table.used == len(chain.hashes)
    chain.assert_found()


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


def test_no_growth_takes_long(chain: Chain, grown: Growth) -> None:
    """However many entries there are, few are moved while an event waits."""
    hashes = np.random.default_rng(7).integers(0, 2**64, 250_000, np.uint64).tolist()
    most = 0
    for first in range(0, len(hashes), 50):
        chain.append(hashes[first : first + 50])
        most = max(most, grown.take_lines())
    assert chain.table.n_lines >= 12 * AT_ONCE and chain.table.used == len(hashes)
    assert AT_ONCE <= most <= 2 * AT_ONCE
    chain.assert_found()


@pytest.mark.parametrize("exact", [False, True])
def test_a_hash_that_moves_within_its_node_leaves_no_entry(exact: bool) -> None:
    """A rank's third block takes the hash of its eighth, which is cut off with what is behind; or alone."""
    local = list(range(1, 11))
    capacity = Capacity(blocks=2_000, workers=8, lanes=3, aliases=2_000)
    with open_index(capacity, exact_holes=exact) as made, made.writer() as writer:
        writer.store(1, None, local, local)
        for turn in range(1, 5):
            own = [h + 100 * turn for h in local]
            writer.store(2, None, local, own)
            assert writer._work.context.entries == (10, 10)
            writer.store(2, None, local[:3], [*own[:2], own[7]])
            held = 9 if exact else 7
            assert made.stats().blocks == 10 + held
            assert writer._work.context.entries == (10, held)
        assert_valid(made)


def test_a_rename_enters_all_that_the_rank_covers(index: Index) -> None:
    """One hash of its own, and the rank has all hashes of the node in the lookup of aliases: there is room
    where they belong, whatever they are.
    """
    with index.writer() as writer:
        writer.store(3, None, [1], [1])
        slot = writer._work.context._mapped[3, 0][0]
        mixed = in_one_part(64_000)
        chains = [[hash_of(m) ^ slot * SALT % (1 << 64) for m in mixed[k::64]] for k in range(64)]
        for blocks in chains:
            for rank in (2, 3):
                writer.store(rank, None, blocks, blocks)
        assert writer._work.context.entries == (64_001, 0)
        for blocks in chains:
            writer.store(3, blocks[499], blocks[500:501], [blocks[500] ^ TURN])
        assert writer._work.context.entries == (64_001, 64_000)
        for blocks in chains:
            own = [*blocks[:500], blocks[500] ^ TURN, *blocks[501:]]
            assert scores(index, blocks) == {(2, 0): 1_000, (3, 0): 1_000}
            writer.remove(3, own[::-1])
            assert scores(index, blocks) == {(2, 0): 1_000}
        assert writer._work.context.entries == (64_001, 0)
