#!/usr/bin/env python3
"""Random damage to a segment: nothing in it may crash or hang a reader, a writer or a tool.

Each case takes a segment with everything in it, often one that a writer died in, overwrites one to four
words, and lets readers, writers, recoveries, `verify`, `dump` and `stats` loose on it, in a child process
with an alarm. Sections and private areas are surrounded by pages that nobody may touch. The checked build
besides compares every address with the section, or the area, it has to lie in; the product has pages only.
A failure is told with its seed and the words that were overwritten, of which as few as do it are left.

    scripts/fuzz.py --flips 100000
    scripts/fuzz.py --build product --flips 20000
    scripts/fuzz.py --seeds 4711
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.fuzz.client import BUILDS, Cases

CHUNK = 2_000  # flips between two lines of progress


def main() -> int:
    """Run what the command line says; 1 if something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flips", type=int, default=10_000, help="words to overwrite in all")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, nargs="+", help="these cases only")
    parser.add_argument("--build", choices=list(BUILDS), default="checked")
    parser.add_argument("--shown", type=int, default=20, help="failures that are told and shrunk")
    options = parser.parse_args()
    flips, cases, seconds, seed = 0, 0, 0.0, options.first
    kinds: Counter[str] = Counter()
    with Cases(options.build) as ask:
        while flips < options.flips:
            if options.seeds:
                answer = ask(seeds=options.seeds, shown=len(options.seeds))
            else:
                answer = ask(first=seed, flips=min(CHUNK, options.flips - flips), shown=options.shown)
            for failure in answer["failures"]:
                print(f"seed {failure['seed']}: {failure['kind']} in {failure['step']!r}: {failure['what']}")
                print(f"    {'; '.join(failure['damage'])}", flush=True)
            flips, cases = flips + answer["flips"], cases + answer["cases"]
            seconds += answer["seconds"]
            kinds.update(answer["kinds"])
            seed = answer["next"]
            rate = flips / max(seconds, 0.1)  # seconds are told in tenths
            print(f"{flips:,} words in {cases:,} cases, {rate:.0f}/s: {dict(kinds)}", file=sys.stderr)
            if options.seeds:
                break
    print(
        json.dumps(
            {"build": options.build, "flips": flips, "cases": cases, "seconds": round(seconds), **kinds}
        )
    )
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
