"""The command line: what it prints and how it exits, with an index in memory in place of the segment."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from shmtrie import cli
from shmtrie.cli_output import plain
from shmtrie.errors import BlockNotFound, Busy, EventStatus, SegmentCorrupt, SegmentNotFound, ShmtrieError
from shmtrie.event_types import (
    KvCacheEvent,
    KvCacheRemoveData,
    KvCacheStoreData,
    KvCacheStoredBlockData,
    RouterEvent,
    encode_event,
)
from shmtrie.radix_tree import RadixTree
from shmtrie.verify import VerifyReport

ROOT = Path(__file__).resolve().parents[2]


class FakeIndex:
    """The names of `Index` that the command uses, over a tree in this process."""

    segments: dict[str, FakeIndex]
    report = VerifyReport(True, False, counts={"nodes": 3})
    error: ShmtrieError | None = None

    def __init__(self, **options: Any) -> None:
        self.tree, self.options, self.retired, self.is_closed = RadixTree(), options, False, False

    @classmethod
    def list(cls) -> list[str]:
        return list(cls.segments)

    @classmethod
    def create(cls, name: str, capacity: Any, **options: Any) -> FakeIndex:
        return cls.segments.setdefault(name, cls(capacity=capacity, **options))

    @classmethod
    def attach(cls, name: str, **options: Any) -> FakeIndex:
        if cls.error is not None:
            raise cls.error
        if name not in cls.segments:
            raise SegmentNotFound(f"segment {name!r}: there is none; see `shmtrie list`")
        return cls.segments[name]

    @classmethod
    def unlink(cls, name: str) -> None:
        if cls.segments.pop(name, None) is None:
            raise SegmentNotFound(f"segment {name!r}: there is none")

    @contextmanager
    def writer(self) -> Iterator[RadixTree]:
        yield self.tree

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tree, name)

    def verify(self) -> VerifyReport:
        return self.report

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> type[FakeIndex]:
    module = types.ModuleType("shmtrie.index")
    fake = type("Index", (FakeIndex,), {"segments": {}})
    module.Index = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shmtrie.index", module)
    return fake


def store(worker: int, *hashes: int, parent: int | None = None) -> RouterEvent:
    blocks = [KvCacheStoredBlockData(block_hash=one + 100, tokens_hash=one) for one in hashes]
    return RouterEvent(worker, KvCacheEvent(1, KvCacheStoreData(parent, blocks)))


def lines(*events: RouterEvent) -> bytes:
    return b"".join(encode_event(event) + b"\n" for event in events)


def test_load_dump_round_trip(
    index: type[FakeIndex], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines(store(7, 1, 2, 3), store(2**64 - 1, 1, 9)) + b"\n")
    assert cli.main(["load", "kv", str(source)]) == cli.EXIT_ERROR
    assert "'kv'" in capsys.readouterr().err
    assert cli.main(["load", "kv", str(source), "--create", "--workers", "3", "--model", "m", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"name": "kv", "events": 2, "refused": 0, "statuses": {"OK": 2}}
    made = index.segments["kv"]
    assert made.options["capacity"].workers == 3 and made.options["model"] == "m" and made.is_closed

    assert cli.main(["dump", "kv", "--output", str(target)]) == 0
    assert cli.main(["load", "copy", str(target), "--create"]) == 0
    assert index.segments["copy"].find_matches([1, 2, 3]).scores == {(7, 0): 3, (2**64 - 1, 0): 1}


def test_load_from_stdin_counts_refused_events(
    index: type[FakeIndex], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remove = RouterEvent(8, KvCacheEvent(1, KvCacheRemoveData([4])))
    text = io.TextIOWrapper(io.BytesIO(lines(store(7, 5, parent=99), store(7, 1), remove)))
    monkeypatch.setattr(sys, "stdin", text)
    assert cli.main(["load", "kv", "--create", "--json"]) == cli.EXIT_REFUSED
    answer = json.loads(capsys.readouterr().out)
    assert answer["refused"] == 2
    assert answer["statuses"] == {"PARENT_BLOCK_NOT_FOUND": 1, "OK": 1, "BLOCK_NOT_FOUND": 1}
    assert BlockNotFound.status is EventStatus.BLOCK_NOT_FOUND


def test_load_names_the_line_that_is_no_event(
    index: type[FakeIndex], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines(store(7, 1)) + b"{\n")
    assert cli.main(["load", "kv", str(source), "--create"]) == cli.EXIT_ERROR
    assert f"{source}, line 2" in capsys.readouterr().err
    assert cli.main(["load", "kv", str(tmp_path / "none")]) == cli.EXIT_ERROR


def test_list_and_status(index: type[FakeIndex], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out == "no segments\n"
    kv = index.create("kv", None)
    kv.store(7, None, [1, 2, 3], [11, 12, 13])
    kv.retired = True
    assert cli.main(["list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == "kv" and row["state"] == "retired" and row["blocks"] == 3
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["kv", "retired"]

    assert cli.main(["status", "kv", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["stats"]["blocks"] == 3 and answer["workers"][0]["worker"] == "7/0"
    assert cli.main(["status", "kv"]) == 0
    assert "WORKER" in capsys.readouterr().out

    index.error = Busy("busy")
    assert cli.main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "Busy"


@pytest.mark.parametrize(
    ("report", "code", "state"),
    [
        (VerifyReport(True, False), 0, "clean"),
        (VerifyReport(True, False, unsettled=[("I16", "a writer is at work")]), 0, "clean"),
        (VerifyReport(False, True, [("I11", "nobody covers it")]), 1, "repairable"),
        (VerifyReport(False, False, [("I3", "a loop")], [("I6", "a count")]), 2, "corrupt"),
    ],
)
def test_verify(
    index: type[FakeIndex], capsys: pytest.CaptureFixture[str], report: VerifyReport, code: int, state: str
) -> None:
    index.create("kv", None)
    index.report = report
    assert cli.main(["verify", "kv"]) == code
    shown = capsys.readouterr().out
    assert f"kv: {state}" in shown and all(what in shown for _, what in report.broken + report.unsettled)
    assert cli.main(["verify", "kv", "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["state"] == state and len(answer["broken"]) == len(report.broken)
    assert len(answer["unsettled"]) == len(report.unsettled)


def test_verify_of_what_cannot_be_attached(
    index: type[FakeIndex], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", "kv"]) == cli.EXIT_ERROR
    index.error = SegmentCorrupt("bad header")
    assert cli.main(["verify", "kv", "--json"]) == cli.EXIT_CORRUPT
    assert json.loads(capsys.readouterr().out)["broken"] == [["header", "bad header"]]
    assert cli.main(["verify"]) == cli.EXIT_USAGE  # and not 2, which means corrupt


def test_unlink(index: type[FakeIndex], capsys: pytest.CaptureFixture[str]) -> None:
    index.create("a", None)
    index.create("b", None)
    assert cli.main(["unlink", "a", "b"]) == 0
    assert index.segments == {}
    assert cli.main(["unlink", "a"]) == cli.EXIT_ERROR
    assert cli.main(["unlink", "a", "--missing-ok"]) == 0


def test_without_typer_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None\nfrom shmtrie.cli import main\nsys.exit(main(['list']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == cli.EXIT_ERROR
    assert "shmtrie[cli]" in done.stderr and "Traceback" not in done.stderr


def test_plain_values() -> None:
    pair = NamedTuple("pair", [("ok", bool), ("broken", list[tuple[str, str]])])(True, [("x", "y")])
    assert plain({"a": np.uint64(2**64 - 1), "b": np.arange(2), "c": pair, 5: None}) == {
        "a": 2**64 - 1,
        "b": [0, 1],
        "c": {"ok": True, "broken": [["x", "y"]]},
        "5": None,
    }
