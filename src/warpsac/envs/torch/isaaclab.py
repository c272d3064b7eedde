"""IsaacLab: 3 without Isaac Sim (Newton physics), 2 with it. It exists once in a process.

Isaac Sim must be started before anything of IsaacLab but its launcher is imported, and closing it would end the
process: it is left running. 3 reports the last observation of ended episodes, 2 does not (see `base`).

Version 3 dropped the `-v0` of task names and changed the spelling of some: a task is found under either name.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
from typing import Any

import gymnasium
import numpy as np
import torch

from warpsac.config.provenance import installed_versions
from warpsac.config.schema import EnvConfig
from warpsac.envs import overrides
from warpsac.envs.contract import EnvSpec
from warpsac.envs.host.gym import ISAAC_SETTINGS
from warpsac.envs.names import Target
from warpsac.envs.torch.base import LOSES_LAST, Tensor, TorchEnvs, TorchStep, episode_seconds, learner_device, quietly
from warpsac.errors import UserError
from warpsac.types import ObsViews

ACTOR, CRITIC = "policy", "critic"
ACTION_LIMIT = 1.0  # where env.action_limit gives none: IsaacLab's own action spaces have no bounds
# Settings of a task's own config that are not for `task_config`: what to do instead.
GOVERNED = {
    "scene.num_envs": "use --env.num-envs",
    "seed": "use --seeds",
    "sim.device": "the learner's device is used",
    "compute_final_obs": "always on",
}
PACKAGES = ["isaaclab", "isaacsim", "newton", "mujoco-warp", "warp-lang", "torch"]


class IsaacEnvs(TorchEnvs):
    resets_itself = True

    def __init__(self, target: Target, num_envs: int, config: EnvConfig):
        device, task = learner_device(), target.name
        self._running = contextlib.ExitStack()
        with quietly():
            self._env = _start(target, num_envs, config.episode_limit, self._running)
            groups = self._env.reset(seed=0)[0]
        self._groups = [name for name in (ACTOR, CRITIC) if name in groups]
        if self._groups[:1] != [ACTOR] or not all(torch.is_tensor(groups[name]) for name in self._groups):
            raise UserError(f"{task}: its observations are not plain vectors ({', '.join(groups)})")
        sizes = [groups[name].flatten(1).shape[1] for name in self._groups]
        low, high = _action_bounds(self._env.single_action_space, config.action_limit or ACTION_LIMIT)
        self.notes = () if hasattr(self._env.cfg, "compute_final_obs") else (LOSES_LAST,)
        spec = EnvSpec(
            task=task,
            family="isaaclab",
            num_envs=num_envs,
            views=ObsViews(sum(sizes), sizes[0]),
            action_dim=len(low),
            action_low=low,
            action_high=high,
            episode_limit=int(self._env.max_episode_length),
            control_hz=1.0 / self._env.step_dt,
            lockstep=True,
            single=True,
            versions=installed_versions(PACKAGES),
        )
        super().__init__(spec, device)

    def start(self, seed: int) -> Tensor:
        return self._observation(self._env.reset(seed=seed)[0])

    def stagger(self) -> None:
        counter = self._env.episode_length_buf
        self._env.episode_length_buf = torch.randint_like(counter, int(self._env.max_episode_length))

    def set_progress(self, steps: int) -> None:
        self._env.common_step_counter = steps  # what its curricula go by

    def step(self, action: Tensor) -> TorchStep:
        obs, reward, terminated, truncated, extras = self._env.step(action)
        final = extras.get("final_obs")
        last = None if final is None else self._observation(final)
        return TorchStep(self._observation(obs), reward, terminated, truncated, final_obs=last)

    def restart(self, envs: Tensor) -> Tensor:
        """What IsaacLab's own reset does, for environments that failed."""
        env = self._env
        env._reset_idx(envs.int())
        env.scene.write_data_to_sim()
        env.sim.forward()
        managed = hasattr(env, "observation_manager")
        return self._observation(env.observation_manager.compute() if managed else env._get_observations())

    def _observation(self, groups: dict[str, Tensor]) -> Tensor:
        return torch.cat([groups[name].flatten(1) for name in self._groups], dim=1)

    def close(self) -> None:
        self._env.close()
        self._running.close()


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> TorchEnvs:
    return IsaacEnvs(target, num_envs, config)


@functools.cache
def launch() -> Any:
    """IsaacLab's launcher; Isaac Sim, which 2 needs, is started. The tasks of other packages may be imported after
    that."""
    app = importlib.import_module("isaaclab.app")
    if not hasattr(app, "launch_simulation"):
        app.AppLauncher(headless=True, device=str(learner_device()))
    return app


def task_names() -> list[str]:
    """Every task that IsaacLab, or another package for it, has registered with gymnasium."""
    with quietly():
        launch()
        importlib.import_module("isaaclab_tasks")
    return [name for name, entry in gymnasium.registry.items() if ISAAC_SETTINGS in entry.kwargs]


def settings_of(target: Target) -> Any:
    """IsaacLab's own settings of a task, changed as `task_config` says."""
    registered = find_id(target.id, task_names())
    read = importlib.import_module("isaaclab_tasks.utils.parse_cfg").parse_env_cfg
    settings = read(registered, device=str(learner_device()))
    overrides.apply(settings, target.overrides, target.name, GOVERNED)
    return settings


def _start(target: Target, num_envs: int, limit: int | None, running: contextlib.ExitStack) -> Any:
    """Start the simulator and make the task's environments; what must be closed after them goes to `running`."""
    task, settings = target.id, settings_of(target)
    settings.scene.num_envs = num_envs
    if hasattr(settings, "compute_final_obs"):
        settings.compute_final_obs = True
    settings.seed = 0  # replaced at `start`
    if limit is not None:
        settings.episode_length_s = episode_seconds(limit, settings.decimation * settings.sim.dt)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a long report of what is said below in one line
            if hasattr(app := launch(), "launch_simulation"):
                running.enter_context(app.launch_simulation(settings, {"headless": True}))
            return gymnasium.make(find_id(task, task_names()), cfg=settings).unwrapped
    except FileNotFoundError as error:
        missing = str(error).rpartition("/")[2]
        raise UserError(
            f"{task} needs files that cannot be fetched here ({missing}): copy Isaac Sim's assets to this machine "
            "and name their folder with ISAACSIM_ASSET_ROOT"
        ) from error
    except SystemExit as error:  # how it says that a task needs Isaac Sim
        raise UserError(
            f"{task} needs Isaac Sim, which is not installed: see https://isaac-sim.github.io/IsaacLab; what runs "
            "without it is in docs/torch-simulators.md"
        ) from error


def find_id(task: str, ids: list[str]) -> str:
    """The registered name of a task, which may be given by its name in another version."""
    if task in ids:
        return task
    same = [name for name in ids if _spelling(name) == _spelling(task)]
    if not same:
        raise UserError(f"{task}: the installed IsaacLab has no such task")
    return same[0]


def _spelling(name: str) -> str:
    """What all names of a task share: Isaac-Lift-Cube-Franka-v0 of 2 is IsaacContrib-Lift-Cube-Franka of 3."""
    plain = name.removesuffix("-v0").lower().replace("isaaccontrib-", "isaac-").replace("-repose-", "-reorient-")
    return plain.replace("-", "")


def _action_bounds(space: Any, limit: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    low, high = np.ravel(space.low), np.ravel(space.high)
    bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(bounded, low, -limit), np.where(bounded, high, limit)
    return tuple(low.tolist()), tuple(high.tolist())
