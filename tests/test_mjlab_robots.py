"""The deploy contract of MJLab's environments, against their own models, settings and observations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import walker
from runs import tiny
from warpsac import cli
from warpsac.config.schema import EnvConfig
from warpsac.envs import deploy_contract, registry
from warpsac.envs.deploy_contract import Deployment, Term
from warpsac.training import start as training

pytest.importorskip("mjlab", reason="needs MJLab: make test-mjlab")
import torch

from warpsac.deploy.sim2sim.robot import Simulated
from warpsac.envs.torch import mjlab, mjlab_robots, mjlab_symmetry
from warpsac.types import Mirror

# MJLab and what it imports warn about themselves.
pytestmark = pytest.mark.filterwarnings("default")

G1, UNITREE, GO1, CUBE = (
    "Mjlab-Velocity-Flat-Unitree-G1", "Unitree-G1-Flat", "Mjlab-Velocity-Rough-Unitree-Go1", "Mjlab-Lift-Cube-Yam",
)  # fmt: skip
LEG = ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
ARM = ("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow", "wrist_roll", "wrist_pitch", "wrist_yaw")
JOINTS = tuple(
    f"{name}_joint"
    for name in (
        *(f"left_{part}" for part in LEG), *(f"right_{part}" for part in LEG),
        "waist_yaw", "waist_roll", "waist_pitch",
        *(f"left_{part}" for part in ARM), *(f"right_{part}" for part in ARM),
    )
)  # fmt: skip
POSE = {"hip_pitch": -0.312, "knee": 0.669, "ankle_pitch": -0.363, "elbow": 0.6, "shoulder_pitch": 0.2}


@pytest.fixture
def unitree(monkeypatch: pytest.MonkeyPatch) -> str:
    """Its task as unitree_rl_mjlab registers it, on MJLab's own robot: other terms, and its own clock."""
    from mjlab.managers.observation_manager import ObservationTermCfg
    from mjlab.tasks import registry

    def phase(env: Any, period: float, command_name: str) -> torch.Tensor:
        angle = 2 * math.pi * env.episode_length_buf * env.step_dt / period
        moving = torch.linalg.norm(env.command_manager.get_command(command_name), dim=1) >= 0.1
        return torch.stack([angle.sin(), angle.cos()], dim=1) * moving[:, None]

    phase.__module__, phase.__qualname__ = "src.tasks.velocity.mdp.observations", "phase"
    load = registry.load_env_cfg

    def loaded(task: str) -> Any:
        settings = load(G1 if task == UNITREE else task)
        if task != UNITREE:
            return settings
        group = settings.observations["actor"]
        group.terms["phase"] = ObservationTermCfg(func=phase, params={"period": 0.6, "command_name": "twist"})
        names = ("base_ang_vel", "projected_gravity", "command", "phase", "joint_pos", "joint_vel", "actions")
        group.terms, group.history_length = {name: group.terms[name] for name in names}, 1
        stages = settings.curriculum["command_vel"].params["velocity_stages"]
        stages[0] |= {"lin_vel_x": (-0.5, 1.0), "lin_vel_y": (-0.5, 0.5), "ang_vel_z": (-1.0, 1.0)}
        return settings

    monkeypatch.setattr(registry, "_REGISTRY", registry._REGISTRY | {UNITREE: registry._REGISTRY[G1]})
    monkeypatch.setattr(registry, "load_env_cfg", loaded)
    return UNITREE


@pytest.fixture(scope="module")
def g1() -> Deployment:
    found = registry.deployment(G1)
    assert found is not None
    return found


def world_of(found: Deployment) -> Simulated:
    """The robot in the exported scene."""
    assert found.scene is not None
    return Simulated(found.scene.load(), found.robot)


# --- what is reported


