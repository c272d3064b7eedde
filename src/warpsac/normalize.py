"""The reward scale: one number that keeps discounted returns inside the value support.

Per environment G <- gamma (1 - ended) G + r, where `ended` is whether the previous step closed an
episode. The scale is 1 / max(sqrt(var(G) + 1e-8), max|G| / limit) over everything seen so far.
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
    """The state after one vector step; two groups of samples are merged exactly (parallel variance)."""
    returns = gamma * jnp.where(state.ended, 0.0, state.returns) + reward
    size = returns.shape[0]
    total = state.count + size
    delta = returns.mean() - state.mean
    spread = state.var * state.count + returns.var() * size + jnp.square(delta) * state.count * size / total
    return RewardScale(
        returns=returns,
        ended=ended,
        mean=state.mean + delta * size / total,
        var=spread / total,
        count=total,
        largest=jnp.maximum(state.largest, jnp.abs(returns).max()),
    )


def forget_episodes(state: RewardScale, mask: Array) -> RewardScale:
    """Environments that were started anew: their running return begins at zero."""
    return state._replace(ended=state.ended | mask)


def scale(state: RewardScale, limit: float) -> Array:
    return 1.0 / jnp.maximum(jnp.sqrt(state.var + 1e-8), state.largest / limit)
