#!/usr/bin/env python3
"""kill -9, SIGSTOP and restarts of writers and readers at random moments under load; every answer is judged.

scripts/storm.py --kills 10000
scripts/storm.py --kills 1500 --seed 40 --json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.storm.report import report, table
from tests.storm.storm import Totals, storm


def main() -> int:
    """Run storms until so many were killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first storm")
    parser.add_argument("--each", type=int, default=500, help="kills of one storm")
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="report as JSON")
    options = parser.parse_args()
    totals, begin, seed = Totals(), time.monotonic(), options.seed
    failure: AssertionError | None = None
    told = 0.0
    while totals.kills.total() < options.kills:
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
    found["seeds"] = [options.seed, seed]
    print(json.dumps(found) if options.json else table(found), flush=True)
    if failure is not None:
        print(failure, file=sys.stderr)
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
