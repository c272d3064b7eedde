"""The tables of a report as CSV: one function for each, which yields its rows; an unknown value is None."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from warpsac.report import trials
from warpsac.report.aggregate import Estimate, mean_and_spread
from warpsac.report.groups import Group
from warpsac.report.numerals import is_whole
from warpsac.report.study import METRICS, Range, Study, TaskResults

Rows = Iterator[tuple[Any, ...]]
Table = Callable[[Study], Rows]


def _unit(task: TaskResults) -> str:
    return "score" if task.scale.bounds else task.scale.metric


def _place(study: Study, task: TaskResults, group: Group) -> tuple[str, str, str]:
    return task.scale.family, task.scale.task, study.label(group)


def _estimate(estimate: Estimate) -> tuple[float | None, ...]:
    return estimate.value, *(estimate.interval or (None, None))


def curves(study: Study) -> Rows:
    """The mean curve of each task and variant at every evaluation."""
    for task in study.tasks:
        for group in task.groups:
            head = *_place(study, task, group), _unit(task), int(group in task.finished)
            for step, mean, std, n in zip(*task.band(group), strict=True):
                yield *head, int(step), mean, std, int(n)


def family_curves(study: Study) -> Rows:
    """The mean curve over the tasks of each family, with its bootstrap band."""
    for scope in study.scopes:
        for over, found in scope.curves.items():
            unit = "steps" if found.in_steps else "share of the range compared"
            for group, (mean, low, high) in found.curves.items():
                for i, x in enumerate(found.x):
                    band = (None, None) if low is None or high is None else (low[i], high[i])
                    yield scope.name, study.label(group), over, x, unit, mean[i], *band


def final(study: Study) -> Rows:
    """The last evaluation, over finished runs: as a score, and raw (return, or success in percent)."""
    for task in study.tasks:
        for group, values in task.values("final").items():
            runs = task.finished[group]
            seeds, last_step = " ".join(str(run.seed) for run in runs), int(min(run.steps[-1] for run in runs))
            score = mean_and_spread(values) if task.scale.bounds else (None, None)
            raw = mean_and_spread(np.array([run.raw[-1] for run in runs]))
            yield *_place(study, task, group), len(runs), seeds, last_step, *score, task.scale.metric, *raw


def auc(study: Study) -> Rows:
    """Areas under the curve of each task and variant, divided by the range they are taken over."""

    def columns(span: Range | None, values: np.ndarray | None) -> tuple[float | None, ...]:
        return (None,) * 4 if span is None or values is None else (*span, *mean_and_spread(values))

    for task in study.tasks:
        steps, wall = task.values("auc"), task.values("wall_auc")
        for group, runs in task.finished.items():
            areas = (
                *columns(task.ranges.get("steps"), steps.get(group)),
                *columns(task.ranges.get("seconds"), wall.get(group)),
            )
            yield *_place(study, task, group), _unit(task), len(runs), *areas


def iqm(study: Study) -> Rows:
    """Mean and interquartile mean over the tasks of a family that all its variants have, with intervals."""
    for scope in study.scopes:
        for metric in METRICS:
            comparison = scope.comparisons[metric]
            for group, mean, iqm, runs in comparison.rows:
                counts = len(comparison.tasks), comparison.all_tasks, runs
                yield scope.name, metric, study.label(group), *counts, *_estimate(mean), *_estimate(iqm)


def pairwise(study: Study) -> Rows:
    """Each variant against each other on the tasks that both have."""
    for scope in study.scopes:
        for metric in METRICS:
            for group, against, tasks, difference, probability, higher, lower in scope.comparisons[metric].pairs:
                names = study.label(group), study.label(against)
                yield scope.name, metric, *names, tasks, difference, *_estimate(probability), higher, lower


def runs(study: Study) -> Rows:
    """Every run found, however it ended, then the missing ones."""
    for run in study.runs:
        group = (run.group.variant, run.group.settings) if run.group else (None, None)
        yield (
            run.name, run.status, run.detail, run.task if run.group else None, *group, run.seed, run.reached,
            run.end_step or None, len(run.steps), run.total_seconds, run.faults, run.meta.get("time"), run.resumes,
            run.origin("git").get("commit"), run.path,
        )  # fmt: skip
    for gap in study.missing:
        for seed in gap.seeds:
            yield None, "missing", None, gap.task, gap.group.variant, gap.group.settings, seed, *(None,) * 9


COLUMNS: dict[Table, str] = {
    curves: "family task variant unit finished step mean std n",
    family_curves: "family variant over x x_is mean low high",
    final: "family task variant n seeds step score_mean score_std raw_metric raw_mean raw_std",
    auc: "family task variant unit n step_from step_to step_mean step_std wall_from wall_to wall_mean wall_std",
    iqm: "family metric variant tasks of_tasks runs mean mean_low mean_high iqm iqm_low iqm_high",
    pairwise: "family metric variant against tasks difference probability probability_low probability_high "
    "higher_on lower_on",
    runs: "run status detail task variant settings seed step end_step evaluations seconds faults started resumes "
    "commit folder",
}


def _cell(value: Any) -> Any:
    """Whole numbers exactly, others with six significant digits; unknown and non-finite ones are empty."""
    if isinstance(value, float | np.floating):
        if not math.isfinite(value):
            return ""
        return str(int(value)) if is_whole(float(value)) else f"{value:.6g}"
    return "" if value is None else value


def csv_text(columns: Sequence[str], rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def csv_files(study: Study) -> dict[str, str]:
    """The text of all tables by file name."""
    files = {f"{table.__name__}.csv": csv_text(columns.split(), table(study)) for table, columns in COLUMNS.items()}
    if study.searches:
        head = ["search", "trial", "state", "value", "step", *trials.all_settings(study.searches), "folder", "detail"]
        files["trials.csv"] = csv_text(head, trials.rows(study.searches))
    return files
