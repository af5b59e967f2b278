"""Scenarios with values: what an index has to answer after a few operations, and how its tree looks then.

A scenario is a script of steps, separated by ``;``:

====================== ===================================================================================
``S 0 1-3``            rank 0 stores the path 1,2,3 from the root; ``.`` is the empty path
``S 0 1-3 + 4,5``      ... stores 4,5 under the last block of 1,2,3
``X 1 #101 + 2:102``   store with external hashes given: under 101 (``.``: the root) local 2 as 102
``R 0 1-5 @ 3,4``      rank 0 removes the third and fourth block of a path; ``R 0 #7,8``: these hashes
``C 0``, ``W 1``       clear of rank 0, removal of worker 1
``... !P``             the step before is refused: P parent not found, B block not found, I invalid; ``?P``
                       it may be
``Q 1-6 = 0:6 1:2-5``  a query and its scores, 2-5 meaning anything from 2 to 5
``E 2,3,3``            lengths of all edges, sorted
``N 0 5``              blocks of rank 0
``D 2``                duplicate stores counted so far
``K 1``                lookup repairs so far, where each rank has a lane of its own
``U 0:3 0:1``          the dump: one event for each, of rank and so many blocks; it also survives a reload
====================== ===================================================================================

A rank is written ``worker`` or ``worker/dp_rank``. External hashes not given are a hash of the path, the
same for all ranks. Scripts hold the values of an index whose chains are nodes; one that keeps more or less
behind a hole, which the contract allows, is held to the oracle instead.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from tests.backends import Backend, canonical
from tests.differential import Differential, Mismatch, expect
from tests.reference import BLOCK, INVALID, OK, PARENT, Op, Oracle, Rank
from tests.workload import mix

_ERRORS = {"P": PARENT, "B": BLOCK, "I": INVALID}


def numbers(text: str) -> list[int]:
    """``1,5-7`` -> [1, 5, 6, 7]; ``.`` and nothing -> []."""
    found: list[int] = []
    for part in text.replace(".", "").split(","):
        first, _, last = part.strip().partition("-")
        found += range(int(first), int(last or first) + 1) if first else []
    return found


def rank_of(text: str) -> Rank:
    """``1/2`` -> (1, 2), ``1`` -> (1, 0)."""
    worker, _, dp_rank = text.strip().partition("/")
    return int(worker), int(dp_rank or 0)


def hashes_of(path: list[int], parent: int | None = None) -> list[int]:
    """External hashes of a path's blocks."""
    return list(itertools.accumulate(path, mix, initial=0 if parent is None else parent))[1:]


def operation(step: str) -> Op:
    """The operation of a write step."""
    kind, _, rest = step.partition(" ")
    if kind == "W":
        return ("remove_worker", int(rest))
    who, _, rest = rest.partition(" ")
    if kind == "C":
        return ("clear", rank_of(who))
    if kind == "R":
        path, _, chosen = rest.partition("@")
        named = numbers(path[1:]) if path.startswith("#") else hashes_of(numbers(path))
        return ("remove", rank_of(who), [named[i - 1] for i in numbers(chosen)] if chosen else named)
    start, plus, below = rest.partition("+")
    if kind == "X":
        parent = int(start[1:]) if start.startswith("#") else None
        pairs = [pair.split(":") for pair in below.split(",")]
        return ("store", rank_of(who), parent, [(int(a), int(b)) for a, b in pairs])
    above = numbers(start)
    parent = hashes_of(above)[-1] if plus else None
    blocks = numbers(below) if plus else above
    return ("store", rank_of(who), parent, list(zip(blocks, hashes_of(blocks, parent), strict=True)))


