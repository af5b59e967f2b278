#!/usr/bin/env python3
"""kill -9, SIGSTOP and restarts of writers and readers at random moments under load; every answer is judged.

Writers of shared paths and readers are processes of the product's own kernels, killed in operations, in
recoveries, while they start, and stopped. Whoever is started in their place goes on from what is in the
segment. All answers are compared with what each rank held during the call, and the index with the oracle
between acts and at the end. A failure prints the seed and what led to it, and ends with exit code 1.

    scripts/storm.py --kills 10000
    scripts/storm.py --kills 1500 --seed 40 --json
    scripts/storm.py --stopped              finds and events next to a stopped writer, and after a kill
    scripts/storm.py --control "lose stores"    writers do wrong: exit code 0 when that is found
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.storm.controls import CONTROLS
from tests.storm.measure import measure
from tests.storm.report import report, table
from tests.storm.storm import Totals, storm


def rage(options: argparse.Namespace) -> tuple[dict[str, Any], AssertionError | None]:
    """Storms, one seed after the other, until so many were killed."""
    totals, begin, seed = Totals(), time.monotonic(), options.seed
    failure, told = None, begin
    while totals.kills.total() < options.kills and time.monotonic() - begin < options.seconds:
        each = min(options.each, options.kills - totals.kills.total())
        try:
            storm(seed, each, totals, options.writers, options.readers)
        except AssertionError as error:
            failure = error
            break
        seed += 1
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{totals.kills.total():,} kills, {told - begin:.0f} s", file=sys.stderr, flush=True)
    found = report(totals, time.monotonic() - begin)
    return {"seeds": f"{options.seed} to {seed - (failure is None)}", **found}, failure


def control(name: str, seed: int) -> int:
    """One storm of writers that do wrong."""
    spoil, batches = CONTROLS[name]
    totals = Totals()
    try:
        storm(seed, 600, totals, kind="clean", batches=batches, holes=False, acts=12, spoil=spoil)
    except AssertionError as error:
        print(f"{name}: found after {totals.kills.total()} kills: {str(error)[:600]}")
        return 0
    print(f"{name}: not found in {totals.kills.total()} kills")
    return 1


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no storm after so many")
    parser.add_argument("--seed", type=int, default=0, help="of the first storm")
    parser.add_argument("--each", type=int, default=250, help="kills of one storm")
    parser.add_argument("--writers", type=int, default=3, help="writer processes at a time")
    parser.add_argument("--readers", type=int, default=1, help="reader processes at a time")
    parser.add_argument("--stopped", action="store_true", help="measure next to a stopped writer instead")
    parser.add_argument("--control", choices=CONTROLS, help="let writers do wrong instead")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is taken away
    if options.control:
        return control(options.control, options.seed)
    found, failure = (measure(), None) if options.stopped else rage(options)
    print(json.dumps(found) if options.json else table(found), flush=True)
    if failure is not None:
        print(failure, file=sys.stderr)
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
