"""An exported policy on plain MuJoCo: what it observes, how its motors are driven, what counts as a fall."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mujoco")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import mujoco

import walker
from warpsac import cli
from warpsac.deploy.sim2sim import stage
from warpsac.deploy.sim2sim.policy import Policy
from warpsac.deploy.sim2sim.robot import Simulated, load_scene
from warpsac.deploy.sim2sim.walk import walk
from warpsac.envs import contract, deploy_contract, mujoco_robots
from warpsac.envs.deploy_contract import Gait, Robot, Term
from warpsac.envs.mujoco_robots import Sensing
from warpsac.errors import UserError
from warpsac.watch import video

pytestmark = pytest.mark.mujoco

POSITION_WITHIN = (
    '<position joint="left_joint" kp="6" kv="0.2" ctrlrange="-0.3 0.4"/>'
    '<position joint="right_joint" kp="5" ctrlrange="-0.1 0.2"/>'
)


def card(robot: Robot | None, **changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "task": "Walker",
        "robot": deploy_contract.to_plain(dataclasses.replace(robot, scene="scene.xml")) if robot else None,
        **changes,
    }


def simulated(robot: Robot | None = None, actuators: str = walker.POSITION) -> Simulated:
    return Simulated(mujoco.MjModel.from_xml_string(walker.scene(actuators)), robot or walker.robot())


def write(folder: Path, **changes: Any) -> Path:
    """A policy that swings the arms with the gait."""
    weight = np.zeros((22, 2))
    weight[12, 0] = weight[13, 1] = 0.8
    return walker.write_policy(folder, card(walker.robot(), **changes), weight, [0.05, 0.0])


# --- the contract


def test_the_contract_is_read_off_the_model() -> None:
    robot = walker.robot()
    assert robot.joints == ("left_joint", "right_joint")
    assert robot.stiffness == (6.0, 5.0)
    assert robot.damping == (0.5, 0.3)  # of actuator and joint
    assert robot.action_scale == (0.5, 0.25)
    assert robot.observation_size == 22
    assert walker.robot(actuators=walker.OTHER_ORDER) == robot
    assert robot.joint_low == robot.target_high == ()
    limited = POSITION_WITHIN
    assert walker.robot(actuators=limited).target_low == (-0.3, -0.1)
    assert walker.robot(actuators=limited).target_high == (0.4, 0.2)
    assert walker.robot(actuators=limited.replace(' ctrlrange="-0.1 0.2"', "")).target_low == ()
    spec = mujoco.MjSpec.from_string(walker.scene())
    for name, span in (("left_joint", (-1.0, 0.5)), ("right_joint", (-0.5, 2.0))):
        spec.joint(name).range = np.rad2deg(span)  # the scene's angles are in degrees
    _, gains = mujoco_robots.motors_of(spec.compile())
    np.testing.assert_allclose(gains.joint_range, [[-1.0, -0.5], [0.5, 2.0]])
    with pytest.raises(UserError, match="not one for each joint"):
        walker.robot(actuators='<position joint="left_joint"/>')
    with pytest.raises(UserError, match="do not drive joints towards target angles"):
        walker.robot(actuators=walker.TORQUE)


def test_a_contract_survives_json() -> None:
    for robot in (walker.robot(), dataclasses.replace(walker.robot(), prefix="robot/", scene="a/b.xml")):
        assert deploy_contract.from_plain(json.loads(json.dumps(deploy_contract.to_plain(robot))), "file") == robot


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"joints": ["a"]}, r"robot\.default_pose: must have 1 numbers"),
        ({"control_hz": "fast"}, r"robot\.control_hz = 'fast': must be a number"),
        ({"control_hz": 0}, r"robot\.control_hz: must lie in 1\.\.10000"),
        ({"control_hz": 1e-300}, r"robot\.control_hz: must lie in 1\.\.10000"),
        ({"control_hz": 10**400}, r"robot\.control_hz = 1000.*: must be a number"),
        ({"scene": "/etc/scene.xml"}, r"robot\.scene: '/etc/scene.xml' must lie in the exported folder"),
        ({"scene": "../../scene.xml"}, r"robot\.scene: '../../scene.xml' must lie in the exported folder"),
        ({"scene": "assets/../../scene.xml"}, r"robot\.scene: .* must lie in the exported folder"),
        ({"stiffness": [1.0, float("nan")]}, r"robot\.stiffness = nan: must be a number"),
        ({"stiffness": 3}, r"robot\.stiffness: must be a list"),
        ({"legs": 2}, r"robot\.legs: not known"),
        ({"gait": {"frequency": 1.0}}, r"robot\.gait\.start: is missing"),
        ({"gait": None}, r"robot\.observation: gait_phase has 4 numbers instead of 0"),
        ({"base": 3}, r"robot\.base = 3: must be text"),
        ({"observation": [{"name": "smell", "size": 3}]}, r"robot\.observation: 'smell' is not a known term"),
        ({"observation": [{"name": "last_action", "size": 3, "history": 2}]}, r"last_action has half a history"),
        ({"observation": [{"name": "last_action", "size": 2, "scale": [1, 2, 3]}]}, r"3 scales for 2 numbers"),
        ({"observation": [{"name": "last_action", "size": 2, "clip": [1]}]}, r"a clip that is not a pair"),
        ({"effort_limit": [1]}, r"robot\.effort_limit: must have 2 numbers, or none"),
        ({"target_low": [1]}, r"robot\.target_low: must have 2 numbers, or none"),
        ({"joint_low": [-1, -1], "joint_high": [1]}, r"robot\.joint_high: must be as long as joint_low"),
        ({"command_low": [], "command_high": []}, r"robot\.command_low: must have 3 numbers, as the policy observes"),
        ({"command_high": [1.0]}, r"robot\.command_high: must be as long as command_low"),
        ({"sensors": "broken"}, r"robot\.sensors = 'broken': must be one of lagging, current"),
        ({"observation": [{"name": "base_ang_vel", "size": 3}]}, r"base_ang_vel has no source"),
        ({"observation": [{"name": "last_action", "size": 2.5}]}, r"size = 2\.5: must be a whole number"),
        ({"observation": [{"name": "last_action", "size": 2, "delay": -1}]}, r"negative delay"),
        ({"observation": [{"name": "last_action", "size": 2, "delay": 1e9}]}, r"a delay of more than 1000 steps"),
    ],
)
def test_a_bad_contract_is_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        deploy_contract.from_plain(deploy_contract.to_plain(walker.robot()) | change, "policy.onnx")
    assert str(caught.value).startswith("policy.onnx: robot.")
    assert "\n" not in str(caught.value)


def test_a_name_is_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = walker.write_policy(tmp_path, card(walker.robot(), task="[/bold]"), np.zeros((22, 2)), [0, 0])
    assert cli.main(["sim2sim", str(path), "--seconds", "1.1"]) == 0
    assert "[/bold], 1.1 s in plain" in capsys.readouterr().out


# --- observations


def test_every_term_by_hand() -> None:
    """A robot turned by a quarter to the left and tilted, in motion, against values worked out by hand."""
    world = simulated()
    world.reset()
    data, tilt = world.data, 0.3
    # About the world's vertical by 90 degrees, after nose down by `tilt`.
    turn = np.array([math.cos(math.pi / 4), 0, 0, math.sin(math.pi / 4)])
    pitch = np.array([math.cos(tilt / 2), 0, math.sin(tilt / 2), 0])
    mujoco.mju_mulQuat(data.qpos[3:7], turn, pitch)
    data.qpos[7:] = (0.4, -0.1)
    data.qvel[:3], data.qvel[3:6], data.qvel[6:] = (0, 0, 0), (0.1, 0.2, 0.3), (1.0, -2.0)
    mujoco.mj_forward(world.model, data)
    obs = world.observe(np.array([0.5, -0.25, 0.75]))
    # The site is turned by 90 degrees about the trunk's vertical: its x is the trunk's y, its y the trunk's -x.
    spin = np.array([0.1, 0.2, 0.3])
    linear = np.cross(spin, (0.1, 0, 0))
    np.testing.assert_allclose(obs[0:3], [linear[1], -linear[0], linear[2]], atol=1e-6)
    np.testing.assert_allclose(obs[3:6], [0.2, -0.1, 0.3], atol=1e-6)
    # Nose down: gravity points ahead (trunk's +x) and down.
    np.testing.assert_allclose(obs[6:9], [0, -math.sin(tilt), -math.cos(tilt)], atol=1e-6)
    np.testing.assert_allclose(obs[9:12], [0.5, -0.25, 0.75])
    np.testing.assert_allclose(obs[12:16], [1, -1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(obs[16:18], [0.3, 0.1], atol=1e-6)
    np.testing.assert_allclose(obs[18:20], [0.5, -1.0])  # scale 0.5
    np.testing.assert_allclose(obs[20:22], [0, 0])
    assert obs.dtype == np.float32


def test_velocities_of_a_body_clipped_and_scaled() -> None:
    """Without a sensor: the trunk's own velocities, the second limited to 0.1, each number with its own scale."""
    terms = (
        Term("base_lin_vel", 3, "trunk", scale=(1.0, 2.0, 3.0)),
        Term("base_ang_vel", 3, "trunk", clip=(-0.1, 0.1), scale=10.0),
    )
    world = simulated(walker.robot(walker.SENSING._replace(observation=terms, gait=None)))
    world.reset()
    world.data.qpos[3:7] = (math.cos(math.pi / 4), 0, 0, math.sin(math.pi / 4))  # a quarter to the left
    world.data.qvel[:6] = (0.5, 0.25, 1.0, 0.05, -0.2, 0.3)  # linear in the world's frame, angular in its own
    mujoco.mj_forward(world.model, world.data)
    np.testing.assert_allclose(world.observe(np.zeros(3)), [0.25, -1.0, 3.0, 0.5, -1.0, 1.0], atol=1e-6)