class Player:
    """Plays scripts on an index, or on the oracle alone to test the scripts themselves.

    Parameters
    ----------
    backend : Backend, optional
        What ``index`` is.
    index : object, optional
        Empty index.
    """

    def __init__(self, backend: Backend | None = None, index: Any = None) -> None:
        self.backend, self.index = backend, index
        self.oracle = Oracle(backend is not None and backend.exact_holes)
        # Only these are held to the very values; all are held to the oracle.
        self.strict = backend is None or (backend.compressed and not backend.exact_holes)
        self.check = Differential(index, self.oracle, backend.open) if backend else None

    def play(self, script: str) -> None:
        """Run all steps; raise ``Mismatch`` with the step that failed."""
        for step in filter(None, map(str.strip, script.split(";"))):
            try:
                self._step(" ".join(step.split()))
            except AssertionError as error:
                raise Mismatch(f"at {step!r}: {error}") from error

    def _step(self, step: str) -> None:
        kind, _, rest = step.partition(" ")
        if kind in "SXRCW":
            self._write(step)
        elif kind == "Q":
            self._query(rest)
        elif kind == "N":
            rank, count = rest.split()
            self._count(rank_of(rank), int(count))
        elif self.check is not None and self.backend is not None:
            if kind == "U":
                self._dump(rest)
            elif self.strict or kind == "D":
                value = getattr(self.backend, {"E": "edges", "D": "duplicates", "K": "repairs"}[kind])(
                    self.index
                )
                expect(value in (None, numbers(rest) if kind == "E" else int(rest)), kind, "is", value)

    def _write(self, step: str) -> None:
        text, mark, error = step.partition(" !")
        text, maybe, perhaps = text.partition(" ?")
        op = operation(text)
        expected = {_ERRORS[error]} if mark else {OK, _ERRORS[perhaps]} if maybe else {OK}
        allowed = self.oracle.outcomes(op)
        expect(expected <= allowed or self.oracle.exact_holes, "the oracle allows", sorted(allowed))
        if self.check is None:
            self.oracle.apply(op, min(expected, key=lambda outcome: outcome != OK))
        else:
            outcome = self.check.apply(op)
            expect(outcome in expected or not self.strict, "answered", outcome)

    def _query(self, rest: str) -> None:
        path, _, scores = rest.partition("=")
        query = numbers(path)
        expected: dict[Rank, tuple[int, int]] = {}
        for who, _, depth in (score.partition(":") for score in scores.split()):
            first, _, last = depth.partition("-")
            expected[rank_of(who)] = int(first), int(last or first)
        if self.check is not None:
            got = self.check.check_query(query)
            right = all(low <= got.get(r, 0) <= high for r, (low, high) in expected.items())
            expect((right and got.keys() <= expected.keys()) or not self.strict, "scores are", got)
            return
        for rank in {*expected, *self.oracle.ranks()}:
            least, most = self.oracle.bounds(rank, query)
            low, high = expected.get(rank, (0, 0))
            expect(least <= low <= high <= most, "the oracle gives", rank, (least, most), "for", query)

    def _count(self, rank: Rank, count: int) -> None:
        low, high = self.oracle.block_bounds(rank)
        expect(low <= count <= high or self.oracle.exact_holes, "the oracle counts", (low, high))
        if self.index is not None:
            got = {tuple(w.worker): w.blocks for w in self.index.workers()}.get(rank, 0)
            expect(got == count if self.strict else low <= got <= high, "it counts", got)

    def _dump(self, rest: str) -> None:
        assert self.check is not None
        got = Counter(
            (rank, len(blocks)) for rank, _, blocks in canonical(self.index.dump_events()).elements()
        )
        runs = (item.partition(":") for item in rest.split())
        expected = Counter((rank_of(rank), int(length)) for rank, _, length in runs)
        expect(got == expected or not self.strict, "the dump has", got)
        self.check.check_everything()


