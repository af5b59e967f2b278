"""Fleets of processes that the tests of a file share: reset for each test, gone before other files' tests
count processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from shmtrie.capacity import Capacity
from tests.concurrency.actor import Fleet
from tests.concurrency.contest import segment_of
from tests.concurrency.stage import Stage
from tests.reference import Rank

PATIENCE = 0.002  # seconds: a lane that pauses does not let go, so the others need not wait


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Three writers and a reader with the product's kernels."""
    with Fleet(writers=3, readers=1) as made:
        yield made


@pytest.fixture(scope="module")
def cast() -> Iterator[Fleet]:
    """Three writers and a reader with the kernels of the test build."""
    with Fleet(writers=3, readers=1, test_build=True) as made:
        yield made


@pytest.fixture
def stage(cast: Fleet) -> Iterator[Stage]:
    """A new segment for a deterministic race."""
    with segment_of(cast, "stage", Capacity(blocks=2_000, workers=64, lanes=4), PATIENCE) as index:
        yield Stage(cast, index)


@pytest.fixture
def make_stage(cast: Fleet) -> Iterator[Callable[[dict[Rank, int]], Stage]]:
    """The same, for a test that says which lane a rank has."""
    with segment_of(cast, "stage", Capacity(blocks=2_000, workers=64, lanes=4), PATIENCE) as index:
        yield lambda lanes: Stage(cast, index, lanes)