def test_sensors_are_as_old_as_in_training() -> None:
    """One physics step behind the joints, or not."""
    late, now = (simulated(dataclasses.replace(walker.robot(), sensors=kind)) for kind in ("lagging", "current"))
    for world in (late, now):
        world.reset()
        world.step(np.array([1.0, -1.0]), np.zeros(3))
    np.testing.assert_allclose(late.data.qpos, now.data.qpos, atol=1e-12)
    assert not np.allclose(late.observe(np.zeros(3))[3:6], now.observe(np.zeros(3))[3:6], atol=1e-6)
    mujoco.mj_forward(late.model, late.data)
    np.testing.assert_array_equal(late.observe(np.zeros(3)), now.observe(np.zeros(3)))


def _memory(sensing: Sensing, commands: list[np.ndarray]) -> np.ndarray:
    """The observations of gait and last action over steps with actions 1, 2, 3, ..."""
    terms = tuple(term for term in sensing.observation if term.name in ("gait_phase", "last_action"))
    world = simulated(walker.robot(sensing._replace(observation=terms)))
    world.reset()
    seen = []
    for i, command in enumerate(commands):
        seen.append(world.observe(command))
        world.step(np.array([i + 1, -(i + 1)]) * 1e-3, command)
    return np.stack(seen)


