"""MyoSuite: musculoskeletal hands, arms and legs; the benchmark's ten tasks and any other of its ids."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import gymnasium

from warpsac.config import EnvConfig
from warpsac.envs.gym import describe, find_success_key, succeeded
from warpsac.envs.host import InProcessEnvs
from warpsac.envs.mujoco_task import Drawn, TaskSnapshot
from warpsac.errors import UserError

SUCCESS_KEY = "solved"
# Modules of tasks that remember nothing but numbers.
PLAIN_TASKS = ("arm.reach", "arm.pose", "arm.key_turn", "hand.obj_hold", "hand.pen", "leg.reach", "leg.walk", "torso.pose")
CAMERAS = ("hand_side_inter", "side_view")


class Benchmark(NamedTuple):
    """A task of the benchmark: MyoSuite's id, and settings in which the published task differs from it."""

    env_id: str
    settings: dict[str, Any] = {}


BENCHMARK = {
    "myo-reach": Benchmark("myoHandReachFixed-v0"),
    # MyoSuite 3.0 lets the hand stray further from its target before an episode ends.
    "myo-reach-hard": Benchmark("myoHandReachRandom-v0", {"far_th": 0.034}),
    "myo-pose": Benchmark("myoHandPoseFixed-v0"),
    "myo-pose-hard": Benchmark("myoHandPoseRandom-v0"),
    "myo-obj-hold": Benchmark("myoHandObjHoldFixed-v0"),
    "myo-obj-hold-hard": Benchmark("myoHandObjHoldRandom-v0"),
    "myo-key-turn": Benchmark("myoHandKeyTurnFixed-v0"),
    "myo-key-turn-hard": Benchmark("myoHandKeyTurnRandom-v0"),
    "myo-pen-twirl": Benchmark("myoHandPenTwirlFixed-v0"),
    "myo-pen-twirl-hard": Benchmark("myoHandPenTwirlRandom-v0"),
}


def make(name: str, num_envs: int, config: EnvConfig, render: bool) -> InProcessEnvs:
    build = partial(build_single, name, config.episode_limit)
    first = build()
    success_key = find_success_key(first, [SUCCESS_KEY])
    packages = ["myosuite", "myo-sim", "mujoco", "gymnasium"]
    return InProcessEnvs(
        describe(name, first, num_envs, config, success_key is not None, "myosuite", packages),
        build,
        config.max_faults,
        first,
        success_of=partial(succeeded, success_key) if success_key else None,
    )


def build_single(name: str, episode_limit: int | None = None) -> Any:
    env_id, settings = BENCHMARK.get(name, Benchmark(name))
    with _quiet():
        import myosuite  # noqa: F401  (registers the ids)

        if env_id not in gymnasium.registry:
            raise UserError(f"{name}: the installed myosuite has no task {env_id}")
        env = gymnasium.make(env_id, max_episode_steps=episode_limit, disable_env_checker=True, **settings)
    if not _keeps_plain_state(env):
        return Drawn(env, CAMERAS)
    return TaskSnapshot(env, {"task": env.unwrapped}, CAMERAS)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what MyoSuite's models are warned of, in Python and by MuJoCo (which would write a log file here)."""
    import mujoco

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mujoco.set_mju_user_warning(lambda text: None)
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(None)


def _keeps_plain_state(env: Any) -> bool:
    """Whether physics, model and numbers are all that the task remembers.

    Other tasks keep opponents, recordings or tired muscles in objects of their own.
    """
    return type(env.unwrapped).__module__.removeprefix("myosuite.envs.myo.tasks.basic.") in PLAIN_TASKS and all(
        type(wrapper).__module__.startswith("gymnasium.") or type(wrapper).__name__ == "MjInstabilityTerminationWrapper"
        for wrapper in _wrappers(env)
    )


def _wrappers(env: Any) -> list[Any]:
    return [] if env is env.unwrapped else [env, *_wrappers(env.env)]
