"""Runs brought together: results of each task, what can be compared over tasks, and the tables of it.

Only finished runs count in results. A task's *horizon* is the furthest step that all finished runs of some group
reach, for SAC and for PPO apart: an on-policy learner takes several times the steps by design. A group that ends well
before it has no area under the curve there, rather than one over less training, and its final score is compared with
none. Groups that a time budget ended set no horizon; they have an area over steps if they went as far as the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from warpsac.envs.tasks import all_tasks
from warpsac.report import aggregate
from warpsac.report.aggregate import Band, Estimate, MeanCurve
from warpsac.report.groups import FAMILIES, Group, Scale, in_order
from warpsac.report.missing import Missing, find_missing
from warpsac.report.runs import REACHED, Run, common_changes
from warpsac.runs.bench_plan import Planned

Metric = Literal["final", "auc", "wall_auc"]
METRICS: tuple[Metric, ...] = ("final", "auc", "wall_auc")

ALL_FAMILIES = "all families"

FAMILY_POINTS = 101  # of a family's mean curve
WALL_POINTS = 201  # of a task's mean curve over time: seeds are never judged at the same second

Range = tuple[float, float]
Results = Mapping[Group, Mapping[str, np.ndarray]]
"""Group -> task -> one value for each seed."""


@dataclass(frozen=True)
class TaskResults:
    """All that is known of one task."""

    scale: Scale
    finished: Mapping[Group, list[Run]]
    unfinished: Mapping[Group, list[Run]]
    """With evaluations nevertheless; drawn where a group has no finished run."""

    @property
    def groups(self) -> list[Group]:
        return in_order({*self.finished, *self.unfinished})

    def drawn(self, group: Group) -> list[Run]:
        """The runs whose mean is the group's curve: the finished ones, so that it is always over the same seeds."""
        return self.finished.get(group) or self.unfinished[group]

    @cached_property
    def compared(self) -> dict[Group, list[Run]]:
        """The groups whose runs, each more than a single point, reach the horizon, or go as far as those that do."""
        curves = self._curves
        by_budget = {group for group, runs in curves.items() if _ended_by_budget(runs)}
        short = _short_of_horizon(curves)
        whole = [_last_step(runs) for group, runs in curves.items() if group not in by_budget and group not in short]
        enough = min(whole) if whole else max((_last_step(runs) for runs in curves.values()), default=0.0)
        return {
            group: runs
            for group, runs in curves.items()
            if group not in short and (group not in by_budget or _last_step(runs) >= REACHED * enough)
        }

    @cached_property
    def timed(self) -> dict[Group, list[Run]]:
        """The groups to compare over time: those at the horizon, and those that a time budget ended."""
        return {
            group: runs
            for group, runs in self._curves.items()
            if (group in self.compared or _ended_by_budget(runs)) and all(len(run.seconds) for run in runs)
        }

    @property
    def _curves(self) -> dict[Group, list[Run]]:
        return {group: runs for group, runs in self.finished.items() if all(len(run.steps) > 1 for run in runs)}

    @cached_property
    def step_range(self) -> Range | None:
        return aggregate.common_range([run.steps for runs in self.compared.values() for run in runs])

    @cached_property
    def wall_range(self) -> Range | None:
        return aggregate.common_range([run.seconds for runs in self.timed.values() for run in runs])

    def values(self, metric: Metric) -> dict[Group, np.ndarray]:
        """One value for each finished run of each group that has the metric."""
        if metric == "final":
            return {group: np.array([run.scores[-1] for run in runs]) for group, runs in self.finished.items()}
        over_steps = metric == "auc"
        span = self.step_range if over_steps else self.wall_range
        if span is None:
            return {}
        return {
            group: np.array([
                aggregate.mean_height((run.steps if over_steps else run.seconds, run.scores), *span) for run in runs
            ])
            for group, runs in (self.compared if over_steps else self.timed).items()
        }  # fmt: skip

    def comparable(self, metric: Metric) -> dict[Group, np.ndarray]:
        """The values that may be held against each other: no final score of less training than others had."""
        values = self.values(metric)
        if metric != "final":
            return values
        return {group: of for group, of in values.items() if group not in self.shorter}

    @cached_property
    def shorter(self) -> set[Group]:
        """The groups that end before the horizon, other than by a time budget."""
        return _short_of_horizon(self.finished)

    def band(self, group: Group) -> Band:
        """The group's curve over environment steps."""
        return aggregate.band([(run.steps, run.scores) for run in self.drawn(group)])

    def wall_band(self, group: Group) -> Band | None:
        """The group's curve over seconds, as far as all its runs go."""
        runs = self.drawn(group)
        span = aggregate.common_range([run.seconds for run in runs])
        if span is None:
            return None
        return aggregate.band([(run.seconds, run.scores) for run in runs], np.linspace(*span, WALL_POINTS))


