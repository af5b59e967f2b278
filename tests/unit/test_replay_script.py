"""``scripts/replay.py`` as a command: exit codes, messages, files."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")

ROOT = Path(__file__).resolve().parents[2]


def replay(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "replay.py", "--in-process", *map(str, arguments)]
    return subprocess.run(
        command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )


def test_built_in_requests(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = replay("--requests", 200, "--workers", 5, "--restarts", 2, "--check", "--json", report)
    assert done.returncode == 0, done.stderr
    assert "checked answers" in done.stdout and done.stderr == "", "no progress bar without a terminal"
    data = json.loads(report.read_text())
    assert data["requests"] == 200 and data["wrong"] == 0 and data["check"]["answers"] > 400


def test_trace_file(tmp_path: Path) -> None:
    trace = tmp_path / "trace.gz"
    lines = [
        {"timestamp": i, "input_length": 1500, "output_length": 9, "hash_ids": [0, i]} for i in range(30)
    ]
    trace.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    options = ("--trace", trace, "--block-tokens", 64, "--mid-evictions", "--cache-blocks", 40, "--check")
    done = replay(*options, "--exact-holes", "--requests", 20, "--routers", 3)
    assert done.returncode == 0, done.stderr
    assert "20 requests, 320 prompt blocks" in done.stdout and "deciding" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trace", "missing.jsonl"), "cannot read the trace missing.jsonl: No such file"),
        (("--workers", 0), "workers must be in"),
        (("--block-tokens", 100), "block_tokens must divide 512"),
        (("--json", "missing/report.json"), "cannot write missing/report.json"),
        (("--plot", "report.nothing"), "no picture format"),
        (("--requests", 0), "requests"),
    ],
)
def test_unusable_options(arguments: tuple[object, ...], message: str) -> None:
    done = replay(*arguments)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
