"""Whole replays in one process: figures, checks that catch mistakes, busy lanes, outputs."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shmtrie.errors import Busy, EventStatus
from shmtrie.events import KIND_REMOVE, EventBatch, KvCacheEvent, KvCacheStoreData, RouterEvent
from shmtrie.events import KvCacheStoredBlockData as Block
from shmtrie.radix_tree import RadixTree
from shmtrie.replay import ReplayConfig, ReplayReport, generate_trace, run_replay, tasks
from shmtrie.replay import sources as replay_sources
from shmtrie.replay.blocks import plan
from shmtrie.replay.config import plan_segment
from shmtrie.replay.eventlog import RemoveWorker
from shmtrie.replay.messages import Ask, Beside
from shmtrie.replay.report import LatencySummary, summarize
from shmtrie.replay.tasks import RouterTask, WriterTask
from shmtrie.scores import OverlapScores

TRACE = generate_trace(250, seed=4)
CONFIG = ReplayConfig(workers=6, cache_blocks=120, in_process=True, check=True, window=20)


def result(report: ReplayReport) -> dict[str, Any]:
    """The report without what depends on the clock."""
    data = report.to_json()
    for router in data["routers"]:
        for key in ("deciding_us", "repeated_us", "beside_us"):
            router[key] = router[key]["finds"]
    for writer in data["writers"]:
        for key in (
            "seconds",
            "cpu_seconds",
            "events_per_second",
            "blocks_per_second",
            "events_per_cpu_second",
        ):
            writer[key] = None
    data["seconds"] = data["timeline"]["writer_seconds"] = None
    return data


def hit_rates(report: ReplayReport) -> dict[str, float]:
    return {policy.name: policy.hit_rate for policy in report.policies}


@pytest.mark.parametrize("block_tokens", [512, 64, 16])
def test_right_answers_are_exact(block_tokens: int) -> None:
    config = replace(CONFIG, block_tokens=block_tokens, cache_blocks=120 * 512 // block_tokens, restarts=4)
    report = run_replay(config, TRACE)
    assert report.wrong == 0 and report.restarts == 4
    check = report.check
    assert check is not None
    # every request, every request again at the end, and the old ones between
    assert check.answers == check.exact > 2 * len(TRACE)
    assert check.events == sum(writer.events for writer in report.writers) > len(TRACE)
    assert all(writer.rejected == {} for writer in report.writers)
    rates = hit_rates(report)
    assert rates["overlap"] > 1.2 * max(rates["round-robin"], rates["random"])
    assert all(sum(policy.requests_per_worker) == len(TRACE) for policy in report.policies)
    assert [router.repeated.finds for router in report.routers] == [125, 125]
    assert report.prompt_blocks == sum(request.input_length // block_tokens for request in TRACE)


@pytest.mark.parametrize("exact_holes", [False, True])
def test_mid_chain_evictions_stay_within_bounds(exact_holes: bool) -> None:
    report = run_replay(replace(CONFIG, mid_evictions=True, restarts=3, exact_holes=exact_holes), TRACE)
    check = report.check
    assert check is not None and report.wrong == 0
    assert report.inside_evictions > 20
    assert (check.exact == check.answers) is exact_holes
    refused = {name for writer in report.writers for name in writer.rejected}
    assert refused <= {"PARENT_BLOCK_NOT_FOUND"} and not (exact_holes and refused)


def test_same_options_same_run() -> None:
    config = replace(CONFIG, mid_evictions=True, restarts=2)
    first = result(run_replay(config, TRACE))
    assert result(run_replay(config, TRACE)) == first
    assert result(run_replay(replace(config, seed=1), TRACE)) != first


@pytest.mark.parametrize(("writers", "routers"), [(1, 1), (3, 5), (8, 2)])
def test_writers_change_nothing_for_the_engines(writers: int, routers: int) -> None:
    report = run_replay(replace(CONFIG, writers=writers, routers=routers), TRACE)
    assert report.wrong == 0 and len(report.writers) == writers and len(report.routers) == routers
    assert sum(writer.workers for writer in report.writers) == CONFIG.workers
    if routers == 2:
        base = run_replay(CONFIG, TRACE)
        assert hit_rates(report) == hit_rates(base)


class DropsRemovals(RadixTree):
    """Acknowledges removals and forgets them."""

    def apply_batch(self, batch: EventBatch) -> npt.NDArray[np.uint8]:
        statuses = super().apply_batch(
            replace(batch, kind=np.where(batch.kind == KIND_REMOVE, 0, batch.kind).astype(np.uint8))
        )
        statuses[batch.kind == KIND_REMOVE] = EventStatus.OK
        return statuses


class CountsOneMore(RadixTree):
    """Overcounts for one worker, also above the length of the query."""

    def find_matches(self, local_hashes: Any, early_exit: bool = False) -> OverlapScores:
        scores = super().find_matches(local_hashes, early_exit).scores
        return OverlapScores.pack(list(scores), [d + (w.worker_id == 3) for w, d in scores.items()])


class RefusesDecode(RadixTree):
    """Refuses stores of one block behind a parent."""

    def apply_batch(self, batch: EventBatch) -> npt.NDArray[np.uint8]:
        single = (np.diff(batch.offsets) == 1) & (batch.has_parent == 1)
        statuses = super().apply_batch(replace(batch, kind=np.where(single, 0, batch.kind).astype(np.uint8)))
        statuses[single] = EventStatus.PARENT_BLOCK_NOT_FOUND
        return statuses


@pytest.mark.parametrize("broken", [DropsRemovals, CountsOneMore, RefusesDecode])
def test_a_broken_index_is_caught(monkeypatch: pytest.MonkeyPatch, broken: type[RadixTree]) -> None:
    monkeypatch.setattr(replay_sources, "RadixTree", broken)
    report = run_replay(CONFIG, TRACE)
    assert report.wrong > 10
    assert report.check is not None and report.check.examples
    text = io.StringIO()
    report.print(text)
    assert "wrong (the first ones)" in text.getvalue()


def test_progress_and_no_check() -> None:
    done: list[int] = []
    report = run_replay(replace(CONFIG, check=False), TRACE, done.append)
    assert done == [*range(20, 250, 20), 250]
    assert report.check is None and report.wrong == 0


def test_outputs(tmp_path: Path) -> None:
    report = run_replay(CONFIG, TRACE)
    report.write_json(tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text())
    assert data == json.loads(json.dumps(report.to_json()))
    assert data["options"]["workers"] == 6 and data["wrong"] == 0 and data["format"] == 1
    assert data["routers"][0]["beside_us"]["p50"] is None, "nothing runs beside anything in one process"
    text = io.StringIO()
    report.print(text)
    for word in ("round-robin", "deciding", "events/CPU s", "nodes", "checked answers", "wrong"):
        assert word in text.getvalue()


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from shmtrie.replay.plot import write_plot

    write_plot(run_replay(CONFIG, TRACE), tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"writers": 49},
        {"routers": 0},
        {"block_tokens": 100},
        {"cache_blocks": 0},
        {"restarts": -1},
        {"window": 0},
    ],
)
def test_bad_options_are_named(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ReplayConfig(**options)  # type: ignore[arg-type]


def test_segment_plan_covers_the_run() -> None:
    for config in (CONFIG, replace(CONFIG, cache_blocks=None), replace(CONFIG, block_tokens=16)):
        load = plan(TRACE, config.block_tokens)
        size = plan_segment(load, config)
        held = run_replay(config, TRACE).index
        assert held.unique_blocks <= size.blocks and size.workers >= config.workers


# --- tasks ------------------------------------------------------------------------------------------


class Contended:
    """An index whose first events of rank 1 meet a busy lane."""

    def __init__(self, times: int) -> None:
        self.tree = RadixTree()
        self.times = times

    def apply_batch(self, batch: EventBatch) -> npt.NDArray[np.uint8]:
        busy = (batch.worker_id == 1) & (self.times > 0)
        self.times -= 1
        statuses = self.tree.apply_batch(replace(batch, kind=np.where(busy, 0, batch.kind).astype(np.uint8)))
        statuses[busy] = EventStatus.BUSY
        return statuses

    def remove_worker(self, worker_id: int) -> None:
        self.times -= 1
        if self.times >= 0:
            raise Busy("lane 3 is in the way")
        self.tree.remove_worker(worker_id)


def chain_events() -> EventBatch:
    """Two ranks, in turn, each a chain of three stores."""
    rows = [(worker, i) for i in range(3) for worker in (1, 2)]
    return EventBatch.from_events(
        RouterEvent(w, KvCacheEvent(i, KvCacheStoreData(i or None, [Block(i + 1, i + 1), Block(90 + i, 5)])))
        for w, i in rows
    )


def test_busy_events_are_tried_again_in_order() -> None:
    index, progress = Contended(3), np.zeros((2, 2), np.int64)
    applied = WriterTask(index, progress, 1).apply([chain_events()], 7)
    assert applied.statuses[0].tolist() == [EventStatus.OK] * 6
    assert applied.busy_retries == 9
    assert index.tree.find_matches([1, 2, 3]).scores == {(1, 0): 3, (2, 0): 3}
    assert progress.tolist() == [[0, 0], [7, 7]]


def test_busy_for_ever_is_reported() -> None:
    index, progress = Contended(10**9), np.zeros((1, 2), np.int64)
    applied = WriterTask(index, progress, 0).apply([chain_events()], 1)
    assert applied.statuses[0].tolist() == [EventStatus.BUSY, EventStatus.OK] * 3
    assert index.tree.find_matches([1]).scores == {(2, 0): 1}
    with pytest.raises(Busy):
        WriterTask(index, progress, 0).apply([RemoveWorker(2)], 2)
    assert progress.tolist() == [[2, 2]], "routers must not wait for a writer that failed"


def test_warm_up_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    index = Contended(60)
    WriterTask(index, np.zeros((1, 2), np.int64), 0).warm_up(1)
    assert index.times < 0 and index.tree.stats().ranks == 0
    monkeypatch.setattr(tasks, "_WARM_UP_SECONDS", 0.0)
    with pytest.raises(Busy):
        WriterTask(Contended(10**9), np.zeros((1, 2), np.int64), 0).warm_up(1)


def test_removal_of_a_worker_is_tried_again() -> None:
    index = Contended(3)
    index.tree.store(2, None, [1], [1])
    applied = WriterTask(index, np.zeros((1, 2), np.int64), 0).apply([RemoveWorker(2)], 1)
    assert applied.busy_retries == 3 and len(applied.statuses[0]) == 0
    assert len(index.tree.find_matches([1])) == 0


def ask(local: list[list[int]], full: bool) -> Ask:
    offsets = np.cumsum([0, *map(len, local)])
    return Ask(
        numbers=np.arange(len(local)),
        times=np.zeros(len(local)),
        local=np.concatenate([np.empty(0, np.uint64), *(np.array(q, np.uint64) for q in local)]),
        offsets=offsets,
        backlog=np.zeros(2),
        now=0.0,
        rate=1.0,
        full=full,
        again=full,
    )


def test_router_counts_its_own_choices() -> None:
    tree = RadixTree()
    tree.store(1, None, [1, 2, 3], [1, 2, 3])
    router = RouterTask(tree, np.zeros((1, 2), np.int64))
    answers = router.ask(ask([[1, 2, 3, 4]] * 3, full=True))
    # Worker 1 has one block to do for the first two, then as much as worker 0 with all four.
    assert list(zip(answers.chosen.tolist(), answers.depths.tolist(), strict=True))[:2] == [(1, 3), (1, 3)]
    assert answers.offsets.tolist() == [0, 1, 2, 3] and answers.scores.tolist() == [3, 3, 3]
    assert answers.workers.tolist() == [1, 1, 1] and len(answers.nanoseconds) == len(answers.again) == 3
    assert len(router.ask(ask([[1]], full=False)).workers) == 0
    empty = router.ask(ask([], full=True))
    assert len(empty.chosen) == 0 and empty.offsets.tolist() == [0]


def test_router_beside_counts_only_what_ran_beside() -> None:
    tree, progress = CountsOneMore(), np.zeros((2, 2), np.int64)
    tree.store(3, None, [1], [1])
    ticks = iter(range(0, 10_000, 5))

    def clock() -> int:
        tick = next(ticks)
        if tick >= 100:  # both writers are done
            progress[:] = 4
        return tick

    router = RouterTask(tree, progress, clock)
    router.ask(ask([[1], [2]], full=False))
    progress[:, 0] = 4
    seen = router.beside(Beside(4, 60.0))
    assert set(seen.nanoseconds.tolist()) == {5}
    assert 5 < len(seen.nanoseconds) < 12
    assert seen.above_length >= 5
    assert len(router.beside(Beside(4, 60.0)).nanoseconds) == 0
    progress[:, 0] = 5
    assert router.beside(Beside(5, 0.0)).above_length <= 1, "a writer that never finishes: bounded"


def test_summary() -> None:
    assert summarize(np.array([1000, 2000, 3000])) == LatencySummary(3, 2.0, pytest.approx(2.98), 3.0)
    assert summarize(np.empty(0, np.int64)).finds == 0


def test_warm_up_leaves_nothing() -> None:
    tree, progress = RadixTree(), np.zeros((1, 2), np.int64)
    WriterTask(tree, progress, 0).warm_up(1 << 62)
    RouterTask(tree, progress).warm_up()
    assert tree.stats().blocks == tree.stats().ranks == 0 and progress.tolist() == [[0, 0]]
