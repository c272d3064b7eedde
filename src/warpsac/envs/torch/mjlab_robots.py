"""The deploy contract of an MJLab environment, read off its managers.

MJLab builds a task from terms, each a function and its settings: which function it is tells what a part of the
observation means. Those that the contract has a name for are translated. Any other keeps the task's own name, its
size and its function: a program on a robot has to bring it along. The same holds for the gait of unitree_rl_mjlab,
which is told by the name of its function.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from warpsac.envs import robots
from warpsac.envs.deploy_contract import Gait, Robot, Term, rounded
from warpsac.envs.robots import Gains, SceneFiles, Sensing

OBSERVATIONS = "mjlab.envs.mdp.observations"
# A clock of one angle that begins at zero; both numbers are zero under a command shorter than this.
UNITREE_PHASE = "src.tasks.velocity.mdp.observations.phase"
UNITREE_STANDING = 0.1
NAMED = ("sensor_name", "command_name")  # parameters of a term that go without saying what they are
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
    if driven is None:
        return None
    gains = _gains(env.sim.mj_model, driven)
    if gains is None:
        return None
    observation = terms_of(env, groups, driven)
    low, high = _command_range(env, observation)
    robot = robots.described(
        driven.joints,
        gains,
        Sensing(driven.base, observation, _gait(env, groups)),
        default_pose=driven.offset,
        base_height=float(_numbers(driven.entity.data.default_root_state)[2]),
        action_scale=driven.scale,
        control_hz=1.0 / env.step_dt,
        command_range=(low, high),
        prefix=driven.prefix,
    )
    # MJLab computes its sensors anew before it observes.
    return dataclasses.replace(robot, sensors="current", disturbances=_disturbances(env))


def scene_of(env: Any) -> SceneFiles:
    """The scene as files; the environment is of no use afterwards."""
    spec = env.scene.spec
    assets = {Path(name).name: data for name, data in spec.assets.items()}
    for entity in env.scene.entities.values():
        for folder in {entity.spec.meshdir, entity.spec.texturedir}:
            for path in sorted((Path(entity.spec.modelfiledir) / folder).glob("*")):
                if path.is_file():
                    assets.setdefault(path.name, path.read_bytes())
    return robots.scene_files(spec, env.sim.mj_model, assets)


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
    """Of the model where its actuators take target angles, else of MJLab's motors that compute torques from them."""
    joints = [int(model.joint(driven.prefix + name).id) for name in driven.joints]
    found = robots.gains_of(model, joints)
    if found is not None:
        return found
    told: dict[str, tuple[float, float, float]] = {}
    for actuator in driven.entity.actuators:
        settings = getattr(actuator.cfg, "base_cfg", actuator.cfg)  # of a delayed one
        if hasattr(settings, "stiffness") and hasattr(settings, "damping"):
            limit = getattr(settings, "effort_limit", None)
            gains = (settings.stiffness, settings.damping, math.inf if limit is None else limit)
            told |= dict.fromkeys(actuator.target_names, gains)
    if any(name not in told for name in driven.joints):
        return None
    stiffness, damping, limit = np.array([told[name] for name in driven.joints]).T
    damping = damping + model.dof_damping[model.jnt_dofadr[joints]]
    return Gains(stiffness, damping, limit, robots.joint_range(model, joints), robots.unlimited(len(joints)))


# --- what the actor observes


def terms_of(env: Any, groups: Sequence[str], driven: Driven | None = None) -> tuple[Term, ...]:
    """The actor's observation, part by part; without `driven` under the task's own names."""
    manager, found = env.observation_manager, []
    for group in groups:
        names, sizes = manager.active_terms[group], manager.group_obs_term_dim[group]
        if len(names) > 1 and any(len(size) > 1 for size in sizes):  # interwoven: pictures, or unflattened histories
            whole = int(np.prod(manager.group_obs_dim[group]))
            found.append(Term(group, whole, function=f"observation group {group}"))
            continue
        for name, size in zip(names, sizes):
            found.append(_term(env, name, int(np.prod(size)), manager.get_term_cfg(group, name), driven))
    return tuple(found)


