"""Toy tasks written in JAX, for tests of the fused loop without a simulator.

probe-native           a point driven to the origin by its acceleration, random start, 25 steps
probe-native-faulty    the same; every 40th step of environment 0 returns NaN
probe-native-broken    the same; the fourth step of every episode of environment 0 returns NaN
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import EnvSpec
from warpsac.envs.names import Target
from warpsac.types import Array, ObsViews, StepResult

LIMIT = 25
FAULT_EVERY = 40


class State(NamedTuple):
    point: Array  # float32 [N, 4]: position, velocity
    steps: Array  # int32 [N], of the running episode
    count: Array  # int32, steps of the simulator
    key: Array  # uint32 [2]


class JaxPoint:
    """Each episode's start is drawn from the simulator's own step count: a state restores it exactly."""

    def __init__(self, task: str, num_envs: int):
        self._task = task
        self.spec = EnvSpec(
            task=task,
            family="probe-native",
            num_envs=num_envs,
            views=ObsViews(obs_dim=6, actor_dim=4),
            action_dim=2,
            action_low=(-1.0,) * 2,
            action_high=(1.0,) * 2,
            episode_limit=LIMIT,
            has_success=True,
            restorable=True,
            lockstep=True,
        )

    def reset(self, key: Array) -> tuple[State, Array]:
        count = jnp.zeros((), jnp.int32)
        words = jax.random.key_data(key)
        point = self._start(words, count)
        return State(point, jnp.zeros(self.spec.num_envs, jnp.int32), count, words), self._observation(point)

    def step(self, state: State, action: Array) -> tuple[State, StepResult]:
        count, steps = state.count + 1, state.steps + 1
        velocity = 0.8 * state.point[:, 2:] + 0.2 * action
        point = jnp.concatenate([state.point[:, :2] + 0.3 * velocity, velocity], axis=1)
        distance = jnp.linalg.norm(point[:, :2], axis=1)
        faulty = jnp.zeros(self.spec.num_envs, bool)
        if self._task == "probe-native-faulty":
            faulty = faulty.at[0].set(count % FAULT_EVERY == 0)
        elif self._task == "probe-native-broken":
            faulty = faulty.at[0].set(steps[0] == 4)
        terminated = (distance > 3) & ~faulty
        truncated = (steps >= LIMIT) & ~terminated & ~faulty
        over = terminated | truncated | faulty
        final = jnp.where(faulty[:, None], jnp.nan, self._observation(point))
        point = jnp.where(over[:, None], self._start(state.key, count), point)
        result = StepResult(
            obs=self._observation(point),
            reward=jnp.where(faulty, 0.0, -distance - 10.0 * terminated),
            terminated=terminated,
            truncated=truncated,
            final_obs=jnp.where(faulty[:, None], 0.0, final),
            success=distance < 0.1,
            faulty=faulty,
        )
        return State(point, jnp.where(over, 0, steps), count, state.key), result

    def _start(self, words: Array, count: Array) -> Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(words), count)
        place = jax.random.uniform(key, (self.spec.num_envs, 2), minval=-1.0, maxval=1.0)
        return jnp.concatenate([place, jnp.zeros_like(place)], axis=1)

    def _observation(self, point: Array) -> Array:
        """The critic sees the squared position as well."""
        return jnp.concatenate([point, jnp.square(point[:, :2])], axis=1)


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> JaxPoint:
    return JaxPoint(target.name, num_envs)
