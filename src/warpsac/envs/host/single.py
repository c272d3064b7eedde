"""What all families of single, gymnasium-style environments share.

`in_process` makes a vector of them, `describe` its spec, `wrapped` one vector of an observation with named parts;
`Snapshot` and `MujocoTask` save and restore an episode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from warpsac.config.provenance import installed_versions
from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import EnvSpec
from warpsac.envs.drawing import Picture
from warpsac.envs.host import mujoco_state, named, vector
from warpsac.envs.host.vector import InProcessEnvs, Recipe
from warpsac.envs.observations import groups_of
from warpsac.errors import UserError, in_a_line_with_place
from warpsac.types import ObsViews

SUCCESS_KEYS = ("is_success", "success")  # of `info`; `env.success_key` names another
SUCCESS_STEPS = 200  # tried to find out how an environment reports success


@contextlib.contextmanager
def about(task: str) -> Iterator[None]:
    """Let the user's mistakes name the task."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{task}: {error}") from None


def limited(env: Any, steps: int) -> Any:
    """The environment with this step limit, in the place of its own if it has one."""
    limit = find_wrapper(env, gymnasium.wrappers.TimeLimit)
    if limit is None:
        return gymnasium.wrappers.TimeLimit(env, steps)
    limit._max_episode_steps = steps
    return env


def wrapped(env: Any, config: EnvConfig) -> Any:
    """A single environment with one vector for its observation, and with its state where that can be had."""
    if isinstance(env.observation_space, gymnasium.spaces.Dict):
        named.require_state(env.observation_space)
        env = named.NamedObservation(env, groups_of(env.unwrapped, config))
    elif config.actor_obs or config.critic_obs:
        raise UserError("env.actor_obs and env.critic_obs choose parts of a Dict, but the observation is a vector")
    base: Any = env.unwrapped
    # Only gymnasium's own: another MuJoCo environment may keep more than physics.
    if type(base).__module__.startswith("gymnasium.envs.mujoco."):
        return MujocoSnapshot(env)
    methods = ("get_state", "set_state")
    if all(env.has_wrapper_attr(name) and callable(env.get_wrapper_attr(name)) for name in methods):
        return Snapshot(env)
    return env


def in_process(
    name: str,
    first: Any,
    build: Callable[[], Any],
    num_envs: int,
    config: EnvConfig,
    family: str,
    packages: Sequence[str],
    success_keys: Sequence[str] = (),
    terms_of: Callable[[Any], Sequence[tuple[str, int]]] = lambda env: (),
    restorable: bool | None = None,
) -> InProcessEnvs:
    """The vector of environments that `build` makes, like the first; `terms_of` names its observation's parts.

    Without `restorable` the state can be saved if the environment has methods for it.
    """
    key = config.success_key or find_success_key(first, success_keys)
    spec = describe(name, first, num_envs, config, key is not None, family, packages, terms_of(first), restorable)
    return InProcessEnvs(Recipe(spec, build, config.max_faults, partial(succeeded, key) if key else None), first)


def succeeded(key: str, info: dict[str, Any]) -> bool:
    return bool(info.get(key, False))


def require_steps(env: Any) -> None:
    """Refuse, in one line, an environment that cannot be reset and stepped once."""
    doing = "resetting"
    try:
        obs, _ = env.reset(seed=0)
        require_numbers(env, obs)
        doing = "stepping"
        obs, reward, _, _, _ = env.step(middle_of(env.action_space))
        require_numbers(env, obs, reward)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's own code may raise
        raise UserError(f"{doing} it raises {in_a_line_with_place(error)}") from error


def require_numbers(env: Any, obs: Any, reward: Any = 0.0) -> None:
    """Refuse observations and rewards that cannot be used."""
    expected = env.observation_space.shape
    if np.size(obs) != np.prod(expected):
        raise UserError(f"observations have shape {np.shape(obs)}, not {expected}")
    if np.ndim(reward) != 0 or np.asarray(reward).dtype.kind not in "biuf":
        raise UserError(f"reward is {type(reward).__name__} {reward!r}, not a number")


def middle_of(space: Any) -> np.ndarray:
    """The action that is zero, or as close to it as the bounds allow."""
    return np.clip(np.zeros(space.shape), space.low, space.high).astype(space.dtype)


def find_success_key(env: Any, keys: Sequence[str]) -> str | None:
    """The info key under which an environment reports success; None if it has none.

    Some report it only at the end of an episode: one is tried, or the start of a long one.
    """
    if not keys:
        return None
    over = False
    try:
        _, info = env.reset(seed=0)
        action = middle_of(env.action_space)
        for _ in range(SUCCESS_STEPS + 1):
            found = [key for key in keys if key in info]
            if found or over:
                return found[0] if found else None
            _, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
    except (Exception, SystemExit):
        pass  # a faulty environment is noticed when it is used
    return None


