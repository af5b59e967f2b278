"""A segment with a few ranks, for tests of the calls that ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from shmtrie.capacity import Capacity
from shmtrie.index import Index
from tests.system.index_tools import HALF, TOP, open_index
from tests.system.test_index_input import LOCAL

__all__ = ["ALONE", "LOCAL", "RANKS", "U64", "raised", "ranked_index"]

RANKS: dict[Any, int] = {(TOP, 2**32 - 1): 4, (2, 0): 3, (HALF, 1): 1}  # blocks of LOCAL that each holds
U64 = np.array([*LOCAL, 9, 9], np.uint64)
ALONE = [100, 101, 102]  # three nodes; (1001, 0) holds all of it, (1002, 0) the first block


@contextmanager
def ranked_index(hint: str) -> Iterator[Index]:
    """An index that holds RANKS and ALONE."""
    with open_index(Capacity(blocks=5_000, workers=300, lanes=2), hint) as made, made.writer() as w:
        for rank, depth in RANKS.items():
            w.store(rank, None, LOCAL[:depth], [(rank[0] + k) % 2**64 for k in range(depth)])
        w.store(1_001, None, ALONE, ALONE)
        w.store(1_002, None, [*ALONE[:2], 109], [*ALONE[:2], 109])
        w.remove(1_002, [109, ALONE[1]])
        yield made


def raised(call: Callable[[], Any]) -> Any:
    """The result of a call, or (type, text) of its exception."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)
