"""Your own environment in JAX: a pendulum to swing up, in one compiled program with the learner.

python examples/own_jax_env.py                                      train for a minute, here
warpsac check-env own_jax_env:Pendulum                              from this folder
warpsac train own_jax_env:Pendulum --env.num-envs 1024              on a GPU
warpsac train own_jax_env:Pendulum --task-config.length 0.5         keyword arguments of the class
warpsac play RUN                                                    a video of what `render` draws
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

STEP = 0.05  # seconds


class State(NamedTuple):
    angle: jax.Array  # 0 is upright
    speed: jax.Array


class Pendulum:
    action_size = 1
    action_low, action_high = -2.0, 2.0
    episode_limit = 200
    control_hz = 1 / STEP

    def __init__(self, length: float = 1.0):
        self.length = length
        self.observation_size = {"direction": 2, "speed": 1}  # named parts, in this order

    def reset(self, key):
        angle_key, speed_key = jax.random.split(key)
        angle = jax.random.uniform(angle_key, minval=-jnp.pi, maxval=jnp.pi)
        state = State(angle, jax.random.uniform(speed_key, minval=-1.0, maxval=1.0))
        return state, self.observe(state)

    def step(self, state, action):
        torque = action[0]
        angle = (state.angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
        reward = -(angle**2 + 0.1 * state.speed**2 + 0.001 * torque**2)
        acceleration = 15.0 / self.length * jnp.sin(angle) + 3.0 / self.length**2 * torque
        speed = jnp.clip(state.speed + STEP * acceleration, -8.0, 8.0)
        state = State(angle + STEP * speed, speed)
        terminated = False  # an episode ends at the limit only
        balanced = (jnp.abs(angle) < 0.1) & (jnp.abs(speed) < 0.3)
        return state, self.observe(state), reward, terminated, {"success": balanced}

    def observe(self, state):
        return {"direction": jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle)]), "speed": state.speed[None]}

    def render(self, state):
        rows, columns = np.mgrid[-1.2:1.2:240j, -1.2:1.2:240j]
        along = -rows * np.cos(state.angle) + columns * np.sin(state.angle)
        across = rows * np.sin(state.angle) + columns * np.cos(state.angle)
        rod = (np.abs(across) < 0.05) & (along > 0) & (along < 1)
        return np.where(rod[..., None], [200, 80, 60], 255).astype(np.uint8)


if __name__ == "__main__":
    from warpsac import train

    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    outcome = train(
        env=Pendulum, num_envs=8, profile="demo", total_steps=steps, learning_starts=min(1000, steps // 2),
        updates_per_step=4, eval={"every": steps // 2},
    )  # fmt: skip
    print(f"trained: {outcome.runs[0]}")
