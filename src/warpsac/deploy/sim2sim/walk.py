"""A walk under one command: its numbers, and its video."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from warpsac.deploy.sim2sim.robot import Simulated
from warpsac.envs import drawing
from warpsac.errors import UserError
from warpsac.watch import video

WIDTH, HEIGHT = 640, 480  # of videos
SETTLING_SECONDS = 1.0  # after a start: not counted as tracking

Act = Callable[[np.ndarray], np.ndarray]  # observation [D] -> action [A] in the simulator's own range
Each = Callable[[int, np.ndarray], None]  # called before every control step: its number and the observation
Done = TypeVar("Done")


class Walk(NamedTuple):
    """What was measured on a walk under one command."""

    command: np.ndarray  # [3]
    velocity: np.ndarray  # [steps, 3] at the end of each control step
    power: np.ndarray  # [steps], W
    actions: np.ndarray  # [steps, A] as the policy gave them
    counted: np.ndarray  # bool [steps], not settling after a start
    fell_at: tuple[float, ...]  # seconds from the start
    control_hz: float

    def summary(self) -> dict[str, Any]:
        """The numbers by name; tracking is absent if the robot never stood long enough."""
        result: dict[str, Any] = {
            "seconds": round(len(self.velocity) / self.control_hz, 6),
            "falls": len(self.fell_at),
            "first_fall": self.fell_at[0] if self.fell_at else None,
            "command": self.command.tolist(),
            "power": float(self.power.mean()),
        }
        if self.counted.any():
            error = self.velocity[self.counted] - self.command
            result["velocity"] = self.velocity[self.counted].mean(0).tolist()
            result["mean_error"] = error.mean(0).tolist()
            result["rms_error"] = np.sqrt(np.square(error).mean(0)).tolist()
            change = np.diff(self.actions, axis=0)[self.counted[1:]]
            result["action_rate"] = float(np.square(change).mean())
        return result


def walk(
    robot: Simulated,
    act: Act,
    command: Sequence[float],
    seconds: float,
    each: Each = lambda step, obs: None,
) -> Walk:
    """Walk under one command; a fallen robot is put back on its feet and continues.

    `each` is called before every control step with its number and the observation.
    """
    hz = robot.robot.control_hz
    order, steps, since_start = np.array(command, np.float64), max(1, round(seconds * hz)), 0
    velocity, power, counted = np.zeros((steps, 3)), np.zeros(steps), np.zeros(steps, bool)
    actions = np.zeros((steps, len(robot.robot.joints)))
    fell_at = []
    robot.reset()
    for step in range(steps):
        obs = robot.observe(order)
        each(step, obs)
        actions[step] = act(obs)
        robot.step(actions[step], order)
        since_start += 1
        velocity[step], power[step] = robot.velocity, robot.power
        counted[step] = since_start > SETTLING_SECONDS * hz
        if robot.fallen:
            fell_at.append((step + 1) / hz)
            velocity[step], power[step], counted[step] = 0, 0, False  # they may be NaN
            robot.reset()
            since_start = 0
    return Walk(order, velocity, power, actions, counted, tuple(fell_at), hz)


# --- pictures


def film(robot: Simulated, go: Callable[[Each], Done], path: Path) -> Done:
    """What `go` does with the robot and a video of it, at real-time speed; a motion that it follows is a shadow there.

    `go` calls what it is given before every control step. MUJOCO_GL must have been set (`prepare_to_draw`).

    Without shadows, reflections and antialiasing: ten times as fast on a machine without a GPU.
    """
    import mujoco

    hz, model = robot.robot.control_hz, robot.model
    every = max(1, round(hz / 25))
    drawing.enlarge_buffer(model, WIDTH, HEIGHT)
    model.vis.quality.offsamples = 0
    camera = mujoco.MjvCamera()
    camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, robot.base
    camera.distance, camera.azimuth, camera.elevation = 3.5 * robot.robot.base_height, 130, -15
    with (
        contextlib.closing(mujoco.Renderer(model, HEIGHT, WIDTH)) as renderer,
        video.writer(path, hz / every) as target,
    ):

        def draw(step: int, obs: np.ndarray) -> None:
            if step % every == 0:
                renderer.update_scene(robot.data, camera)
                if robot.reference is not None:
                    drawing.add_ghost(renderer.scene, model, robot.reference_pose())
                for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                    renderer.scene.flags[flag] = False
                target.append_data(renderer.render())

        return go(draw)


def prepare_to_draw() -> None:
    """Choose how MuJoCo draws on this machine; before it is imported, as it decides then."""
    gl = video.find_gl()
    if gl is None:
        raise UserError(video.no_gl())
    os.environ["MUJOCO_GL"] = gl
