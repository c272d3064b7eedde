"""The reward scale by hand, and against NumPy over all returns seen."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warpsac.agents.algorithm import RewardScale

GAMMA = 0.5


def observed(steps: list[tuple[list[float], list[bool]]], num_envs: int) -> tuple[RewardScale, list[list[float]]]:
    """The state after some vector steps of (rewards, ended), and the returns G on the way."""
    state, returns = RewardScale.initial(num_envs), []
    for reward, ended in steps:
        state = state.observe(jnp.asarray(reward, jnp.float32), jnp.asarray(ended), GAMMA)
        returns.append(state.returns.tolist())
    return state, returns


def test_returns_by_hand() -> None:
    """Two environments; the end of a step zeroes the return before the next reward is added."""
    state, returns = observed(
        [
            ([1.0, 2.0], [False, False]),
            ([1.0, 0.0], [False, True]),
            ([4.0, 8.0], [True, False]),
            ([-1.0, 2.0], [False, False]),
        ],
        num_envs=2,
    )
    assert returns == [[1.0, 2.0], [1.5, 1.0], [4.75, 8.0], [-1.0, 6.0]]
    assert float(state.largest) == 8.0
    assert state.ended.tolist() == [False, False]


def test_scale_by_hand() -> None:
    """Returns 1 and 3 beside a pseudo-count of 1e-4 samples of mean 0 and variance 1."""
    state, _ = observed([([1.0, 3.0], [False, False])], num_envs=2)
    count = 2 + 1e-4
    mean = (1 + 3) / count
    var = (1e-4 * (1 + mean**2) + (1 - mean) ** 2 + (3 - mean) ** 2) / count
    assert float(state.count) == pytest.approx(count)
    assert float(state.mean) == pytest.approx(mean, rel=1e-6)
    assert float(state.var) == pytest.approx(var, rel=1e-5)
    assert float(state.factor(5.0)) == pytest.approx(1 / math.sqrt(var + 1e-8), rel=1e-5)
    assert float(state.factor(1.5)) == pytest.approx(1.5 / 3, rel=1e-6)  # G_max / limit is larger


def test_largest_return_bounds_the_scale() -> None:
    """One rare return far beyond the spread: G_max / 5 decides, and keeps deciding."""
    steps = [([0.0, 0.0], [True, True])] * 50 + [([-40.0, 0.0], [True, True])] + [([0.0, 0.0], [True, True])] * 50
    state, _ = observed(steps, num_envs=2)
    assert float(state.largest) == 40.0
    assert math.sqrt(float(state.var)) < 8
    assert float(state.factor(5.0)) == pytest.approx(5 / 40)


def test_first_scale_is_one() -> None:
    state = RewardScale.initial(3)
    assert float(state.factor(5.0)) == pytest.approx(1.0)
    assert [float(x) for x in (state.mean, state.var, state.count, state.largest)] == pytest.approx([0, 1, 1e-4, 0])


def test_variance_is_that_of_all_returns() -> None:
    """Merging step by step gives NumPy's variance of everything at once (the pseudo-count fades)."""
    rng = np.random.default_rng(0)
    reward = rng.normal(3.0, 2.0, (400, 5)).astype(np.float32)
    ended = rng.random((400, 5)) < 0.05
    state, running, seen = RewardScale.initial(5), np.zeros(5), []
    observe = jax.jit(RewardScale.observe, static_argnames="gamma")
    for t in range(400):
        state = observe(state, reward[t], ended[t], gamma=0.97)
        before = ended[t - 1] if t else np.zeros(5, bool)
        running = 0.97 * np.where(before, 0.0, running) + reward[t]
        seen.append(running)
    assert float(state.count) == pytest.approx(2000, rel=1e-5)
    assert float(state.mean) == pytest.approx(np.mean(seen), rel=1e-4)
    assert float(state.var) == pytest.approx(np.var(seen), rel=1e-4)
    assert float(state.largest) == pytest.approx(np.abs(seen).max(), rel=1e-5)


def test_restarted_environments_forget_their_return() -> None:
    state, _ = observed([([2.0, 2.0, 2.0], [False, True, False])], num_envs=3)
    state = state.restart(jnp.asarray([True, False, False]))
    state = state.observe(jnp.ones(3), jnp.zeros(3, bool), GAMMA)
    assert state.returns.tolist() == [1.0, 1.0, 2.0]
