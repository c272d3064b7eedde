"""Minibatches of which a part is drawn from the learner's own steps, where several learners share one replay.

A step is a learner's own if that learner acted in it: the ring keeps who did (`Ring.owner`). Own rows are drawn by
rejection. Up to `TRIES` transitions are drawn by the age law from all of replay, and the first own one is taken, so
that with k the learner and w the weight of the age A

    P(A, n) = w(A) / sum of w over k's own steps        if k acted in that step of environment n, else 0

exactly as far as one of the tries succeeds. Where none does (with probability (1 - share)^TRIES, share the weight of
k's own steps in replay) the last try is taken, whoever acted. Nothing is counted or stored for it, and only integers
are compared: host and device draw the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from warpsac.replay import ring as replay
from warpsac.replay.age import AgeLaw, Sampler
from warpsac.replay.ring import Ring, RingSpec
from warpsac.types import Array

TRIES = 16


class Own(NamedTuple):
    """How many rows of a minibatch are own steps, and whose."""

    rows: int
    learner: int

    def draws(self, size: int) -> int:
        """Transitions to draw for a minibatch of this size."""
        return size + (TRIES - 1) * self.rows


NONE = Own(0, 0)  # all rows are drawn from the steps of all learners


def order(size: int, rows: int) -> np.ndarray:
    """Where each row of a minibatch comes from, with the own ones last: they are spread evenly over it.

    So any part of its rows, such as the half that is mirrored, holds as large a share of them.
    """
    own = np.diff(np.arange(size + 1) * rows // size) == 1
    return np.where(own, size - rows + np.cumsum(own) - 1, np.cumsum(~own) - 1)


def chosen(ring: Ring, spec: RingSpec, age: Array, env: Array, own: Own, xp: Any = jnp) -> tuple[Array, Array]:
    """(age, env) of a minibatch, [S, B], from its `draws` [S, ...]: first those of all learners, then the tries."""
    rest = age.shape[1] - TRIES * own.rows
    tried_age, tried_env = (part[:, rest:].reshape(-1, own.rows, TRIES) for part in (age, env))
    mine = replay.acted_by(ring, spec, tried_age, tried_env, own.learner, xp)
    first = (mine | (np.arange(TRIES) == TRIES - 1)).argmax(-1)[..., None]
    places = order(rest + own.rows, own.rows)

    def row(part: Array, tried: Array) -> Array:
        return xp.concatenate([part[:, :rest], xp.take_along_axis(tried, first, -1)[..., 0]], axis=1)[:, places]

    return row(age, tried_age), row(env, tried_env)


def indices(
    ring: Ring, spec: RingSpec, law: AgeLaw, drawn: Array, sampler: Sampler, own: Own, xp: Any = jnp
) -> tuple[Array, Array]:
    """(age, env), int32 [S, B], from the random words of `own.draws`; without own rows those of `ring.indices`."""
    age, env = replay.indices(ring, spec, law, drawn, sampler, xp)
    return chosen(ring, spec, age, env, own, xp) if own.rows else (age, env)
