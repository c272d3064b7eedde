"""Pictures of an environment: of a MuJoCo scene from a free camera, or what the environment itself draws.

The simulation hands over what is to be painted (`take`), which is cheap; painting is done in a thread of its
own, so that a slow one (OpenGL without a GPU) costs pictures, not real time.
"""

from __future__ import annotations

import copy
import io
import threading
import time
from typing import Any, Protocol

import numpy as np

from warpsac.envs import contract, drawing
from warpsac.errors import UserError, in_a_line
from warpsac.watch.viewer.board import Board
from warpsac.watch.viewer.controls import LARGEST, Camera, Controls

PICTURES_PER_SECOND = 40
SLOW_SECONDS = 0.06  # a picture that takes longer, three times in a row, is painted with less detail from then on


class Painter(Protocol):
    home: Camera | None
    """Where a free camera starts, known after the first `take`; None if the environment has its own."""
    velocity: tuple[float, float, float] | None
    """Of the robot when last taken, in its own frame: ahead, to the left, turning left."""

    def take(self) -> None:
        """Remember the environment as it is now. Called by the simulation."""

    def paint(self, controls: Controls) -> np.ndarray:
        """An RGB image of what was taken last. Called by the painter's thread."""

    def close(self) -> None: ...


def painter_of(env: contract.HostEnv) -> Painter:
    """A painter for an environment that has been reset."""
    if isinstance(env, contract.HasScene) and env.scene() is not None:
        return ScenePainter(env)
    return ImagePainter(env)


class ImagePainter:
    """Shows what the environment itself draws."""

    home: Camera | None = None
    velocity: tuple[float, float, float] | None = None

    def __init__(self, env: contract.HostEnv):
        self._env = env
        self._image: np.ndarray | None = None

    def take(self) -> None:
        self._image = image_of(self._env)

    def paint(self, controls: Controls) -> np.ndarray:
        assert self._image is not None, "paint before take"
        return self._image

    def close(self) -> None: ...


def image_of(env: contract.HostEnv) -> np.ndarray:
    """What `env.render` gives, or a clear line on why there is nothing to see."""
    try:
        image = env.render()
    except Exception as error:
        raise UserError(f"{env.spec.task} cannot be drawn: {in_a_line(error)}") from error
    if image.ndim != 3:
        raise UserError(f"{env.spec.task} cannot be drawn: its render() gives no RGB image")
    return np.ascontiguousarray(image)


class ScenePainter:
    """Paints a MuJoCo scene from a camera that the person moves."""

    def __init__(self, env: contract.HasScene):
        self._env = env
        self._lock = threading.Lock()
        self._taken: contract.Scene | None = None
        self._drawn: contract.Scene | None = None
        self._canvas: Canvas | None = None
        self._lookat = np.zeros(3)
        self._root = 0
        self._radius: float | None = None
        self._detailed, self._slow = True, 0
        self.home: Camera | None = None
        self.velocity: tuple[float, float, float] | None = None

    def take(self) -> None:
        import mujoco

        scene = self._env.scene()
        assert scene is not None
        model, data = scene
        with self._lock:
            if self._taken is None or self._taken.model is not model:  # an environment built anew has a new model
                self._taken = contract.Scene(model, mujoco.MjData(model))
                self._root = main_body(model)
                self.home = Camera(azimuth=135.0 if _is_free(model, self._root) else 90.0)
            self._taken = contract.Scene(model, _copied(self._taken.data, model, data))
        self.velocity = velocity_of(model, data, self._root)

    def paint(self, controls: Controls) -> np.ndarray:
        import mujoco

        with self._lock:
            assert self._taken is not None, "paint before take"
            model = self._taken.model
            if self._drawn is None or self._drawn.model is not model:
                self._leave_canvas()
                self._drawn = contract.Scene(model, mujoco.MjData(model))
                self._radius = None
            self._drawn = contract.Scene(model, _copied(self._drawn.data, model, self._taken.data))
            root = self._root
        data = self._drawn.data
        if controls.camera.follow or self._radius is None:
            self._lookat = np.array(data.subtree_com[root])
        if self._radius is None:
            self._radius = radius_of(model, data, root)
        if self._canvas is None:
            self._canvas = Canvas(model, self._detailed)
        begun = time.monotonic()
        image = self._canvas.paint(data, _placed(controls.camera, self._lookat, self._radius), controls.size)
        self._slow = self._slow + 1 if time.monotonic() - begun > SLOW_SECONDS else 0
        if self._detailed and self._slow >= 3:
            self._detailed = False
            self._leave_canvas()
        return image

    def close(self) -> None:
        """In the thread that painted: it owns the OpenGL context."""
        self._leave_canvas()

    def _leave_canvas(self) -> None:
        if self._canvas is not None:
            self._canvas.close()
            self._canvas = None


