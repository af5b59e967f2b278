"""Contexts: the private memory of a handle, and the array of words by which kernels find it and the segment.

A reader context is for one thread at a time. A writer context adds the lane's lookup, its map of ranks and
the scratch of a store; its tables grow here, between two kernel calls.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from .kernels import context as c
from .kernels import growth, registry
from .kernels.alias_lookup import ALIAS_FILL
from .kernels.extents import CLASS_WORDS
from .kernels.nodes import NODE_HINTS
from .kernels.parts import LINES, LOOKUP_FILL, PARTS, ROW
from .kernels.plan import MAX_CUTS, T_WIDTH, X_WIDTH
from .layout import H_EPOCH, LANE_BYTES, LINE, N_CLASSES
from .segment import Segment
from .tables import Table, aligned

_ALIAS_LINES = 64
_SEEN_WORDS = 8_192
_MAP_ENTRIES = 512
_ROWS = 1_024  # nodes that a store touches


class Context:
    """The words of a reader's kernels, and its scratch and result areas.

    Attributes
    ----------
    words : ndarray of int64, shape (CONTEXT_WORDS,)
        The context array itself.
    address : int
        Its address, the first argument of every kernel.
    """

    def __init__(self, segment: Segment) -> None:
        self.words = np.zeros(c.CONTEXT_WORDS, np.int64)
        self.address = self.words.ctypes.data
        self._owned: dict[int, npt.NDArray[Any]] = {}
        self._mapping = segment.mapping  # the addresses below are valid as long as this lives
        w = self.words
        w[c.C_BASE] = segment.base
        w[c.C_HEADER_EPOCH] = segment.base + H_EPOCH
        for index, section in (
            (c.C_NODES, "nodes"),
            (c.C_NODE_CLAIMS, "node_claims"),
            (c.C_CHILDREN, "children"),
            (c.C_SPANS, "spans"),
            (c.C_RECORDS, "rank_records"),
            (c.C_STATES, "rank_states"),
        ):
            w[index] = segment.section_address(section)
        # lines count from 1
        w[c.C_CLAIMS] = segment.section_address("line_claims") - 4
        w[c.C_EXTENTS] = segment.section_address("extents") - LINE
        w[c.C_N_LINES] = segment.section_count("extents")
        w[c.C_N_NODES] = segment.section_count("nodes")
        w[c.C_N_BUCKETS] = segment.section_count("children")
        w[c.C_N_SPANS] = segment.section_count("spans")
        w[c.C_N_SLOTS] = segment.section_count("rank_records")
        w[c.C_SEED] = segment.seed
        w[c.C_HOLES] = segment.exact_holes
        w[c.C_LANE] = -1
        slots = (segment.section_count("rank_records") + 15) & ~15
        for index, n_bytes in (
            (c.C_DEPTHS, slots * 4),
            (c.C_SLOTS, slots * 4),
            (c.C_OUT_RECORDS, slots * 16),
            (c.C_OUT_DEPTHS, slots * 4),
            (c.C_OUT_HASHES, slots * 8),
            (c.C_HASHES, slots * 8),
            (c.C_NEW_HASHES, slots * 8),
        ):
            self.area(index, n_bytes)

    def area(self, index: int, n_bytes: int) -> None:
        """Give context word `index` a fresh zeroed area; the one it had is let go."""
        self._owned[index], address = aligned(n_bytes)
        self.words[index] = address

    def _array(self, index: int, n_bytes: int, kind: type) -> npt.NDArray[Any]:
        """The area of a context word as an array."""
        owner = self._owned[index]
        first = self.get(index) - owner.ctypes.data
        return owner[first : first + n_bytes].view(kind)

    def owners(self) -> list[npt.NDArray[Any]]:
        """All private memory."""
        return [self.words, *self._owned.values()]

    def get(self, index: int) -> int:
        """A context word."""
        return int(self.words[index])

    def result(self, n: int, details: bool = False) -> bytes:
        """The raw bytes of a result of `n` ranks, as `OverlapScores` takes them."""
        records = ctypes.string_at(self.get(c.C_OUT_RECORDS), n * 16)
        depths = ctypes.string_at(self.get(c.C_OUT_DEPTHS), n * 4)
        if not details:
            return records + depths
        return records + ctypes.string_at(self.get(c.C_OUT_HASHES), n * 8) + depths

    def slots(self, n: int) -> npt.NDArray[np.uint32]:
        """Slots of the first `n` results."""
        return np.frombuffer(ctypes.string_at(self.get(c.C_SLOTS), n * 4), np.uint32)


class SpareContexts:
    """Contexts that are lent, each to one call at a time.

    Not one for each thread: a signal handler, or a finalizer, may ask in the middle of a call of its thread,
    and what that one's kernel has left in its context would be another query's.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._spare: list[Context] = []
        self._made: list[Context] = []

    def __iter__(self) -> Iterator[Context]:
        """All that were ever made."""
        return iter(self._made)

    @contextmanager
    def lent(self) -> Iterator[Context]:
        """A context for the body."""
        try:
            context = self._spare.pop()
        except IndexError:
            context = Context(self._segment)
            self._made.append(context)
        try:
            yield context
        finally:
            self._spare.append(context)


