"""Gym-MuJoCo (v4, v5) and any other registered gymnasium environment with a bounded Box action.

Also what all families of gymnasium-style environments share: `in_process` makes a vector of them, `describe` its
spec, and `Snapshot` and `MujocoTask` save and restore an episode.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from warpsac.config.provenance import installed_versions
from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import EnvSpec
from warpsac.envs.drawing import Picture
from warpsac.envs.host import mujoco_state, vector
from warpsac.envs.host.vector import InProcessEnvs, Recipe
from warpsac.envs.names import Target
from warpsac.errors import UserError
from warpsac.types import ObsViews

RegistryEntry = gymnasium.envs.registration.EnvSpec
ISAAC_SETTINGS = "env_cfg_entry_point"  # what only IsaacLab's entries have
SUCCESS_STEPS = 200  # tried to find out how an environment reports success


def registered_ids() -> list[str]:
    """The ids that can be made; gymnasium keeps names of withdrawn versions that only raise an error."""
    return sorted(name for name in gymnasium.registry if not _withdrawn(name))


def _withdrawn(env_id: str) -> bool:
    return getattr(gymnasium.registry[env_id].entry_point, "__module__", None) == "gymnasium.envs"


def task_names() -> list[str]:
    """Those of a simulator that registers here too are that simulator's."""
    return [name for name in registered_ids() if not _of_a_simulator(gymnasium.registry[name])]


def _of_a_simulator(entry: RegistryEntry) -> bool:
    maker = getattr(entry.entry_point, "func", entry.entry_point)  # ManiSkill's is a partial function
    return ISAAC_SETTINGS in entry.kwargs or str(getattr(maker, "__module__", "")).startswith("mani_skill")


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> InProcessEnvs:
    name = target.name
    # The entry itself, not its name: a worker process need not have registered it.
    build = partial(build_single, gymnasium.registry[target.id], render, config.episode_limit)
    first = build()
    mujoco = isinstance(first, MujocoSnapshot)
    family, packages = ("mujoco", ["gymnasium", "mujoco"]) if mujoco else ("gymnasium", ["gymnasium"])
    keys = () if mujoco else ("is_success", "success")  # gymnasium's own MuJoCo tasks have none
    return in_process(name, first, build, num_envs, config, family, packages, keys)


def build_single(name: str | RegistryEntry, render: bool = False, episode_limit: int | None = None) -> Any:
    """One environment of a registered id (`module:Id` imports the module), or of a registry entry."""
    entry = gymnasium.registry.get(name) if isinstance(name, str) else name
    on_mujoco = entry is not None and str(entry.entry_point).startswith("gymnasium.envs.mujoco")
    with warnings.catch_warnings(), mujoco_state.quiet() if on_mujoco else contextlib.nullcontext():
        # gymnasium advises a newer version of every v4 id; the benchmark is defined on v4.
        warnings.filterwarnings("ignore", message=".*is out of date.*")
        warnings.filterwarnings("ignore", message=".*Overriding environment.*")
        try:
            # An environment that cannot be drawn need not accept `render_mode`.
            drawing: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
            env = gymnasium.make(name, max_episode_steps=episode_limit, disable_env_checker=True, **drawing)
        except gymnasium.error.DependencyNotInstalled as error:
            missing = "mujoco" if "mujoco" in str(error).lower() else None
            raise ImportError(str(error), name=missing) from error
    if isinstance(env.observation_space, gymnasium.spaces.Dict):
        env = gymnasium.wrappers.FlattenObservation(env)
    base: Any = env.unwrapped
    # Only gymnasium's own: another MuJoCo environment may keep more than physics.
    if type(base).__module__.startswith("gymnasium.envs.mujoco."):
        return MujocoSnapshot(env)
    methods = ("get_state", "set_state")
    if all(env.has_wrapper_attr(name) and callable(env.get_wrapper_attr(name)) for name in methods):
        return Snapshot(env)
    return env


# --- what families of gymnasium-style environments share


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
    key = find_success_key(first, success_keys)
    spec = describe(name, first, num_envs, config, key is not None, family, packages, terms_of(first), restorable)
    return InProcessEnvs(Recipe(spec, build, config.max_faults, partial(succeeded, key) if key else None), first)


def succeeded(key: str, info: dict[str, Any]) -> bool:
    return bool(info.get(key, False))


def find_success_key(env: Any, keys: Sequence[str]) -> str | None:
    """The info key under which an environment reports success; None if it has none.

    Some report it only at the end of an episode: one is tried, or the start of a long one.
    """
    if not keys:
        return None
    space, over = env.action_space, False
    try:
        _, info = env.reset(seed=0)
        action = np.clip(np.zeros(space.shape), space.low, space.high).astype(space.dtype)
        for _ in range(SUCCESS_STEPS + 1):
            found = [key for key in keys if key in info]
            if found or over:
                return found[0] if found else None
            _, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
    except Exception:
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
    action, observation = env.action_space, env.observation_space
    if not isinstance(action, gymnasium.spaces.Box):
        raise UserError(f"{name}: action space is {type(action).__name__}; warpsac needs a continuous Box")
    if not isinstance(observation, gymnasium.spaces.Box):
        kind = type(observation).__name__
        raise UserError(f"{name}: observation space is {kind}; it must be a Box or a Dict of them")
    if len(action.shape) != 1 or not np.issubdtype(action.dtype, np.floating):
        shape = f"{action.dtype}{list(action.shape)}"
        raise UserError(f"{name}: action space is a Box of {shape}; warpsac needs a vector of floats")
    low, high = np.asarray(action.low, float), np.asarray(action.high, float)
    unbounded = ~(np.isfinite(low) & np.isfinite(high))
    if unbounded.any():
        if config.action_limit is None:
            raise UserError(f"{name}: action space has no bounds; give them with --env.action-limit, e.g. 1.0")
        low = np.where(unbounded, -config.action_limit, low)
        high = np.where(unbounded, config.action_limit, high)
    size = int(np.prod(observation.shape))
    step_seconds = getattr(env.unwrapped, "dt", None)
    return EnvSpec(
        task=name,
        family=family,
        num_envs=num_envs,
        views=ObsViews(size, size),
        action_dim=low.size,
        action_low=tuple(low.tolist()),
        action_high=tuple(high.tolist()),
        episode_limit=env.spec.max_episode_steps if env.spec is not None else None,
        control_hz=1.0 / step_seconds if step_seconds else None,
        has_success=has_success,
        restorable=hasattr(env, "get_state") and hasattr(env, "set_state") if restorable is None else restorable,
        terms=tuple(terms) if sum(count for _, count in terms) == size else (),
        versions=installed_versions(packages),
    )


# --- the state of an episode


class Snapshot(gymnasium.Wrapper):
    """An environment whose own get_state() and set_state() continue exactly where it was.

    The step count and the random numbers (`np_random`), which gymnasium keeps for it, are added.
    """

    def get_state(self) -> dict[str, np.ndarray]:
        limit = _time_limit(self.env)
        return mujoco_state.nested("own", self._get_own()) | {
            "elapsed": np.asarray(limit._elapsed_steps if limit else 0),
            "random": vector.pack_random(self.env.unwrapped.np_random.bit_generator.state),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self._set_own(mujoco_state.part("own", state))
        limit = _time_limit(self.env)
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


def _time_limit(env: Any) -> Any:
    while env is not env.unwrapped:
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return env
        env = env.env
    return None
