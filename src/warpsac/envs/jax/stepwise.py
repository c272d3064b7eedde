"""A simulator written in JAX behind the host contract: for evaluation and watching, one step at a time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.envs.contract import Command, HostEnv, HostStep, JaxEnv, Scene
from warpsac.types import Restart, StepResult


def choose(mask: Any, yes: Any, no: Any) -> Any:
    """Of two pytrees with leaves [N, ...], `yes` in the rows of the mask [N] and `no` in the others. Leaves without
    one value per environment are those of `no`."""

    def choose_leaf(yes: Any, no: Any) -> Any:
        if yes.ndim == 0 or yes.shape[0] != mask.shape[0]:
            return no
        return jnp.where(mask.reshape((-1,) + (1,) * (yes.ndim - 1)), yes, no)

    return jax.tree.map(choose_leaf, yes, no)


def strong(tree: Any) -> Any:
    """Without weakly typed numbers, which simulators return in places: they would make the step compile twice."""

    def strong_leaf(leaf: Any) -> Any:
        return leaf if _is_key(leaf) else jnp.asarray(leaf, jnp.result_type(leaf))

    return jax.tree.map(strong_leaf, tree)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def to_host_step(result: StepResult) -> HostStep:
    """A step of JAX arrays as NumPy arrays; environments whose step was void have been restarted."""
    result = StepResult(*(None if field is None else np.asarray(field) for field in result))
    if result.faulty is None:
        return HostStep(result, None, 0)
    # An episode that ended counts, even where its last observation is lost to replay.
    faulty = result.faulty & ~(result.terminated | result.truncated)
    restart = Restart(faulty, result.obs) if faulty.any() else None
    return HostStep(result._replace(faulty=None), restart, int(faulty.sum()))


class Stepwise(HostEnv):
    """Every episode starts from a fresh reset, even where the environments would return to their first state:
    counting the same episode twice would overstate what was measured."""

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
        step = to_host_step(result)
        over = step.result.terminated | step.result.truncated
        if not over.any():
            return step
        self._key, key = jax.random.split(self._key)
        self._state, obs = self._choose(over, self._reset(key), (self._state, result.obs))
        return step._replace(result=step.result._replace(obs=np.asarray(obs)))

    def render(self) -> np.ndarray:
        return self._env.image(self._state)

    def scene(self) -> Scene | None:
        return self._env.scene(self._state) if hasattr(self._env, "scene") else None

    def command(self) -> Command | None:
        return self._env.command(self._state) if hasattr(self._env, "command") else None

    def steer(self, value: np.ndarray) -> None:
        self._state = self._env.steer(self._state, value)

    def close(self) -> None: ...
