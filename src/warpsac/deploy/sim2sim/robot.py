"""The robot of a deploy contract in a MuJoCo scene: what it observes, and how its motors are driven."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

import numpy as np

from warpsac.deploy.sim2sim.policy import Policy
from warpsac.deploy.sim2sim.reference import Reference, matrix_of, read_reference
from warpsac.envs.deploy_contract import Robot, Term
from warpsac.errors import UserError, counted, in_a_line

FALLEN_HEIGHT = 0.5  # the base is below this part of its height in the default pose,
FALLEN_UP = 0.5  # or its upward axis is tilted by more than 60 degrees
WHOLE_FILES = ("include", "model")  # elements of a scene that bring further scenes along


class Motors:
    """Turns joint targets into what the model's actuators take: the targets, or torques by the contract's gains."""

    def __init__(self, model: Any, robot: Robot, joints: Sequence[int]):
        import mujoco

        actuator_of = {int(model.actuator_trnid[i, 0]): i for i in range(model.nu)
                       if model.actuator_trntype[i] == mujoco.mjtTrn.mjTRN_JOINT}  # fmt: skip
        missing = [name for name, joint in zip(robot.joints, joints) if joint not in actuator_of]
        if missing:
            raise UserError(f"the scene has no actuator for joint {missing[0]}")
        self._ids = np.array([actuator_of[joint] for joint in joints])
        self._torque = model.actuator_biastype[self._ids] == mujoco.mjtBias.mjBIAS_NONE
        self._gear = model.actuator_gainprm[self._ids, 0] * model.actuator_gear[self._ids, 0]
        self._stiffness = np.array(robot.stiffness)
        # The contract's damping is that of motor and joint together; the scene's joints contribute their part.
        passive = model.dof_damping[model.jnt_dofadr[list(joints)]]
        self._damping = np.array(robot.damping) - passive
        self._limit = np.array(robot.effort_limit or [np.inf] * len(joints))
        self.differences = tuple(self._differences(model, robot, joints, passive))

    def _differences(self, model: Any, robot: Robot, joints: Sequence[int], passive: np.ndarray) -> Iterator[str]:
        """Lines about motors of the scene that differ from the contract."""
        single = np.array([(model.actuator_trnid[:, 0] == joint).sum() == 1 for joint in joints])
        driven = single & ~self._torque
        stiffness, damping = -model.actuator_biasprm[self._ids, 1:3].T
        scene = (stiffness, damping + passive)
        for what, found, expected in zip(("stiffness", "damping"), scene, (robot.stiffness, robot.damping)):
            other = np.flatnonzero(driven & ~np.isclose(found, expected, rtol=1e-3, atol=1e-6))
            if len(other):
                first = f"{robot.joints[other[0]]} has {found[other[0]]:g} instead of {expected[other[0]]:g}"
                yield f"{what} of {_joints(len(other))} is not the policy's: {first}"
        most = self._strongest(model, joints)
        weak = np.flatnonzero((most < 0.999 * self._limit) & np.isfinite(self._limit))
        if len(weak):
            first = f"{robot.joints[weak[0]]} gives {most[weak[0]]:g} N m instead of {self._limit[weak[0]]:g}"
            yield f"motors of {_joints(len(weak))} are weaker than the policy's: {first}"

    def _strongest(self, model: Any, joints: Sequence[int]) -> np.ndarray:
        """The highest torque that the scene allows: by a motor's input, its output, and its joint."""
        ids, joints = self._ids, list(joints)
        limits = (
            (self._torque & model.actuator_ctrllimited[ids].astype(bool), model.actuator_ctrlrange[ids], self._gear),
            (model.actuator_forcelimited[ids], model.actuator_forcerange[ids], model.actuator_gear[ids, 0]),
            (model.jnt_actfrclimited[joints], model.jnt_actfrcrange[joints], np.ones(len(joints))),
        )
        each = [np.where(limited, np.abs(ends * gear[:, None]).min(axis=1), np.inf) for limited, ends, gear in limits]
        return np.min(each, axis=0)

    def drive(self, data: Any, target: np.ndarray, angle: np.ndarray, velocity: np.ndarray) -> None:
        torque = self._stiffness * (target - angle) - self._damping * velocity
        torque = np.clip(torque, -self._limit, self._limit)
        data.ctrl[self._ids] = np.where(self._torque, torque / self._gear, target)


def _joints(count: int) -> str:
    return counted(count, "joint")


