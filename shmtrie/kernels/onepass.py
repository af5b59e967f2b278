"""Helpers are optimised once: within the kernel that they end up in.

numba makes a library of every function, optimises it with everything it calls linked in, and turns it into
machine code, so that a helper at the bottom of a deep tree of calls goes through the optimiser once for each
function above it. Nobody calls a kernel's helper but the kernel. While an entry is compiled, the libraries of
all other functions are therefore only collected; the entry's own is optimised as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

_NEEDED = ("_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals")


class HelperLibrary(JITCodeLibrary):  # type: ignore[misc]
    """A library that is linked into others; that of the kernel itself is as numba makes it."""

    kernel = ""  # name of the function that is compiled as a whole

    def _optimize_final_module(self) -> None:
        if self.name == self.kernel:
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        if self.name == self.kernel:
            super()._finalize_final_module()
            return
        self._finalize_dynamic_globals()
        self._finalized = True


@contextmanager
def as_a_whole(kernel: str) -> Iterator[None]:
    """Compile a kernel with this qualified name. The caller holds numba's compiler lock.

    With a numba that is built otherwise everything is compiled its way, which only takes longer.
    """
    codegen = cpu_target.target_context.codegen()
    fits = all(hasattr(JITCodeLibrary, name) for name in _NEEDED)
    if not fits or getattr(type(codegen), "_library_class", None) is not JITCodeLibrary:
        yield
        return

    def set_env(name: str, env: Any) -> None:
        # the environment of a helper, which kernels do not use, has no address
        if codegen._engine.is_symbol_defined(name):
            type(codegen).set_env(codegen, name, env)

    before = dict(vars(codegen))
    codegen._library_class = type("HelperLibrary", (HelperLibrary,), {"kernel": kernel})
    codegen.set_env = set_env
    try:
        yield
    finally:
        for name in ("_library_class", "set_env"):
            if name in before:
                setattr(codegen, name, before[name])
            else:
                delattr(codegen, name)
