"""Figures of a run: per (section, workload, index) and name, one value per repetition."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Say = Callable[[str], None]


@dataclass
class Results:
    """All figures.

    Attributes
    ----------
    machine : dict
        Where they were measured.
    wrong : dict
        (workload, index) -> answers that differ from the model, of how many.
    """

    machine: dict[str, Any] = field(default_factory=dict)
    wrong: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    placement: dict[tuple[str, str], str] = field(default_factory=dict)
    foreign: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._values: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def add(self, section: str, workload: str, index: str, figures: Mapping[str, float]) -> None:
        """Note one repetition."""
        mine = self._values[section, workload, index]
        for name, value in figures.items():
            mine[name].append(float(value))

    def get(self, section: str, workload: str, index: str, name: str) -> float | None:
        """Median over the repetitions; None if it was not measured."""
        values = self._values.get((section, workload, index), {}).get(name)
        return float(np.median(values)) if values else None

    def spread(self, section: str, workload: str, index: str, name: str) -> tuple[float, float] | None:
        """Least and greatest."""
        values = self._values.get((section, workload, index), {}).get(name)
        return (min(values), max(values)) if values else None

    def rows(self, section: str) -> list[tuple[str, str]]:
        """(workload, index) of a section, in the order of measurement."""
        return [(workload, index) for part, workload, index in self._values if part == section]

    def sections(self) -> list[str]:
        """Sections that were measured."""
        return list(dict.fromkeys(section for section, _, _ in self._values))

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        figures = [
            {
                "section": section,
                "workload": workload,
                "index": index,
                "figures": {
                    name: {
                        "median": float(np.median(values)),
                        "min": min(values),
                        "max": max(values),
                        "n": len(values),
                    }
                    for name, values in named.items()
                },
            }
            for (section, workload, index), named in self._values.items()
        ]
        wrong = [
            {"workload": w, "index": i, "wrong": n, "asked": asked}
            for (w, i), (n, asked) in self.wrong.items()
        ]
        placed = [{"workload": w, "index": i, "placement": p} for (w, i), p in self.placement.items()]
        return {
            "machine": self.machine,
            "figures": figures,
            "answers": wrong,
            "placement": placed,
            "foreign_cores": self.foreign,
        }

    def write(self, path: Path, more: Mapping[str, Any]) -> None:
        """Write as JSON, with `more` beside the figures."""
        path.write_text(json.dumps(self.as_dict() | dict(more), indent=1) + "\n")