class Simulated:
    """The robot of a contract in a MuJoCo scene."""

    def __init__(self, model: Any, robot: Robot, reference: Reference | None = None):
        import mujoco

        self.model, self.robot, self.data = model, robot, mujoco.MjData(model)
        self.reference = reference
        self.errors: dict[str, float] = {}
        """How far the robot was from its motion at the end of the last control step."""
        self._lost, self._shown = False, None
        joints_there = {model.joint(i).name for i in range(model.njnt)}
        # Other scenes of the same robot usually have its names without the prefix.
        self._prefix = robot.prefix if joints_there.isdisjoint(robot.joints) else ""
        joints = [self._id("joint", name) for name in robot.joints]
        self._angles, self._velocities = model.jnt_qposadr[joints], model.jnt_dofadr[joints]
        self._motors = Motors(model, robot, joints)
        self.base = self._id("body", robot.base)
        root = model.body_jntadr[self.base]
        if root < 0 or model.jnt_type[root] != mujoco.mjtJoint.mjJNT_FREE:
            raise UserError(f"the scene's body {robot.base} has no free joint: it cannot walk")
        self._root = model.jnt_qposadr[root]
        self.substeps = round(1 / (robot.control_hz * model.opt.timestep))
        if not math.isclose(self.substeps * model.opt.timestep * robot.control_hz, 1, rel_tol=1e-6):
            raise UserError(
                f"the scene's time step of {model.opt.timestep:g} s does not divide the control step "
                f"of {1 / robot.control_hz:g} s"
            )
        if robot.motion:
            self._bodies = [self._id("body", name) for name in robot.motion.bodies]
            self._anchor = self._id("body", robot.motion.anchor)
            order = [self._id("joint", name) for name in robot.motion.joints]
            self._clip_angles, self._clip_velocities = model.jnt_qposadr[order], model.jnt_dofadr[order]
        self._readers = [self._reader(term) for term in robot.observation]
        lags = [term.delay for term in robot.observation]
        # Newest first: the last action, and the gait's angles after it.
        self._actions: deque[np.ndarray] = deque(maxlen=max(lags, default=0) + 1)
        self._clocks: deque[np.ndarray] = deque(maxlen=max(lags, default=0) + 1)

    def reset(self, frame: int = 0) -> None:
        """Stand in the default pose at the origin; with a motion: in this frame of it."""
        import mujoco

        mujoco.mj_resetData(self.model, self.data)
        start = self._root
        self.data.qpos[start : start + 7] = (0, 0, self.robot.base_height, 1, 0, 0, 0)
        self.data.qpos[self._angles] = self.robot.default_pose
        if self.reference is not None:
            self._take_pose(self.data, self.reference, frame)
            self.reference.start(frame)
        self._drive(self.data.qpos[self._angles])
        mujoco.mj_forward(self.model, self.data)
        self._actions.extendleft([np.zeros(len(self.robot.joints))] * (self._actions.maxlen or 1))
        clocks = np.array(self.robot.gait.start if self.robot.gait else ())
        self._clocks.extendleft([clocks] * (self._clocks.maxlen or 1))

    def _take_pose(self, data: Any, reference: Reference, frame: int) -> None:
        """Give the scene's data the pose and velocities of a frame."""
        motion, clip, qpos, qvel = reference.motion, reference.clip, data.qpos, data.qvel
        base, frame = motion.bodies.index(self.robot.base), min(frame, clip.frames - 1)
        first, dof = self._root, self.model.body_dofadr[self.base]
        qpos[first : first + 7] = np.concatenate([clip.body_pos_w[frame, base], clip.body_quat_w[frame, base]])
        qvel[dof : dof + 3] = clip.body_lin_vel_w[frame, base]
        # A free joint turns in its own frame.
        qvel[dof + 3 : dof + 6] = matrix_of(clip.body_quat_w[frame, base]).T @ clip.body_ang_vel_w[frame, base]
        qpos[self._clip_angles], qvel[self._clip_velocities] = clip.joint_pos[frame], clip.joint_vel[frame]

    def reference_pose(self) -> Any:
        """The motion's present frame as data of the scene, to draw it."""
        import mujoco

        assert self.reference is not None
        if self._shown is None:
            self._shown = mujoco.MjData(self.model)
        self._take_pose(self._shown, self.reference, self.reference.frame)
        mujoco.mj_kinematics(self.model, self._shown)
        return self._shown

    def observe(self, command: np.ndarray) -> np.ndarray:
        """The observation [D], float32."""
        parts = [_scaled(term, read(command)) for term, read in zip(self.robot.observation, self._readers)]
        return np.concatenate(parts).astype(np.float32)

    def step(self, action: np.ndarray, command: np.ndarray) -> None:
        """One control step."""
        import mujoco

        robot = self.robot
        if not np.isfinite(action).all():
            raise UserError(f"the policy's actions are not finite after {self.data.time:.2f} s")
        target = np.array(robot.default_pose) + np.array(robot.action_scale) * action
        if robot.target_low:
            target = np.clip(target, robot.target_low, robot.target_high)
        for _ in range(self.substeps):
            self._drive(target)
            mujoco.mj_step(self.model, self.data)
        if robot.sensors == "current":
            mujoco.mj_forward(self.model, self.data)
        self._actions.appendleft(np.array(action, np.float64))
        if self.reference is not None:
            self.errors, self._lost = self._compared(self.reference)
            self.reference.advance()
        if robot.gait:
            clocks = self._clocks[0] + 2 * math.pi * robot.gait.frequency / robot.control_hz
            held = robot.gait.standing == "held" and np.linalg.norm(command) <= robot.gait.standing_below
            self._clocks.appendleft(np.full_like(clocks, math.pi) if held else clocks)

    @property
    def differences(self) -> tuple[str, ...]:
        """Lines about what in the scene differs from the contract."""
        return self._motors.differences

    @property
    def fallen(self) -> bool:
        """Whether the robot no longer stands, or its physics diverged (and MuJoCo has reset it)."""
        import mujoco

        bad = mujoco.mjtWarning
        if any(self.data.warning[i].number for i in (bad.mjWARN_BADQPOS, bad.mjWARN_BADQVEL, bad.mjWARN_BADQACC)):
            return True
        if self.reference is not None:
            return self._lost
        up, height = self.data.xmat[self.base, 8], self.data.xpos[self.base, 2]
        return not (up >= FALLEN_UP and height >= FALLEN_HEIGHT * self.robot.base_height)

    def _compared(self, reference: Reference) -> tuple[dict[str, float], bool]:
        """The distances from the motion's present frame, and whether the robot has fallen out of it."""
        data = self.data
        matrices = data.xmat[self._bodies].reshape(-1, 3, 3)
        joints = data.qpos[self._clip_angles], data.qvel[self._clip_velocities]
        errors = reference.errors(data.xpos[self._bodies], matrices, *joints)
        return errors, reference.lost(data.xpos[self._anchor], self._matrix(self._anchor))

    @property
    def velocity(self) -> np.ndarray:
        """Of the base in its own frame: ahead, to the left, turning left."""
        return self._body_velocity(self.base)[[3, 4, 2]]

    @property
    def power(self) -> float:
        """Mechanical power that the motors give or take, W, including the damping that the joints contribute here."""
        dofs, velocity = self._velocities, self.data.qvel[self._velocities]
        torque = self.data.qfrc_actuator[dofs] - self.model.dof_damping[dofs] * velocity
        return float(np.abs(torque * velocity).sum())

    def _drive(self, target: np.ndarray) -> None:
        self._motors.drive(self.data, target, self.data.qpos[self._angles], self.data.qvel[self._velocities])

    def _body_velocity(self, body: int) -> np.ndarray:
        """In the body's own frame: angular, then linear."""
        import mujoco

        found = np.zeros(6)
        mujoco.mj_objectVelocity(self.model, self.data, mujoco.mjtObj.mjOBJ_XBODY, body, found, 1)
        return found

    def _matrix(self, body: int) -> np.ndarray:
        return self.data.xmat[body].reshape(3, 3)

    def _id(self, kind: str, name: str) -> int:
        try:
            return int(getattr(self.model, kind)(self._prefix + name).id)
        except KeyError:
            raise UserError(f"the scene has no {kind} '{self._prefix}{name}'") from None

    def _id_if_any(self, kind: str, name: str) -> int | None:
        with contextlib.suppress(UserError):
            return self._id(kind, name)
        return None

    def _reader(self, term: Term) -> Callable[[np.ndarray], np.ndarray]:
        """How a term is read from the simulator and the robot's memory, given the command."""
        data, robot = self.data, self.robot
        if term.name in ("base_lin_vel", "base_ang_vel"):
            body, part = self._id_if_any("body", term.source), slice(3, 6) if term.name == "base_lin_vel" else slice(3)
            if body is not None:
                return lambda command: self._body_velocity(body)[part]
            sensor = self._id("sensor", term.source)
            start = self.model.sensor_adr[sensor]
            return lambda command: data.sensordata[start : start + term.size]
        if term.name == "projected_gravity":
            site = self._id_if_any("site", term.source)
            frame = data.xmat[self._id("body", term.source)] if site is None else data.site_xmat[site]
            return lambda command: frame.reshape(3, 3).T @ np.array([0.0, 0.0, -1.0])
        if term.name == "joint_pos_rel":
            pose = np.array(robot.default_pose)
            return lambda command: data.qpos[self._angles] - pose
        if term.name == "joint_vel_rel":
            return lambda command: data.qvel[self._velocities]
        if term.name == "last_action":
            return lambda command: self._actions[term.delay]
        if term.name == "gait_phase":
            return lambda command: self._phase(term.delay, command)
        if term.name.startswith("motion_"):
            return lambda command: self._of_motion(term.name)
        return lambda command: command

    def _of_motion(self, name: str) -> np.ndarray:
        assert self.reference is not None
        if name == "motion_command":
            return self.reference.command
        if name == "motion_anchor_pos_b":
            return self.reference.anchor_position(self.data.xpos[self._anchor], self._matrix(self._anchor))
        return self.reference.anchor_orientation(self._matrix(self._anchor))

    def _phase(self, delay: int, command: np.ndarray) -> np.ndarray:
        gait = self.robot.gait
        assert gait is not None
        angle = self._clocks[delay]
        if gait.standing == "zero" and np.linalg.norm(command) < gait.standing_below:
            return np.zeros(2 * len(angle))
        pair = [np.cos(angle), np.sin(angle)]
        return np.concatenate(pair if gait.order == "cos_sin" else pair[::-1])