def _last_step(runs: Sequence[Run]) -> float:
    """As far as all of them go."""
    return min(float(run.steps[-1]) for run in runs)


def _ended_by_budget(runs: Sequence[Run]) -> bool:
    return all(run.ended_by_budget for run in runs)


def _short_of_horizon(results: Mapping[Group, list[Run]]) -> set[Group]:
    """The groups that end before the furthest one of their algorithm; those of a time budget are neither."""
    last = {group: _last_step(runs) for group, runs in results.items() if not _ended_by_budget(runs)}
    horizon = {on_policy: max((step for group, step in last.items() if group.on_policy == on_policy), default=0.0)
               for on_policy in (False, True)}  # fmt: skip
    return {group for group, step in last.items() if step < REACHED * horizon[group.on_policy]}


class Aggregate(NamedTuple):
    """One variant over the tasks of a scope."""

    group: Group
    mean: Estimate
    iqm: Estimate
    runs: int


class Pair(NamedTuple):
    """One variant against another on the tasks that both have."""

    group: Group
    against: Group
    tasks: int
    difference: float
    probability: Estimate
    higher: int
    lower: int


@dataclass(frozen=True)
class Comparison:
    """A metric over the tasks that all compared groups have."""

    tasks: list[str]
    rows: list[Aggregate]
    left_out: list[Group]
    """They have less than half of the tasks, and would have left too few for the others."""
    all_tasks: int
    pairs: list[Pair]


class FamilyCurve(NamedTuple):
    x: np.ndarray
    """Environment steps where all tasks have one horizon, else the share of it."""
    in_steps: bool
    curves: dict[Group, MeanCurve]


@dataclass(frozen=True)
class Scope:
    """A family, or all of them."""

    name: str
    tasks: list[TaskResults]
    """Those whose results can be normalised."""

    @cached_property
    def comparisons(self) -> dict[Metric, Comparison]:
        return {metric: compare(_by_group(self.tasks, metric)) for metric in METRICS}

    @cached_property
    def step_curve(self) -> FamilyCurve | None:
        return self._curve("steps")

    @cached_property
    def wall_curve(self) -> FamilyCurve | None:
        return self._curve("seconds")

    def _curve(self, over: Literal["steps", "seconds"]) -> FamilyCurve | None:
        """Mean over tasks against the share of each task's horizon, of the groups and tasks of the area's table."""
        comparison = self.comparisons["auc" if over == "steps" else "wall_auc"]
        tasks = [task for task in self.tasks if task.scale.task in comparison.tasks]
        spans = [task.step_range if over == "steps" else task.wall_range for task in tasks]
        known = [span for span in spans if span is not None]
        if not known:
            return None
        share = np.linspace(max(start / stop for start, stop in known), 1.0, FAMILY_POINTS)
        curves = {}
        for row in comparison.rows:
            heights = []
            for task, (start, stop) in zip(tasks, known, strict=True):
                grid = np.clip(share * stop, start, stop)  # a rounded end must not fall off the curve
                runs = task.finished[row.group]
                axes = [run.steps if over == "steps" else run.seconds for run in runs]
                heights.append(np.stack([aggregate.at((x, run.scores), grid) for x, run in zip(axes, runs)]))
            curves[row.group] = aggregate.mean_curve(heights)
        horizons = {stop for _, stop in known}
        in_steps = over == "steps" and len(horizons) == 1
        return FamilyCurve(share * horizons.pop() if in_steps else share, in_steps, curves)


def _by_group(tasks: Iterable[TaskResults], metric: Metric) -> Results:
    found: dict[Group, dict[str, np.ndarray]] = {}
    for task in tasks:
        for group, values in task.comparable(metric).items():
            found.setdefault(group, {})[task.scale.task] = values
    return found


