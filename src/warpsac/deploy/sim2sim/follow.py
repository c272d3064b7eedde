"""A recorded motion followed to its end: how close the robot stays to it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from warpsac.deploy.sim2sim.robot import Simulated
from warpsac.deploy.sim2sim.walk import Act, Each


class Followed(NamedTuple):
    """What was measured while a motion was followed."""

    errors: dict[str, np.ndarray]  # [steps] each, at the end of each control step
    power: np.ndarray  # [steps], W
    fell_at: tuple[float, ...]  # seconds from the start
    control_hz: float

    def summary(self) -> dict[str, Any]:
        return {
            "seconds": round(len(self.power) / self.control_hz, 6),
            "falls": len(self.fell_at),
            "first_fall": self.fell_at[0] if self.fell_at else None,
            "power": float(self.power.mean()),
            **{name: float(values.mean()) for name, values in self.errors.items()},
        }


def follow(robot: Simulated, act: Act, seconds: float, each: Each = lambda step, obs: None) -> Followed:
    """Follow the motion from its start, up to its end or for some seconds.

    A robot that falls out of it is put back into the frame where it fell.
    """
    assert robot.reference is not None
    hz, clip, nothing = robot.robot.control_hz, robot.reference.clip, np.zeros(0)
    steps = max(1, min(round(seconds * hz), clip.frames - 1))
    power, fell_at = np.zeros(steps), []
    errors: list[dict[str, float]] = []
    robot.reset()
    for step in range(steps):
        obs = robot.observe(nothing)
        each(step, obs)
        robot.step(act(obs), nothing)
        errors.append(robot.errors)
        power[step] = robot.power
        if robot.fallen:
            fell_at.append((step + 1) / hz)
            power[step] = 0.0  # it may be NaN
            errors[-1] = errors[-2] if step else dict.fromkeys(errors[-1], 0.0)
            robot.reset(step + 1)
    return Followed({name: np.array([one[name] for one in errors]) for name in errors[0]}, power, tuple(fell_at), hz)
