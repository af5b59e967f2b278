"""What storms did, as a dict and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.storm.storm import Totals

_PHASES = {
    -1: "no operation open",
    0: "before its first change",
    1: "to be taken back (UNDO)",
    2: "to be finished (REDO)",
    3: "to be ended (RELEASE)",
}


def times(ns: Sequence[int] | np.ndarray) -> dict[str, float]:
    """Count, median, 99th percentile and maximum, in us."""
    if len(ns) == 0:
        return {"n": 0}
    values = np.asarray(ns) / 1000
    p50, p99 = np.percentile(values, (50, 99))
    return {
        "n": len(values),
        "p50_us": round(float(p50), 1),
        "p99_us": round(float(p99), 1),
        "max_us": round(float(values.max()), 1),
    }


def report(totals: Totals, seconds: float) -> dict[str, Any]:
    """Everything that is worth knowing of some storms."""
    v = totals.verdict
    return {
        "seconds": round(seconds, 1),
        "kills": totals.kills.total(),
        "kills by kind": dict(totals.kills),
        "starts": totals.starts,
        "stops": totals.stops,
        "recoveries": dict(totals.recoveries),
        "killed writers by what they left": {_PHASES[k]: n for k, n in sorted(totals.phases.items()) if n},
        "events cut": dict(totals.cut),
        "of a cut store was there": dict(totals.came),
        "lock of a dead lane to lane usable": times(totals.recovery_ns),
        "the same, with an open operation": times(totals.open_recovery_ns),
        "kill to lane recovered": times(totals.end_to_end_ns),
        "events acknowledged": totals.ops,
        "calls": totals.calls,
        "outcomes": {" ".join(k): n for k, n in sorted(totals.outcomes.items())},
        "busy": totals.busy,
        "finds": totals.finds,
        "scores judged": v.judged,
        "beside an event of the rank": v.touched,
        "low beside an event": v.low,
        "gave up": v.given_up,
        "find of a reader under load": times(
            np.concatenate(totals.find_ns) if totals.find_ns else np.empty(0)
        ),
        "overcounts": totals.overcounts,
        "lost acknowledged events": totals.lost,
        "dips": totals.dips,
        "hangs": totals.hangs,
    }


def table(found: dict[str, Any]) -> str:
    """The report as lines."""
    lines = []
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(
                f"{k} {v:,}" if not isinstance(v, str) else f"{k} {v}" for k, v in value.items()
            )
        elif isinstance(value, int | float):
            value = f"{value:,}"
        lines.append(f"{name:36} {value}")
    return "\n".join(lines)
