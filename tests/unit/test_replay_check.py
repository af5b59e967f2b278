"""The model behind --check against a brute-force one, and the checker against wrong answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmtrie.errors import EventStatus
from shmtrie.events import EventBatch, KvCacheEvent, KvCacheRemoveData, KvCacheStoreData, RouterEvent
from shmtrie.events import KvCacheStoredBlockData as Block
from shmtrie.replay.check import Checker, Model
from shmtrie.replay.eventlog import RemoveWorker

WORKERS = 3
Path = tuple[int, ...]


class Brute:
    """Held and reachable as sets of paths, from the words of the contract."""

    def __init__(self) -> None:
        self.held: list[set[Path]] = [set() for _ in range(WORKERS)]
        self.reachable: list[set[Path]] = [set() for _ in range(WORKERS)]

    def store(self, worker: int, parent: Path, blocks: Path) -> None:
        alive = not parent or parent in self.reachable[worker]
        for i in range(len(blocks)):
            path = parent + blocks[: i + 1]
            self.held[worker].add(path)
            if alive:
                self.reachable[worker].add(path)

    def remove(self, worker: int, path: Path) -> None:
        if path in self.held[worker]:
            self.held[worker].remove(path)
            kept = {p for p in self.reachable[worker] if p[: len(path)] != path}
            self.reachable[worker] = kept

    def clear(self, worker: int) -> None:
        self.held[worker].clear()
        self.reachable[worker].clear()

    def prefix(self, sets: list[set[Path]], query: Path) -> list[int]:
        def score(paths: set[Path]) -> int:
            return next((i for i in range(len(query)) if query[: i + 1] not in paths), len(query))

        return [score(paths) for paths in sets]


def chain(path: Path) -> int:
    """An external hash of a path."""
    return int.from_bytes(bytes([len(path), *path]), "big")


def chains(path: Path) -> list[int]:
    return [chain(path[: i + 1]) for i in range(len(path))]


PATH = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)
OPERATION = st.tuples(st.sampled_from("sssrrc"), st.integers(0, WORKERS - 1), PATH, st.integers(0, 4))


@settings(max_examples=300)
@given(st.lists(OPERATION, max_size=30), st.booleans())
def test_model_is_the_contract(operations: list[tuple[str, int, Path, int]], exact_holes: bool) -> None:
    model, brute = Model(WORKERS, exact_holes), Brute()
    for what, worker, path, cut in operations:
        if what == "s":
            parent = path[: min(cut, len(path) - 1)]
            if parent and parent not in brute.held[worker]:
                assert not model.holds(worker, chain(parent))
                continue
            model.store(worker, chain(parent) if parent else None, chains(path)[len(parent) :])
            brute.store(worker, parent, path[len(parent) :])
        elif what == "r":
            model.remove(worker, [chain(path)])
            brute.remove(worker, path)
        else:
            model.clear(worker)
            brute.clear(worker)
        for query in (path, (0,) * 5, (0, 1, 0, 1, 0), (1, 1, 0, 0, 0)):
            lower, upper = model.bounds(chains(query))
            held = brute.prefix(brute.held, query)
            assert upper.tolist() == held
            assert lower.tolist() == (held if exact_holes else brute.prefix(brute.reachable, query))
            for w in range(WORKERS):
                assert model.holds(w, chain(query)) == (query in brute.held[w])
                assert model.reaches(w, chain(query)) == (query in brute.reachable[w])


def test_order_inside_one_removal_does_not_matter() -> None:
    for order in ([2, 1], [1, 2]):
        model = Model(1)
        model.store(0, None, chains((1, 2, 3)))
        model.remove(0, [chain((1, 2, 3)[:n]) for n in order])
        model.store(0, None, chains((1, 2)))
        lower, upper = model.bounds(chains((1, 2, 3)))
        assert (lower.tolist(), upper.tolist()) == ([2], [3])


def store(worker: int, parent: int | None, blocks: list[int]) -> RouterEvent:
    data = KvCacheStoreData(parent, [Block(block, block) for block in blocks])
    return RouterEvent(worker, KvCacheEvent(1, data))


def statuses(*values: EventStatus) -> np.ndarray:
    return np.array(values, np.uint8)


@pytest.fixture
def checker() -> Checker:
    checker = Checker(Model(WORKERS), leaf_first=True)
    events = [store(0, None, [1, 2, 3]), store(2, None, [1, 2])]
    checker.apply(EventBatch.from_events(events), statuses(EventStatus.OK, EventStatus.OK))
    return checker


@pytest.mark.parametrize(
    ("workers", "depths", "right"),
    [
        ([0, 2], [3, 2], True),
        ([2, 0], [2, 3], True),
        ([0, 2], [3, 3], False),  # too high
        ([0, 2], [2, 2], False),  # too low
        ([0], [3], False),  # one missing
        ([0, 1, 2], [3, 1, 2], False),  # one that holds nothing
        ([0, 2, 2], [3, 2, 2], False),
        ([0, 2, 3], [3, 2, 1], False),
        ([0, 2, 1], [3, 2, 0], False),
        ([], [], False),
    ],
)
def test_answers_are_judged(checker: Checker, workers: list[int], depths: list[int], right: bool) -> None:
    checker.answer(5, [1, 2, 3, 4], np.array(workers, np.uint64), np.array(depths, np.uint32))
    assert (checker.answers, checker.exact, checker.wrong) == (1, 1, 0 if right else 1)
    assert [wrong.request for wrong in checker.examples] == ([] if right else [5])


def test_bounds_after_a_cut() -> None:
    checker = Checker(Model(1), leaf_first=False)
    removal = RouterEvent(0, KvCacheEvent(2, KvCacheRemoveData([2])))
    batch = EventBatch.from_events([store(0, None, [1, 2, 3]), removal, store(0, 1, [2])])
    checker.apply(batch, statuses(*[EventStatus.OK] * 3))
    for depth, wrong in ((2, 0), (3, 0), (1, 1), (4, 2)):
        checker.answer(0, [1, 2, 3, 4], np.zeros(1, np.uint64), np.array([depth], np.uint32))
        assert checker.wrong == wrong
    assert checker.exact == 0
    # behind the cut block both is right, and the model follows
    behind = EventBatch.from_events([store(0, 3, [4])])
    checker.apply(behind, statuses(EventStatus.PARENT_BLOCK_NOT_FOUND))
    assert not checker.model.holds(0, 4)
    checker.apply(behind, statuses(EventStatus.OK))
    assert checker.model.holds(0, 4) and not checker.model.reaches(0, 4)
    assert checker.wrong == 2


def test_a_cut_in_a_leaf_first_run_is_a_mistake_of_the_simulation(checker: Checker) -> None:
    removal = RouterEvent(0, KvCacheEvent(2, KvCacheRemoveData([2])))
    batch = EventBatch.from_events([removal, store(0, 1, [2])])
    checker.apply(batch, statuses(EventStatus.OK, EventStatus.OK))
    with pytest.raises(AssertionError, match="leaf-first"):
        checker.answer(0, [1, 2, 3], np.array([0, 2], np.uint64), np.array([3, 2], np.uint32))


@pytest.mark.parametrize(
    ("event", "status", "wrong"),
    [
        (store(0, 3, [4]), EventStatus.PARENT_BLOCK_NOT_FOUND, 1),
        (store(0, None, [9]), EventStatus.PARENT_BLOCK_NOT_FOUND, 1),
        (store(1, 3, [4]), EventStatus.PARENT_BLOCK_NOT_FOUND, 0),
        (store(1, 3, [4]), EventStatus.OK, 1),
        (store(0, 3, [4]), EventStatus.CAPACITY_EXCEEDED, 0),
        (store(0, 3, [4]), EventStatus.INVALID_BLOCK_SEQUENCE, 1),
        (RouterEvent(0, KvCacheEvent(2, KvCacheRemoveData([3]))), EventStatus.BLOCK_NOT_FOUND, 1),
        (RouterEvent(1, KvCacheEvent(2, KvCacheRemoveData([3]))), EventStatus.BLOCK_NOT_FOUND, 0),
    ],
)
def test_refusals_are_judged(checker: Checker, event: RouterEvent, status: EventStatus, wrong: int) -> None:
    before = checker.events
    checker.apply(EventBatch.from_events([event]), statuses(status))
    assert (checker.wrong, checker.events) == (wrong, before + 1)
    assert not checker.model.holds(event.worker_id, 4)


@pytest.mark.parametrize(
    "forget",
    [
        lambda c: c.apply(RemoveWorker(0), statuses()),
        lambda c: c.apply(
            EventBatch.from_events([RouterEvent(0, KvCacheEvent(2, "cleared"))]), statuses(EventStatus.OK)
        ),
    ],
    ids=["remove_worker", "clear"],
)
def test_restarts_are_followed(checker: Checker, forget: Callable[[Checker], None]) -> None:
    forget(checker)
    checker.answer(0, [1, 2, 3], np.array([2], np.uint64), np.array([2], np.uint32))
    assert checker.wrong == 0


def test_examples_are_bounded(checker: Checker) -> None:
    for i in range(100):
        checker.answer(i, [1], np.zeros(0, np.uint64), np.zeros(0, np.uint32))
    assert checker.wrong == 100 and len(checker.examples) == 20
