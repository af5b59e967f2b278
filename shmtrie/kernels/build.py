"""Decorators of the kernels, and the one warm-up that compiles them.

A kernel module marks its functions with `inl` or `jit` (helpers that become part of a kernel), `entry`
(called from Python) and `centry` (a C function pointer). Nothing is compiled at import: an entry is
compiled, or loaded from the cache (see ``cache``), when it is first called. `ensure` is what a handle
calls before; a cold cache is then filled by one process while the others wait for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
from numba.core import sigutils
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from shmtrie.kernels.cache import TEST_BUILD, KernelCache, find_place
from shmtrie.kernels.cachelock import Progress, finish, mark_used, may_report, only_compiler, report_to_stderr
from shmtrie.kernels.onepass import as_a_whole

__all__ = ["TEST_BUILD", "Warmup", "centry", "ensure", "entry", "inl", "jit", "registered", "warmup"]

#: Modules above the kernels that hold entries too; a warm-up imports them when they exist.
LATE_MODULES = ("shmtrie.fastcall", "shmtrie.fastbest", "shmtrie.fastscores", "shmtrie.fastapply")

_OPTIONS: dict[str, Any] = {"nopython": True, "boundscheck": False, "error_model": "numpy", "fastmath": False}
_registry: dict[str, Entry | CEntry] = {}
_lock = threading.RLock()
_is_ready = False


class Warmup(NamedTuple):
    """What a warm-up did.

    Attributes
    ----------
    compiled, loaded : int
        Entries compiled by this call, and entries found in the cache or in the process.
    seconds : float
        Duration, waiting for another process included.
    directory : pathlib.Path or None
        The cache directory; None when kernels live in memory only.
    """

    compiled: int
    loaded: int
    seconds: float
    directory: Path | None


def jit(function: Callable[..., Any]) -> Any:
    """Mark a helper that is compiled into the kernels that call it; LLVM may or may not inline it.

    Alone it has no machine code (see ``onepass``): nothing but kernels may call it.
    """
    return numba.njit(**_helper_options())(function)


def inl(function: Callable[..., Any]) -> Any:
    """Mark a helper that is inlined into every caller: small ones on hot paths."""
    return numba.njit(forceinline=True, **_helper_options())(function)


def _helper_options() -> dict[str, Any]:
    # Nobody calls a helper from Python: without wrappers it compiles a third faster.
    options = {name: value for name, value in _OPTIONS.items() if name != "nopython"}
    return options | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def entry(signature: str) -> Callable[[Callable[..., Any]], Entry]:
    """Mark a kernel that Python calls.

    Parameters
    ----------
    signature : str
        numba signature with the return type, e.g. ``"int64(int64, uint64[::1])"``. There is no other
        specialisation: another argument type is converted or refused, never compiled for.

    Returns
    -------
    callable
        Decorator giving an `Entry`.
    """

    def decorate(function: Callable[..., Any]) -> Entry:
        made = Entry(function, targetoptions={**_OPTIONS, "nogil": True})
        made.declare(signature)
        _registry[made.name] = made
        return made

    return decorate


def centry(signature: str) -> Callable[[Callable[..., Any]], CEntry]:
    """Mark a kernel that is called through a C function pointer.

    Parameters
    ----------
    signature : str
        As for `entry`. The caller of the pointer decides who holds the GIL.

    Returns
    -------
    callable
        Decorator giving a `CEntry`.
    """

    def decorate(function: Callable[..., Any]) -> CEntry:
        made = CEntry(function, signature)
        _registry[made.name] = made
        return made

    return decorate


class Entry(CPUDispatcher):  # type: ignore[misc]
    """A numba dispatcher with one signature, compiled or loaded at the first call.

    Attributes
    ----------
    call : callable
        The bare entry point once compiled, about half the overhead of the dispatcher. It takes exactly
        the arguments of the signature, by position. Hot paths bind it after ``compile()``.
    name : str
        Module and qualified name.
    """

    def declare(self, signature: str) -> None:
        """Set the signature; part of construction (numba calls the constructor itself to unpickle)."""
        function = self.py_func
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._declared = signature
        self._declared_args = tuple(sigutils.normalize_signature(signature)[0])
        self.call: Callable[..., Any] = self._first_call

    @property
    def is_compiled(self) -> bool:
        """Whether the machine code is in this process."""
        return bool(self.overloads)

    def compile(self, sig: object = None) -> Any:
        """Compile or load the declared signature, once.

        Parameters
        ----------
        sig : object, optional
            Ignored: numba asks for what a caller's arguments look like, and gets the declared one.

        Returns
        -------
        callable
            The entry point.
        """
        with global_compiler_lock:
            if not self.is_compiled:
                cache = _cache_for(self.py_func)
                if cache is not None:
                    self._cache = cache
                with as_a_whole(self.py_func.__qualname__):
                    super().compile(self._declared)
                self.disable_compile()
                self.call = self.overloads[self._declared_args].entry_point
            return self.call

    def was_cached(self) -> bool:
        """Whether the machine code came from the cache."""
        return bool(self._cache_hits)

    def _first_call(self, *args: Any) -> Any:
        return self.compile()(*args)

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        # What the C part of the dispatcher calls when it knows no matching code.
        return self.compile()


class CEntry:
    """A C callback with one signature, compiled or loaded when its pointer is first asked for."""

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self.name = f"{function.__module__}.{function.__qualname__}"
        types = sigutils.normalize_signature(signature)
        self._callback = CFunc(function, types, locals={}, options=dict(_OPTIONS))
        self.is_compiled = False

    def compile(self) -> CFunc:
        """Compile or load it, once, and return numba's object."""
        with global_compiler_lock:
            if not self.is_compiled:
                cache = _cache_for(self._callback.__wrapped__)
                if cache is not None:
                    self._callback._cache = cache
                with as_a_whole(self._callback.__wrapped__.__qualname__):
                    self._callback.compile()
                self.is_compiled = True
            return self._callback

    def was_cached(self) -> bool:
        """Whether the machine code came from the cache."""
        return bool(self._callback.cache_hits)

    @property
    def address(self) -> int:
        """Address of the C function; valid for the life of the process."""
        return int(self.compile().address)

    @property
    def ctypes(self) -> Any:
        """A ctypes function object, which releases the GIL around the call."""
        return self.compile().ctypes


