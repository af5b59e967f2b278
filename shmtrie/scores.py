"""What queries return: `OverlapScores`, `BatchScores`, and the small tuples beside them.

A query hands over one ``bytes`` object; everything a caller may ask of a result is read out of it when it
is asked for. The bytes belong to the result, so later calls and writers never change an answer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "WORKER_DTYPE",
    "BatchScores",
    "Match",
    "OverlapScores",
    "WorkerInfo",
    "WorkerWithDpRank",
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

_RECORD: Final = struct.Struct("<QI4x")
_WORKER_BYTES: Final = _RECORD.size
_ITEM_BYTES: Final = _WORKER_BYTES + 4
_ITEM_BYTES_DETAILS: Final = _ITEM_BYTES + 8


class _RankTable(dict[bytes, WorkerWithDpRank]):
    """Rank record -> the rank as Python object, made once.

    Making the 64 tuples of a typical answer costs more than the whole dict around them, and a fleet has few
    ranks, so they are kept. It is only a memo: dropping all of it at the limit is always right.
    """

    LIMIT = 1 << 17

    def __missing__(self, record: bytes) -> WorkerWithDpRank:
        if len(self) >= self.LIMIT:
            self.clear()
        rank = self[record] = WorkerWithDpRank._make(_RECORD.unpack(record))
        return rank


_ranks: Final = _RankTable()
_rank_of: Final = _ranks.__getitem__
# Whole record strings -> their ranks: prompts that share a prefix keep returning the same fleet.
_rank_lists: Final[dict[bytes, tuple[WorkerWithDpRank, ...]]] = {}
_RANK_LISTS_LIMIT: Final = 256
_RANK_LIST_LONGEST: Final = 512


def _ranks_in(records: bytes) -> tuple[WorkerWithDpRank, ...]:
    """Turn n rank records (n * 16 bytes) into n `WorkerWithDpRank`."""
    ranks = _rank_lists.get(records)
    if ranks is None:
        n = len(records) // _WORKER_BYTES
        ranks = tuple(map(_rank_of, struct.unpack("16s" * n, records)))
        if n <= _RANK_LIST_LONGEST:
            if len(_rank_lists) >= _RANK_LISTS_LIMIT:
                _rank_lists.clear()
            _rank_lists[records] = ranks
    return ranks


class OverlapScores:
    """Matched blocks per rank, for every rank with at least one.

    Parameters
    ----------
    raw : bytes
        n rank records of 16 bytes (`WORKER_DTYPE`), then, with `details`, n external hashes (uint64), then
        n depths (uint32, blocks). All little-endian.
    details : bool
        Whether `raw` holds external hashes.

    Notes
    -----
    The arrays are read-only views of `raw`. Order is the index's own; `workers`, `depths` and `last_hashes`
    are aligned. Two results are equal if they say the same of the same ranks, whatever the order; one with
    details is never equal to one without.
    """

    __slots__ = ("_details", "_raw", "_scores")

    # Runs once per query on the router's hot path: three stores, everything else is lazy.
    def __init__(self, raw: bytes, details: bool = False) -> None:
        self._raw = raw
        self._details = details
        self._scores: dict[WorkerWithDpRank, int] | None = None

    @classmethod
    def pack(
        cls,
        workers: Sequence[tuple[int, int]],
        depths: Sequence[int],
        last_hashes: Sequence[int] | None = None,
    ) -> OverlapScores:
        """Build a result from Python sequences of equal length.

        Parameters
        ----------
        workers : sequence of (int, int)
            (worker_id, dp_rank) of each rank.
        depths : sequence of int
            Matched blocks of each rank, >= 1.
        last_hashes : sequence of int, optional
            External hash, as unsigned 64-bit int, of each rank's last matched block.

        Returns
        -------
        OverlapScores
            With details if `last_hashes` is given.

        Raises
        ------
        ValueError
            If the lengths differ.
        """
        n = len(workers)
        if len(depths) != n or (last_hashes is not None and len(last_hashes) != n):
            raise ValueError("workers, depths and last_hashes must have the same length")
        record = _RECORD.pack
        raw = b"".join([record(worker_id, dp_rank) for worker_id, dp_rank in workers])
        if last_hashes is not None:
            raw += struct.pack(f"<{n}Q", *last_hashes)
        return cls(raw + struct.pack(f"<{n}I", *depths), last_hashes is not None)

    @property
    def scores(self) -> dict[WorkerWithDpRank, int]:
        """dict of WorkerWithDpRank to int: matched blocks; built at the first use."""
        scores = self._scores
        if scores is None:
            self._scores = scores = self._build()
        return scores

    @property
    def workers(self) -> npt.NDArray[np.void]:
        """Array of `WORKER_DTYPE`, shape (n,): the ranks."""
        return np.frombuffer(self._raw, WORKER_DTYPE, len(self))

    @property
    def depths(self) -> npt.NDArray[np.uint32]:
        """Array of uint32, shape (n,): matched blocks of each rank."""
        n = len(self)
        return np.frombuffer(self._raw, "<u4", n, len(self._raw) - 4 * n)

    @property
    def last_hashes(self) -> npt.NDArray[np.uint64]:
        """Array of uint64, shape (n,): each rank's own external hash of its last matched block.

        Raises
        ------
        AttributeError
            If the result has no details (`find_match_details` gives them).
        """
        if not self._details:
            raise AttributeError("last_hashes: ask with find_match_details, find_matches has no hashes")
        n = len(self)
        return np.frombuffer(self._raw, "<u8", n, _WORKER_BYTES * n)

    @property
    def frequencies(self) -> list[int]:
        """Always an empty list, a new one each time; kept for wire compatibility."""
        return []

    def _build(self) -> dict[WorkerWithDpRank, int]:
        raw = self._raw
        n = len(raw) // (_ITEM_BYTES_DETAILS if self._details else _ITEM_BYTES)
        depths = struct.unpack_from(f"<{n}I", raw, len(raw) - 4 * n)
        return dict(zip(_ranks_in(raw[: _WORKER_BYTES * n]), depths, strict=False))

    def _content(self) -> dict[WorkerWithDpRank, Any]:
        """Everything the result says, per rank; from the bytes, so that edits of `scores` do not count."""
        if not self._details:
            return self._build()
        said = zip(self.depths.tolist(), self.last_hashes.tolist(), strict=True)
        return dict(zip(_ranks_in(self.workers.tobytes()), said, strict=True))

    def __len__(self) -> int:
        return len(self._raw) // (_ITEM_BYTES_DETAILS if self._details else _ITEM_BYTES)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OverlapScores):
            return NotImplemented
        if self._details != other._details or len(self._raw) != len(other._raw):
            return False
        return self._raw == other._raw or self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = [f"({w.worker_id}, {w.dp_rank}): {d}" for w, d in list(self._build().items())[:8]]
        if len(self) > len(shown):
            shown.append(f"... {len(self)} ranks")
        return f"{type(self).__name__}({{{', '.join(shown)}}}{', details' if self._details else ''})"

    def __reduce__(self) -> tuple[type[OverlapScores], tuple[bytes, bool]]:
        return type(self), (self._raw, self._details)


class BatchScores:
    """Results of many queries in one.

    Parameters
    ----------
    offsets : ndarray of int64, shape (n + 1,)
        The results of query i are ``workers[offsets[i]:offsets[i + 1]]`` and the same slice of `depths`.
    workers : ndarray of WORKER_DTYPE, shape (m,)
        Ranks.
    depths : ndarray of uint32, shape (m,)
        Matched blocks.

    Raises
    ------
    TypeError
        If `workers` or `depths` has another dtype. (``np.concatenate`` packs structured arrays: use `join`.)
    """

    __slots__ = ("depths", "offsets", "workers")

    def __init__(
        self,
        offsets: npt.NDArray[np.int64],
        workers: npt.NDArray[np.void],
        depths: npt.NDArray[np.uint32],
    ) -> None:
        if workers.dtype != WORKER_DTYPE or depths.dtype != np.uint32:
            raise TypeError(f"workers and depths are of {workers.dtype} and {depths.dtype}")
        self.offsets = offsets
        self.workers = workers
        self.depths = depths

    @classmethod
    def join(cls, results: Sequence[OverlapScores]) -> BatchScores:
        """Put the results of single queries together.

        Parameters
        ----------
        results : sequence of OverlapScores
            One per query; hashes of details are left out.

        Returns
        -------
        BatchScores
            With read-only arrays.
        """
        offsets = np.zeros(len(results) + 1, np.int64)
        np.cumsum([len(r) for r in results], out=offsets[1:])
        workers = b"".join([r.workers.tobytes() for r in results])
        depths = b"".join([r.depths.tobytes() for r in results])
        return cls(offsets, np.frombuffer(workers, WORKER_DTYPE), np.frombuffer(depths, np.uint32))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> OverlapScores:
        """Copy the result of query `i` (negative: from the end) out as an `OverlapScores`."""
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"query {i} of {n}")
        i %= n
        part = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        return OverlapScores(self.workers[part].tobytes() + self.depths[part].tobytes())

    def __iter__(self) -> Iterator[OverlapScores]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} queries, {len(self.depths)} matches)"
