"""One entry of the tables of ``scripts/mutants.py``, and the files of tests that they name."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One entry.

    Attributes
    ----------
    name : str
        What is taken out.
    file : str
        Below shmtrie/.
    edits : tuple of (str, str)
        Old text, which occurs once in the file, and new text.
    tests : tuple of str
        Node ids, below tests/; one of them fails.
    hangs : bool
        A time-out is what happens without the mechanism.
    also : tuple of (str, str, str)
        Edits of other files: file, old and new text. For what is secured twice.
    """

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]
    hangs: bool = False
    also: tuple[tuple[str, str, str], ...] = ()


CLEAR = "concurrency/test_races_clear.py::"
READERS = "concurrency/test_races_readers.py::test_readers_see_one_moment"
REMOVALS = "concurrency/test_races_removals.py::"
STORES = "concurrency/test_races_stores.py::"
CONTROLS = "concurrency/test_races_controls.py::"
MOMENT = CONTROLS + "test_readers_see_one_moment"
DEATHS = "crash/test_sweep.py::test_deaths"
LAPSE = "crash/test_sweep.py::test_lapses"
HOLES = "system/test_holes.py::"
RESIZE = "system/test_resize.py::"
LOOKUP = "system/test_lookup_parts.py::"
