"""Ranks as Python objects: the small tuples that say which rank, and how they are read out of results.

Making them costs more than all the rest of an answer, so they are made once and kept, in memos of bounded
size: forgetting any of it at any time is always right.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

__all__ = [
    "RECORD",
    "WORKER_DTYPE",
    "Match",
    "WorkerInfo",
    "WorkerWithDpRank",
    "matches_in",
    "rank_records",
    "ranks_in",
    "scores_in",
]


class WorkerWithDpRank(NamedTuple):
    """A rank: one cache of one inference engine.

    Parameters
    ----------
    worker_id : int
        The worker, 0 <= worker_id < 2**64.
    dp_rank : int
        Its data-parallel rank, 0 <= dp_rank < 2**32; 0 where there is only one.
    """

    worker_id: int
    dp_rank: int = 0


class Match(NamedTuple):
    """One rank with the number of blocks, from the root, that it holds of a query."""

    worker: WorkerWithDpRank
    depth: int


class WorkerInfo(NamedTuple):
    """What an index knows about one rank.

    Parameters
    ----------
    worker : WorkerWithDpRank
        The rank.
    blocks : int
        Blocks that it holds.
    state : str
        ``"active"``; other values are an index's own.
    lane : int
        Writer process seat that the rank belongs to, -1 for none.
    last_event_id : int or None
        Id of the last event that was applied for the rank; None before the first.
    degraded : bool
        An event of the rank was refused since the rank was last cleared, so it may score too low.
    """

    worker: WorkerWithDpRank
    blocks: int
    state: str
    lane: int
    last_event_id: int | None
    degraded: bool


WORKER_DTYPE: Final = np.dtype(
    {"names": ["worker_id", "dp_rank"], "formats": ["<u8", "<u4"], "offsets": [0, 8], "itemsize": 16}
)
"""One rank record, 16 bytes; the last four are padding."""

RECORD: Final = struct.Struct("<QI4x")
_DEPTH: Final = struct.Struct("<I")
_WORKER_BYTES: Final = RECORD.size


class _RankTable(dict[bytes, WorkerWithDpRank]):
    """Rank record -> the rank as Python object, made once.

    Making the 64 tuples of a typical answer costs more than the whole dict around them, and a fleet has few
    ranks, so they are kept. It is only a memo: dropping all of it at the limit is always right.
    """

    LIMIT = 1 << 17

    def __missing__(self, record: bytes) -> WorkerWithDpRank:
        if len(self) >= self.LIMIT:
            self.clear()
        rank = self[record] = WorkerWithDpRank._make(RECORD.unpack(record))
        return rank


_ranks: Final = _RankTable()
_rank_of: Final = _ranks.__getitem__


def ranks_in(records: bytes) -> tuple[WorkerWithDpRank, ...]:
    """Turn n rank records (n * 16 bytes) into n `WorkerWithDpRank`."""
    return tuple(map(_rank_of, struct.unpack("16s" * (len(records) // _WORKER_BYTES), records)))


def _depths_in(raw: bytes, n: int) -> tuple[int, ...]:
    return struct.unpack_from(f"<{n}I", raw, len(raw) - 4 * n)


class _Template(NamedTuple):
    """A dict of scores that was made before: records, ranks in their order, bytes of the depths as int."""

    records: bytes
    ranks: tuple[WorkerWithDpRank, ...]
    depths: int
    scores: dict[WorkerWithDpRank, int]


class _TemplateTable(dict[bytes, _Template]):
    """Rank records -> a dict to copy.

    Prompts that share a prefix keep returning the same fleet, and a copy costs a twentieth of hashing its
    ranks. As above only a memo.
    """

    LIMIT = 1 << 15  # ranks of all templates
    LONGEST = 1 << 11  # of one
    SELDOM = 8  # results that are unlike their template until one of them replaces it

    def __init__(self) -> None:
        self._held = self._unlike = 0
        # number of ranks -> the last template of so many: comparing costs less than hashing the records
        self._last: dict[int, _Template] = {}

    def of(self, raw: bytes, n: int) -> _Template | None:
        """The template of a result of n ranks."""
        template = self._last.get(n)
        if template is None or not raw.startswith(template.records):
            template = self.get(raw[: _WORKER_BYTES * n])
            if template is not None:
                self._last[n] = template
        return template

    def keep(self, raw: bytes, ranks: tuple[WorkerWithDpRank, ...], scores: dict[Any, int]) -> None:
        """Enter a template, or now and then replace the one of these records."""
        n = len(ranks)
        records = raw[: _WORKER_BYTES * n]
        if records in self:
            self._unlike += 1
            if self._unlike % self.SELDOM:
                return
        else:
            self._held += n + 1
            if self._held > self.LIMIT:
                self.clear()
                self._last.clear()
                self._held = n + 1
        depths = int.from_bytes(raw[len(raw) - 4 * n :], "little")
        self[records] = self._last[n] = _Template(records, ranks, depths, scores.copy())


_templates: Final = _TemplateTable()
_FEW_RANKS: Final = 12  # are entered as fast as a copy is patched
_PATCH_BITS: Final = 32  # when the depths differ in more bits from the template's, the dict is made anew


def scores_in(raw: bytes, n: int) -> dict[WorkerWithDpRank, int]:
    """Make the dict of n ranks out of the bytes of a result: records, anything, depths."""
    template = _templates.of(raw, n)
    if template is None:
        ranks = ranks_in(raw[: _WORKER_BYTES * n])
    elif n <= _FEW_RANKS:
        return dict(zip(template.ranks, _depths_in(raw, n), strict=True))
    else:
        ranks, first = template.ranks, len(raw) - 4 * n
        other = int.from_bytes(raw[first:], "little") ^ template.depths
        if other.bit_count() <= _PATCH_BITS:
            scores = template.scores.copy()
            while other:
                i = (other.bit_length() - 1) >> 5
                (scores[ranks[i]],) = _DEPTH.unpack_from(raw, first + 4 * i)
                other ^= (other >> (32 * i)) << (32 * i)
            return scores
    scores = dict(zip(ranks, _depths_in(raw, n), strict=True))
    if n <= _templates.LONGEST and len(scores) == n:  # each rank once, so that a patch is right
        _templates.keep(raw, ranks, scores)
    return scores


_matches: Final[dict[bytes, tuple[Match, ...]]] = {}
_MATCHES_LIMIT: Final = 4_096
_MATCHES_LONGEST: Final = 4


def matches_in(raw: bytes) -> tuple[Match, ...]:
    """Turn the bytes of a result into matches, in its order; made once for short ones."""
    matches = _matches.get(raw)
    if matches is None:
        n = len(raw) // (_WORKER_BYTES + 4)
        matches = tuple(map(Match, ranks_in(raw[: _WORKER_BYTES * n]), _depths_in(raw, n)))
        if n <= _MATCHES_LONGEST:
            if len(_matches) >= _MATCHES_LIMIT:
                _matches.clear()
            _matches[raw] = matches
    return matches


def rank_records(ranks: Iterable[WorkerWithDpRank]) -> bytes:
    """The records of ranks, sorted, each once."""
    return b"".join([RECORD.pack(*rank) for rank in sorted(set(ranks))])
