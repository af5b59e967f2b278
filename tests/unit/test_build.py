"""The kernel build: key and place of the cache, one compiling process, the two flavours."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import pytest

from shmtrie.kernels import build, cache, cachelock
from shmtrie.kernels.hooks import Site
from tests.hooks import wait_until

ROOT = Path(__file__).resolve().parents[2]

# A package of two entries and a callback in one file; run as a program it makes them ready as a handle does.
SAMPLE = """
import json, os, signal, sys
import numba
import numpy as np
from shmtrie.atomics import ps64
from shmtrie.kernels import build
from shmtrie.kernels.build import centry, entry, inl
from shmtrie.kernels.hooks import Site, at

FIRST, LAST = min(Site), max(Site)

@inl
def twice(x):
    return 2 * x

@entry("int64(int64, int64)")
def hooked(ctx, x):
    ps64(ctx, x)
    at(ctx, FIRST)
    ps64(ctx + 8, twice(x))
    at(ctx, LAST)
    return x + 1

@entry("int64(int64, int64)")
def direct(ctx, x):
    ps64(ctx, x)
    ps64(ctx + 8, twice(x))
    return x + 1

@centry("int64(int64)")
def callback(x):
    return twice(x)

ENTRIES = {made.name: made for made in (hooked, direct, callback)}
build.registered = lambda: ENTRIES

def report(**more):
    compiled = [name for name, made in ENTRIES.items() if made.is_compiled and not made.was_cached()]
    print(json.dumps({"compiled": compiled, "cache_dir": numba.config.CACHE_DIR, **more}))

if __name__ == "__main__":
    exec(sys.argv[1])
