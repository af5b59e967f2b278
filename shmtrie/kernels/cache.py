"""Where compiled kernels are kept, and under which key.

numba's own cache notices a change of the file that defines a function, but neither a change of an
imported helper nor one of a compiler switch, and its directories may be read-only in a container. So
the kernels have a cache of their own: one directory per key, and the key is a hash of everything that
ends up in the machine code. The cache of other numba users in the process is not touched.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import platform
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding
import numba
import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

from shmtrie.addresses import CHECKED

#: True in the test build, whose kernels contain the pause and crash points of ``hooks``, and in the checked
#: one, a test build that compares every address with what may be accessed.
TEST_BUILD = CHECKED or os.environ.get("SHMTRIE_TEST_BUILD", "") == "1"

PACKAGE = Path(__file__).resolve().parent.parent
#: Modules outside ``kernels`` whose code or constants are compiled into kernels.
_LINKED = ["addresses", "atomics", "errors", "layout", "vectors"]
_LINKED += ["fastapply", "fastbest", "fastcall", "fastscores", "pyapi"]
LINKED = tuple(f"{name}.py" for name in _LINKED)
#: numba switches that change the generated code but are not part of numba's own cache key.
SWITCHES = (
    "BOUNDSCHECK",
    "CPU_FEATURES",
    "CPU_NAME",
    "DEBUGINFO_DEFAULT",
    "DISABLE_INTEL_SVML",
    "ENABLE_AVX",
    "LOOP_VECTORIZE",
    "OPT",
    "SLP_VECTORIZE",
)
COMPLETE = "complete"
LOCK = "lock"


class Place(NamedTuple):
    """The directory of this process's kernels.

    Attributes
    ----------
    directory : pathlib.Path
        Named by `cache_key`; exists.
    writable : bool
        False for a complete cache on a read-only file system, which is loaded and never changed.
    """

    directory: Path
    writable: bool

    def is_complete(self) -> bool:
        """Whether a warm-up has compiled every kernel into this directory."""
        return (self.directory / COMPLETE).is_file()


def source_files(package: Path = PACKAGE) -> list[Path]:
    """Return the source files whose bytes are part of the key, in a fixed order."""
    linked = (package / name for name in LINKED)
    return sorted((package / "kernels").glob("*.py")) + [path for path in linked if path.is_file()]


def cache_key(package: Path = PACKAGE) -> str:
    """Hash everything that decides what the machine code of the kernels is.

    Parameters
    ----------
    package : pathlib.Path, optional
        Directory of the package whose sources count.

    Returns
    -------
    str
        32 hexadecimal digits.

    Raises
    ------
    OSError
        A source file cannot be read (an installation without sources).
    """
    digest = hashlib.sha256()
    for path in source_files(package):
        source = path.read_bytes()
        digest.update(f"{path.name} {len(source)}\n".encode())
        digest.update(source)
    facts: dict[str, object] = {
        "python": (sys.implementation.name, sys.version, getattr(sys, "abiflags", "")),
        "versions": (numba.__version__, llvmlite.__version__, np.__version__),
        "machine": platform.machine(),
        "cpu": llvmlite.binding.get_host_cpu_name(),
        "features": _cpu_features(),
        "test build": (TEST_BUILD, CHECKED),
    }
    facts.update((name, getattr(numba.config, name, None)) for name in SWITCHES)
    for name, fact in sorted(facts.items()):
        digest.update(f"{name}={fact}\n".encode())
    return digest.hexdigest()[:32]


def _cpu_features() -> str:
    try:
        return str(llvmlite.binding.get_host_cpu_features().flatten())
    except RuntimeError:  # LLVM cannot tell on this processor; its name has to do
        return "unknown"


def cache_roots() -> Iterator[Path]:
    """Yield the directories that may hold caches, best first.

    ``SHMTRIE_CACHE_DIR`` is the only one when it is set; otherwise the user's cache directory, then a
    private directory below the system's temporary one, for containers without a writable HOME.
    """
    chosen = os.environ.get("SHMTRIE_CACHE_DIR")
    if chosen:
        yield Path(chosen).expanduser().absolute()
        return
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    home = os.environ.get("HOME", "")
    if os.path.isabs(xdg):  # a relative one is to be ignored
        yield Path(xdg) / "shmtrie"
    elif os.path.isabs(home):
        yield Path(home) / ".cache" / "shmtrie"
    with suppress(OSError):  # no temporary directory at all
        yield Path(tempfile.gettempdir()) / f"shmtrie-{os.getuid()}"


def _is_private(root: Path) -> bool:
    # The cache holds code. Anybody may create names in the temporary directory, so one that is not
    # ours, that others may write to, or that is a link, is not used.
    status = os.lstat(root)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


@functools.cache
def find_place() -> Place | None:
    """Choose the cache directory of this process, creating it when needed.

    Returns
    -------
    Place or None
        None when no candidate can be used: kernels are then compiled in memory. One
        ``RuntimeWarning`` says so.
    """
    try:
        key = cache_key()
    except OSError as error:
        warn_once(f"no place for compiled kernels (the sources cannot be read: {error})")
        return None
    reasons = []
    temporary = f"shmtrie-{os.getuid()}"
    for root in cache_roots():
        directory = root / key
        is_shared = root.name == temporary and not os.environ.get("SHMTRIE_CACHE_DIR")
        try:
            if not is_shared and (directory / COMPLETE).is_file():
                return Place(directory, os.access(directory, os.W_OK | os.X_OK))
            root.mkdir(mode=0o700, parents=not is_shared, exist_ok=True)
            if is_shared and not _is_private(root):
                reasons.append(f"{root}: not a directory that only this user can use")
                continue
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            reasons.append(f"{root}: {error.strerror}")
            continue
        if os.access(directory, os.W_OK | os.X_OK):
            return Place(directory, True)
        reasons.append(f"{directory}: not writable")
    warn_once(f"no place for compiled kernels ({'; '.join(reasons) or 'no candidate directory'})")
    return None


@functools.cache
def warn_once(what: str) -> None:
    """Warn, once per text, that every start of a process pays for compilation."""
    warnings.warn(
        f"shmtrie: {what}; kernels are compiled in memory by every process. "
        "Set SHMTRIE_CACHE_DIR to a writable directory.",
        RuntimeWarning,
        stacklevel=3,
    )


class _Locator(_CacheLocator):  # type: ignore[misc]
    """Tell numba to keep a function in the directory of the key."""

    def __init__(self, py_func: Callable[..., Any], directory: Path) -> None:
        self._py_file = inspect.getfile(py_func)
        self._lineno = py_func.__code__.co_firstlineno
        self._directory = directory

    def get_cache_path(self) -> str:
        return str(self._directory)

    def get_source_stamp(self) -> str:
        path = Path(self._py_file).resolve()
        if path.is_relative_to(PACKAGE):
            return self._directory.name  # the key has seen this file and all it links
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def get_disambiguator(self) -> str:
        return str(self._lineno)


class _Impl(CompileResultCacheImpl):  # type: ignore[misc]
    def __init__(self, py_func: Callable[..., Any], directory: Path) -> None:
        # Not the inherited constructor: that asks NUMBA_CACHE_DIR and NUMBA_CACHE_LOCATOR_CLASSES,
        # which are the user's, and needs the directory to be writable.
        self._lineno = py_func.__code__.co_firstlineno
        self._locator = _Locator(py_func, directory)
        name = f"{Path(self._locator._py_file).stem}.{py_func.__qualname__}"
        self._filename_base = self.get_filename_base(name, getattr(sys, "abiflags", ""))


class KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's function cache at `Place`, which survives damaged files and a full disk."""

    def __init__(self, py_func: Callable[..., Any], place: Place) -> None:
        self._impl_class = functools.partial(_Impl, directory=place.directory)
        self._writable = place.writable
        super().__init__(py_func)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function or None; a file that cannot be read counts as absent."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever unpickling a damaged file may raise
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the compiled function; a failure costs the next process time and is no error."""
        if not self._writable:
            return
        try:
            super().save_overload(sig, data)
        except OSError as error:
            warn_once(f"compiled kernels cannot be written ({error.strerror})")