def test_gait_and_last_action_advance_with_their_delay() -> None:
    move = [np.array([0.5, 0, 0])] * 4
    step = 2 * math.pi * 1.25 / 50
    now = _memory(walker.SENSING, move)
    for k in range(4):
        angles = np.array([k * step, math.pi + k * step])
        np.testing.assert_allclose(now[k, :4], [*np.cos(angles), *np.sin(angles)], atol=1e-6)
        np.testing.assert_allclose(now[k, 4:], [k * 1e-3, -k * 1e-3], atol=1e-9)
    late = walker.SENSING._replace(
        observation=(Term("gait_phase", 4, delay=1), Term("last_action", 2, delay=2)),
    )
    seen = _memory(late, move)
    np.testing.assert_allclose(seen[:, :4], now[[0, 0, 1, 2], :4], atol=1e-7)
    np.testing.assert_allclose(seen[:, 4], [0, 0, 0, 1e-3], atol=1e-9)


def test_gait_of_a_standing_robot() -> None:
    go, stop = np.array([0.5, 0, 0]), np.zeros(3)
    commands = [go, go, stop, stop, go]
    step = 2 * math.pi * 1.25 / 50
    held = walker.SENSING._replace(gait=Gait(1.25, (0.0, math.pi), "cos_sin", "held", 0.01))
    seen = _memory(held, commands)
    np.testing.assert_allclose(seen[2, 0], math.cos(2 * step), atol=1e-6)  # not yet
    np.testing.assert_allclose(seen[3:, :4], [[-1, -1, 0, 0]] * 2, atol=1e-6)  # both feet down
    zero = Sensing("trunk", (Term("gait_phase", 2),), Gait(1.25, (0.0,), "sin_cos", "zero", 0.1))
    seen = _memory(zero, commands)
    np.testing.assert_array_equal(seen[2:4], 0)
    np.testing.assert_allclose(seen[4], [math.sin(4 * step), math.cos(4 * step)], atol=1e-6)  # went on meanwhile


