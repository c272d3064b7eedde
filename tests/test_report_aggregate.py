"""The arithmetic of reports: by hand on small numbers, and against slow obvious or independent code."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import integrate, stats

from warpsac.report import aggregate
from warpsac.report.aggregate import Interval


def line(*points: tuple[float, float]) -> aggregate.Curve:
    x, y = zip(*points)
    return np.array(x, float), np.array(y, float)


# --- curves


def test_mean_height_by_hand() -> None:
    curve = line((0, 0), (1, 1), (3, 1))
    assert aggregate.mean_height(curve, 0, 3) == pytest.approx((0.5 + 2) / 3)
    assert aggregate.mean_height(curve, 0, 1) == pytest.approx(0.5)
    # Ends between two points: from 0.5 to 2 the heights are 0.5, 1, 1.
    assert aggregate.mean_height(curve, 0.5, 2) == pytest.approx((0.375 + 1) / 1.5)
    assert aggregate.mean_height(line((10, 3), (20, 3)), 10, 20) == 3


def test_mean_height_is_the_integral_of_the_polygon() -> None:
    generator = np.random.default_rng(1)
    for _ in range(20):
        x = np.sort(generator.uniform(0, 10, 8))
        y = generator.normal(size=8)
        start, stop = np.sort(generator.uniform(x[0], x[-1], 2))
        corners = x[(x > start) & (x < stop)]
        area, _ = integrate.quad(lambda t, x=x, y=y: np.interp(t, x, y), start, stop, points=corners)
        assert aggregate.mean_height((x, y), start, stop) == pytest.approx(area / (stop - start), abs=1e-9)


def test_common_range() -> None:
    axes = [np.array([0.0, 5, 10]), np.array([1.0, 9]), np.array([0.5, 12])]
    assert aggregate.common_range(axes) == (1, 9)
    assert aggregate.common_range([np.array([0.0, 1]), np.array([2.0, 3])]) is None
    assert aggregate.common_range([np.array([4.0])]) is None
    assert aggregate.common_range([np.zeros(0)]) is None
    assert aggregate.common_range([]) is None


def test_a_curve_is_unknown_outside_its_points() -> None:
    heights = aggregate.at(line((1, 10), (3, 30)), np.array([0, 1, 2, 3, 4.0]))
    np.testing.assert_array_equal(heights, [np.nan, 10, 20, 30, np.nan])


def test_band_by_hand() -> None:
    one, other = line((0, 0), (10, 10)), line((0, 2), (5, 4))
    band = aggregate.band([one, other])
    np.testing.assert_allclose(band.x, [0, 5, 10])
    np.testing.assert_allclose(band.mean, [1, 4.5, 10])
    np.testing.assert_allclose(band.std, [2**0.5, 0.5**0.5, np.nan])  # one seed has no spread
    np.testing.assert_array_equal(band.seeds, [2, 2, 1])


def test_band_against_numpy() -> None:
    generator = np.random.default_rng(2)
    x, heights = np.arange(30.0), generator.normal(size=(5, 30))
    band = aggregate.band([(x, y) for y in heights])
    np.testing.assert_allclose(band.mean, heights.mean(0))
    np.testing.assert_allclose(band.std, heights.std(0, ddof=1))


def test_thinning_keeps_both_ends() -> None:
    np.testing.assert_array_equal(aggregate.thinned(4, 10), [0, 1, 2, 3])
    kept = aggregate.thinned(1000, 160)
    assert (len(kept), kept[0], kept[-1]) == (160, 0, 999)
    assert (np.diff(kept) > 0).all()


# --- statistics


@pytest.mark.parametrize("count", range(1, 25))
def test_interquartile_mean_against_scipy(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    assert aggregate.interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_interquartile_mean_by_hand() -> None:
    assert aggregate.interquartile_mean(np.array([100.0, 1, 2, 3])) == 2.5
    assert aggregate.interquartile_mean(np.array([-50, 4.0, 5, 6, 7, 8, 9, 900])) == 6.5
    np.testing.assert_allclose(aggregate.interquartile_mean(np.array([[0.0, 1, 2, 9], [5, 5, 5, 5]])), [1.5, 5])


def test_means_weigh_tasks_alike() -> None:
    strata = [np.array([1.0, 3.0]), np.array([10.0] * 6)]
    assert aggregate.mean_estimate(strata).value == 6.0
    assert aggregate.iqm_estimate(strata).value == pytest.approx(10)  # of 1 3 10 10 10 10 10 10 the middle four


def all_resamples(strata: list[np.ndarray]) -> list[list[np.ndarray]]:
    """Every equally likely way to resample each task's seeds."""
    each = [[task[list(draw)] for draw in itertools.product(range(len(task)), repeat=len(task))] for task in strata]
    return [list(choice) for choice in itertools.product(*each)]


