"""Calls of an index in the middle of other calls of it: by buffers, conversions and signal handlers."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shmtrie import fastcall
from shmtrie.errors import StaleHandle
from shmtrie.index import Index
from shmtrie.kernels import query as query_kernels
from shmtrie.pyapi import F_ENTERED
from tests.backends import pairs
from tests.system.index_tools import TOP
from tests.system.ranked import ALONE, LOCAL, RANKS, U64, ranked_index

pytestmark = pytest.mark.skipif(not fastcall.available(), reason="no builtins on this interpreter")


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    """Three ranks along one chain, two along another."""
    with ranked_index("inside") as made:
        yield made


def test_a_query_while_another_one_takes_its_hashes(index: Index) -> None:
    """Taking a buffer may run Python code, and other threads then: they are answered, too."""
    mapped = U64.view(type("Subclass", (np.ndarray,), {}))
    with Index.attach(index.name) as handle:
        frames: list[Any] = [getattr(call, "__self__") for call in (handle._find, handle._best)]  # noqa: B009
        for frame in frames:
            frame[F_ENTERED // 8] = 1
        forms = (U64, list(U64.tolist()), array("Q", LOCAL), memoryview(U64), U64[::1], tuple(LOCAL), mapped)
        for query in forms:
            assert handle.find_matches(query) == index.find_matches(U64)
            assert pairs(handle.find_matches(query, early_exit=True)).keys() == RANKS.keys()
            best = handle.best_match(query)
            assert best is not None and best.worker == (TOP, 2**32 - 1)
        assert [int(frame[F_ENTERED // 8]) for frame in frames] == [1] * 2


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no buffers by Python code")
def test_a_buffer_that_asks_the_same_index(index: Index) -> None:
    class Odd:
        def __buffer__(self, flags: int) -> memoryview:
            inner.append(pairs(index.find_matches(U64)))
            return memoryview(U64)

        def __release_buffer__(self, view: memoryview) -> None:
            inner.append(pairs(index.find_matches(U64)))

    inner: list[Any] = []
    assert pairs(index.find_matches(Odd())) == RANKS and inner == [RANKS] * len(inner) and inner


def test_a_handle_that_is_closed_while_it_takes_a_query(index: Index) -> None:
    for name in ("find_matches", "best_match"):
        handle = Index.attach(index.name)

        class Closing:
            def __index__(self, handle: Index = handle) -> int:
                handle.close()
                return LOCAL[0]

        with pytest.raises(StaleHandle):
            getattr(handle, name)([Closing(), *LOCAL[1:]])


@pytest.mark.parametrize("builtin", [True, False])
def test_a_query_in_the_middle_of_another_ones_call(
    index: Index, monkeypatch: pytest.MonkeyPatch, builtin: bool
) -> None:
    """As by a signal handler between kernel and result: each gets what it has asked for."""
    if not builtin:
        monkeypatch.setattr(fastcall, "available", lambda: False)
    with Index.attach(index.name) as handle:

        def calls(query: Any) -> list[Any]:
            details = handle.find_match_details(query)
            batch = handle.find_matches_batch(query, [0, len(query)])
            found = handle.find_matches(query), handle.find_matches(query, early_exit=True)
            return [details, *batch, *found, handle.best_matches(query, 50), handle.best_match(query)]

        other = np.array(ALONE, np.uint64)
        right, others = calls(U64), calls(other)
        for name in ("find_details", "find_plain", "find_many", "find_best"):
            kernel, inside = getattr(query_kernels, name), [False]

            def then_another(*arguments: int, kernel: Any = kernel, inside: list[bool] = inside) -> Any:
                result = kernel(*arguments)
                if not inside[0]:
                    inside[0] = True
                    assert calls(other) == others
                    inside[0] = False
                return result

            with monkeypatch.context() as patch:
                patch.setattr(query_kernels, name, then_another)
                assert calls(U64) == right