_N9 = "S 1 1-3; S 2 1-3; S 1 1-3 + 4-6; E 6; Q 1-6 = 1:6 2:3; S 2 1-3 + 7,8; E 2,3,3"
_N12 = "S 0 1-4; S 0 1-4 + 10; E 5; S 0 1-4 + 11; S 0 1-4 + 12; S 0 1-4 + 13; S 0 1-4 + 14; E 1,1,1,1,1,4"
_N28 = "S 0 1-6; S 1 1-6; R 0 1-6 @ 5,3,4; Q 1-6 = 0:2 1:6; N 0 2; N 1 6"
_N34 = "S 0 1-4; R 0 1-4 @ 4,3; E 2; Q 1-4 = 0:2"
_N50 = "S 0 1-6; S 1 1; S 2 1-3; S 3 1-5; S 4 1-3,9; E 1,3,3; N 0 6; N 3 5"
_N56 = """S 0 1-3; S 0 1-3 + 4,5; E 5; S 0 1-3 + 6,7; E 2,2,3; R 0 1-5 @ 4,5; R 0 1-3,6,7 @ 4,5;
    E 3; Q 1-3 = 0:3; U 0:3"""
_PAIR = "S 1 1-4; S 2 1-4"
_TRIO = "S 0 1-6; S 1 1-3; S 2 1-3"

