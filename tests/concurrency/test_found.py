"""Operations that once went wrong, as small as they could be made."""

from __future__ import annotations

import pytest

from tests.backends import BACKENDS
from tests.differential import replay
from tests.reference import MASK, Op

A, B, C = (MASK - 1, 3), (MASK, 3), (MASK - 2, 3)


@pytest.mark.parametrize("name", ["shm", "shm-lanes"])
def test_entry_of_a_dead_node(name: str) -> None:
    """The node of a lookup entry was reclaimed, and its list of coverage is another node's by now."""
    ops: list[Op] = [
        ("store", (10, 1), None, [(1, 2)]),
        ("store", A, None, [(1, 2)]),
        ("store", B, None, [(1, 2)]),
        ("store", C, None, [(3, 4)]),
        ("store", (11, 0), None, [(1, 2)]),
        ("store", (11, 1), None, [(3, 4), (5, 6)]),
        ("store", (11, 1), 6, []),
        ("store", (12, 1), None, [(3, 4), (7, 8)]),
        ("clear", A),
        ("remove_worker", 11),
        ("clear", B),
        ("store", B, None, [(3, 4)]),
        ("remove_worker", 10),
        ("store", (10, 1), None, [(3, 4), (7, 8)]),
        ("store", (12, 1), 2, []),
    ]
    replay(BACKENDS[name].open, ops)