# --- motors


def test_actuators_may_come_in_another_order() -> None:
    worlds = [simulated(), simulated(actuators=walker.OTHER_ORDER)]
    for world in worlds:
        world.reset()
        for k in range(10):
            world.step(np.array([math.sin(k / 3), 1.0]), np.zeros(3))
    np.testing.assert_allclose(worlds[0].data.qpos, worlds[1].data.qpos, atol=1e-12)


def test_motors_by_torque_move_as_motors_by_target() -> None:
    """The contract's gains on plain motors (also geared ones) against MuJoCo's own position actuators."""
    worlds = [simulated(), simulated(actuators=walker.TORQUE)]
    command, angles = np.zeros(3), []
    for world in worlds:
        world.reset()
        for k in range(25):
            world.step(np.array([math.sin(k / 3), 1.0]), command)
        angles.append(world.data.qpos[7:].copy())
    np.testing.assert_allclose(angles[0], angles[1], atol=5e-3)
    assert abs(angles[0][1] - (-0.2 + 0.25)) < 0.05  # at its target, but for its weight


def test_motors_give_no_more_than_they_can() -> None:
    robot = dataclasses.replace(walker.robot(), effort_limit=(0.2, 0.1))
    world = simulated(robot, actuators=walker.TORQUE)
    world.reset()
    world.step(np.array([3.0, -3.0]), np.zeros(3))
    np.testing.assert_allclose(world.data.ctrl, [0.1, -0.1])  # the first has a gear of 2


def test_targets_are_clipped_as_in_training() -> None:
    """Plain motors are given the torque towards the clipped target; MuJoCo's position actuators clip by themselves."""
    robot = dataclasses.replace(walker.robot(), target_low=(-0.3, -0.1), target_high=(0.4, 0.2))
    torque, position = simulated(robot, walker.TORQUE), simulated(robot, POSITION_WITHIN)
    for world in (torque, position):
        world.reset()
        for _ in range(100):
            world.step(np.array([2.0, -2.0]), np.zeros(3))  # towards 1.1 and -0.7
    towards = np.array([6, 5]) * ([0.4, -0.1] - torque.data.qpos[7:])
    np.testing.assert_allclose(torque.data.ctrl, towards / [2, 1], atol=1e-3)  # the first has a gear of 2
    np.testing.assert_allclose(torque.data.qpos[7:], position.data.qpos[7:], atol=1e-3)


