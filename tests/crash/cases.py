"""The operations that die, and the process in which they do: ``python -m tests.crash.cases`` reads lines
of JSON, [name, first seed, number of seeds], and answers each with one.

Seed 0 has no other ranks around its paths, and also kills processes, at each kind of point once.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any, NamedTuple

from shmtrie.capacity import Capacity
from tests.crash import wide
from tests.crash.lapses import LAPSES
from tests.crash.sweep import Sweep, open_stage, two_dead_lanes


class Case(NamedTuple):
    """Scripts of ``tests.scenarios``: what comes before, and whose last step dies."""

    setup: str
    script: str
    capacity: Capacity | None = None
    exact_holes: bool = False


def _aliases(rank: int, path: str, first: int) -> str:
    """A store with hashes of the rank's own."""
    blocks = [int(b) for b in path.split(",")]
    return f"X {rank} . + " + ",".join(f"{b}:{first + k}" for k, b in enumerate(blocks))


_TWO = _aliases(2, "1,2,3", 801) + "; " + _aliases(1, "1,2,3", 901)
_MANY = "; ".join(f"S {3 * i} 1-4" for i in range(2, 12))
TWO_DEAD = "two dead lanes"
WIDE = "arrays of several spans"
SMALL = Capacity(blocks=64, workers=16, lanes=4, nodes=6, extents=24)

CASES = {
    "first store": Case("", "S 1 1-4"),
    "first store on others' nodes": Case("S 2 1-4; S 3 1-6", "S 1 1-6"),
    "new chain": Case("S 1 9", "S 1 1-4"),
    "chain of several nodes": Case("S 1 9", "S 1 1-4200"),
    "extension": Case("S 1 1-4; S 2 1-4", "S 1 1-4 + 5,6"),
    "extension to a longer extent": Case("S 1 1-4; S 2 1-4", "S 1 1-4 + 5-20"),
    "first child": Case("S 1 1-4; S 2 1-4; S 3 1-2; R 1 1-4 @ 4", "S 1 1-3 + 7,8"),
    "another child": Case("S 1 1-4; S 2 1-4; S 2 1-4 + 5; S 1 1-4", "S 1 1-4 + 6,7"),
    "split": Case("S 1 1-6; S 2 1-6; S 3 1-6", "S 1 1-3 + 9"),
    "split of a node with children": Case("S 1 1-6; S 2 1-6; S 2 1-6 + 7; S 3 1-6 + 8; S 3 1-6", "S 1 1-3,9"),
    "second split": Case("S 1 1-6; S 2 1-6; S 2 1-4,9", "S 1 1-2,9"),
    "promotion along a path": Case("S 2 1-3; S 2 1-3 + 4; S 3 1-3; S 3 1-3 + 5; S 2 1-4 + 6", "S 1 1-4,6"),
    "store of what is there": Case("S 1 1-4; S 2 1-4", "S 1 1-4"),
    "words become a list": Case("S 2 1-4; S 3 1-4; S 5 1-4", "S 1 1-4"),
    "words become dense": Case(_MANY, "S 1 1-4"),
    "split of a dense node": Case(_MANY + "; S 1 1-4", "S 1 1-2,9"),
    "split of a dense node behind which few go on": Case(
        "S 1 1-6; S 2 1-6; " + _MANY.replace("1-4", "1-2"), "S 1 1-3,9"
    ),
    "own hashes": Case(_aliases(2, "1,2,3,4", 801), _aliases(1, "1,2,3,4", 901)),
    "own hashes, longer": Case(
        _aliases(2, "1,2,3,4,5,6", 801) + "; " + _aliases(1, "1,2", 901), "X 1 #902 + 3:903,4:904"
    ),
    "other hashes": Case(
        _aliases(2, "1,2,3,4", 801) + "; " + _aliases(1, "1,2,3,4", 901), _aliases(1, "1,2,3,4", 701)
    ),
    "split of own hashes": Case(
        _aliases(2, "1,2,3,4", 801) + "; " + _aliases(1, "1,2,3,4", 901), "X 1 #902 + 9:909"
    ),
    "hash from elsewhere": Case(
        _aliases(1, "1,2,3,4", 901) + "; " + _aliases(2, "1,2,3,4", 801), "X 1 . + 7:904,8:908"
    ),
    "hash of one's own from elsewhere": Case(
        _aliases(2, "1,2,3,4", 801) + "; " + _aliases(1, "1,2,3,4", 901), "X 1 . + 7:901,8:908"
    ),
    "refused for want of room": Case("S 1 1,2; S 1 3; S 1 4; S 1 5", "S 1 6-30 + 31; R 1 3", SMALL),
    "removal of a tail": Case("S 1 1-6; S 2 1-3", "R 1 1-6 @ 4-6"),
    "removal to a smaller extent": Case("S 1 1-40; S 2 1-3", "R 1 1-40 @ 4-40"),
    "removal of a leaf": Case("S 1 1-3; S 1 1-3 + 4; S 2 1-3; S 2 1-3 + 5", "R 2 1-3,5 @ 4"),
    "removal of a chain": Case("S 1 1-3; S 2 1-3; S 1 1-3 + 4; S 2 1-3 + 5; R 2 1-3,5", "R 1 1-4"),
    "removal upward": Case(
        "S 1 1; S 2 1; S 1 1 + 2; S 2 1 + 3; S 2 1,2; S 2 1,2 + 4; S 1 1,2 + 5; R 2 1-2,4; R 2 1,3; R 1 1-2",
        "R 1 1,2,5 @ 3",
    ),
    "removal in the middle": Case("S 1 1-6; S 2 1-6", "R 1 1-6 @ 3"),
    "removal of own hashes": Case(
        _aliases(2, "1,2,3", 801) + "; " + _aliases(1, "1,2,3", 901), "R 1 #901,902,903"
    ),
    "removal of the last own hashes": Case(
        _aliases(2, "1,2,3", 801) + "; " + _aliases(1, "1,2,3", 901) + "; R 2 #801,802,803",
        "R 1 #901,902,903",
    ),
    "clear": Case("S 1 1-6; S 2 1-6; S 2 1-3,9; S 1 7-9; S 3 7,8; S 3 7,8 + 4; S 1 7,8 + 5", "C 1"),
    "removal of a worker": Case("S 1 1-6; S 1/1 1-4; S 2 1-6; S 2 1-3,9; S 1 7-9", "W 1"),
}

