"""A cap on the norm of weights in place of the norm itself: `--learner.norm-cap C`, with `learner.projection`.

BatchNorm and RMSNorm behind them make networks blind to the length of most weights; what an update changes is their
direction, by about rate * step / norm. Projection keeps the norm at 1, and with it the effective learning rate high;
without it norms grow, and the effective learning rate falls by itself, further and further. Between the two: after each
optimizer step every norm is brought into [1, f] (`networks.project`), where the cap f follows the effective learning
rate. With u the decayed mean square root of the squared optimizer steps of the kernels (Adam's steps: 1 where gradients
agree, a fifth where they are noise) and rate_0 the first learning rate

    effective(f) = (rate / rate_0) u / f^2
    f = the cap at which effective(f) = 1 / C^2, within [1, C]:    f = clip(C sqrt(rate / rate_0 * u), 1, C)    (`cap`)

So weights may grow to C times the unit norm while steps are long; the cap is tightened as the schedule and noise make
steps short, and what an update turns never falls below 1 / C^2 of a full step. C = 1 is projection as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from warpsac.agents.networks import Network
from warpsac.types import Array

METRICS = ("learner/norm_cap_actor", "learner/norm_cap_critic")


class StepSizes(NamedTuple):
    """u of a learner's networks; all members of an ensemble have one."""

    actor: Array
    critic: Array


def initial() -> StepSizes:
    """Adam's first step is 1 in every weight."""
    return StepSizes(jnp.ones((), jnp.float32), jnp.ones((), jnp.float32))


def step_size(before: Network, after: Network, rate: Array) -> Array:
    """sqrt(mean over all kernels of step^2), step = (before - after) / rate."""
    squares = [jnp.square((b - a) / rate) for b, a in zip(before.kernels, after.kernels, strict=True)]
    return jnp.sqrt(sum(square.sum() for square in squares) / sum(square.size for square in squares))


def cap(limit: float | Array, rate: Array, first_rate: float, size: Array) -> Array:
    """f = clip(C sqrt(rate / rate_0 * u), 1, C)."""
    return jnp.clip(limit * jnp.sqrt(rate / first_rate * size), 1.0, limit)
