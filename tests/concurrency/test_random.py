"""Random streams of three writer processes over the same few paths, beside a reader; compared each round.

``SHMTRIE_SEEDS`` says how many seeds each kind of stream gets (1).
"""

from __future__ import annotations

import os

import pytest

from shmtrie.capacity import Capacity
from tests.concurrency.actor import Fleet
from tests.concurrency.contest import contest
from tests.removals import ANY, LEAF_FIRST, MIDDLE
from tests.workload import KINDS

SEEDS = int(os.environ.get("SHMTRIE_SEEDS", "1"))


@pytest.mark.parametrize("how", ["calls", "batch"])
@pytest.mark.parametrize("removals", [LEAF_FIRST, ANY])
@pytest.mark.parametrize("kind", KINDS)
def test_contest(fleet: Fleet, kind: str, removals: str, how: str) -> None:
    """Every score, counter, dump and structure is right, at rest and while writers run."""
    for seed in range(SEEDS):
        number = 16 * seed + KINDS.index(kind) * 2 + (removals == LEAF_FIRST)
        totals = contest(fleet, number, kind, removals, how, rounds=4, ops=100)
        assert totals.ops == 1200 and totals.finds > 0


@pytest.mark.parametrize("removals", [ANY, MIDDLE])
@pytest.mark.parametrize("kind", KINDS)
def test_contest_with_exact_holes(fleet: Fleet, kind: str, removals: str) -> None:
    """The same, where a score at rest is the held prefix, whatever was removed."""
    for seed in range(SEEDS):
        number = 500 + 16 * seed + KINDS.index(kind) * 2 + (removals == MIDDLE)
        how = "batch" if number % 2 else "calls"
        totals = contest(fleet, number, kind, removals, how, rounds=4, ops=100, exact_holes=True)
        assert totals.ops == 1200 and totals.finds > 0


def test_contest_in_a_full_segment(fleet: Fleet) -> None:
    """Stores are refused for want of nodes all the time; a refused one has changed nothing."""
    small = Capacity(blocks=200, workers=16, lanes=4, nodes=1, extents=1)
    for seed in range(SEEDS):
        totals = contest(
            fleet,
            2 * seed + 1,
            "alias",
            LEAF_FIRST,
            rounds=4,
            ops=100,
            capacity=small,
            tolerate=["CapacityExceeded"],
        )
        assert totals.ops == 1200
