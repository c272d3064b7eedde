"""probe-point on torch tensors, for tests of the torch path without a simulator.

probe-torch             steps together; every result is a buffer that the next step overwrites
probe-torch-critic      the same; a critic group (the squared position) next to the actor's
probe-torch-self-reset  resets ended episodes by itself and reports their last observation
probe-torch-blind       resets ended episodes by itself and drops their last observation
probe-torch-single      like -self-reset; exists once in a process
probe-torch-faulty      like probe-torch; every 40th step of environment 0 gives NaN, until it is restarted

Environment i draws the same numbers as environment i of probe-point with the same seed, and computes the same.
"""

from __future__ import annotations

import numpy as np
import torch

from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import EnvSpec
from warpsac.envs.host.vector import reset_seed
from warpsac.envs.names import Target
from warpsac.envs.probes.host import Point
from warpsac.envs.torch.base import Tensor, TorchEnvs, TorchStep, learner_device
from warpsac.types import ObsViews

FAULT_EVERY = 40


class TorchPoint(TorchEnvs):
    _alive: TorchPoint | None = None  # the one that may exist

    def __init__(self, task: str, num_envs: int):
        kind = task.removeprefix("probe-torch").removeprefix("-")
        self.resets_itself = kind in ("self-reset", "blind", "single")
        self._faulty, self._blind, self._critic = kind == "faulty", kind == "blind", kind == "critic"
        if kind == "single":
            if TorchPoint._alive is not None:
                raise RuntimeError("a second simulator in one process")
            TorchPoint._alive = self
        obs_dim = Point.obs_dim + 2 * self._critic
        spec = EnvSpec(
            task=task,
            family="probe-torch",
            num_envs=num_envs,
            views=ObsViews(obs_dim, Point.obs_dim),
            action_dim=2,
            action_low=(-2.0,) * 2,
            action_high=(2.0,) * 2,
            episode_limit=Point.limit,
            has_success=True,
            lockstep=True,
            single=kind == "single",
        )
        super().__init__(spec, learner_device())
        self._random: list[np.random.Generator] = []
        self._count = 0

        def buffer(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(num_envs, *shape, dtype=dtype, device=self.device)

        self._point = buffer(4, dtype=torch.float64)
        self._steps = buffer(dtype=torch.int64)
        self._obs, self._final = (buffer(obs_dim, dtype=torch.float32) for _ in range(2))
        self._reward = buffer(dtype=torch.float32)
        self._terminated, self._truncated, self._success = (buffer(dtype=torch.bool) for _ in range(3))

    def start(self, seed: int) -> Tensor:
        seeds = (reset_seed(seed, i) for i in range(self.spec.num_envs))
        self._random = [np.random.default_rng(own) for own in seeds]
        return self.restart(torch.arange(self.spec.num_envs, device=self.device))

    def stagger(self) -> None:
        self._steps[:] = torch.arange(self.spec.num_envs) * Point.limit // self.spec.num_envs

    def step(self, action: Tensor) -> TorchStep:
        self._count += 1
        self._steps += 1
        noise = np.stack([draws.normal(0, 0.01, 2) for draws in self._random])
        velocity = 0.8 * self._point[:, 2:] + 0.1 * action.double() + self._tensor(noise)
        self._point[:] = torch.cat([self._point[:, :2] + 0.3 * velocity, velocity], dim=1)
        if self._faulty and self._count % FAULT_EVERY == 0:
            self._point[0] = torch.nan
        distance = torch.linalg.vector_norm(self._point[:, :2], dim=1)
        self._terminated[:] = distance > 3
        self._truncated[:] = self._steps == Point.limit
        self._success[:] = distance < 0.1
        self._reward[:] = -distance - 10.0 * self._terminated
        self._observe()
        final = None
        if self.resets_itself:
            self._final[:] = self._obs
            final = None if self._blind else self._final
            self.restart((self._terminated | self._truncated).nonzero().squeeze(1))
        return TorchStep(self._obs, self._reward, self._terminated, self._truncated, self._success, final)

    def restart(self, envs: Tensor) -> Tensor:
        for i in envs.tolist():
            place = self._random[i].uniform(-1, 1, 2)
            self._point[i] = self._tensor(np.concatenate([place, np.zeros(2)]))
            self._steps[i] = 0
        self._observe()
        return self._obs

    def _observe(self) -> None:
        self._obs[:, :4] = self._point
        if self._critic:
            self._obs[:, 4:] = self._point[:, :2].square()

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, device=self.device)

    def close(self) -> None:
        if TorchPoint._alive is self:
            TorchPoint._alive = None


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> TorchEnvs:
    return TorchPoint(target.name, num_envs)
