"""scores.py: results are read lazily out of bytes that belong to them."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from shmtrie import scores as scores_module
from shmtrie.scores import WORKER_DTYPE, BatchScores, Match, OverlapScores, WorkerWithDpRank

TOP = (1 << 64) - 1
RANKS = [(7, 0), (TOP, (1 << 32) - 1), (0, 3)]


def test_rank_is_a_tuple_with_names() -> None:
    rank = WorkerWithDpRank(7, 2)
    assert isinstance(rank, tuple)
    assert rank == (7, 2)
    assert {rank: 1}[(7, 2)] == 1  # type: ignore[index]
    assert (rank.worker_id, rank.dp_rank) == (7, 2)
    assert WorkerWithDpRank(7).dp_rank == 0
    assert Match(rank, 3).worker is rank


def test_worker_dtype_is_the_record() -> None:
    assert WORKER_DTYPE.itemsize == 16
    fields = WORKER_DTYPE.fields
    assert fields is not None
    assert (fields["worker_id"][1], fields["dp_rank"][1]) == (0, 8)


def test_reads_what_was_packed() -> None:
    scores = OverlapScores.pack(RANKS, [3, (1 << 32) - 1, 1])
    assert len(scores) == 3
    assert scores.scores == {(7, 0): 3, (TOP, (1 << 32) - 1): (1 << 32) - 1, (0, 3): 1}
    assert all(type(rank) is WorkerWithDpRank for rank in scores.scores)
    assert scores.workers.dtype == WORKER_DTYPE
    assert scores.workers.tolist() == RANKS
    assert scores.depths.dtype == np.uint32
    assert scores.depths.tolist() == [3, (1 << 32) - 1, 1]
    assert scores.frequencies == []
    with pytest.raises(AttributeError, match="find_match_details"):
        _ = scores.last_hashes


def test_details_keep_hashes_between_workers_and_depths() -> None:
    scores = OverlapScores.pack(RANKS, [3, 2, 1], [0, TOP, 1 << 63])
    assert len(scores) == 3
    assert scores.last_hashes.dtype == np.uint64
    assert scores.last_hashes.tolist() == [0, TOP, 1 << 63]
    assert scores.depths.tolist() == [3, 2, 1]
    assert scores.scores[WorkerWithDpRank(*RANKS[1])] == 2


@pytest.mark.parametrize("details", [False, True])
def test_empty(details: bool) -> None:
    scores = OverlapScores(b"", details)
    assert not scores
    assert scores.scores == {}
    assert len(scores.workers) == len(scores.depths) == 0
    assert scores == OverlapScores.pack([], [], [] if details else None)


def test_padding_does_not_count() -> None:
    """The last four bytes of a record are nobody's."""
    raw = bytearray(OverlapScores.pack([(7, 1)], [4])._raw)
    raw[12:16] = b"\xff" * 4
    assert OverlapScores(bytes(raw)) == OverlapScores.pack([(7, 1)], [4])


def test_mutation_stays_in_one_result() -> None:
    raw = OverlapScores.pack(RANKS, [3, 2, 1])._raw
    edited, other = OverlapScores(raw), OverlapScores(raw)
    edited.scores.clear()
    edited.frequencies.append(9)
    assert len(other.scores) == 3
    assert other.frequencies == edited.frequencies == []
    assert edited == other
    with pytest.raises(ValueError, match="read-only"):
        edited.depths[0] = 5
    with pytest.raises(ValueError, match="read-only"):
        edited.workers["worker_id"][0] = 5


def test_equality() -> None:
    base = OverlapScores.pack([(1, 0), (2, 0)], [3, 2])
    assert base == OverlapScores.pack([(2, 0), (1, 0)], [2, 3])
    assert base != OverlapScores.pack([(1, 0), (2, 0)], [3, 1])
    assert base != OverlapScores.pack([(1, 0)], [3])
    assert base != OverlapScores.pack([(1, 0), (2, 0)], [3, 2], [8, 9])
    assert base != {(1, 0): 3, (2, 0): 2}
    details = OverlapScores.pack([(1, 0), (2, 0)], [3, 2], [8, 9])
    assert details == OverlapScores.pack([(2, 0), (1, 0)], [2, 3], [9, 8])
    assert details != OverlapScores.pack([(2, 0), (1, 0)], [2, 3], [8, 9])
    with pytest.raises(TypeError, match="unhashable"):
        hash(base)


def test_copies_and_repr() -> None:
    scores = OverlapScores.pack(RANKS, [3, 2, 1], [4, 5, 6])
    for twin in (copy.copy(scores), copy.deepcopy(scores), pickle.loads(pickle.dumps(scores))):
        assert twin == scores
        assert twin.last_hashes.tolist() == [4, 5, 6]
    assert repr(OverlapScores.pack([(7, 1)], [4])) == "OverlapScores({(7, 1): 4})"
    assert "20 ranks" in repr(OverlapScores.pack([(i, 0) for i in range(20)], [1] * 20))


def test_pack_wants_equal_lengths() -> None:
    with pytest.raises(ValueError, match="same length"):
        OverlapScores.pack([(1, 0)], [1, 2])
    with pytest.raises(ValueError, match="same length"):
        OverlapScores.pack([(1, 0)], [1], [])


def test_memo_of_ranks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores_module, "_RANK_LISTS_LIMIT", 4)
    monkeypatch.setattr(scores_module._RankTable, "LIMIT", 8)
    scores_module._rank_lists.clear()  # what earlier tests left counts, too
    scores_module._ranks.clear()
    for i in range(50):
        assert OverlapScores.pack([(i, 0), (i, 1)], [1, 2]).scores == {(i, 0): 1, (i, 1): 2}
        assert len(scores_module._rank_lists) <= 4
        assert len(scores_module._ranks) <= 8
    many = [(i, 5) for i in range(scores_module._RANK_LIST_LONGEST + 1)]
    lists = len(scores_module._rank_lists)
    assert list(OverlapScores.pack(many, range(1, len(many) + 1)).scores) == many
    assert len(scores_module._rank_lists) == lists


def test_batch_gives_one_result_per_query() -> None:
    workers = np.array([(1, 0), (2, 0), (1, 0)], WORKER_DTYPE)
    batch = BatchScores(np.array([0, 2, 2, 3]), workers, np.array([3, 1, 5], np.uint32))
    assert len(batch) == 3
    assert [r.scores for r in batch] == [{(1, 0): 3, (2, 0): 1}, {}, {(1, 0): 5}]
    assert batch[-1] == batch[2]
    first = batch[0]
    batch.depths[0] = 9
    assert first.scores[WorkerWithDpRank(1)] == 3
    for outside in (3, -4):
        with pytest.raises(IndexError):
            _ = batch[outside]
    assert repr(batch) == "BatchScores(3 queries, 3 matches)"


def test_join_and_the_dtype_of_ranks() -> None:
    """np.concatenate drops the padding of rank records, which would garble every result cut out of it."""
    results = [
        OverlapScores.pack([(1, 2), (3, 4)], [5, 6]),
        OverlapScores(b""),
        OverlapScores.pack([(7, 0)], [1]),
    ]
    batch = BatchScores.join(results)
    assert list(batch) == results
    assert batch.offsets.tolist() == [0, 2, 2, 3]
    assert (len(BatchScores.join([])), len(BatchScores.join([]).depths)) == (0, 0)
    packed = np.concatenate([r.workers for r in results])
    with pytest.raises(TypeError):
        BatchScores(batch.offsets, packed, batch.depths)
    with pytest.raises(TypeError):
        BatchScores(batch.offsets, batch.workers, batch.depths.astype(np.int64))
