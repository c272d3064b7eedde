"""The deploy contract: all that software on a robot must know to run a policy, as plain numbers and names.

An exported policy carries it; `sim2sim` needs nothing else, and deploy.yaml is written from it. One control step, every
1 / control_hz seconds:

    obs     = the terms of `observation`, concatenated in their order
    action  = policy(obs)                                      in the simulator's own range
    target  = default_pose + action_scale * action             joint angles, in the order of `joints`
    target  = clip(target, target_low, target_high)            where the contract has these
    torque  = stiffness * (target - angle) - damping * velocity

What is computed from the robot's own memory, the gait's angle and the last action, may lag by whole control steps
(`Term.delay`), as it did in training. Noise and latency that training adds to a measurement are not part of the
contract: a robot's sensors have their own.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from warpsac.errors import UserError, shortened

FORMAT = 1
LONGEST_DELAY = 1000  # control steps
ASSETS = "assets"  # the folder of a scene's files, next to its xml

# What an observation can consist of, in the terms of the robot's software.
TermName = Literal[
    "base_lin_vel",  # of the base in its own frame, m/s: a velocimeter (an estimate, on a robot)
    "base_ang_vel",  # rad/s: a gyroscope
    "projected_gravity",  # the direction of gravity in the base's frame
    "velocity_commands",  # ahead, to the left (m/s), turning left (rad/s)
    "gait_phase",  # see `Gait`
    "joint_pos_rel",  # angles minus the default pose, rad
    "joint_vel_rel",  # rad/s
    "last_action",  # as the policy gave it
    "motion_command",  # joint angles and velocities of the motion's present frame, see `Motion`
    "motion_anchor_pos_b",  # position of the motion's anchor body in the frame of the robot's, m
    "motion_anchor_ori_b",  # its rotation there: the first two columns of the matrix, row by row
]
MEASURED: tuple[TermName, ...] = ("base_lin_vel", "base_ang_vel", "projected_gravity")


def rounded(number: float) -> float:
    """With the digits that a float32 setting of a simulator has."""
    return float(f"{number:.7g}")


@dataclass(frozen=True)
class Term:
    """A part of the observation: scale * clip(value), the newest of a history last."""

    name: str
    """One of `TermName`, or the task's own name for what only its code can compute (`function`)."""
    size: int
    """Numbers in the observation, including the whole history."""
    source: str = ""
    """In the simulator: the sensor or body whose velocity it is, the site or body in whose frame gravity is given; for
    a task's own term, its parameters."""
    delay: int = 0
    """Control steps by which a remembered value lags. With none, last_action is the action of the previous control
    step, and gait_phase has advanced once since. Before the start actions are zero, and the gait is at its start."""
    scale: float | tuple[float, ...] = 1.0
    """One for all numbers, or one for each number of a control step."""
    clip: tuple[float, ...] | None = None
    """Lowest and highest value, before scaling."""
    history: int = 1
    """Control steps that are observed together."""
    function: str = ""
    """The task's own function behind a term that is not one of `TermName`."""


@dataclass(frozen=True)
class Gait:
    """A clock for the feet: angles that advance by 2 pi frequency / control_hz in each control step."""

    frequency: float
    """Steps of one foot per second."""
    start: tuple[float, ...]
    """The angles at the start, one for each clock."""
    order: Literal["cos_sin", "sin_cos"]
    """What is observed: all cosines, then all sines, or the other way round."""
    standing: Literal["ignored", "held", "zero"] = "ignored"
    """When the command is (nearly) zero: the clocks continue, are held at pi, or are observed as zeros."""
    standing_below: float = 0.0
    """Length of a command that counts as zero."""


@dataclass(frozen=True)
class Motion:
    """A recorded motion that the policy follows: one frame for each control step (`envs/motion.py`)."""

    files: tuple[str, ...]
    """The clips of training, relative to the policy's file."""
    sha256: tuple[str, ...]
    """Of each clip."""
    joints: tuple[str, ...]
    """The joints of a clip, in its order."""
    bodies: tuple[str, ...]
    """The bodies of a clip, in its order."""
    anchor: str
    """The body in whose frame the motion is observed."""
    tracked: tuple[str, ...]
    """The bodies that are to follow."""


