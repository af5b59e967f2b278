"""Damaged segments: no crash, no hang, no access outside, no error that is not the package's.

A process of the checked build does the cases; see ``tests.fuzz.run``. ``SHMTRIE_FLIPS``: words that are
overwritten at random (2,000); ``scripts/fuzz.py`` does more, and the product between guard pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.fuzz.client import Cases
from tests.fuzz.named import NAMED

FLIPS = int(os.environ.get("SHMTRIE_FLIPS", "2000"))
PLANS = 20


@pytest.fixture(scope="module")
def ask() -> Iterator[Cases]:
    """Let cases run in a process of the checked build."""
    with Cases() as cases:
        yield cases


def test_words_at_random(ask: Cases) -> None:
    answer = ask(first=0, flips=FLIPS)
    assert answer["flips"] >= FLIPS
    assert not answer["failures"], answer["failures"]


@pytest.mark.parametrize("name", NAMED)
def test_named_damage(ask: Cases, name: str) -> None:
    answer = ask(named=name, plans=PLANS, shown=3)
    assert answer["cases"] == PLANS
    assert not answer["failures"], answer["failures"]
