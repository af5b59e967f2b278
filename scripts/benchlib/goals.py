"""The figures to reach: ours beside a peer's from the same run, their ratio, and whether it is enough."""

from __future__ import annotations

from dataclasses import dataclass

from . import beside, curves, evictions, memory, processes, startup
from .results import Results

WORKLOADS = "workloads"
KERNEL_WORKLOADS = (
    *("conv_w64_g1", "conv_w256_g1", "conv_w64_g8", "conv_w8_g32", "synth_w64_g1"),
    *("wide", "deep", "fanout", "decode", "churn", "million_u"),
)


@dataclass(frozen=True)
class Key:
    """Where a figure is: section, workload, index, name."""

    section: str
    workload: str
    index: str
    name: str

    def of(self, results: Results) -> float | None:
        """The median, None if it was not measured."""
        return results.get(self.section, self.workload, self.index, self.name)


@dataclass(frozen=True)
class Goal:
    """One line of the table.

    Attributes
    ----------
    what, against : str
        In words.
    ours, peer : Key
        A goal without a peer is about the figure itself.
    bound : float
        The ratio to reach.
    way : str
        "faster": peer / ours at least the bound (times); "time": ours / peer at most (times or bytes);
        "rate": ours / peer at least (things a second); "least", "most": ours itself.
    unit : str
        Of the figures: ns, /s, B, s.
    """

    what: str
    against: str
    ours: Key
    peer: Key | None
    bound: float
    way: str
    unit: str


@dataclass(frozen=True)
class Verdict:
    """A goal measured; ratio and met are None where a figure is missing."""

    goal: Goal
    ours: float | None
    peer: float | None
    ratio: float | None
    met: bool | None


def judge(goal: Goal, results: Results) -> Verdict:
    """Compare."""
    ours = goal.ours.of(results)
    if goal.peer is None:
        if ours is None:
            return Verdict(goal, None, None, None, None)
        return Verdict(
            goal, ours, None, ours, ours <= goal.bound if goal.way == "most" else ours >= goal.bound
        )
    peer = goal.peer.of(results)
    if ours is None or peer is None or not ours or not peer:
        return Verdict(goal, ours, peer, None, None)
    ratio = peer / ours if goal.way == "faster" else ours / peer
    return Verdict(
        goal, ours, peer, ratio, ratio <= goal.bound if goal.way == "time" else ratio >= goal.bound
    )


