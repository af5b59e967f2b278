"""A KeyboardInterrupt at any line of a call that takes in a rank or lets it go: the lookup stays whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from shmtrie.capacity import Capacity
from shmtrie.index import Index
from shmtrie.writer import Writer
from tests.system.children import Child
from tests.system.index_tools import assert_valid, interrupted, open_index, scores


@pytest.fixture
def index() -> Iterator[Index]:
    with open_index(Capacity(blocks=20_000, workers=8, lanes=2)) as made:
        yield made
        assert_valid(made)


def run(index: Index, case: str) -> int:
    """Interrupt the call of a case after 1, 2, 3 lines and so on; how many it has."""
    for steps in itertools.count(1):
        blocks = [steps * 10 + k for k in (1, 2, 3)]

        def store(writer: Writer, rank: int, blocks: list[int] = blocks) -> None:
            writer.store(rank, None, blocks, blocks)

        with index.writer() as writer:
            store(writer, 2)
            call = lambda: store(writer, 1)  # noqa: E731
            if case == "take over":
                with index.writer() as other:
                    store(other, 1)
            elif case == "release":
                store(writer, 1)
                call = lambda: writer.release(1)  # noqa: E731
            more = interrupted(call, steps)
            store(writer, 1)
            writer.remove(2, blocks[::-1])
            writer.remove(1, blocks[:0:-1])
            assert scores(index, blocks) == {(1, 0): 1}, f"after {steps} lines"
            writer.remove_worker(1)
            writer.remove_worker(2)
        if not more:
            break
    return steps


@pytest.mark.parametrize("case", ["register", "take over", "release"])
def test_what_a_rank_removes_is_found(index: Index, case: str) -> None:
    """Another rank of the lane holds the same blocks: its entries serve both, and must not go with it.

    A rank that its lane did not know as its own lost them, and its removals were passed over: an overcount.
    In a child: a tracer that raises inside of an except clause leaves an exception with the thread.
    """
    with Child(lambda _: run(index, case)) as child:
        assert child.hear() > 50
