"""A short motion for tests: the robot stands, swings an arm and sways, as a csv file of the retargeted format."""

from __future__ import annotations

from pathlib import Path

import numpy as np

JOINTS = 29  # of the Unitree G1
HIP, KNEE, ANKLE, ELBOW = (0, 6), (3, 9), (4, 10), (18, 25)


def frames(count: int = 31) -> np.ndarray:
    """Root position, root quaternion (x y z w) and joint angles, at 30 frames a second."""
    phase = np.linspace(0, 2 * np.pi * (count - 1) / 30, count)
    rows = np.zeros((count, 7 + JOINTS))
    rows[:, 2] = 0.76 + 0.003 * np.sin(phase)
    rows[:, 5], rows[:, 6] = np.sin(0.05 * np.sin(phase)), np.cos(0.05 * np.sin(phase))  # turns about z
    joints = rows[:, 7:]
    joints[:, HIP], joints[:, KNEE], joints[:, ANKLE] = -0.312, 0.669, -0.363
    joints[:, ELBOW] = 0.6
    joints[:, 15] = 0.2 + 0.3 * np.sin(phase)
    return rows


def write_csv(path: Path, count: int = 31) -> Path:
    np.savetxt(path, frames(count), delimiter=",", fmt="%.9f")
    return path