def test_the_g1_by_its_model_and_its_settings(g1: Deployment) -> None:
    from mjlab.asset_zoo.robots import G1_ACTION_SCALE

    robot = g1.robot
    assert robot.joints == JOINTS
    assert (robot.base, robot.base_height, robot.control_hz, robot.prefix) == ("pelvis", 0.76, 50.0, "robot/")
    pose = [POSE.get(re.sub("left_|right_|_joint", "", name), 0.0) for name in JOINTS]
    pose[JOINTS.index("left_shoulder_roll_joint")], pose[JOINTS.index("right_shoulder_roll_joint")] = 0.2, -0.2
    assert robot.default_pose == tuple(pose)
    scales = [next(s for pattern, s in G1_ACTION_SCALE.items() if re.fullmatch(pattern, name)) for name in JOINTS]
    np.testing.assert_allclose(robot.action_scale, scales, rtol=1e-6)
    model = world_of(g1).model
    for place, name in enumerate(JOINTS):
        actuator = model.actuator(f"robot/{name}")  # in an order of their own
        assert robot.stiffness[place] == pytest.approx(actuator.gainprm[0], rel=1e-5)
        assert robot.damping[place] == pytest.approx(-actuator.biasprm[2], rel=1e-5)
        assert robot.effort_limit[place] == actuator.forcerange[1]
        assert (robot.joint_low[place], robot.joint_high[place]) == pytest.approx(model.joint(f"robot/{name}").range)
    assert robot.target_low == ()  # MJLab's motors take any target
    assert (robot.stiffness[0], robot.damping[0], robot.effort_limit[3]) == (40.17924, 2.55789, 139.0)
    assert (robot.command_low, robot.command_high) == ((-1.0, -1.0, -0.5), (1.0, 1.0, 0.5))
    assert robot.observation == (
        Term("base_lin_vel", 3, "imu_lin_vel"), Term("base_ang_vel", 3, "imu_ang_vel"),
        Term("projected_gravity", 3, "pelvis"), Term("joint_pos_rel", 29), Term("joint_vel_rel", 29),
        Term("last_action", 29), Term("velocity_commands", 3),
    )  # fmt: skip
    assert robot.observation_size == 99
    assert robot.obstacle is None
    assert {"push_robot (every 1 to 3 s)", "foot_friction (startup)", "reset_base (reset)"} <= set(robot.disturbances)
    assert deploy_contract.from_plain(json.loads(json.dumps(deploy_contract.to_plain(robot))), "file") == robot


def test_unitree_g1_flat_has_98_numbers_in_the_robots_order(unitree: str) -> None:
    found = registry.deployment(unitree)
    assert found is not None
    robot = found.robot
    assert (robot.base, robot.observation, robot.gait) == walker.UNITREE_G1_FLAT[:3]
    assert (robot.observation_size, len(robot.joints), robot.obstacle) == (98, 29, None)
    # The first stage of the task's curriculum, not what its settings say before it.
    assert (robot.command_low, robot.command_high) == ((-0.5, -0.5, -1.0), (1.0, 0.5, 1.0))


def test_a_term_that_only_the_task_computes_is_named() -> None:
    found = registry.deployment(GO1)
    assert found is not None
    assert found.scene is None
    *known, scan = found.robot.observation
    assert [term.name for term in known][-1] == "velocity_commands"
    assert scan == Term(
        "height_scan", 187, "terrain_scan", scale=0.2, function=f"{mjlab_robots.OBSERVATIONS}.height_scan"
    )
    assert found.robot.observation_size == 235
    assert found.robot.obstacle == "it observes height_scan, which only the task's own code computes"
    # The stages of its curriculum count steps of each environment.
    later = registry.deployment(GO1, steps=10**6)
    assert later is not None
    assert later.robot.command_high[0] > found.robot.command_high[0] > 0


def test_an_arm_has_joints_that_are_not_driven() -> None:
    found = registry.deployment(CUBE)
    assert found is not None
    robot = found.robot
    driven = ("joint1", "joint2", "joint3", "joint4", "joint5", "joint6", "left_finger")
    assert (robot.joints, robot.command_low, found.scene) == (driven, (), None)
    assert [(term.name, term.size) for term in robot.observation] == [
        ("joint_pos", 8), ("joint_vel", 8), ("ee_to_cube", 3), ("cube_to_goal", 3), ("last_action", 7),
    ]  # fmt: skip
    joints = robot.observation[0].source.split(", ")
    assert [one.split(" minus ")[0] for one in joints] == [*driven, "right_finger"]
    assert joints[6:] == ["left_finger minus 0.01875", "right_finger minus -0.01875"]
    assert robot.observation[2].source == "object_name cube, asset_cfg robot (grasp_site)"
    assert robot.observation[2].function == "mjlab.tasks.manipulation.mdp.observations.ee_to_object_distance"
    assert robot.obstacle == "it follows no commanded velocity"