"""
RUN = """
build.ensure()
words = np.zeros(128, np.int64)
result = [hooked(words.ctypes.data, 3), direct.call(words.ctypes.data, 4), callback.ctypes(5)]
report(result=[*result, *words[:2].tolist()])
"""


@pytest.fixture(autouse=True)
def forget_place() -> Iterator[None]:
    cache.find_place.cache_clear()
    cache.warn_once.cache_clear()
    yield
    cache.find_place.cache_clear()
    cache.warn_once.cache_clear()


def environment(**changes: str | None) -> dict[str, str]:
    env = dict(os.environ)
    for name in ("SHMTRIE_TEST_BUILD", "SHMTRIE_PROGRESS", "XDG_CACHE_HOME", "SHMTRIE_CACHE_DIR"):
        env.pop(name, None)
    env["PYTHONPATH"] = str(ROOT)
    for name, value in changes.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return env


def start(folder: Path, code: str, **changes: str | None) -> subprocess.Popen[str]:
    script = folder / "sample.py"
    script.write_text(SAMPLE)
    changes.setdefault("SHMTRIE_CACHE_DIR", str(folder / "cache"))
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script), code],
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out), err


def key_directory(folder: Path) -> Path:
    (directory,) = (folder / "cache").iterdir()
    return directory


# ------------------------------------------------------------------------------------------------ the key
@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package's sources."""
    copy = tmp_path / "elsewhere"
    for path in cache.source_files():
        target = copy / path.relative_to(cache.PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return copy


def test_key_is_the_same_for_the_same_sources_anywhere(package: Path) -> None:
    assert cache.cache_key(package) == cache.cache_key()


@pytest.mark.parametrize("changed", ["atomics.py", "layout.py", "errors.py", "kernels/hooks.py"])
def test_key_changes_with_any_source(package: Path, changed: str) -> None:
    path = package / changed
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b"e", b"E", 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # same size and time, as numba would compare
    assert cache.cache_key(package) != cache.cache_key()


def test_key_changes_with_a_new_module(package: Path) -> None:
    (package / "kernels" / "more.py").write_text("")
    assert cache.cache_key(package) != cache.cache_key()


@pytest.mark.parametrize("switch", ["BOUNDSCHECK", "OPT"])
def test_key_changes_with_switches_and_flavour(monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    before = cache.cache_key()
    with monkeypatch.context() as patch:
        patch.setattr(numba.config, switch, 1 if switch == "BOUNDSCHECK" else 2)
        assert cache.cache_key() != before
    monkeypatch.setattr(cache, "TEST_BUILD", not cache.TEST_BUILD)
    assert cache.cache_key() != before


# ------------------------------------------------------------------------------------------------ the place
@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No cache variable set, an empty temporary directory."""
    for name in ("SHMTRIE_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return temporary


def test_place_in_order_of_preference(tmp_path: Path, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = places / f"shmtrie-{os.getuid()}"
    for name, root in [
        (None, private),
        ("HOME", tmp_path / "home" / ".cache" / "shmtrie"),
        ("XDG_CACHE_HOME", tmp_path / "xdg" / "shmtrie"),
        ("SHMTRIE_CACHE_DIR", tmp_path / "own"),
    ]:
        if name is not None:
            value = {"HOME": tmp_path / "home", "XDG_CACHE_HOME": tmp_path / "xdg"}.get(name, root)
            monkeypatch.setenv(name, str(value))
        cache.find_place.cache_clear()
        place = cache.find_place()
        assert place == cache.Place(root / cache.cache_key(), True)
        assert place is not None and place.directory.stat().st_mode & 0o777 == 0o700
    assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("home", ["/proc", "file", "relative"])
def test_home_that_cannot_be_used(
    tmp_path: Path, places: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    if home == "file":
        (tmp_path / home).write_text("")
        home = str(tmp_path / home)
    monkeypatch.setenv("HOME", home)
    place = cache.find_place()
    assert place is not None and place.directory.parent == places / f"shmtrie-{os.getuid()}"


@pytest.mark.parametrize("wrong", ["owner", "mode", "link", "file"])
def test_temporary_directory_of_somebody_else_is_refused(
    tmp_path: Path, places: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    uid = os.getuid()
    if wrong == "owner":
        uid += 1
        monkeypatch.setattr(os, "getuid", lambda: uid)
    trap = places / f"shmtrie-{uid}"
    if wrong == "link":
        (tmp_path / "target").mkdir(mode=0o700)
        trap.symlink_to(tmp_path / "target")
    elif wrong == "file":
        trap.write_text("")
    else:
        trap.mkdir(mode=0o700)
        trap.chmod(0o777 if wrong == "mode" else 0o700)
    with pytest.warns(RuntimeWarning, match="SHMTRIE_CACHE_DIR"):
        assert cache.find_place() is None
    assert not trap.is_dir() or not list(trap.iterdir())


def test_chosen_directory_that_cannot_be_used_is_said_once(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHMTRIE_CACHE_DIR", "/proc/shmtrie")
    with pytest.warns(RuntimeWarning, match="/proc/shmtrie"):
        assert cache.find_place() is None
    cache.find_place.cache_clear()
    assert cache.find_place() is None  # an error here if it warned again


def test_complete_cache_on_a_read_only_file_system_is_used(
    tmp_path: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHMTRIE_CACHE_DIR", str(tmp_path))
    directory = tmp_path / cache.cache_key()
    directory.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.warns(RuntimeWarning, match="not writable"):
        assert cache.find_place() is None
    (directory / cache.COMPLETE).write_text("")
    cache.find_place.cache_clear()
    assert cache.find_place() == cache.Place(directory, False)


def test_unused_siblings_are_removed(tmp_path: Path) -> None:
    def make(name: str, days: float, marked: bool = True) -> Path:
        made = tmp_path / name
        made.mkdir()
        path = made
        if marked:
            path = made / cache.COMPLETE
            path.write_text("")
        os.utime(path, (time.time() - days * 86_400,) * 2)
        return made

    mine = make("0" * 32, 99)
    old, unfinished = make("1" * 32, 31), make("2" * 32, 31, marked=False)
    used, foreign = make("3" * 32, 29), make("somebody-elses", 99)
    cachelock.mark_used(cache.Place(used, True))
    cachelock.finish(cache.Place(mine, True), ["a"])
    assert [path.name for path in (mine, old, unfinished, used, foreign) if path.exists()] == [
        mine.name,
        used.name,
        foreign.name,
    ]
    assert time.time() - (used / cache.COMPLETE).stat().st_mtime < 3_600


# ------------------------------------------------------------------------------------------------ compiling
def test_two_processes_compile_once(tmp_path: Path) -> None:
    processes = [start(tmp_path, RUN, SHMTRIE_PROGRESS="1") for _ in range(2)]
    reports, texts = zip(*(finish(process) for process in processes), strict=True)
    names = ["__main__.hooked", "__main__.direct", "__main__.callback"]
    assert sorted(name for report in reports for name in report["compiled"]) == sorted(names)
    for report in reports:
        assert report["result"] == [4, 5, 10, 4, 8]
        assert report["cache_dir"] == numba.config.CACHE_DIR  # the user's own setting is left alone
    assert any("compiling kernels, 1 of 3" in text for text in texts)
    assert (key_directory(tmp_path) / cache.COMPLETE).read_text().split() == names
    assert not list((ROOT / "shmtrie").rglob("*.nbi"))

    # Damaged files are compiled anew, and mended for the next process.
    for path in key_directory(tmp_path).glob("*.nb?"):
        os.truncate(path, path.stat().st_size // 2)
    assert finish(start(tmp_path, RUN))[0]["compiled"] == names
    assert finish(start(tmp_path, RUN))[0]["compiled"] == []


def test_process_that_dies_while_compiling_leaves_no_wedge(tmp_path: Path) -> None:
    dies = "def progress(done, total, name):\n    if done == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
    process = start(tmp_path, dies + "build.warmup(progress)")
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert not (key_directory(tmp_path) / cache.COMPLETE).exists()
    report, err = finish(start(tmp_path, RUN))
    assert report["compiled"] == ["__main__.direct", "__main__.callback"]  # the first one was kept
    assert err == ""  # no terminal, no chatter
    assert (key_directory(tmp_path) / cache.COMPLETE).exists()


def test_waiting_process_says_so_and_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "cache" / cache.cache_key()
    if cache.TEST_BUILD:
        pytest.skip("the key of the product build is needed")
    directory.mkdir(parents=True)
    with open(directory / cache.LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711 5 9")
        lock.flush()
        process = start(tmp_path, RUN, SHMTRIE_PROGRESS="1")
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line == "shmtrie: process 4711 compiles the kernels (5 of 9 done), waiting\n"
    report, _ = finish(process)
    assert len(report["compiled"]) == 3


RECORD_WARNINGS = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    build.ensure()
    direct(np.zeros(2, np.int64).ctypes.data, 1)
    callback.address
report(warnings=[str(w.message) for w in caught])
"""


def test_unwritable_cache_compiles_in_memory_with_one_warning(tmp_path: Path) -> None:
    report, _ = finish(start(tmp_path, RECORD_WARNINGS, SHMTRIE_CACHE_DIR="/proc/shmtrie"))
    assert report["compiled"] == ["__main__.direct", "__main__.callback"]
    (warning,) = report["warnings"]
    assert "/proc/shmtrie" in warning


def test_disabled_compiler_is_an_error_that_names_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    monkeypatch.setattr(build, "_is_ready", False)
    with pytest.raises(RuntimeError, match="NUMBA_DISABLE_JIT"):
        build.ensure()


def test_other_argument_types_are_refused_not_compiled_for(tmp_path: Path) -> None:
    code = "direct.compile()\ntry:\n    direct('a', 1)\nexcept TypeError as error: report(error=str(error))"
    report, _ = finish(start(tmp_path, code))
    assert "No matching definition" in report["error"]


# ------------------------------------------------------------------------------------------------ flavours
# The instructions of both kernels without the names of values and symbols.
SHOW_IR = """
import re
shown = []
for made in (hooked, direct):
    made.compile()
    (text,) = made.inspect_llvm().values()
    bodies = re.findall(r"^define .*?^}", text, re.MULTILINE | re.DOTALL)
    shown.append(re.sub(r'%[\\w.]+|@"[^"]*"|@[\\w.$]+', "%", "\\n".join(bodies)))
report(same=shown[0] == shown[1], lines=[len(body.splitlines()) for body in shown])
"""


def test_product_kernels_hold_no_hook(tmp_path: Path) -> None:
    report, _ = finish(start(tmp_path, SHOW_IR))
    assert report["same"] and report["lines"][0] > 20


def test_test_kernels_hold_hooks(tmp_path: Path) -> None:
    report, _ = finish(start(tmp_path, SHOW_IR, SHMTRIE_TEST_BUILD="1"))
    assert not report["same"] and report["lines"][0] > report["lines"][1]


USE_HOOKS = """
import mmap
from shmtrie.kernels import hooks
from tests.hooks import HookControl

words = np.frombuffer(mmap.mmap(-1, 1024), np.int64)
control = HookControl()
control.install(words)
ctx = words.ctypes.data

def in_child(x):
    pid = os.fork()
    if pid == 0:
        try:
            hooked(ctx, x)
        finally:
            os._exit(0)
    return pid

seen = {"first": [hooked(ctx, 1), control.hits, control.count(FIRST), control.count(LAST)]}

control.arm(hooks.PAUSE, FIRST, countdown=2)
hooked(ctx, 2)
pid = in_child(3)
site = control.wait_paused()
seen["paused"] = [site, *words[:2].tolist()]
control.wait_released()
seen["released"] = [os.waitpid(pid, 0)[1], control.state, *words[:2].tolist()]

control.arm(hooks.KILL, countdown=2)
seen["killed"] = [os.waitpid(in_child(4), 0)[1], *words[:2].tolist()]

control.arm(hooks.ABANDON, FIRST)
try:
    hooked(ctx, 5)
except hooks.HookAbandon:
    seen["abandoned"] = [control.state, *words[:2].tolist()]
control.reset_counts()
seen["after"] = [hooked(ctx, 6), control.counts(), *words[:2].tolist()]
report(**seen)
"""


def test_pause_kill_and_abandon(tmp_path: Path) -> None:
    report, _ = finish(start(tmp_path, USE_HOOKS, SHMTRIE_TEST_BUILD="1"))
    assert report["first"] == [2, 2, 1, 1]
    assert report["paused"] == [min(Site), 3, 4]  # the second word is still that of the call before
    assert report["released"] == [0, 2, 3, 6]
    assert report["killed"] == [signal.SIGKILL, 4, 8]
    assert report["abandoned"] == [4, 5, 8]
    assert report["after"] == [7, {str(int(min(Site))): 1, str(int(max(Site))): 1}, 6, 12]


def test_wait_until_gives_up_with_a_reason() -> None:
    with pytest.raises(TimeoutError, match="never"):
        wait_until(lambda: False, 0.01, "never")
