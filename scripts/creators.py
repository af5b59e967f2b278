#!/usr/bin/env python3
"""Processes that create, attach and unlink under one name, all at once, for as many rounds as one likes.

Each round of creators must leave exactly one segment, to which all of them can attach; whoever attaches while
segments come and go finds a whole one or none.

    scripts/creators.py --creators 16 --rounds 500
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.system.creators import LEFTOVERS, race_attachers, race_creators, race_unlinkers


def main() -> None:
    """Run what the command line says; the first wrong answer ends it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--creators", type=int, default=16, help="processes that create at once")
    parser.add_argument("--rounds", type=int, default=500, help="of each kind of race")
    options = parser.parse_args()
    name = f"shmtrie-creators-{os.getpid()}"
    kinds = [(exist_ok, left) for exist_ok in (False, True) for left in ("", *LEFTOVERS)]
    try:
        for exist_ok, left in kinds:
            if left == "stale" and not exist_ok:  # it is not replaced unasked
                continue
            begin, rounds = time.monotonic(), options.rounds
            race_creators(name, options.creators, rounds, exist_ok, left)
            what = f"{left or 'nothing'} before, exist_ok={exist_ok}"
            print(
                f"{options.creators} creators, {what}: {rounds} rounds, one segment each, all attach, "
                f"{time.monotonic() - begin:.0f} s",
                flush=True,
            )
        print(f"attachers beside: {dict(race_attachers(name, 4, options.rounds))}", flush=True)
        print(f"unlinkers: {dict(race_unlinkers(name, 4, options.rounds))}", flush=True)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(f"/dev/shm/{name}")


if __name__ == "__main__":
    main()
