"""Damaged segments: no crash, no hang, no access outside, no error that is not the package's.

A process of the checked build does the cases; see ``tests.fuzz.run``. ``SHMTRIE_FLIPS``: words that are
overwritten at random (2,000); ``scripts/fuzz.py`` does more, and the product between guard pages.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.named import NAMED

FLIPS = int(os.environ.get("SHMTRIE_FLIPS", "2000"))
PLANS = 20
ROOT = Path(__file__).resolve().parents[2]
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Let cases run in a process of the checked build."""
    env = dict(os.environ, SHMTRIE_TEST_BUILD="checked", PYTHONPATH=str(ROOT))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.run"],
        env=env,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def ask(**asked: Any) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    try:
        yield ask
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def test_words_at_random(ask: Ask) -> None:
    answer = ask(first=0, flips=FLIPS)
    assert answer["flips"] >= FLIPS
    assert not answer["failures"], answer["failures"]


@pytest.mark.parametrize("name", NAMED)
def test_named_damage(ask: Ask, name: str) -> None:
    answer = ask(named=name, plans=PLANS, shown=3)
    assert answer["cases"] == PLANS
    assert not answer["failures"], answer["failures"]
