"""The arithmetic of a report: curves on a common range, areas, interquartile means, bootstrap intervals.

Pure functions of NumPy arrays. A curve is a pair (x, y) with increasing x; it is linear between its points and unknown
outside them. "Strata" are the results of one variant on several tasks: one array of seeds for each task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 20_240_607  # of the bootstrap's random numbers: the same runs give the same report

Curve = tuple[np.ndarray, np.ndarray]
Strata = Sequence[np.ndarray]


class Interval(NamedTuple):
    low: float
    high: float


class Estimate(NamedTuple):
    """A number, and its bootstrap interval where the seeds allow one."""

    value: float
    interval: Interval | None = None

    @property
    def complement(self) -> Estimate:
        """Of a probability: that of the opposite."""
        mirrored = None if self.interval is None else Interval(1.0 - self.interval.high, 1.0 - self.interval.low)
        return Estimate(1.0 - self.value, mirrored)


# --- curves ---------------------------------------------------------------------------------------------


def common_range(axes: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """Where all curves are known: from the latest first point to the earliest last one; None if nowhere."""
    if not axes or any(len(x) == 0 for x in axes):
        return None
    start, stop = max(float(x[0]) for x in axes), min(float(x[-1]) for x in axes)
    return (start, stop) if stop > start else None


def at(curve: Curve, grid: np.ndarray) -> np.ndarray:
    """The curve's height at each point of the grid; NaN where it is unknown."""
    return np.interp(grid, *curve, left=np.nan, right=np.nan)


def mean_height(curve: Curve, start: float, stop: float) -> float:
    """The area under the curve between two points (trapezoids), divided by their distance."""
    x, _ = curve
    grid = np.concatenate([[start], x[(x > start) & (x < stop)], [stop]])
    return float(np.trapezoid(at(curve, grid), grid / (stop - start)))


def spread(values: np.ndarray) -> np.ndarray:
    """Sample standard deviation (divisor n - 1) along the first axis, without NaNs; NaN for a single value."""
    known = ~np.isnan(values)
    count = known.sum(0)
    mean = np.where(known, values, 0.0).sum(0) / np.maximum(count, 1)
    away = np.where(known, values - mean, 0.0)
    # Divided by a power of two, which changes no digit, the squares of all finite values are finite.
    scale = np.ldexp(1.0, min(int(np.frexp(np.abs(away).max(initial=0.0))[1]), 1023))
    squares = ((away / scale) ** 2).sum(0)
    deviation: np.ndarray = np.where(count > 1, scale * np.sqrt(squares / np.maximum(count - 1, 1)), np.nan)
    return deviation


def mean_and_spread(values: np.ndarray) -> tuple[float, float | None]:
    """None instead of the spread of a single value."""
    return float(values.mean()), float(spread(values)) if len(values) > 1 else None


class Band(NamedTuple):
    """Several seeds' curves as one: mean, sample standard deviation (NaN for one seed) and seeds at each x."""

    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    seeds: np.ndarray


def band(curves: Sequence[Curve], grid: np.ndarray | None = None) -> Band:
    """Mean and spread over curves; by default at every point that any of them has."""
    x = np.unique(np.concatenate([x for x, _ in curves])) if grid is None else grid
    heights = np.stack([at(curve, x) for curve in curves])
    return Band(x, np.nanmean(heights, 0), spread(heights), (~np.isnan(heights)).sum(0))


def thinned(length: int, most: int) -> np.ndarray:
    """Which of `length` points to draw: all, or `most` evenly spaced ones with both ends."""
    return np.arange(length) if length <= most else np.linspace(0, length - 1, most).round().astype(int)


# --- statistics over tasks and seeds --------------------------------------------------------------------


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean without the lowest and the highest quarter of the values (a quarter rounded down); last axis."""
    ordered = np.sort(values, axis=-1)
    cut = values.shape[-1] // 4
    return ordered[..., cut : values.shape[-1] - cut].mean(-1)


def _draws(generator: np.random.Generator, seeds: int) -> np.ndarray:
    """Seeds drawn with replacement, [RESAMPLES, seeds]."""
    return generator.integers(0, seeds, (RESAMPLES, seeds))


def _weights(generator: np.random.Generator, seeds: int) -> np.ndarray:
    """The share of each seed in each resample, [RESAMPLES, seeds]."""
    return (_draws(generator, seeds)[:, :, None] == np.arange(seeds)).mean(1)


def _percentiles(resamples: np.ndarray) -> np.ndarray:
    tail = 100 * (1 - CONFIDENCE) / 2
    return np.percentile(resamples, [tail, 100 - tail], axis=0)


def _interval(resamples: np.ndarray) -> Interval | None:
    """None if an end is not finite, as for huge results."""
    ends = _percentiles(resamples)
    return Interval(*ends.tolist()) if np.isfinite(ends).all() else None


def _resampled(strata: Strata, statistic: Callable[[list[np.ndarray]], np.ndarray]) -> Interval | None:
    """The interval of a statistic when each task's seeds are resampled; None if a task has only one."""
    if min(len(seeds) for seeds in strata) < 2:
        return None
    generator = np.random.default_rng(SEED)
    return _interval(statistic([seeds[_draws(generator, len(seeds))] for seeds in strata]))


def mean_estimate(strata: Strata) -> Estimate:
    """Mean over tasks of the mean over seeds."""
    value = float(np.mean([seeds.mean() for seeds in strata]))
    return Estimate(value, _resampled(strata, lambda drawn: np.mean([seeds.mean(1) for seeds in drawn], axis=0)))


def iqm_estimate(strata: Strata) -> Estimate:
    """Interquartile mean over all runs of all tasks."""
    value = float(interquartile_mean(np.concatenate(list(strata))))
    return Estimate(value, _resampled(strata, lambda drawn: interquartile_mean(np.concatenate(drawn, axis=1))))


def improvement(ours: Strata, theirs: Strata) -> Estimate:
    """The chance that a run of ours beats one of theirs on the same task (equal counts half), mean over tasks."""
    wins = [(x[:, None] > y) + (x[:, None] == y) / 2 for x, y in zip(ours, theirs, strict=True)]
    value = float(np.mean([table.mean() for table in wins]))
    if min(min(table.shape) for table in wins) < 2:
        return Estimate(value)
    generator = np.random.default_rng(SEED)
    resampled = [
        np.einsum("bi,ij,bj->b", _weights(generator, table.shape[0]), table, _weights(generator, table.shape[1]))
        for table in wins
    ]
    return Estimate(value, _interval(np.mean(resampled, axis=0)))


class MeanCurve(NamedTuple):
    mean: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


def mean_curve(heights: Sequence[np.ndarray]) -> MeanCurve:
    """Mean over tasks of curves on one grid, each task's as [seeds, points], with a bootstrap band."""
    mean = np.mean([seeds.mean(0) for seeds in heights], axis=0)
    if min(len(seeds) for seeds in heights) < 2:
        return MeanCurve(mean, None, None)
    generator = np.random.default_rng(SEED)
    return MeanCurve(mean, *_percentiles(np.mean([_weights(generator, len(s)) @ s for s in heights], axis=0)))
