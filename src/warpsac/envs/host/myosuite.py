"""MyoSuite: musculoskeletal hands, arms and legs; the benchmark's ten tasks and any other of its ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.envs.host.mujoco_state import quiet
from warpsac.envs.host.single import MujocoTask, in_process
from warpsac.envs.host.vector import InProcessEnvs
from warpsac.envs.names import Target
from warpsac.envs.overrides import Keywords
from warpsac.errors import UserError

SUCCESS_KEY = "solved"
# Modules of tasks that remember nothing but numbers.
PLAIN_TASKS = ("arm.reach", "arm.pose", "arm.key_turn", "hand.obj_hold", "hand.pen",
               "leg.reach", "leg.walk", "torso.pose")  # fmt: skip
CAMERAS = ("plam_lookat", "side_view")  # MyoSuite's own spelling of the one that looks into the palm
# The benchmark's tasks by MyoSuite's ids.
BENCHMARK = {
    "myo-reach": "myoHandReachFixed-v0",
    "myo-reach-hard": "myoHandReachRandom-v0",
    "myo-pose": "myoHandPoseFixed-v0",
    "myo-pose-hard": "myoHandPoseRandom-v0",
    "myo-obj-hold": "myoHandObjHoldFixed-v0",
    "myo-obj-hold-hard": "myoHandObjHoldRandom-v0",
    "myo-key-turn": "myoHandKeyTurnFixed-v0",
    "myo-key-turn-hard": "myoHandKeyTurnRandom-v0",
    "myo-pen-twirl": "myoHandPenTwirlFixed-v0",
    "myo-pen-twirl-hard": "myoHandPenTwirlRandom-v0",
}
# Where MyoSuite changed after the benchmark was published: in 3.0 the hand may be further from its target before an
# episode ends.
AS_PUBLISHED: dict[str, dict[str, Any]] = {"myo-reach-hard": {"far_th": 0.034}}


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> InProcessEnvs:
    name = target.name
    build = partial(build_single, name, config.episode_limit, target.overrides)
    first = build()
    packages = ["myosuite", "myo-sim", "mujoco", "gymnasium"]
    restorable = _remembers_in_numbers(first)
    return in_process(name, first, build, num_envs, config, "myosuite", packages, [SUCCESS_KEY], _terms, restorable)


def build_single(name: str, episode_limit: int | None = None, changes: Mapping[str, Any] | None = None) -> Any:
    settings = {**AS_PUBLISHED.get(name, {}), **(changes or {})}
    with quiet():
        entry = _entry(name)
        env = gymnasium.make(entry.id, max_episode_steps=episode_limit, disable_env_checker=True, **settings)
    return MujocoTask(env, {"task": env.unwrapped}, CAMERAS)


def settings_of(target: Target) -> Keywords:
    """The keyword arguments of a task, most of which go to its `_setup`."""
    with quiet():
        entry = _entry(target.name)
        task: Any = gymnasium.envs.registration.load_env_creator(entry.entry_point)
    given = {**entry.kwargs, **AS_PUBLISHED.get(target.name, {})}
    return Keywords.of(task, *_setups(task), given=given, without=["render_mode"])


def _setups(task: type) -> list[Any]:
    return [vars(base)["_setup"] for base in task.__mro__ if "_setup" in vars(base)]


def _entry(name: str) -> Any:
    import myosuite  # noqa: F401  (registers the ids)

    env_id = BENCHMARK.get(name, name)
    if env_id not in gymnasium.registry:
        raise UserError(f"{name}: the installed myosuite has no task {env_id}")
    return gymnasium.registry[env_id]


def _terms(env: Any) -> list[tuple[str, int]]:
    """The parts of the observation of an environment that has been reset."""
    base = env.unwrapped
    try:
        parts = base.get_obs_dict(base._accessor)
        return [(key, int(np.size(parts[key]))) for key in base.obs_keys]
    except Exception:  # tasks outside the benchmark differ, and do without names
        return []


def _remembers_in_numbers(env: Any) -> bool:
    """Whether physics, model and numbers are all that the task remembers of an episode: others keep opponents,
    recordings or tired muscles in objects."""
    module = type(env.unwrapped).__module__.removeprefix("myosuite.envs.myo.tasks.basic.")
    return module in PLAIN_TASKS and not re.match("myo(Fati|Sarc|Reaf)", env.spec.id)
