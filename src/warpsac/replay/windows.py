"""The newest stretches of experience, whole and in order: what a critic's predictions are compared with.

A window starts `length` steps before the newest step, in each of up to `most` environments, and holds the rewards until
its last step or the end of the episode. Where it does not end in a termination, it goes over into a stored step, whose
observation and action stand for all that came later:

    step         t        t+1      ...     t+K-1      t+K
    stored       o, a     o, a             o, a       o', a'      K = `length`, or the episode's end
    reward       r        r                r

    episode terminated by step t+f:   K = f + 1 rewards, nothing later
    episode truncated after step t+f: K = f rewards; step t+f itself is the last one, as no later action was taken

Like all of replay the functions are pure, and the same for NumPy and JAX arrays. Only integers are computed here, so
that it does not matter where.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from warpsac.replay import ring as replay
from warpsac.replay.ring import VOID, Ring, RingSpec
from warpsac.types import Array


class Windows(NamedTuple):
    """Windows of M environments, [S, M, ...]."""

    obs: Array  # float32 [2, D], at the start and at the end
    action: Array  # float32 [2, A]
    reward: Array  # float32 [length], raw; the first `steps` count
    steps: Array  # int32, K
    terminated: Array  # bool, nothing follows
    valid: Array  # bool, all of it is in replay


def newest(ring: Ring, spec: RingSpec, length: int, most: int, since: int = 0, xp: Any = jnp) -> Windows:
    """The newest windows; valid are those that start at step `since` or later, [S].

    With more environments than `most` others are taken at every step, in turn.
    """
    start, envs = ring.count - (length + 1), spec.num_envs
    seed = xp.arange(spec.num_seeds, dtype=xp.int32)[:, None]
    lane = (seed * envs + _looked_at(ring, spec, most, xp))[..., None]

    def at(step: Array) -> Array:
        """Places [S, M, ...] of steps counted from the start; before the first step any will do."""
        return (start + step) % spec.rows * (spec.num_seeds * envs) + lane

    every = at(xp.arange(length, dtype=xp.int32))
    if xp is not np:
        (every,) = replay.settle(ring.count, every)
    reward, end = replay.take(ring.reward, every, xp), replay.take(ring.end, every, xp)
    over = (end != 0).argmax(-1)[..., None]
    code = xp.take_along_axis(end, over, -1)
    steps = xp.where(code == 0, length, over + (code < 0)).astype(xp.int32)
    ends = at(xp.concatenate([xp.zeros_like(steps), steps], axis=-1))
    if xp is not np:
        (ends,) = replay.settle(ring.count, ends)
    there = (start >= since) & (start >= ring.oldest[:, None]) & (end[..., 0] != VOID)
    return Windows(
        obs=replay.take(ring.obs, ends, xp, spec.obs_dim).astype(xp.float32, copy=False),
        action=replay.take(ring.action, ends, xp, spec.action_dim),
        reward=reward,
        steps=steps[..., 0],
        terminated=code[..., 0] < 0,
        valid=there & (steps[..., 0] > 0),
    )


def acted_by(ring: Ring, spec: RingSpec, length: int, most: int, learners: int, xp: Any = jnp) -> Array:
    """bool [S, K, M]: which of K learners acted when the newest windows started."""
    assert ring.owner is not None
    owner = ring.owner[(ring.count - (length + 1)) % spec.rows][:, _looked_at(ring, spec, most, xp)]
    return owner[:, None] == xp.arange(learners, dtype=xp.int8)[:, None]


def _looked_at(ring: Ring, spec: RingSpec, most: int, xp: Any) -> Array:
    """int32 [M]: as many environments, evenly apart, in turn."""
    envs, every = spec.num_envs, xp.arange(min(most, spec.num_envs), dtype=xp.int32)
    return every if envs <= most else (ring.count + every * (envs // most)) % envs
