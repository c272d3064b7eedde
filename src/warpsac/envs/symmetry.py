"""Left-right symmetry: how the observations and actions of a task look in a mirror, from a robot or from a file.

The mirror is the plane through the robot's x axis (ahead) and z axis (up); what is given in the world's frame is
mirrored at the world's plane of x and z. The counterpart of a joint is found by its name, the sign of both by their
axes in the MuJoCo model.

A file is a JSON object. Entry i of a list says which number takes place i in the mirror, and with which sign:

    {"observation": [[0, 1], [2, -1], [1, -1]], "action": [[0, -1]]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warpsac.envs.contract import EnvSpec
from warpsac.envs.deploy_contract import MEASURED, Robot, Term
from warpsac.errors import ConfigError, UserError
from warpsac.types import Mirror, Symmetry

NUMBER = Mirror((0,), (1,))
VECTOR = Mirror((0, 1, 2), (1, -1, 1))  # a position, velocity, acceleration or force
ROTATION = Mirror((0, 1, 2), (-1, 1, -1))  # an angular velocity
COMMAND = Mirror((0, 1, 2), (1, -1, -1))  # ahead, to the left, turning left

SIDES = {"left": "right", "fl": "fr", "rl": "rr", "hl": "hr"}  # words of a name, in either case
SIDES |= {right: left for left, right in SIDES.items()}
TOLERANCE = 1e-3  # of directions, metres and radians: models have rounded numbers
FLIP = np.array([1.0, -1.0, 1.0])
# A sensor this far from the plane, in metres, counts as in it: at 1 rad/s a velocimeter is then wrong by 0.2 m/s.
BESIDE = 0.1


class Unknown(ConfigError):
    """A mirror image that cannot be derived."""

    def __init__(self, why: str):
        super().__init__("learner.symmetry", "auto", f"{why}; a file can give the whole mapping")


# --- mirrors made of others


def joined(parts: Iterable[Mirror]) -> Mirror:
    """Of vectors one after the other."""
    sources: list[int] = []
    signs: list[int] = []
    for part in parts:
        start = len(sources)
        sources += [start + source for source in part.sources]
        signs += part.signs
    return Mirror(tuple(sources), tuple(signs))


def swapped(names: Sequence[str]) -> Mirror:
    """Of one number for each name: those of left and right are swapped."""
    return Mirror(tuple(_counterpart(name, names) for name in names), (1,) * len(names))


def swapped_vectors(names: Sequence[str]) -> Mirror:
    """Of one vector for each name."""
    size = VECTOR.size
    sources = tuple(size * other + i for other in swapped(names).sources for i in VECTOR.sources)
    return Mirror(sources, VECTOR.signs * len(names))


def _counterpart(name: str, names: Sequence[str]) -> int:
    """The place of the name with left and right swapped; of the name itself if it is of neither side."""
    words = name.split("_")
    for i, word in enumerate(words):
        other = SIDES.get(word.lower())
        if other is not None:
            words[i] = other.upper() if word.isupper() else other.title() if word.istitle() else other
    there = "_".join(words)
    if there not in names:
        raise Unknown(f"{name} has no counterpart {there}")
    return names.index(there)


# --- from a robot


def of_parts(parts: Sequence[tuple[str, Mirror | None]], joints: Mirror) -> Symmetry:
    """Of a stored observation that consists of named parts, and of actions that drive `joints`; None: not known."""
    unknown = [name for name, mirror in parts if mirror is None]
    if unknown:
        raise Unknown(f"how {unknown[0]} of the observation looks in a mirror is not known")
    return Symmetry(joined(mirror for _, mirror in parts if mirror is not None), joints)


def of_joints(model: Any, robot: Robot) -> Mirror:
    """Of angles relative to the default pose, velocities, torques or actions, one for each joint."""
    data, turn, origin = _standing(model, robot)
    ids = [model.joint(robot.prefix + name).id for name in robot.joints]
    axes, anchors = data.xaxis[ids] @ turn, (data.xanchor[ids] - origin) @ turn
    sources, signs = swapped(robot.joints).sources, []
    for i, other in enumerate(sources):
        axis = -FLIP * axes[i]  # of the same turn in the mirror
        sign = 1 if axis @ axes[other] > 0 else -1
        far = np.abs([sign * axis - axes[other], FLIP * anchors[i] - anchors[other]]).max()
        if far > TOLERANCE:
            raise Unknown(f"joints {robot.joints[i]} and {robot.joints[other]} are not mirror images")
        signs.append(sign)
    pose = "default pose", robot.default_pose, np.array(signs)
    scale = "action scale", robot.action_scale, np.ones(len(signs))
    for name, numbers, factors in (pose, scale):
        wrong = np.flatnonzero(np.abs(np.array(numbers)[list(sources)] * factors - numbers) > TOLERANCE)
        if len(wrong):
            raise Unknown(f"the {name} of joint {robot.joints[wrong[0]]} is not that of its mirror image")
    return Mirror(sources, tuple(signs))


def _standing(model: Any, robot: Robot) -> tuple[Any, np.ndarray, np.ndarray]:
    """The robot in the model's first pose, and the orientation and position of its base."""
    import mujoco

    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    base = model.body(robot.prefix + robot.base).id
    return data, data.xmat[base].reshape(3, 3), data.xpos[base]


