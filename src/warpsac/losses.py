"""One function per equation of the learner. All arrays are float32."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from warpsac.types import Array


def value_support(atoms: int, limit: float) -> Array:
    """z_i, evenly spaced from -limit to limit."""
    return jnp.linspace(-limit, limit, atoms, dtype=jnp.float32)


def squashed_gaussian(mean: Array, log_std: Array, noise: Array) -> tuple[Array, Array]:
    """Action a = tanh(u), u = mean + std * noise, and its log-density.

    log pi(a) = sum_j [ log N(u_j; mean_j, std_j) - 2 (log 2 - u_j - softplus(-2 u_j)) ]
    """
    u = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
    log_tanh_slope = 2 * (math.log(2) - u - jax.nn.softplus(-2 * u))
    return jnp.tanh(u), (log_normal - log_tanh_slope).sum(-1)


def target_entropy(action_dim: int, std: float) -> float:
    """H_target = 0.5 |A| log(2 pi e std^2)."""
    return 0.5 * action_dim * math.log(2 * math.pi * math.e * std**2)


def target_atoms(reward: Array, discount: Array, log_prob: Array, alpha: Array, support: Array, limit: float) -> Array:
    """clip(r + discount * (z - alpha log pi(a'|s')), -limit, limit), [B, atoms].

    `discount` is gamma^k, and 0 after a termination: nothing is bootstrapped there.
    """
    shifted = support - (alpha * log_prob)[..., None]
    return jnp.clip(reward[..., None] + discount[..., None] * shifted, -limit, limit)


def project_onto_support(probs: Array, atoms: Array, support: Array) -> Array:
    """The distribution {atoms_i with probs_i} moved onto the support by linear interpolation.

    out_j = sum_i probs_i * max(0, 1 - |atoms_i - z_j| / dz): a mass splits between its two neighbours.
    """
    spacing = support[1] - support[0]
    position = (atoms - support[0]) / spacing
    # Rounding may push a clipped atom past the last one, where some of its mass would be lost.
    position = jnp.clip(position, 0, support.shape[0] - 1)
    cell = jnp.arange(support.shape[0], dtype=jnp.float32)
    share = jnp.maximum(0.0, 1.0 - jnp.abs(position[..., None, :] - cell[:, None]))
    return (share * probs[..., None, :]).sum(-1)


def expected_value(logits: Array, support: Array) -> Array:
    """E[Q] = sum_i softmax(logits)_i z_i."""
    return (jax.nn.softmax(logits) * support).sum(-1)


def pessimistic_distribution(logits: Array, support: Array) -> Array:
    """Per sample, the distribution of the member with the lowest expected value. [C, B, Z] -> [B, Z]."""
    probs = jax.nn.softmax(logits)
    if probs.shape[0] == 1:
        return probs[0]
    lowest = (probs * support).sum(-1).argmin(0)
    return jnp.take_along_axis(probs, lowest[None, :, None], axis=0)[0]


def cross_entropy(logits: Array, target: Array) -> Array:
    """-mean over members and batch of sum_i target_i log softmax(logits)_i."""
    return -(target * jax.nn.log_softmax(logits)).sum(-1).mean()


def actor_objective(log_prob: Array, alpha: Array, member_values: Array) -> Array:
    """mean(alpha log pi - min over critics of E[Q]); member_values is [C, B]."""
    return (alpha * log_prob - member_values.min(0)).mean()


def temperature_gradient(log_alpha: Array, entropy: Array, entropy_target: float) -> Array:
    """d/d(log alpha) of alpha (H - H_target), with no gradient through H."""
    return jnp.exp(log_alpha) * (entropy - entropy_target)


def cosine(start: float, end: float, fraction: Array) -> Array:
    """end + (start - end) (1 + cos(pi x)) / 2, x the elapsed fraction of the horizon, held at its end."""
    return end + (start - end) * (1 + jnp.cos(jnp.pi * jnp.clip(fraction, 0, 1))) / 2
