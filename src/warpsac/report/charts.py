"""The data of the page's charts as plain JSON: curves with few enough points and digits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from warpsac.envs import published
from warpsac.report.aggregate import Band, thinned
from warpsac.report.groups import Group
from warpsac.report.numerals import is_whole
from warpsac.report.study import Scope, Study, TaskResults

MOST_POINTS = 160  # per curve: more cannot be distinguished in a chart of this size
DIGITS = 5
HIGHEST = 1e302  # value that a chart can show: its axes must be finite in raw units too

Json = dict[str, Any]


def _rounded(values: np.ndarray) -> list[float | int | None]:
    """Whole numbers as integers, None for what is not finite."""
    short = (float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in values.tolist())
    return [int(value) if value is not None and is_whole(value) else value for value in short]


def _positions(values: np.ndarray) -> list[float | int]:
    """Whole positions exactly: a step is shown as it was."""
    return [int(value) if is_whole(value) else float(f"{value:.6g}") for value in values.tolist()]


def charts(study: Study, is_published: bool) -> Json:
    """All charts by the id of their place in the page."""
    numbers = {group: number for number, group in enumerate(study.groups)}
    scopes = {f"scope-{i}": _scope_chart(scope, numbers) for i, scope in enumerate(study.scopes)}
    tasks = {f"task-{i}": _task_chart(task, numbers, is_published) for i, task in enumerate(study.tasks)}
    return scopes | tasks


def _scope_chart(scope: Scope, numbers: dict[Group, int]) -> Json:
    chart: Json = {"y": "normalised score, mean over tasks", "band": "95 % interval"}
    for side, found, compared in (
        ("steps", scope.step_curve, "steps compared"),
        ("wall", scope.wall_curve, "common wall time"),
    ):
        if found is None:
            continue
        series: list[Json] = []
        for group, curve in found.curves.items():
            if (np.abs(curve.mean) < HIGHEST).all():
                series.append({"g": numbers[group], "x": _positions(found.x), "m": _rounded(curve.mean)})
                if curve.low is not None and curve.high is not None:
                    series[-1] |= {"lo": _rounded(curve.low), "hi": _rounded(curve.high)}
        chart[side] = {
            "x": "environment steps" if found.in_steps else f"share of the {compared}",
            "kind": "steps" if found.in_steps else "share",
            "series": series,
        }
    return chart


def _series(band: Band, **about: Any) -> list[Json]:
    """One curve, with what else the script must know about it; empty if none of its points can be shown."""
    band = Band(*(values[np.abs(band.mean) < HIGHEST] for values in band))
    if not len(band.x):
        return []
    band = Band(*(values[thinned(len(band.x), MOST_POINTS)] for values in band))
    same_seeds = (band.seeds == band.seeds[0]).all()
    series = {
        "x": _positions(band.x),
        "m": _rounded(band.mean),
        "n": int(band.seeds[0]) if same_seeds else band.seeds.tolist(),
    }
    if not np.isnan(band.std).all():
        series |= {"lo": _rounded(band.mean - band.std), "hi": _rounded(band.mean + band.std)}
    return [series | about]


def _task_chart(task: TaskResults, numbers: dict[Group, int], is_published: bool) -> Json:
    scale = task.scale
    raw = "success, %" if scale.metric == "success" else "evaluation return"
    chart: Json = {"y": "normalised score" if scale.bounds else raw, "raw": raw, "band": "± 1 std over seeds"}
    if scale.bounds:
        chart["bounds"] = scale.bounds
    own: list[Json] = []
    timed: list[Json] = []
    for group in [] if is_published else task.groups:
        about = {"g": numbers[group]} | ({} if group in task.finished else {"unfinished": True})
        own += _series(task.band(group), **about)
        wall_band = task.wall_band(group)
        timed += _series(wall_band, **about) if wall_band else []
    overlay = [series for variant, band in _published_bands(task) for series in _series(band, published=variant)]
    chart["steps"] = {"x": "environment steps", "kind": "steps", "series": own + overlay}
    if timed:
        chart["wall"] = {"x": "wall time", "kind": "seconds", "series": timed}
    return chart


def _published_bands(task: TaskResults) -> list[tuple[str, Band]]:
    """The published curves of a task as scores, by variant."""
    bands = []
    for variant, curve in published.curves(task.scale.task).items():
        mean = task.scale.score(task.scale.factor * curve.mean)
        upper = task.scale.score(task.scale.factor * (curve.mean + curve.std))
        bands.append((variant, Band(curve.steps, mean, upper - mean, np.full(len(mean), curve.seeds))))
    return bands
