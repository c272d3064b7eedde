"""Each equation of the learner against a hand-computed number, a loop, or SciPy."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import quick
import slow_learner
from warpsac.agents.sac import losses

target_distribution = jax.jit(losses.target_distribution, static_argnames="least_discount")


def float32(x: object) -> jax.Array:
    return jnp.asarray(x, jnp.float32)


# --- the actor


def test_action_rate_and_its_slope_by_hand() -> None:
    """Two transitions of two dimensions; the actions are 0, 0.5 and -0.25, whose slopes are 1, 3/4 and 15/16."""
    mean = np.arctanh([[0.0, 0.5], [-0.25, 0.5]])
    following = np.arctanh([[0.5, 0.5], [0.5, 0.0]])
    value, slopes = jax.value_and_grad(losses.action_rate, argnums=(0, 1))(float32(mean), float32(following))
    assert value == pytest.approx((0.25 + 0 + 0.5625 + 0.25) / 4)
    np.testing.assert_allclose(slopes[0], [[-0.25 * 1, 0], [-0.375 * 15 / 16, 0.25 * 3 / 4]], atol=1e-6)
    np.testing.assert_allclose(slopes[1], [[0.25 * 3 / 4, 0], [0.375 * 3 / 4, -0.25 * 1]], atol=1e-6)


# --- the value distribution


def test_support() -> None:
    support = losses.value_support(101, 5.0)
    assert support.dtype == jnp.float32
    np.testing.assert_allclose(support, [-5 + 0.1 * i for i in range(101)], atol=1e-6)
    np.testing.assert_array_equal(losses.value_support(3, 2.0), [-2, 0, 2])


def looped_target(probs, reward, discount, bonus, atoms: int, limit: float) -> np.ndarray:
    """clip(r + discount (z + bonus), -limit, limit), atom by atom onto the support."""
    support = np.linspace(-limit, limit, atoms)
    moved = np.clip(reward[:, None] + discount[:, None] * (support + bonus[:, None]), -limit, limit)
    return slow_learner.onto_support(probs, moved, support)


@pytest.mark.parametrize(
    ("gamma", "n_step", "atoms"),
    [
        (0.99, 1, 101), (0.99, 3, 101), (0.9, 3, 101), (0.5, 1, 101), (0.1, 2, 101), (0.0, 1, 101),
        (0.99, 3, 2), (0.0, 1, 2), (0.97, 1, 21),
    ],
)  # fmt: skip
def test_target_distribution_is_the_looped_one(atoms: int, gamma: float, n_step: int) -> None:
    rng = np.random.default_rng(0)
    size, limit = 64, 5.0
    probs = rng.dirichlet(np.full(atoms, 0.3), size)
    reward = rng.normal(0, 4, size)
    reward[:6] = [0, 100, -100, 0.5, limit, -limit]
    discount = rng.choice([0.0] + [gamma**k for k in range(1, n_step + 1)], size)
    discount[:2] = gamma**n_step
    bonus = rng.normal(0, 1, size)
    bonus[0] = 0
    target = target_distribution(
        *map(float32, (probs, reward, discount, bonus)),
        losses.value_support(atoms, limit),
        least_discount=gamma**n_step,
    )
    np.testing.assert_allclose(target, looped_target(probs, reward, discount, bonus, atoms, limit), atol=2e-5)
    np.testing.assert_allclose(target.sum(1), 1, atol=1e-4)
    assert np.min(target) >= 0


def test_target_distribution_does_not_hang_on_the_compiler() -> None:
    """Rewards on the grid put atoms exactly between two windows, where rounding decides which one is read: the
    atom whose mass is read must be the one whose distance is taken, however the program was compiled."""
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.full(101, 0.3), 21)
    reward, discount, bonus = np.linspace(-1, 1, 21), np.full(21, 0.5), np.zeros(21)
    target = quick.jit(losses.target_distribution, static_argnames="least_discount")(
        *map(float32, (probs, reward, discount, bonus)), losses.value_support(101, 5.0), least_discount=0.5
    )
    np.testing.assert_allclose(target, looped_target(probs, reward, discount, bonus, 101, 5.0), atol=2e-5)


def test_target_distribution_by_hand() -> None:
    """Support -1, 0, 1; discount 1/2: the atoms move to r - 1/2, r, r + 1/2."""
    support = losses.value_support(3, 1.0)
    probs = float32([[0.5, 0.3, 0.2]] * 5)
    reward = float32([0.0, 0.25, 2.0, -0.4, 0.0])
    discount = float32([0.5, 0.5, 0.5, 0.0, 0.5])  # the fourth ended: its reward is all there is
    bonus = float32([0.0, 0.0, 0.0, 7.0, 1.0])  # the fifth moves on by 1/2 more: 0, 1/2, 1
    wanted = [
        [0.25, 0.25 + 0.3 + 0.1, 0.1],
        [0.5 * 0.25, 0.5 * 0.75 + 0.3 * 0.75 + 0.2 * 0.25, 0.3 * 0.25 + 0.2 * 0.75],
        [0.0, 0.0, 1.0],
        [0.4, 0.6, 0.0],
        [0.0, 0.5 + 0.15, 0.15 + 0.2],
    ]
    target = target_distribution(probs, reward, discount, bonus, support, least_discount=0.5)
    np.testing.assert_allclose(target, wanted, atol=1e-6)


def test_target_keeps_the_expected_value_inside_the_support() -> None:
    rng = np.random.default_rng(1)
    support = losses.value_support(101, 5.0)
    near_zero = np.abs(np.asarray(support)) < 3
    probs = rng.dirichlet(np.ones(101), 8) * near_zero
    probs /= probs.sum(1, keepdims=True)
    reward, bonus = rng.uniform(-1, 1, (2, 8))
    target = target_distribution(*map(float32, (probs, reward, np.full(8, 0.9), bonus)), support, least_discount=0.9)
    wanted = reward + 0.9 * ((probs * np.asarray(support)).sum(1) + bonus)
    np.testing.assert_allclose((target * support).sum(1), wanted, atol=1e-4)


def test_expected_value() -> None:
    logits = float32([[0.0, math.log(2), math.log(5)], [3.0, 3.0, 3.0]])
    np.testing.assert_allclose(losses.expected_value(logits, float32([-1, 0, 2])), [(-1 + 10) / 8, 1 / 3], rtol=1e-6)


def test_pessimistic_distribution_takes_the_lower_member_of_each_sample() -> None:
    """Chosen by expected value, not by any other order of the distributions."""
    probs = np.array(
        [
            [[0.1, 0.1, 0.8], [0.3, 0.4, 0.3]],  # expected values  0.7 and 0.0
            [[0.4, 0.0, 0.6], [0.2, 0.1, 0.7]],  # expected values  0.2 and 0.5
        ]
    )
    logits = float32(np.log(np.maximum(probs, 1e-30)) + 5.0)
    support = float32([-1, 0, 1])
    np.testing.assert_allclose(losses.pessimistic_distribution(logits, support), [probs[1, 0], probs[0, 1]], atol=1e-6)
    np.testing.assert_allclose(losses.pessimistic_distribution(logits[:1], support), probs[0], atol=1e-6)


def test_cross_entropy() -> None:
    target = np.array([[1.0, 0.0], [0.25, 0.75]])
    p = np.array([[[0.5, 0.5], [0.2, 0.8]], [[0.9, 0.1], [0.6, 0.4]]])  # [C, B, Z]
    first = -(math.log(0.5) + 0.25 * math.log(0.2) + 0.75 * math.log(0.8)) / 2
    second = -(math.log(0.9) + 0.25 * math.log(0.6) + 0.75 * math.log(0.4)) / 2
    value = losses.cross_entropy(float32(np.log(p) - 3.0), float32(target))
    assert float(value) == pytest.approx((first + second) / 2, rel=1e-6)


# --- the policy


def test_log_density_is_the_slope_of_the_distribution_function() -> None:
    """In one dimension: P(a <= x) = Phi((artanh x - mean) / std), differentiated numerically."""
    mean, log_std = 0.3, -0.7
    noise = np.linspace(-2.5, 2.5, 11)
    action, log_prob = losses.squashed_gaussian(
        float32(np.full((11, 1), mean)), float32(np.full((11, 1), log_std)), float32(noise[:, None])
    )
    exact = np.tanh(mean + np.exp(log_std) * noise)
    np.testing.assert_allclose(action[:, 0], exact, atol=1e-6)

    def cdf(x: np.ndarray) -> np.ndarray:
        return scipy.stats.norm.cdf(np.arctanh(x), mean, np.exp(log_std))

    slope = (cdf(exact + 1e-7) - cdf(exact - 1e-7)) / 2e-7
    np.testing.assert_allclose(np.exp(log_prob), slope, rtol=1e-4)


def test_log_density_sums_over_action_dimensions() -> None:
    rng = np.random.default_rng(2)
    mean, log_std, noise = rng.normal(0, 1, (3, 6, 4))
    log_std -= 0.5
    _, log_prob = losses.squashed_gaussian(*map(float32, (mean, log_std, noise)))
    u = mean + np.exp(log_std) * noise
    wanted = scipy.stats.norm.logpdf(u, mean, np.exp(log_std)) - np.log(1 - np.tanh(u) ** 2)
    np.testing.assert_allclose(log_prob, wanted.sum(1), rtol=1e-4, atol=1e-4)


def test_log_density_of_saturated_actions_is_finite() -> None:
    """Far out, 1 - tanh(u)^2 is 4 exp(-2|u|), which float32 would round to zero."""
    u = np.array([-60.0, -20.0, 20.0, 60.0])

    def total(mean: jax.Array) -> jax.Array:
        return losses.squashed_gaussian(mean, jnp.zeros((4, 1)), jnp.zeros((4, 1)))[1].sum()

    _, log_prob = losses.squashed_gaussian(float32(u[:, None]), jnp.zeros((4, 1)), jnp.zeros((4, 1)))
    wanted = -0.5 * math.log(2 * math.pi) - math.log(4) + 2 * np.abs(u)
    np.testing.assert_allclose(log_prob, wanted, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(total)(float32(u[:, None]))[:, 0], 2 * np.sign(u), rtol=1e-5)


def test_entropy_target_is_that_of_a_gaussian() -> None:
    assert losses.target_entropy(1, 0.15) == pytest.approx(scipy.stats.norm(0, 0.15).entropy())
    assert losses.target_entropy(6, 0.15) == pytest.approx(6 * -0.4781814, abs=1e-5)


def test_actor_objective() -> None:
    """Alpha log pi less the lower of both members' values, sample by sample."""
    values = float32([[1.0, 5.0, -2.0], [3.0, 2.0, -1.0]])
    log_prob = float32([0.5, -1.0, 2.0])
    wanted = ((0.1 * 0.5 - 1.0) + (0.1 * -1.0 - 2.0) + (0.1 * 2.0 + 2.0)) / 3
    assert float(losses.actor_objective(log_prob, float32(0.1), values)) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("entropy", "sign"), [(1.5, 1), (-4.0, -1)])
def test_temperature_falls_when_entropy_is_above_its_target(entropy: float, sign: int) -> None:
    log_alpha, target = math.log(0.01), -1.0
    gradient = float(losses.temperature_gradient(float32(log_alpha), float32(entropy), target))
    assert gradient == pytest.approx(0.01 * (entropy + 1.0), rel=1e-5)
    assert math.copysign(1, gradient) == sign


def test_cosine_schedule() -> None:
    rate = [float(losses.cosine(3e-4, 1.5e-4, float32(x))) for x in (0.0, 1 / 3, 0.5, 2 / 3, 1.0, 1.7)]
    wanted = [3e-4, 2.625e-4, 2.25e-4, 1.875e-4, 1.5e-4, 1.5e-4]
    assert rate == pytest.approx(wanted, rel=1e-5)
