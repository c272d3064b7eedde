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
HIGHEST = 1e302  # value that a chart can show: its axes must be finite in raw units too

Json = dict[str, Any]
Bound = np.ndarray | None


def _rounded(values: np.ndarray, digits: int = 5) -> list[float | int | None]:
    """Whole numbers exactly, so that a step is shown as it was; None for what is not finite."""
    short = lambda value: int(value) if is_whole(value) else float(f"{value:.{digits}g}")
    return [short(value) if math.isfinite(value) else None for value in values.tolist()]


def charts(study: Study, is_published: bool) -> Json:
    """All charts by the id of their place in the page."""
    numbers = {group: number for number, group in enumerate(study.groups)}
    scopes = {f"scope-{i}": _scope_chart(scope, numbers) for i, scope in enumerate(study.scopes)}
    tasks = {f"task-{i}": _task_chart(task, numbers, is_published) for i, task in enumerate(study.tasks)}
    return scopes | tasks


def _scope_chart(scope: Scope, numbers: dict[Group, int]) -> Json:
    chart: Json = {"y": "normalised score, mean over tasks", "band": "95 % interval"}
    for over, found in scope.curves.items():
        compared = "steps compared" if over == "steps" else "common wall time"
        chart["steps" if over == "steps" else "wall"] = {
            "x": "environment steps" if found.in_steps else f"share of the {compared}",
            "kind": "steps" if found.in_steps else "share",
            "series": [
                series for group, curve in found.curves.items() for series in _series(found.x, *curve, g=numbers[group])
            ],
        }
    return chart


def _series(x: np.ndarray, mean: np.ndarray, low: Bound, high: Bound, **about: Any) -> list[Json]:
    """One curve, with what else the script must know about it; empty if none of its points can be shown."""
    kept = np.flatnonzero(np.abs(mean) < HIGHEST)
    kept = kept[thinned(len(kept), MOST_POINTS)]
    if not len(kept):
        return []
    series = {"x": _rounded(x[kept], 6), "m": _rounded(mean[kept])} | about
    if low is not None and high is not None and not np.isnan(low[kept]).all():
        series |= {"lo": _rounded(low[kept]), "hi": _rounded(high[kept])}
    if "n" in about:
        seeds = about["n"][kept].tolist()
        series["n"] = seeds[0] if len(set(seeds)) == 1 else seeds
    return [series]


def _band_series(band: Band, **about: Any) -> list[Json]:
    return _series(band.x, band.mean, band.mean - band.std, band.mean + band.std, n=band.seeds, **about)


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
        own += _band_series(task.band(group), **about)
        wall_band = task.wall_band(group)
        timed += _band_series(wall_band, **about) if wall_band else []
    overlay: list[Json] = []
    for variant, curve in published.curves(scale.task).items():
        low, mean, high = (scale.score(scale.factor * (curve.mean + side * curve.std)) for side in (-1, 0, 1))
        overlay += _series(curve.steps, mean, low, high, n=np.full(len(mean), curve.seeds), published=variant)
    chart["steps"] = {"x": "environment steps", "kind": "steps", "series": own + overlay}
    if timed:
        chart["wall"] = {"x": "wall time", "kind": "seconds", "series": timed}
    return chart
