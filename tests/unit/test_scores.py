"""scores.py: results are read lazily out of bytes that belong to them."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest

from shmtrie import fastscores
from shmtrie import workers as workers_module
from shmtrie.pyframe import available
from shmtrie.scores import WORKER_DTYPE, BatchScores, Match, OverlapScores, WorkerWithDpRank
from tests.system.index_tools import assert_no_leak

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
    templates = workers_module._TemplateTable()
    monkeypatch.setattr(workers_module, "_templates", templates)
    monkeypatch.setattr(workers_module, "_LIMIT", 40)
    monkeypatch.setattr(workers_module, "LONGEST", 30)
    monkeypatch.setattr(workers_module._RankTable, "LIMIT", 16)
    workers_module._ranks.clear()  # what earlier tests left counts, too
    for i in range(50):
        ranks = [(i, k) for k in range(9)]
        assert OverlapScores.pack(ranks, range(1, 10)).scores == dict(zip(ranks, range(1, 10), strict=True))
        assert 1 <= len(templates) <= 4
        assert len(workers_module._ranks) <= 16
    before = dict(templates)
    many = [(i, 5) for i in range(31)]
    assert list(OverlapScores.pack(many, range(1, len(many) + 1)).scores) == many
    assert templates == before


def test_memo_of_matches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "_MATCHES_LIMIT", 3)
    workers_module.known_matches.clear()
    for i in range(20):
        raw = OverlapScores.pack([(i, 2), (1, i)], [7, i + 1])._raw
        assert workers_module.matches_in(raw) == (((i, 2), 7), ((1, i), i + 1))
        assert workers_module.matches_in(raw) is workers_module.matches_in(raw)
        assert len(workers_module.known_matches) <= 3
    long = OverlapScores.pack([(k, 0) for k in range(9)], range(1, 10))._raw
    assert [match.depth for match in workers_module.matches_in(long)] == list(range(1, 10))
    assert long not in workers_module.known_matches


BUILTIN = pytest.param(True, marks=pytest.mark.skipif(not available(), reason="no builtins"))


@pytest.fixture(params=[False, BUILTIN], ids=["plain", "builtin"])
def copied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """No templates yet; copied in one way or the other. What the builtin has copied."""
    workers_module.last_templates[:] = [None] * len(workers_module.last_templates)
    monkeypatch.setattr(workers_module, "_templates", workers_module._TemplateTable())
    done: list[bytes] = []

    def copy_scores(raw: bytes) -> dict[Any, int] | None:
        scores = builtin(raw)
        done.extend([raw] * (scores is not None))
        return scores

    if request.param:
        fastscores.install()
        builtin = workers_module.copy_scores
        monkeypatch.setattr(workers_module, "copy_scores", copy_scores)
    else:
        monkeypatch.setattr(workers_module, "copy_scores", lambda raw: None)
    return done


def test_scores_from_a_template_are_a_dict_of_their_own(
    copied: list[bytes], request: pytest.FixtureRequest
) -> None:
    """Few depths differ, many, all: each dict says what its bytes say, and editing one changes no other."""
    rng = random.Random(3)
    kept: list[tuple[OverlapScores, dict[Any, int]]] = []
    for n in (1, 4, 5, 17, 64):
        ranks = [(2**64 - 1 - k, k % 3) for k in range(n)]
        for _ in range(60):
            depths = [rng.choice([1, 1, 2])] * n
            for i in rng.sample(range(n), rng.choice([0, 1, min(3, n), n])):
                depths[i] = rng.choice([1, 7, 2**31 + 5, 2**32 - 1])
            # in every other one the same ranks stand in another order
            order = ranks if rng.random() < 0.7 else ranks[::-1]
            result = OverlapScores.pack(order, depths, [3] * n if rng.random() < 0.2 else None)
            expected = dict(zip(order, depths, strict=True))
            assert result.scores == expected and list(result.scores) == order
            assert type(result.scores) is dict
            kept.append((result, expected))
            if rng.random() < 0.3:
                OverlapScores(result._raw, result._details).scores.clear()
    assert all(result.scores == expected for result, expected in kept)
    assert len(workers_module._templates) >= 3
    assert (len(copied) > 50) == ("builtin" in request.node.name)


@pytest.mark.skipif(not available(), reason="no builtins")
def test_what_the_builtin_leaves_to_others() -> None:
    fastscores.install()
    copy_scores: Any = workers_module.copy_scores
    result = OverlapScores.pack([(5, 0), (6, 0)], [3, 4])
    assert result.scores and copy_scores(result._raw) == result.scores
    for wrong in (b"x", b"x" * 19, b"x" * 21, bytearray(result._raw), None, 5, "x" * 40, b"x" * 20 * 5_000):
        assert copy_scores(wrong) is None
    assert copy_scores() is None and copy_scores(result._raw, 2) is None
    # more than half of the depths are others
    assert copy_scores(OverlapScores.pack([(5, 0), (6, 0)], [8, 9])._raw) is None
    assert copy_scores(OverlapScores.pack([(5, 0), (7, 0)], [3, 4])._raw) is None


@pytest.mark.skipif(not available(), reason="no builtins")
def test_no_leak_of_scores() -> None:
    fastscores.install()
    ranks = [(10**6 + k, 0) for k in range(40)]
    raws = [OverlapScores.pack(ranks, [7] * k + [10**6 + k] + [7] * (39 - k))._raw for k in range(40)]
    rank, none = workers_module.ranks_in(raws[0][:16])[0], None
    template: Any = (OverlapScores(raws[0]).scores, workers_module.last_templates[40])[1]

    def repeat() -> None:
        for _ in range(100):
            for raw in raws:
                assert workers_module.copy_scores(raw)

    counted = (rank, none, 7, template, template.scores, template.raw, raws[3])
    assert_no_leak(repeat, counted)


def test_a_rank_that_is_there_twice(copied: list[bytes]) -> None:
    twice = [(1, 0)] * 2 + [(k, 0) for k in range(2, 8)]
    for depths in ([1, 2, 3, 3, 3, 3, 3, 3], [9, 2, 3, 3, 3, 3, 3, 3], [9, 9, 3, 3, 3, 3, 3, 4]):
        assert OverlapScores.pack(twice, depths).scores == dict(zip(twice, depths, strict=True))
    assert not copied


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
