#!/usr/bin/env python3
"""Calls of the builtins by the million: does the memory of the process grow?

Finds, best matches and scores of arrays, lists and what is refused; stores and removals, done, refused and
left to the slower way. Prints kilobytes of growth a part, and ends with 1 if any has grown by more than
`--limit`.

    scripts/leaks.py --calls 10000000
"""

from __future__ import annotations

import argparse
import gc
import resource
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from shmtrie import Capacity, Index
from shmtrie.errors import ShmtrieError
from shmtrie.writer import Writer

WARM = 20_000  # calls of a part before it is weighed


def calls(index: Index, writer: Writer) -> dict[str, Callable[[], object]]:
    """One call of each kind."""
    array = np.arange(1, 33, dtype=np.uint64)
    ints, wrong = array.tolist(), [*array.tolist(), 2**64]
    more = [2**40 + k for k in range(4)]

    def refused() -> None:
        with suppress(ShmtrieError):
            writer.store(1, 2**50, more, more)

    def not_hashes() -> None:
        with suppress(ValueError):
            index.find_matches(wrong)

    def round_trip(hashes: object) -> None:
        writer.store(1, 32, hashes, hashes)
        writer.remove(1, hashes)

    return {
        "find, array": lambda: index.find_matches(array),
        "find, list": lambda: index.find_matches(ints),
        "find, strided": lambda: index.find_matches(array[::2]),
        "find, wrong": not_hashes,
        "scores": lambda: index.find_matches(array).scores,
        "best": lambda: index.best_match(array),
        "best of list, among": lambda: index.best_matches(ints, 3, among=[1, 2]),
        "store and remove, array": lambda: round_trip(np.array(more, np.uint64)),
        "store and remove, list": lambda: round_trip(more),
        "store and remove, strided": lambda: round_trip(np.repeat(np.array(more, np.uint64), 2)[::2]),
        "store, refused": refused,
        "clear": lambda: writer.clear(9),
    }


def rss() -> int:
    """Memory that the process has now, KiB; the peak would hide growth below it."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=10_000_000, help="of all parts together")
    parser.add_argument("--limit", type=int, default=1_024, help="KiB that a part may grow by")
    options = parser.parse_args()
    name = f"leaks-{secrets.token_hex(4)}"
    grown = {}
    with Index.create(name, Capacity(blocks=10_000, workers=64, lanes=1)) as index:
        try:
            with index.writer() as writer:
                for worker in range(1, 21):
                    writer.store(worker, None, range(1, 33), range(1, 33))
                parts = calls(index, writer)
                for part, call in parts.items():
                    for _ in range(WARM):
                        call()
                    gc.collect()
                    before, start = rss(), time.perf_counter()
                    for _ in range(options.calls // len(parts)):
                        call()
                    seconds = time.perf_counter() - start
                    grown[part] = rss() - before
                    each = seconds / max(1, options.calls // len(parts)) * 1e6
                    print(f"{part:28}{grown[part]:8} KiB {each:8.2f} us a call", flush=True)
            valid = index.verify().ok
        finally:
            Index.unlink(name)
    worst = max(grown.values())
    print(f"worst {worst} KiB, segment {'valid' if valid else 'BROKEN'}")
    return 0 if worst <= options.limit and valid else 1


if __name__ == "__main__":
    sys.exit(main())