def of_term(model: Any, term: Term, robot: Robot, joints: Mirror, own: Mirror | None = None) -> Mirror | None:
    """Of a part of the observation; `own` is that of one control step of a task's own term. None if it is not known."""
    mirror = own if term.function else _of_name(term.name, robot, joints)
    if mirror is None or mirror.size * term.history != term.size:
        return None
    if term.name in MEASURED and not term.function and not _is_upright(model, robot, term.source):
        raise Unknown(f"the frame of {term.name} ({term.source}) does not lie in the plane of the mirror")
    scale = np.broadcast_to(np.array(term.scale), mirror.size)
    low, high = term.clip or (-1.0, 1.0)
    if (scale[list(mirror.sources)] != scale).any() or (low != -high and -1 in mirror.signs):
        raise Unknown(f"{term.name} is scaled or clipped differently left and right")
    return joined([mirror] * term.history)


def _of_name(name: str, robot: Robot, joints: Mirror) -> Mirror | None:
    """Of one control step of what the deploy contract has a name for."""
    match name:
        case "base_lin_vel" | "projected_gravity":
            return VECTOR
        case "base_ang_vel":
            return ROTATION
        case "velocity_commands":
            return COMMAND
        case "gait_phase":
            return _of_gait(robot.gait.start if robot.gait else ())
    return joints


def _of_gait(start: Sequence[float]) -> Mirror | None:
    """Clocks of a left and a right foot, half a round apart, are swapped; a single one is half a round further."""
    if len(start) == 2 and math.isclose(abs(start[0] - start[1]), math.pi, abs_tol=TOLERANCE):
        return Mirror((1, 0, 3, 2), (1, 1, 1, 1))
    return Mirror((0, 1), (-1, -1)) if len(start) == 1 else None


def _is_upright(model: Any, robot: Robot, source: str) -> bool:
    """Whether the frame of a sensor, site or body of the base is, roughly, its own mirror image."""
    import mujoco

    name = robot.prefix + source
    sensor = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SENSOR, name)
    site = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, name) if sensor < 0 else model.sensor_objid[sensor]
    if site < 0:
        return source == robot.base
    data, turn, origin = _standing(model, robot)
    frame, place = turn.T @ data.site_xmat[site].reshape(3, 3), turn.T @ (data.site_xpos[site] - origin)
    return abs(place[1]) < BESIDE and np.allclose(FLIP[:, None] * frame * FLIP, frame, atol=TOLERANCE)


# --- as a file


def to_json(symmetry: Symmetry) -> str:
    def listed(mirror: Mirror) -> str:
        return json.dumps([list(entry) for entry in zip(mirror.sources, mirror.signs, strict=True)])

    return f'{{"observation": {listed(symmetry.obs)},\n "action": {listed(symmetry.action)}}}\n'


def read(path: Path) -> Symmetry:
    """The symmetry that a file describes; a UserError of one line if it describes none."""
    if path.exists() and not path.is_file():  # reading a pipe might never end
        raise UserError(f"{path}: not a plain file; learner.symmetry is off, auto or a file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); learner.symmetry is off, auto or a file") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a JSON file ({error})") from None
    if not isinstance(content, dict) or set(content) != {"observation", "action"}:
        raise UserError(f"{path}: must be an object with the lists observation and action, and nothing else")
    obs, action = (_mirror(content[name], f"{path}: {name}") for name in ("observation", "action"))
    return Symmetry(obs, action)


def _mirror(entries: Any, where: str) -> Mirror:
    def is_pair(entry: Any) -> bool:
        return isinstance(entry, list) and len(entry) == 2 and all(type(part) is int for part in entry)

    if not isinstance(entries, list) or not all(map(is_pair, entries)):
        raise UserError(f"{where}: must be a list of pairs [number, sign], both whole numbers")
    mirror = Mirror(tuple(number for number, _ in entries), tuple(sign for _, sign in entries))
    if mirror.flaw:
        raise UserError(f"{where}: {mirror.flaw}")
    return mirror


def require_fit(symmetry: Symmetry, spec: EnvSpec, where: str) -> None:
    """Refuse a symmetry that is not one of this task's observations and actions; `where` names its origin."""
    views = spec.views
    for name, mirror, size in (
        ("observation", symmetry.obs, views.obs_dim), ("action", symmetry.action, spec.action_dim),
    ):  # fmt: skip
        if mirror.size != size:
            raise UserError(f"{where}: {name} has {mirror.size} entries, and {spec.task} has {size} numbers")
    for i, source in enumerate(symmetry.obs.sources):
        for who, sees in (("actor", range(views.actor_dim)), ("critic", range(views.critic_start, views.obs_dim))):
            if i in sees and source not in sees:
                raise UserError(f"{where}: observation: entry {i} takes number {source}, which the {who} does not see")
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    sources, positive = list(symmetry.action.sources), np.array(symmetry.action.signs) > 0
    expected = np.where(positive, low[sources], -high[sources]), np.where(positive, high[sources], -low[sources])
    wrong = np.flatnonzero(~np.isclose(expected, (low, high)).all(axis=0))
    if len(wrong):
        raise UserError(f"{where}: action: the range of number {wrong[0]} is not that of its mirror image")