_HOLES = {
    "removal in the middle": Case("S 1 1-6; S 2 1-6; S 3 1-8", "R 1 1-6 @ 3"),
    "removal of two runs": Case("S 1 1-9; S 2 1-4", "R 1 1-9 @ 2,3,6,9"),
    "removal of the head": Case("S 1 1-6; S 2 1-6", "R 1 1-6 @ 1,2"),
    "removal of the last behind a hole": Case("S 1 1-6; S 2 1-3; R 1 1-6 @ 1-5", "R 1 1-6 @ 6"),
    "removal of own hashes in the middle": Case(
        _aliases(2, "1,2,3,4,5", 801) + "; " + _aliases(1, "1,2,3,4,5", 901), "R 1 #902,904"
    ),
    "store in front of a kept part": Case("S 1 1-6; S 2 1-6; R 1 1-6 @ 1-4", "S 1 1,2"),
    "store that closes a hole": Case("S 1 1-6; S 2 1-6; R 1 1-6 @ 1-3", "S 1 1-3"),
    "store behind a hole": Case("S 1 1-6; S 2 1-6; R 1 1-6 @ 1,2", "S 1 1-6 + 7,8"),
    "hash from the middle of elsewhere": Case(
        _aliases(1, "1,2,3,4,5", 901) + "; " + _aliases(2, "1,2,3,4", 801), "X 1 . + 7:903,8:908"
    ),
    "hashes from two places elsewhere": Case(
        _aliases(1, "1,2,3,4,5,6", 901) + "; " + _aliases(2, "1,2,3,4", 801), "X 1 . + 7:902,8:904"
    ),
    "split around a hole": Case("S 1 1-8; S 2 1-8; R 1 1-8 @ 1-3", "S 2 1,2,9"),
    "clear with holes": Case("S 1 1-8; S 2 1-8; R 1 1-8 @ 2,5,6; S 1 7-9; R 1 7-9 @ 1", "C 1"),
}
CASES |= {"exact: " + name: case._replace(exact_holes=True) for name, case in _HOLES.items()}


def deaths(name: str, first: int, seeds: int) -> dict[str, Any]:
    """Let a case die; what came of it."""
    if name == TWO_DEAD:
        with open_stage() as stage:
            two_dead_lanes(stage, first)
        return {}
    if name in LAPSES:
        LAPSES[name]()
        return {}
    if name == WIDE:
        with open_stage(capacity=wide.CAPACITY) as stage:
            sweep = wide.WideSweep(stage, first)
            sweep.run()
        return {"deaths": sweep.deaths, "nested": sweep.nested, "sites": sorted(sweep.sites)}
    case, answer = CASES[name], {"deaths": 0, "nested": 0, "kills": 0}
    sites: set[int] = set()
    with open_stage(capacity=case.capacity, exact_holes=case.exact_holes) as stage:
        for seed in range(first, first + seeds):
            one = Sweep(stage, seed if case.capacity is None else 0)
            one.run(case.setup, case.script)
            if seed == 0:
                one.kill(case.setup, case.script)
            for what in answer:
                answer[what] += getattr(one, what)
            sites |= one.sites
    return answer | {"sites": sorted(sites)}


def main() -> None:
    """Serve cases until the input ends."""
    for line in sys.stdin:
        try:
            answer = deaths(*json.loads(line))
        except BaseException:
            answer = {"failed": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
