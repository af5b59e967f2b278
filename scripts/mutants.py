#!/usr/bin/env python3
"""Negative controls: each safety mechanism of the kernels is taken out in turn, and its tests have to fail.

For each entry of ``scripts/mutations*.py`` the sources are copied, the mechanism is taken out of the copy,
and the tests of the entry run there, in the test build and with a kernel cache of their own. Kernels whose
modules do not import the changed one come from a baseline that is compiled first.

    scripts/mutants.py                    all of them: about a minute each
    scripts/mutants.py --list
    scripts/mutants.py "bumps of a split" deepest

Names may be parts of names. Verdicts: ``caught``, when a test failed by an assertion; ``SURVIVED``, when all
of them passed; ``error``, when something else went wrong: the table is out of date, or what is left does not
compile. The exit code is 1 unless everything was caught.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts import mutations, mutations_deaths, mutations_lookup, mutations_resize
from scripts.mutant import Mutant

MUTANTS = mutations.MUTANTS + mutations_deaths.MUTANTS + mutations_lookup.MUTANTS + mutations_resize.MUTANTS

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("shmtrie", "tests", "scripts", "docs", "pyproject.toml", "README.md")
CAUGHT, SURVIVED, ERROR = "caught", "SURVIVED", "error"
COMPILE_LIMIT, TEST_LIMIT = 600.0, 900.0  # seconds

#: Kernels are compiled when they are first called once the cache counts as complete. They are compiled here
#: before: the processes of a test would do so at once, and take longer than an answer may.
WARM = """
from shmtrie.kernels import build, cache
place = cache.find_place()
assert place is not None and place.writable
(place.directory / cache.COMPLETE).touch()
for entry in build.registered().values():
    entry.compile()
"""
#: Makes the cache's directory the same in all copies.
KEY = "copy"
ONE_KEY = f"""

def cache_key(package: Path = PACKAGE) -> str:
    return "{KEY}"
"""
#: A failure with one of these in its text says nothing about the mechanism.
BROKEN = re.compile(
    r"TypingError|LoweringError|NumbaError|UnsupportedError|ImportError|ModuleNotFoundError|SyntaxError|NameError"
)
LATE = re.compile(r"TimeoutError|not reached in [\d.]+ s|says nothing for [\d.]+ s|Timeout \(")
JUDGED = re.compile(r"AssertionError|Mismatch|Violation|ActorError|^assert |^Failed: ", re.MULTILINE)


class Result(NamedTuple):
    """What has come of one mutant."""

    mutant: Mutant
    verdict: str
    why: str
    seconds: float


class Stop(Exception):
    """An entry that cannot be judged; the text says why."""


def copy(there: Path) -> None:
    """Copy the sources."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, there / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        elif source.exists():
            shutil.copy2(source, there / name)
    with (there / "shmtrie/kernels/cache.py").open("a") as cache:
        cache.write(ONE_KEY)


def change(mutant: Mutant, there: Path) -> None:
    """Take the mechanism out of a copy.

    Raises
    ------
    Stop
        The table is out of date.
    """
    for file, old, new in [*((mutant.file, *edit) for edit in mutant.edits), *mutant.also]:
        path = there / "shmtrie" / file
        text = path.read_text()
        if (n := text.count(old)) != 1:
            raise Stop(f"the table is out of date: {file} has this {n} times, not once:\n{old}")
        path.write_text(text.replace(old, new))


