"""One environment written in JAX, in the form that `own` steps: a user's own class, a Brax or a gymnax environment.

A user's own class needs no base class. Both functions are for one environment, pure, and compiled with the learner:

    class MyEnv:
        observation_size = 3                        # or {"angle": 2, "speed": 1}: named parts, in this order
        action_size = 1
        action_low, action_high = -2.0, 2.0         # optional: numbers, or one for each action; default -1 and 1
        episode_limit = 200                         # optional: steps until an episode is truncated; default 1000
        control_hz = 20.0                           # optional: control steps in a second, for videos

        def reset(self, key):                       # a key of jax.random
            return state, obs                       # any pytree of arrays; a vector, or a mapping of vectors

        def step(self, state, action):
            return state, obs, reward, terminated   # optional fifth: info, a mapping with "success" or "truncated"

        def render(self, state):                    # optional, for videos: plain Python
            return image                            # uint8 [height, width, 3]

Resets, step limit, true last observations and steps that are not finite are taken care of outside. Randomness within an
episode comes from a key that the state carries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.config.provenance import installed_versions
from warpsac.config.schema import EnvConfig
from warpsac.envs.deploy_contract import rounded
from warpsac.envs.drawing import Picture
from warpsac.envs.observations import Sizes
from warpsac.errors import UserError
from warpsac.types import Array

DEFAULT_LIMIT = 1000
SUCCESS_KEYS = ("is_success", "success")
# What Brax and Playground put around an environment to train it, lost last observations included.
TRAINING_WRAPPERS = ("VmapWrapper", "EpisodeWrapper", "AutoResetWrapper", "BraxAutoResetWrapper", "EvalWrapper")


class Taken(NamedTuple):
    """A step, before anything is reset."""

    state: Any
    obs: Any  # a vector, or a mapping of vectors
    reward: Array
    terminated: Array
    truncated: Array  # by the environment itself: the step limit is applied outside
    success: Array | None


class Bounds(NamedTuple):
    low: tuple[float, ...]
    high: tuple[float, ...]


class Single(Protocol):
    """One environment, whatever it is made with."""

    declared: Sizes | None
    """Sizes of the observation as the environment states them; None if it does not."""
    bounds: Bounds
    limit: int
    control_hz: float | None
    versions: dict[str, str]
    made: Any
    """The user's object."""

    def reset(self, key: Array) -> tuple[Any, Any]:
        """A new state and its observation."""

    def step(self, key: Array, state: Any, action: Array) -> Taken:
        """One step with an action [A] within the bounds."""

    def render(self, state: Any) -> np.ndarray: ...


def adapted(made: Any, config: EnvConfig) -> Single:
    """A user's object in this form; a UserError names what is missing."""
    if any(base.__module__.startswith("brax.") for base in type(made).__mro__):
        return BraxEnv(made, config)
    if hasattr(made, "default_params"):
        return GymnaxEnv(made, config)
    return OwnEnv(made, config)


def without_training_wrappers(made: Any) -> tuple[Any, int | None]:
    """What Brax's or Playground's training wrappers hold, and their step limit. Their automatic reset replaces the last
    observation of an episode, and they step many environments."""
    limit = None
    while type(made).__name__ in TRAINING_WRAPPERS and "env" in vars(made):
        own = vars(made)
        if own.get("action_repeat", 1) != 1:
            raise UserError("EpisodeWrapper with action_repeat: repeat the action within the environment's own step")
        limit = own.get("episode_length", limit)
        made = own["env"]
    inner = made
    while "env" in getattr(inner, "__dict__", ()):
        name = type(inner).__name__
        if name in TRAINING_WRAPPERS or "DomainRandomization" in name:
            raise UserError(
                f"{name} within {type(made).__name__}: give the environment without Brax's training wrappers"
            )
        inner = vars(inner)["env"]
    return made, limit


