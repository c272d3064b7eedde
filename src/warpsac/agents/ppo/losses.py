"""One function per equation of PPO. All arrays are float32; rows that do not count enter no mean."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.agents.sac.losses import log_tanh_slope
from warpsac.types import Array

RATE_RANGE = (1e-5, 1e-2)
RATE_FACTOR = 1.5
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(8)  # E[f(z)] = sum_k w_k f(x_k), z standard normal
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def log_density(mean: Array, log_std: Array, action: Array) -> Array:
    """log N(a; mean, std) = sum_j [ -((a_j - mean_j) / std_j)^2 / 2 - log std_j - log(2 pi) / 2 ]."""
    z = (action - mean) * jnp.exp(-log_std)
    return (-0.5 * jnp.square(z) - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def entropy(log_std: Array) -> Array:
    """H = sum_j [ log std_j + log(2 pi e) / 2 ]."""
    return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def squashed_entropy(mean: Array, log_std: Array) -> Array:
    """H of tanh(u), u ~ N(mean, std), for each row: H(u) + sum_j E[ log(1 - tanh(u_j)^2) ], by quadrature."""
    slopes = sum(w * log_tanh_slope(mean + jnp.exp(log_std) * x) for x, w in zip(NODES, WEIGHTS, strict=True))
    return entropy(log_std) + slopes.sum(-1)


def divergence(old_mean: Array, old_log_std: Array, mean: Array, log_std: Array) -> Array:
    """KL(old || new) = sum_j [ log(s / s_old) + (s_old^2 + (m_old - m)^2) / (2 s^2) - 1/2 ]."""
    ratio = jnp.exp(2 * (old_log_std - log_std))
    shift = jnp.square((old_mean - mean) * jnp.exp(-log_std))
    return (log_std - old_log_std + 0.5 * (ratio + shift - 1)).sum(-1)


def adapted_rate(rate: Array, kl: Array, desired: float) -> Array:
    """rate / 1.5 if kl > 2 desired, rate * 1.5 if kl < desired / 2, within RATE_RANGE."""
    low, high = RATE_RANGE
    slower, faster = jnp.maximum(low, rate / RATE_FACTOR), jnp.minimum(high, rate * RATE_FACTOR)
    return jnp.where(kl > 2 * desired, slower, jnp.where(kl < desired / 2, faster, rate))


def advantages(
    reward: Array, value: Array, next_value: Array, ended: Array, void: Array, gamma: float, decay: float
) -> Array:
    """Generalised advantage estimates [T, N].

        A_t = delta_t + gamma lambda (1 - ended_t) A_{t+1},   delta_t = r_t + gamma V'_t - V(o_t)

    V'_t is 0 after a termination, the value of the episode's last observation after a truncation. A void step
    has no advantage and hands none on: the step before it ends in the value of the observation between them.
    """

    def back(following: Array, step: Any) -> tuple[Array, Array]:
        delta, ended, void = step
        advantage = jnp.where(void, 0.0, delta + gamma * decay * jnp.where(ended, 0.0, following))
        return advantage, advantage

    delta = reward + gamma * next_value - value
    return jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, ended, void), reverse=True)[1]


def mean_of(x: Array, counts: Array) -> Array:
    """The mean over the rows that count; 0 if none does."""
    return jnp.where(counts, x, 0.0).sum() / jnp.maximum(counts.sum(), 1)


def standard_deviation(x: Array, counts: Array) -> Array:
    """Over the rows that count."""
    return jnp.sqrt(mean_of(jnp.square(x - mean_of(x, counts)), counts))


def standardized(advantage: Array, counts: Array) -> Array:
    """Mean 0 and standard deviation 1 over the rows that count."""
    return (advantage - mean_of(advantage, counts)) / (standard_deviation(advantage, counts) + 1e-8)


def clipped_objective(ratio: Array, advantage: Array, clip: float) -> Array:
    """-min(ratio A, clip(ratio, 1 - c, 1 + c) A), for each row."""
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def clipped_value_loss(value: Array, old_value: Array, target: Array, clip: float) -> Array:
    """max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2), for each row."""
    near = old_value + jnp.clip(value - old_value, -clip, clip)
    return jnp.maximum(jnp.square(value - target), jnp.square(near - target))
