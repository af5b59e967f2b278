"""What queries return: `OverlapScores`, `BatchScores`, and the small tuples beside them.

A query hands over one ``bytes`` object; everything a caller may ask of a result is read out of it when it
is asked for. The bytes belong to the result, so later calls and writers never change an answer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from . import workers
from .workers import RECORD, WORKER_DTYPE, Match, WorkerInfo, WorkerWithDpRank, ranks_in, scores_in

__all__ = [
    "WORKER_DTYPE",
    "BatchScores",
    "Match",
    "OverlapScores",
    "WorkerInfo",
    "WorkerWithDpRank",
]

_WORKER_BYTES: Final = RECORD.size
_ITEM_BYTES: Final = _WORKER_BYTES + 4
_ITEM_BYTES_DETAILS: Final = _ITEM_BYTES + 8


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
        record = RECORD.pack
        raw = b"".join([record(worker_id, dp_rank) for worker_id, dp_rank in workers])
        if last_hashes is not None:
            raw += struct.pack(f"<{n}Q", *last_hashes)
        return cls(raw + struct.pack(f"<{n}I", *depths), last_hashes is not None)

    @property
    def scores(self) -> dict[WorkerWithDpRank, int]:
        """dict of WorkerWithDpRank to int: matched blocks; built at the first use."""
        scores = self._scores
        if scores is None:
            scores = None if self._details else workers.copy_scores(self._raw)
            if scores is None:
                scores = self._build()
            self._scores = scores
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
        return scores_in(self._raw, len(self))

    def _content(self) -> dict[WorkerWithDpRank, Any]:
        """Everything the result says, per rank; from the bytes, so that edits of `scores` do not count."""
        if not self._details:
            return self._build()
        said = zip(self.depths.tolist(), self.last_hashes.tolist(), strict=True)
        return dict(zip(ranks_in(self.workers.tobytes()), said, strict=True))

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