class OwnEnv:
    """A class of a user's own: see the module's docstring."""

    def __init__(self, made: Any, config: EnvConfig):
        missing = [name for name in ("reset", "step", "action_size") if not hasattr(made, name)]
        if missing:
            raise UserError(
                f"{type(made).__name__} has no {missing[0]}: an environment in JAX has reset, step, action_size"
            )
        self.made, self._success_key = made, config.success_key
        self.declared = getattr(made, "observation_size", None)
        size = whole(made.action_size, "action_size")
        self.bounds = bounds_of(getattr(made, "action_low", -1.0), getattr(made, "action_high", 1.0), size)
        own = getattr(made, "episode_limit", None)
        self.limit = config.episode_limit or (DEFAULT_LIMIT if own is None else whole(own, "episode_limit"))
        self.control_hz = _rate(getattr(made, "control_hz", None))
        self.versions: dict[str, str] = {}

    def reset(self, key: Array) -> tuple[Any, Any]:
        returned = self.made.reset(key)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise UserError(f"reset returns {_shown(returned)}: it must return (state, observation)")
        return returned[0], returned[1]

    def step(self, key: Array, state: Any, action: Array) -> Taken:
        returned = self.made.step(state, action)
        if not isinstance(returned, tuple) or len(returned) not in (4, 5):
            expected = "(state, observation, reward, terminated), and info as a fifth if there is one"
            raise UserError(f"step returns {_shown(returned)}: it must return {expected}")
        info = returned[4] if len(returned) == 5 else {}
        if not isinstance(info, Mapping):
            raise UserError(f"step returns an info that is {_shown(info)}: it must be a mapping")
        return Taken(
            state=returned[0],
            obs=returned[1],
            reward=returned[2],
            terminated=flag(returned[3], "terminated"),
            truncated=flag(info.get("truncated", False), "truncated"),
            success=success_in(info, self._success_key),
        )

    def render(self, state: Any) -> np.ndarray:
        if not hasattr(self.made, "render"):
            raise UserError(f"{type(self.made).__name__} has no render(state), so there is nothing to see")
        return np.asarray(self.made.render(state))


class BraxEnv:
    """A brax.envs.Env. The whole of its state is carried: tasks keep commands and counters in it."""

    def __init__(self, made: Any, config: EnvConfig):
        self.made, self._success_key = made, config.success_key
        self.declared: Sizes | None = None  # its observation_size would run a reset, uncompiled
        self.bounds = bounds_of(-1.0, 1.0, whole(made.action_size, "action_size"))
        self.limit = config.episode_limit or DEFAULT_LIMIT
        self.control_hz = rounded(1.0 / float(made.dt)) if hasattr(made, "sys") else None
        self.versions = installed_versions(["brax"])
        self._picture: Picture | None = None

    def reset(self, key: Array) -> tuple[Any, Any]:
        state = self.made.reset(jax.random.key_data(key))  # Brax expects keys of the older kind: two words
        return state, state.obs

    def step(self, key: Array, state: Any, action: Array) -> Taken:
        state = self.made.step(state.replace(done=jnp.zeros_like(state.done)), action)
        success = success_in({**state.info, **state.metrics}, self._success_key)
        return Taken(state, state.obs, state.reward, flag(state.done, "done"), jnp.zeros((), bool), success)

    def render(self, state: Any) -> np.ndarray:
        model = getattr(getattr(self.made, "sys", None), "mj_model", None)
        if model is None or not hasattr(state.pipeline_state, "q"):
            raise UserError(f"{type(self.made).__name__} has no MuJoCo model to draw")
        import mujoco

        self._picture = self._picture or Picture(model, ["track"])
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = np.asarray(state.pipeline_state.q), np.asarray(state.pipeline_state.qd)
        mujoco.mj_forward(model, data)
        return self._picture.draw(data)


