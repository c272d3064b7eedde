"""Deploy contracts of the tasks that have a robot: what each observes, in which order, and from which sensors.

`Deployment` is what a family's `deployment(task, config)` gives: the contract and the scene as files. The
tables below hold what Playground's tasks do in their own code and their models do not tell; everything else is read
off the MuJoCo model. MJLab's environments tell all of it (`mjlab_robots`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from warpsac.envs.deploy_contract import Gait, Robot, Term, rounded
from warpsac.errors import UserError


class SceneFiles(NamedTuple):
    """A MuJoCo scene that needs nothing beside it."""

    xml: str
    assets: dict[str, bytes]
    """Meshes, textures and height fields by name, in the folder `ASSETS` beside the xml."""


ASSETS = "assets"

Numbers = Sequence[float] | np.ndarray


class Deployment(NamedTuple):
    robot: Robot
    scene: SceneFiles | None = None


class Sensing(NamedTuple):
    """The part of a contract that only the task's own code knows."""

    base: str
    observation: tuple[Term, ...]
    gait: Gait | None


def _playground(base: str, imu: str, velocimeter: str, gyro: str, joints: int, gait: Gait) -> Sensing:
    """Playground's humanoid joystick tasks. Each step computes its observation before it takes note of the action
    and advances the gait: both are seen one control step late."""
    observation = (
        Term("base_lin_vel", 3, velocimeter),
        Term("base_ang_vel", 3, gyro),
        Term("projected_gravity", 3, imu),
        Term("velocity_commands", 3),
        Term("joint_pos_rel", joints),
        Term("joint_vel_rel", joints),
        Term("last_action", joints, delay=1),
        Term("gait_phase", 4, delay=1),
    )
    return Sensing(base, observation, gait)


# Training draws each robot's gait frequency from a range; its middle is exported.
_G1 = _playground(
    "pelvis", "imu_in_pelvis", "local_linvel_pelvis", "gyro_pelvis", 29,
    Gait((1.25 + 1.5) / 2, (0.0, math.pi), "cos_sin"),
)  # fmt: skip
_T1 = _playground(
    "Trunk", "imu", "local_linvel", "gyro", 23,
    Gait((1.25 + 1.75) / 2, (0.0, math.pi), "cos_sin", standing="held", standing_below=0.01),
)  # fmt: skip
PLAYGROUND = {
    "G1JoystickFlatTerrain": _G1,
    "G1JoystickRoughTerrain": _G1,
    "T1JoystickFlatTerrain": _T1,
    "T1JoystickRoughTerrain": _T1,
}


class Gains(NamedTuple):
    """Of the motors of some joints, and of these joints, in their order."""

    stiffness: np.ndarray
    damping: np.ndarray
    """Of motor and joint together, as a motor has to give it."""
    effort_limit: np.ndarray
    """Infinite where nothing limits it."""
    joint_range: np.ndarray
    """[2, joints]: least and greatest angle, infinite where nothing limits it."""
    target_range: np.ndarray
    """[2, joints]: target angles that the motors take, infinite where they take all."""


def motors_of(model: Any) -> tuple[tuple[str, ...], Gains]:
    """The joints that a MuJoCo model drives towards target angles, and the gains of their motors.

    They are all its hinges, in the model's order, each with an actuator: that is the order of observations and
    actions.
    """
    import mujoco

    joints = [i for i in range(model.njnt) if model.jnt_type[i] == mujoco.mjtJoint.mjJNT_HINGE]
    if sorted(int(joint) for joint in model.actuator_trnid[:, 0]) != joints:
        raise UserError("the robot's actuators are not one for each joint")
    gains = gains_of(model, joints)
    if gains is None:
        raise UserError("the robot's actuators do not drive joints towards target angles")
    return tuple(model.joint(i).name for i in joints), gains


def described(
    joints: tuple[str, ...],
    gains: Gains,
    sensing: Sensing,
    default_pose: Numbers,
    base_height: float,
    action_scale: float | Numbers,
    control_hz: float,
    command_range: tuple[Numbers, Numbers],
    prefix: str = "",
) -> Robot:
    """The contract as plain numbers, from whatever a simulator has."""
    return Robot(
        base=sensing.base,
        base_height=rounded(base_height),
        joints=joints,
        default_pose=_rounded(default_pose),
        action_scale=_rounded(np.broadcast_to(np.asarray(action_scale, np.float64), len(joints))),
        stiffness=_rounded(gains.stiffness),
        damping=_rounded(gains.damping),
        control_hz=rounded(control_hz),
        command_low=_rounded(command_range[0]),
        command_high=_rounded(command_range[1]),
        observation=sensing.observation,
        gait=sensing.gait,
        prefix=prefix,
        target_low=_limits(gains.target_range[0]),
        target_high=_limits(gains.target_range[1]),
        joint_low=_limits(gains.joint_range[0]),
        joint_high=_limits(gains.joint_range[1]),
        effort_limit=_limits(gains.effort_limit),
    )


