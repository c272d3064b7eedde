"""Results of each task, and what can be compared over tasks.

Only finished runs count in results. A task's *horizon* is the furthest step that all finished runs of some group
reach; SAC and PPO have separate ones, since an on-policy learner takes several times the steps by design. A group that
ends well before its horizon has no area under the curve, rather than one over less training, and its final score is not
compared. Groups ended by a time budget set no horizon; they have an area over steps if they went as far as the others.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from warpsac.envs.tasks import all_tasks
from warpsac.report import aggregate
from warpsac.report.aggregate import Band, Estimate, MeanCurve
from warpsac.report.groups import FAMILIES, Changes, Group, Scale, in_order
from warpsac.report.missing import Missing, find_missing
from warpsac.report.runs import REACHED, Axis, Run, common_changes
from warpsac.report.trials import Found, marked
from warpsac.runs.bench_plan import Planned

Metric = Literal["final", "auc", "wall_auc"]
METRICS: tuple[Metric, ...] = ("final", "auc", "wall_auc")
AREAS: dict[Axis, Metric] = {"steps": "auc", "seconds": "wall_auc"}

ALL_FAMILIES = "all families"

FAMILY_POINTS = 101  # of a family's mean curve
WALL_POINTS = 201  # of a task's mean curve over time: seeds are never evaluated at the same second

Range = tuple[float, float]
RunsByGroup = Mapping[Group, list[Run]]
Results = Mapping[Group, Mapping[str, np.ndarray]]
"""Group -> task -> one value for each seed."""


@dataclass(frozen=True)
class TaskResults:
    """The runs of one task."""

    scale: Scale
    finished: RunsByGroup
    unfinished: RunsByGroup
    """Those with evaluations; drawn where a group has no finished run."""

    @property
    def groups(self) -> list[Group]:
        return in_order({*self.finished, *self.unfinished})

    def _drawn(self, group: Group) -> list[Run]:
        """The runs whose mean is the group's curve: the finished ones, so that it is always over the same seeds."""
        return self.finished.get(group) or self.unfinished[group]

    @cached_property
    def compared(self) -> dict[Axis, RunsByGroup]:
        """The groups with an area, whose runs are all more than one point. Over steps: those that reach the horizon, or
        go as far as those that do. Over seconds: these and all that a time budget ended, if their times are known."""
        curves = {group: runs for group, runs in self.finished.items() if all(len(run.steps) > 1 for run in runs)}
        by_budget = {group for group, runs in curves.items() if _ended_by_budget(runs)}
        short = _short_of_horizon(curves)
        last = {group: _last_step(runs) for group, runs in curves.items()}
        whole = [last[group] for group in curves if group not in by_budget and group not in short]
        enough = REACHED * (min(whole) if whole else max(last.values(), default=0.0))
        reaching = {group for group in curves.keys() - short if group not in by_budget or last[group] >= enough}
        timed = {group for group in reaching | by_budget if all(len(run.seconds) for run in curves[group])}
        return {
            "steps": {group: runs for group, runs in curves.items() if group in reaching},
            "seconds": {group: runs for group, runs in curves.items() if group in timed},
        }

    @cached_property
    def ranges(self) -> dict[Axis, Range]:
        """Where all compared runs are known."""
        found = ((over, _range(itertools.chain(*runs.values()), over)) for over, runs in self.compared.items())
        return {over: span for over, span in found if span}

    @cached_property
    def shorter(self) -> set[Group]:
        """The groups that end before the horizon, other than by a time budget."""
        return _short_of_horizon(self.finished)

    def values(self, metric: Metric) -> dict[Group, np.ndarray]:
        """One value for each finished run of each group that has the metric."""
        if metric == "final":
            return {group: np.array([run.scores[-1] for run in runs]) for group, runs in self.finished.items()}
        over: Axis = "steps" if metric == "auc" else "seconds"
        if over not in self.ranges:
            return {}
        area = lambda run: aggregate.mean_height(run.curve(over), *self.ranges[over])
        return {group: np.array([area(run) for run in runs]) for group, runs in self.compared[over].items()}

    def comparable(self, metric: Metric) -> dict[Group, np.ndarray]:
        """The values that may be compared: no final score of less training than others had."""
        values = self.values(metric)
        return {group: of for group, of in values.items() if metric != "final" or group not in self.shorter}

    def band(self, group: Group) -> Band:
        """The group's curve over environment steps."""
        return aggregate.band([run.curve("steps") for run in self._drawn(group)])

    def wall_band(self, group: Group) -> Band | None:
        """The group's curve over seconds, as far as all its runs go."""
        runs = self._drawn(group)
        span = _range(runs, "seconds")
        return aggregate.band([run.curve("seconds") for run in runs], np.linspace(*span, WALL_POINTS)) if span else None


def _range(runs: Iterable[Run], over: Axis) -> Range | None:
    return aggregate.common_range([run.curve(over)[0] for run in runs])


def _last_step(runs: Sequence[Run]) -> float:
    """The step that all of them reach."""
    return min(float(run.steps[-1]) for run in runs)


def _ended_by_budget(runs: Sequence[Run]) -> bool:
    return all(run.ended_by_budget for run in runs)


