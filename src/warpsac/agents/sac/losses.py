"""One function per equation of the learner. All arrays are float32."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.types import Array


def value_support(atoms: int, limit: float) -> Array:
    """z_i, evenly spaced from -limit to limit."""
    return jnp.asarray(np.linspace(-limit, limit, atoms, dtype=np.float32))


def log_tanh_slope(u: Array) -> Array:
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), in a form that does not overflow."""
    return 2 * (math.log(2) - u - jax.nn.softplus(-2 * u))


def squashed_gaussian(mean: Array, log_std: Array, noise: Array) -> tuple[Array, Array]:
    """Action a = tanh(u), u = mean + std * noise, and its log-density.

    log pi(a) = sum_j [ log N(u_j; mean_j, std_j) - log(1 - tanh(u_j)^2) ]
    """
    u = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
    log_slope = log_tanh_slope(u)  # before tanh: in another order XLA rounds otherwise, and runs of a seed change
    return jnp.tanh(u), (log_normal - log_slope).sum(-1)


def target_entropy(action_dim: int, std: float) -> float:
    """H_target = 0.5 |A| log(2 pi e std^2)."""
    return 0.5 * action_dim * math.log(2 * math.pi * math.e * std**2)


def target_distribution(
    probs: Array, reward: Array, discount: Array, entropy_bonus: Array, support: Array, least_discount: float
) -> Array:
    """The Bellman target on the support, [B, Z]: each atom z_i of the next state's distribution `probs`
    moves to clip(r + discount * (z_i + entropy_bonus)) and its mass splits between its two neighbours.

        out_j = sum_i probs_i * max(0, 1 - |c_i - j|),   c_i = clip(u_i, 0, Z - 1)
        u_i = (r + discount * (z_i + entropy_bonus) - z_0) / dz = u_0 + discount * i

    `discount` is gamma^k, and 0 after a termination: then all mass falls on the reward. `entropy_bonus` is
    -alpha log pi(a'|s'). The atoms stay evenly spaced, `discount` cells apart, so inside the support only
    those around (j - u_0) / discount can reach cell j: about 2 / discount + 1 of them are looked at, which
    is what `least_discount`, the smallest non-zero discount there can be, is for.
    """
    count = support.shape[0]
    cell = np.arange(count, dtype=np.float32)
    spacing = (support[-1] - support[0]) / (count - 1)
    u_0 = ((reward + discount * (support[0] + entropy_bonus) - support[0]) / spacing)[:, None]
    step = discount[:, None]

    # Inside the support: the few atoms that can reach each cell. Mass and place come by one gather: a
    # compiler may compute `first` twice, rounded differently, and must not pair one atom's mass with
    # another's place.
    table = jnp.stack([probs, u_0 + step * cell], axis=-1)
    window = count if least_discount <= 0 else min(count, math.floor(2 / least_discount) + 3)
    first = jnp.floor((cell - 1 - u_0) / jnp.where(step > 0, step, 1.0))
    first = jnp.clip(first, 0, count - window)
    inside = jnp.zeros_like(probs)
    for offset in range(window):
        atom = (first + offset).astype(jnp.int32)[..., None]
        mass, place = jnp.moveaxis(jnp.take_along_axis(table, atom, axis=1, mode="promise_in_bounds"), -1, 0)
        inside += mass * jnp.maximum(0.0, 1.0 - jnp.abs(place - cell))
    inside = jnp.where(step > 0, inside, jnp.maximum(0.0, 1.0 - jnp.abs(u_0 - cell)))

    # At both ends: all that was clipped there as well.
    u = u_0 + step * cell
    low = (probs * jnp.clip(1.0 - u, 0.0, 1.0)).sum(1, keepdims=True)
    high = (probs * jnp.clip(u - (count - 2), 0.0, 1.0)).sum(1, keepdims=True)
    return jnp.where(cell == 0, low, jnp.where(cell == count - 1, high, inside))


def expected_value(logits: Array, support: Array) -> Array:
    """E[Q] = sum_i softmax(logits)_i z_i."""
    return (jax.nn.softmax(logits) * support).sum(-1)


_FIRST = np.asarray([[1.0], [0.0]], np.float32)  # of two members


class Pessimism(NamedTuple):
    """How two critics become one value: numbers that are known when the program is made, or data of it."""

    degree: float | Array = 1.0
    """1: the lower of the two; 0: their mean; between: p (lower) + (1 - p) mean."""
    single: bool | Array = False
    """The first critic alone."""

    @property
    def takes_the_lower(self) -> bool:
        return self.single is False and isinstance(self.degree, float) and self.degree == 1

    def weights(self, values: Array) -> Array:
        """How much each of two members counts, [2, B]: the lower one (1 + p) / 2, the other (1 - p) / 2."""
        lower = jnp.stack([values[0] <= values[1], values[0] > values[1]])
        return jnp.where(self.single, _FIRST, (1 + self.degree * jnp.where(lower, 1.0, -1.0)) / 2)


THE_LOWER = Pessimism()


def pessimistic_distribution(logits: Array, support: Array, pessimism: Pessimism = THE_LOWER) -> Array:
    """Per sample, the distribution of the member with the lowest expected value, or as much of both as `pessimism`
    says. [C, B, Z] -> [B, Z]."""
    probs = jax.nn.softmax(logits)
    if probs.shape[0] == 1:
        return probs[0]
    values = (probs * support).sum(-1)
    if pessimism.takes_the_lower:
        return jnp.take_along_axis(probs, values.argmin(0)[None, :, None], axis=0)[0]
    return (pessimism.weights(values)[..., None] * probs).sum(0)


def cross_entropy(logits: Array, target: Array, pessimism: Pessimism = THE_LOWER) -> Array:
    """-mean over members and batch of sum_i target_i log softmax(logits)_i; only members that are learned count."""
    each = (target * jax.nn.log_softmax(logits)).sum(-1)
    if pessimism.single is not False and len(logits) == 2:
        each = jnp.where(pessimism.single, 2 * _FIRST, 1.0) * each
    return -each.mean()


def actor_objective(log_prob: Array, alpha: Array, member_values: Array, pessimism: Pessimism = THE_LOWER) -> Array:
    """mean(alpha log pi - min over critics of E[Q]), or what `pessimism` makes of them; member_values is [C, B]."""
    if len(member_values) == 1 or pessimism.takes_the_lower:
        value = member_values.min(0)
    else:
        value = (pessimism.weights(member_values) * member_values).sum(0)
    return (alpha * log_prob - value).mean()


def action_rate(mean: Array, next_mean: Array) -> Array:
    """mean over batch and action dimensions of (tanh(mean(s_{t+1})) - tanh(mean(s_t)))^2."""
    return jnp.square(jnp.tanh(next_mean) - jnp.tanh(mean)).mean()


def temperature_gradient(log_alpha: Array, entropy: Array, entropy_target: float) -> Array:
    """d/d(log alpha) of alpha (H - H_target), with no gradient through H."""
    return jnp.exp(log_alpha) * (entropy - entropy_target)


def cosine(start: float, end: float, fraction: Array) -> Array:
    """end + (start - end) (1 + cos(pi x)) / 2, x the elapsed fraction of the horizon, held at its end."""
    return end + (start - end) * (1 + jnp.cos(jnp.pi * jnp.clip(fraction, 0, 1))) / 2
