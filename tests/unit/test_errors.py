"""errors.py: the status codes and the map from them to exceptions."""

from __future__ import annotations

import pickle

import pytest

from shmtrie import errors
from shmtrie.errors import EventStatus, ShmtrieError, exception_for


def test_codes_are_fixed() -> None:
    """Arrays of codes cross processes and files, so the numbers never change."""
    assert {status.name: int(status) for status in EventStatus} == {
        "OK": 0,
        "PARENT_BLOCK_NOT_FOUND": 1,
        "BLOCK_NOT_FOUND": 2,
        "INVALID_BLOCK_SEQUENCE": 3,
        "CAPACITY_EXCEEDED": 4,
        "BUSY": 5,
        "RANK_OWNED_ELSEWHERE": 6,
        "LANE_LOST": 7,
        "SEGMENT_RETIRED": 8,
        "UNSUPPORTED": 9,
        "SEGMENT_CORRUPT": 10,
    }


@pytest.mark.parametrize("status", [s for s in EventStatus if s is not EventStatus.OK])
def test_every_code_but_ok_has_its_exception(status: EventStatus) -> None:
    error = exception_for(int(status), "what happened")
    assert isinstance(error, ShmtrieError)
    assert type(error) is not ShmtrieError
    assert error.status is status
    assert str(error) == "what happened"


@pytest.mark.parametrize("status", [0, 11, -1, 255])
def test_no_exception_for_ok_or_unknown_codes(status: int) -> None:
    with pytest.raises(ValueError):
        exception_for(status, "")


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n not in ("EventStatus", "exception_for")])
def test_exceptions_share_the_base_and_survive_pickling(name: str) -> None:
    cls = getattr(errors, name)
    assert issubclass(cls, ShmtrieError)
    assert cls.__doc__
    again = pickle.loads(pickle.dumps(cls("kv: lane 3 is gone")))
    assert type(again) is cls
    assert str(again) == "kv: lane 3 is gone"
