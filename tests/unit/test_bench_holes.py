"""The benchmark's parts about removals in the middle of chains: evictions, and answers beside holes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reference import Oracle

pytest.importorskip("typer")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchlib import evictions, holes, native  # noqa: E402
from benchlib.dicts import DictOfSets  # noqa: E402
from benchlib.evictions import Eviction  # noqa: E402
from benchlib.indexes import Shmtrie, ShmtrieExact  # noqa: E402
from benchlib.judge import Judge  # noqa: E402
from benchlib.passes import Prepared  # noqa: E402
from benchlib.workload import QUERY, REMOVE, STORE, Builder, Workload  # noqa: E402

SIZES = [(16, 1_000), (256, 1_000), (4096, 6_000)]


def oracle_op(workload: Workload, op: int) -> Any:
    part, rank = workload.part(op), (int(workload.worker[op]), 0)
    external = workload.external[part].tolist()
    if workload.kind[op] == REMOVE:
        return "remove", rank, external
    assert workload.kind[op] == STORE
    parent = int(workload.parent[op]) if workload.has_parent[op] else None
    return "store", rank, parent, list(zip(workload.local[part].tolist(), external, strict=True))


@pytest.mark.parametrize("order", evictions.ORDERS)
@pytest.mark.parametrize(("length", "blocks"), SIZES)
def test_evictions_take_every_block_once_in_their_order(order: str, length: int, blocks: int) -> None:
    eviction = Eviction.of(order, length, blocks)
    assert sorted(eviction.gone.tolist()) == list(range(blocks))
    assert [len(c) for c in eviction.chains[:-1]] == [length] * (len(eviction.chains) - 1)
    turn = np.empty(blocks, np.int64)
    turn[eviction.gone] = np.arange(blocks)
    rising = np.concatenate([np.diff(turn[chain]) > 0 for chain in eviction.chains])
    assert {"head-first": rising.all(), "tail-first": not rising.any()}.get(order, 0.3 < rising.mean() < 0.7)


@pytest.mark.parametrize("order", evictions.ORDERS)
@pytest.mark.parametrize(("length", "blocks"), SIZES)
def test_evictions_leave_nothing_and_answers_are_judged(order: str, length: int, blocks: int) -> None:
    eviction = Eviction.of(order, length, blocks)
    counted = {}
    for kind in evictions.KINDS:
        judge = Judge(eviction.whole, kind.exact_holes)
        figures = evictions.calls_pass(kind, eviction, judge)
        assert judge.wrong == 0 and judge.asked == 3 * len(eviction.chains)
        assert evictions.faults(figures) == 0 and evictions.faults(figures | {"left_bytes": 64}) == 1
        assert figures["nodes"] > 0 or figures["known"] == 0
        if kind is ShmtrieExact:
            assert figures["known"] == figures["held"] == blocks - blocks // 2
            assert (figures["splits"] > 0) == (order == "random")
        assert evictions.packed_pass(kind, eviction)["packed_ns"] > 0
        more, again = evictions.refill_pass(kind, eviction)
        assert again.wrong == 0 and again.held == blocks
        counted[kind.name] = more["refilled"]
    assert counted["shmtrie exact_holes"] == 1.0
    assert (counted["shmtrie"] == 1.0) == (order == "tail-first")


def holds_behind(oracle: Oracle, rank: Any, external: int) -> bool:
    """Whether the rank holds anything below the place of one of its hashes."""
    mine, below = oracle.of(rank), [oracle.of(rank).place_of[external]]
    while below:
        for place in oracle.places.children[below.pop()]:
            if place in mine.hash_at:
                return True
            below.append(place)
    return False


@pytest.mark.parametrize("share", holes.SHARES)
def test_holes_are_what_engines_may_report(share: int) -> None:
    """Each store goes behind a held block; so many removals make holes, and most holes are filled again."""
    workload = holes.holes(1_500, share)
    assert len(workload.queries) == 1_500
    oracle, judge = Oracle(exact_holes=True), Judge(workload, exact_holes=True)
    made = removals = filled = 0
    for op, kind in enumerate(workload.kind.tolist()):
        if kind == QUERY:
            local = workload.local[workload.part(op)].tolist()
            depths = [oracle.bounds((w, 0), local)[1] for w in range(workload.workers)]
            judge.answer(op, np.arange(workload.workers), depths)
            continue
        event = oracle_op(workload, op)
        assert oracle.outcomes(event) == {"ok"}
        if kind == REMOVE:
            (gone,) = event[2]
            removals += 1
            made += holds_behind(oracle, event[1], gone)
        oracle.apply(event)
        judge.follow(op)
        if kind == STORE and len(event[3]) == 1:
            filled += holds_behind(oracle, event[1], event[3][0][1])
    assert judge.exact == judge.asked == 1_500
    assert abs(made / removals - share / 100) < 0.05 and removals > 500
    assert made / 2 <= filled <= made


@pytest.mark.parametrize("kind", holes.KINDS)
def test_answers_beside_holes(kind: type[Any]) -> None:
    prepared = Prepared(kind, holes.holes(800, 50))
    figures, judge = holes.judged_pass(prepared)
    assert judge.wrong == judge.over == 0 and judge.asked == 800
    if kind in holes.EXACT:
        assert figures["exact"] == 800 and figures["share"] == 1 and figures["refused"] == 0
    else:
        assert figures["exact"] + figures["under"] == 800 and figures["under"] > 200
        assert 0 < figures["share"] < 0.7 and figures["refused"] > 0
    assert holes.timed_pass(prepared)["events_s"] > 0


class Forgetful(DictOfSets):
    """Never removes."""

    def _remove(self, worker: int, keys: object) -> None:
        pass


class Blind(DictOfSets):
    """Never finds anything."""

    def _match(self, query: object) -> dict[int, int]:
        return {}


def test_wrong_answers_are_found() -> None:
    workload = holes.holes(200, 50)
    _, over = holes.judged_pass(Prepared(Forgetful, workload))
    assert over.over > 0 and over.wrong >= over.over
    _, under = holes.judged_pass(Prepared(Blind, workload))
    assert under.under == under.wrong > 0 and under.answered == 0


def test_bounds_with_and_without_exact_holes() -> None:
    out = Builder()
    out.store(0, None, [0, 1, 2, 3])
    out.remove(0, [1])
    out.store(0, 0, [1])
    out.query([0, 1, 2, 3])
    workload = out.build("bounds", 1)

    def judged(score: int, exact_holes: bool, applied: bool = True) -> tuple[int, int, int]:
        judge = Judge(workload, exact_holes)
        for op in range(3):
            judge.follow(op, applied or op < 2)
        judge.answer(3, [0], [score])
        return judge.under, judge.over, judge.wrong

    assert judged(4, False) == judged(4, True) == (0, 0, 0)
    assert judged(2, False) == (1, 0, 0) and judged(2, True) == (1, 0, 1)
    assert judged(1, False) == (1, 0, 1) and judged(1, False, applied=False) == (1, 0, 0)
    assert judged(5, False) == (0, 1, 1)


def test_answers_of_a_native_index_are_read(tmp_path: Path) -> None:
    out = Builder()
    out.store(3, None, [0, 1, 2])
    out.query([0, 1, 2])
    out.query([7])
    out.remove(3, [1])
    out.query([0, 1, 2])
    workload = out.build("native", 4)
    path = tmp_path / "native.bin"
    workload.save(path)
    np.array([1, 3, 3, 0, 2, 1, 9, 3, 2], np.uint32).tofile(tmp_path / "said")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ncp '{tmp_path}/said' \"$4\" && echo '{{}}'\n")
    program.chmod(0o755)
    found = [(w.tolist(), d.tolist()) for w, d in native.native_answers(program, "radix", path)]
    assert found == [([3], [3]), ([], []), ([1, 3], [9, 2])]
    judge = holes.native_judged(program, "radix", path, workload)
    assert (judge.asked, judge.exact, judge.over, judge.under) == (3, 2, 1, 0)


@pytest.mark.slow
def test_parts_of_the_script(tmp_path: Path) -> None:
    report = tmp_path / "bench.json"
    command = [sys.executable, ROOT / "scripts" / "bench.py", "--only", "evictions,holes", "--quick"]
    options = ["--scale", "0.01", "--json", report]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    data = json.loads(report.read_text())
    assert {entry["wrong"] for entry in data["answers"]} == {0}
    figures = {(f["section"], f["workload"], f["index"]): f["figures"] for f in data["figures"]}
    exact, plain = (figures["evictions", "head-first 16", kind.name] for kind in (ShmtrieExact, Shmtrie))
    assert exact["refilled"]["median"] == 1 > plain["refilled"]["median"]
    beside = figures["holes", "holes_50", "dict of sets"]
    assert beside["exact"]["median"] == beside["asked"]["median"] > 0
    assert [g["what"] for g in data["goals"]] == ["head-first with exact holes: a block of a chain of 4,096"]
