"""The recorded motion that a policy follows: its present frame, and how far a robot is from it.

The frames are those of MJLab's tracking tasks: the robot starts in the first one and observes the second; its state at
the end of a control step is compared with the frame that it observed at the beginning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from warpsac.envs.deploy_contract import Motion
from warpsac.envs.motion import Clip, read_clips

# A robot has lost its motion (as in MJLab's own tasks) when its anchor is this far above or below the reference's,
LOST_HEIGHT = 0.25  # m,
LOST_UP = 0.8  # or the vertical part of its upward direction differs by more than this.


class Reference:
    """A clip, and the frame that the robot observes now."""

    def __init__(self, clip: Clip, motion: Motion):
        self.clip, self.motion, self.frame = clip, motion, 0
        self.over = False  # whether the last control step was that of the last frame
        self._anchor = motion.bodies.index(motion.anchor)
        self._tracked = [motion.bodies.index(name) for name in motion.tracked]

    def start(self, frame: int) -> None:
        """The robot is put into this frame, and observes the next."""
        self.frame, self.over = min(frame + 1, self.clip.frames - 1), False

    def advance(self) -> None:
        """To the next frame, which is the one to observe; at the end it stays."""
        self.over = self.frame == self.clip.frames - 1
        self.frame = min(self.frame + 1, self.clip.frames - 1)

    @property
    def command(self) -> np.ndarray:
        """Joint angles and velocities of the present frame, in the clip's order."""
        return np.concatenate([self.clip.joint_pos[self.frame], self.clip.joint_vel[self.frame]])

    def anchor_position(self, position: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Of the reference's anchor, in the frame of the robot's."""
        return matrix.T @ (self.clip.body_pos_w[self.frame, self._anchor] - position)

    def anchor_orientation(self, matrix: np.ndarray) -> np.ndarray:
        """The first two columns of the turn from the robot's anchor to the reference's, row by row."""
        own = matrix_of(self.clip.body_quat_w[self.frame, self._anchor])
        return (matrix.T @ own)[:, :2].ravel()

    def lost(self, position: np.ndarray, matrix: np.ndarray) -> bool:
        """Whether the robot's anchor, here, has fallen out of the motion."""
        own = self.clip.body_pos_w[self.frame, self._anchor], self.clip.body_quat_w[self.frame, self._anchor]
        height, up = abs(position[2] - own[0][2]), abs(matrix[2, 2] - matrix_of(own[1])[2, 2])
        return not (height <= LOST_HEIGHT and up <= LOST_UP)

    def errors(
        self, positions: np.ndarray, matrices: np.ndarray, angles: np.ndarray, velocities: np.ndarray
    ) -> dict[str, float]:
        """Distances from a robot with these bodies ([B, 3], [B, 3, 3]) and joints, all in the clip's order.

        Bodies are compared after the reference has been moved to the robot's anchor and turned to its heading.
        """
        frame, anchor, tracked = self.frame, self._anchor, self._tracked
        own = self.clip.body_pos_w[frame].astype(np.float64)
        own_matrices = np.array([matrix_of(quat) for quat in self.clip.body_quat_w[frame]])
        turn = _heading(matrices[anchor] @ own_matrices[anchor].T)
        place = np.array([*positions[anchor, :2], own[anchor, 2]])
        moved = place + (own[tracked] - own[anchor]) @ turn.T
        angle = [angle_between(turn @ own_matrices[i], matrices[i]) for i in tracked]
        return {
            "error_anchor_pos": float(np.linalg.norm(positions[anchor] - own[anchor])),
            "error_anchor_rot": angle_between(own_matrices[anchor], matrices[anchor]),
            "error_body_pos": float(np.linalg.norm(positions[tracked] - moved, axis=1).mean()),
            "error_body_rot": float(np.mean(angle)),
            "error_joint_pos": float(np.linalg.norm(angles - self.clip.joint_pos[frame])),
            "error_joint_vel": float(np.linalg.norm(velocities - self.clip.joint_vel[frame])),
        }


def read_reference(path: Path | str, motion: Motion, control_hz: float) -> Reference:
    """The first clip of a file or folder, if it is one of this robot."""
    return Reference(read_clips(path, len(motion.joints), len(motion.bodies), control_hz)[0], motion)


def matrix_of(quat: np.ndarray) -> np.ndarray:
    """The rotation of a quaternion (w x y z)."""
    import mujoco

    matrix: Any = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quat.astype(np.float64))
    return matrix.reshape(3, 3)


def angle_between(one: np.ndarray, other: np.ndarray) -> float:
    """Of two rotation matrices, rad."""
    turn = one.T @ other
    sine = np.linalg.norm([turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]])
    return float(np.arctan2(sine, np.trace(turn) - 1))


def _heading(matrix: np.ndarray) -> np.ndarray:
    """The part of a rotation about the vertical axis."""
    angle = np.arctan2(matrix[1, 0], matrix[0, 0])
    return np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1.0]])
