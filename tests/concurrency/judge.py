"""Whether answers given while writers ran are allowed: the interval-bound check.

Writers log when each operation began and ended, readers when each find did, on one clock. The operations of a
rank follow one another, so its states are numbered: state i is what it held after i operations. State i may
have been there from the begin of operation i on until operation i + 1 ended, and it was certainly there in
between. For a find that took [begin, end]:

over    a score above the longest prefix of which every block was held in some state that may have been there,
        is an overcount, always. Leaf-first streams have a stronger bound: the prefix held in one such state.
dip     where only one state may have been there, no event touches the rank during the find: a score below
        what that state reaches is a failure. This is also what an acknowledged event that does not show looks
        like.
low     a score below what every possible state reaches, while an event of the rank runs: allowed, counted.

A find that gave up is a lower bound: only ``over`` counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tests.reference import MASK, ROOT, Oracle, Rank

Int = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]
MAX_DEPTH = 63  # blocks of a query that can be judged


@dataclass
class Calls:
    """Finds of one reader, by call.

    Attributes
    ----------
    begin, end : ndarray of int64, shape (n,)
        Times in ns.
    query : ndarray of int64, shape (n,)
        Index of the query.
    answer : ndarray of int64, shape (n,)
        Index of the answer.
    given_up : ndarray of bool, shape (n,)
        The find gave up and is a lower bound.
    answers : list of dict
        Rank -> score.
    """

    begin: Int
    end: Int
    query: Int
    answer: Int
    given_up: npt.NDArray[np.bool_]
    answers: list[dict[Rank, int]]

    @classmethod
    def of(cls, rows: bytes, answers: Sequence[bytes]) -> Calls:
        """What ``Worker.read`` returns."""
        table = np.frombuffer(rows, np.int64).reshape(-1, 5)
        begin, end, query, answer, given_up = (np.ascontiguousarray(table[:, i]) for i in range(5))
        return cls(begin, end, query, answer, given_up != 0, [scores_of(raw) for raw in answers])

    def __len__(self) -> int:
        return len(self.begin)

    def scores(self, rank: Rank) -> Int:
        """Score of a rank by call, 0 where it is not in the answer."""
        by_answer = np.array([scores.get(rank, 0) for scores in self.answers] or [0], np.int64)
        return by_answer[self.answer]


def scores_of(raw: bytes) -> dict[Rank, int]:
    """An answer as a dict: n worker records of 16 bytes, then n depths."""
    n = len(raw) // 20
    records = np.frombuffer(raw[: n * 16], np.uint64).reshape(n, 2).tolist()
    depths = np.frombuffer(raw[n * 16 :], np.uint32).tolist()
    return {
        (worker, rank & 0xFFFF_FFFF): depth for (worker, rank), depth in zip(records, depths, strict=True)
    }


@dataclass
class History:
    """States of one rank, in order.

    Attributes
    ----------
    begin, end : list of int
        Of operation i, ns; state i + 1 is what it left.
    held : list of sequences of int
        By state: for each query, bit d set while the rank holds the query's block d.
    reachable : list of sequences of int
        By state: for each query, blocks of the prefix that a quiescent index answers at least.
    """

    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    held: list[Sequence[int]] = field(default_factory=list)
    reachable: list[Sequence[int]] = field(default_factory=list)

    @classmethod
    def of(cls, held: Sequence[int], reachable: Sequence[int]) -> History:
        """The state before the first operation."""
        return cls(held=[held], reachable=[reachable])

    def add(self, begin: int, end: int, held: Sequence[int], reachable: Sequence[int]) -> None:
        """One more operation and its state."""
        self.begin.append(begin)
        self.end.append(end)
        self.held.append(held)
        self.reachable.append(reachable)


class View:
    """What ranks hold of some queries, in the form that a `History` wants.

    Parameters
    ----------
    oracle : Oracle
        Followed as it changes.
    queries : list of list of int
        Of at most `MAX_DEPTH` blocks.
    """

    def __init__(self, oracle: Oracle, queries: list[list[int]]) -> None:
        self._oracle, self._n = oracle, len(queries)
        self._known: dict[Rank, _Known] = {}
        self._at: dict[int, list[tuple[int, int]]] = {}  # place -> where it is in the queries: query, bit
        for number, query in enumerate(queries):
            place = ROOT
            for depth, local in enumerate(query):
                place = oracle.places.child(place, local & MASK)
                self._at.setdefault(place, []).append((number, 1 << depth))

    def state(self, rank: Rank) -> tuple[list[int], list[int]]:
        """By query: a bit for each block that is held, and the lowest score of a quiescent index."""
        mine, known = self._oracle.of(rank), self._known.get(rank)
        if known is None:
            known = self._known[rank] = _Known(set(), set(), [0] * self._n, [0] * self._n)
        for place in mine.hash_at.keys() ^ known.held:
            for query, bit in self._at.get(place, ()):
                known.held_bits[query] ^= bit
        for place in mine.reachable ^ known.reachable:
            for query, bit in self._at.get(place, ()):
                known.reachable_bits[query] ^= bit
        known.held, known.reachable = set(mine.hash_at), set(mine.reachable)
        sure = known.held_bits if self._oracle.exact_holes else known.reachable_bits
        return list(known.held_bits), [(~bits & (bits + 1)).bit_length() - 1 for bits in sure]


@dataclass
class _Known:
    """What a `View` has last seen of a rank."""

    held: set[int]
    reachable: set[int]
    held_bits: list[int]
    reachable_bits: list[int]


@dataclass
class Verdict:
    """What was found; `wrong` is empty in a good run."""

    judged: int = 0
    touched: int = 0
    given_up: int = 0
    low: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Verdict) -> None:
        """Take another verdict in."""
        self.judged += other.judged
        self.touched += other.touched
        self.given_up += other.given_up
        self.low += other.low
        self.wrong += other.wrong


def prefix_of(bits: Bits) -> Int:
    """Number of ones at the low end."""
    inverted = ~bits
    lowest = inverted & (~inverted + np.uint64(1))
    return np.log2(lowest.astype(np.float64)).astype(np.int64)


def judge(rank: Rank, history: History, calls: Calls, leaf_first: bool) -> Verdict:
    """Compare all answers of a reader with what a rank can have held.

    Parameters
    ----------
    rank : Rank
        The one judged.
    history : History
        Its states; ``held[0]`` is that before the first operation.
    calls : Calls
        The finds.
    leaf_first : bool
        The rank's stream evicts leaf-first, so a score is a prefix held at one instant.

    Returns
    -------
    Verdict
    """
    verdict = Verdict(judged=len(calls), given_up=int(calls.given_up.sum()))
    if not len(calls):
        return verdict
    held = np.array(history.held, np.uint64)
    reachable = np.array(history.reachable, np.int64)
    begun, ended = np.array(history.begin, np.int64), np.array(history.end, np.int64)
    first = np.searchsorted(ended, calls.begin, side="left")  # operations that ended before the find began
    last = np.searchsorted(begun, calls.end, side="right")  # operations that began before it ended
    bits = held[first, calls.query]
    upper = prefix_of(bits)
    lower = reachable[first, calls.query].copy()
    for step in range(1, int((last - first).max()) + 1):
        more = np.flatnonzero(first + step <= last)
        state, query = first[more] + step, calls.query[more]
        bits[more] |= held[state, query]
        upper[more] = np.maximum(upper[more], prefix_of(held[state, query]))
        lower[more] = np.minimum(lower[more], reachable[state, query])
    if not leaf_first:
        upper = prefix_of(bits)
    scores = calls.scores(rank)
    touched = last > first
    verdict.touched = int(touched.sum())
    over = scores > upper
    under = (scores < lower) & ~calls.given_up
    verdict.low = int((under & touched).sum())
    for what, where in (("over", over), ("dip", under & ~touched)):
        for i in np.flatnonzero(where)[:3].tolist():
            verdict.wrong.append(
                f"{what}: rank {rank} scores {scores[i]}, allowed {lower[i]} to {upper[i]}, for query "
                f"{calls.query[i]} in state {first[i]} to {last[i]}; the find began at {calls.begin[i]} ns "
                f"and took {calls.end[i] - calls.begin[i]} ns"
            )
    return verdict
