"""Commands that change: ``load | unlink | recover | rebuild | resize``."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from shmtrie.cli_common import EXIT_REFUSED, EXIT_UNSETTLED, Finish, attached, chunks, opened
from shmtrie.cli_output import print_json, print_table, progress

if TYPE_CHECKING:
    from shmtrie.capacity import Capacity


def load(
    name: Annotated[str, typer.Argument(help="Segment.")],
    source: Annotated[str, typer.Argument(metavar="FILE", help="One event a line; - is stdin.")] = "-",
    create: Annotated[bool, typer.Option("--create", help="Make the segment when there is none.")] = False,
    blocks: Annotated[int, typer.Option(help="With --create: unique blocks.")] = 1_000_000,
    workers: Annotated[int, typer.Option(help="With --create: ranks.")] = 256,
    lanes: Annotated[int, typer.Option(help="With --create: writer processes.")] = 16,
    block_size: Annotated[int, typer.Option(help="With --create: tokens of a block.")] = 16,
    model: Annotated[str, typer.Option(help="With --create: model name.")] = "",
    exact_holes: Annotated[bool, typer.Option("--exact-holes", help="With --create.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Apply events to a segment: exit 1 when some were refused."""
    from shmtrie.capacity import Capacity
    from shmtrie.errors import EventStatus
    from shmtrie.index import Index

    with opened(source, "rb") as file:
        if create:
            capacity = Capacity(blocks=blocks, workers=workers, lanes=lanes)
            index = Index.create(
                name, capacity, block_size=block_size, model=model, exact_holes=exact_holes, exist_ok=True
            )
        else:
            index = Index.attach(name)
        counts: Counter[str] = Counter()
        size = os.fstat(file.fileno()).st_size if source != "-" else None
        try:
            with index.writer() as writer, progress("loading", size) as advance:
                for events in chunks(file, source, advance):
                    statuses = writer.apply_events(events)
                    counts.update(EventStatus(int(code)).name for code in statuses)
        finally:
            index.close()
    total = sum(counts.values())
    refused = total - counts[EventStatus.OK.name]
    if as_json:
        print_json({"name": name, "events": total, "refused": refused, "statuses": dict(counts)})
    else:
        print(f"{total:,} events, {refused:,} refused")
        for status_name, count in sorted(counts.items()):
            print(f"  {status_name}: {count:,}")
    if refused:
        raise Finish(EXIT_REFUSED)


def unlink(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Segments.")],
    missing_ok: Annotated[bool, typer.Option("--missing-ok", help="A name may be gone.")] = False,
) -> None:
    """Remove the names of segments; processes that are attached keep what they have."""
    from shmtrie.errors import SegmentNotFound
    from shmtrie.index import Index

    for name in names:
        try:
            Index.unlink(name)
        except SegmentNotFound:
            if not missing_ok:
                raise


def recover(
    name: Annotated[str, typer.Argument(help="Segment.")],
    patience: Annotated[float, typer.Option(help="Seconds to wait for other lanes.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Settle what dead writers left: exit 0 when nothing is left to do, 1 when something is.

    Writers do this when it stands in their way. Lanes of living processes, stopped ones included, are named
    and left alone.
    """
    with attached(name, read_only=False) as index:
        report = index.recover(patience)
    if as_json:
        print_json({"name": name, **vars(report)})
    else:
        recovered = sum(outcome.state == "recovered" for outcome in report.lanes)
        print(f"{name}: {recovered} lanes recovered, {report.slots_freed} slots freed")
        if report.resize_cleared:
            print("a resize or rebuild that died half-way was taken back")
        if report.lanes:
            print_table(report.lanes[0]._fields, report.lanes)
        for what in report.unsettled:
            print(f"left: {what}")
    if not report.ok:
        raise Finish(EXIT_UNSETTLED)


def rebuild(
    name: Annotated[str, typer.Argument(help="Segment.")],
    source: Annotated[str, typer.Argument(metavar="FILE", help="One event a line; - is stdin.")],
    blocks: Annotated[int | None, typer.Option(help="Unique blocks; default: as the old one says.")] = None,
    workers: Annotated[int | None, typer.Option(help="Ranks.")] = None,
    lanes: Annotated[int | None, typer.Option(help="Writer processes.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens of a block.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Make a segment anew from a dump, under its name: exit 1 when an event was refused.

    The old one is in force until the new one is complete, and for good when an event is refused. Sizes and
    stamps are the old one's, unless they are given.
    """
    from shmtrie.header import salvage_page
    from shmtrie.rebuild import rebuild as make_anew
    from shmtrie.shmfile import open_file, read_page, valid_name

    capacity = None
    if (blocks, workers, lanes) != (None, None, None):
        file = open_file(valid_name(name), False)
        said = salvage_page(read_page(file), name)
        file.close()
        capacity = _capacity(blocks, workers, lanes, None if said is None else said.capacity)
    with opened(source, "rb") as events:
        size = os.fstat(events.fileno()).st_size if source != "-" else None
        with progress("loading", size) as advance:
            done = make_anew(name, chunks(events, source, advance), capacity, block_size, model)
    total = sum(done.statuses.values())
    if as_json:
        print_json({"name": name, "done": done.done, "events": total, "statuses": done.statuses})
    else:
        print(f"{name}: {total:,} events" if done.done else f"{name}: left as it was, events were refused")
        for status_name, count in sorted(done.statuses.items()):
            print(f"  {status_name}: {count:,}")
    if not done.done:
        raise Finish(EXIT_REFUSED)


def resize(
    name: Annotated[str, typer.Argument(help="Segment.")],
    blocks: Annotated[int | None, typer.Option(help="Unique blocks; default: as many as now.")] = None,
    workers: Annotated[int | None, typer.Option(help="Ranks.")] = None,
    lanes: Annotated[int | None, typer.Option(help="Writer processes.")] = None,
    patience: Annotated[float, typer.Option(help="Seconds to wait for operations under way.")] = 1.0,
) -> None:
    """Copy a segment into one of other sizes, which takes its name.

    Writers are told that theirs is retired, and have to attach anew; so have routers, which go on answering
    from the old one.
    """
    with attached(name, read_only=False) as index:
        index.resize(_capacity(blocks, workers, lanes, index.segment.capacity), patience)
    with attached(name) as index:
        stats, size = index.stats(), index.segment.total_bytes
    print(f"{name}: {stats.blocks:,} blocks of {stats.ranks} ranks in {size:,} bytes")


def _capacity(blocks: int | None, workers: int | None, lanes: int | None, old: Capacity | None) -> Capacity:
    """A capacity from options and, where they are not given, from an old one."""
    from shmtrie.capacity import Capacity

    base = old or Capacity()
    n = base.blocks if blocks is None else blocks
    return Capacity(
        blocks=n,
        workers=base.workers if workers is None else workers,
        lanes=base.lanes if lanes is None else lanes,
        # made to measure for the old number of blocks, perhaps by hand
        nodes=base.nodes if blocks is None else None,
        aliases=base.aliases if blocks is None else -(-base.aliases * n // base.blocks),
        extents=base.extents if blocks is None else None,
    )
