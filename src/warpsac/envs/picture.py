"""Pictures of a MuJoCo simulation, drawn off screen."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np


class Picture:
    """Draws one model, through the first of some cameras that it has."""

    def __init__(self, model: Any, cameras: Sequence[str | Any] = (), height: int = 480, width: int = 640):
        import mujoco

        # MuJoCo decides how to draw when it is imported, which may be before anybody asked for a picture.
        importlib.reload(sys.modules[mujoco.Renderer.__module__].gl_context)
        # The model's own off-screen buffer may be smaller than the picture.
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
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