def _term(env: Any, name: str, size: int, settings: Any, driven: Driven | None) -> Term:
    history = max(1, settings.history_length)
    meaning, source = (None if driven is None else _meaning(env, settings, size // history, driven)) or ("", "")
    own = "" if meaning else _path(settings.func)
    return Term(
        name=meaning or name,
        size=size,
        source=source if meaning else _looked_at(settings, env),
        delay=settings.delay_min_lag if meaning in ("last_action", "gait_phase") else 0,
        scale=_scale(settings.scale),
        clip=None if settings.clip is None else tuple(float(bound) for bound in settings.clip),
        history=history,
        function=own,
    )


def _meaning(env: Any, settings: Any, size: int, driven: Driven) -> tuple[str, str] | None:
    """The contract's name for a term and where its value comes from; None if the contract has none."""
    asks: dict[str, Callable[[], tuple[str, str] | None]] = {
        f"{OBSERVATIONS}.base_lin_vel": lambda: _of_base("base_lin_vel", settings, driven),
        f"{OBSERVATIONS}.base_ang_vel": lambda: _of_base("base_ang_vel", settings, driven),
        f"{OBSERVATIONS}.projected_gravity": lambda: _of_base("projected_gravity", settings, driven),
        f"{OBSERVATIONS}.joint_pos_rel": lambda: _of_joints("joint_pos_rel", settings, driven),
        f"{OBSERVATIONS}.joint_vel_rel": lambda: _of_joints("joint_vel_rel", settings, driven),
        f"{OBSERVATIONS}.last_action": lambda: ("last_action", "") if size == len(driven.joints) else None,
        f"{OBSERVATIONS}.generated_commands": lambda: _velocity(env, settings.params["command_name"]),
        f"{OBSERVATIONS}.builtin_sensor": lambda: _sensor(env.sim.mj_model, settings.params["sensor_name"], driven),
        f"{OBSERVATIONS}.projected_gravity_from_sensor": lambda: _frame(
            env.sim.mj_model, settings.params["sensor_name"], driven
        ),
        UNITREE_PHASE: lambda: ("gait_phase", "") if size == 2 else None,
    }
    ask = asks.get(_path(settings.func))
    return ask() if ask else None


def _of_base(name: str, settings: Any, driven: Driven) -> tuple[str, str] | None:
    return (name, driven.base) if _entity_name(settings) == driven.prefix[:-1] else None


def _of_joints(name: str, settings: Any, driven: Driven) -> tuple[str, str] | None:
    """Only if it is about the joints that are driven, in their order, and about the pose that actions start from."""
    if _entity_name(settings) != driven.prefix[:-1] or _joints(settings, driven.entity) != driven.joints:
        return None
    expected = driven.offset if name == "joint_pos_rel" else np.zeros(len(driven.joints))
    default = _default(driven.entity, "pos" if name == "joint_pos_rel" else "vel", driven.joints)
    return (name, "") if np.allclose(default, expected, atol=1e-6) else None


def _velocity(env: Any, command: str) -> tuple[str, str] | None:
    ranges = getattr(env.command_manager.get_term(command).cfg, "ranges", None)
    return ("velocity_commands", "") if all(hasattr(ranges, name) for name in COMMANDED) else None


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
    """The site in whose frame a sensor tells the direction upwards."""
    import mujoco

    entry = model.sensor(sensor)
    if int(entry.reftype[0]) != mujoco.mjtObj.mjOBJ_SITE:
        return None
    return "projected_gravity", str(model.site(int(entry.refid[0])).name).removeprefix(driven.prefix)


def _gait(env: Any, groups: Sequence[str]) -> Gait | None:
    manager = env.observation_manager
    for group in groups:
        for name in manager.active_terms[group]:
            settings = manager.get_term_cfg(group, name)
            if _path(settings.func) == UNITREE_PHASE:
                return Gait(1.0 / settings.params["period"], (0.0,), "sin_cos", "zero", UNITREE_STANDING)
    return None


def _command_range(env: Any, observation: Sequence[Term]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of the velocity command, as it is now: a curriculum may widen it in training."""
    if not any(term.name == "velocity_commands" and not term.function for term in observation):
        return (), ()
    for name in env.command_manager.active_terms:
        if _velocity(env, name):
            ranges = env.command_manager.get_term(name).cfg.ranges
            low, high = zip(*(getattr(ranges, part) for part in COMMANDED))
            return low, high
    raise AssertionError("a velocity command is observed and there is none")


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
    """Of a function, or of the class of an object that is called."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _entity_name(settings: Any) -> str:
    chosen = settings.params.get("asset_cfg")
    return "robot" if chosen is None else str(chosen.name)  # MJLab's own default


def _joints(settings: Any, entity: Any) -> tuple[str, ...]:
    chosen = settings.params.get("asset_cfg")
    ids = slice(None) if chosen is None else chosen.joint_ids
    return tuple(np.array(entity.joint_names)[ids])


def _default(entity: Any, kind: str, names: Sequence[str]) -> np.ndarray:
    """Of these joints: pos or vel."""
    values = _numbers(getattr(entity.data, f"default_joint_{kind}"))
    return values[[entity.joint_names.index(name) for name in names]]


def _looked_at(settings: Any, env: Any) -> str:
    """Of a task's own term: the joints with their default; or its sensor, its command, and what else it is told."""
    kind = _path(settings.func).rpartition(".")[2]
    if kind in ("joint_pos_rel", "joint_vel_rel"):
        entity = env.scene[_entity_name(settings)]
        names = _joints(settings, entity)
        default = map(rounded, _default(entity, kind.split("_")[1], names))
        return ", ".join(f"{name} minus {number:g}" if number else name for name, number in zip(names, default))
    named = [str(settings.params[name]) for name in NAMED if name in settings.params]
    rest = [f"{name} {_told(value)}" for name, value in settings.params.items() if name not in NAMED]
    return ", ".join(named + rest)


def _told(value: Any) -> str:
    """A parameter in words: of a choice of an entity's parts their names."""
    if not hasattr(value, "name"):
        return str(value)
    named = [getattr(value, f"{kind}_names", None) or () for kind in ("site", "body", "geom", "joint")]
    chosen = [one for names in named for one in ((names,) if isinstance(names, str) else names)]
    return f"{value.name} ({', '.join(chosen)})" if chosen else str(value.name)


def _scale(scale: Any) -> float | tuple[float, ...]:
    if scale is None:
        return 1.0
    numbers = [rounded(number) for number in np.atleast_1d(_first(scale))]
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)


def _numbers(value: Any) -> np.ndarray:
    """A setting as float64: one for all environments, or the first environment's."""
    array = _first(value)
    return array[0] if array.ndim == 2 else array


def _first(value: Any) -> np.ndarray:
    """A number or tensor on the host."""
    return np.asarray(value.cpu() if hasattr(value, "cpu") else value, np.float64)
