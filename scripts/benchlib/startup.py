"""From starting Python to the first answer or the first stored block, with kernels cached."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time

from shmtrie import Capacity, Index

from .results import Results, Say
from .side_by_side import Plan

SECTION = "startup"
_READER = "from shmtrie import Index; i = Index.attach({name!r}); i.find_matches([1])"
_WRITER = (
    "from shmtrie import Index; i = Index.attach({name!r}, read_only=False); "
    "w = i.writer(); w.store(1, None, [1], [1])"
)
_ATTACH = (
    "import time; from shmtrie import Index; a = Index.attach({name!r}); a.find_matches([1]); "
    "t = time.perf_counter(); i = Index.attach({name!r}); i.find_matches([1]); "
    "print('took', time.perf_counter() - t)"
)


def _run(code: str) -> tuple[float, str]:
    paths = f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}; "
    end = "; print('done', flush=True); import os; os._exit(0)"
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", paths + code + end], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        said = ""
        for line in child.stdout:
            if line.startswith("done"):
                return time.perf_counter() - start, said
            said += line
    raise RuntimeError(f"a child failed: {code}")


def measure(plan: Plan, results: Results, say: Say) -> None:
    """Import and attach for reading, and for writing; the bare interpreter with numpy and numba beside."""
    name = f"shmtrie-bench-{secrets.token_hex(4)}"
    with Index.create(name, Capacity(blocks=10_000, workers=64, lanes=4)):
        try:
            for rep in range(max(3, plan.reps)):
                say(f"start-up, repetition {rep + 1}")
                for what, code in (
                    ("import numpy, numba", "import numpy, numba"),
                    ("import, attach, first find", _READER),
                    ("import, attach, lane, first store", _WRITER),
                ):
                    seconds, _ = _run(code.format(name=name))
                    results.add(SECTION, what, "shmtrie", {"seconds": seconds})
                _, said = _run(_ATTACH.format(name=name))
                results.add(
                    SECTION, "second attach, first find", "shmtrie", {"seconds": float(said.split()[1])}
                )
        finally:
            Index.unlink(name)
