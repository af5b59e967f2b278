"""The judge of answers given while writers ran: right ones pass, each kind of wrong one is seen."""

from __future__ import annotations

import numpy as np
import pytest

from tests.concurrency.judge import Calls, History, Verdict, judge, prefix_of
from tests.reference import Rank

RANK: Rank = (7, 1)


def history() -> History:
    """Nothing; [10, 20]: 4 blocks stored; [30, 40]: the tail cut to 2; [50, 60]: all gone."""
    made = History(held=[[0]], reachable=[[0]])
    made.add(10, 20, [0b1111], [4])
    made.add(30, 40, [0b0011], [2])
    made.add(50, 60, [0], [0])
    return made


def verdict(begin: int, end: int, score: int, gave_up: bool = False, leaf_first: bool = True) -> Verdict:
    """What is said of one find."""
    calls = Calls(
        begin=np.array([begin]),
        end=np.array([end]),
        query=np.array([0]),
        answer=np.array([0]),
        given_up=np.array([gave_up]),
        answers=[{RANK: score} if score else {}],
    )
    return judge(RANK, history(), calls, leaf_first)


@pytest.mark.parametrize(
    ("begin", "end", "allowed"),
    [
        (1, 9, {0}),  # before everything
        (1, 11, {0, 4}),  # beside the store
        (21, 29, {4}),  # after it returned: visible, whole
        (25, 35, {4, 3, 2}),
        (41, 49, {2}),
        (25, 70, {4, 3, 2, 1, 0}),
        (61, 70, {0}),
    ],
)
def test_scores_by_time(begin: int, end: int, allowed: set[int]) -> None:
    for score in range(6):
        found = verdict(begin, end, score)
        if score in allowed:
            assert not found.wrong, found.wrong
        elif score > max(allowed):
            assert found.wrong and found.wrong[0].startswith("over")
        elif found.touched:  # a store or removal under way may be seen in part
            assert not found.wrong and found.low == (score < min(allowed))
        else:
            assert found.wrong and found.wrong[0].startswith("dip")


def test_a_find_that_gave_up_is_a_lower_bound() -> None:
    assert not verdict(21, 29, 1, gave_up=True).wrong
    assert verdict(21, 29, 5, gave_up=True).wrong


def test_blocks_of_several_moments_count_together_without_leaf_first_order() -> None:
    """A head that comes back while the tail goes: each counted block was held at some instant."""
    made = History(held=[[0b1100]], reachable=[[0]])
    made.add(10, 20, [0b0011], [2])
    calls = Calls(
        np.array([11]), np.array([15]), np.array([0]), np.array([0]), np.array([False]), [{RANK: 4}]
    )
    assert not judge(RANK, made, calls, leaf_first=False).wrong
    assert judge(RANK, made, calls, leaf_first=True).wrong


def test_prefix_of() -> None:
    bits = np.array([0, 1, 0b1011, 0b111, 2**63 - 1], np.uint64)
    assert prefix_of(bits).tolist() == [0, 1, 2, 3, 63]
