"""Pessimism calibrated by returns: `--learner.pessimism calibrated`.

Two critics become one value between their mean (p = 0) and the lower of the two (p = 1). Here p follows from what the
critics said of a step and what came of it. For each of the newest complete windows (`replay.windows`) of K steps, in
units of scaled rewards, with c the reward scale, alpha the temperature, H the policy's entropy, Q the mean of both
online critics and (s, a) stored pairs:

    G     = sum_{j<K} gamma^j c r_j + alpha H sum_{1<=j<=K} gamma^j + gamma^K Q(s_K, a_K)       (`seen`)
    error = Q(s_0, a_0) - G

After a termination the last entropy bonus and the last term are absent. All sides are of now: today's critics, reward
scale, temperature and entropy, so that the difference is not that of two units. Q is of actions that were really taken,
and G of the policies of the last `length` steps, which may be worse than today's: then the error is a little too large,
and p on the careful side.

Once for each update that has windows, with U the updates of the horizon, e and v the decayed mean of the errors and of
their squares (time constant `MEMORY` U):

    p <- clip(p + SPEED / U * e / sqrt(v), 0, 1)                                                 (`adapted`)

e / sqrt(v) is the part of the errors that is bias, between -1 and 1 whatever the scale of values, and near 0 as long as
little was seen: e and v start at 0, and |e| <= sqrt(v) times the square root of the weight that they have collected.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp

from warpsac.replay.windows import Windows
from warpsac.types import Array

MEMORY = 0.01  # of the horizon's updates
SPEED = 50.0  # p moves from 0 to 1 in a fiftieth of the horizon if all error is bias
REST = 0.05  # what a window leaves to the value at its end
MOST = 256  # windows looked at in one update

METRICS = ("learner/pessimism", "value/bias")


class Calibration(NamedTuple):
    """Of one learner."""

    degree: Array  # p
    error: Array  # e
    square: Array  # v
    entropy: Array  # H, of the last update of the actor


def initial(entropy: float) -> Calibration:
    """As careful as can be, before anything was seen."""
    return Calibration(*(jnp.asarray(value, jnp.float32) for value in (1.0, 0.0, 0.0, entropy)))


def window_length(gamma: float, rows: int) -> int:
    """Steps after which gamma^K = `REST`, or as many as replay has room for."""
    steps = math.ceil(math.log(REST) / math.log(gamma)) if gamma > 0 else 1
    return max(1, min(steps, rows - 2))


def seen(windows: Windows, last: Array, gamma: float, scale: Array, bonus: Array) -> Array:
    """G of each window, [M]; `last` is Q(s_K, a_K), `bonus` is alpha H.

    sum_{j<K} gamma^j c r_j + bonus sum_{1<=j<=L} gamma^j + gamma^K last, where L = K, or K - 1 and no last term after a
    termination
    """
    steps, goes_on = windows.steps, ~windows.terminated
    j = jnp.arange(windows.reward.shape[-1])
    rewards = jnp.where(j < steps[:, None], gamma**j * scale * windows.reward, 0.0).sum(-1)
    bonuses = jnp.where(j + 1 < steps[:, None] + goes_on[:, None], gamma ** (j + 1), 0.0).sum(-1)
    return rewards + bonus * bonuses + jnp.where(goes_on, gamma**steps * last, 0.0)


def adapted(state: Calibration, error: Array, square: Array, counts: Array, horizon: int) -> Calibration:
    """After an update whose windows had this mean error and mean squared error; as before if there were none.

    e <- e + w (error - e), v <- v + w (square - v), w = 1 / (MEMORY U);  p <- clip(p + SPEED / U e / sqrt(v), 0, 1)
    """
    weight = jnp.where(counts > 0, min(1.0, 1 / (MEMORY * horizon)), 0.0)
    error = state.error + weight * (error - state.error)
    square = state.square + weight * (square - state.square)
    step = jnp.where(counts > 0, SPEED / horizon * error / jnp.sqrt(square + 1e-12), 0.0)
    return state._replace(degree=jnp.clip(state.degree + step, 0.0, 1.0), error=error, square=square)
