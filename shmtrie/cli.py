"""The ``shmtrie`` command: ``warmup | list | status | verify | dump | load | unlink | recover | rebuild |
resize``.

Exit codes: 0 done; 3 an error of the package or the system; 64 wrong usage; 130 interrupted. ``verify`` adds
1 (damage that the next writer repairs) and 2 (corrupt), ``load`` and ``rebuild`` add 1 (some events were
refused), ``recover`` adds 1 (something could not be settled).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

from shmtrie.cli_common import (
    EXIT_CORRUPT,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_REPAIRABLE,
    EXIT_UNSETTLED,
    EXIT_USAGE,
    Finish,
)

try:
    import typer
except ModuleNotFoundError as missing:
    if missing.name != "typer":
        raise
    HAS_TYPER = False
else:
    HAS_TYPER = True

__all__ = [
    "EXIT_CORRUPT",
    "EXIT_ERROR",
    "EXIT_INTERRUPTED",
    "EXIT_REFUSED",
    "EXIT_REPAIRABLE",
    "EXIT_UNSETTLED",
    "EXIT_USAGE",
    "main",
]


def warmup(quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False) -> None:
    """Compile the kernels into the cache, once per machine and version."""
    from shmtrie.kernels import build, cachelock

    done = build.warmup(None if quiet else cachelock.report_to_stderr)
    if not quiet:
        place = done.directory or "memory only: no cache directory can be written"
        print(f"compiled {done.compiled}, loaded {done.loaded} kernels in {done.seconds:.1f} s ({place})")


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
    from shmtrie import cli_change, cli_look
    from shmtrie.errors import ShmtrieError

    app = typer.Typer(
        help="KV-cache routing index in shared memory.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.command()(warmup)
    app.command("list")(cli_look.list_segments)
    commands: list[Callable[..., None]] = [cli_look.status, cli_look.verify, cli_look.dump]
    commands += [cli_change.load, cli_change.unlink]
    commands += [cli_change.recover, cli_change.rebuild, cli_change.resize]
    for command in commands:
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
