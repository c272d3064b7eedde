"""How MuJoCo-based environments are drawn: the scene they show, and a picture of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from warpsac.envs.contract import Scene


def scene_of(env: Any) -> Scene | None:
    """The scene of a single environment that keeps it as gymnasium's MuJoCo ones do; None for any other."""
    mujoco = sys.modules.get("mujoco")  # imported by the environment, if it is one
    base = getattr(env, "unwrapped", env)
    model, data = getattr(base, "model", None), getattr(base, "data", None)
    if mujoco is None or not isinstance(model, mujoco.MjModel) or not isinstance(data, mujoco.MjData):
        return None
    return Scene(model, data)


class FirstEnvironment:
    """Environment 0 of a batched simulator as plain MuJoCo data; each call overwrites the one before."""

    def __init__(self) -> None:
        self._data: Any = None

    def scene(self, model: Any, batched: Any) -> Scene:
        """`batched` has qpos, qvel and the mocap arrays with a leading axis of environments, in JAX or torch."""
        import mujoco

        if self._data is None:
            self._data = mujoco.MjData(model)
        for name in ("qpos", "qvel", *(("mocap_pos", "mocap_quat") if model.nmocap else ())):
            value = getattr(batched, name)[0]
            getattr(self._data, name)[:] = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
        mujoco.mj_forward(model, self._data)
        return Scene(model, self._data)


def gl_context() -> Any:
    """MuJoCo's module of OpenGL contexts, for the backend that MUJOCO_GL names now.

    MuJoCo chooses when it is imported, which may have been before a picture was asked for.
    """
    import mujoco

    return importlib.reload(sys.modules[mujoco.Renderer.__module__].gl_context)


def enlarge_buffer(model: Any, width: int, height: int) -> None:
    """Make room for a picture of this size: a model's own off-screen buffer may be smaller."""
    model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
    model.vis.global_.offheight = max(model.vis.global_.offheight, height)


def add_ghost(scene: Any, model: Any, data: Any, colour: Sequence[float] = (0.5, 0.7, 0.5, 0.4)) -> None:
    """Add the movable bodies of another state of the same model to a scene (mjvScene), see-through."""
    import mujoco

    before = scene.ngeom
    option, perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
    mujoco.mjv_addGeoms(model, data, option, perturb, mujoco.mjtCatBit.mjCAT_DYNAMIC, scene)
    for geom in scene.geoms[before : scene.ngeom]:
        geom.rgba[:] = colour


class Picture:
    """Draws one model, through the first of these cameras that it has, else its first, else the free one.

    Nothing of OpenGL is used before the first picture.
    """

    def __init__(self, model: Any, cameras: Sequence[str], height: int = 480, width: int = 640):
        self._model, self._cameras, self._size = model, cameras, (height, width)
        self._renderer: Any = None
        self._camera: str | int = -1

    def draw(self, data: Any) -> np.ndarray:
        """[height, width, 3]"""
        if self._renderer is None:
            self._prepare()
        self._renderer.update_scene(data, camera=self._camera)
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()

    def _prepare(self) -> None:
        import mujoco

        gl_context()
        model, (height, width) = self._model, self._size
        enlarge_buffer(model, width, height)
        if model.nlight == 0:  # lit by the camera alone, which is dim by default
            model.vis.headlight.ambient[:], model.vis.headlight.diffuse[:] = 0.4, 0.8
        self._renderer = mujoco.Renderer(model, height, width)
        names = [model.camera(i).name for i in range(model.ncam)]
        known = [camera for camera in self._cameras if camera in names]
        self._camera = known[0] if known else (0 if names else -1)