def goals() -> list[Goal]:
    """All goals, in the order of the table."""
    found: list[Goal] = []

    def find(workload: str, index: str, peer: str, bound: float, way: str = "faster", note: str = "") -> None:
        mine, theirs = (Key(WORKLOADS, workload, i, "find_p50") for i in (index, peer))
        found.append(Goal(f"{workload}: find p50, {note or index}", peer, mine, theirs, bound, way, "ns"))

    find("conv_w64_g1", "shmtrie", "dynamo RadixTree", 60, note="arrays")
    find("conv_w64_g1", "shmtrie", "native CRTC", 0.7, "time", note="arrays")
    find("conv_w64_g1", "shmtrie", "dict of sets", 15, note="arrays")
    find("conv_w64_g1", "shmtrie dict", "dynamo RadixTree .scores", 10, note="dict")
    find("wide", "shmtrie", "dynamo RadixTree", 100, note="arrays")
    find("wide", "shmtrie best_match", "dynamo RadixTree", 150, note="best_match")
    few, many = (Key(curves.WORKERS, n, "shmtrie best_match", "hot_ns_1") for n in ("512", "64"))
    found.append(
        Goal("best_match, 2 holders deepest: 512 workers", "64 workers", few, many, 1.5, "time", "ns")
    )
    find("deep", "shmtrie", "dynamo RadixTree", 60, note="arrays")
    for name in KERNEL_WORKLOADS:
        for measure in ("static_ns", "hot_ns"):
            mine = Key(WORKLOADS, name, "shmtrie kernel", measure)
            what = f"{name}: kernel find, {measure[:-3]}"
            for peer, bound in (("native CRTC", 0.5), ("native ChainIndex", 1.0)):
                if peer == "native ChainIndex":
                    bound = 0.7 if measure == "hot_ns" else 1.3 if name == "churn" else 1.0
                theirs = Key(WORKLOADS, name, peer, measure)
                found.append(Goal(what, peer, mine, theirs, bound, "time", "ns"))
    for name in KERNEL_WORKLOADS:
        mine = Key(WORKLOADS, name, "shmtrie packed", "events_s")
        for peer, bound in (("native CRTC", 1.5), ("native ChainIndex", 1.0)):
            theirs = Key(WORKLOADS, name, peer, "events_s")
            found.append(Goal(f"{name}: events, packed", peer, mine, theirs, bound, "rate", "/s"))
    for name in ("churn", "conv_w64_g1"):
        theirs = Key(WORKLOADS, name, "dynamo RadixTree", "events_s")
        for index, what, bound in (
            ("shmtrie", "calls with arrays", 8),
            ("shmtrie packed", "packed", 30),
            ("shmtrie dict", "JSON", 4),
        ):
            mine = Key(WORKLOADS, name, index, "events_s")
            found.append(
                Goal(f"{name}: events, {what}", "dynamo RadixTree", mine, theirs, bound, "rate", "/s")
            )
    mine = Key(beside.SECTION, "conv_w64_g1", "shmtrie beside a writer", "kernel_find_p99")
    for peer in ("native ChainIndex", "native CRTC"):
        theirs = Key(beside.SECTION, "conv_w64_g1", peer, "kernel_find_p99")
        found.append(
            Goal("conv_w64_g1: kernel find p99 beside a writer", peer, mine, theirs, 1.0, "time", "ns")
        )
    for name, bound in (
        ("million_u", 36),
        ("conv_w64_g1", 48),
        ("million_c4", 37),
        ("million_c4_seeds", 190),
    ):
        mine = Key(memory.SECTION, name, "shmtrie", "per_block")
        found.append(Goal(f"{name}: bytes per unique block", "", mine, None, bound, "most", "B"))
    one, two = (Key(processes.SECTION, f"conv_w64_g1 x{n}", "shmtrie", "finds_s") for n in (1, 2))
    less, more = (Key(processes.SECTION, f"conv_w64_g1 x{n}", "shmtrie", "memory") for n in (1, 2))
    found.append(Goal("memory of the index, 2 routers", "1 router", more, less, 1.1, "time", "MB"))
    found.append(Goal("finds of 2 processes", "of 1 process", two, one, 1.9, "rate", "/s"))
    for names in (("find_p99", "find p99 from Python beside a writer"),):
        busy, idle = (
            Key(beside.SECTION, "conv_w64_g1", f"shmtrie {s}", names[0]) for s in ("beside a writer", "idle")
        )
        found.append(Goal(f"conv_w64_g1: {names[1]}", "idle", busy, idle, 3.0, "time", "ns"))
    for index in ("shmtrie", curves.OWN_HASHES):
        mine = Key(curves.SIZE, "10000000", index, "store_worst_ns")
        what = f"longest store up to ten million blocks ({index})"
        found.append(Goal(what, "", mine, None, 100e6, "most", "ns"))
    for what, bound in (("hot", 25), ("cold", 1_000)):
        mine = Key(curves.PIECES, what, "shmtrie kernel", "step_ns")
        found.append(
            Goal(f"a node step more in a prefix in pieces, {what}", "", mine, None, bound, "most", "ns")
        )
    long, short = (
        Key(evictions.SECTION, f"head-first {n}", "shmtrie exact_holes", "packed_ns") for n in (4096, 16)
    )
    what = "head-first with exact holes: a block of a chain of 4,096"
    found.append(Goal(what, "of a chain of 16", long, short, 1.5, "time", "ns"))
    for what, bound in (("import, attach, first find", 1.2), ("import, attach, lane, first store", 1.6)):
        found.append(
            Goal(what, "", Key(startup.SECTION, what, "shmtrie", "seconds"), None, bound, "most", "s")
        )
    return found


def verdicts(results: Results) -> list[Verdict]:
    """All goals of which something was measured."""
    return [v for v in (judge(goal, results) for goal in goals()) if v.ours is not None]
