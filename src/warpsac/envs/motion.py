"""Recorded motions that a robot is to follow: the npz files of MJLab's tracking tasks, one clip in each.

A clip has one row for each control step. Joints and bodies are all of the robot's, in the order of its model.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from warpsac.errors import UserError

MADE_BY = "`warpsac motion` makes one from a csv file"


class Clip(NamedTuple):
    """T control steps of J joints and B bodies, in world coordinates; quaternions are w x y z."""

    joint_pos: np.ndarray  # [T, J], rad
    joint_vel: np.ndarray  # [T, J], rad/s
    body_pos_w: np.ndarray  # [T, B, 3], m, of each body's frame
    body_quat_w: np.ndarray  # [T, B, 4]
    body_lin_vel_w: np.ndarray  # [T, B, 3], m/s
    body_ang_vel_w: np.ndarray  # [T, B, 3], rad/s
    fps: float | None = None  # None: the file does not say

    @property
    def frames(self) -> int:
        return len(self.joint_pos)


ARRAYS = Clip._fields[:-1]
# How far a robot is from its reference, and in which unit: over all joints, on average over the bodies.
ERRORS = {
    "error_anchor_pos": "m",
    "error_anchor_rot": "rad",
    "error_body_pos": "m",
    "error_body_rot": "rad",
    "error_joint_pos": "rad",
    "error_joint_vel": "rad/s",
}
_LAST_AXIS = {"body_pos_w": 3, "body_quat_w": 4, "body_lin_vel_w": 3, "body_ang_vel_w": 3}


def clip_files(path: Path | str) -> list[Path]:
    """A clip, or the clips of a folder in the order of their names."""
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("*.npz"))
        if not files:
            raise UserError(f"motion {path}: the folder has no .npz file; {MADE_BY}")
        return files
    if not path.is_file():
        raise UserError(f"motion {path}: no such file or folder; {MADE_BY}")
    return [path]


def fingerprint(path: Path | str) -> str:
    """The sha256 of a clip; of a folder, of the names and contents of its clips."""
    files = clip_files(path)
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    if not Path(path).is_dir():
        return hashes[0]
    listing = "".join(f"{digest}  {file.name}\n" for file, digest in zip(files, hashes, strict=True))
    return hashlib.sha256(listing.encode()).hexdigest()


def read_clip(path: Path | str | BinaryIO) -> Clip:
    """A clip whose arrays fit each other; a UserError in one line for any other file."""
    try:
        with np.load(path, allow_pickle=False) as content:
            missing = [name for name in ARRAYS if name not in content]
            if missing:
                raise UserError(f"motion {path}: has no array {missing[0]}; {MADE_BY}")
            arrays = {name: np.asarray(content[name]) for name in ARRAYS}
            fps = float(np.ravel(content["fps"])[0]) if "fps" in content and np.size(content["fps"]) else None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, AttributeError, TypeError):
        raise UserError(f"motion {path}: cannot be read as an npz file of plain arrays; {MADE_BY}") from None
    clip = Clip(**arrays, fps=fps)
    _require_fit(clip, path)
    return Clip(**{name: array.astype(np.float32) for name, array in arrays.items()}, fps=fps)


def _require_fit(clip: Clip, path: Any) -> None:
    for name in ARRAYS:
        array = getattr(clip, name)
        if array.dtype.kind not in "fiu":
            raise UserError(f"motion {path}: {name} does not hold numbers")
    count = clip.joint_pos.shape
    bodies = clip.body_pos_w.shape[1:2]
    if len(count) != 2 or count[0] < 2:
        raise UserError(f"motion {path}: joint_pos has shape {list(count)}; expected [frames, joints], 2 or more")
    expected = {name: (count[0], *bodies, size) for name, size in _LAST_AXIS.items()} | {"joint_vel": count}
    for name, shape in expected.items():
        found = getattr(clip, name).shape
        if found != shape:
            raise UserError(f"motion {path}: {name} has shape {list(found)}; expected {list(shape)}")
    for name in ARRAYS:
        if not np.isfinite(getattr(clip, name)).all():
            raise UserError(f"motion {path}: {name} has a number that is not finite")


def read_clips(path: Path | str, joints: int, bodies: int, hz: float) -> list[Clip]:
    """The clips of a file or folder, for a robot with so many joints and bodies that is controlled at this rate."""
    clips = []
    for file in clip_files(path):
        clip = read_clip(file)
        for what, found, own in (
            ("joints", clip.joint_pos.shape[1], joints),
            ("bodies", clip.body_pos_w.shape[1], bodies),
        ):
            if found != own:
                raise UserError(f"motion {file}: has {found} {what}, the robot {own}: it was made for another robot")
        if clip.fps is not None and abs(clip.fps - hz) > 1e-3 * hz:
            raise UserError(f"motion {file}: has {clip.fps:g} frames a second, the task {hz:g}: convert it again")
        clips.append(clip)
    return clips


def joined(clips: Sequence[Clip]) -> Clip:
    """All clips one after the other."""
    return Clip(**{name: np.concatenate([getattr(clip, name) for clip in clips]) for name in ARRAYS}, fps=clips[0].fps)
