"""The deploy contract of an MJLab environment, read off its managers.

MJLab builds a task from terms, each a function and its settings: the function says what a part of the observation
means. Those that the contract has a name for are translated. Any other keeps the task's own name, its size and its
function: a program on a robot has to provide it. The gait of unitree_rl_mjlab is recognised by its function too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from warpsac.envs import mujoco_robots
from warpsac.envs.deploy_contract import Gait, Motion, Robot, SceneFiles, Term, rounded
from warpsac.envs.mujoco_robots import Gains, Sensing
from warpsac.envs.torch import mjlab_motion

OBSERVATIONS = "mjlab.envs.mdp.observations"
TRACKING = "mjlab.tasks.tracking.mdp.observations"
# A clock of one angle that starts at zero; both numbers are zero under a command shorter than this.
UNITREE_PHASE = "src.tasks.velocity.mdp.observations.phase"
UNITREE_STANDING = 0.1
NAMED = ("sensor_name", "command_name")  # parameters of a term that are shown by their value alone
COMMANDED = ("lin_vel_x", "lin_vel_y", "ang_vel_z")


class Driven(NamedTuple):
    """What the actions of an environment drive."""

    entity: Any
    prefix: str  # of its names in the scene
    joints: tuple[str, ...]  # in the order of the actions
    scale: np.ndarray
    offset: np.ndarray

    @property
    def base(self) -> str:
        return str(self.entity.root_body.name).removeprefix(self.prefix)


def robot_of(env: Any, groups: Sequence[str]) -> Robot | None:
    """The contract of an environment whose actor observes these groups; None if its actions are not joint targets."""
    driven = _driven(env)
    gains = None if driven is None else _gains(env.sim.mj_model, driven)
    if driven is None or gains is None:
        return None
    observation = terms_of(env, groups, driven)
    robot = mujoco_robots.describe_robot(
        driven.joints,
        gains,
        Sensing(driven.base, observation, _gait(env, groups), _motion(env, driven)),
        default_pose=driven.offset,
        base_height=float(_numbers(driven.entity.data.default_root_state)[2]),
        action_scale=driven.scale,
        control_hz=1.0 / env.step_dt,
        command_range=_command_range(env, observation),
        prefix=driven.prefix,
    )
    # MJLab updates its sensors before it observes.
    return dataclasses.replace(robot, sensors="current", disturbances=_disturbances(env))


def _motion(env: Any, driven: Driven) -> Motion | None:
    """The clips of a task that follows a motion of the driven robot."""
    name = mjlab_motion.command_of(env.cfg)
    command = None if name is None else env.command_manager.get_term(name)
    if command is None or command.robot is not driven.entity:
        return None
    files = mjlab_motion.exported(command.cfg.clips)
    return Motion(
        files=tuple(files),
        sha256=tuple(hashlib.sha256(content).hexdigest() for content in files.values()),
        joints=tuple(driven.entity.joint_names),
        bodies=tuple(driven.entity.body_names),
        anchor=command.cfg.anchor_body_name,
        tracked=tuple(command.cfg.body_names),
    )


def scene_of(env: Any) -> SceneFiles:
    """The scene as files; the environment is unusable afterwards."""
    spec = env.scene.spec
    assets = {Path(name).name: data for name, data in spec.assets.items()}
    for entity in env.scene.entities.values():
        for folder in {entity.spec.meshdir, entity.spec.texturedir}:
            for path in sorted((Path(entity.spec.modelfiledir) / folder).glob("*")):
                if path.is_file():
                    assets.setdefault(path.name, path.read_bytes())
    return mujoco_robots.scene_files(spec, env.sim.mj_model, assets)


# --- what the actions drive


def _driven(env: Any) -> Driven | None:
    names = env.action_manager.active_terms
    term = env.action_manager.get_term(names[0])
    if len(names) != 1 or type(term).__name__ != "JointPositionAction" or term.cfg.clip is not None:
        return None
    count = len(term.target_names)
    scale, offset = (np.broadcast_to(_numbers(value), count) for value in (term._scale, term._offset))
    return Driven(term._entity, f"{term.cfg.entity_name}/", tuple(term.target_names), scale, offset)


def _gains(model: Any, driven: Driven) -> Gains | None:
    """Of the model if its actuators take target angles, else of MJLab's motors that compute torques from them."""
    joints = [int(model.joint(driven.prefix + name).id) for name in driven.joints]
    found = mujoco_robots.gains_of(model, joints)
    if found is not None:
        return found
    by_joint: dict[str, tuple[float, float, float]] = {}
    for actuator in driven.entity.actuators:
        settings = getattr(actuator.cfg, "base_cfg", actuator.cfg)  # of a delayed one
        if hasattr(settings, "stiffness") and hasattr(settings, "damping"):
            limit = getattr(settings, "effort_limit", None)
            gains = (settings.stiffness, settings.damping, math.inf if limit is None else limit)
            by_joint |= dict.fromkeys(actuator.target_names, gains)
    if any(name not in by_joint for name in driven.joints):
        return None
    stiffness, damping, limit = np.array([by_joint[name] for name in driven.joints]).T
    damping = damping + model.dof_damping[model.jnt_dofadr[joints]]
    targets = mujoco_robots.unlimited(len(joints))
    return Gains(stiffness, damping, limit, mujoco_robots.joint_range(model, joints), targets)