class WriterContext(Context):
    """The context of one lane.

    Parameters
    ----------
    segment : Segment
        Attached for writing.
    lane : int
        A seat that the caller holds.
    """

    def __init__(self, segment: Segment, lane: int) -> None:
        super().__init__(segment)
        w = self.words
        w[c.C_LANE] = lane
        w[c.C_RECORD] = segment.section_address("lanes") + lane * LANE_BYTES
        self.n_slots = segment.section_count("rank_records")
        self.area(c.C_PART_NEEDS, PARTS * 8)
        self._table_words: list[npt.NDArray[np.int64]] = []
        self.lookup = self._new_lookup()
        self.aliases = self._new_aliases()
        self.area(c.C_SEEN, _SEEN_WORDS * 8)
        w[c.C_SEEN_MASK] = _SEEN_WORDS - 1
        self.grow_rows(_ROWS)
        self.area(c.C_CUTS, MAX_CUTS * X_WIDTH * 8)
        self.area(c.C_NODE_HINTS, NODE_HINTS * 8)
        self.area(c.C_LINE_HINTS, N_CLASSES * CLASS_WORDS * 8)
        entries = _MAP_ENTRIES
        while entries < 4 * self.n_slots:
            entries *= 2
        self._map_entries = entries
        self.area(c.C_RANK_MAP, entries * 16)
        w[c.C_RANK_MAP_MASK] = entries - 1
        self._map_used = 0  # entries ever made in the table
        self._mapped: dict[tuple[int, int], tuple[int, int]] = {}
        self._slot_ranks: dict[int, tuple[int, int]] = {}
        self.area(c.C_MINE, ((self.n_slots + 15) & ~15) * 4)
        self.mine = self._array(c.C_MINE, self.n_slots * 4, np.uint32)

    def owners(self) -> list[npt.NDArray[Any]]:
        """All private memory."""
        return [*super().owners(), *self._table_words, *self.lookup.memory, *self.aliases.memory]

    @property
    def entries(self) -> tuple[int, int]:
        """Entries of the lookup, and of that of aliases."""
        return self.lookup.used, self.aliases.used

    # ------------------------------------------------------------------------------------------ growth
    def _new_lookup(self) -> Table:
        mine = self.address  # and not self: tables are let go with the context
        return Table(
            *self._new_directory(c.C_LOOKUP),
            fill=LOOKUP_FILL,
            least=LINES,
            move=lambda old, lines: growth.lookup_move(mine, old, lines),
            carry=lambda old, lines, first, half: growth.lookup_carry(mine, old, first, half),
            stamp=lambda: int(growth.lookup_stamp(mine)),
        )

    def _new_aliases(self) -> Table:
        mine = self.address
        return Table(
            *self._new_directory(c.C_ALIASES),
            fill=ALIAS_FILL,
            least=_ALIAS_LINES,
            move=lambda old, lines: growth.aliases_move(mine, old, lines),
            carry=lambda old, lines, first, half: growth.aliases_carry(mine, old, lines),
            stamp=lambda: int(growth.lookup_stamp(mine)),
            any_size=True,
        )

    def _new_directory(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Memory for a directory, and for the words of its tables."""
        self.area(index, PARTS * ROW)
        words = np.zeros((PARTS, 3), np.int64)
        self._table_words.append(words)
        return self._array(index, PARTS * ROW, np.int64).reshape(PARTS, 2), words

    def grow(self, need: int, aliases: int) -> None:
        """Make room for so many more entries in both lookups, as hashes usually spread over their parts."""
        for table, n in ((self.lookup, need), (self.aliases, aliases)):
            each = n // PARTS
            table.grow(np.full(PARTS, each + 2 * math.isqrt(each)))

    def grow_for(self, status: int) -> None:
        """Make the room that a kernel asked for: GROW, GROW_ALIASES, SCRATCH or ROWS."""
        if status in (c.GROW, c.GROW_ALIASES):
            table = self.lookup if status == c.GROW else self.aliases
            table.grow(self._array(c.C_PART_NEEDS, PARTS * 8, np.int64))
        elif status == c.SCRATCH:
            self.grow_seen(self.get(c.C_NEEDED))
        else:
            self.grow_rows(4 * self.get(c.C_TOUCHED_ROOM))

    def grow_seen(self, need: int) -> None:
        """Make the table of hashes seen in a store large enough for `need` blocks."""
        words = self.get(c.C_SEEN_MASK) + 1
        while words < 2 * need:
            words *= 2
        self.area(c.C_SEEN, words * 8)
        self.words[c.C_SEEN_MASK] = words - 1

    def grow_rows(self, rows: int) -> None:
        """Make room for the plan of a store that touches so many nodes."""
        self.area(c.C_TOUCHED, rows * T_WIDTH * 8)
        self.words[c.C_TOUCHED_ROOM] = rows

    # ------------------------------------------------------------------------------------------ ranks
    def map_rank(self, worker_id: int, dp_rank: int, slot: int, generation: int) -> None:
        """Tell the kernels that this lane writes the rank, in this slot."""
        # first: an interrupt in between must not leave a rank that others of the lane pass over
        self.mine[slot] = c.ALL_ONES
        self.note_mapped(worker_id, dp_rank, slot, generation)
        if self._map_used * 2 > self._map_entries:
            self._rebuild_map()
        else:
            self._put(worker_id, dp_rank, slot, generation)

    def make_map_room(self, n: int) -> None:
        """See to it that a kernel may enter n more ranks."""
        if (self._map_used + n) * 2 > self._map_entries:
            self._rebuild_map()

    def note_mapped(self, worker_id: int, dp_rank: int, slot: int, generation: int) -> None:
        """Take note of a rank that a kernel has entered."""
        before = self._slot_ranks.get(slot)
        if before is not None:  # another lane removed it, and left its entries
            self._mapped.pop(before, None)
            self.words[c.C_STALE] += 1
        self._slot_ranks[slot] = worker_id, dp_rank
        self._mapped[worker_id, dp_rank] = slot, generation
        self._map_used += 1

    def unmap_slots(self, slots: list[int]) -> None:
        """Forget whatever ranks are in some slots."""
        is_changed = False
        for slot in slots:
            rank = self._slot_ranks.pop(slot, None)
            if rank is not None and self._mapped.get(rank, (-1, 0))[0] == slot:
                del self._mapped[rank]
                is_changed = True
        if is_changed:
            self._rebuild_map()
        self.words[c.C_STALE] += 1  # entries that only these ranks need are left
        self.mine[slots] = 0  # last, as it comes first in `map_rank`

    def _rebuild_map(self) -> None:
        """Enter the ranks that are left into an empty table: no more than slots, a quarter of it."""
        self.area(c.C_RANK_MAP, self._map_entries * 16)
        for (worker_id, dp_rank), (slot, generation) in self._mapped.items():
            self._put(worker_id, dp_rank, slot, generation)
        self._map_used = len(self._mapped)

    def _put(self, worker_id: int, dp_rank: int, slot: int, generation: int) -> None:
        registry.rank_map_put(self.address, signed(worker_id), dp_rank, slot, generation)


def signed(value: int) -> int:
    """A u64 as the int64 that kernels take."""
    return value - (1 << 64) if value >= 1 << 63 else value