def _copied(memory: Any, model: Any, data: Any) -> Any:
    """The data in that memory; MuJoCo before 3.5 cannot do so and takes new memory each time."""
    import mujoco

    if not hasattr(mujoco, "mj_copyData"):
        return copy.copy(data)
    mujoco.mj_copyData(memory, model, data)
    return memory


class Canvas:
    """An off-screen OpenGL picture of one model. Belongs to the thread that made it."""

    def __init__(self, model: Any, detailed: bool):
        """Without `detailed` there are no shadows, no reflections and no smooth edges: ten times as fast on a CPU."""
        import mujoco

        self._model, self._detailed = model, detailed
        drawing.enlarge_buffer(model, *LARGEST)
        if not detailed:
            model.vis.quality.offsamples = 0
        self._gl = drawing.gl_context().GLContext(*LARGEST)
        self._gl.make_current()
        self._scene = mujoco.MjvScene(model, maxgeom=10_000)
        self._options = mujoco.MjvOption()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)

    def paint(self, data: Any, camera: Any, size: tuple[int, int]) -> np.ndarray:
        import mujoco

        every = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._options, None, camera, every, self._scene)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = self._detailed
        width, height = size
        view = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(view, self._scene, self._context)
        image = np.empty((height, width, 3), np.uint8)
        mujoco.mjr_readPixels(image, None, view, self._context)
        return np.ascontiguousarray(image[::-1])  # OpenGL counts rows from below

    def close(self) -> None:
        self._context.free()
        self._gl.free()


def main_body(model: Any) -> int:
    """The body whose tree moves in the most ways: the robot, not a ball beside it."""
    degrees = np.bincount(model.body_rootid, weights=model.body_dofnum, minlength=model.nbody)
    return int(np.argmax(degrees))


def _is_free(model: Any, body: int) -> bool:
    """Whether a body moves freely in space, by a joint of its own."""
    import mujoco

    joint = model.body_jntadr[body]
    return bool(joint >= 0 and model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE)


def radius_of(model: Any, data: Any, root: int) -> float:
    """How far the geoms of a body's tree reach from its centre of mass, as it stands now."""
    mine = (model.body_rootid[model.geom_bodyid] == root) & (model.geom_rbound > 0)  # a plane has no bound
    if not mine.any():
        return float(model.stat.extent)
    distance = np.linalg.norm(data.geom_xpos[mine] - data.subtree_com[root], axis=1) + model.geom_rbound[mine]
    return float(distance.max())


def velocity_of(model: Any, data: Any, body: int) -> tuple[float, float, float] | None:
    """Ahead, to the left and turning left, in the frame of a free body; None for others."""
    if not _is_free(model, body):
        return None
    first = model.jnt_dofadr[model.body_jntadr[body]]
    ahead, left, _ = np.reshape(data.xmat[body], (3, 3)).T @ data.qvel[first : first + 3]
    return float(ahead), float(left), float(data.qvel[first + 5])


def _placed(camera: Camera, lookat: np.ndarray, radius: float) -> Any:
    import mujoco

    distance = 3.2 * radius  # MuJoCo's 45 degrees then show all of it with some room around
    placed = mujoco.MjvCamera()
    placed.type = mujoco.mjtCamera.mjCAMERA_FREE
    placed.azimuth, placed.elevation = camera.azimuth, camera.elevation
    placed.distance = distance * camera.zoom
    # A drag over the whole picture is the height of what is seen at that distance.
    placed.lookat[:] = lookat + 2 * np.tan(np.radians(22.5)) * distance * np.array(camera.offset)
    return placed


def jpeg(image: np.ndarray) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=82)
    return stream.getvalue()


class Painting(threading.Thread):
    """Paints for as long as somebody looks, until the board is closed."""

    def __init__(self, painter: Painter, board: Board):
        super().__init__(name="painter", daemon=True)
        self._painter, self._board = painter, board

    def run(self) -> None:
        done: object = None
        try:
            while (job := self._board.next_job(done)) is not None:
                controls, done = job
                begun = time.monotonic()
                self._board.hang(jpeg(self._painter.paint(controls)))
                time.sleep(max(0.0, begun + 1 / PICTURES_PER_SECOND - time.monotonic()))
        except Exception as error:
            self._board.fail(error)
        finally:
            self._painter.close()
