"""Gym-MuJoCo (v4, v5) and any other gymnasium environment with a bounded Box action, single or vector.

A user's own class or function may stand in the place of an id (`Target.factory`); it may also make a `VectorEnv`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from warpsac.config.schema import EnvConfig
from warpsac.envs.host import mujoco_state
from warpsac.envs.host.single import SUCCESS_KEYS, MujocoSnapshot, about, in_process, limited, require_steps, wrapped
from warpsac.envs.host.vector import InProcessEnvs
from warpsac.envs.host.vector_env import VectorEnvs, in_lockstep
from warpsac.envs.kinds import call, kind_of, parameters
from warpsac.envs.names import Target
from warpsac.envs.overrides import Keywords
from warpsac.errors import UserError

RegistryEntry = gymnasium.envs.registration.EnvSpec
ISAAC_SETTINGS = "env_cfg_entry_point"  # what only IsaacLab's entries have


def registered_ids() -> list[str]:
    """The ids that can be made; gymnasium keeps names of withdrawn versions that only raise an error."""
    return sorted(name for name in gymnasium.registry if not _withdrawn(name))


def _withdrawn(env_id: str) -> bool:
    return getattr(gymnasium.registry[env_id].entry_point, "__module__", None) == "gymnasium.envs"


def settings_of(target: Target) -> Keywords:
    """The keyword arguments of a registered id."""
    entry = gymnasium.registry[target.id]
    creator: Any = entry.entry_point or entry.vector_entry_point
    creator = gymnasium.envs.registration.load_env_creator(creator) if isinstance(creator, str) else creator
    return Keywords.of(creator, given=entry.kwargs, without=["render_mode", "num_envs"])


def task_names() -> list[str]:
    """Those of a simulator that registers here too are that simulator's."""
    return [name for name in registered_ids() if not _of_a_simulator(gymnasium.registry[name])]


# Where gymnasium's own environments with discrete actions are, in `gymnasium.envs`. None is made to find out.
DISCRETE = (
    "classic_control.cartpole", "classic_control.mountain_car", "classic_control.acrobot", "phys2d.cartpole",
    "box2d.lunar_lander", "toy_text", "tabular",
)  # fmt: skip


def suggested_names() -> list[str]:
    """Those that a misspelled name may mean, as warpsac can train them."""
    return [name for name in task_names() if not _discrete(gymnasium.registry[name])]


def _discrete(entry: RegistryEntry) -> bool:
    place = str(entry.entry_point).removeprefix("gymnasium.envs.")
    return place.startswith(DISCRETE) and not entry.kwargs.get("continuous")


def _of_a_simulator(entry: RegistryEntry) -> bool:
    maker = getattr(entry.entry_point, "func", entry.entry_point)  # ManiSkill's is a partial function
    return ISAAC_SETTINGS in entry.kwargs or str(getattr(maker, "__module__", "")).startswith("mani_skill")


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> InProcessEnvs | VectorEnvs:
    build = builder(target, num_envs, config, render)
    with about(target.name):
        first = build()
        if kind_of(first) == "vector":
            return in_lockstep(target.name, first, num_envs, config)
    if isinstance(first, MujocoSnapshot):  # gymnasium's own, which report no success
        return in_process(target.name, first, build, num_envs, config, "mujoco", ["gymnasium", "mujoco"])
    made = in_process(target.name, first, build, num_envs, config, "gymnasium", ["gymnasium"], SUCCESS_KEYS)
    with about(target.name):
        require_steps(first)
    return made


def builder(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> Callable[[], Any]:
    """A function that makes one environment of a task, in a worker process too, or a VectorEnv of `num_envs`."""
    arguments = dict(target.overrides)
    if target.factory is not None:
        return partial(build_own, target.factory, num_envs, config, render, arguments)
    # The entry itself, not its name: a worker process need not have registered it.
    entry = gymnasium.registry[target.id]
    if entry.entry_point is None and entry.vector_entry_point is not None:
        return partial(build_vector, entry, num_envs, config, render, arguments)
    return partial(build_single, entry, config, render, arguments)


def build_single(
    task: str | RegistryEntry, config: EnvConfig | None = None, render: bool = False, arguments: Any = None
) -> Any:
    """One environment of a registered id or of a registry entry, made with these keyword arguments."""
    config = config or EnvConfig()
    entry = gymnasium.registry.get(task) if isinstance(task, str) else task
    on_mujoco = entry is not None and str(entry.entry_point).startswith("gymnasium.envs.mujoco")
    with warnings.catch_warnings(), mujoco_state.quiet() if on_mujoco else contextlib.nullcontext():
        # gymnasium advises a newer version of every v4 id; the benchmark is defined on v4.
        warnings.filterwarnings("ignore", message=".*is out of date.*")
        warnings.filterwarnings("ignore", message=".*Overriding environment.*")
        # An environment that cannot be drawn need not accept `render_mode`.
        more = ({"render_mode": "rgb_array"} if render else {}) | (arguments or {})
        try:
            env = gymnasium.make(task, max_episode_steps=config.episode_limit, disable_env_checker=True, **more)
        except gymnasium.error.DependencyNotInstalled as error:
            missing = "mujoco" if "mujoco" in str(error).lower() else None
            raise ImportError(str(error), name=missing) from error
    return wrapped(env, config)


def build_vector(entry: RegistryEntry, num_envs: int, config: EnvConfig, render: bool, arguments: Any) -> Any:
    """The VectorEnv of a registry entry; where it lets us choose, no step is spent on the start of an episode."""
    creator: Any = entry.vector_entry_point
    creator = gymnasium.envs.registration.load_env_creator(creator) if isinstance(creator, str) else creator
    more: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    if config.episode_limit is not None:
        more["max_episode_steps"] = config.episode_limit
    if "autoreset_mode" in parameters(creator):
        more["autoreset_mode"] = gymnasium.vector.AutoresetMode.SAME_STEP
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*AutoresetMode.*")  # a missing one is refused, in our own words
        return gymnasium.make_vec(entry, num_envs, **more | arguments)


def build_own(factory: Callable[..., Any], num_envs: int, config: EnvConfig, render: bool, arguments: Any) -> Any:
    """What a user's own class or function makes; these three are given to it if it takes them."""
    offered: dict[str, Any] = {"num_envs": num_envs}
    if render:
        offered["render_mode"] = "rgb_array"
    if config.episode_limit is not None:
        offered["max_episode_steps"] = config.episode_limit
    env = call(factory, arguments, **offered)
    kind = kind_of(env)
    if kind not in ("gymnasium", "vector"):
        raise UserError(f"gives {type(env).__name__}, not a gymnasium environment")
    if config.episode_limit is not None and "max_episode_steps" not in parameters(factory):
        if kind == "vector":
            raise UserError("env.episode_limit needs a VectorEnv whose class or function takes max_episode_steps")
        env = limited(env, config.episode_limit)
    return env if kind == "vector" else wrapped(env, config)
