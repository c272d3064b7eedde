"""What MuJoCo-based environments share to be drawn: the scene they show, and the way to a picture."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from warpsac.envs import Scene


def scene_of(env: Any) -> Scene | None:
    """The scene of a single environment that keeps it as gymnasium's MuJoCo ones do; None of any other."""
    mujoco = sys.modules.get("mujoco")  # imported by the environment, if it is one
    base = getattr(env, "unwrapped", env)
    model, data = getattr(base, "model", None), getattr(base, "data", None)
    if mujoco is None or not isinstance(model, mujoco.MjModel) or not isinstance(data, mujoco.MjData):
        return None
    return Scene(model, data)


def gl_context() -> Any:
    """MuJoCo's module of OpenGL contexts, for the way to draw that MUJOCO_GL names now.

    MuJoCo decides when it is imported, which may have been before anybody asked for a picture.
    """
    from mujoco.rendering.classic import gl_context

    return importlib.reload(gl_context)


def enlarge_buffer(model: Any, width: int, height: int) -> None:
    """Make room for a picture of this size: a model's own off-screen buffer may be smaller."""
    model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
    model.vis.global_.offheight = max(model.vis.global_.offheight, height)