def _scaled(term: Term, value: np.ndarray) -> np.ndarray:
    if term.clip is not None:
        value = np.clip(value, term.clip[0], term.clip[1])
    return np.array(term.scale) * value


def require_mujoco() -> None:
    if importlib.util.find_spec("mujoco") is None:
        raise UserError("needs mujoco: pip install 'warpsac[mujoco,export]'")


def require_own_files(path: Path) -> None:
    """Refuse an exported scene that has MuJoCo read files of other folders: it may come from somebody else."""
    try:
        elements = list(ElementTree.parse(path).iter())
    except (ElementTree.ParseError, OSError, ValueError, LookupError) as error:
        raise UserError(f"{path}: not a MuJoCo scene ({in_a_line(error)})") from None
    for element in elements:
        for name, value in element.attrib.items():
            named = PurePosixPath(value.replace("\\", "/"))
            file = name.startswith("file") or name.endswith("dir")
            if file and (named.is_absolute() or ".." in named.parts or element.tag in WHOLE_FILES):
                raise UserError(
                    f"{path}: {element.tag} {name} = {value!r}: an exported scene names only files below its own "
                    "folder; if you trust it, name it with --scene"
                )


def load_scene(policy: Policy, scene: Path | str | None = None, motion: Path | str | None = None) -> Simulated:
    """The robot of an exported policy, in the scene exported with it or another one; the same for its motion."""
    if policy.robot is None:
        reason = f"{policy.card['task']} has none, or it was exported with --without-robot"
        raise UserError(f"{policy.path}: carries no description of a robot: {reason}")
    if policy.robot.obstacle:
        raise UserError(f"{policy.path}: cannot walk in plain MuJoCo: {policy.robot.obstacle}")
    if scene is None and policy.robot.scene is None:
        raise UserError(f"{policy.path}: no scene was exported with it; name one with --scene FILE.xml")
    path = Path(scene) if scene else policy.path.parent / str(policy.robot.scene)
    require_mujoco()
    import mujoco

    if not path.is_file():
        hint = "" if scene else "; keep the exported folder together, or name a scene with --scene FILE.xml"
        raise UserError(f"{path}: no such file{hint}")
    if scene is None:
        require_own_files(path)
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    try:
        return Simulated(model, policy.robot, _reference(policy, policy.robot, motion))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _reference(policy: Policy, robot: Robot, motion: Path | str | None) -> Reference | None:
    if robot.motion is None:
        if motion is not None:
            raise UserError(f"motion = {str(motion)!r}: the policy follows no motion: leave it out")
        return None
    path = Path(motion) if motion else policy.path.parent / robot.motion.files[0]
    return read_reference(path, robot.motion, robot.control_hz)
