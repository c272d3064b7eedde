"""A small robot for the tests of export and sim2sim: a box with two arms, in plain MuJoCo."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warpsac.envs.deploy_contract import Gait, Robot, Term
from warpsac.envs.mujoco_robots import Sensing, describe_robot, motors_of

# A heavy box on the floor with two light arms: it stands by itself, whatever the policy does with the arms.
SCENE = """
<mujoco>
  <option timestep="0.004"/>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1"/>
    <body name="trunk" pos="0 0 0.2">
      <freejoint name="root"/>
      <geom type="box" size="0.3 0.3 0.2" mass="20" friction="1"/>
      <site name="imu" pos="0.1 0 0" euler="0 0 90"/>
      <body name="left" pos="0 0.4 0">
        <joint name="left_joint" axis="0 1 0" damping="0.3"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0.15 0 0" mass="0.2" contype="0" conaffinity="0"/>
      </body>
      <body name="right" pos="0 -0.4 0">
        <joint name="right_joint" axis="0 1 0" damping="0.3"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0.15 0 0" mass="0.2" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    ACTUATORS
  </actuator>
  <sensor>
    <gyro name="gyro" site="imu"/>
    <velocimeter name="velocity" site="imu"/>
  </sensor>
</mujoco>
"""
POSITION = '<position joint="left_joint" kp="6" kv="0.2"/><position joint="right_joint" kp="5"/>'
OTHER_ORDER = '<position joint="right_joint" kp="5"/><position joint="left_joint" kp="6" kv="0.2"/>'
TORQUE = '<motor joint="left_joint" gear="2"/><motor joint="right_joint"/>'
SENSING = Sensing(
    base="trunk",
    observation=(
        Term("base_lin_vel", 3, "velocity"),
        Term("base_ang_vel", 3, "gyro"),
        Term("projected_gravity", 3, "imu"),
        Term("velocity_commands", 3),
        Term("gait_phase", 4),
        Term("joint_pos_rel", 2),
        Term("joint_vel_rel", 2, scale=0.5),
        Term("last_action", 2),
    ),
    gait=Gait(1.25, (0.0, math.pi), "cos_sin"),
)

# unitree_rl_mjlab's Unitree-G1-Flat: 98 numbers, all of which the robot's own computer has.
UNITREE_G1_FLAT = Sensing(
    base="pelvis",
    observation=(
        Term("base_ang_vel", 3, "imu_ang_vel"),
        Term("projected_gravity", 3, "pelvis"),
        Term("velocity_commands", 3),
        Term("gait_phase", 2),
        Term("joint_pos_rel", 29),
        Term("joint_vel_rel", 29),
        Term("last_action", 29),
    ),
    gait=Gait(1 / 0.6, (0.0,), "sin_cos", standing="zero", standing_below=0.1),
)


def scene(actuators: str = POSITION) -> str:
    return SCENE.replace("ACTUATORS", actuators)


def robot(sensing: Sensing = SENSING, actuators: str = POSITION) -> Robot:
    import mujoco

    return describe_robot(
        *motors_of(mujoco.MjModel.from_xml_string(scene(actuators))),
        sensing,
        default_pose=(0.1, -0.2),
        base_height=0.2,
        action_scale=(0.5, 0.25),
        control_hz=50.0,
        command_range=((-1, -0.5, -1), (1, 0.5, 1)),
    )


def write_policy(folder: Path, card: Any, weight: np.ndarray, bias: Sequence[float], text: str | None = None) -> Path:
    """A linear policy as an ONNX file that carries `card`, with the scene next to it."""
    import onnx
    from onnx import helper, numpy_helper

    values = {"w": weight.astype(np.float32), "b": np.asarray(bias, np.float32)}
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["obs", "w", "b"], ["actions"])],
        "linear",
        [helper.make_tensor_value_info("obs", onnx.TensorProto.FLOAT, [1, weight.shape[0]])],
        [helper.make_tensor_value_info("actions", onnx.TensorProto.FLOAT, [1, weight.shape[1]])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])
    if text is not None or card is not None:
        helper.set_model_props(model, {"warpsac": text if text is not None else json.dumps(card)})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "policy.onnx"
    path.write_bytes(model.SerializeToString())
    (folder / "scene.xml").write_text(scene())
    return path
