"""Ranks as Python objects: the small tuples that say which rank, and how they are read out of results.

Making them costs more than all the rest of an answer, so they are made once and kept, in memos of bounded
size: forgetting any of it at any time is always right.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
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
    """A dict of scores that was made before: bytes of its result, its ranks in their order."""

    raw: bytes
    ranks: tuple[WorkerWithDpRank, ...]
    scores: dict[WorkerWithDpRank, int]


LONGEST: Final = 1 << 11  # ranks of a template
_LIMIT: Final = 1 << 15  # of all together
_SELDOM: Final = 8  # results that are unlike their template until one of them replaces it

#: By number of ranks the last template of so many: comparing costs less than hashing the records.
last_templates: Final[list[_Template | None]] = [None] * (LONGEST + 1)
#: Of the bytes of a result without details: a copy of the last template's dict with these depths, or None.
copy_scores: Callable[[bytes], dict[WorkerWithDpRank, int] | None] = lambda raw: None  # noqa: E731


class _TemplateTable(dict[bytes, _Template]):
    """Rank records -> a dict to copy.

    Prompts that share a prefix keep returning the same fleet, and a copy costs a twentieth of hashing its
    ranks. As above only a memo.
    """

    def __init__(self) -> None:
        self._held = self._unlike = 0

    def keep(self, raw: bytes, ranks: tuple[WorkerWithDpRank, ...], scores: dict[Any, int]) -> None:
        """Enter a template, or now and then replace the one of these records."""
        n = len(ranks)
        records = raw[: _WORKER_BYTES * n]
        if records in self:
            self._unlike += 1
            if self._unlike % _SELDOM:
                return
        else:
            self._held += n + 1
            if self._held > _LIMIT:
                self.clear()
                last_templates[:] = [None] * len(last_templates)
                self._held = n + 1
        self[records] = last_templates[n] = _Template(raw, ranks, scores.copy())


_templates: Final = _TemplateTable()


def scores_in(raw: bytes, n: int) -> dict[WorkerWithDpRank, int]:
    """Make the dict of n ranks out of the bytes of a result: records, anything, depths."""
    records = raw[: _WORKER_BYTES * n]
    template = _templates.get(records)
    if template is not None:
        last_templates[n] = template
    ranks = ranks_in(records) if template is None else template.ranks
    scores = dict(zip(ranks, _depths_in(raw, n), strict=True))
    # each rank once, so that a patch is right; no hashes in between, so that depths are where a copy looks
    if n <= LONGEST and len(scores) == n and len(raw) == (_WORKER_BYTES + 4) * n:
        _templates.keep(raw, ranks, scores)
    return scores


#: The bytes of a result -> its matches.
known_matches: Final[dict[bytes, tuple[Match, ...]]] = {}
_MATCHES_LIMIT: Final = 4_096
_MATCHES_LONGEST: Final = 4


def matches_in(raw: bytes) -> tuple[Match, ...]:
    """Turn the bytes of a result into matches, in its order; made once for short ones."""
    matches = known_matches.get(raw)
    if matches is None:
        n = len(raw) // (_WORKER_BYTES + 4)
        matches = tuple(map(Match, ranks_in(raw[: _WORKER_BYTES * n]), _depths_in(raw, n)))
        if n <= _MATCHES_LONGEST:
            if len(known_matches) >= _MATCHES_LIMIT:
                known_matches.clear()
            known_matches[raw] = matches
    return matches


def rank_records(ranks: Iterable[WorkerWithDpRank]) -> bytes:
    """The records of ranks, sorted, each once."""
    return b"".join([RECORD.pack(*rank) for rank in sorted(set(ranks))])
