"""The learning curves published by the authors of the method and of the baseline, and which variants they favour.

`tables/published.csv` holds, for each task and variant, mean and sample standard deviation over seeds of the evaluation
return (success rate, 0 to 1, where that is the task's metric) at seven fractions of the training horizon. A success
rate that stayed at exactly 0 was published as no rows at all; here it is a row of zeros. `source` says whose runs they
are: the curves of `flashsac` on the data-limited tasks are the baseline authors' own, all others the method authors'.
`settings` names what those runs were trained with other than this package's defaults of the variant.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import numpy as np

from warpsac.config.profiles import FAMILY_PROFILES, PROFILES, default_variant
from warpsac.envs.tasks import Task, find

Source = Literal["baseline", "method"]

FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)

# A lead of fewer standard errors of the difference does not count: with five seeds it can be luck.
CLEAR_LEAD = 2.0


@dataclass(frozen=True)
class PublishedCurve:
    task: Task
    variant: str
    seeds: int
    mean: np.ndarray
    """Raw: returns, or success rates from 0 to 1."""
    std: np.ndarray
    source: Source = "method"
    """Whose runs they are: those of the baseline's authors, or of the method's."""
    settings: tuple[tuple[str, str], ...] = ()
    """How they were trained otherwise than by the variant's defaults here: (dotted name, value)."""

    @property
    def changed(self) -> str:
        """Its settings as text."""
        return " ".join(f"{name}={value}" for name, value in self.settings)

    @property
    def note(self) -> str:
        """What to know before comparing with it; empty if nothing."""
        if self.source == "method":
            return ""
        whose = f"published {self.variant}: the baseline authors' own runs"
        if not self.settings:
            return whose
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.settings)
        return f"{whose}, with {self.changed}; to compare, train with {options}"

    @property
    def steps(self) -> np.ndarray:
        return horizon(self.task) * np.array(FRACTIONS)

    @property
    def final(self) -> float:
        return float(self.mean[-1])


@dataclass(frozen=True)
class Favour:
    """A variant that ends clearly above the regime's default on a task, and the raw final values of both."""

    variant: str
    value: float
    default: str
    default_value: float


def horizon(task: Task) -> int:
    """Environment steps of the published runs of a task."""
    return PROFILES[FAMILY_PROFILES.get(task.family, "cpu")].total_steps


@cache
def _curves() -> dict[str, dict[str, PublishedCurve]]:
    text = resources.files("warpsac.envs").joinpath("tables/published.csv").read_text()
    found: dict[str, dict[str, PublishedCurve]] = {}
    for row in csv.DictReader(text.splitlines()):
        task = find(row["task"])
        assert task is not None, row["task"]
        mean, std = (np.array([float(row[f"{kind}_{fraction}"]) for fraction in FRACTIONS]) for kind in ("mean", "std"))
        settings = tuple((name, value) for name, _, value in (word.partition("=") for word in row["settings"].split()))
        source: Source = "baseline" if row["source"] == "baseline" else "method"
        curve = PublishedCurve(task, row["variant"], int(row["seeds"]), mean, std, source, settings)
        found.setdefault(task.name, {})[curve.variant] = curve
    return found


def tasks() -> list[str]:
    """The tasks with published curves, in the order of the table of tasks."""
    return list(_curves())


def curves(task: str) -> dict[str, PublishedCurve]:
    """The published curves of a task by variant; empty if there are none."""
    return _curves().get(task, {})


def published_notes(task: str) -> list[str]:
    """What to know before comparing runs of a task with its published curves."""
    return [curve.note for curve in curves(task).values() if curve.note]


def favour(task: str) -> Favour | None:
    """The variant that the published data favour on a task, if it is not the default of the task's regime.

    It has the highest mean at the end of training (among equals, the highest mean curve) and leads the default by more
    than CLEAR_LEAD standard errors of the difference.
    """
    found = curves(task)
    known = find(task)
    default = found.get(default_variant(known.regime)) if known else None
    if default is None:
        return None
    best = max(found.values(), key=lambda curve: (curve.final, np.trapezoid(curve.mean, FRACTIONS)))
    noise = math.hypot(*(curve.std[-1] / math.sqrt(curve.seeds) for curve in (best, default)))
    if best.final - default.final <= CLEAR_LEAD * noise:
        return None
    return Favour(best.variant, best.final, default.variant, default.final)


def favoured(task: str) -> str | None:
    """The name of the variant of `favour`."""
    found = favour(task)
    return found.variant if found else None
