"""Watch a policy: roll it out on its task and write an mp4."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from warpsac import envs
from warpsac.errors import UserError
from warpsac.policy import LoadedPolicy

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


def record(policy: LoadedPolicy, task: str, path: Path, steps: int, seed: int) -> float:
    """Write one video of up to `steps` control steps; returns the return of its first episode."""
    import imageio.v2 as imageio

    gl = find_gl()
    if gl is None:
        raise UserError(
            "no way to draw here: on Debian or Ubuntu, `apt-get install libegl1 libgl1 libgl1-mesa-dri` "
            "gives MuJoCo software rendering"
        )
    os.environ["MUJOCO_GL"] = gl
    env = envs.make(task, 1, render=True)
    rate = env.spec.control_hz or 30.0
    # Players dislike more than 60 frames a second: show every k-th step then, still in real time.
    every = max(1, round(rate / 50))
    total, counting = 0.0, True
    try:
        obs = env.reset(seed)
        video: Any
        with imageio.get_writer(str(path), fps=rate / every, macro_block_size=2, quality=7) as video:
            for step in range(steps):
                if step % every == 0:
                    video.append_data(np.ascontiguousarray(env.render()))
                env.send(policy.normalized(obs))
                result = env.recv().result
                obs = result.obs
                if counting:
                    total += float(result.reward[0])
                if (result.terminated | result.truncated)[0]:
                    counting = False
                    break
    finally:
        env.close()
    return total
