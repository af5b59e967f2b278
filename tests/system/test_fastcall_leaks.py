"""The builtin `find_matches` leaks nothing: no reference, no memory, no result."""

from __future__ import annotations

import gc
import resource
import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from shmtrie import fastcall
from shmtrie.fastcall import Finds
from shmtrie.scores import OverlapScores
from tests.system.index_tools import assert_no_leak, references_kept
from tests.system.ranked import LOCAL, U64, ranked_index

pytestmark = pytest.mark.skipif(not fastcall.available(), reason="no builtins on this interpreter")


@pytest.fixture(scope="module")
def fast() -> Iterator[Finds]:
    """The builtins of an index with a few ranks."""
    with ranked_index("leaks") as index:
        yield fastcall.fast_finds(index.segment)


def repeat(find: Any, value: Any, n: int) -> None:
    """Calls, or as many errors."""
    try:
        for _ in range(n):
            find(value)
    except (TypeError, ValueError):
        for _ in range(n):
            with suppress(TypeError, ValueError):
                find(value)


# An array, a buffer, something of a wrong kind, and no buffer at all.
LEAKS: dict[str, Any] = {
    "array": U64,
    "int64 array": U64.view(np.int64),
    "no match": np.array([5, 5], np.uint64),
    "empty": U64[:0],
    "array Q": array("Q", LOCAL),
    "strided": U64[::2],
    "float array": np.ones(4),
    "int32 array": np.ones(4, np.int32),
    "list": list(LOCAL),
    "tuple": tuple(LOCAL),
    "list with a float": [*LOCAL, 1.0],
    "list with a large int": [*LOCAL, 2**70],
    "str": "a text of this test",
    "bytes": bytes(U64),
    "object": object(),
}


@pytest.mark.parametrize("name", LEAKS)
def test_no_leak_of_references_or_memory(fast: Any, name: str) -> None:
    """A million calls, or fewer: the argument, None and b"" keep their counts, memory does not grow."""
    value, find = LEAKS[name], fast.find
    n = 1_000_000 if name in ("array", "list") else 100_000
    repeat(find, value, 1_000)
    counted = (value, None, False, True, b"", find, type(value), OverlapScores, fastcall.find_matches)
    assert_no_leak(lambda: repeat(find, value, 2_000), counted)
    with references_kept(counted):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        repeat(find, value, n)
        # KiB; one byte a call would be 1 MiB
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 8_192
    assert find is fast.find


def test_no_leak_of_kept_results(fast: Any) -> None:
    """Results are objects of their own: freed when dropped, never shared with a later call."""
    kept = [fast.find(U64[: k % 7]) for k in range(10_000)]
    assert len({id(found._raw) for found in kept if found}) == sum(bool(found) for found in kept)
    assert all(sys.getrefcount(found) <= 4 for found in kept)
    assert all(sys.getrefcount(found._raw) <= 2 for found in kept if found)
    assert all(found == kept[k % 7] for k, found in enumerate(kept))
    assert all(gc.is_tracked(found) for found in kept)
