"""`warpsac motion`: turn a csv file of the public retargeted format into a clip that a tracking task follows.

Each line of such a file is a frame: position of the root (3), its quaternion x y z w (4), the joint angles. The frames
are interpolated at the task's rate, velocities are differences of what results, and MuJoCo computes the bodies.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from warpsac.config.schema import Positive
from warpsac.envs.motion import ARRAYS, Clip
from warpsac.errors import UserError

ROOT = 7  # numbers before the joint angles
G1 = "g1"


@dataclass(frozen=True)
class MotionOptions:
    """Turn a csv file of retargeted motion into the npz file that a tracking task follows."""

    csv: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CLIP.csv")]
    """Lines of root position, root quaternion (x y z w) and joint angles, without a header."""
    out: str | None = None
    """The npz file to write; none: next to the csv file."""
    input_fps: Positive = 30.0
    """Frames per second of the csv file."""
    output_fps: Positive = 50.0
    """Frames per second of the npz file: the control rate of the task."""
    robot: str = G1
    """g1: MJLab's Unitree G1; or the MuJoCo xml file of another robot with a free root."""


def command(asked: MotionOptions) -> int:
    frames = read_frames(Path(asked.csv))
    out = Path(asked.out) if asked.out else Path(asked.csv).with_suffix(".npz")
    model = robot_model(asked.robot)
    clip = convert(frames, model, asked.input_fps, asked.output_fps, asked.csv)
    try:
        np.savez(out, fps=np.array([asked.output_fps]), **{name: getattr(clip, name) for name in ARRAYS})
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    print(f"motion: {out} ({clip.frames:,} frames, {clip.frames / asked.output_fps:.1f} s at {asked.output_fps:g} Hz)")
    return 0


def read_frames(path: Path) -> np.ndarray:
    """The numbers [frames, 7 + joints] of a csv file."""
    if path.exists() and not path.is_file():  # reading a pipe might never end
        raise UserError(f"{path}: not a plain file")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UserError(f"{path}: {reason}") from None
    rows: list[list[float]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append([float(cell) for cell in line.split(",")])
        except ValueError:
            raise UserError(f"{path}, line {number}: not numbers separated by commas") from None
        if len(rows[-1]) != len(rows[0]) or not np.isfinite(rows[-1]).all():
            raise UserError(f"{path}, line {number}: has {len(rows[-1])} finite numbers instead of {len(rows[0])}")
    if len(rows) < 2:
        raise UserError(f"{path}: has {len(rows)} frames; a motion needs 2 or more")
    return np.array(rows)


def robot_model(robot: str) -> Any:
    """The robot as an mjModel whose first joint is its free root."""
    import mujoco

    if robot == G1:
        try:
            from mjlab.asset_zoo.robots import get_g1_robot_cfg
        except ImportError as error:
            raise UserError(f"robot g1 needs mjlab ({error.name} is missing): pip install 'warpsac[mjlab]'") from None
        model = get_g1_robot_cfg().spec_fn().compile()
    else:
        try:
            model = mujoco.MjModel.from_xml_path(robot)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise UserError(f"robot = {robot!r}: must be g1 or a MuJoCo xml file ({reason})") from None
    free, hinge = mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_HINGE
    if model.njnt < 2 or model.jnt_type[0] != free or (model.jnt_type[1:] != hinge).any():
        raise UserError(f"robot = {robot!r}: must have a free root, and hinges as its other joints")
    return model


def convert(frames: np.ndarray, model: Any, input_fps: float, output_fps: float, where: str) -> Clip:
    """The frames [F, 7 + joints] at another rate, with velocities and the pose of every body."""
    import mujoco

    if frames.shape[1] != model.nq:
        joints = model.nq - ROOT
        raise UserError(f"{where}: has {frames.shape[1]} numbers in a line instead of 7 + {joints}, one for each joint")
    root, quat, angles = resampled(frames, input_fps, output_fps)
    if len(root) < 3:
        raise UserError(f"{where}: is too short: velocities need 3 frames at {output_fps:g} Hz or more")
    step = 1.0 / output_fps
    qpos = np.concatenate([root, quat, angles], axis=1)
    turning = angular_velocity(quat, step)
    qvel = np.concatenate([np.gradient(root, step, axis=0), turning, np.gradient(angles, step, axis=0)], axis=1)
    bodies = range(1, model.nbody)
    pose, velocity = np.zeros((len(qpos), len(bodies), 7)), np.zeros((len(qpos), len(bodies), 6))
    data = mujoco.MjData(model)
    for t in range(len(qpos)):
        data.qpos, data.qvel = qpos[t], qvel[t]
        # MuJoCo's free joint turns in its own frame.
        data.qvel[3:6] = rotation(quat[t]).T @ turning[t]
        mujoco.mj_forward(model, data)
        pose[t, :, :3], pose[t, :, 3:] = data.xpos[1:], data.xquat[1:]
        for i, body in enumerate(bodies):
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocity[t, i], 0)
    arrays = (angles, qvel[:, 6:], pose[..., :3], pose[..., 3:], velocity[..., 3:], velocity[..., :3])
    return Clip(**{name: array.astype(np.float32) for name, array in zip(ARRAYS, arrays, strict=True)}, fps=output_fps)


def resampled(frames: np.ndarray, input_fps: float, output_fps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Root position, root quaternion (w x y z) and joint angles, interpolated between the two nearest frames."""
    last = len(frames) - 1
    count = int(np.ceil(last / input_fps * output_fps - 1e-6))
    place = np.arange(count) * (input_fps / output_fps)
    before = np.minimum(place.astype(int), last - 1)
    part = (place - before)[:, None]
    quat = frames[:, [6, 3, 4, 5]]
    quat = quat / np.linalg.norm(quat, axis=1, keepdims=True)
    straight = frames[before] * (1 - part) + frames[before + 1] * part
    return straight[:, :3], slerp(quat[before], quat[before + 1], part), straight[:, ROOT:]


def slerp(start: np.ndarray, end: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Quaternions [T, 4] on the shorter way from `start` to `end`; `part` [T, 1] is 0 to 1."""
    cosine = np.sum(start * end, axis=1, keepdims=True)
    end, cosine = np.where(cosine < 0, -end, end), np.minimum(np.abs(cosine), 1.0)
    angle = np.arccos(cosine)
    sine = np.maximum(np.sin(angle), 1e-12)
    near = angle < 1e-6
    mixed = np.where(near, 1 - part, np.sin((1 - part) * angle) / sine) * start
    mixed += np.where(near, part, np.sin(part * angle) / sine) * end
    return mixed / np.linalg.norm(mixed, axis=1, keepdims=True)


def angular_velocity(quat: np.ndarray, step: float) -> np.ndarray:
    """In the world's frame [T, 3], from the frames before and after; the first and last equal their neighbours."""
    before, after = quat[:-2], quat[2:]
    # The turn from one to the other: after * conjugate(before).
    w = np.sum(after * before, axis=1)
    v = -after[:, :1] * before[:, 1:] + before[:, :1] * after[:, 1:] - np.cross(after[:, 1:], before[:, 1:])
    w, v = np.abs(w), np.where(w[:, None] < 0, -v, v)
    length = np.linalg.norm(v, axis=1)
    angle = 2 * np.arctan2(length, w)
    inner = v * (angle / np.maximum(length, 1e-12))[:, None] / (2 * step)
    return np.concatenate([inner[:1], inner, inner[-1:]])


def rotation(quat: np.ndarray) -> np.ndarray:
    """The matrix of a quaternion (w x y z)."""
    import mujoco

    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quat)
    return matrix.reshape(3, 3)