def test_power_is_that_of_the_contracts_torque() -> None:
    """The damping that the scene's joints bring is the motors' on a robot."""
    for actuators in (walker.POSITION, walker.TORQUE):
        world = simulated(actuators=actuators)
        world.reset()
        target, angle, velocity = np.array([0.3, 0.1]), np.array([0.4, -0.1]), np.array([1.5, -2.0])
        world.data.qpos[7:], world.data.qvel[6:] = angle, velocity
        world._drive(target)
        mujoco.mj_forward(world.model, world.data)
        torque = np.array([6.0, 5.0]) * (target - angle) - np.array([0.5, 0.3]) * velocity
        assert world.power == pytest.approx(np.abs(torque * velocity).sum(), rel=1e-9)


def test_a_scene_with_other_motors_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strong = dataclasses.replace(walker.robot(), effort_limit=(4.0, 3.0))
    assert simulated().differences == simulated(actuators=walker.TORQUE).differences == ()
    assert simulated(strong, walker.TORQUE).differences == ()
    other = walker.POSITION.replace('kp="5"', 'kp="500"')
    assert simulated(actuators=other).differences == (
        "stiffness of 1 joint is not the policy's: right_joint has 500 instead of 5",
    )
    weak = walker.TORQUE.replace('gear="2"', 'gear="2" ctrlrange="-1.5 1.5"')
    assert simulated(strong, weak).differences == (
        "motors of 1 joint are weaker than the policy's: left_joint gives 3 N m instead of 4",
    )
    for limited in (
        walker.TORQUE.replace('gear="2"', 'gear="2" forcerange="-1.5 1.5"'),
        walker.POSITION.replace('kp="6"', 'kp="6" forcerange="-3 3"'),
    ):
        assert simulated(strong, limited).differences == (
            "motors of 1 joint are weaker than the policy's: left_joint gives 3 N m instead of 4",
        )
    path, scene = write(tmp_path), tmp_path / "other.xml"
    scene.write_text(walker.scene(other))
    assert cli.main(["sim2sim", str(path), "--seconds", "0.5", "--scene", str(scene)]) == 0
    out, err = capsys.readouterr()
    assert err == f"warning: {scene}: stiffness of 1 joint is not the policy's: right_joint has 500 instead of 5\n"
    assert "velocities: not evaluated, as it never walked for more than 1 s after a start" in out


def test_without_mujoco_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path)
    monkeypatch.setitem(sys.modules, "mujoco", None)  # type: ignore[arg-type]
    for words in ([], ["--video", str(tmp_path / "a.mp4")]):
        assert cli.main(["sim2sim", str(path), *words]) == 2
        assert capsys.readouterr().err == "warpsac: needs mujoco: pip install 'warpsac[mujoco,export]'\n"


@pytest.mark.parametrize("name", ["nonsense", "glfw"])
def test_a_way_to_draw_that_does_not_work_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", name)
    monkeypatch.delenv("DISPLAY", raising=False)
    assert video.find_gl() is None
    assert video.no_gl().startswith(f"MUJOCO_GL = {name}: MuJoCo cannot draw this way here; unset it")


def test_the_scene_must_have_the_robot(tmp_path: Path) -> None:
    robot = walker.robot()
    for change, message in (
        ({"joints": ("left_joint", "third")}, "no joint 'third'"),
        ({"base": "head"}, "no body 'head'"),
        ({"base": "left"}, "body left has no free joint"),
        ({"control_hz": 60.0}, r"time step of 0\.004 s does not divide the control step"),
        ({"prefix": "robot/", "joints": ("left", "right")}, "no joint 'robot/left'"),
        ({"observation": (Term("base_ang_vel", 3, "compass"),)}, "no sensor 'compass'"),
        ({"observation": (Term("projected_gravity", 3, "tail"),)}, "no body 'tail'"),
    ):
        with pytest.raises(UserError, match=message):
            simulated(dataclasses.replace(robot, **change))
    plain = simulated(dataclasses.replace(robot, prefix="robot/"))  # a scene that calls the parts by their plain names
    plain.reset()
    np.testing.assert_array_equal(plain.data.qpos[7:], robot.default_pose)
    with pytest.raises(UserError, match="no actuator for joint right_joint"):
        simulated(actuators='<motor joint="left_joint"/>')


