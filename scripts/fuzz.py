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
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHUNK = 2_000  # flips between two lines of progress


def main() -> int:
    """Run what the command line says; 1 if something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flips", type=int, default=10_000, help="words to overwrite in all")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, nargs="+", help="these cases only")
    parser.add_argument("--build", choices=["checked", "test", "product"], default="checked")
    parser.add_argument("--shown", type=int, default=20, help="failures that are told and shrunk")
    options = parser.parse_args()
    build = {"checked": "checked", "test": "1", "product": ""}[options.build]
    env = dict(os.environ, SHMTRIE_TEST_BUILD=build, PYTHONPATH=str(ROOT))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.run"],
        env=env,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    flips, cases, seconds, seed = 0, 0, 0.0, options.first
    kinds: Counter[str] = Counter()
    while flips < options.flips:
        asked = {"first": seed, "flips": min(CHUNK, options.flips - flips), "shown": options.shown}
        if options.seeds:
            asked = {"seeds": options.seeds, "shown": len(options.seeds)}
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            return process.wait() or 1
        answer = json.loads(line)
        for failure in answer["failures"]:
            print(f"seed {failure['seed']}: {failure['kind']} in {failure['step']!r}: {failure['what']}")
            print(f"    {'; '.join(failure['damage'])}", flush=True)
        flips, cases = flips + answer["flips"], cases + answer["cases"]
        seconds += answer["seconds"]
        kinds.update(answer["kinds"])
        seed = answer["next"]
        print(f"{flips:,} words in {cases:,} cases, {flips / seconds:.0f}/s: {dict(kinds)}", file=sys.stderr)
        if options.seeds:
            break
    process.stdin.close()
    process.wait(60)
    print(
        json.dumps(
            {"build": options.build, "flips": flips, "cases": cases, "seconds": round(seconds), **kinds}
        )
    )
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
