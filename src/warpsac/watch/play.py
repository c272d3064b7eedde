"""Watch a policy: roll it out on its task, into an mp4 or before somebody's eyes in the browser."""

from __future__ import annotations

import importlib.util
import math
import os
import time
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.envs import contract, registry
from warpsac.errors import UserError
from warpsac.training.policy import LoadedPolicy, require_fit
from warpsac.watch import viewer
from warpsac.watch.video import find_gl, no_gl, writer
from warpsac.watch.viewer.painter import image_of

TELL_SECONDS = 10.0  # between two lines on how far a video is
LEAST_SECONDS = 4.0  # of a video: shorter episodes are followed by others


class Filmed(NamedTuple):
    steps: int
    returns: tuple[float, ...]
    """Of the episodes that ended; of the one that was begun if none did."""

    def __str__(self) -> str:
        mean = sum(self.returns) / len(self.returns)
        several = f"{len(self.returns)} episodes, mean " if len(self.returns) > 1 else ""
        return f"{self.steps:,} steps, {several}return {mean:.1f}"


class UntrainedAgent:
    """Does nothing, or anything: to look at a task before training."""

    def __init__(self, kind: Literal["zero", "random"], action_dim: int, seed: int):
        self._kind, self._dim = kind, action_dim
        self._random = np.random.default_rng(seed)

    def normalized(self, obs: np.ndarray) -> np.ndarray:
        shape = (len(obs), self._dim)
        action = np.zeros(shape) if self._kind == "zero" else self._random.uniform(-1, 1, shape)
        return action.astype(np.float32)


def record(
    agent: LoadedPolicy | Literal["zero", "random"],
    task: str,
    path: Path,
    steps: int,
    seed: int,
    config: EnvConfig | None = None,
) -> Filmed:
    """Write a video of an episode, or of several short ones, up to `steps` control steps."""
    env = _drawable(task, config)
    try:
        act = _actor(agent, env.spec, seed)
        rate = env.spec.control_hz or 30.0
        # Players dislike more than 60 frames a second: show every k-th step then, still in real time.
        every = math.ceil(rate / 60)
        obs, returns, running = env.reset(seed), [], 0.0
        told = time.monotonic()
        with writer(path, rate / every) as video:
            for step in range(steps):
                if time.monotonic() - told > TELL_SECONDS:
                    told = time.monotonic()
                    print(f"step {step:,} of at most {steps:,}", flush=True)
                if step % every == 0:
                    video.append_data(image_of(env))
                env.send(act(obs))
                result = env.recv().result
                obs = result.obs
                running += float(result.reward[0])
                if (result.terminated | result.truncated)[0]:
                    returns.append(running)
                    running = 0.0
                    if step + 1 >= LEAST_SECONDS * rate:
                        break
    finally:
        env.close()
    return Filmed(step + 1, tuple(returns or [running]))


def watch(
    agent: LoadedPolicy | Literal["zero", "random"],
    task: str,
    host: str,
    port: int,
    seed: int,
    config: EnvConfig | None = None,
) -> None:
    """Show an agent at work in the browser, until Ctrl-C."""

    def prepare() -> tuple[contract.HostEnv, viewer.Act]:
        env = _drawable(task, config)
        return env, _actor(agent, env.spec, seed)

    name = agent if isinstance(agent, str) else f"policy at step {agent.step:,}"
    viewer.watch(prepare, viewer.Status(task, name), host, port, seed)


def _actor(agent: LoadedPolicy | Literal["zero", "random"], spec: contract.EnvSpec, seed: int) -> viewer.Act:
    """What acts on observations [N, D] of these environments."""
    if isinstance(agent, LoadedPolicy):
        require_fit(agent, spec)
        return agent.normalized
    return UntrainedAgent(agent, spec.action_dim, seed).normalized


def _drawable(task: str, config: EnvConfig | None) -> contract.HostEnv:
    """One environment that can be drawn; MuJoCo is first told how to draw on this machine."""
    if importlib.util.find_spec("mujoco"):
        gl = find_gl()
        if gl is not None:
            os.environ["MUJOCO_GL"] = gl
        elif registry.lookup(task).family in registry.MUJOCO_FAMILIES:
            raise UserError(no_gl())
    return registry.make(task, 1, config, render=True)
