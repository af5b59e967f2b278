#!/usr/bin/env python3
"""All interleavings of a few processes on the kernels' own source: ``tests/interleave``, longer.

    scripts/interleave.py --list
    scripts/interleave.py --bound 3                      all models, with three preemptions instead of two
    scripts/interleave.py "split / clear" --controls     ... and what goes wrong when a mechanism is taken out
    scripts/interleave.py "last one" --without "push on withdrawal" --trace
    scripts/interleave.py --alone                        mechanisms that no model misses by themselves

Names may be parts of names. A violation is printed with its schedule: names of processes in the order in
which they go on, ``A*3`` for three times, ``A5!`` for a death behind five operations, ``A~`` for a store that
leaves A's store buffer. ``--trace`` shows every operation of it, ``--schedule`` those of any other schedule.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.interleave.model import LOOKS, Model, explorer_of, open_world
from tests.interleave.models import ALONE, CASES
from tests.interleave.process import Operation
from tests.interleave.schedule import Report
from tests.interleave.transform import KINDS, Edit

UNBOUNDED = -1


def run(model: Model, edits: Iterable[Edit], bound: int | None, schedule: str | None, trace: bool) -> Report:
    """Explore one model; print the operations of a schedule."""
    with open_world(model) as world:
        explorer = explorer_of(world, edits, bound)
        explorer.look_around(LOOKS * (1 + 4 * model.deaths))
        report = explorer.run()
        if trace and report.violation:
            schedule = schedule or report.violation.schedule
        if schedule:

            def tell(who: str, op: Operation | None, new: int | None) -> None:
                if op is None:
                    print(f"    {who:4} dies")
                    return
                kind, address, _, _, site = op
                where = world.describe(address & -8) if address else ""
                value = "" if new is None else f" = {new & (1 << 64) - 1:#x}"
                print(f"    {who:4} {KINDS[kind]:8}{where}{value}   {site}")

            explorer.follow(schedule, tell)
    return report


def show(name: str, report: Report, seconds: float, want: bool | None) -> bool:
    """One line; whether it is as wanted."""
    found = report.violation
    verdict = "" if want is None else "caught" if found else "SURVIVED"
    if not want and found:
        verdict = "VIOLATION"
    print(
        f"{name:58} {report.states:8} states {report.steps:9} steps {report.ends:6} ends "
        f"{seconds:6.1f} s  {verdict}",
        flush=True,
    )
    if found:
        print(f"    {found.what[:1000]}\n    schedule: {found.schedule}", flush=True)
    return bool(found) == bool(want)


def main() -> int:
    """Explore what the command line names; 1 unless everything is as it should be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="models by names or parts of them; all when there is none")
    parser.add_argument("--list", action="store_true", help="show the models and end")
    parser.add_argument("--bound", type=int, help=f"preemptions; {UNBOUNDED}: all schedules")
    parser.add_argument("--more", type=int, default=0, help="so many preemptions more than each model has")
    parser.add_argument("--tso", action="store_true", help="with store buffers")
    parser.add_argument("--controls", action="store_true", help="also with each mechanism taken out")
    parser.add_argument("--without", metavar="CONTROL", help="with this mechanism taken out")
    parser.add_argument("--alone", action="store_true", help="take out what another mechanism stands in for")
    parser.add_argument("--trace", action="store_true", help="print the operations of a violation")
    parser.add_argument("--schedule", help="print the operations of this schedule")
    arguments = parser.parse_args()
    chosen = [name for name in CASES if not arguments.names or any(part in name for part in arguments.names)]
    if not chosen:
        parser.error("no model is called so: see --list")
    right = True
    for name in chosen:
        case = CASES[name]
        if arguments.list:
            print(name, *(f"    {text}" for text in (case.model.setup, *case.model.processes)), sep="\n")
            print(*(f"    without: {control}" for control in case.controls), sep="\n")
            continue
        jobs: list[tuple[str, tuple[Edit, ...], bool | None]] = [(name, (), None)]
        if arguments.without:
            jobs = [(f"{name} - {arguments.without}", case.controls[arguments.without], True)]
        elif arguments.alone:
            jobs = [(f"{name} - {what}", edits, None) for what, edits in ALONE.items()]
        elif arguments.controls:
            jobs += [(f"{name} - {control}", edits, True) for control, edits in case.controls.items()]
        bound = case.model.bound
        if arguments.bound is not None:
            bound = None if arguments.bound == UNBOUNDED else arguments.bound
        elif bound is not None:
            bound += arguments.more
        model = case.model._replace(tso=case.model.tso or arguments.tso)
        for title, edits, want in jobs:
            begin = time.monotonic()
            report = run(model, edits, bound, arguments.schedule, arguments.trace)
            right &= show(title, report, time.monotonic() - begin, want)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