@dataclass(frozen=True)
class Robot:
    """How a policy drives a robot; lists of numbers follow the order of `joints`."""

    base: str
    """The body whose velocity follows the command."""
    base_height: float
    """Height of that body when the robot stands in its default pose, m."""
    joints: tuple[str, ...]
    default_pose: tuple[float, ...]
    action_scale: tuple[float, ...]
    stiffness: tuple[float, ...]
    damping: tuple[float, ...]
    """Of motor and joint together, as a motor has to provide it; in the scene the joints contribute their part."""
    control_hz: float
    command_low: tuple[float, ...]
    """Lowest and highest command in training: ahead, to the left, turning left. Empty if none is observed."""
    command_high: tuple[float, ...]
    observation: tuple[Term, ...]
    gait: Gait | None = None
    prefix: str = ""
    """What the scene puts before each of the robot's names."""
    scene: str | None = None
    """The scene as a MuJoCo model, relative to the policy's file."""
    target_low: tuple[float, ...] = ()
    """Lowest and highest target angle that the simulator's motors accept, rad; empty if they accept all."""
    target_high: tuple[float, ...] = ()
    joint_low: tuple[float, ...] = ()
    """Lowest and highest angle of each joint, rad; empty if some have no limit."""
    joint_high: tuple[float, ...] = ()
    effort_limit: tuple[float, ...] = ()
    """Highest torque of each motor, N m; empty if the simulator does not limit all of them."""
    sensors: Literal["lagging", "current"] = "lagging"
    """In the simulator: sensors and frames are one physics step old, as MuJoCo leaves them, or are updated before they
    are observed."""
    disturbances: tuple[str, ...] = ()
    """What the task draws at random in training: the task's own names, and when."""
    motion: Motion | None = None
    """The motion that is followed instead of a command."""

    def __post_init__(self) -> None:
        count = len(self.joints)
        for name in ("default_pose", "action_scale", "stiffness", "damping"):
            _require(len(getattr(self, name)) == count, name, f"must have {count} numbers, one for each joint")
        for name in ("effort_limit", "target_low", "joint_low"):
            _require(len(getattr(self, name)) in (0, count), name, f"must have {count} numbers, or none")
        _require(len(self.command_low) in (0, 3), "command_low", "must have 3 numbers, or none")
        for name in ("target", "joint", "command"):
            low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
            _require(len(low) == len(high), f"{name}_high", f"must be as long as {name}_low")
        _require(count > 0, "joints", "must name at least one")
        _require(1 <= self.control_hz <= 10_000, "control_hz", "must lie in 1..10000")
        files = [("scene", self.scene)] if self.scene else []
        for field, file in [*files, *(("motion", file) for file in (self.motion.files if self.motion else ()))]:
            _require(_stays(file), field, f"'{file}' must lie in the exported folder")
        clocks = len(self.gait.start) if self.gait else 0
        sizes = {"gait_phase": 2 * clocks, "joint_pos_rel": count, "joint_vel_rel": count, "last_action": count}
        sizes |= {"motion_command": 2 * len(self.motion.joints) if self.motion else 0, "motion_anchor_ori_b": 6}
        for term in self.observation:
            follows = term.name.startswith("motion_") and not term.function
            _require(bool(self.motion) or not follows, "motion", f"must be there, as the policy observes {term.name}")
            _require_valid(term, sizes.get(term.name, 3))
            commanded = term.name == "velocity_commands" and not term.function
            missing = commanded and not self.command_low
            _require(not missing, "command_low", "must have 3 numbers, as the policy observes velocity_commands")
        if self.motion:
            known = {self.motion.anchor, self.base, *self.motion.tracked} <= set(self.motion.bodies)
            _require(known, "motion", "must have the base, the anchor and the tracked bodies among its bodies")

    @property
    def observation_size(self) -> int:
        return sum(term.size for term in self.observation)

    @property
    def obstacle(self) -> str | None:
        """Why the contract alone cannot make the robot walk under a command or follow a motion; None if it can."""
        if not self.command_low and self.motion is None:
            return "it follows no commanded velocity"
        for term in self.observation:
            if term.function:
                return f"it observes {term.name}, which only the task's own code computes"
            if term.history > 1:
                return f"it observes a history of {term.name}"
        return None


