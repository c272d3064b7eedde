"""What the page's charts are drawn from, as plain JSON: curves with few enough points and digits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from warpsac.envs import published
from warpsac.report.aggregate import Band, thinned
from warpsac.report.groups import Group
from warpsac.report.numerals import is_whole
from warpsac.report.study import Scope, Study, TaskResults

MOST_POINTS = 160  # of one curve: more cannot be told apart in a chart of this size
DIGITS = 5
HIGHEST = 1e302  # that a chart can show: its axes must be finite in raw units too

Json = dict[str, Any]


def numbers(values: np.ndarray) -> list[float | int | None]:
    """Rounded, None where there is no number."""
    rounded = (float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in values.tolist())
    return [int(value) if value is not None and is_whole(value) else value for value in rounded]


def axis(values: np.ndarray) -> list[float | int]:
    """Positions are kept exactly where they are whole: a step must be told as it was."""
    return [int(value) if is_whole(value) else float(f"{value:.6g}") for value in values.tolist()]


def charts(study: Study, is_published: bool) -> Json:
    """All charts by the id of their place in the page."""
    index = {group: number for number, group in enumerate(study.groups)}
    drawn: Json = {}
    for number, scope in enumerate(study.scopes):
        drawn[f"scope-{number}"] = _scope_chart(scope, index)
    for number, task in enumerate(study.tasks):
        drawn[f"task-{number}"] = _task_chart(task, index, is_published)
    return drawn


def _scope_chart(scope: Scope, index: dict[Group, int]) -> Json:
    chart: Json = {"y": "normalised score, mean over tasks", "band": "95 % interval"}
    for side, found in (("steps", scope.step_curve), ("wall", scope.wall_curve)):
        if found is None:
            continue
        what = "steps compared" if side == "steps" else "common wall time"
        chart[side] = {
            "x": "environment steps" if found.in_steps else f"share of the {what}",
            "kind": "steps" if found.in_steps else "share",
            "series": [
                {
                    "g": index[group],
                    "x": axis(found.x),
                    "m": numbers(curve.mean),
                    **({"lo": numbers(curve.low), "hi": numbers(curve.high)}
                       if curve.low is not None and curve.high is not None else {}),
                }
                for group, curve in found.curves.items()
                if (np.abs(curve.mean) < HIGHEST).all()
            ],
        }  # fmt: skip
    return chart


def _series(band: Band, **about: Any) -> list[Json]:
    """A curve as it is drawn, with what is to be known `about` it; none if no point of it can be shown."""
    band = Band(*(values[np.abs(band.mean) < HIGHEST] for values in band))
    if not len(band.x):
        return []
    kept = thinned(len(band.x), MOST_POINTS)
    spread = {} if np.isnan(band.std[kept]).all() else {
        "lo": numbers((band.mean - band.std)[kept]), "hi": numbers((band.mean + band.std)[kept])
    }  # fmt: skip
    counts = band.seeds[kept]
    n = int(counts[0]) if (counts == counts[0]).all() else counts.tolist()
    return [{"x": axis(band.x[kept]), "m": numbers(band.mean[kept]), "n": n, **spread, **about}]


def _own_series(task: TaskResults, group: Group, number: int, band: Band | None) -> list[Json]:
    unfinished = {} if group in task.finished else {"unfinished": True}
    return [] if band is None else _series(band, g=number, **unfinished)


def _task_chart(task: TaskResults, index: dict[Group, int], is_published: bool) -> Json:
    scale = task.scale
    raw = "success, %" if scale.metric == "success" else "evaluation return"
    chart: Json = {"y": "normalised score" if scale.bounds else raw, "raw": raw, "band": "± 1 std over seeds"}
    if scale.bounds:
        chart["bounds"] = scale.bounds
    overlay = [series for variant, band in published_bands(task).items() for series in _series(band, published=variant)]
    steps = {"x": "environment steps", "kind": "steps"}
    if is_published:
        return chart | {"steps": steps | {"series": overlay}}
    numbered = [(group, index[group]) for group in task.groups]
    own = [series for group, i in numbered for series in _own_series(task, group, i, task.band(group))]
    chart["steps"] = steps | {"series": own + overlay}
    timed = [series for group, i in numbered for series in _own_series(task, group, i, task.wall_band(group))]
    if timed:
        chart["wall"] = {"x": "wall time", "kind": "seconds", "series": timed}
    return chart


def published_bands(task: TaskResults) -> dict[str, Band]:
    """The published curves of a task as scores; empty where there are none."""
    bands = {}
    for variant, curve in published.curves(task.scale.task).items():
        percent = 100.0 if task.scale.metric == "success" else 1.0
        mean = task.scale.score(percent * curve.mean)
        upper = task.scale.score(percent * (curve.mean + curve.std))
        bands[variant] = Band(curve.steps, mean, upper - mean, np.full(len(mean), curve.seeds))
    return bands