def describe(
    name: str,
    env: Any,
    num_envs: int,
    config: EnvConfig,
    has_success: bool,
    family: str = "gymnasium",
    packages: Sequence[str] = ("gymnasium",),
    terms: Sequence[tuple[str, int]] = (),
    restorable: bool | None = None,
) -> EnvSpec:
    """The spec of a single environment, or a one-line error that says why it does not fit."""
    with about(name):
        low, high = action_bounds(env.action_space, config)
        named.require_state(env.observation_space)
    size = int(np.prod(env.observation_space.shape))
    parts = find_wrapper(env, named.NamedObservation)
    views, terms = (parts.layout.views, parts.layout.terms) if parts else (ObsViews(size, size), terms)
    step_seconds = getattr(env.unwrapped, "dt", None)
    return EnvSpec(
        task=name,
        family=family,
        num_envs=num_envs,
        views=views,
        action_dim=len(low),
        action_low=low,
        action_high=high,
        episode_limit=episode_limit(env),
        control_hz=1.0 / step_seconds if step_seconds else None,
        has_success=has_success,
        restorable=hasattr(env, "get_state") and hasattr(env, "set_state") if restorable is None else restorable,
        terms=tuple(terms) if sum(count for _, count in terms) == views.actor_dim else (),
        critic_terms=parts.layout.critic_terms if parts else (),
        versions=installed_versions(packages),
    )


def action_bounds(space: Any, config: EnvConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The lowest and highest action, or a one-line error that says why the space does not fit."""
    if not isinstance(space, gymnasium.spaces.Box):
        raise UserError(f"action space is {type(space).__name__}; warpsac needs a continuous Box")
    if len(space.shape) != 1 or not np.issubdtype(space.dtype, np.floating):
        shape = f"{space.dtype}{list(space.shape)}"
        raise UserError(f"action space is a Box of {shape}; warpsac needs a vector of floats")
    if space.shape == (0,):
        raise UserError("action space has no numbers")
    low, high = np.asarray(space.low, float), np.asarray(space.high, float)
    unbounded = ~(np.isfinite(low) & np.isfinite(high))
    if unbounded.any():
        if config.action_limit is None:
            raise UserError("action space has no bounds; give them with --env.action-limit, e.g. 1.0")
        low = np.where(unbounded, -config.action_limit, low)
        high = np.where(unbounded, config.action_limit, high)
    if (low >= high).any():
        raise UserError("action bounds: a lower bound is not below its upper bound")
    return tuple(low.tolist()), tuple(high.tolist())


def episode_limit(env: Any) -> int | None:
    """Steps after which an episode is truncated, as its registry entry or its wrapper says."""
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return int(env.spec.max_episode_steps)
    limit = find_wrapper(env, gymnasium.wrappers.TimeLimit)
    return int(limit._max_episode_steps) if limit else None


# --- the state of an episode


class Snapshot(gymnasium.Wrapper):
    """An environment whose own get_state() and set_state() continue exactly where it was.

    The step count and the random numbers (`np_random`), which gymnasium keeps for it, are added.
    """

    def get_state(self) -> dict[str, np.ndarray]:
        limit = find_wrapper(self.env, gymnasium.wrappers.TimeLimit)
        return mujoco_state.nested("own", self._get_own()) | {
            "elapsed": np.asarray(limit._elapsed_steps if limit else 0),
            "random": vector.pack_random(self.env.unwrapped.np_random.bit_generator.state),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self._set_own(mujoco_state.part("own", state))
        limit = find_wrapper(self.env, gymnasium.wrappers.TimeLimit)
        if limit is not None:
            limit._elapsed_steps = int(state["elapsed"])
        self.env.unwrapped.np_random.bit_generator.state = vector.unpack_random(state["random"])

    def _get_own(self) -> dict[str, np.ndarray]:
        return {name: np.array(value) for name, value in self.env.get_wrapper_attr("get_state")().items()}

    def _set_own(self, state: dict[str, np.ndarray]) -> None:
        self.env.get_wrapper_attr("set_state")(state)


class MujocoSnapshot(Snapshot):
    """A MuJoCo environment that keeps nothing but physics between two steps."""

    def _get_own(self) -> dict[str, np.ndarray]:
        base: Any = self.env.unwrapped
        return mujoco_state.get_physics(base.model, base.data)

    def _set_own(self, state: dict[str, np.ndarray]) -> None:
        base: Any = self.env.unwrapped
        mujoco_state.set_physics(base.model, base.data, state)


class MujocoTask(Snapshot):
    """A MuJoCo environment that keeps more than physics, drawn through these cameras whatever its own render() does.

    `owners` are the objects that remember the episode; if they do so in numbers, the state is exact.
    """

    def __init__(self, env: Any, owners: Mapping[str, Any], cameras: Sequence[str]):
        super().__init__(env)
        base: Any = env.unwrapped
        self._simulation = mujoco_state.Simulation(base.model, base.data, owners)
        self._picture = Picture(base.model, cameras)

    def render(self) -> Any:
        base: Any = self.env.unwrapped
        return self._picture.draw(base.data)

    def close(self) -> None:
        self._picture.close()
        super().close()

    def _get_own(self) -> dict[str, np.ndarray]:
        return self._simulation.get()

    def _set_own(self, state: dict[str, np.ndarray]) -> None:
        self._simulation.set(state)


def find_wrapper(env: Any, kind: type) -> Any:
    """The outermost wrapper of this class; None if there is none."""
    while env is not env.unwrapped:
        if isinstance(env, kind):
            return env
        env = env.env
    return None