def test_settings_of_terms_and_motors_that_give_torques(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale, clip, history, another sensor, another pose, in one environment that is not a robot's any more."""
    simulator = mjlab.MjlabEnvs(registry.lookup(G1), 1, EnvConfig())
    env = simulator._env
    robot = mjlab_robots.robot_of(env, ["actor"])
    assert robot is not None
    manager = env.observation_manager
    terms = dict(zip(manager.active_terms["actor"], manager._group_obs_term_cfgs["actor"]))
    terms["joint_vel"].scale, terms["joint_vel"].clip = torch.linspace(0.5, 1.0, 29), (-10, 10)
    terms["base_ang_vel"].history_length = 3
    manager._group_obs_term_dim["actor"][1] = (9,)
    terms["base_lin_vel"].params["sensor_name"] = "robot/imu_lin_acc"
    changed = mjlab_robots.robot_of(env, ["actor"])
    assert changed is not None
    lin, ang, _, _, vel, *_ = changed.observation
    assert lin == Term("base_lin_vel", 3, "robot/imu_lin_acc", function=f"{mjlab_robots.OBSERVATIONS}.builtin_sensor")
    assert ang == Term("base_ang_vel", 9, "imu_ang_vel", history=3)
    assert isinstance(vel.scale, tuple)
    assert (vel.scale[0], vel.scale[28], vel.clip) == (0.5, 1.0, (-10.0, 10.0))
    # The same gains if MJLab computes the torques and the model has plain motors.
    monkeypatch.setattr("warpsac.envs.mujoco_robots.gains_of", lambda model, joints: None)
    told = mjlab_robots.robot_of(env, ["actor"])
    assert told is not None
    assert (told.stiffness, told.damping, told.effort_limit) == (robot.stiffness, robot.damping, robot.effort_limit)
    env.action_manager.get_term("joint_pos")._offset[:, 0] += 0.1
    assert mjlab_robots.robot_of(env, ["actor"]).observation[3].name == "joint_pos"  # relative to another pose
    env.action_manager.get_term("joint_pos").cfg.clip = {".*": (-1.0, 1.0)}
    assert mjlab_robots.robot_of(env, ["actor"]) is None
    simulator.close()


def test_all_parameters_of_a_tasks_own_term() -> None:
    told = {"cutoff": 0.5, "command_name": "lift", "sensor_name": "camera"}
    assert mjlab_robots._parameters(SimpleNamespace(func=len, params=told), None) == "camera, lift, cutoff 0.5"


# --- against the environment itself


@pytest.mark.parametrize("which", [G1, UNITREE])
def test_the_contract_observes_what_the_environment_observes(which: str, unitree: str) -> None:
    """Our observation in plain MuJoCo against MJLab's own of the same states, over several control steps."""
    found = registry.deployment(which)
    assert found is not None
    world = world_of(found)
    world.reset()
    simulator = mjlab.MjlabEnvs(registry.lookup(which), 1, EnvConfig())
    simulator.reset(0)
    env = simulator._env
    for settings in env.observation_manager._group_obs_term_cfgs["actor"]:
        settings.noise = None
        settings.history_length = 0
    env.scene["robot"].data.encoder_bias[:] = 0
    env.sim.data.qvel[:] = 0
    rng = np.random.default_rng(0)
    for step in range(6):
        command = np.array([0.4, -0.2, 0.3]) if step < 4 else np.array([0.02, 0.0, 0.0])
        env.sim.data.qpos[0] = torch.as_tensor(world.data.qpos, dtype=torch.float32)
        env.sim.data.qvel[0] = torch.as_tensor(world.data.qvel, dtype=torch.float32)
        env.sim.forward()
        if hasattr(env.sim, "sense"):
            env.sim.sense()
        env.episode_length_buf[:] = step
        env.command_manager.get_term("twist").vel_command_b[0] = torch.as_tensor(command, dtype=torch.float32)
        expected = env.observation_manager.compute_group("actor")[0].numpy()
        np.testing.assert_allclose(world.observe(command), expected, atol=2e-4)
        action = rng.uniform(-1, 1, 29)
        world.step(action, command)
        env.action_manager._action[0] = torch.as_tensor(action, dtype=torch.float32)
    simulator.close()


# --- as files


@pytest.fixture
def in_a_mirror() -> Iterator[Any]:
    """Two robots in the air: one in some state, the other in the state of its mirror image."""
    made = mjlab.make(registry.lookup(G1), 2, EnvConfig(num_envs=2))
    made.start(0)
    yield made
    made.close()


@torch.inference_mode()
def test_the_g1_in_a_mirror_is_observed_as_the_mirror_says(in_a_mirror: Any) -> None:
    env = in_a_mirror._env
    found = mjlab_symmetry.symmetry_of(env, in_a_mirror._groups)
    assert found is not None
    assert (found.obs.size, found.action.size) == (in_a_mirror.spec.views.obs_dim, 29)
    assert found.obs.flaw is found.action.flaw is None
    rng, data, vector, rotation = np.random.default_rng(0), env.sim.data, np.array([1, -1, 1]), np.array([-1, 1, -1])
    turned, angles, speeds = np.array([1.0, 0.1, -0.2, 0.3]), rng.normal(0, 0.2, 29), rng.normal(size=29)
    turned /= np.linalg.norm(turned)
    velocity, turning, action, command = rng.normal(size=3), rng.normal(size=3), rng.normal(size=29), rng.normal(size=3)
    pose = env.scene["robot"].data.default_joint_pos[0].numpy()
    joints = found.action
    states = (
        (turned, angles, velocity, turning, speeds, action, command),
        (turned * [1, *rotation], joints(angles), velocity * vector, turning * rotation, joints(speeds),
         joints(action), command * [1, -1, -1]),
    )  # fmt: skip
    for i, (turn, angle, linear, angular, speed, last, order) in enumerate(states):
        data.qpos[i] = torch.as_tensor(np.concatenate([[0, 0, 2], turn, pose + angle]))
        data.qvel[i] = torch.as_tensor(np.concatenate([linear, angular, speed]))
        env.action_manager._action[i] = torch.as_tensor(last)
        env.command_manager.get_command("twist")[i] = torch.as_tensor(order)
    env.sim.forward()
    if hasattr(env.sim, "sense"):
        env.sim.sense()
    for name in in_a_mirror._groups:
        for term in env.observation_manager.active_terms[name]:
            env.observation_manager.get_term_cfg(name, term).noise = None
    env.scene["robot"].data.encoder_bias[:] = 0
    groups = {name: env.observation_manager.compute_group(name) for name in in_a_mirror._groups}
    one, other = in_a_mirror._observation(groups).numpy()
    np.testing.assert_allclose(other, found.obs(one), atol=2e-3)
    assert np.abs(other - one).max() > 1


def test_a_height_scan_in_a_mirror() -> None:
    """Three rays ahead of three behind, each row from the right to the left."""
    places = np.array([[x, y, 0.0] for x in (0.1, -0.1) for y in (-0.2, 0.0, 0.2)])
    down = np.tile([0.0, 0.0, -1.0], (6, 1))

    def scan(places: np.ndarray, alignment: str = "yaw") -> Any:
        tensors = {"_local_offsets": torch.as_tensor(places), "_local_directions": torch.as_tensor(down)}
        return mjlab_symmetry._of_scan(SimpleNamespace(cfg=SimpleNamespace(ray_alignment=alignment), **tensors))

    assert scan(places) == Mirror((2, 1, 0, 5, 4, 3), (1,) * 6)
    assert scan(places + [0, 0.05, 0]) is None  # the grid is not symmetric
    assert scan(places, "world") is None


def test_export_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], unitree: str
) -> None:
    """A run of a few steps of Unitree-G1-Flat; its policy walks, or falls, in the scene next to it."""
    for module in ("onnx", "onnxruntime", "yaml"):
        pytest.importorskip(module)
    import yaml

    from warpsac.deploy.sim2sim.policy import Policy

    config = tiny(tmp_path, task=unitree, env={"num_envs": 2, "episode_limit": 10}, total_steps=20, learning_starts=10,
                  eval={"every": 0, "episodes": 1, "num_envs": 1}, checkpoint={"every": 0})  # fmt: skip
    (run,) = training.train(config).runs
    assert cli.main(["export", str(run), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "robot: 29 joints, 7 observation terms, 50 Hz\n" in out
    assert "observations: recorded in plain MuJoCo, under four commands\n" in out
    policy = Policy(tmp_path / "out" / "policy.onnx")
    assert policy.robot is not None
    assert (policy.robot.joints, policy.robot.observation) == (JOINTS, walker.UNITREE_G1_FLAT.observation)
    told = yaml.safe_load((tmp_path / "out" / "deploy.yaml").read_text())
    assert (told["step_dt"], told["warpsac"]["joint_names"]) == (0.02, list(JOINTS))
    assert told["stiffness"][:4] == [40.17924, 99.09843, 40.17924, 99.09843]
    assert told["commands"]["base_velocity"]["ranges"]["lin_vel_x"] == [-0.5, 1.0]
    assert told["observations"]["gait_phase"]["params"]["period"] == 0.6
    assert sum(len(term["scale"]) for term in told["observations"].values()) == 98
    assert cli.main(["sim2sim", str(policy.path), "--seconds", "1.2", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["seconds"] == 1.2
    # As Unitree's program reads it: the same description, and the scene is found from there too.
    assert cli.main(["export", str(run), "--out", str(tmp_path / "v1"), "--layout", "unitree"]) == 0
    there = yaml.safe_load((tmp_path / "v1/params/deploy.yaml").read_text())
    assert {name: there[name] for name in told if name != "warpsac"} == {n: told[n] for n in told if n != "warpsac"}
    assert there["joint_ids_map"] == list(range(29))
    words = ["sim2sim", str(tmp_path / "v1/exported/policy.onnx"), "--seconds", "0.1", "--json"]
    assert cli.main(words) in (0, 1)
