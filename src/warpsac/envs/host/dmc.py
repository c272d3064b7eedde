"""The DeepMind Control Suite: `domain-task`, such as humanoid-walk or cheetah-run."""

from __future__ import annotations

import math
import os
import warnings
from functools import partial
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.envs.drawing import Picture
from warpsac.envs.host import mujoco_state, vector
from warpsac.envs.host.single import in_process
from warpsac.envs.host.vector import InProcessEnvs
from warpsac.envs.names import Target
from warpsac.errors import UserError

# Names of the suite's cameras that see the whole body and follow it, in this order.
CAMERAS = ("side", "y-axis", "x", "tracking1")
# Tasks that hand their terrain to the graphics library at every reset.
NEEDS_GL = ("quadruped-escape",)
# The suite writes a bound of this size where a motor has none.
UNBOUNDED = 1e9


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> InProcessEnvs:
    name = target.name
    build = partial(build_single, name, config.episode_limit)
    packages = ["dm_control", "mujoco"]
    return in_process(name, build(), build, num_envs, config, "dmc", packages, terms_of=attrgetter("terms"))


def build_single(name: str, episode_limit: int | None = None) -> ControlTask:
    suite = _import_suite()
    domain, _, task = name.partition("-")
    if (domain, task) not in suite.ALL_TASKS:
        raise UserError(f"{name}: the installed dm_control has no such task")
    if name in NEEDS_GL and "MUJOCO_GL" not in os.environ:
        raise UserError(f"{name}: its terrain needs OpenGL; set MUJOCO_GL=egl (glfw with a screen)")
    # One domain draws its model at random: always the same one, or a resumed run would get another.
    with mujoco_state.quiet():
        return ControlTask(name, suite.load(domain, task, task_kwargs={"random": 0}), episode_limit)


def _import_suite() -> Any:
    """The package. When imported it looks for a screen and, without one, warns or even ends the process later. So
    unless the user has chosen a way to draw, drawing is switched off: pictures are drawn without it."""
    undecided = "MUJOCO_GL" not in os.environ
    if undecided:
        os.environ["MUJOCO_GL"] = "off"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from dm_control import suite
    finally:
        if undecided:
            del os.environ["MUJOCO_GL"]
    return suite


class ControlTask(gymnasium.Env):
    """One environment of the suite as a gymnasium one.

    An episode that reaches its time limit is truncated: the suite ends it with discount 1.
    """

    def __init__(self, name: str, env: Any, episode_limit: int | None):
        self._env = env
        limit = episode_limit or (math.ceil(env._step_limit) if math.isfinite(env._step_limit) else None)
        env._step_limit = math.inf  # counted here: restoring a state has to set the count as well
        self._limit, self._steps = limit, 0
        self.spec = gymnasium.envs.registration.EnvSpec(name, max_episode_steps=limit)
        self.dt = env.control_timestep()
        bounds = env.action_spec()
        low, high = bounds.minimum.astype(np.float32), bounds.maximum.astype(np.float32)
        low, high = np.where(low <= -UNBOUNDED, -np.inf, low), np.where(high >= UNBOUNDED, np.inf, high)
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.terms = [(part, math.prod(spec.shape)) for part, spec in env.observation_spec().items()]
        size = sum(count for _, count in self.terms)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        # Where the viewer looks for MuJoCo's objects.
        self.model, self.data = env.physics.model.ptr, env.physics.data.ptr
        self._simulation = mujoco_state.Simulation(self.model, self.data, {"task": env.task})
        self._picture = Picture(self.model, CAMERAS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self._env.task.random.seed(seed)
        self._steps = 0
        return _flat(self._env.reset().observation), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        step = self._env.step(action)
        self._steps += 1
        terminated = step.last() and step.discount == 0
        truncated = not terminated and (step.last() or self._steps == self._limit)
        return _flat(step.observation), float(step.reward), bool(terminated), bool(truncated), {}

    def get_state(self) -> dict[str, np.ndarray]:
        random = self._env.task.random.get_state(legacy=False)
        return self._simulation.get() | {"elapsed": np.asarray(self._steps), "random": vector.pack_random(random)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self._simulation.set(state)
        self._env.task.random.set_state(mujoco_state.legacy_random(state["random"]))
        self._steps = int(state["elapsed"])

    def render(self) -> Any:
        return self._picture.draw(self.data)

    def close(self) -> None:
        self._picture.close()
        self._env.close()


def _flat(observation: Any) -> np.ndarray:
    """The parts of an observation as one vector, in the suite's order."""
    return np.concatenate([np.ravel(part) for part in observation.values()]).astype(np.float32)
