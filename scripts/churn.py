#!/usr/bin/env python3
"""A constant live set churned for ever in a segment of fixed size: does anything grow?

Sessions are stored, grown by decode appends, evicted to a stub, branched again, evicted. Edge lengths shift
100 -> 5 -> 1,000 -> 100 blocks on the way, so that the first and the last tenth of the run do the same
work. The segment is sized for the live set with a quarter to spare. Reports time per operation in the first
and the last tenth, nodes and lines in use, refusals, and what `verify` says.

    scripts/churn.py --operations 10000000
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import statistics
import sys
import time
from collections import Counter, deque

import numpy as np

from shmtrie import Capacity, EventBatch, EventStatus, Index

LENGTHS = (100, 5, 1_000, 100)  # blocks a session, a quarter of the run each
BATCH = 4_096  # operations a kernel call
PREFIX = 32  # shared blocks in front of every session


class Sessions:
    """Makes the operations; knows what is held.

    Parameters
    ----------
    live : int
        Blocks held at any time, over all sessions.
    ranks : int
        Workers that the sessions are dealt to.
    seed : int
        Of everything random.

    Notes
    -----
    External hashes are consecutive, so a run of blocks is (first, n); a session is a rank and its runs.
    """

    def __init__(self, live: int, ranks: int, seed: int) -> None:
        self.live, self.ranks = live, ranks
        self.random = random.Random(seed)
        self.held = 0
        self.next_hash = 1 << 32
        self.queue: deque[tuple[int, list[tuple[int, int]]]] = deque()
        self.rows: list[tuple[int, int, int, int, int, int]] = []  # kind, rank, parent, first, n, step

    def _fresh(self, n: int) -> int:
        self.next_hash += n
        return self.next_hash - n

    def _store(self, rank: int, parent: int, first: int, n: int) -> None:
        self.rows.append((1, rank, parent, first, n, 1))
        self.held += n

    def _remove(self, rank: int, first: int, n: int) -> None:
        if n > 0:
            self.rows.append((2, rank, 0, first + n - 1, n, -1))
            self.held -= n

    def begin(self) -> None:
        """Every rank holds the shared prefix."""
        for rank in range(self.ranks):
            self._store(rank, 0, 1, PREFIX)

    def step(self, length: int) -> None:
        """One session more, and evictions down to the live set."""
        rank, depth = self.random.randrange(self.ranks), self.random.randint(1, PREFIX)
        first, prefill = self._fresh(length), max(1, length * 3 // 4)
        self._store(rank, depth, first, prefill)
        for at in range(prefill, length, 4):  # decode
            self._store(rank, first + at - 1, first + at, min(4, length - at))
        self.queue.append((rank, [(first, length)]))
        if len(self.queue) > 8 and self.random.random() < 0.5:
            # one of the older sessions is evicted to a stub and branched again
            k = self.random.randrange(min(64, len(self.queue)))
            rank, runs = self.queue[k]
            first, n = runs[0]
            for run in reversed(runs[1:]):
                self._remove(rank, *run)
            keep = min(n, self.random.randint(1, 3))
            self._remove(rank, first + keep, n - keep)
            blocks = self.random.randint(1, length)
            branch = self._fresh(blocks)
            self._store(rank, first + keep - 1, branch, blocks)
            self.queue[k] = rank, [(first, keep), (branch, blocks)]
        while self.held > self.live + self.ranks * PREFIX and len(self.queue) > 1:
            rank, runs = self.queue.popleft()
            small = self.random.random() < 0.3
            for first, n in reversed(runs):
                while small and n > 8:
                    self._remove(rank, first + n - 8, 8)
                    n -= 8
                self._remove(rank, first, n)

    def end(self) -> None:
        """Everything goes."""
        for rank, runs in self.queue:
            for run in reversed(runs):
                self._remove(rank, *run)
        for rank in range(self.ranks):
            self._remove(rank, 1, PREFIX)
        self.queue.clear()

    def take(self) -> EventBatch:
        """The rows so far as a batch."""
        rows = np.array(self.rows, np.int64).reshape(-1, 6)
        self.rows.clear()
        kind, rank, parent, first, n, step = rows.T
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(n, out=offsets[1:])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], n)
        external = (np.repeat(first, n) + np.repeat(step, n) * within).astype(np.uint64)
        return EventBatch(
            kind.astype(np.uint8),
            rank.astype(np.uint64),
            np.zeros(len(rows), np.uint32),
            (parent > 0).astype(np.uint8),
            parent.astype(np.uint64),
            offsets,
            external * np.uint64(0x9E3779B97F4A7C15),
            external,
            np.zeros(len(rows), np.uint64),
        )


def main() -> int:
    """Run and report; 0 when nothing was refused, nothing grew and the segment is clean."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operations", type=int, default=200_000)
    parser.add_argument("--live", type=int, default=200_000, help="blocks held at any time")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    name = f"churn-{secrets.token_hex(4)}"
    # What the live set needs at its worst: sessions of 5 blocks take two lines and one node, their stubs and
    # branches a line or two and a node each, so half a line a block; and a quarter to spare.
    capacity = Capacity(
        blocks=args.live, workers=args.ranks, lanes=2, nodes=args.live * 5 // 8, extents=args.live * 5 // 8
    )
    report: dict[str, object] = {"operations": args.operations, "segment_mb": capacity.size() / 1e6}
    with Index.create(name, capacity) as index:
        try:
            sessions, done, refused, marks = Sessions(args.live, args.ranks, args.seed), 0, 0, []
            why: Counter[str] = Counter()
            sessions.begin()
            with index.writer() as writer:
                while done < args.operations:
                    length = LENGTHS[min(done * len(LENGTHS) // args.operations, len(LENGTHS) - 1)]
                    while len(sessions.rows) < BATCH:
                        sessions.step(length)
                    batch = sessions.take()
                    start = time.perf_counter()
                    statuses = writer.apply_batch(batch)
                    seconds = time.perf_counter() - start
                    refused += int(np.count_nonzero(statuses))
                    why.update(EventStatus(int(x)).name for x in statuses[statuses != 0])
                    blocks = len(batch.external)
                    marks.append((done, seconds / len(batch), seconds / blocks))
                    done += len(batch)
                    if sys.stderr.isatty() and len(marks) % 64 == 0:
                        print(f"\r{done:,} operations", end="", file=sys.stderr)
                stats, check = index.stats(), index.verify()
                report |= {"nodes": stats.nodes, "blocks": stats.blocks, "unique_blocks": stats.unique_blocks}
                sessions.end()
                refused += int(np.count_nonzero(writer.apply_batch(sessions.take())))
                last = index.verify()
                empty = index.stats()
        finally:
            Index.unlink(name)
    tenth = max(1, len(marks) // 10)
    for part, rows in (("first", marks[:tenth]), ("last", marks[-tenth:])):
        report[f"us_per_operation_{part}_tenth"] = statistics.median(r[1] for r in rows) * 1e6
        report[f"ns_per_block_{part}_tenth"] = statistics.median(r[2] for r in rows) * 1e9
    report |= {
        "refused": refused,
        "refused_why": dict(why),
        "verify_ok": check.ok and last.ok,
        "broken": [*check.broken, *last.broken],
        "left_nodes": empty.nodes,
        "left_blocks": empty.blocks,
    }
    good = not refused and check.ok and last.ok and not empty.nodes and not empty.blocks
    print(json.dumps(report) if args.json else "\n".join(f"{k:28} {v}" for k, v in report.items()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
