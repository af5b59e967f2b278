"""The other side of ``python -m tests.fuzz.run``: a process of a build in which cases are done."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILDS = {"checked": "checked", "test": "1", "product": ""}
PATIENCE = 60.0  # seconds for it to take its segments away


class Cases:
    """A process that does cases; a context manager.

    Parameters
    ----------
    build : str
        Of `BUILDS`.
    """

    def __init__(self, build: str = "checked") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.run"],
            env=dict(os.environ, SHMTRIE_TEST_BUILD=BUILDS[build], PYTHONPATH=str(ROOT)),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, **asked: Any) -> dict[str, Any]:
        """Do what is asked, see ``tests.fuzz.run.main``; RuntimeError if the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of the cases has ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Cases:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
