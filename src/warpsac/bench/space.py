"""What a search varies and how its trials are chosen and compared, as a suite's `search` says; docs/bench.md.

Nothing here needs Optuna: that is `study`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from warpsac.config.schema import Config
from warpsac.report.aggregate import Curve, mean_height
from warpsac.report.groups import is_material

Sampler = Literal["tpe", "random"]
Pruner = Literal["none", "median", "asha", "hyperband"]

# A search trains none of the seeds that results are reported with, whose evaluations follow from them too.
SEARCH_SEEDS = (11, 12, 13)
MOST_TRIALS = 10_000
MOST_CORNERS = 200  # of a space that are tried before anything starts; of larger ones each setting alone
MOST_VALUES = 100  # of a range of whole numbers that are tried one by one


@dataclass(frozen=True)
class Choice:
    values: tuple[Any, ...]

    @property
    def ends(self) -> Sequence[Any]:
        return self.values

    @property
    def probes(self) -> Sequence[Any]:
        return self.values


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, both included; of whole numbers if both are."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> Sequence[Any]:
        return self.low, self.high

    @property
    def probes(self) -> Sequence[Any]:
        """Values that show whether all are allowed."""
        if self.whole and self.high - self.low < MOST_VALUES:
            return range(int(self.low), int(self.high) + 1)
        return self.ends


Space = Mapping[str, Choice | Range]
"""Dotted name of a setting -> its values."""


@dataclass(frozen=True)
class Objective:
    """A number for each policy's evaluations so far: the mean of the last ones, or the mean height of their curve."""

    last: int | None = 1
    """How many evaluations; None: the area under all of them."""

    def of(self, curve: Curve) -> float:
        steps, values = curve
        if self.last is None:
            return mean_height(curve, steps[0], steps[-1]) if len(steps) > 1 else float(values[-1])
        trained = values[steps > 0] if steps[-1] > 0 else values
        return float(trained[-self.last :].mean())

    def __str__(self) -> str:
        return "auc" if self.last is None else "final" if self.last == 1 else f"last {self.last}"

    @property
    def in_words(self) -> str:
        if self.last is None:
            return "mean height of the learning curve"
        return "last evaluation" if self.last == 1 else f"mean of the last {self.last} evaluations"


def objective_of(text: str) -> Objective | None:
    """final, auc or last N."""
    if text in ("final", "auc"):
        return Objective(1 if text == "final" else None)
    found = re.fullmatch(r"last ([1-9]\d{0,3})", text)
    return Objective(int(found[1])) if found else None


def progress(curves: Sequence[Curve], objective: Objective) -> list[tuple[int, float]]:
    """The objective after each evaluation that all seeds have, but the one before training: the mean over seeds."""
    if not curves:
        return []
    shared = set.intersection(*({int(step) for step in steps} for steps, _ in curves)) - {0}
    return [
        (step, sum(objective.of((x[x <= step], y[x <= step])) for x, y in curves) / len(curves))
        for step in sorted(shared)
    ]


@dataclass(frozen=True)
class Search:
    space: Space
    trials: int = 20
    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    objective: Objective = Objective()
    seed: int = 0
    """Of the sampler."""

    @property
    def definition(self) -> dict[str, Any]:
        """What must not change between two benches in one folder, as plain data; there may be more trials later."""
        space = {path: dataclasses.asdict(values) for path, values in self.space.items()}
        space = {path: {key: _plain(value) for key, value in values.items()} for path, values in space.items()}
        return {"space": space, "sampler": self.sampler, "pruner": self.pruner, "objective": str(self.objective),
                "seed": self.seed}  # fmt: skip

    def probes(self) -> Iterator[dict[str, Any]]:
        """Points of the space that show whether all of it is allowed, as far as a few can."""
        corners = [values.ends for values in self.space.values()]
        base = {path: values.ends[0] for path, values in self.space.items()}
        if math.prod(map(len, corners)) <= MOST_CORNERS:
            yield from (dict(zip(self.space, corner, strict=True)) for corner in itertools.product(*corners))
        for path, values in self.space.items():
            yield from (base | {path: value} for value in values.probes)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def rounded(value: float, values: Range) -> float:
    """With six digits, as it is printed and pasted."""
    return float(np.clip(float(f"{value:.6g}"), values.low, values.high))


def takes_floats(path: str) -> bool:
    """Whether a setting, by its dotted name, is a number with a fraction."""
    kind: Any = Config
    for name in path.split("."):
        if not dataclasses.is_dataclass(kind):
            return False
        kind = typing.get_type_hints(typing.cast(type, kind)).get(name)
    return float in (kind, *typing.get_args(kind))


def why_not(path: str) -> str | None:
    """Why a setting cannot be searched, if so."""
    if path.startswith("eval.") or path in ("total_steps", "stop_at", "init_step"):
        return "trials are compared at equal steps and by equal evaluations"
    return None if is_material(path) else "it makes no difference to what is learned"