# --- what the actor observes


def terms_of(env: Any, groups: Sequence[str], driven: Driven | None = None) -> tuple[Term, ...]:
    """The actor's observation, part by part; without `driven` under the task's own names."""
    manager, found = env.observation_manager, []
    for group in groups:
        names, sizes = manager.active_terms[group], manager.group_obs_term_dim[group]
        if len(names) > 1 and any(len(size) > 1 for size in sizes):  # interleaved: images, or unflattened histories
            whole = int(np.prod(manager.group_obs_dim[group]))
            found.append(Term(group, whole, function=f"observation group {group}"))
            continue
        for name, size in zip(names, sizes):
            found.append(_term(env, name, int(np.prod(size)), manager.get_term_cfg(group, name), driven))
    return tuple(found)


def _term(env: Any, name: str, size: int, settings: Any, driven: Driven | None) -> Term:
    history = max(1, settings.history_length)
    meaning, source = (None if driven is None else _meaning(env, settings, size // history, driven)) or ("", "")
    return Term(
        name=meaning or name,
        size=size,
        source=source if meaning else _parameters(settings, env),
        delay=settings.delay_min_lag if meaning in ("last_action", "gait_phase") else 0,
        scale=_scale(settings.scale),
        clip=None if settings.clip is None else tuple(float(bound) for bound in settings.clip),
        history=history,
        function="" if meaning else _path(settings.func),
    )


def _meaning(env: Any, settings: Any, size: int, driven: Driven) -> tuple[str, str] | None:
    """The contract's name for a term and where its value comes from; None if the contract has none."""
    of_robot = _entity_name(settings) == driven.prefix[:-1]
    match _path(settings.func).removeprefix(f"{OBSERVATIONS}."):
        case "base_lin_vel" | "base_ang_vel" | "projected_gravity" as name:
            return (name, driven.base) if of_robot else None
        case "joint_pos_rel" | "joint_vel_rel" as name:
            return (name, "") if of_robot and _is_of_driven_joints(name, settings, driven) else None
        case "last_action":
            return ("last_action", "") if size == len(driven.joints) else None
        case "generated_commands":
            command = settings.params["command_name"]
            if command == mjlab_motion.command_of(env.cfg):
                return "motion_command", ""
            return ("velocity_commands", "") if _is_velocity(env, command) else None
        case path if path in (f"{TRACKING}.motion_anchor_pos_b", f"{TRACKING}.motion_anchor_ori_b"):
            return path.rpartition(".")[2], ""
        case "builtin_sensor":
            return _sensor(env.sim.mj_model, settings.params["sensor_name"], driven)
        case "projected_gravity_from_sensor":
            return _frame(env.sim.mj_model, settings.params["sensor_name"], driven)
        case path if path == UNITREE_PHASE:
            return ("gait_phase", "") if size == 2 else None
    return None


def _is_of_driven_joints(name: str, settings: Any, driven: Driven) -> bool:
    """Whether it is about the driven joints, in their order, and relative to the pose that actions start from."""
    if _joints(settings, driven.entity) != driven.joints:
        return False
    expected = driven.offset if name == "joint_pos_rel" else np.zeros(len(driven.joints))
    return np.allclose(_default(driven.entity, name, driven.joints), expected, atol=1e-6)


def _is_velocity(env: Any, command: str) -> bool:
    ranges = getattr(env.command_manager.get_term(command).cfg, "ranges", None)
    return all(hasattr(ranges, name) for name in COMMANDED)


def _sensor(model: Any, sensor: str, driven: Driven) -> tuple[str, str] | None:
    """A gyroscope or velocimeter that is part of the base."""
    import mujoco

    kinds = {mujoco.mjtSensor.mjSENS_GYRO: "base_ang_vel", mujoco.mjtSensor.mjSENS_VELOCIMETER: "base_lin_vel"}
    entry = model.sensor(sensor)
    name = kinds.get(mujoco.mjtSensor(int(entry.type[0])))
    if name is None or model.body(int(model.site_bodyid[int(entry.objid[0])])).name != driven.prefix + driven.base:
        return None
    return name, sensor.removeprefix(driven.prefix)


def _frame(model: Any, sensor: str, driven: Driven) -> tuple[str, str] | None:
    """The site in whose frame a sensor gives the upward direction."""
    import mujoco

    entry = model.sensor(sensor)
    if int(entry.reftype[0]) != mujoco.mjtObj.mjOBJ_SITE:
        return None
    return "projected_gravity", str(model.site(int(entry.refid[0])).name).removeprefix(driven.prefix)


def _gait(env: Any, groups: Sequence[str]) -> Gait | None:
    manager = env.observation_manager
    for settings in (manager.get_term_cfg(group, name) for group in groups for name in manager.active_terms[group]):
        if _path(settings.func) == UNITREE_PHASE:
            return Gait(1.0 / settings.params["period"], (0.0,), "sin_cos", "zero", UNITREE_STANDING)
    return None


def _command_range(env: Any, observation: Sequence[Term]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of the velocity command at present: a curriculum may widen it in training."""
    if not any(term.name == "velocity_commands" and not term.function for term in observation):
        return (), ()
    command = next(name for name in env.command_manager.active_terms if _is_velocity(env, name))
    ranges = env.command_manager.get_term(command).cfg.ranges
    low, high = zip(*(getattr(ranges, part) for part in COMMANDED))
    return low, high


def _disturbances(env: Any) -> tuple[str, ...]:
    """Its events: pushes, friction, masses and the like."""
    found = []
    for name, event in env.cfg.events.items():
        when = event.mode
        if event.mode == "interval" and event.interval_range_s is not None:
            when = "every {:g} to {:g} s".format(*event.interval_range_s)
        found.append(f"{name} ({when})")
    return tuple(found)


# --- MJLab's settings as plain values


def _path(function: Any) -> str:
    """Of a function, or of the class of a callable object."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _entity_name(settings: Any) -> str:
    chosen = settings.params.get("asset_cfg")
    return "robot" if chosen is None else str(chosen.name)  # MJLab's own default


def _joints(settings: Any, entity: Any) -> tuple[str, ...]:
    chosen = settings.params.get("asset_cfg")
    ids = slice(None) if chosen is None else chosen.joint_ids
    return tuple(np.array(entity.joint_names)[ids])


def _default(entity: Any, term: str, names: Sequence[str]) -> np.ndarray:
    """What the term joint_pos_rel or joint_vel_rel subtracts, for these joints."""
    values = _numbers(getattr(entity.data, f"default_{term.removesuffix('_rel')}"))
    return values[[entity.joint_names.index(name) for name in names]]


def _parameters(settings: Any, env: Any) -> str:
    """Of a task's own term: the joints with their default; or its sensor, its command, and its other parameters."""
    kind = _path(settings.func).rpartition(".")[2]
    if kind in ("joint_pos_rel", "joint_vel_rel"):
        entity = env.scene[_entity_name(settings)]
        names = _joints(settings, entity)
        default = map(rounded, _default(entity, kind, names))
        return ", ".join(f"{name} minus {number:g}" if number else name for name, number in zip(names, default))
    named = [str(settings.params[name]) for name in NAMED if name in settings.params]
    rest = [f"{name} {_as_text(value)}" for name, value in settings.params.items() if name not in NAMED]
    return ", ".join(named + rest)


def _as_text(value: Any) -> str:
    """A parameter; a selection of an entity's parts by their names."""
    if not hasattr(value, "name"):
        return str(value)
    named = [getattr(value, f"{kind}_names", None) or () for kind in ("site", "body", "geom", "joint")]
    chosen = [one for names in named for one in ((names,) if isinstance(names, str) else names)]
    return f"{value.name} ({', '.join(chosen)})" if chosen else str(value.name)


def _scale(scale: Any) -> float | tuple[float, ...]:
    if scale is None:
        return 1.0
    numbers = [rounded(number) for number in np.atleast_1d(_on_host(scale))]
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)


def _numbers(value: Any) -> np.ndarray:
    """A setting as float64: one for all environments, or the first environment's."""
    array = _on_host(value)
    return array[0] if array.ndim == 2 else array


def _on_host(value: Any) -> np.ndarray:
    return np.asarray(value.cpu() if hasattr(value, "cpu") else value, np.float64)