def _limits(numbers: np.ndarray) -> tuple[float, ...]:
    return _rounded(numbers) if np.isfinite(numbers).all() else ()


def gains_of(model: Any, joints: Sequence[int]) -> Gains | None:
    """As the model's actuators have them; None if some joint has none that drives it towards a target angle.

    A joint may have one actuator for the angle and one for the velocity: their gains add up.
    """
    import mujoco

    found, taken = np.zeros((3, len(joints))), unlimited(len(joints))
    for place, joint in enumerate(joints):
        on_joint = (model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT) & (model.actuator_trnid[:, 0] == joint)
        own = on_joint & (model.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE)
        stiffness, damping = -model.actuator_biasprm[own, 1:3].sum(axis=0)
        if own.sum() != on_joint.sum() or stiffness <= 0:
            return None
        limits = np.where(model.actuator_forcelimited[own], model.actuator_forcerange[own, 1], np.inf)
        of_joint = model.jnt_actfrcrange[joint, 1] if model.jnt_actfrclimited[joint] else np.inf
        passive = model.dof_damping[model.jnt_dofadr[joint]]
        found[:, place] = stiffness, damping + passive, min(limits.sum(), of_joint)
        for i in np.flatnonzero(own & model.actuator_ctrllimited.astype(bool) & (model.actuator_biasprm[:, 1] < 0)):
            taken[:, place] = model.actuator_ctrlrange[i]
    stiffness, damping, effort_limit = found
    return Gains(stiffness, damping, effort_limit, joint_range(model, joints), taken)


def joint_range(model: Any, joints: Sequence[int]) -> np.ndarray:
    """[2, joints]: least and greatest angle, infinite where the model has no limit."""
    limited = model.jnt_limited[list(joints)].astype(bool)
    return np.where(limited, model.jnt_range[list(joints)].T, unlimited(len(joints)))


def unlimited(count: int) -> np.ndarray:
    return np.array([[-np.inf] * count, [np.inf] * count])


def _rounded(numbers: Numbers) -> tuple[float, ...]:
    return tuple(map(rounded, numbers))


def scene_files(spec: Any, model: Any, assets: Mapping[str, bytes]) -> SceneFiles:
    """A scene as one xml and the files that it names; `model` is the one that is simulated.

    `assets` are by file name, whatever folder the xml asks for. The settings of the solver are taken from the
    model, which simulators change after they have built it.
    """
    import mujoco

    for name in dir(spec.option):
        if not name.startswith("_"):
            setattr(spec.option, name, getattr(model.opt, name))
    spec.compile()
    spec.meshdir = spec.texturedir = ASSETS
    needed: dict[str, bytes] = {}
    for part in (*spec.meshes, *spec.textures, *spec.hfields):
        if part.file:
            part.file = PurePosixPath(part.file).name
            needed[part.file] = assets[part.file]
    # Of an attached model MuJoCo writes an empty class of defaults that it does not read again.
    files = SceneFiles(spec.to_xml().replace("<default/>", ""), needed)
    again = mujoco.MjModel.from_xml_string(files.xml, {f"{ASSETS}/{name}": data for name, data in needed.items()})
    _require_same_physics(model, again)
    return files


# The xml gives six digits.
_PHYSICS = ("body_mass", "body_inertia", "body_pos", "dof_damping", "dof_armature", "dof_frictionloss", "jnt_range",
            "actuator_gainprm", "actuator_biasprm", "actuator_ctrlrange", "geom_friction", "geom_contype",
            "geom_conaffinity", "geom_size", "geom_solref", "geom_solimp")  # fmt: skip


def _require_same_physics(model: Any, again: Any) -> None:
    for name in _PHYSICS:
        one, other = getattr(model, name), getattr(again, name)
        if one.shape != other.shape or not np.allclose(one, other, rtol=1e-4, atol=1e-6):
            raise UserError(f"the scene cannot be exported: {name} changes on the way")
    for name in ("timestep", "iterations", "ls_iterations", "integrator", "solver", "cone", "disableflags"):
        if getattr(model.opt, name) != getattr(again.opt, name):
            raise UserError(f"the scene cannot be exported: option {name} changes on the way")