# --- walking


def test_a_walk_adds_up() -> None:
    """Pushed at a known speed on ice, the box keeps moving: velocity, errors and what is not counted."""
    world = simulated()
    world.model.geom_friction[:] = 0
    world.model.opt.gravity[:] = 0
    seen = []

    def push(step: int, obs: np.ndarray) -> None:
        seen.append(obs)
        if step == 0:
            world.data.qvel[0] = 0.4

    found = walk(world, lambda obs: np.zeros(2), (0.5, 0, 0), 1.5, push).summary()
    assert len(seen) == 75
    assert (found["seconds"], found["falls"], found["first_fall"]) == (1.5, 0, None)
    np.testing.assert_allclose(found["velocity"], [0.4, 0, 0], atol=2e-3)
    np.testing.assert_allclose(found["mean_error"], [-0.1, 0, 0], atol=2e-3)
    np.testing.assert_allclose(found["rms_error"], [0.1, 0, 0], atol=2e-3)
    assert found["action_rate"] == 0
    assert "velocity" not in walk(world, lambda obs: np.zeros(2), (0.5, 0, 0), 0.5).summary()  # still settling


def test_the_action_rate_of_a_walk() -> None:
    """One of two actions changes by 0.1 at every step, after a larger change that is not counted: still settling."""
    changing = itertools.count()
    actions = lambda obs: np.array([0.5 if (step := next(changing)) == 0 else 0.1 * (step % 2), 0.0])
    assert walk(simulated(), actions, (0, 0, 0), 1.5).summary()["action_rate"] == pytest.approx(0.01 / 2)


def test_falls_are_counted_and_the_robot_is_put_back() -> None:
    world = simulated()

    def topple(step: int, obs: np.ndarray) -> None:
        if step in (10, 30):
            world.data.qpos[3:7] = (math.cos(0.6), math.sin(0.6), 0, 0)  # 69 degrees
        if step == 50:
            world.data.qpos[2] = -5.0

    done = walk(world, lambda obs: np.zeros(2), (0, 0, 0), 1.2, topple)
    assert len(done.fell_at) == 3
    assert done.fell_at[0] == pytest.approx(0.22)
    assert not world.fallen
    with pytest.raises(UserError, match=r"the policy's actions are not finite after 0\.00 s"):
        walk(world, lambda obs: np.full(2, np.nan), (0, 0, 0), 0.1)


