"""Watch a policy: roll it out on its task, into an mp4 or before somebody's eyes in the browser."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from warpsac import envs, viewer
from warpsac.config import EnvConfig
from warpsac.errors import UserError
from warpsac.files import in_words
from warpsac.policy import LoadedPolicy, require_fit
from warpsac.viewer.painter import image_of

# Families that only MuJoCo can draw.
_TRY_GL = "import mujoco; c = mujoco.GLContext(64, 64); c.make_current(); c.free()"


def find_gl() -> str | None:
    """A way for MuJoCo to draw here: 'egl', 'osmesa' or 'glfw'; None if there is none.

    Tried in another process, because a failed attempt cannot be undone in this one.
    """
    chosen = os.environ.get("MUJOCO_GL")
    names = [chosen] if chosen else ["egl", "osmesa"] + (["glfw"] if os.environ.get("DISPLAY") else [])
    if sys.platform == "darwin" and not chosen:
        names = ["glfw"]
    for name in names:
        done = subprocess.run(
            [sys.executable, "-c", _TRY_GL],
            env=os.environ | {"MUJOCO_GL": name},
            capture_output=True,
            timeout=60,
        )
        if done.returncode == 0:
            return name
    return None


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
) -> float:
    """Write a video of one episode, up to `steps` control steps of it; returns its return so far."""
    env = _drawable(task, config)
    try:
        act = _actor(agent, env.spec, seed)
        rate = env.spec.control_hz or 30.0
        # Players dislike more than 60 frames a second: show every k-th step then, still in real time.
        every = max(1, round(rate / 50))
        obs, total = env.reset(seed), 0.0
        with _writer(path, rate / every) as video:
            for step in range(steps):
                if step % every == 0:
                    video.append_data(image_of(env))
                env.send(act(obs))
                result = env.recv().result
                obs = result.obs
                total += float(result.reward[0])
                if (result.terminated | result.truncated)[0]:
                    break
    finally:
        env.close()
    return total


def watch(
    agent: LoadedPolicy | Literal["zero", "random"],
    task: str,
    host: str,
    port: int,
    seed: int,
    config: EnvConfig | None = None,
) -> None:
    """Show an agent at work in the browser, until Ctrl-C."""

    def prepare() -> tuple[envs.HostEnv, viewer.Act]:
        env = _drawable(task, config)
        return env, _actor(agent, env.spec, seed)

    name = agent if isinstance(agent, str) else f"policy at step {agent.step:,}"
    viewer.watch(prepare, viewer.Status(task, name), host, port, seed)


def _actor(agent: LoadedPolicy | Literal["zero", "random"], spec: envs.EnvSpec, seed: int) -> viewer.Act:
    """What acts on observations [N, D] of these environments."""
    if isinstance(agent, LoadedPolicy):
        require_fit(agent, spec)
        return agent.normalized
    return UntrainedAgent(agent, spec.action_dim, seed).normalized


def _drawable(task: str, config: EnvConfig | None) -> envs.HostEnv:
    """One environment that can be drawn; MuJoCo is first told how to draw on this machine."""
    if importlib.util.find_spec("mujoco"):
        gl = find_gl()
        if gl is not None:
            os.environ["MUJOCO_GL"] = gl
        elif envs.lookup(task).family in envs.MUJOCO_FAMILIES:
            raise UserError(
                "no way to draw here: on Debian or Ubuntu, `apt-get install libegl1 libgl1 libgl1-mesa-dri` "
                "gives MuJoCo software rendering"
            )
    return envs.make(task, 1, config, render=True)


@contextlib.contextmanager
def _writer(path: Path, rate: float) -> Iterator[Any]:
    import imageio.v2 as imageio

    if not path.parent.is_dir():
        raise UserError(f"{path}: no such folder {path.parent}")
    if path.suffix.lower() != ".mp4":
        raise UserError(f"{path}: the video must be an .mp4 file")
    beside = path.with_name(f".{path.stem}.tmp.mp4")  # half a video never stands under the final name
    try:
        with warnings.catch_warnings():
            # The encoder is another program, begun at the first image: JAX's fear of a fork is unfounded.
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
            with imageio.get_writer(str(beside), fps=rate, macro_block_size=2, quality=7) as video:
                yield video
        os.replace(beside, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {in_words(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
