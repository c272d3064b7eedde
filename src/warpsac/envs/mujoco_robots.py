"""Deploy contracts read off a MuJoCo model: joints, motors and limits, and the scene as files.

What a robot observes is not in the model: that part (`Sensing`) comes from the task, from a table for Playground's
(`jax/playground_tasks.py`) and from the managers of MJLab's environments (`torch/mjlab_robots.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from warpsac.envs.deploy_contract import ASSETS, Gait, Motion, Robot, SceneFiles, Term, rounded
from warpsac.errors import UserError

Numbers = Sequence[float] | np.ndarray


class Sensing(NamedTuple):
    """The part of a contract that only the task's own code knows."""

    base: str
    observation: tuple[Term, ...]
    gait: Gait | None
    motion: Motion | None = None


class Gains(NamedTuple):
    """The motors of some joints, and the joints' own limits, in the order of the joints."""

    stiffness: np.ndarray
    damping: np.ndarray
    """Of motor and joint together, as a motor has to provide it."""
    effort_limit: np.ndarray
    """Infinite without a limit."""
    joint_range: np.ndarray
    """[2, joints]: lowest and highest angle, infinite without a limit."""
    target_range: np.ndarray
    """[2, joints]: target angles that the motors accept, infinite without a limit."""


def motors_of(model: Any) -> tuple[tuple[str, ...], Gains]:
    """The joints that a MuJoCo model drives towards target angles, and the gains of their motors.

    They must be all its hinges, each with one actuator; their order in the model is that of observations and actions.
    """
    import mujoco

    joints = [i for i in range(model.njnt) if model.jnt_type[i] == mujoco.mjtJoint.mjJNT_HINGE]
    if sorted(int(joint) for joint in model.actuator_trnid[:, 0]) != joints:
        raise UserError("the robot's actuators are not one for each joint")
    gains = gains_of(model, joints)
    if gains is None:
        raise UserError("the robot's actuators do not drive joints towards target angles")
    return tuple(model.joint(i).name for i in joints), gains


def gains_of(model: Any, joints: Sequence[int]) -> Gains | None:
    """The gains of the model's actuators; None if some joint has none that drives it towards a target angle.

    A joint may have one actuator for the angle and one for the velocity: their gains add up.
    """
    import mujoco

    found, targets = np.zeros((3, len(joints))), unlimited(len(joints))
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
            targets[:, place] = model.actuator_ctrlrange[i]
    stiffness, damping, effort_limit = found
    return Gains(stiffness, damping, effort_limit, joint_range(model, joints), targets)


def joint_range(model: Any, joints: Sequence[int]) -> np.ndarray:
    limited = model.jnt_limited[list(joints)].astype(bool)
    return np.where(limited, model.jnt_range[list(joints)].T, unlimited(len(joints)))


def unlimited(count: int) -> np.ndarray:
    return np.array([[-np.inf] * count, [np.inf] * count])


def describe_robot(
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
    """The contract as plain numbers."""

    def numbers(values: Numbers) -> tuple[float, ...]:
        return tuple(map(rounded, values))

    def limits(values: np.ndarray) -> tuple[float, ...]:
        return numbers(values) if np.isfinite(values).all() else ()

    return Robot(
        base=sensing.base,
        base_height=rounded(base_height),
        joints=joints,
        default_pose=numbers(default_pose),
        action_scale=numbers(np.broadcast_to(np.asarray(action_scale, np.float64), len(joints))),
        stiffness=numbers(gains.stiffness),
        damping=numbers(gains.damping),
        control_hz=rounded(control_hz),
        command_low=numbers(command_range[0]),
        command_high=numbers(command_range[1]),
        observation=sensing.observation,
        gait=sensing.gait,
        prefix=prefix,
        target_low=limits(gains.target_range[0]),
        target_high=limits(gains.target_range[1]),
        joint_low=limits(gains.joint_range[0]),
        joint_high=limits(gains.joint_range[1]),
        effort_limit=limits(gains.effort_limit),
        motion=sensing.motion,
    )


# --- the scene

# What must survive the way through the xml, which has six digits.
_PHYSICS = ("body_mass", "body_inertia", "body_pos", "dof_damping", "dof_armature", "dof_frictionloss", "jnt_range",
            "actuator_gainprm", "actuator_biasprm", "actuator_ctrlrange", "geom_friction", "geom_contype",
            "geom_conaffinity", "geom_size", "geom_solref", "geom_solimp")  # fmt: skip
_OPTIONS = ("timestep", "iterations", "ls_iterations", "integrator", "solver", "cone", "disableflags")


def scene_files(spec: Any, model: Any, assets: Mapping[str, bytes]) -> SceneFiles:
    """A scene as one xml and the files that it names; `model` is the one that is simulated.

    `assets` are by file name, whatever folder the xml asks for. The solver settings come from the model, as simulators
    change them after they have built it.
    """
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
    # For an attached model MuJoCo writes an empty class of defaults that it cannot read again.
    files = SceneFiles(spec.to_xml().replace("<default/>", ""), needed)
    again = files.load()
    for name in _PHYSICS:
        one, other = getattr(model, name), getattr(again, name)
        if one.shape != other.shape or not np.allclose(one, other, rtol=1e-4, atol=1e-6):
            raise UserError(f"the scene cannot be exported: {name} would change")
    for name in _OPTIONS:
        if getattr(model.opt, name) != getattr(again.opt, name):
            raise UserError(f"the scene cannot be exported: option {name} would change")
    return files