class GymnaxEnv:
    """An environment like those of gymnax. Its own `step` resets by itself; the functions under it do not."""

    def __init__(self, made: Any, config: EnvConfig):
        missing = [name for name in ("reset_env", "step_env", "action_space") if not hasattr(made, name)]
        if missing:
            raise UserError(
                f"{type(made).__name__} has no {missing[0]}: a gymnax environment has reset_env and step_env"
            )
        self.made, self._success_key = made, config.success_key
        self.declared: Sizes | None = None
        params = made.default_params
        own = getattr(params, "max_steps_in_episode", None)
        if config.episode_limit is not None and own is not None:
            params = params.replace(max_steps_in_episode=config.episode_limit)
        self._params = params
        self.limit = config.episode_limit or (DEFAULT_LIMIT if own is None else whole(own, "max_steps_in_episode"))
        space = made.action_space(params)
        if not hasattr(space, "low"):
            raise UserError(f"action space is {type(space).__name__}: actions must be continuous (Box)")
        self._shape = tuple(space.shape)
        self.bounds = bounds_of(space.low, space.high, math.prod(self._shape))
        step = getattr(params, "dt", None)
        self.control_hz = None if step is None else _rate(rounded(1.0 / float(step)))
        self.versions = installed_versions(["gymnax"])

    def reset(self, key: Array) -> tuple[Any, Any]:
        obs, state = self.made.reset_env(key, self._params)
        return state, obs

    def step(self, key: Array, state: Any, action: Array) -> Taken:
        obs, state, reward, done, info = self.made.step_env(key, state, action.reshape(self._shape), self._params)
        ended = flag(done, "done")
        late = jnp.zeros((), bool)
        if hasattr(state, "time") and hasattr(self._params, "max_steps_in_episode"):
            late = jnp.asarray(state.time >= self._params.max_steps_in_episode)
        # Before gymnax 1.0 `done` was also set at the step limit.
        separate = hasattr(self.made, "is_truncated")
        return Taken(
            state, obs, reward, ended if separate else ended & ~late, late, success_in(info, self._success_key)
        )

    def render(self, state: Any) -> np.ndarray:
        raise UserError(f"{type(self.made).__name__}: gymnax environments give no pictures here")


# --- values that users write


def success_in(info: Mapping[str, Any], named: str | None) -> Array | None:
    """Whether the task is solved, where the environment says so."""
    if named is not None and named not in info:
        known = f"it has {', '.join(map(str, info))}" if info else "it is empty"
        raise UserError(f"env.success_key = '{named}': the info of step has no such key; {known}")
    for key in SUCCESS_KEYS if named is None else (named,):
        if key in info:
            return flag(info[key], key)
    return None


def flag(value: Any, name: str) -> Array:
    """A yes or no; Brax writes it as a number."""
    array = jnp.asarray(value)
    if array.shape != ():
        raise UserError(f"{name} has shape {array.shape}: step is for one environment, so it must be a single value")
    return array.astype(bool)


def whole(value: Any, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1 or number != value:
        raise UserError(f"{name} = {value!r}: must be a whole number above 0")
    return number


def bounds_of(low: Any, high: Any, size: int) -> Bounds:
    """One bound for all actions, or one for each."""
    try:
        both = [np.broadcast_to(np.asarray(bound, np.float64).reshape(-1), (size,)) for bound in (low, high)]
    except (TypeError, ValueError):
        raise UserError(f"action bounds: must be numbers, one for all actions or {size}") from None
    if not np.isfinite(both).all() or (both[0] >= both[1]).any():
        raise UserError("action bounds: must be finite, the lower ones below the upper ones")
    return Bounds(*(tuple(map(float, bound)) for bound in both))


def _rate(value: Any) -> float | None:
    if value is not None and not (math.isfinite(float(value)) and float(value) > 0):
        raise UserError(f"control_hz = {value!r}: must be above 0")
    return None if value is None else float(value)


def _shown(value: Any) -> str:
    if isinstance(value, Sequence):
        return f"{len(value)} values"
    return "an array" if hasattr(value, "shape") else type(value).__name__