def compare(results: Results) -> Comparison:
    """Every group on the same tasks: those that all groups have, but for groups with less than half of them."""
    every = list(dict.fromkeys(task for values in results.values() for task in values))
    groups = [group for group in in_order(set(results)) if 2 * len(results[group]) >= len(every)]
    tasks = [task for task in every if all(task in results[group] for group in groups)]
    rows = []
    for group in groups if tasks else []:
        strata = [results[group][task] for task in tasks]
        runs = sum(len(seeds) for seeds in strata)
        rows.append(Aggregate(group, aggregate.mean_estimate(strata), aggregate.iqm_estimate(strata), runs))
    left_out = [group for group in in_order(set(results)) if group not in groups]
    return Comparison(tasks, rows, left_out, len(every), _pairs(results))


def _pairs(results: Results) -> list[Pair]:
    """Both directions of every pair; the second tells what the first does, from the other side."""
    pairs: list[Pair] = []
    chances: dict[tuple[Group, Group], Estimate] = {}
    groups = in_order(set(results))
    for group in groups:
        for against in groups:
            tasks = [task for task in results[group] if task in results[against]]
            if group == against or not tasks:
                continue
            ours, theirs = ([results[side][task] for task in tasks] for side in (group, against))
            gains = np.array([x.mean() - y.mean() for x, y in zip(ours, theirs)])
            told = chances.get((against, group))
            probability = aggregate.improvement(ours, theirs) if told is None else told.of_the_contrary
            chances[group, against] = probability
            pairs.append(
                Pair(group, against, len(tasks), float(gains.mean()), probability, int((gains > 0).sum()),
                     int((gains < 0).sum()))
            )  # fmt: skip
    return pairs


@dataclass(frozen=True)
class Study:
    runs: list[Run]
    tasks: list[TaskResults]
    scopes: list[Scope]
    """Families with scores in their usual order, then all of them if there are several."""
    missing: list[Missing]
    common: tuple[tuple[str, str], ...]
    planned: bool
    """Whether a plan says what is missing, or the grid that the runs draw up."""

    @cached_property
    def groups(self) -> list[Group]:
        return in_order({run.group for run in self.runs if run.group})

    def label(self, group: Group) -> str:
        """The group's name without the settings that all runs share."""
        return group.without(self.common).label

    @property
    def trouble(self) -> list[Run]:
        return [run for run in self.runs if not run.finished]


def make_study(runs: Sequence[Run], planned: Sequence[Planned] = ()) -> Study:
    by_task: dict[str, list[Run]] = {}
    for run in runs:
        if run.scale and run.group and run.status != "duplicate":
            by_task.setdefault(run.task, []).append(run)
    tasks = [_task_results(by_task[name]) for name in _task_order(by_task)]
    families = [
        Scope(family, [task for task in tasks if task.scale.family == family and task.scale.bounds])
        for family in FAMILIES
    ]
    scopes = [scope for scope in families if any(task.finished for task in scope.tasks)]
    if len(scopes) > 1:
        scopes.append(Scope(ALL_FAMILIES, [task for scope in scopes for task in scope.tasks]))
    return Study(list(runs), tasks, scopes, find_missing(runs, planned), common_changes(runs), bool(planned))


def _task_order(by_task: Mapping[str, list[Run]]) -> list[str]:
    """By family, then as in the table of tasks, then by name."""
    rank = {task.name: number for number, task in enumerate(all_tasks())}

    def key(name: str) -> tuple[int, int, str]:
        scale = by_task[name][0].scale
        assert scale is not None
        return FAMILIES.index(scale.family), rank.get(name, len(rank)), name

    return sorted(by_task, key=key)


def _task_results(runs: Sequence[Run]) -> TaskResults:
    finished: dict[Group, list[Run]] = {}
    unfinished: dict[Group, list[Run]] = {}
    for run in sorted(runs, key=lambda run: -1 if run.seed is None else run.seed):
        assert run.group is not None
        if run.finished:
            finished.setdefault(run.group, []).append(run)
        elif len(run.steps):
            unfinished.setdefault(run.group, []).append(run)
    scale = runs[0].scale
    assert scale is not None
    return TaskResults(scale, finished, unfinished)
