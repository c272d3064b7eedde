"""The tables of a report as CSV: one function for each, rows of plain values; a value that is unknown is empty."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from warpsac.errors import UserError
from warpsac.report import aggregate
from warpsac.report.aggregate import Estimate
from warpsac.report.numerals import is_whole
from warpsac.report.study import METRICS, Range, Study, TaskResults
from warpsac.runs.files import in_words, write_atomically

Rows = Iterator[dict[str, Any]]
Table = Callable[[Study], Rows]


def _unit(task: TaskResults) -> str:
    return "score" if task.scale.bounds else task.scale.metric


def _spread(values: np.ndarray) -> float | None:
    return float(aggregate.spread(values)) if len(values) > 1 else None


def _estimate(name: str, estimate: Estimate) -> dict[str, float | None]:
    low, high = estimate.interval or (None, None)
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}


def curves(study: Study) -> Rows:
    """The mean curve of each task and variant at every evaluation."""
    for task in study.tasks:
        for group in task.groups:
            band = task.band(group)
            for step, mean, std, n in zip(*band, strict=True):
                yield {"family": task.scale.family, "task": task.scale.task, "variant": study.label(group),
                       "unit": _unit(task), "finished": int(group in task.finished), "step": int(step), "mean": mean,
                       "std": std, "n": int(n)}  # fmt: skip


def family_curves(study: Study) -> Rows:
    """The mean curve over the tasks of each family, with its bootstrap band."""
    for scope in study.scopes:
        for over, found in (("steps", scope.step_curve), ("seconds", scope.wall_curve)):
            if found is None:
                continue
            for group, curve in found.curves.items():
                for i, x in enumerate(found.x):
                    yield {"family": scope.name, "variant": study.label(group), "over": over,
                           "x": x, "x_is": "steps" if found.in_steps else "share of the range compared",
                           "mean": curve.mean[i], "low": None if curve.low is None else curve.low[i],
                           "high": None if curve.high is None else curve.high[i]}  # fmt: skip


def final(study: Study) -> Rows:
    """The last evaluation, over finished runs: as a score, and raw (return, or success in percent)."""
    for task in study.tasks:
        for group, values in task.values("final").items():
            raw = np.array([run.raw[-1] for run in task.finished[group]])
            yield {"family": task.scale.family, "task": task.scale.task, "variant": study.label(group),
                   "n": len(values), "seeds": " ".join(str(run.seed) for run in task.finished[group]),
                   "step": int(min(run.steps[-1] for run in task.finished[group])),
                   "score_mean": float(values.mean()) if task.scale.bounds else None,
                   "score_std": _spread(values) if task.scale.bounds else None,
                   "raw_metric": task.scale.metric, "raw_mean": float(raw.mean()), "raw_std": _spread(raw)}  # fmt: skip


def auc(study: Study) -> Rows:
    """Areas under the curve of each task and variant, divided by the range they are taken over."""

    def columns(name: str, span: Range | None, values: np.ndarray | None) -> dict[str, Any]:
        if span is None or values is None:
            return {f"{name}_{part}": None for part in ("from", "to", "mean", "std")}
        return {f"{name}_from": span[0], f"{name}_to": span[1], f"{name}_mean": float(values.mean()),
                f"{name}_std": _spread(values)}  # fmt: skip

    for task in study.tasks:
        steps, wall = task.values("auc"), task.values("wall_auc")
        for group in task.finished:
            yield {"family": task.scale.family, "task": task.scale.task, "variant": study.label(group),
                   "unit": _unit(task), "n": len(task.finished[group]),
                   **columns("step", task.step_range, steps.get(group)),
                   **columns("wall", task.wall_range, wall.get(group))}  # fmt: skip


def iqm(study: Study) -> Rows:
    """Mean and interquartile mean over the tasks of a family that all its variants have, with intervals."""
    for scope in study.scopes:
        for metric in METRICS:
            comparison = scope.comparisons[metric]
            for row in comparison.rows:
                yield {"family": scope.name, "metric": metric, "variant": study.label(row.group),
                       "tasks": len(comparison.tasks), "of_tasks": comparison.all_tasks, "runs": row.runs,
                       **_estimate("mean", row.mean), **_estimate("iqm", row.iqm)}  # fmt: skip


def pairwise(study: Study) -> Rows:
    """Each variant against each other on the tasks that both have."""
    for scope in study.scopes:
        for metric in METRICS:
            for pair in scope.comparisons[metric].pairs:
                yield {"family": scope.name, "metric": metric, "variant": study.label(pair.group),
                       "against": study.label(pair.against), "tasks": pair.tasks, "difference": pair.difference,
                       **_estimate("probability", pair.probability), "higher_on": pair.higher,
                       "lower_on": pair.lower}  # fmt: skip


def runs(study: Study) -> Rows:
    """Every run found, whatever became of it, then the missing ones."""
    for run in study.runs:
        yield {"run": run.name, "status": run.status, "detail": run.detail, "task": run.task if run.scale else None,
               "variant": run.group.variant if run.group else None,
               "settings": run.group.settings if run.group else None,
               "seed": run.seed, "step": run.reached, "end_step": run.end_step or None, "evaluations": len(run.steps),
               "seconds": float(run.seconds[-1]) if len(run.seconds) else None, "faults": run.faults,
               "started": run.meta.get("time"), "resumes": run.resumes,
               "commit": run.origin("git").get("commit"), "folder": str(run.path)}  # fmt: skip
    for gap in study.missing:
        for seed in gap.seeds:
            yield {"status": "missing", "task": gap.task, "variant": gap.group.variant,
                   "settings": gap.group.settings, "seed": seed}  # fmt: skip


# Each with its columns, which stand in the file of an empty table too.
TABLES: dict[Table, str] = {
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


def to_csv(table: Table, study: Study) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, TABLES[table].split(), lineterminator="\n")
    writer.writeheader()
    for row in table(study):
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return text.getvalue()


def write_tables(study: Study, out: Path) -> list[Path]:
    """All tables as OUT/NAME.csv."""
    written = []
    for table in TABLES:
        path = out / f"{table.__name__}.csv"
        try:
            write_atomically(path, to_csv(table, study).encode())
        except OSError as error:
            raise UserError(f"cannot write {path}: {in_words(error)}") from error
        written.append(path)
    return written
