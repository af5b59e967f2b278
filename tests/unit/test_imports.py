"""Rules about the package as a whole: which module may import which, and how long a file may be."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from shmtrie.kernels import cache

PACKAGE = Path(cache.__file__).resolve().parents[1]
ROOT = PACKAGE.parent
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 350

# A module imports from its own row and from the rows above it. A package stands for all its modules.
ORDER = (
    ("errors", "layout", "addresses", "atomics", "vectors"),
    ("kernels",),
    ("workers", "scores", "event_types", "event_parts", "events", "arguments", "indexer", "hashing"),
    ("shmfile", "shmroom", "bytelock", "capacity", "header", "stamps", "creation", "segment", "succession"),
    ("laneinfo", "lanes"),
    ("tables", "contexts", "pyapi", "pyframe", "fastbest", "fastscores", "fastcall", "fastapply"),
    ("ranks", "refusals", "recovery", "stats"),
    ("verify", "verify_ranks", "verify_text", "dump"),
    ("resize", "lanework", "writer", "queries", "rebuild", "index"),
    ("radix_nodes", "radix_queries", "radix_tree", "pool", "sharding"),
    ("engines", "replay", "cli_output", "cli_common", "cli_look", "cli_change", "cli"),
)
ROW = {name: row for row, names in enumerate(ORDER) for name in names}

# Usable without a compiler: they import nothing that needs one.
PLAIN = {
    "errors",
    "layout",
    "workers",
    "scores",
    "event_types",
    "event_parts",
    "events",
    "arguments",
    "indexer",
    "hashing",
}
PLAIN |= {"capacity", "radix_nodes", "radix_queries", "radix_tree"}
# The build of the kernels is no kernel.
BUILD = {"kernels.build", "kernels.cache", "kernels.cachelock", "kernels.onepass"}
# What a load or a store is.
WORDS = {"addresses", "atomics", "vectors"}
# Builtins: kernels that talk to Python.
CALLS = {"pyapi", "fastbest", "fastscores", "fastcall", "fastapply"}
NOT_IN_KERNELS = {"ctypes", "fcntl", "mmap", "multiprocessing", "os", "posix_ipc", "threading", "time"}


def module_name(path: Path) -> str:
    """Name below the package; "" is the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, lazy: bool = True) -> Iterator[str]:
    """Yield what a file imports, by absolute name; a name imported from a module counts as its part.

    What only the type checker sees is left out, and with ``lazy=False`` what functions import.
    """
    package = ["shmtrie", *path.relative_to(PACKAGE).parts[:-1]]
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            todo.extend(node.orelse)
            continue
        if not lazy and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1] if node.level else [])
            base = ".".join(part for part in (base, node.module) if part)
            yield from (f"{base}.{alias.name}" for alias in node.names)
        todo.extend(ast.iter_child_nodes(node))


def own_imports(path: Path, lazy: bool = True) -> set[str]:
    """Modules of the package that a file imports, named as by `module_name`."""
    known = {module_name(other) for other in FILES}
    found = set()
    for name in imports(path, lazy):
        head, _, rest = name.partition(".")
        if head == "shmtrie":
            while rest and rest not in known:
                rest = rest.rpartition(".")[0]
            found.add(rest)
    return found


def rule(path: Path) -> ParameterSet:
    return pytest.param(path, id=module_name(path) or "__init__")


MODULES = [rule(path) for path in FILES if module_name(path)]


@pytest.mark.parametrize("path", MODULES)
def test_imports_point_downward(path: Path) -> None:
    name = module_name(path)
    top = name.partition(".")[0]
    assert top in ROW, f"{name} has no place in the order of imports: give it one above"
    own = own_imports(path) - {""}
    upward = {other for other in own if ROW.get(other.partition(".")[0], 0) > ROW[top]}
    assert not upward, f"{name} imports what stands above it"


def test_no_cycles_at_import() -> None:
    below = {module_name(path): own_imports(path, lazy=False) - {module_name(path)} for path in FILES}
    while free := [name for name, others in below.items() if not others & below.keys()]:
        for name in free:
            del below[name]
    assert not below, "these import each other"


@pytest.mark.parametrize("path", [rule(p) for p in FILES if module_name(p).startswith("kernels.")])
def test_kernels_do_no_input_or_output(path: Path) -> None:
    if module_name(path) not in BUILD:
        assert not {name.partition(".")[0] for name in imports(path)} & NOT_IN_KERNELS


@pytest.mark.parametrize("path", MODULES)
def test_compiler_stays_in_its_modules(path: Path) -> None:
    name = module_name(path)
    used = {other.partition(".")[0] for other in imports(path)}
    assert "llvmlite" not in used or name in WORDS or name in BUILD
    assert "numba" not in used or name in CALLS | WORDS or name.startswith("kernels.")


def test_plain_modules_need_no_compiler() -> None:
    below = {module_name(path): own_imports(path, lazy=False) for path in FILES}
    for name in PLAIN & below.keys():
        reached: set[str] = set()
        todo = [name]
        while todo:
            for other in below[todo.pop()] - reached - {""}:
                reached.add(other)
                todo.append(other)
        assert not {other for other in reached if other == "atomics" or other.startswith("kernels")}, name


def test_cache_key_covers_what_kernels_link() -> None:
    linked = {
        f"{other}.py"
        for path in FILES
        if module_name(path).startswith("kernels.") or module_name(path) in CALLS | WORDS
        for other in own_imports(path)
        if other and not other.startswith("kernels")
    }
    # Python around the kernels of a builtin is no part of them
    linked -= {
        f"{other}.py"
        for other in (PLAIN | {"contexts", "pyframe", "segment", "lanes"}) - {"errors", "layout"}
    }
    assert linked <= set(cache.LINKED), "compiled into kernels, but a change of it keeps old machine code"


@pytest.mark.parametrize("path", [rule(path) for path in FILES])
def test_files_are_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{lines} lines: one file owns one thing"


def test_import_needs_few_packages() -> None:
    code = (
        "import sys, json, numpy, numba, posix_ipc, msgspec; before = set(sys.modules); import shmtrie;"
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    more = set(json.loads(done.stdout)) - set(sys.stdlib_module_names)
    assert more <= {"shmtrie", "numpy", "numba", "llvmlite", "posix_ipc", "msgspec"}
