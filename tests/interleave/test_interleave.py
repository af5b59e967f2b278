"""The models: without an edit nothing is found, with a mechanism taken out something is."""

from __future__ import annotations

import pytest

from tests.interleave.model import explore, open_world
from tests.interleave.models import ANY_GENERATION, CASES, CYCLE

CONTROLS = [(name, control) for name, case in CASES.items() for control in case.controls]


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_wrong(name: str) -> None:
    """All schedules within the bound: readers, ends, deaths and recoveries are right."""
    report = explore(CASES[name].model)
    if report.violation:
        raise report.violation
    assert report.ends and report.states > 20


@pytest.mark.parametrize(("name", "control"), CONTROLS)
def test_what_is_taken_out_is_missed(name: str, control: str) -> None:
    """A schedule is found that goes wrong without the mechanism."""
    case = CASES[name]
    report = explore(case.model, case.controls[control])
    assert report.violation is not None, f"nothing is wrong in {report.states} states without it"


def test_links_of_earlier_lives_are_not_followed() -> None:
    """They lead in a circle, and cost thousands of steps."""
    with open_world(CYCLE) as world:
        assert world.work() < 500
    with open_world(CYCLE) as world:
        assert world.work((ANY_GENERATION,)) > 4_096
