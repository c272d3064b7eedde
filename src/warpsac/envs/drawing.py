"""What MuJoCo-based environments share to be drawn: the scene they show, and the way to a picture."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from warpsac.envs.contract import Scene


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
    import mujoco

    return importlib.reload(sys.modules[mujoco.Renderer.__module__].gl_context)


def enlarge_buffer(model: Any, width: int, height: int) -> None:
    """Make room for a picture of this size: a model's own off-screen buffer may be smaller."""
    model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
    model.vis.global_.offheight = max(model.vis.global_.offheight, height)


class Picture:
    """Draws one model, through the first of some cameras that it has."""

    def __init__(self, model: Any, cameras: Sequence[str | Any] = (), height: int = 480, width: int = 640):
        import mujoco

        gl_context()
        enlarge_buffer(model, width, height)
        if model.nlight == 0:  # lit by the camera alone, which is dim by default
            model.vis.headlight.ambient[:], model.vis.headlight.diffuse[:] = 0.4, 0.8
        self._renderer = mujoco.Renderer(model, height, width)
        self._camera = choose_camera(model, cameras)

    def draw(self, data: Any) -> np.ndarray:
        """[height, width, 3]"""
        self._renderer.update_scene(data, camera=self._camera)
        return self._renderer.render()

    def close(self) -> None:
        self._renderer.close()


def choose_camera(model: Any, cameras: Sequence[str | Any]) -> Any:
    """The first camera whose name the model knows (or that is no name); else its first; else the free one."""
    names = [model.camera(i).name for i in range(model.ncam)]
    usable = [camera for camera in cameras if not isinstance(camera, str) or camera in names]
    return usable[0] if usable else (0 if names else -1)
