"""Running statistics: of discounted returns, which give the reward scale, and of observations.

The reward scale is one number that keeps discounted returns inside the value support. Per environment
G <- gamma (1 - ended) G + r, where `ended` is whether the previous step closed an episode. The scale is
1 / max(sqrt(var(G) + 1e-8), max|G| / limit) over everything seen so far.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from warpsac.types import Array


class RewardScale(NamedTuple):
    returns: Array  # float32 [N], the running discounted return G
    ended: Array  # bool [N], the last step closed an episode
    mean: Array  # float32 [], of G over environments and time
    var: Array  # float32 []
    count: Array  # float32 []
    largest: Array  # float32 [], all-time max |G|


class ObsMoments(NamedTuple):
    """Mean and biased variance of every observation so far; of none: 0 and 1."""

    mean: Array  # float32 [D]
    var: Array  # float32 [D]
    count: Array  # float32 []


def merged(mean: Array, var: Array, count: Array, samples: Array) -> tuple[Array, Array, Array]:
    """Mean, biased variance and count after `samples` [M, ...] as well: two groups merged exactly."""
    size = samples.shape[0]
    total = count + size
    delta = samples.mean(0) - mean
    spread = var * count + samples.var(0) * size + jnp.square(delta) * count * size / total
    return mean + delta * size / total, spread / total, total


def no_observations(obs_dim: int) -> ObsMoments:
    return ObsMoments(jnp.zeros(obs_dim, jnp.float32), jnp.ones(obs_dim, jnp.float32), jnp.zeros((), jnp.float32))


def observe_batch(moments: ObsMoments, obs: Array) -> ObsMoments:
    """The moments after a batch of observations [M, D]."""
    return ObsMoments(*merged(*moments, obs))


def init(num_envs: int) -> RewardScale:
    return RewardScale(
        returns=jnp.zeros(num_envs, jnp.float32),
        ended=jnp.zeros(num_envs, bool),
        mean=jnp.zeros((), jnp.float32),
        var=jnp.ones((), jnp.float32),
        count=jnp.full((), 1e-4, jnp.float32),
        largest=jnp.zeros((), jnp.float32),
    )


def observe(state: RewardScale, reward: Array, ended: Array, gamma: float) -> RewardScale:
    """The state after one vector step."""
    returns = gamma * jnp.where(state.ended, 0.0, state.returns) + reward
    mean, var, count = merged(state.mean, state.var, state.count, returns)
    return RewardScale(
        returns=returns,
        ended=ended,
        mean=mean,
        var=var,
        count=count,
        largest=jnp.maximum(state.largest, jnp.abs(returns).max()),
    )


def forget_episodes(state: RewardScale, mask: Array) -> RewardScale:
    """Environments that were restarted: their running return starts at zero."""
    return state._replace(ended=state.ended | mask)


def scale(state: RewardScale, limit: float) -> Array:
    return 1.0 / jnp.maximum(jnp.sqrt(state.var + 1e-8), state.largest / limit)
