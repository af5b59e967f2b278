"""The main section: every workload on every index, repetitions interleaved, answers checked first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import dynamo, native
from .compiled import kernel_pass
from .dicts import DictOfMasks, DictOfSets
from .indexes import BenchIndex, Shmtrie, ShmtrieBest, ShmtrieDict, ShmtrieList, Tree
from .machine import PLACEMENTS, ForeignLoad, placed
from .model import expected
from .passes import (
    Prepared,
    filled,
    ingest_pass,
    packed_pass,
    stream_pass,
    wrong_answers,
    wrong_at_the_end,
)
from .results import Results, Say
from .workload import Workload

SECTION = "workloads"
_SLOW_BLOCKS = 3_000_000  # blocks in queries and events beyond which the plain tree is left out
_PLAIN: tuple[type[BenchIndex], ...] = (
    *(Shmtrie, ShmtrieDict, ShmtrieBest, ShmtrieList, Tree),
    *(DictOfSets, DictOfMasks),
)
_VARIANTS = (ShmtrieBest, ShmtrieList)  # other ways to ask; their events are those of Shmtrie


@dataclass(frozen=True)
class Plan:
    """What a run is to do.

    Attributes
    ----------
    reps : int
        Repetitions.
    binary : Path or None
        The native program.
    directory : Path
        For workload files.
    """

    reps: int
    binary: Path | None
    directory: Path
    quick: bool = False

    def file(self, workload: Workload) -> Path:
        """The workload as a file, written once."""
        path = self.directory / f"{workload.name}.bin"
        if not path.exists():
            workload.save(path)
        return path


def indexes_for(workload: Workload) -> list[type[BenchIndex]]:
    """Indexes that can take a workload."""
    found = [*_PLAIN, *((dynamo.Dynamo, dynamo.DynamoScores) if dynamo.available() else ())]
    if workload.seeds:
        found = [kind for kind in found if kind.handles_seeds]
    if len(workload.place) > _SLOW_BLOCKS:
        found.remove(Tree)
    return found


def measure(workload: Workload, plan: Plan, results: Results, say: Say) -> None:
    """Check all answers, then time."""
    say(f"{workload.name}: model")
    (answers, model), load = expected(workload), ForeignLoad()
    asked = len(workload.queries)
    prepared = {kind.name: Prepared(kind, workload) for kind in indexes_for(workload)}
    for name, ready in prepared.items():
        say(f"{workload.name}: answers of {name}")
        results.wrong[workload.name, name] = wrong_answers(ready, answers), asked
    results.wrong[workload.name, "shmtrie packed"] = wrong_at_the_end(workload, model), asked
    natives: Sequence[str] = ()
    if plan.binary is not None:
        natives = tuple(native.NAMES)
        for name in natives:
            say(f"{workload.name}: answers of {native.NAMES[name]}")
            wrong = native.native_wrong(plan.binary, name, plan.file(workload), answers)
            results.wrong[workload.name, native.NAMES[name]] = wrong, asked
    del answers, model
    for name, ready in prepared.items():
        results.placement[workload.name, name] = best_placement(ready)
    for rep in range(plan.reps):
        for name, ready in prepared.items():
            say(f"{workload.name}: {name}, repetition {rep + 1} of {plan.reps}")
            with placed(results.placement[workload.name, name]):
                results.add(SECTION, workload.name, name, stream_pass(ready))
                if ready.index not in _VARIANTS and ready.index is not dynamo.DynamoScores:
                    results.add(SECTION, workload.name, name, ingest_pass(ready))
        say(f"{workload.name}: packed batches and kernel, repetition {rep + 1} of {plan.reps}")
        with placed("pinned"):
            results.add(SECTION, workload.name, "shmtrie packed", packed_pass(workload))
            index = filled(workload)
            try:
                results.add(SECTION, workload.name, "shmtrie kernel", kernel_pass(index.reader, workload))
            finally:
                index.close()
        for name in natives:
            assert plan.binary is not None
            say(f"{workload.name}: {native.NAMES[name]}, repetition {rep + 1} of {plan.reps}")
            figures = native.native_pass(plan.binary, name, plan.file(workload), 3)
            results.add(SECTION, workload.name, native.NAMES[name], figures)
    results.foreign[workload.name] = load.cores()


def best_placement(ready: Prepared) -> str:
    """Where an index with threads of its own answers fastest; one without is pinned."""
    if not issubclass(ready.index, dynamo.Dynamo):
        return PLACEMENTS[0]
    took = {}
    for placement in PLACEMENTS:
        with placed(placement):
            took[placement] = stream_pass(ready)["find_p50"]
    return min(took, key=took.__getitem__)