def users(file: str, there: Path) -> set[str]:
    """Modules, by the last part of their names, that import one of the package, also by way of others."""
    imports: dict[str, set[str]] = {}
    for path in [*there.glob("shmtrie/*.py"), *there.glob("shmtrie/kernels/*.py")]:
        name = ".".join(path.relative_to(there).with_suffix("").parts)
        found = imports.setdefault(name, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                above = name.split(".")[: -node.level] if node.level else []
                module = ".".join([*above, *filter(None, [node.module])])
                found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    reached, more = set[str](), {".".join(("shmtrie", *Path(file).with_suffix("").parts))}
    while more:
        reached |= more
        more = {name for name, found in imports.items() if found & more} - reached
    return {name.rpartition(".")[2] for name in reached}


def take_kernels(mutant: Mutant, baseline: Path, there: Path) -> None:
    """Take over the kernels that have nothing of the changed module in them."""
    files = {mutant.file, *(file for file, _, _ in mutant.also)}
    stale = set[str]().union(*(users(file, there) for file in files))
    (there / "kernels" / KEY).mkdir(parents=True)
    for path in (baseline / "kernels" / KEY).iterdir():
        if path.name.partition(".")[0] not in stale:
            shutil.copy2(path, there / "kernels" / KEY)


def run(command: Sequence[str], there: Path, limit: float) -> tuple[int | None, str]:
    """Run Python in the copy: its exit code, None after the limit; and what it printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SHMTRIE_", "NUMBA_", "PYTEST_"))}
    env |= {
        "PYTHONPATH": str(there),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SHMTRIE_CACHE_DIR": str(there / "kernels"),
        "SHMTRIE_TEST_BUILD": "1",
    }
    with (there / "output").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=there,
            env=env,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        code: int | None = None
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # whoever it has started is in its group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _drop_segments(process.pid)
        output.seek(0)
        return code, output.read()


def _drop_segments(pid: int) -> None:
    """Segments that tests of a killed process left behind: their names begin with its number."""
    memory = Path("/dev/shm")
    for path in memory.glob(f"*t{pid:x}x*") if memory.is_dir() else ():
        with contextlib.suppress(OSError):
            path.unlink()


def compile_kernels(there: Path) -> None:
    """Compile those of a copy that are missing.

    Raises
    ------
    Stop
        They do not compile.
    """
    code, said = run(["-c", WARM], there, COMPILE_LIMIT)
    if code != 0:
        raise Stop(f"the kernels do not compile:\n{said[-2000:]}")


def _short(message: str) -> str:
    """Begin and end of a message."""
    text = " ".join(message.split())
    return text if len(text) < 300 else f"{text[:100]} ... {text[-200:]}"


def judge(mutant: Mutant, there: Path) -> tuple[str, str]:
    """Run the tests of a mutant whose copy is ready: verdict, and what it is based on."""
    report = there / "report.xml"
    tests = [f"tests/{test}" for test in mutant.tests]
    command = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
    code, said = run(command, there, TEST_LIMIT)
    if code is None:
        return (CAUGHT, "time-out") if mutant.hangs else (ERROR, f"no end in {TEST_LIMIT} s:\n{said[-2000:]}")
    if code == 0:
        return SURVIVED, said.strip().rpartition("\n")[2].strip("= ")
    if not report.exists():  # the watchdog of a test ends the run
        late = LATE.search(said) is not None
        return (CAUGHT, "time-out") if late and mutant.hangs else (ERROR, said[-2000:])
    for case in ElementTree.parse(report).iter("testcase"):
        for failure in case.findall("failure"):
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            message = failure.get("message", "")
            text = f"{message}\n{failure.text or ''}"
            if BROKEN.search(text):
                return ERROR, f"{name}: {text[-2000:]}"
            if LATE.search(message):
                return (CAUGHT if mutant.hangs else ERROR), f"{name}: time-out: {message[-500:]}"
            if JUDGED.search(message):
                return CAUGHT, f"{name}: {_short(message)}"
            return ERROR, f"{name}: failed, but not by an assertion: {text[-2000:]}"
    return ERROR, f"pytest ended with {code}:\n{said[-2000:]}"


@contextlib.contextmanager
def place(keep: bool, what: str) -> Iterator[Path]:
    """A directory of a copy."""
    there = Path(tempfile.mkdtemp(prefix="shmtrie-mutant-"))
    try:
        yield there
    finally:
        if keep:
            print(f"{what}: {there}", file=sys.stderr)
        else:
            shutil.rmtree(there, ignore_errors=True)


def try_one(mutant: Mutant, baseline: Path, keep: bool) -> Result:
    """Verdict on one mutant."""
    begin = time.monotonic()
    with place(keep, mutant.name) as there:
        try:
            copy(there)
            change(mutant, there)
            take_kernels(mutant, baseline, there)
            compile_kernels(there)
            verdict, why = judge(mutant, there)
        except Stop as error:
            verdict, why = ERROR, str(error)
    result = Result(mutant, verdict, why, time.monotonic() - begin)
    print(f"{result.seconds:5.0f} s  {verdict:8}  {mutant.name}: {why}", file=sys.stderr, flush=True)
    return result


def chosen(names: Sequence[str]) -> list[Mutant]:
    """Mutants by names or parts of names, in this order."""
    for name in names:
        if not any(name in mutant.name for mutant in MUTANTS):
            raise SystemExit(f"no mutant is called {name!r}: see --list")
    found = [mutant for name in names or [""] for mutant in MUTANTS if name in mutant.name]
    return list(dict.fromkeys(found))


def main() -> int:
    """Try those that the command line names; 1 unless all were caught."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="names or parts of them; all when there is none")
    parser.add_argument("--list", action="store_true", help="show the table and end")
    parser.add_argument("--jobs", type=int, default=1, help="so many at once")
    parser.add_argument("--keep", action="store_true", help="keep the copies, and say where they are")
    arguments = parser.parse_args()
    mutants = chosen(arguments.names)
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name}\n    {mutant.file}\n    " + "\n    ".join(mutant.tests))
        return 0
    with place(arguments.keep, "baseline") as baseline, ThreadPoolExecutor(arguments.jobs) as pool:
        copy(baseline)
        compile_kernels(baseline)
        results = list(pool.map(lambda mutant: try_one(mutant, baseline, arguments.keep), mutants))
    width = max(len(result.mutant.name) for result in results)
    for result in results:
        print(
            f"{result.mutant.name:{width}}  {result.verdict:8}  {result.seconds:4.0f} s  {result.mutant.file}"
        )
    missed = sum(result.verdict != CAUGHT for result in results)
    print(f"{len(results) - missed} of {len(results)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
