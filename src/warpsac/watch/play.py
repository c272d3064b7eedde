"""Watch a policy: roll it out on its task, into an mp4 or live in the browser."""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.envs import contract, registry
from warpsac.envs.registry import Target
from warpsac.errors import UserError, counted
from warpsac.training.policy import LoadedPolicy, require_fit
from warpsac.watch.video import find_gl, image_of, no_gl, writer

PROGRESS_SECONDS = 10.0  # between two lines on how far a video is
LEAST_SECONDS = 4.0  # of a video: shorter episodes are followed by others
Agent = LoadedPolicy | Literal["zero", "random"]


class Filmed(NamedTuple):
    steps: int
    returns: tuple[float, ...]
    """Of the complete episodes; of the unfinished one if there is no other."""

    def __str__(self) -> str:
        mean = sum(self.returns) / len(self.returns)
        several = f"{counted(len(self.returns), 'episode')}, mean " if len(self.returns) > 1 else ""
        return f"{counted(self.steps, 'step')}, {several}return {mean:.1f}"


def record(agent: Agent, task: Target, path: Path, steps: int, seed: int, config: EnvConfig | None = None) -> Filmed:
    """Write a video of an episode, or of several short ones, up to `steps` control steps."""
    if not _choose_gl() and task.family in registry.MUJOCO_FAMILIES:
        raise UserError(no_gl())
    path = path.absolute()  # an environment may change the working directory
    env = registry.make(task, 1, config, render=True, seed=seed)
    try:
        act = _actor(agent, env.spec, seed)
        rate = env.spec.control_hz or 30.0
        # Players dislike more than 60 frames a second: show every k-th step then, still in real time.
        every = math.ceil(rate / 60)
        obs, returns, running = env.reset(seed), [], 0.0
        reported = time.monotonic()
        with writer(path, rate / every) as video:
            for step in range(steps):
                if time.monotonic() - reported > PROGRESS_SECONDS:
                    reported = time.monotonic()
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


def watch(agent: Agent, task: Target, host: str, port: int, seed: int, config: EnvConfig | None = None) -> None:
    """Show an agent at work in the browser, until Ctrl-C."""
    from warpsac.watch.viewer import session

    def prepare() -> tuple[contract.HostEnv, session.Act]:
        _choose_gl()  # for what an environment draws itself; MuJoCo's scenes need none
        draws = task.family not in registry.MUJOCO_FAMILIES
        env = registry.make(task, 1, config, render=draws, seed=seed)
        return env, _actor(agent, env.spec, seed)

    name = agent if isinstance(agent, str) else f"policy at step {agent.step:,}"
    session.watch(prepare, task.name, name, host, port, seed)


def _actor(agent: Agent, spec: contract.EnvSpec, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """What acts on observations [N, D] of these environments; untrained, it does nothing or anything."""
    if isinstance(agent, LoadedPolicy):
        require_fit(agent, spec)
        return agent.normalized
    random, width = np.random.default_rng(seed), 0.0 if agent == "zero" else 1.0
    return lambda obs: random.uniform(-width, width, (len(obs), spec.action_dim)).astype(np.float32)


def _choose_gl() -> bool:
    """Let MuJoCo, if it is installed, draw in a way that works on this machine; False if there is none."""
    if importlib.util.find_spec("mujoco") is None:
        return True
    gl = find_gl()
    os.environ.update({"MUJOCO_GL": gl} if gl else {})
    return gl is not None
