"""The scenarios of ``tests.scenarios`` on the oracle and on every index."""

from __future__ import annotations

import pytest

from tests.backends import Backend
from tests.differential import Mismatch
from tests.scenarios import SCENARIOS, Player, hashes_of, numbers, operation


@pytest.mark.parametrize("number", SCENARIOS)
def test_scenario(backend: Backend, number: str) -> None:
    with backend.open() as index:
        Player(backend, index).play(SCENARIOS[number])


@pytest.mark.parametrize("number", SCENARIOS)
def test_scenario_agrees_with_the_oracle(number: str) -> None:
    Player().play(SCENARIOS[number])


def test_early_exit_is_a_lower_bound(backend: Backend) -> None:
    """Scenario 59: one rank is left below the common prefix."""
    with backend.open() as index:
        Player(backend, index).play(SCENARIOS["59"])
        (score,) = index.find_matches([1, 2, 3], early_exit=True).scores.values()
        assert 1 <= score <= 3


def test_details_give_each_rank_its_last_hash(backend: Backend) -> None:
    """Scenario 60: also for ranks that end inside an edge or at its border."""
    with backend.open() as index:
        Player(backend, index).play(SCENARIOS["50"])
        found = index.find_match_details([1, 2, 3, 4, 5, 6])
        hashes = hashes_of([1, 2, 3, 4, 5, 6])
        last = {int(w["worker_id"]): int(h) for w, h in zip(found.workers, found.last_hashes, strict=True)}
        assert last == {0: hashes[5], 1: hashes[0], 2: hashes[2], 3: hashes[4], 4: hashes[2]}


def test_scripts_are_read_as_documented() -> None:
    assert numbers("1,5-7") == [1, 5, 6, 7]
    assert numbers(".") == []
    one, two, three = hashes_of([1, 2, 3])
    assert operation("S 0 1-3") == ("store", (0, 0), None, [(1, one), (2, two), (3, three)])
    assert operation("S 3/1 1,2 + 3") == ("store", (3, 1), two, [(3, three)])
    assert operation("S 0 1 + .") == ("store", (0, 0), one, [])
    assert operation("S 0 .") == ("store", (0, 0), None, [])
    assert operation("X 1 #101 + 2:102") == ("store", (1, 0), 101, [(2, 102)])
    assert operation("R 0 1-3 @ 3,2") == ("remove", (0, 0), [three, two])
    assert operation("R 0 #7,8") == ("remove", (0, 0), [7, 8])
    assert (operation("C 1/2"), operation("W 4")) == (("clear", (1, 2)), ("remove_worker", 4))


@pytest.mark.parametrize(
    "script", ["S 0 1-3; Q 1-3 = 0:2", "S 0 1-3; N 0 4", "S 0 1 + 2", "S 0 1-3; R 0 1-3 @ 1 !B"]
)
def test_wrong_scripts_are_noticed(script: str) -> None:
    with pytest.raises(Mismatch, match="at "):
        Player().play(script)
