"""The folder that Unitree's deploy programs read: exported/policy.onnx and params/deploy.yaml.

They know seven observation terms, one kind of gait and no delays, set gains in the order of the motors, and take
everything else in the order of the policy's joints (`joint_ids_map` has the motor of each). What they would refuse, or
run differently from training, is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from warpsac.envs.deploy_contract import Gait, Robot
from warpsac.errors import UserError

TERMS = (
    "base_ang_vel", "projected_gravity", "velocity_commands", "gait_phase",
    "joint_pos_rel", "joint_vel_rel", "last_action",
)  # fmt: skip
NO_PROTECTION = "Unitree's program does not notice a fall: its check of the orientation is switched off"


def _joints(*parts: str) -> tuple[str, ...]:
    return tuple(f"{part}_joint" for part in parts)


def _sides(*parts: str) -> list[str]:
    return [f"{side}_{part}" for side, part in product(("left", "right"), parts)]


_HIPS = ("hip_pitch", "hip_roll", "hip_yaw")
_LEG = ("knee", "ankle_pitch", "ankle_roll")
_ARM = ("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow", "wrist_roll", "wrist_pitch", "wrist_yaw")
_QUADRUPED = product(("FR", "FL", "RR", "RL"), ("hip", "thigh", "calf"))
_GAPS = ("", "")  # numbers without a motor, in place of two wrist joints
# A robot's joints in the order of its motors; an empty name is a number that no motor has.
MOTORS: dict[str, tuple[str, ...]] = {
    "G1": _joints(*_sides(*_HIPS, *_LEG), "waist_yaw", "waist_roll", "waist_pitch", *_sides(*_ARM)),
    "G1 with 23 joints": (
        *_joints(*_sides(*_HIPS, *_LEG), "waist_yaw"), *_GAPS,
        *_joints(*_sides(*_ARM[:5])[:5]), *_GAPS, *_joints(*_sides(*_ARM[:5])[5:]),
    ),
    "H1-2": _joints(*_sides("hip_yaw", "hip_pitch", "hip_roll", *_LEG), "torso", *_sides(*_ARM)),
    "R1": (
        *_joints(*_sides(*_HIPS, *_LEG), "waist_roll", "waist_yaw"), "",
        *_joints(*_sides(*_ARM[:5])[:5]), *_GAPS, *_joints(*_sides(*_ARM[:5])[5:]),
    ),
    "Go2 and A2": _joints(*map("_".join, _QUADRUPED)),
}  # fmt: skip


def motors_of(robot: Robot | None, task: str) -> list[int]:
    """The motor of each joint, if Unitree's program runs a policy as training did; otherwise a UserError."""
    obstacle = _obstacle(robot)
    if obstacle is not None or robot is None:
        raise UserError(f"layout = 'unitree': {task}: {obstacle}; leave --layout out for another program")
    motors = next(motors for motors in MOTORS.values() if set(robot.joints) == set(filter(None, motors)))
    return [motors.index(joint) for joint in robot.joints]


def _obstacle(robot: Robot | None) -> str | None:
    if robot is None:
        return "no robot is described"
    for place, term in enumerate(robot.observation):
        if term.function or term.name not in TERMS:
            return f"Unitree's program does not know the observation {term.name}"
        if term.delay:
            return f"Unitree's program knows no delay, and {term.name} is {term.delay} control steps old"
        if any(other.name == term.name for other in robot.observation[:place]):
            return f"Unitree's program knows one {term.name}, the policy observes two"
    clocked = any(term.name == "gait_phase" for term in robot.observation)
    if clocked and (robot.gait is None or robot.gait != Gait(robot.gait.frequency, (0.0,), "sin_cos", "zero", 0.1)):
        return "its gait is another than that of Unitree's program"
    if not any(set(robot.joints) == set(filter(None, motors)) for motors in MOTORS.values()):
        return f"the motors of {', '.join(MOTORS)} are known, not those of a robot with {robot.joints[0]}"
    return None


def by_motor(values: Sequence[float], motors: Sequence[int]) -> list[float]:
    """Numbers of the joints in the order of the motors, 0 where there is none."""
    found = [0.0] * (max(motors) + 1)
    for motor, value in zip(motors, values, strict=True):
        found[motor] = value
    return found
