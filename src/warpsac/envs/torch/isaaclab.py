"""IsaacLab: 3 without Isaac Sim (Newton physics), 2 with it. It exists once in a process.

Isaac Sim has to be started before anything of IsaacLab but its launcher is imported, and closing it would end the
process: it is left running. 3 tells the last observation of ended episodes, 2 does not (see `torch_base`).

Task names lost their `-v0` with version 3 and some were spelled anew: a task is found under either name.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from typing import Any

import numpy as np
import torch

from warpsac.config.provenance import installed_versions
from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import EnvSpec, Scene
from warpsac.envs.torch.base import (
    LOSES_LAST,
    Moved,
    Tensor,
    TorchEnvs,
    WithoutLevels,
    learner_device,
    quietly,
    seconds_of,
)
from warpsac.errors import UserError
from warpsac.types import ObsViews

ACTOR, CRITIC = "policy", "critic"
ACTION_LIMIT = 1.0  # where env.action_limit gives none: IsaacLab's own action spaces have no bounds
PACKAGES = ["isaaclab", "isaacsim", "newton", "mujoco-warp", "warp-lang", "torch"]


class IsaacSimulator(WithoutLevels):
    resets_itself = True

    def __init__(self, task: str, num_envs: int, config: EnvConfig):
        self.device = learner_device()
        self._running = contextlib.ExitStack()
        with quietly():
            self._env = _start(task, num_envs, str(self.device), config.episode_limit, self._running)
            groups = self._env.reset(seed=0)[0]
        self._groups = [name for name in (ACTOR, CRITIC) if name in groups]
        if self._groups[:1] != [ACTOR] or not all(torch.is_tensor(groups[name]) for name in self._groups):
            raise UserError(f"{task}: its observations are not plain vectors ({', '.join(groups)})")
        sizes = [groups[name].flatten(1).shape[1] for name in self._groups]
        low, high = _action_bounds(self._env.single_action_space, config.action_limit or ACTION_LIMIT)
        final = hasattr(self._env.cfg, "compute_final_obs")
        self.notes: tuple[str, ...] = () if final else (LOSES_LAST,)
        self.spec = EnvSpec(
            task=task,
            family="isaaclab",
            num_envs=num_envs,
            views=ObsViews(sum(sizes), sizes[0]),
            action_dim=len(low),
            action_low=low,
            action_high=high,
            episode_limit=int(self._env.max_episode_length),
            control_hz=1.0 / self._env.step_dt,
            has_success=False,
            restorable=False,
            lockstep=True,
            single=True,
            versions=installed_versions(PACKAGES),
        )

    def reset(self, seed: int) -> Tensor:
        return self._observation(self._env.reset(seed=seed)[0])

    def stagger(self) -> None:
        counter = self._env.episode_length_buf
        self._env.episode_length_buf = torch.randint_like(counter, int(self._env.max_episode_length))

    def set_progress(self, steps: int) -> None:
        self._env.common_step_counter = steps  # what its curricula go by

    def step(self, action: Tensor) -> Moved:
        obs, reward, terminated, truncated, extras = self._env.step(action)
        final = extras.get("final_obs")
        last = None if final is None else self._observation(final)
        return Moved(self._observation(obs), reward, terminated, truncated, final_obs=last)

    def restart(self, envs: Tensor) -> Tensor:
        """What IsaacLab's own reset does, for environments that ran away."""
        env = self._env
        env._reset_idx(envs.int())
        env.scene.write_data_to_sim()
        env.sim.forward()
        managed = hasattr(env, "observation_manager")
        return self._observation(env.observation_manager.compute() if managed else env._get_observations())

    def _observation(self, groups: dict[str, Tensor]) -> Tensor:
        return torch.cat([groups[name].flatten(1) for name in self._groups], dim=1)

    def render(self) -> np.ndarray:
        raise UserError(f"{self.spec.task}: IsaacLab tasks cannot be drawn here")

    def scene(self) -> Scene | None:
        return None

    def close(self) -> None:
        self._env.close()
        self._running.close()


def make(name: str, num_envs: int, config: EnvConfig, render: bool = False) -> TorchEnvs:
    return TorchEnvs(IsaacSimulator(name, num_envs, config))


def _start(task: str, num_envs: int, device: str, limit: int | None, running: contextlib.ExitStack) -> Any:
    """The simulator and in it the task's environments; what has to be closed after them goes to `running`."""
    app = importlib.import_module("isaaclab.app")
    from_three_on = hasattr(app, "launch_simulation")
    if not from_three_on:
        app.AppLauncher(headless=True, device=device)
    importlib.import_module("isaaclab_tasks")
    import gymnasium

    registered = find_id(task, [name for name in gymnasium.registry if name.startswith("Isaac")])
    settings = importlib.import_module("isaaclab_tasks.utils.parse_cfg").parse_env_cfg(
        registered, device=device, num_envs=num_envs
    )
    if hasattr(settings, "compute_final_obs"):
        settings.compute_final_obs = True
    settings.seed = 0  # `reset` gives the true one
    if limit is not None:
        settings.episode_length_s = seconds_of(limit, settings.decimation * settings.sim.dt)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it tells there, at length, what is told below in a line
            if from_three_on:
                running.enter_context(app.launch_simulation(settings, {"headless": True}))
            return gymnasium.make(registered, cfg=settings).unwrapped
    except FileNotFoundError as error:
        missing = str(error).rpartition("/")[2]
        raise UserError(
            f"{task} needs files that cannot be fetched here ({missing}): copy Isaac Sim's assets to this machine "
            "and name their folder with ISAACSIM_ASSET_ROOT"
        ) from error
    except SystemExit as error:  # its way of saying that a task needs Isaac Sim
        raise UserError(
            f"{task} needs Isaac Sim, which is not installed: see https://isaac-sim.github.io/IsaacLab; what runs "
            "without it is in docs/torch-simulators.md"
        ) from error


def find_id(task: str, ids: list[str]) -> str:
    """The registered name of a task that may be known by that of another version."""
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
