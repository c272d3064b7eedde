"""A simulator written in JAX behind the host contract: for evaluation and watching, one step at a time."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from warpsac.envs.contract import Command, HostStep, JaxEnv, Scene
from warpsac.envs.jax.choose import choose
from warpsac.types import Restart, StepResult


def on_the_host(result: StepResult) -> HostStep:
    """A step of JAX arrays as NumPy arrays; environments whose step was void have been started anew."""
    result = StepResult(*(None if field is None else np.asarray(field) for field in result))
    if result.faulty is None:
        return HostStep(result, None, 0)
    # An episode that ended counts, even where its last observation is lost to replay.
    faulty = result.faulty & ~(result.terminated | result.truncated)
    restart = Restart(faulty, result.obs) if faulty.any() else None
    return HostStep(result._replace(faulty=None), restart, int(faulty.sum()))


class Stepwise:
    """Every episode begins anew, whatever the environments would return to by themselves: to count one over again
    would say less than it seems to."""

    def __init__(self, env: JaxEnv):
        self.spec = env.spec
        self._env: Any = env
        self._reset, self._step, self._choose = jax.jit(env.reset), jax.jit(env.step), jax.jit(choose)
        self._state: Any = None
        self._action: np.ndarray | None = None
        self._key: Any = None

    def reset(self, seed: int) -> np.ndarray:
        self._key = jax.random.key(np.uint32(seed))
        self._state, obs = self._reset(self._key)
        return np.asarray(obs)

    def send(self, action: np.ndarray) -> None:
        self._action = np.asarray(action)

    def recv(self) -> HostStep:
        assert self._action is not None, "recv without send"
        self._state, result = self._step(self._state, self._action)
        step = on_the_host(result)
        over = step.result.terminated | step.result.truncated
        if not over.any():
            return step
        self._key, key = jax.random.split(self._key)
        self._state, obs = self._choose(over, self._reset(key), (self._state, result.obs))
        return step._replace(result=step.result._replace(obs=np.asarray(obs)))

    def get_state(self) -> None:
        return None

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        raise NotImplementedError("episodes for evaluation are not resumed")

    def render(self) -> np.ndarray:
        return self._env.image(self._state)

    def scene(self) -> Scene | None:
        return self._env.scene(self._state) if hasattr(self._env, "scene") else None

    def command(self) -> Command | None:
        return self._env.command(self._state) if hasattr(self._env, "command") else None

    def steer(self, value: np.ndarray) -> None:
        self._state = self._env.steer(self._state, value)

    def close(self) -> None: ...
