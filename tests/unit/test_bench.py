"""The benchmark's own parts: workloads, model, judging of answers and goals; and the script once, tiny."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.reference import Oracle

pytest.importorskip("typer")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchlib.catalog import Sources, catalog  # noqa: E402
from benchlib.dicts import DictOfMasks, DictOfSets  # noqa: E402
from benchlib.goals import Goal, Key, goals, judge  # noqa: E402
from benchlib.indexes import Shmtrie, ShmtrieBest, ShmtrieDict, ShmtrieList, Tree  # noqa: E402
from benchlib.model import expected  # noqa: E402
from benchlib.passes import Prepared, wrong_answers, wrong_at_the_end  # noqa: E402
from benchlib.results import Results  # noqa: E402
from benchlib.workload import CLEAR, QUERY, REMOVE, STORE, Builder, Workload  # noqa: E402

TINY = Sources(scale=0.01)
NAMES = ("conv_w8_g1", "conv_w64_g8", "conv_w64_g1_seeds", "fanout", "decode", "wide", "churn", "million_c4")
COLUMNS = ("kind", "has_parent", "worker", "parent", "offsets", "local", "external", "place")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_always_the_same_workload(name: str) -> None:
    one, two = catalog(TINY)[name](), catalog(TINY)[name]()
    assert len(one.queries) and len(one.events)
    for column in COLUMNS:
        assert np.array_equal(getattr(one, column), getattr(two, column)), column


@pytest.mark.parametrize("name", NAMES)
def test_model_is_the_oracle(name: str) -> None:
    """The contract's own model gives each answer exactly: so the stream evicts leaf-first, too."""
    workload = catalog(TINY)[name]()
    answers, _ = expected(workload)
    oracle, number = Oracle(), 0
    for op, kind in enumerate(workload.kind.tolist()):
        part, rank = workload.part(op), (int(workload.worker[op]), 0)
        local, external = workload.local[part].tolist(), workload.external[part].tolist()
        if kind == QUERY:
            if number % 5 == 0:
                found = dict(zip(*(x.tolist() for x in answers.of(number)), strict=True))
                for worker in range(workload.workers):
                    want = found.get(worker, 0)
                    assert oracle.bounds((worker, 0), local) == (want, want), (number, worker)
            number += 1
        elif kind == STORE:
            parent = int(workload.parent[op]) if workload.has_parent[op] else None
            blocks = list(zip(local, external, strict=True))
            assert oracle.outcomes(("store", rank, parent, blocks)) == {"ok"}
            oracle.apply(("store", rank, parent, blocks))
        else:
            oracle.apply(("remove", rank, external) if kind == REMOVE else ("clear", rank))
    assert number == len(workload.queries)


def test_file_holds_everything(tmp_path: Path) -> None:
    workload = catalog(TINY)["churn"]()
    workload.save(tmp_path / "churn.bin")
    again = Workload.load(tmp_path / "churn.bin")
    assert again.workers == workload.workers
    for column in COLUMNS:
        assert np.array_equal(getattr(again, column), getattr(workload, column)), column
    n = len(workload.kind)
    raw = (tmp_path / "churn.bin").read_bytes()
    assert raw[24 : 24 + n] == workload.kind.tobytes()
    assert raw[24 + 2 * n : 24 + 6 * n] == workload.worker.tobytes()


def with_a_clear() -> Workload:
    out = Builder()
    out.store(0, None, [0, 1, 2])
    out.store(1, None, [0, 1])
    out.query([0, 1, 2, 3])
    out.clear(0)
    out.remove(1, [1])
    out.query([0, 1, 2, 3])
    return out.build("clear", 2)


