"""Readers that pause at each of their points while the tree changes under them."""

from __future__ import annotations

import pytest

from shmtrie.kernels.hooks import Site
from tests.concurrency.stage import Stage, read_race

pytestmark = pytest.mark.race

POINTS = (Site.READER_LOADED, Site.READER_NODE, Site.READER_CHECK)

#: name: setup, query, what happens meanwhile
CHANGES = {
    "truncation": ("S 1 1-2; S 2 1-6", "1-6", "R 2 1-6 @ 3-6"),
    "truncation and another tail": ("S 1 1-2; S 2 1-6", "1-6", "R 2 1-6 @ 3-6; S 1 1-2 + 8,9"),
    "truncation to a smaller extent": ("S 1 1-2; S 2 1-40", "1-40", "R 2 1-40 @ 3-40; S 3 51-90"),
    "split": ("S 1 1-6; S 2 1-6", "1-6", "S 2 1-3,9"),
    "split at the head": ("S 1 1-6; S 2 1-6", "1-6", "S 2 1,9"),
    "split and use of the old extent": ("S 1 1-40; S 2 1-40", "1-40", "S 2 1,2,99; S 3 201-238; S 3 301-338"),
    "two splits": ("S 1 1-6; S 2 1-6", "1-6", "S 2 1-4,9; S 2 1-2,9"),
    "extension": ("S 1 1-4; S 2 1-4", "1-6", "S 2 1-4 + 5,6"),
    "extension to a longer extent": ("S 1 1-4; S 2 1-4", "1-20", "S 2 1-4 + 5-20; S 3 31-34"),
    "first child": ("S 1 1-4; S 2 1-2; S 3 1-4", "1-4", "S 2 1-2 + 8,9"),
    "reclaim": ("S 1 1-3; S 2 1-3,4; S 3 1-3,5", "1-3,5", "R 3 1-3,5 @ 4; R 3 1-3"),
    "reclaim and use of the id": ("S 1 1; S 3 5; S 3 5 + 6", "5,6", "R 3 5,6; S 2 5,7; S 2 8"),
    "reclaim upward": ("S 1 9; S 3 1; S 3 1,2; S 3 1,3", "1,2", "R 3 1,2 @ 2; R 3 1,3; S 2 1,2"),
    "toggling": ("S 1 1-8; S 2 1-8", "1-8", "R 2 1-8; S 2 1-8"),
    "coverage grows into a list": ("S 1 1-4; S 2 1-4; S 3 1-4", "1-4", "S 4 1-4; S 5 1-4; S 6 1-4"),
    "aliases": (
        "X 1 . + 1:901,2:902,3:903; X 2 . + 1:801,2:802,3:803",
        "1-3",
        "X 2 . + 1:701,2:702; X 3 . + 1:601,9:609",
    ),
    "clear and store": ("S 1 1-4; S 2 1-4", "1-4", "C 2; S 2 1-2"),
    "removal of a worker": ("S 1 1-4; S 2 1-4", "1-4", "W 2; S 5 1-3"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_readers_see_one_moment(stage: Stage, change: str) -> None:
    """R30 to R33: what a reader counts was so at one moment of its call; a rank that nobody touches is
    counted in full.
    """
    setup, query, script = CHANGES[change]
    assert read_race(stage, setup, query, script, POINTS) >= len(POINTS)