class SceneFiles(NamedTuple):
    """A complete MuJoCo scene."""

    xml: str
    assets: dict[str, bytes]
    """Meshes, textures and height fields by name, in the folder `ASSETS` next to the xml."""

    def load(self) -> Any:
        """The scene as an mjModel."""
        import mujoco

        files = {f"{ASSETS}/{name}": data for name, data in self.assets.items()}
        return mujoco.MjModel.from_xml_string(self.xml, files)


class Deployment(NamedTuple):
    """What a family's `deployment(task, config, steps)` returns."""

    robot: Robot
    scene: SceneFiles | None = None
    clips: Mapping[str, bytes] = {}
    """The files of the motion, by the names in the contract."""


def _stays(path: str) -> bool:
    """Whether a path, relative to the policy's file, leads no further up than the folder of the export: that of Unitree
    has the policy in a folder of its own."""
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts[1:] and "\\" not in path


def _require_valid(term: Term, size: int) -> None:
    """A term whose value has `size` numbers if its name is one of the contract's."""
    name, each = term.name, term.size // max(term.history, 1)
    _require(term.history >= 1 and each * term.history == term.size, "observation", f"{name} has half a history")
    if not term.function:
        _require(name in get_args(TermName), "observation", f"'{name}' is not a known term, and names no function")
        _require(each == size, "observation", f"{name} has {each} numbers instead of {size}")
        _require(bool(term.source) or name not in MEASURED, "observation", f"{name} has no source")
    _require(term.delay >= 0, "observation", f"{name} has a negative delay")
    _require(term.delay <= LONGEST_DELAY, "observation", f"{name} has a delay of more than {LONGEST_DELAY} steps")
    scales = len(term.scale) if isinstance(term.scale, tuple) else 1
    _require(scales in (1, each), "observation", f"{name} has {scales} scales for {each} numbers")
    _require(term.clip is None or len(term.clip) == 2, "observation", f"{name} has a clip that is not a pair")


def _require(holds: bool, field: str, reason: str) -> None:
    if not holds:
        raise UserError(f"robot.{field}: {reason}")


# --- as JSON


def to_plain(robot: Robot) -> dict[str, Any]:
    content = dataclasses.asdict(robot)
    if robot.motion is None:
        del content["motion"]  # earlier versions read what has none
    return content


def from_plain(content: Any, where: str) -> Robot:
    """The contract that `to_plain` wrote; `where` names its origin in errors."""
    try:
        return _value(Robot, content, "robot")
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _value(hint: Any, value: Any, path: str) -> Any:
    """A plain value as the annotated type, or a one-line error."""
    if get_origin(hint) is UnionType:  # something or None, a number or a list of them
        first, second = get_args(hint)
        if second is type(None):
            return None if value is None else _value(first, value, path)
        return _value(second if isinstance(value, list | tuple) else first, value, path)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise UserError(f"{path}: must be an object")
        hints = get_type_hints(hint)
        for name in value:
            if name not in hints:
                raise UserError(f"{path}.{name}: not known to this version of warpsac")
        for field in dataclasses.fields(hint):
            if field.name not in value and field.default is dataclasses.MISSING:
                raise UserError(f"{path}.{field.name}: is missing")
        made: Any = hint
        return made(**{name: _value(hints[name], part, f"{path}.{name}") for name, part in value.items()})
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{path}: must be a list")
        return tuple(_value(get_args(hint)[0], part, path) for part in value)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UserError(f"{path} = {value!r}: must be one of {', '.join(get_args(hint))}")
        return value
    if hint is str:
        if not isinstance(value, str):
            raise UserError(f"{path} = {value!r}: must be text")
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if not is_number or hint(value) != value:
        raise UserError(f"{path} = {shortened(repr(value))}: must be a{' whole' if hint is int else ''} number")
    return hint(value)
