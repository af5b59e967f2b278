"""What the ``shmtrie`` command shows: JSON for scripts, tables for people, a bar on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def plain(value: Any) -> Any:
    """Turn results of the package into what `json` can write.

    Parameters
    ----------
    value : object
        Named tuples and dataclasses become objects, arrays and sequences lists, a rank the text
        ``"worker_id/dp_rank"``.

    Returns
    -------
    object
        dict, list, str, int, float, bool or None.
    """
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, dict):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if hasattr(value, "dp_rank") and isinstance(value, tuple):
        return f"{value[0]}/{value[1]}"
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "__index__"):
        return int(value)
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return str(value)


def print_json(value: Any) -> None:
    """Write one JSON document to stdout."""
    print(json.dumps(plain(value), indent=2))


def print_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write aligned columns to stdout, numbers to the right, None as ``-``."""
    texts = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
    print("  ".join(name.upper().ljust(width) for name, width in zip(head, widths, strict=True)).rstrip())
    for row, cells in zip(rows, texts, strict=True):
        shown = (
            text.rjust(width) if type(cell) is int else text.ljust(width)
            for cell, text, width in zip(row, cells, widths, strict=True)
        )
        print("  ".join(shown).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if type(value) is int else str(value)


def print_fields(value: Any, indent: str = "") -> None:
    """Write an object as ``name: value`` lines."""
    for name, item in plain(value).items():
        if isinstance(item, dict):
            print(f"{indent}{name}:")
            print_fields(item, indent + "  ")
        else:
            print(f"{indent}{name}: {_cell(item)}")


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal's stderr; yield what moves it on."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda step: bar.advance(task, step)
