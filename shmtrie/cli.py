"""The ``shmtrie`` command: ``warmup | list | status | verify | dump | load | unlink``.

Exit codes: 0 done; 3 an error of the package or the system; 64 wrong usage; 130 interrupted. ``verify`` adds
1 (damage that the next writer repairs) and 2 (corrupt), ``load`` adds 1 (some events were refused).
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Annotated, Any

from shmtrie.cli_output import plain, print_fields, print_json, print_table, progress

try:
    import typer
except ModuleNotFoundError as missing:
    if missing.name != "typer":
        raise
    HAS_TYPER = False
else:
    HAS_TYPER = True

if TYPE_CHECKING:
    from shmtrie.event_types import RouterEvent
    from shmtrie.index import Index

EXIT_REPAIRABLE, EXIT_CORRUPT, EXIT_REFUSED, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 1, 3, 64, 130
LOAD_CHUNK = 4_096  # events a call


class Finish(Exception):
    """Ends a command with an exit code of its own."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@contextmanager
def _attached(name: str, timeout: float = 5.0) -> Iterator[Index]:
    from shmtrie.index import Index

    index = Index.attach(name, read_only=True, timeout=timeout)
    try:
        yield index
    finally:
        index.close()


# ------------------------------------------------------------------------------------------------ commands
def warmup(quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False) -> None:
    """Compile the kernels into the cache, once per machine and version."""
    from shmtrie.kernels import build, cachelock

    done = build.warmup(None if quiet else cachelock.report_to_stderr)
    if not quiet:
        place = done.directory or "memory only: no cache directory can be written"
        print(f"compiled {done.compiled}, loaded {done.loaded} kernels in {done.seconds:.1f} s ({place})")


def list_segments(as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False) -> None:
    """List the segments of this machine."""
    from shmtrie.errors import ShmtrieError
    from shmtrie.index import Index

    found: list[dict[str, Any]] = []
    for name in sorted(str(getattr(item, "name", item)) for item in Index.list()):
        row: dict[str, Any] = {"name": name, "state": "ok", "ranks": None, "blocks": None}
        try:
            with _attached(name, timeout=0.0) as index:
                stats = plain(index.stats())
                row.update(ranks=stats.get("ranks"), blocks=stats.get("blocks"))
                row["state"] = "retired" if index.retired else "ok"
        except ShmtrieError as error:
            row["state"] = type(error).__name__
        found.append(row)
    if as_json:
        print_json(found)
    elif found:
        print_table(list(found[0]), [list(row.values()) for row in found])
    else:
        print("no segments")


def status(
    name: Annotated[str, typer.Argument(help="Segment.")],
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Show counters, sizes and ranks of a segment."""
    with _attached(name) as index:
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
        with _attached(name) as index:
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

    with _attached(name) as index:
        events = index.dump_events()
    with _opened(output, "wb") as file, progress("writing", len(events)) as advance:
        for event in events:
            file.write(encode_event(event) + b"\n")
            advance(1)
    if output != "-":
        print(f"{len(events):,} events written to {output}", file=sys.stderr)


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

    with _opened(source, "rb") as file:
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
                for events in _chunks(file, source, advance):
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


def _chunks(file: IO[bytes], source: str, advance: Callable[[int], None]) -> Iterator[list[RouterEvent]]:
    from shmtrie.event_types import decode_event

    chunk: list[RouterEvent] = []
    for number, line in enumerate(file, 1):
        advance(len(line))
        if line.strip():
            try:
                chunk.append(decode_event(line))
            except ValueError as error:
                raise ValueError(f"{source}, line {number}: {error}") from error
        if len(chunk) == LOAD_CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


@contextmanager
def _opened(path: str, mode: str) -> Iterator[IO[bytes]]:
    if path == "-":
        stream = sys.stdout.buffer if "w" in mode else sys.stdin.buffer
        yield stream
        stream.flush()
    else:
        with open(path, mode) as file:
            yield file


# ------------------------------------------------------------------------------------------------ program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; the process's own by default.

    Returns
    -------
    int
        Exit code, see the module.
    """
    if not HAS_TYPER:
        print('shmtrie: this command needs typer and rich: pip install "shmtrie[cli]"', file=sys.stderr)
        return EXIT_ERROR
    from shmtrie.errors import ShmtrieError

    app = typer.Typer(
        help="KV-cache routing index in shared memory.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.command("list")(list_segments)
    for command in (warmup, status, verify, dump, load, unlink):
        app.command()(command)
    try:
        app(args=arguments, prog_name="shmtrie")
    except Finish as finish:
        return finish.code
    except SystemExit as done:  # how typer ends, with 2 for wrong usage
        return {0: 0, 2: EXIT_USAGE}.get(int(done.code or 0), EXIT_INTERRUPTED)
    except (ShmtrieError, OSError, ValueError) as error:
        print(f"shmtrie: {error}", file=sys.stderr)
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
