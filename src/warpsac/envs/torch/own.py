"""A user's own environments on torch tensors: N of them stepped together, on the learner's device.

    class MyEnvs:
        num_envs: int
        observation_size: int          # or name -> size, in order (see `envs.observations`)
        action_size: int               # actions in [-1, 1], or in action_low..action_high where the class has these
        episode_limit: int             # optional: episodes are truncated after so many steps
        control_hz: float              # optional: control steps per simulated second

        def reset(self, seed) -> obs                        start all episodes
        def step(self, action) -> obs, reward, terminated, truncated, info
        def reset_envs(self, envs) -> obs                   start new episodes in these environments (their numbers)
        def render(self) -> uint8 [height, width, 3]        optional
        def close(self)                                     optional

`obs` is [num_envs, size], or a mapping of such tensors by name. `step` does not reset: what it returns is the true last
observation of an episode that ended; `reset_envs` is called next, and only the rows of its environments are read. The
tensors may be buffers that the next call overwrites. `info["success"]`, bool [num_envs], is optional.

The factory is called with `num_envs` and `device` where its signature has them. A simulator that resets by itself, or
has a curriculum, subclasses `TorchEnvs` (`envs.torch.base`) instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from warpsac.config.schema import EnvConfig
from warpsac.envs import kinds
from warpsac.envs.contract import EnvSpec
from warpsac.envs.names import Target
from warpsac.envs.observations import layout_of, require_no_image
from warpsac.envs.torch.base import Tensor, TorchEnvs, TorchStep, learner_device
from warpsac.errors import UserError, counted


class OwnTorchEnvs(TorchEnvs):
    def __init__(self, made: Any, target: Target, num_envs: int, config: EnvConfig):
        missing = [name for name in ("reset", "step", "reset_envs") if not callable(getattr(made, name, None))]
        missing += [name for name in ("num_envs", "observation_size", "action_size") if not hasattr(made, name)]
        if missing:
            raise UserError(f"{target.name}: has no {missing[0]}; the contract is in docs/own-tasks.md")
        if made.num_envs != num_envs:
            there = counted(made.num_envs, "environment")
            raise UserError(f"{target.name}: made {there} instead of {num_envs}: it must take `num_envs`")
        if made.action_size < 1:
            raise UserError(f"{target.name}: action_size = {made.action_size}: must be above 0")
        self._made = made
        self._layout = layout_of(made.observation_size, getattr(made, "observation_groups", None))
        self._limit = config.episode_limit or getattr(made, "episode_limit", None)
        low, high = (_bounds(made, name, default) for name, default in (("action_low", -1.0), ("action_high", 1.0)))
        spec = EnvSpec(
            task=target.name,
            family="torch",
            num_envs=num_envs,
            views=self._layout.views,
            action_dim=made.action_size,
            action_low=low,
            action_high=high,
            episode_limit=self._limit,
            control_hz=getattr(made, "control_hz", None),
            has_success=False,
            lockstep=True,
            terms=self._layout.terms,
            critic_terms=self._layout.critic_terms,
        )
        super().__init__(spec, learner_device())
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        # One step tells whether there is a success to report; every run starts with a reset of its own.
        self.start(0)
        middle = (torch.tensor(low, device=self.device) + torch.tensor(high, device=self.device)) / 2
        has_success = self.step(middle.expand(num_envs, -1)).success is not None
        self.spec = dataclasses.replace(spec, has_success=has_success)

    def start(self, seed: int) -> Tensor:
        self._steps.zero_()
        return self._observation(self._made.reset(seed))

    def stagger(self) -> None:
        if self._limit is None:
            raise UserError(f"env.stagger = True: the episodes of {self.spec.task} have no step limit")
        self._steps = torch.randint_like(self._steps, self._limit)

    def step(self, action: Tensor) -> TorchStep:
        taken = self._made.step(action)
        if not isinstance(taken, tuple) or len(taken) != 5:
            raise UserError(f"{self.spec.task}: step() must return obs, reward, terminated, truncated, info")
        obs, reward, terminated, truncated, info = taken
        self._steps += 1
        if self._limit is not None:
            truncated = truncated.bool() | (self._steps >= self._limit)
        success = info.get("success") if isinstance(info, Mapping) else None
        return TorchStep(self._observation(obs), reward, terminated, truncated, success)

    def restart(self, envs: Tensor) -> Tensor:
        self._steps[envs] = 0
        return self._observation(self._made.reset_envs(envs))

    def _observation(self, obs: Any) -> Tensor:
        """The named parts as one tensor [N, D], checked: a wrong shape would be broadcast silently."""
        parts = self._layout.parts(obs)
        for part in parts:
            require_no_image(f"{self.spec.task}: observation", part.shape[1:], str(part.dtype).removeprefix("torch."))
        parts = [part.reshape(self.spec.num_envs, -1) for part in parts]
        joined = parts[0] if len(parts) == 1 else torch.cat([part.to(torch.float32) for part in parts], dim=1)
        if joined.shape[1] != self._layout.views.obs_dim:
            expected = self._layout.views.obs_dim
            raise UserError(f"{self.spec.task}: observations have {counted(joined.shape[1], 'number')}, not {expected}")
        return joined

    def render(self) -> np.ndarray:
        if not hasattr(self._made, "render"):
            return super().render()
        return np.asarray(self._made.render())

    def close(self) -> None:
        if hasattr(self._made, "close"):
            self._made.close()


def _bounds(made: Any, name: str, default: float) -> tuple[float, ...]:
    given = torch.as_tensor(getattr(made, name, default), dtype=torch.float32).cpu()
    return tuple(given.expand(made.action_size).tolist())


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> TorchEnvs:
    assert target.factory is not None
    made = kinds.call(target.factory, target.overrides, num_envs=num_envs, device=str(learner_device()))
    if not isinstance(made, TorchEnvs):
        return OwnTorchEnvs(made, target, num_envs, config)
    made.spec = dataclasses.replace(made.spec, task=target.name, family="torch")
    if made.spec.num_envs != num_envs:
        raise UserError(f"{target.name}: made {counted(made.spec.num_envs, 'environment')} instead of {num_envs}")
    return made
