"""Commands that look: ``list | status | verify | dump``. They attach read-only."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from shmtrie.cli_common import EXIT_CORRUPT, EXIT_REPAIRABLE, Finish, attached, opened
from shmtrie.cli_output import plain, print_fields, print_json, print_table, progress


def list_segments(as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False) -> None:
    """List the segments of this machine."""
    from shmtrie.errors import ShmtrieError
    from shmtrie.index import Index

    found: list[dict[str, Any]] = []
    for name in sorted(str(getattr(item, "name", item)) for item in Index.list()):
        row: dict[str, Any] = {"name": name, "state": "ok", "ranks": None, "blocks": None}
        try:
            with attached(name, timeout=0.0) as index:
                stats = plain(index.stats())
                row.update(ranks=stats.get("ranks"), blocks=stats.get("blocks"))
                row["state"] = "retired" if index.retired else "ok"
        except ShmtrieError as error:
            row["state"] = _state(name) or type(error).__name__
        found.append(row)
    if as_json:
        print_json(found)
    elif found:
        print_table(list(found[0]), [list(row.values()) for row in found])
    else:
        print("no segments")


def _state(name: str) -> str | None:
    """Why one cannot attach to a segment, in a word or two; None when it is something else."""
    from shmtrie.creation import Stage, stage_of
    from shmtrie.errors import ShmtrieError
    from shmtrie.shmfile import open_file

    with suppress(ShmtrieError):
        file = open_file(name, False)
        try:
            stages = {Stage.STALE: "stale", Stage.DEAD: "unfinished", Stage.BUILDING: "being made"}
            return stages.get(stage_of(file))
        finally:
            file.close()
    return None


def status(
    name: Annotated[str, typer.Argument(help="Segment.")],
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Show counters, sizes and ranks of a segment."""
    with attached(name) as index:
        stats, workers, retired = plain(index.stats()), index.workers(), index.retired
    if as_json:
        print_json({"name": name, "retired": retired, "stats": stats, "workers": workers})
        return
    print_fields({"name": name, "retired": retired, **stats})
    if workers:
        print()
        print_table(workers[0]._fields, [list(plain(worker).values()) for worker in workers])


def verify(
    name: Annotated[str, typer.Argument(help="Segment.")],
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Check the invariants: exit 0 clean, 1 repairable, 2 corrupt.

    Beside active writers a check meets operations half done: what could not be decided is listed as
    unsettled, and is no reason to fail.
    """
    from shmtrie.errors import SegmentCorrupt

    try:
        with attached(name) as index:
            report = index.verify()
    except SegmentCorrupt as error:
        if as_json:
            broken = [["header", str(error)]]
            print_json({"name": name, "state": "corrupt", "broken": broken, "unsettled": [], "counts": {}})
        else:
            print(f"{name}: corrupt: {error}")
        raise Finish(EXIT_CORRUPT) from None
    state = "clean" if report.ok else "repairable" if report.repairable else "corrupt"
    if as_json:
        told = {"broken": report.broken, "unsettled": report.unsettled, "counts": report.counts}
        print_json({"name": name, "state": state, **told})
    else:
        print(f"{name}: {state}")
        for invariant, what in report.broken:
            print(f"  {invariant}: {what}")
        for invariant, what in report.unsettled:
            print(f"  {invariant}, unsettled: {what}")
        print_fields({"counts": report.counts})
    if not report.ok:
        raise Finish(EXIT_REPAIRABLE if report.repairable else EXIT_CORRUPT)


def dump(
    name: Annotated[str, typer.Argument(help="Segment.")],
    output: Annotated[str, typer.Option("--output", "-o", help="File; - is stdout.")] = "-",
) -> None:
    """Write store events that rebuild the index, one JSON object a line."""
    from shmtrie.event_types import encode_event

    with attached(name) as index:
        events = index.dump_events()
    with opened(output, "wb") as file, progress("writing", len(events)) as advance:
        for event in events:
            file.write(encode_event(event) + b"\n")
            advance(1)
    if output != "-":
        print(f"{len(events):,} events written to {output}", file=sys.stderr)
