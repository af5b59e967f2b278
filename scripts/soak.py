#!/usr/bin/env python3
"""Seeded random streams on the index beside the oracle, for as long as one likes; every answer is judged.

With one lane a stream runs in this process, and the index is compared after every operation. With more, each
lane is a process with a stream of its own over the same few paths, and a reader asks all the while: its
answers are judged by what each rank held during the call, everything else is compared between rounds, and at
the end all is removed and the segment has to be as empty as a new one. Kinds of streams and orders of
removals take turns.

    scripts/soak.py --lanes 1 --seeds 200 --operations 500
    scripts/soak.py --lanes 2 3 4 --seeds 200 --operations 500
    scripts/soak.py --lanes 2 3 --seeds 200 --operations 500 --exact-holes --removals middle
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.backends import BACKENDS
from tests.concurrency.actor import Fleet
from tests.concurrency.contest import Totals, contest
from tests.differential import run_stream
from tests.removals import ANY, LEAF_FIRST, REMOVALS
from tests.workload import KINDS

ROUNDS = 5


def turn(seed: int, removals: str | None) -> tuple[str, str]:
    """Kind and order of removals of a seed."""
    return KINDS[seed // 2 % len(KINDS)], removals or (ANY, LEAF_FIRST)[seed % 2 == 0]


def alone(seeds: range, options: argparse.Namespace) -> dict[str, object]:
    """Streams of one lane in this process."""
    backend = "shm-holes" if options.exact_holes else "shm"
    outcomes: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        kind, order = turn(seed, options.removals)
        outcomes += run_stream(
            BACKENDS[backend].open,
            seed,
            kind,
            order,
            options.exact_holes,
            name=f'BACKENDS["{backend}"].open',
            steps=options.operations,
            ranks=5 + seed % 4,
        )
        _tell(f"1 lane, seed {seed}: {kind}, {sum(outcomes.values()):,} operations")
    return {"lanes": 1, "seeds": len(seeds), "operations": sum(outcomes.values())}


def together(lanes: int, seeds: range, options: argparse.Namespace) -> dict[str, object]:
    """Streams of several lanes, a process each, beside a reader."""
    totals = Totals()
    with Fleet(writers=lanes, readers=1) as fleet:
        for seed in seeds:
            kind, order = turn(seed, options.removals)
            how = "batch" if seed % 3 == 0 else "calls"
            steps = options.operations // ROUNDS
            made = contest(fleet, seed, kind, order, how, ROUNDS, steps, exact_holes=options.exact_holes)
            totals.add(made)
            _tell(f"{lanes} lanes, seed {seed}: {kind}, {totals}")
    verdict = totals.verdict
    return {
        "lanes": lanes,
        "seeds": len(seeds),
        "operations": totals.ops,
        "busy": totals.busy,
        "finds": totals.finds,
        "scores judged": verdict.judged,
        "beside an event of the rank": verdict.touched,
        "nodes read again": totals.read_again,
        "gave up": verdict.given_up,
    }


_told = 0.0


def _tell(text: str) -> None:
    """Where it is, every ten seconds."""
    global _told
    if time.monotonic() - _told > 10:
        _told = time.monotonic()
        print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run what the command line says; a wrong answer ends it with how to repeat it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 2, 3, 4], help="writer processes")
    parser.add_argument("--seeds", type=int, default=20, help="streams for each number of lanes")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--operations", type=int, default=500, help="of each lane in a stream")
    parser.add_argument(
        "--exact-holes", action="store_true", help="segments that keep what is behind a removed block"
    )
    parser.add_argument(
        "--removals", choices=REMOVALS, help="what streams remove; default: leaf-first and any in turn"
    )
    parser.add_argument("--json", action="store_true", help="report as JSON")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    for lanes in options.lanes:
        begin = time.monotonic()
        report = alone(seeds, options) if lanes == 1 else together(lanes, seeds, options)
        report["exact holes"], report["removals"] = options.exact_holes, options.removals or "in turn"
        report["seconds"] = round(time.monotonic() - begin, 1)
        print(json.dumps(report) if options.json else report, flush=True)


if __name__ == "__main__":
    main()