def _short_of_horizon(results: RunsByGroup) -> set[Group]:
    """The groups that end before the furthest one of their algorithm; those ended by a time budget do not count."""
    last = {group: _last_step(runs) for group, runs in results.items() if not _ended_by_budget(runs)}
    horizon: defaultdict[bool, float] = defaultdict(float)
    for group, step in last.items():
        horizon[group.on_policy] = max(horizon[group.on_policy], step)
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
    """They have less than half of the tasks, and would leave too few for the others."""
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
        return {metric: compare(_results(self.tasks, metric)) for metric in METRICS}

    @cached_property
    def curves(self) -> dict[Axis, FamilyCurve]:
        found = {over: self._curve(over) for over in AREAS}
        return {over: curve for over, curve in found.items() if curve}

    def _curve(self, over: Axis) -> FamilyCurve | None:
        """Mean over tasks against the share of each task's range, for the groups and tasks of the table of areas."""
        comparison = self.comparisons[AREAS[over]]
        spans = [(task, task.ranges[over]) for task in self.tasks if task.scale.task in comparison.tasks]
        if not spans:
            return None
        share = np.linspace(max(start / stop for _, (start, stop) in spans), 1.0, FAMILY_POINTS)
        # A rounded end must not fall off the curve.
        grids = [(task, np.clip(share * stop, start, stop)) for task, (start, stop) in spans]
        curves = {
            row.group: aggregate.mean_curve([
                np.stack([aggregate.at(run.curve(over), grid) for run in task.finished[row.group]])
                for task, grid in grids
            ])
            for row in comparison.rows
        }  # fmt: skip
        horizons = {stop for _, (_, stop) in spans}
        in_steps = over == "steps" and len(horizons) == 1
        return FamilyCurve(share * horizons.pop() if in_steps else share, in_steps, curves)


def _results(tasks: Iterable[TaskResults], metric: Metric) -> Results:
    found: defaultdict[Group, dict[str, np.ndarray]] = defaultdict(dict)
    for task in tasks:
        for group, values in task.comparable(metric).items():
            found[group][task.scale.task] = values
    return found


def compare(results: Results) -> Comparison:
    """Every group on the same tasks: those that all groups have, except groups with less than half of them."""
    every = list(dict.fromkeys(task for values in results.values() for task in values))
    ordered = in_order(set(results))
    groups = [group for group in ordered if 2 * len(results[group]) >= len(every)]
    tasks = [task for task in every if all(task in results[group] for group in groups)]
    rows = []
    for group in groups if tasks else []:
        strata = [results[group][task] for task in tasks]
        runs = sum(len(seeds) for seeds in strata)
        rows.append(Aggregate(group, aggregate.mean_estimate(strata), aggregate.iqm_estimate(strata), runs))
    left_out = [group for group in ordered if group not in groups]
    return Comparison(tasks, rows, left_out, len(every), _pairs(results, ordered))


def _pairs(results: Results, groups: Sequence[Group]) -> list[Pair]:
    """Both directions of every pair; the second mirrors the first."""
    pairs: dict[tuple[Group, Group], Pair] = {}
    for group in groups:
        for against in groups:
            tasks = [task for task in results[group] if task in results[against]]
            if group == against or not tasks:
                continue
            ours, theirs = ([results[side][task] for task in tasks] for side in (group, against))
            gains = np.array([x.mean() - y.mean() for x, y in zip(ours, theirs)])
            mirror = pairs.get((against, group))
            probability = mirror.probability.complement if mirror else aggregate.improvement(ours, theirs)
            wins = int((gains > 0).sum()), int((gains < 0).sum())
            pairs[group, against] = Pair(group, against, len(tasks), float(gains.mean()), probability, *wins)
    return list(pairs.values())


@dataclass(frozen=True)
class Study:
    runs: list[Run]
    tasks: list[TaskResults]
    scopes: list[Scope]
    """Families with scores in their usual order, then all of them if there are several."""
    missing: list[Missing]
    common: Changes
    searches: Sequence[Found] = ()

    @cached_property
    def groups(self) -> list[Group]:
        return in_order({run.group for run in self.runs if run.group and run.shown})

    def label(self, group: Group) -> str:
        """The group's name without the settings that all runs share."""
        return group.without(self.common).label

    @property
    def counts(self) -> Counter[str]:
        """Runs by status, the most frequent first, then the missing ones."""
        counts: Counter[str] = Counter(dict(Counter(run.status for run in self.runs).most_common()))
        if self.missing:
            counts["missing"] = sum(len(gap.seeds) for gap in self.missing)
        return counts


def make_study(runs: Sequence[Run], planned: Sequence[Planned] = (), searches: Sequence[Found] = ()) -> Study:
    """`searches`: those whose trials are among the runs."""
    runs = marked(runs, searches)
    by_task: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.group and run.shown and run.status not in ("duplicate", "pruned"):
            by_task[run.task].append(run)
    rank = {task.name: number for number, task in enumerate(all_tasks())}
    # By family, then as in the table of tasks, then by name.
    order = lambda task: (FAMILIES.index(task.scale.family), rank.get(task.scale.task, len(rank)), task.scale.task)
    tasks = sorted(map(_task_results, by_task.values()), key=order)
    families = [
        Scope(family, [task for task in tasks if task.scale.family == family and task.scale.bounds])
        for family in FAMILIES
    ]
    scopes = [scope for scope in families if any(task.finished for task in scope.tasks)]
    if len(scopes) > 1:
        scopes.append(Scope(ALL_FAMILIES, [task for scope in scopes for task in scope.tasks]))
    return Study(list(runs), tasks, scopes, find_missing(runs, planned), common_changes(runs), searches)


def _task_results(runs: Sequence[Run]) -> TaskResults:
    finished: defaultdict[Group, list[Run]] = defaultdict(list)
    unfinished: defaultdict[Group, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.seed or 0):
        if run.group and (run.finished or len(run.steps)):
            (finished if run.finished else unfinished)[run.group].append(run)
    return TaskResults(runs[0].scale, dict(finished), dict(unfinished))
