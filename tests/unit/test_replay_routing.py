"""Choosing workers: overlap against load, and the baselines."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from shmtrie.replay.blocks import plan
from shmtrie.replay.routing import Backlog, RandomChoice, RoundRobin, choose, service_rate
from shmtrie.replay.trace import TraceRequest


def pick(backlog: list[float], scores: dict[int, int], blocks: int, number: int = 0) -> tuple[int, int]:
    workers = np.array(list(scores), np.uint64)
    depths = np.array(list(scores.values()), np.uint32)
    return choose(np.array(backlog, float), workers, depths, blocks, number)


def test_overlap_wins_when_load_is_even() -> None:
    assert pick([0, 0, 0, 0], {2: 3, 1: 7}, 10) == (1, 7)
    assert pick([5, 5, 5, 5], {2: 3, 1: 7}, 10) == (1, 7)


def test_overlap_is_worth_as_much_load_as_it_saves() -> None:
    assert pick([0, 6.5, 0], {1: 7}, 10) == (1, 7)
    assert pick([0, 7.5, 1], {1: 7}, 10) == (0, 0)
    assert pick([9, 7.5, 8], {1: 1, 2: 3}, 10) == (2, 3)


def test_ties_go_round() -> None:
    assert [pick([1, 0, 0, 0], {}, 4, number)[0] for number in range(6)] == [1, 2, 3, 1, 2, 3]
    assert [pick([0, 0, 0], {0: 2, 2: 2}, 4, number) for number in range(3)] == [(0, 2), (2, 2), (0, 2)]


def test_unknown_workers_are_passed_over() -> None:
    assert pick([0, 0], {2**64 - 1: 9, 2: 9, 1: 1}, 10) == (1, 1)


def test_backlog_drains() -> None:
    backlog = Backlog(3, rate=0.5)
    backlog.add(0, 10)
    backlog.add(1, 2)
    backlog.advance(10.0)
    assert backlog.blocks.tolist() == [5, 0, 0]
    backlog.advance(5.0)  # never backwards
    assert backlog.now == 10 and backlog.blocks.tolist() == [5, 0, 0]
    copy = Backlog.at(backlog.blocks, 1.0, backlog.now)
    copy.advance(12.0)
    assert copy.blocks.tolist() == [3, 0, 0] and backlog.blocks.tolist() == [5, 0, 0]


@pytest.mark.parametrize("workers", [1, 10])
def test_rate_keeps_up_with_the_whole_trace(workers: int) -> None:
    trace = [TraceRequest(100.0 * i, 1024, 512, (2 * i, 2 * i + 1)) for i in range(11)]
    rate = service_rate(plan(trace).requests, workers)
    assert rate * workers * 1000 == pytest.approx(11 * 3)


def test_rate_of_a_trace_without_duration_or_work() -> None:
    assert service_rate([], 4) > 0
    assert service_rate(plan([TraceRequest(5.0, 0, 0, ())]).requests, 4) > 0


def test_round_robin() -> None:
    policy = RoundRobin(3)
    assert [policy.choose() for _ in range(5)] == [0, 1, 2, 0, 1]


def test_random_is_even_and_deterministic() -> None:
    draws = [RandomChoice(4, seed=1) for _ in range(2)]
    chosen = [[policy.choose() for _ in range(4000)] for policy in draws]
    assert chosen[0] == chosen[1]
    assert all(900 < count < 1100 for count in Counter(chosen[0]).values())