def near(interval: Interval | None, resamples: np.ndarray) -> None:
    """The drawn interval is that of all possible draws, up to the noise of 2000 draws."""
    assert interval is not None
    tolerance = 0.02
    assert (resamples <= interval.low).mean() >= 0.025 - tolerance
    assert (resamples < interval.low).mean() <= 0.025 + tolerance
    assert (resamples >= interval.high).mean() >= 0.025 - tolerance
    assert (resamples > interval.high).mean() <= 0.025 + tolerance


def test_bootstrap_against_every_possible_draw() -> None:
    generator = np.random.default_rng(3)
    strata = [generator.normal(size=3), generator.normal(5, 2, size=4)]
    draws = all_resamples(strata)
    near(aggregate.mean_estimate(strata).interval, np.array([np.mean([t.mean() for t in d]) for d in draws]))
    near(aggregate.iqm_estimate(strata).interval, np.array([stats.trim_mean(np.concatenate(d), 0.25) for d in draws]))


def test_bootstrap_against_scipy() -> None:
    task = np.random.default_rng(4).normal(size=12)
    ours = aggregate.mean_estimate([task]).interval
    theirs = stats.bootstrap((task,), np.mean, method="percentile", n_resamples=20_000, rng=5).confidence_interval
    assert ours is not None
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.05)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(6)
    covered = 0
    for _ in range(200):
        interval = aggregate.mean_estimate([generator.normal(size=10) for _ in range(3)]).interval
        assert interval is not None
        covered += interval.low <= 0 <= interval.high
    assert 0.86 <= covered / 200 <= 0.98  # percentile intervals of ten seeds are known to be a little narrow


def test_one_seed_has_no_interval() -> None:
    strata = [np.array([1.0, 2.0]), np.array([3.0])]
    assert aggregate.mean_estimate(strata).interval is None
    assert aggregate.iqm_estimate(strata).interval is None
    assert aggregate.improvement(strata, strata).interval is None
    assert aggregate.mean_curve([np.ones((1, 4))]).low is None


def test_equal_runs_give_equal_intervals() -> None:
    strata = [np.array([0.1, 0.5, 0.7]), np.array([0.2, 0.3, 0.9])]
    assert aggregate.iqm_estimate(strata) == aggregate.iqm_estimate(strata)
    assert aggregate.mean_estimate([np.full(5, 0.5)]).interval == (0.5, 0.5)


def test_improvement_by_hand() -> None:
    ours, theirs = [np.array([1.0, 3.0])], [np.array([2.0, 3.0])]
    # 1>2 no, 1>3 no, 3>2 yes, 3=3 half.
    assert aggregate.improvement(ours, theirs).value == 1.5 / 4
    both = aggregate.improvement([*ours, np.array([9.0])], [*theirs, np.array([1.0, 2, 3])])
    assert both.value == pytest.approx((0.375 + 1) / 2)


def test_improvement_against_mann_whitney() -> None:
    generator = np.random.default_rng(7)
    ours, theirs = generator.normal(0.5, size=9).round(1), generator.normal(size=7).round(1)
    u = stats.mannwhitneyu(ours, theirs).statistic
    there, back = aggregate.improvement([ours], [theirs]), aggregate.improvement([theirs], [ours])
    assert there.value == pytest.approx(u / (9 * 7))
    assert there.value + back.value == pytest.approx(1)
    assert there.interval is not None
    assert there.interval.low < there.value < there.interval.high


def test_improvement_interval_against_every_possible_draw() -> None:
    ours, theirs = np.array([1.0, 2.0, 4.0]), np.array([0.0, 3.0])
    resamples = [
        np.mean([(np.sign(x - y) + 1) / 2 for x in one[0] for y in other[0]])
        for one in all_resamples([ours])
        for other in all_resamples([theirs])
    ]
    near(aggregate.improvement([ours], [theirs]).interval, np.array(resamples))


def test_mean_curve_agrees_with_its_points() -> None:
    generator = np.random.default_rng(8)
    heights = [generator.normal(size=(4, 6)), generator.normal(size=(5, 6))]
    curve = aggregate.mean_curve(heights)
    assert curve.low is not None
    assert curve.high is not None
    for i in range(6):
        point = aggregate.mean_estimate([task[:, i] for task in heights])
        assert curve.mean[i] == pytest.approx(point.value)
        assert (curve.low[i], curve.high[i]) == pytest.approx(point.interval)