# Numbers of the published list; letters are variants, names are further ones.
SCENARIOS: dict[str, str] = {
    # stores and compression
    "1": "S 0 1-3; Q 1-3 = 0:3; Q 1,2,999 = 0:2; Q 999 =; Q . =; Q 1 = 0:1; Q 1-4 = 0:3; E 3; N 0 3",
    "2": "S 0 1-3; S 0 1-3; Q 1-3 = 0:3; N 0 3; U 0:3; D 1",
    "3": "S 0 1-3; S 0 1-3; S 0 1,2; S 0 1 + 2,3; D 3; E 3; Q 1-3 = 0:3; U 0:3",
    "4": "S 0 1-3; S 0 1-3 + 4; S 0 1-4 + 5; S 0 1-5 + 6; E 6; Q 1-6 = 0:6; U 0:6",
    "5": "S 1 1-6; S 2 1-3; E 6; Q 1-6 = 1:6 2:3",
    "6": "S 1 1-6; S 2 1-3; S 2 1-3 + 4-6; E 6; Q 1-6 = 1:6 2:6",
    "7": "S 1 1-6; S 2 1-6; S 2 1-6 + 7-9; E 9; Q 1-9 = 1:6 2:9; U 1:6 2:9",
    "8": "S 1 1-35; S 2 1-10; S 2 1-10 + 11-40; E 40; Q 1-40 = 1:35 2:40",
    "9": f"{_N9}; Q 1-3,7,8 = 1:3 2:5; Q 1-6 = 1:6 2:3",
    "10": f"{_N9}; S 2 1-6 + 9,10 !P; Q 1-6,9,10 = 1:6 2:3",
    "11": "S 1 1-3; S 2 1,2,9; E 1,1,2; Q 1,2 = 1:2 2:2; Q 1-3 = 1:3 2:2; Q 1,2,9 = 1:2 2:3",
    "12": f"""{_N12}; S 1 1,2,99; E 1,1,1,1,1,1,2,2; Q 1-4,10 = 0:5 1:2; Q 1-4,14 = 0:5 1:2;
        Q 1,2,99 = 1:3 0:2""",
    "13": f"""{_PAIR}; S 1 1-4 + 5,6; S 2 1-4 + 7,8; S 3 1-4; S 3 1,2 + 9; E 1,2,2,2,2;
        Q 1-6 = 1:6 2:4 3:4; Q 1-4,7,8 = 1:4 2:6 3:4; Q 1,2,9 = 1:2 2:2 3:3""",
    "14": "S 0 1-4; S 1 1,2; S 1 1,2 + 9; E 1,2,2; Q 1,2,9 = 0:2 1:3; Q 1-4 = 0:4 1:2",
    "15": "S 5 7,8 + 9 !P; Q 9 =; R 5 #1 !B; R 5 7,8 !B",
    "16": "S 1 1-3; S 2 1-3 + 4 !P; R 2 1-3 !B; Q 1-4 = 1:3; S 2 1; S 2 1-3 + 4 !P; Q 1-4 = 1:3 2:1",
    "17": "S 0 1-3; S 0 .; S 0 1 + .; S 0 1-3 + .; S 0 8 + . !P; S 1 1-3 + . !P; D 0; Q 1-3 = 0:3; N 0 3",
    "18a": f"{_PAIR}; S 1 1-4 + 5,6; S 2 1-4 + 7,8; E 2,2,4; Q 1-6 = 1:6 2:4; Q 1-4,7,8 = 1:4 2:6; N 1 6",
    "18b": f"{_PAIR}; S 2 1-4 + 7,8; S 1 1-4 + 5,6; E 2,2,4; Q 1-6 = 1:6 2:4; Q 1-4,7,8 = 1:4 2:6; N 2 6",
    "19": f"{_PAIR}; S 1 1-4 + 5,6; S 2 1-4 + 5,6; E 6; Q 1-6 = 1:6 2:6; N 1 6; N 2 6",
    "20a": f"{_TRIO}; S 1 1-3 + 4-6; S 2 1-3 + 7,8; E 2,3,3; Q 1-6 = 0:6 1:6 2:3; Q 1-3,7,8 = 0:3 1:3 2:5",
    "20b": f"{_TRIO}; S 2 1-3 + 7,8; S 1 1-3 + 4-6; E 2,3,3; Q 1-6 = 0:6 1:6 2:3; Q 1-3,7,8 = 0:3 1:3 2:5",
    "21a": "S 0 1-10; " + "".join(f"S 0 1-{n} + {n + 1}-{n + 10}; " for n in range(10, 200, 10))
    + "E 200; Q 1-200 = 0:200; Q 1-75 = 0:75; U 0:200",
    "21b": "S 0 1-1000; Q 1-1000 = 0:1000; Q 1-500 = 0:500; Q 1-499,5000,501-600 = 0:499",
    "22": "S 0 1-128; "
    + "".join(f"Q 1-{d},999,{d + 2}-128 = 0:{d}; " for d in (31, 32, 33, 63, 64, 65, 95, 96, 97)),
    "23": "S 0 1-10; S 1 1-20; S 2 1-35; S 3 1-64; S 4 1-100; E 100; Q 1-100 = 0:10 1:20 2:35 3:64 4:100",
    "24": "S 0/0 1-3; S 0/1 1-3; S 0/2 1-3; Q 1-3 = 0/0:3 0/1:3 0/2:3; N 0/1 3; E 3",
    "25": "S 0 1-3; S 0 100-102; E 3,3; Q 1-3 = 0:3; Q 100-102 = 0:3; Q 1,100 = 0:1",
    # removal
    "26": """S 0 1-5; R 0 1-5 @ 3; Q 1-5 = 0:2; N 0 2; E 2; S 0 1,2 + 3; Q 1-5 = 0:3; N 0 3; E 3;
        S 0 1-3 + 4,5; Q 1-5 = 0:5; N 0 5; E 5""",
    "27": "S 0 1-5; R 0 1-5 @ 3; S 0 1-3 + 4,5 !P; S 0 1-5 + 6 !P; Q 1-5 = 0:2; Q 1-6 = 0:2",
    "28": f"{_N28}; S 0 1,2 + 3-6; Q 1-6 = 0:6 1:6; N 0 6; E 6",
    "29": f"{_N28}; R 0 1-6 @ 6; Q 1-6 = 0:2 1:6; N 0 2; N 1 6",
    "30": """S 0 1-6; R 0 1-6 @ 6; Q 1-6 = 0:5; N 0 5; E 5; R 0 1-6 @ 5; Q 1-6 = 0:4; R 0 1-6 @ 4;
        Q 1-6 = 0:3; N 0 3; E 3""",
    "31": "S 0 1-6; R 0 1-6 @ 1; Q 1-6 =; N 0 0; E .; R 0 1-6 @ 2,3; Q 1-6 =; E .",
    "32": "S 0 1-3; R 0 1-3 @ 3; Q 1-3 = 0:2; Q 1,2 = 0:2; E 2",
    "33": "S 0 1-3; R 0 #77,78; Q 1-3 = 0:3; R 9 #77 !B; W 9; R 0 1-3,9 @ 4,3; Q 1-3 = 0:2",
    "34a": f"{_N34}; S 0 1,2 + 7; E 3; Q 1,2,7 = 0:3; Q 1-3 = 0:2",
    "34b": f"{_N34}; S 0 1,2 + 3-5; E 5; Q 1-5 = 0:5",
    "35": """S 1 1-4; S 1 1-4 + 5,6; S 3 1-4; S 3 1-4 + 7,8; S 2 1-4; R 2 1,2 @ 2; E 2,2,4;
        Q 1-6 = 1:6 3:4 2:1; Q 1-4,7,8 = 3:6 1:4 2:1""",
    "38": """S 1 1,2,5,6; S 2 1,2,5,6; S 3 1,2,7; R 1 1,2 @ 2; Q 1,2,5,6 = 1:1 2:4 3:2; S 1 1,2,5,6 + 8 ?P;
        Q 1,2,5,6,8 = 1:1 2:4 3:2; S 1 1 + 2; Q 1,2,5,6,8 = 1:2-5 2:4 3:2""",
    "42": "S 0 1-100; R 0 1-100 @ 80-100; Q 1-100 = 0:79; N 0 79; E 79",
    # clear, removal of workers
    "43": "S 0 1-3; S 1 1-3; C 0; Q 1-3 = 1:3; S 0 1-3; Q 1-3 = 0:3 1:3; N 0 3",
    "44": "S 7/0 1-3; S 7/1 1-3; C 7/0; Q 1-3 = 7/1:3; N 7/0 0",
    "46": """S 1/0 1-4; S 1/1 1-4; S 2 1,2,9; E 1,2,2; C 1/0; Q 1-4 = 1/1:4 2:2; W 1; Q 1-4 = 2:2; E 1,2;
        U 2:3""",
    "47": "S 0 1-3; C 0; R 0 1-3 @ 2; Q 1-3 =; E .; C 0; W 0; R 0 1-3 @ 2 !B; W 0",
    "48": "S 0 1-3; S 1 1-3; W 0; Q 1-3 = 1:3; S 0 1-3 + 4 !P; S 0 1-3; Q 1-3 = 0:3 1:3; N 0 3",
    "49": "S 0 1-4; W 0; S 0 1,2,9; Q 1-4 = 0:2; Q 1,2,9 = 0:3; E 3; N 0 3",
    # coverage across splits, repair
    "50": f"{_N50}; Q 1-6 = 0:6 1:1 2:3 3:5 4:3; Q 1-3,9 = 0:3 1:1 2:3 3:3 4:4",
    "51": """S 0 1-6; S 1 1-6; S 1 1-3 + 7; R 0 1-6 @ 5,6; K 1; Q 1-6 = 0:4 1:6; N 0 4; R 0 1-6 @ 4; K 1;
        Q 1-6 = 0:3 1:6""",
    "52": "S 0 1-6; S 1 1-6; S 1 1-3 + 7; S 0 1-6 + 8; K 1; E 1,3,4; Q 1-6,8 = 0:7 1:6; Q 1-3,7 = 0:3 1:4",
    "55": """S 0 1-6; S 1 1-6; S 2 1-6; R 2 1-6 @ 5; S 1 1-3 + 7; R 0 1-6 @ 6; S 2 1-5 + 6 !P; S 2 1-6 + 8 !P;
        Q 1-6 = 0:5 1:6 2:4; S 2 1-4 + 5; Q 1-6 = 0:5 1:6 2:5""",
    # the internal mark, reclaim
    "56": f"{_N56}; S 0 1-3 + 8,9; E 2,3; Q 1-3,8,9 = 0:5",
    "57": f"{_N56}; S 0 1-3 + 4,5; E 2,3; Q 1-5 = 0:5",
    "58": """S 0 1,2; S 0 1,2 + 3; S 0 1,2 + 4; E 1,1,2; R 0 1,2 @ 1; Q 1-3 =; E 1,1,2; N 0 2; S 0 1,2;
        Q 1-3 = 0:3; Q 1,2,4 = 0:3; N 0 4; R 0 1-3; R 0 1,2,4 @ 3; E .; N 0 0""",
    # queries, dump, hashes
    "59": "S 0 1,2; S 1 1,2; S 0 1,2 + 3; S 1 1,2 + 4; W 1; E 1,2; Q 1-3 = 0:3",
    "60": f"""{_N50}; R 0 1-6 @ 6; Q 1-6 = 0:5 1:1 2:3 3:5 4:3; Q 1,2 = 0:2 1:1 2:2 3:2 4:2;
        Q 1-3,9 = 0:3 1:1 2:3 3:3 4:4""",
    "61a": f"{_N9}; U 1:6 2:5",
    "61b": f"{_N12}; S 1 1,2,99; U 0:4 0:1 0:1 0:1 0:1 0:1 1:3",
    "61c": f"{_N50}; U 0:6 1:1 2:3 3:5 4:4",
    "63": """X 1 . + 1:101,2:102,3:103; X 2 . + 1:201,2:202,3:203; Q 1-3 = 1:3 2:3; E 3; R 2 #102;
        Q 1-3 = 1:3 2:3; X 2 . + 1:201,2:202,3:203,4:204; Q 1-4 = 1:3 2:4; E 4; U 1:3 2:4;
        R 2 #202; Q 1-4 = 1:3 2:1; E 3""",
    "64": "X 1 . + 1:900; X 1 . + 2:900; Q 1 =; Q 2 = 1:1; N 1 1; E 1; R 1 #900; Q 2 =; N 1 0; E .",
    "65": """X 1 . + 1:101; X 1 #101 + 2:101 !I; X 1 #101 + 2:102,3:102 !I; X 1 . + 2:5,3:5 !I;
        X 1 #101 + 2:102; X 1 #102 + 3:101 !I; Q 1-3 = 1:2; N 1 2; E 2; X 2 . + 1:1,1:1 !I; R 2 #1 !B""",
    # what the property tests end in
    "75": """S 0 1-6; S 1 1-3,9; S 0 1-3 + 7; R 0 1-6 @ 2,5; R 1 1-3,9 @ 3,1,4,2; R 0 1-6; R 0 1-3,7; E .;
        N 0 0; N 1 0""",
    "76": "".join(f"S {r} 1-4; " for r in range(4))
    + "".join(f"S {r} 1-4 + {r}5,{r}6; " for r in range(4))
    + "E 2,2,2,2,4; Q 1-4,15,16 = 0:4 1:6 2:4 3:4; Q 1-4,35 = 0:4 1:4 2:4 3:5",
    "77": "S 0 1-8; " + "S 1 1-8; Q 1-8 = 0:8 1:8; R 1 1-8 @ 1; Q 1-8 = 0:8; N 1 0; E 8; " * 3,
    "names replaced": """X 1 . + 1:11,2:12,3:13; X 1 . + 1:21,2:12; Q 1-3 = 1:3; X 1 #11 + 2:12 !P; R 1 #11;
        Q 1-3 = 1:3; X 1 . + 1:12,2:21; Q 1-3 = 1:3; R 1 #21; Q 1-3 = 1:1""",
}  # fmt: skip
