"""The learning curves that the method's and the baseline's authors published, and what they say about variants.

`tables/published.csv` holds, for each task and variant, mean and sample standard deviation over the seeds of the
evaluation return (success rate, 0 to 1, where that is the task's metric) at seven fractions of the training
horizon. A success rate that stayed at exactly 0 was published as no rows at all; here it is a row of zeros.
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

# A lead counts from this many standard errors of the difference on: less can be luck of five seeds.
CLEAR_LEAD = 2.0


@dataclass(frozen=True)
class Curve:
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
    def standard_error(self) -> np.ndarray:
        return self.std / math.sqrt(self.seeds)

    def at_the_end(self) -> float:
        return float(self.mean[-1])

    def height(self) -> float:
        """The mean height over the published fractions, to decide between equal ends."""
        return float(np.trapezoid(self.mean, FRACTIONS))


@dataclass(frozen=True)
class Favour:
    """A variant that ends clearly above the regime's default on a task, with both final values (raw)."""

    variant: str
    value: float
    default: str
    default_value: float


def horizon(task: Task) -> int:
    """Environment steps of the published runs of a task."""
    return PROFILES[FAMILY_PROFILES.get(task.family, "cpu")].total_steps


@cache
def _curves() -> dict[str, dict[str, Curve]]:
    text = resources.files("warpsac.envs").joinpath("tables/published.csv").read_text()
    found: dict[str, dict[str, Curve]] = {}
    for row in csv.DictReader(text.splitlines()):
        task = find(row["task"])
        assert task is not None, row["task"]
        mean, std = (np.array([float(row[f"{kind}_{fraction}"]) for fraction in FRACTIONS]) for kind in ("mean", "std"))
        found.setdefault(task.name, {})[row["variant"]] = Curve(task, row["variant"], int(row["seeds"]), mean, std)
    return found


def tasks() -> list[str]:
    """The tasks with published curves, in the order of the table of tasks."""
    return list(_curves())


def curves(task: str) -> dict[str, Curve]:
    """The published curves of a task by variant; empty if there are none."""
    return _curves().get(task, {})


def favour(task: str) -> Favour | None:
    """What the published data favour on a task where it is not the regime's default, else None.

    The variant with the highest mean at the end of training, provided that it leads the default by more
    than CLEAR_LEAD standard errors of the difference; among equals the one with the higher mean curve.
    """
    found = curves(task)
    known = find(task)
    default = found.get(default_variant(known.regime)) if known else None
    if default is None:
        return None
    best = max(found.values(), key=lambda curve: (curve.at_the_end(), curve.height()))
    lead = best.at_the_end() - default.at_the_end()
    noise = math.hypot(best.standard_error[-1], default.standard_error[-1])
    if lead <= 0 or lead <= CLEAR_LEAD * noise:
        return None
    return Favour(best.variant, best.at_the_end(), default.variant, default.at_the_end())


def favoured(task: str) -> str | None:
    """The name of the variant that `favour` tells of."""
    found = favour(task)
    return found.variant if found else None
