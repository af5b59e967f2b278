#!/usr/bin/env python3
"""A constant live set churned for ever in a segment of fixed size: does anything grow?

Sessions are stored, grown by decode appends, evicted to a stub, branched again, evicted. Edge lengths shift
100 -> 5 -> 1,000 blocks on the way. The segment is sized for the live set with a quarter to spare. Reports time
per operation in the first and the last tenth, nodes and lines in use, refusals, and what `verify` says.

    scripts/churn.py --operations 10000000
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import sys
import time

import numpy as np

from shmtrie import Capacity, EventBatch, Index

LENGTHS = (100, 5, 1_000)  # blocks a session, one third of the run each
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
    """

    def __init__(self, live: int, ranks: int, seed: int) -> None:
        self.live, self.ranks = live, ranks
        self.random = np.random.default_rng(seed)
        self.held = 0
        self.next_hash = 1 << 32
        self.queue: list[tuple[int, list[int]]] = []  # (rank, external hashes from the session's first block)
        self.rows: list[tuple[int, int, int | None, list[int], list[int]]] = []

    def _fresh(self, n: int) -> list[int]:
        self.next_hash += n
        return list(range(self.next_hash - n, self.next_hash))

    def _store(self, rank: int, parent: int | None, hashes: list[int]) -> None:
        self.rows.append((1, rank, parent, [h * 7 + 3 for h in hashes], hashes))
        self.held += len(hashes)

    def _remove(self, rank: int, hashes: list[int]) -> None:
        if hashes:
            self.rows.append((2, rank, None, hashes, hashes))
            self.held -= len(hashes)

    def begin(self) -> None:
        """Every rank holds the shared prefix."""
        for rank in range(self.ranks):
            self._store(rank, None, list(range(1, PREFIX + 1)))

    def step(self, length: int) -> None:
        """One session more, and evictions down to the live set."""
        rank = int(self.random.integers(self.ranks))
        depth = int(self.random.integers(1, PREFIX + 1))
        blocks = self._fresh(length)
        first = max(1, length * 3 // 4)
        self._store(rank, depth, blocks[:first])
        for at in range(first, length, 4):  # decode
            self._store(rank, blocks[at - 1], blocks[at : at + 4])
        self.queue.append((rank, blocks))
        if len(self.queue) > 8 and self.random.random() < 0.5:
            # a session somewhere in the queue is evicted to a stub and branched again
            k = int(self.random.integers(len(self.queue)))
            rank, blocks = self.queue[k]
            keep = int(self.random.integers(1, 4))
            self._remove(rank, blocks[keep:][::-1])
            stub = blocks[:keep]
            branch = self._fresh(int(self.random.integers(1, length + 1)))
            self._store(rank, stub[-1], branch)
            self.queue[k] = (rank, stub + branch)
        while self.held > self.live + self.ranks * PREFIX and len(self.queue) > 1:
            rank, blocks = self.queue.pop(0)
            if len(blocks) > 8 and self.random.random() < 0.3:
                for at in range(len(blocks), 0, -8):
                    self._remove(rank, blocks[max(0, at - 8) : at][::-1])
            else:
                self._remove(rank, blocks[::-1])

    def end(self) -> None:
        """Everything goes."""
        for rank, blocks in self.queue:
            self._remove(rank, blocks[::-1])
        for rank in range(self.ranks):
            self._remove(rank, list(range(PREFIX, 0, -1)))
        self.queue.clear()

    def take(self) -> EventBatch:
        """The rows so far as a batch."""
        rows, self.rows = self.rows, []
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(r[4]) for r in rows], out=offsets[1:])
        return EventBatch(
            np.array([r[0] for r in rows], np.uint8),
            np.array([r[1] for r in rows], np.uint64),
            np.zeros(len(rows), np.uint32),
            np.array([r[2] is not None for r in rows], np.uint8),
            np.array([r[2] or 0 for r in rows], np.uint64),
            offsets,
            np.array([h for r in rows for h in r[3]], np.uint64),
            np.array([h for r in rows for h in r[4]], np.uint64),
            np.zeros(len(rows), np.uint64),
        )


def main() -> int:
    """Run and report; 0 when nothing was refused, nothing grew and the segment is clean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=200_000)
    parser.add_argument("--live", type=int, default=200_000, help="blocks held at any time")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    name = f"churn-{secrets.token_hex(4)}"
    # a quarter more than the live blocks; nodes for the shortest sessions and their stubs
    capacity = Capacity(blocks=args.live, workers=args.ranks, lanes=2, nodes=args.live)
    report: dict[str, object] = {"operations": args.operations, "segment_mb": capacity.size() / 1e6}
    with Index.create(name, capacity) as index:
        try:
            sessions, done, refused, marks = Sessions(args.live, args.ranks, args.seed), 0, 0, []
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
    # the parts of the run differ in blocks an operation: compare the first and the last tenth of the middle
        finally:
            Index.unlink(name)
    tenth = max(1, len(marks) // 10)
    for part, rows in (("first", marks[:tenth]), ("last", marks[-tenth:])):
        report[f"us_per_operation_{part}_tenth"] = statistics.median(r[1] for r in rows) * 1e6
        report[f"ns_per_block_{part}_tenth"] = statistics.median(r[2] for r in rows) * 1e9
    report |= {
        "refused": refused,
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