def test_physics_that_runs_away_is_a_fall(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """MuJoCo resets itself then, standing as if nothing had happened."""
    world = simulated()

    def spoil(step: int, obs: np.ndarray) -> None:
        if step == 5:
            world.data.qvel[7] = np.nan

    with contextlib.chdir(tmp_path):  # where MuJoCo writes its log
        done = walk(world, lambda obs: np.zeros(2), (0, 0, 0), 0.4, spoil)
    assert done.fell_at == (pytest.approx(0.12),)
    assert np.isfinite(done.velocity).all()


def test_same_policy_same_walk(tmp_path: Path) -> None:
    policy = Policy(write(tmp_path))
    one, two = (walk(load_scene(policy), policy, (0.3, 0, 0), 2.0) for _ in range(2))
    np.testing.assert_array_equal(one.velocity, two.velocity)
    assert np.abs(one.power).max() > 0
    other = walk(load_scene(policy), policy, (0.3, 0, 0), 2.0, lambda step, obs: None)
    assert other.summary() == one.summary()


# --- in the viewer


def test_on_stage_it_walks_as_it_does_alone(tmp_path: Path) -> None:
    policy = Policy(write(tmp_path))
    alone = walk(load_scene(policy), policy, (0.3, 0, 0), 1.0)
    robot = load_scene(policy)
    shown: Any = stage.Stage(robot, "Walker", (0.3, 0, 0))
    assert isinstance(shown, contract.Steerable)
    assert isinstance(shown, contract.HasScene)
    obs, velocity = shown.reset(0), []
    for _ in range(50):
        shown.send(policy(obs[0])[None])
        velocity.append(robot.velocity)
        obs = shown.recv().result.obs
    np.testing.assert_array_equal(velocity, alone.velocity)


def test_on_stage_it_is_steered_and_a_fall_ends_an_episode(tmp_path: Path) -> None:
    robot = load_scene(Policy(write(tmp_path)))
    shown = stage.Stage(robot, "Walker", (0.3, 0, 0))
    shown.reset(0)
    np.testing.assert_array_equal(shown.command().value, [0.3, 0, 0])
    shown.steer(np.array([0.0, 0.1, -0.2]))
    shown.send(np.zeros((1, 2)))
    going = shown.recv().result
    np.testing.assert_array_equal(shown.command().value, [0.0, 0.1, -0.2])
    np.testing.assert_array_equal(going.obs[0], robot.observe(np.array([0.0, 0.1, -0.2])))
    assert not going.terminated[0]
    robot.data.qpos[2] = -5.0
    shown.send(np.zeros((1, 2)))
    ended = shown.recv().result
    assert ended.terminated[0]
    assert not robot.fallen
    assert ended.obs.tobytes() != ended.final_obs.tobytes()


def test_the_page_takes_the_robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def look(prepare: Any, task: str, agent: str, host: str, port: int, seed: int, rewards: bool) -> None:
        env, act = prepare()
        assert not rewards
        asked.extend([task, agent, host, port, act(env.reset(seed)).shape])

    monkeypatch.setattr(stage.session, "watch", look)
    # The browser draws: OpenGL is not even looked for.
    monkeypatch.setattr("warpsac.deploy.sim2sim.command.prepare_to_draw", lambda: pytest.fail("OpenGL"))
    path = str(write(tmp_path))
    assert cli.main(["sim2sim", path, "--viewer", "--port", "0"]) == 0
    assert asked == ["Walker", "policy.onnx", "127.0.0.1", 0, (1, 2)]
    assert cli.main(["sim2sim", path, "--viewer", "--video", "a.mp4"]) == 2


# --- the command


ALONE = """
import sys

ROOMS = {"config", "deploy", "envs", "runs", "watch"}
OWN = {"errors", "types", "envs.contract", "envs.deploy_contract", "envs.drawing", "envs.motion", "runs.files"}
OWN |= {"watch.video"}

class Blocked:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in {"jax", "jaxlib", "optax", "flax", "torch", "gymnasium", "onnx"}:
            raise ImportError(f"{name} is blocked")
        own = name.removeprefix("warpsac.")
        if own != name and own not in ROOMS | OWN and not own.startswith(("config.", "deploy.sim2sim")):
            raise ImportError(f"{name} is training code")

sys.meta_path.insert(0, Blocked)
import runpy
runpy.run_module("warpsac.deploy.sim2sim", run_name="__main__", alter_sys=True)
"""


def test_it_runs_without_jax_and_without_training_code(tmp_path: Path) -> None:
    """In another process where importing them is an error; with a video where it can be drawn."""
    path, film = write(tmp_path), tmp_path / "walk.mp4"
    words = [str(path), "--seconds", "1.2", "--json"]
    if video.find_gl() is not None:
        words += ["--video", str(film)]
    done = subprocess.run([sys.executable, "-c", ALONE, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["task"], found["falls"], found["seconds"]) == ("Walker", 0, 1.2)
    if "--video" in words:
        assert film.stat().st_size > 1000
    done = subprocess.run([sys.executable, "-c", ALONE, "nowhere.onnx"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "sim2sim: nowhere.onnx: no such file\n"
    words = [sys.executable, "-m", "warpsac.deploy.sim2sim", str(path), "--secnds", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("sim2sim: ")
    assert "--secnds" in done.stderr


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    assert cli.main(["sim2sim", str(path), "--seconds", "1.1", "--command", "0", "0", "2"]) == 0
    out, err = capsys.readouterr()
    assert "falls: 0" in out
    assert "rms error" in out
    trained = "-1 to 1 m/s ahead, -0.5 to 0.5 m/s to the left, -1 to 1 rad/s turning"
    assert err == f"warning: command = 0 0 2: the policy was trained with {trained}\n"
    assert cli.main(["sim2sim", str(path), "--seconds", "1.1", "--command", "-1", "0.5", "1", "--json"]) == 0
    assert capsys.readouterr().err == ""
    # A robot that lies down at once: exit code 1.
    fallen = dataclasses.replace(walker.robot(), base_height=1.5)
    path = walker.write_policy(tmp_path / "fallen", card(fallen), np.zeros((22, 2)), [0, 0])
    assert cli.main(["sim2sim", str(path), "--seconds", "1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["falls"] >= 1


def test_what_cannot_be_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = np.zeros((22, 2))
    plain = walker.write_policy(tmp_path / "plain", None, weight, [0, 0])
    broken = walker.write_policy(tmp_path / "broken", None, weight, [0, 0], text="{half")
    later = walker.write_policy(tmp_path / "later", {"format": 2}, weight, [0, 0])
    nobody = walker.write_policy(tmp_path / "nobody", card(None), weight, [0, 0])
    terms = (*walker.robot().observation[:-1], Term("smell", 2, function="task.smell"))
    smelling = walker.write_policy(
        tmp_path / "smelling", card(dataclasses.replace(walker.robot(), observation=terms)), weight, [0, 0]
    )
    standing = dataclasses.replace(
        walker.robot(), observation=(Term("last_action", 22, history=11),), command_low=(), command_high=()
    )
    told = dataclasses.replace(standing, command_low=(0.0,) * 3, command_high=(1.0,) * 3)
    nowhere = walker.write_policy(tmp_path / "nowhere", card(standing), weight, [0, 0])
    before = walker.write_policy(tmp_path / "before", card(told), weight, [0, 0])
    narrow = walker.write_policy(tmp_path / "narrow", card(walker.robot()), weight[:20], [0, 0])
    nameless = walker.write_policy(tmp_path / "nameless", {"format": 1}, weight, [0, 0])
    third = walker.write_policy(tmp_path / "third", card(walker.robot()), np.zeros((22, 3)), [0, 0, 0])
    text = tmp_path / "text.onnx"
    text.write_text("not a model")
    good = write(tmp_path / "good")
    lost = write(tmp_path / "lost")
    (tmp_path / "lost" / "scene.xml").unlink()
    (tmp_path / "good" / "bad.xml").write_text("<mujoco><worldbody><nobody/></worldbody></mujoco>")
    for words, message in (
        ([plain], "carries no description of its robot"),
        ([broken], "its description cannot be read"),
        ([later], "has format 2; this version of warpsac reads 1"),
        ([nobody], "carries no description of a robot: Walker has none, or it was exported with --without-robot"),
        ([nameless], "its description names no task"),
        ([third], "the policy gives 3 numbers, its description names 2"),
        ([smelling], "in plain MuJoCo: it observes smell, which only the task's own code computes"),
        ([nowhere], "in plain MuJoCo: it follows no commanded velocity"),
        ([before], "in plain MuJoCo: it observes a history of last_action"),
        ([tmp_path], "a folder; name the policy.onnx that `warpsac export` writes"),
        ([narrow], "the policy takes 20 numbers, its description names 22"),
        ([text], "not an ONNX model that can be run"),
        ([tmp_path / "none.onnx"], "no such file"),
        ([lost], "scene.xml: no such file; keep the exported folder together"),
        ([good, "--scene", tmp_path / "good" / "bad.xml"], "bad.xml: XML Error"),
        ([good, "--seconds", "0"], "seconds = 0: must be above 0"),
        ([good, "--command", "nan", "0", "0"], "must be three finite numbers"),
    ):
        assert cli.main(["sim2sim", *map(str, words)]) == 2, message
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err
        assert len(err.splitlines()) == 1, err
