"""The learning curves published by the authors of the method and of the baseline, and which variants they favour.

`tables/published.csv` holds, for each task and variant, mean and sample standard deviation over seeds of the evaluation
return (success rate, 0 to 1, where that is the task's metric) at seven fractions of the training horizon. A success
rate that stayed at exactly 0 was published as no rows at all; here it is a row of zeros.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from warpsac.config.profiles import FAMILY_PROFILES, PROFILES, default_variant
from warpsac.envs.tasks import Task, find

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
        found.setdefault(task.name, {})[row["variant"]] = PublishedCurve(
            task, row["variant"], int(row["seeds"]), mean, std
        )
    return found


def tasks() -> list[str]:
    """The tasks with published curves, in the order of the table of tasks."""
    return list(_curves())


def curves(task: str) -> dict[str, PublishedCurve]:
    """The published curves of a task by variant; empty if there are none."""
    return _curves().get(task, {})


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
