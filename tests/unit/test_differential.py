"""Every index beside the oracle on seeded streams, and the driver's own shrinking.

``SHMTRIE_SEEDS``: streams per backend, kind and order of removals (1); also lengthens the long stream.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.backends import BACKENDS, Backend
from tests.differential import Mismatch, replay, run_stream, shrink
from tests.reference import Op
from tests.removals import ANY, LEAF_FIRST, REMOVALS
from tests.workload import KINDS

SEEDS = int(os.environ.get("SHMTRIE_SEEDS", "1"))


def run(
    backend: Backend, seed: int, kind: str, removals: str = LEAF_FIRST, how: str = "calls", **workload: Any
) -> None:
    """One stream on one backend."""
    name = f'BACKENDS["{backend.name}"].open'

    @contextmanager
    def opened() -> Iterator[Any]:
        with backend.open(how) as index:
            yield index

    run_stream(opened, seed, kind, removals, backend.exact_holes, name, **workload)


@pytest.mark.parametrize("removals", REMOVALS)
@pytest.mark.parametrize("kind", KINDS)
def test_streams(backend: Backend, kind: str, removals: str) -> None:
    for seed in range(SEEDS):
        run(backend, seed, kind, removals, steps=120, ranks=5 + seed % 4)


@pytest.mark.parametrize("how", ["event", "json", "many", "batch"])
def test_streams_sent_as_events(backend: Backend, how: str) -> None:
    for seed in range(1000, 1000 + SEEDS):
        run(backend, seed, "clean", ANY, how, steps=60)
        run(backend, seed, "alias", LEAF_FIRST, how, steps=60)


@pytest.mark.parametrize("removals", REMOVALS)
def test_chains_longer_than_an_edge(backend: Backend, removals: str) -> None:
    # The exact tree has no edges; it is here to prove the stream itself.
    size: dict[str, Any] = {"steps": 12} if backend.compressed else {"steps": 4, "drain": False}
    run(backend, 2000, "clean", removals, ranks=3, long=True, **size)


def test_one_long_stream_with_ids_coming_back(backend: Backend) -> None:
    """Leaf-first removals and workers that leave and return: scores equal what is held at every check."""
    run(backend, 3000, "clean", steps=400 * SEEDS, ranks=8, heavy_every=200)


# -- the driver on a real index that was made wrong -----------------------------------------------


class Wrapped:
    """Passes everything on."""

    def __init__(self, index: Any) -> None:
        self.index = index

    def __getattr__(self, name: str) -> Any:
        return getattr(self.index, name)


class DropsRemoval(Wrapped):
    """Forgets the last hash of every remove."""

    def remove(self, worker: Any, external: Any) -> None:
        self.index.remove(worker, list(external)[:-1])


class ForgetsStore(Wrapped):
    """Answers every third store with ok and does nothing."""

    stores = 0

    def store(self, *args: Any) -> None:
        self.stores += 1
        if self.stores % 3:
            self.index.store(*args)


class Overcounts(Wrapped):
    """Continues a query over one block that is not there."""

    def find_matches(self, local: Any, early_exit: bool = False) -> Any:
        query = list(local)
        return self.index.find_matches(query[:2] + query[3:] if len(query) > 4 else query, early_exit)


def wrapped(wrong: type[Wrapped]) -> Any:
    """Opens a plain index inside a wrapper."""

    @contextmanager
    def opened() -> Iterator[Any]:
        with BACKENDS["radix"].open() as index:
            yield wrong(index)

    return opened


@pytest.mark.parametrize("wrong", [DropsRemoval, ForgetsStore, Overcounts])
def test_wrong_wrappers_are_caught(wrong: type[Wrapped]) -> None:
    with pytest.raises(Mismatch, match="operations left"):
        for seed in range(5):
            run_stream(wrapped(wrong), seed, steps=60, shrink_seconds=0.5)


def test_a_failure_is_shrunk_and_can_be_replayed() -> None:
    wrong = wrapped(DropsRemoval)
    with pytest.raises(Mismatch) as caught:
        run_stream(wrong, 1, removals=ANY, steps=100, name="wrong")
    text = str(caught.value)
    operations = [line for line in text.splitlines() if line.startswith("    (")]
    assert len(operations) == 2, text
    with pytest.raises(Mismatch, match="not in"):
        exec(text[text.index("from tests") :], {"wrong": wrong})
    replay(BACKENDS["radix"].open, [eval(line.strip().rstrip(",")) for line in operations])


def test_shrink_leaves_what_matters() -> None:
    ops: list[Op] = [("store", (1, 0), None, [(i, i), (7, 100 + i)]) for i in range(40)]

    def fails(some: Any) -> str | None:
        blocks = [b for op in some for b in op[3]]
        return "both" if (3, 3) in blocks and (7, 131) in blocks else None

    assert shrink(ops, fails, 60.0) == [
        ("store", (1, 0), None, [(3, 3)]),
        ("store", (1, 0), None, [(7, 131)]),
    ]
