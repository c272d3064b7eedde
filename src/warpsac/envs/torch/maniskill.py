"""ManiSkill: SAPIEN on torch tensors. On a GPU many environments, on a CPU one; the same code for both.

As in the published runs: state observations, normalised dense reward, and terminations ignored, so that every
episode runs to its limit and is a success if any step was. Ended episodes are reset here, so their last observation
is kept.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

import numpy as np
import torch

from warpsac.config.provenance import installed_versions
from warpsac.config.schema import EnvConfig
from warpsac.envs import overrides
from warpsac.envs.contract import EnvSpec
from warpsac.envs.names import Target
from warpsac.envs.torch.base import Tensor, TorchEnvs, TorchStep, learner_device, quietly
from warpsac.errors import OtherSettings, UserError, in_a_line
from warpsac.types import ObsViews

# Arguments of its environments that are not for `task_config`: what to do instead.
GOVERNED = {
    "num_envs": "use --env.num-envs",
    "obs_mode": "observations are states",
    **dict.fromkeys(("sim_backend", "render_backend", "render_mode"), "chosen by warpsac"),
}
PACKAGES = ["mani_skill", "sapien", "torch"]


REWARD = "normalized_dense"


class ManiSkillEnvs(TorchEnvs):
    def __init__(self, target: Target, num_envs: int, config: EnvConfig, render: bool = False):
        device, task = learner_device(), target.name
        most = most_envs()
        if most and num_envs > most:
            raise OtherSettings(
                f"{task}: ManiSkill simulates one environment on a CPU, not {num_envs}",
                {"env.num_envs": 1, "eval.num_envs": 1},
                ", or install 'warpsac[cuda]' for a GPU",
            )
        with quietly():
            self._env, limit = _build(target, num_envs, device.type == "cpu", render)
            self._limit = config.episode_limit or limit
            obs_dim = self._env.reset(seed=0)[0].shape[1]
        space = self._env.single_action_space
        spec = EnvSpec(
            task=task,
            family="maniskill",
            num_envs=num_envs,
            views=ObsViews(obs_dim, obs_dim),
            action_dim=int(space.shape[0]),
            action_low=tuple(space.low.tolist()),
            action_high=tuple(space.high.tolist()),
            episode_limit=self._limit,
            control_hz=float(self._env.control_freq),
            has_success=True,
            lockstep=True,
            most_envs=most,
            versions=installed_versions(PACKAGES),
        )
        super().__init__(spec, device)

    def start(self, seed: int) -> Tensor:
        with quietly():
            return self._env.reset(seed=seed)[0]

    def stagger(self) -> None:
        raise UserError("env.stagger = True: ManiSkill's episodes all start at once")

    def step(self, action: Tensor) -> TorchStep:
        obs, reward, _, _, info = self._env.step(action)
        truncated = self._env.elapsed_steps >= self._limit
        return TorchStep(obs, reward, torch.zeros_like(truncated), truncated, success=info["success"])

    def restart(self, envs: Tensor) -> Tensor:
        return self._env.reset(options={"env_idx": envs})[0]

    def render(self) -> np.ndarray:
        return np.asarray(self._env.render()[0].cpu())

    def close(self) -> None:
        self._env.close()


def most_envs() -> int | None:
    """A CPU simulates one environment."""
    return 1 if learner_device().type == "cpu" else None


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> TorchEnvs:
    return ManiSkillEnvs(target, num_envs, config, render)


def task_names() -> list[str]:
    """Every task of ManiSkill, and those that other packages have registered with it."""
    return list(_registered())


def _registered() -> dict[str, Any]:
    os.environ.setdefault("MS_SKIP_ASSET_DOWNLOAD_PROMPT", "1")  # it would wait for an answer
    with quietly():
        importlib.import_module("mani_skill.envs")
    logging.getLogger("mani_skill ").setLevel(logging.ERROR)  # its name ends in a blank
    return importlib.import_module("mani_skill.utils.registration").REGISTERED_ENVS


def settings_of(target: Target) -> overrides.Keywords:
    """The keyword arguments of a task's environments."""
    entry = _entry(target.id)
    return overrides.Keywords.of(entry.cls, given={**entry.default_kwargs, "reward_mode": REWARD})


def _entry(task: str) -> Any:
    registered = _registered()
    if task not in registered:
        raise UserError(f"{task}: the installed ManiSkill has no such task")
    return registered[task]


def _build(target: Target, num_envs: int, on_cpu: bool, render: bool) -> tuple[Any, int]:
    """ManiSkill's own environments without its wrappers, and the step limit it registers for them."""
    task, entry = target.id, _entry(target.id)
    settings = {
        "num_envs": num_envs,
        "obs_mode": "state",
        "reward_mode": REWARD,
        "sim_backend": "physx_cpu" if on_cpu else "physx_cuda",
        "render_backend": "cpu" if on_cpu else "gpu",
        "render_mode": "rgb_array" if render else None,
    }
    settings |= target.overrides
    try:
        return entry.make(**settings), int(entry.max_episode_steps)
    except Exception as error:
        raise UserError(f"{task}: {_remedy(in_a_line(error))}") from error


def _remedy(trouble: str) -> str:
    """What to do about an environment that ManiSkill could not make."""
    said = trouble.lower()
    if any(word in said for word in ("vulkan", "vk::", "render device", "rendering device", "libvulkan")):
        return (
            f"ManiSkill needs Vulkan even without pictures ({trouble}): on Debian, apt-get install libvulkan1 and "
            "mesa-vulkan-drivers 25 or newer (bookworm: from bookworm-backports), or a GPU driver with Vulkan"
        )
    if any(word in said for word in ("no such file", "urlopen", "download", "http")):
        return (
            f"its assets cannot be fetched here ({trouble}): run `python -m mani_skill.utils.download_asset` where "
            "there is a network, and copy ~/.maniskill or name its folder with MS_ASSET_DIR"
        )
    return f"cannot be made: {trouble}"