@pytest.mark.parametrize("make", [with_a_clear, catalog(TINY)["churn"], catalog(TINY)["conv_w64_g1"]])
@pytest.mark.parametrize(
    "kind", [Shmtrie, ShmtrieDict, ShmtrieBest, ShmtrieList, Tree, DictOfSets, DictOfMasks]
)
def test_every_index_answers_as_the_model(kind: type[Shmtrie], make: Callable[[], Workload]) -> None:
    workload = make()
    answers, model = expected(workload)
    assert wrong_answers(Prepared(kind, workload), answers) == 0
    if kind is Shmtrie:
        assert wrong_at_the_end(workload, model) == 0


class Forgetful(DictOfSets):
    """Never removes."""

    def _remove(self, worker: int, keys: object) -> None:
        pass


def test_wrong_answers_are_found() -> None:
    workload = catalog(TINY)["churn"]()
    answers, _ = expected(workload)
    assert wrong_answers(Prepared(Forgetful, workload), answers) > 0
    assert CLEAR not in workload.kind


def test_goals_are_judged_in_their_direction() -> None:
    results = Results()
    results.add("s", "w", "ours", {"ns": 10.0, "rate": 50.0})
    results.add("s", "w", "peer", {"ns": 100.0, "rate": 20.0})

    def verdict(way: str, name: str, bound: float, peer: bool = True) -> bool | None:
        theirs = Key("s", "w", "peer", name) if peer else None
        return judge(Goal("", "", Key("s", "w", "ours", name), theirs, bound, way, "ns"), results).met

    assert verdict("faster", "ns", 10) is True and verdict("faster", "ns", 11) is False
    assert verdict("time", "ns", 0.1) is True and verdict("time", "ns", 0.09) is False
    assert verdict("rate", "rate", 2.5) is True and verdict("rate", "rate", 2.6) is False
    assert verdict("most", "ns", 10, peer=False) is True and verdict("most", "ns", 9, peer=False) is False
    assert verdict("time", "nothing", 1) is None
    assert len(goals()) > 60


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "bench.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.slow
def test_script(tmp_path: Path) -> None:
    report = tmp_path / "bench.json"
    done = bench("--only", "churn,startup", "--quick", "--scale", 0.005, "--json", report)
    assert done.returncode == 0, done.stderr
    assert "Figures to reach" in done.stdout and "dict of sets" in done.stdout
    data = json.loads(report.read_text())
    assert {entry["wrong"] for entry in data["answers"]} == {0}
    starts = [row for row in data["goals"] if row["what"].startswith("import, attach")]
    assert len(starts) == 2 and all(row["verdict"] in ("met", "missed") for row in starts)
    figures = {(f["workload"], f["index"]): f["figures"] for f in data["figures"]}
    assert figures["churn", "shmtrie"]["find_p50"]["median"] > 0
    assert figures["churn", "shmtrie packed"]["refused"]["max"] == 0


@pytest.mark.slow
def test_parts_with_processes(tmp_path: Path) -> None:
    report, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    options = ("--quick", "--scale", 0.01, "--json", report, "--plot", picture)
    done = bench("--only", "processes", "--only", "beside", *options)
    assert done.returncode == 0, done.stderr
    data = json.loads(report.read_text())
    figures = {(f["section"], f["workload"], f["index"]): f["figures"] for f in data["figures"]}
    for count in (1, 2):
        for index in ("shmtrie", "dict of sets"):
            assert figures["processes", f"conv_w64_g1 x{count}", index]["finds_s"]["median"] > 0
    busy = figures["beside", "conv_w64_g1", "shmtrie beside a writer"]
    assert busy["kernel_find_p99"]["median"] > 0 and busy["events_s"]["median"] > 0
    assert {row["what"] for row in data["goals"]} >= {"finds of 2 processes"}
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "nothing"), "unknown: nothing; known are conv_w8_g1"),
        (("--native", "missing"), "--native: missing is no program"),
        (("--only", "pieces", "--json", "missing/file.json"), "cannot write missing/file.json"),
        (("--only", "conv_w8_g1", "--trace", "missing.jsonl"), "cannot read the trace missing.jsonl"),
    ],
)
def test_unusable_options(arguments: tuple[object, ...], message: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