def _cache_for(function: Callable[..., Any]) -> KernelCache | None:
    _require_compiler()
    place = find_place()
    return None if place is None else KernelCache(function, place)


def _require_compiler() -> None:
    if numba.config.DISABLE_JIT:
        raise RuntimeError("shmtrie needs numba's compiler: unset NUMBA_DISABLE_JIT")


def registered() -> dict[str, Entry | CEntry]:
    """Import every kernel module and return all entries by name."""
    import shmtrie.kernels as package

    for module in pkgutil.iter_modules(package.__path__, "shmtrie.kernels."):
        importlib.import_module(module.name)
    for name in LATE_MODULES:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    return dict(_registry)


def ensure() -> None:
    """Make the kernels ready to be called; cheap after the first time.

    With a cache that is complete this does nothing more: each entry is loaded when it is called. A cold
    cache is filled by `warmup`. Progress goes to a terminal's stderr, or with ``SHMTRIE_PROGRESS=1`` to
    any. Without a usable directory, entries are compiled in memory as they are called.

    Raises
    ------
    RuntimeError
        ``NUMBA_DISABLE_JIT`` is set.
    """
    global _is_ready
    if _is_ready:
        return
    _require_compiler()
    with _lock:
        place = find_place()
        if place is not None and not place.is_complete():
            warmup(report_to_stderr if may_report() else None)
        elif place is not None:
            mark_used(place)
        _is_ready = True


def warmup(progress: Progress | None = None) -> Warmup:
    """Compile every registered entry into the cache, or load it from there.

    Of several processes that do this at once, one compiles and the others wait for it. A process that
    dies on the way leaves whole files only; the next one goes on from there.

    Parameters
    ----------
    progress : callable, optional
        Called with (entries done, entries in all, name of the next one or "").

    Returns
    -------
    Warmup
        Counts, duration and place.
    """
    start = time.monotonic()
    entries = list(registered().values())
    place = find_place()
    before = sum(made.is_compiled for made in entries)
    with _lock, only_compiler(place) as note:
        for done, made in enumerate(entries):
            note(f"{os.getpid()} {done} {len(entries)}")
            if progress is not None:
                progress(done, len(entries), made.name)
            made.compile()
        if progress is not None:
            progress(len(entries), len(entries), "")
        if place is not None and place.writable:
            finish(place, [made.name for made in entries])
    loaded = sum(made.was_cached() for made in entries)
    compiled = sum(made.is_compiled and not made.was_cached() for made in entries)
    loaded, compiled = max(loaded, before), min(compiled, len(entries) - before)
    return Warmup(compiled, loaded, time.monotonic() - start, place.directory if place else None)
