"""What an exported policy says about itself: the metadata inside the ONNX file, and deploy.yaml next to it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from warpsac.deploy import unitree
from warpsac.deploy.sim2sim.policy import METADATA
from warpsac.envs import deploy_contract
from warpsac.envs.deploy_contract import Robot, rounded
from warpsac.errors import UserError

HEADER = """\
# Written by `warpsac export` with policy.onnx.
# Each control step (every step_dt seconds, where the task has a rate):
#   actions = policy.onnx(obs)
"""
ROBOT_HEADER = """\
# Written by `warpsac export` with policy.onnx; the layout is the one of Unitree's deploy programs.
# Each control step, every step_dt seconds:
#   obs     = the observations below, concatenated in their order
#   actions = policy.onnx(obs)
#   target  = offset + scale * actions, joint angles in the order of warpsac.joint_names, then clipped to `clip`
#   torque  = stiffness * (target - angle) - damping * velocity
# `damping` is that of motor and joint together. In the exported scene the joints contribute their part of it: a runner
# that computes torques there subtracts that.
# `source` is the sensor, site or body in the exported scene that a term was read from, without warpsac.prefix.
# `delay` counts control steps by which a value lags. With none, last_action is the action of the previous control step
# (zeros at the start), and the angles of gait_phase have advanced once since; with 1 each is one step older.
# A gait starts at `start` and advances by 2 pi step_dt / period in each control step.
# A motion (warpsac.motion) has one frame for each control step. motion_command is the frame's joint angles, then its
# joint velocities; motion_anchor_pos_b and motion_anchor_ori_b are the frame's anchor body seen from the robot's.
# A term with a `function` has to be computed as that function of the task does.
"""
MOTORS_HEADER = """\
# joint_ids_map has the motor of each joint. `stiffness` and `damping` are in the order of the motors, all else in that
# of the joints.
"""


def card(
    task: str,
    obs_size: int,
    low: Sequence[float],
    high: Sequence[float],
    hz: float | None,
    run: Any,
    robot: Robot | None,
    terms: Sequence[tuple[str, int]] = (),
) -> dict[str, Any]:
    """The description of a policy, for JSON. `terms` are the named parts of the task's observation."""
    if robot:
        terms = [(term.name, term.size) for term in robot.observation]
    starts = itertools.accumulate((size for _, size in terms), initial=0)
    return {
        "format": deploy_contract.FORMAT,
        "task": task,
        "obs_size": obs_size,
        "observation": [{"name": name, "start": start, "size": size} for (name, size), start in zip(terms, starts)],
        "action_low": list(low),
        "action_high": list(high),
        "control_hz": hz,
        "run": run,
        "robot": deploy_contract.to_plain(robot) if robot else None,
    }


def metadata(card: dict[str, Any]) -> dict[str, str]:
    """The ONNX file's metadata: everything as JSON under one key, and the names that other runners look for."""
    found = {METADATA: json.dumps(card), "task": card["task"], "run_path": card["run"]["name"]}
    if card["observation"]:
        found["observation_names"] = ",".join(term["name"] for term in card["observation"])
    if robot := card["robot"]:
        found["joint_names"] = ",".join(robot["joints"])
        names = {"joint_stiffness": "stiffness", "joint_damping": "damping", "default_joint_pos": "default_pose"}
        for name, field in {**names, "action_scale": "action_scale"}.items():
            found[name] = ",".join(f"{number:.7g}" for number in robot[field])
        if robot["command_low"] or robot.get("motion"):
            found["command_names"] = "motion" if robot.get("motion") else "base_velocity"
    return found


def deploy_yaml(card: dict[str, Any], policy: str = "policy.onnx", motors: Sequence[int] | None = None) -> str:
    """The text of deploy.yaml; `policy` is its file relative to this one, `motors` has the motor of each joint."""
    try:
        import yaml
    except ImportError:
        raise UserError("export needs pyyaml: pip install 'warpsac[export]'") from None
    robot = json.loads(json.dumps(card["robot"]))  # tuples as lists, each of them separate
    about = {
        "task": card["task"],
        "policy": policy,
        "input": {"name": "obs", "shape": [1, card["obs_size"]]},
        "output": {"name": "actions", "shape": [1, len(card["action_low"])]},
        **{name: card[name] for name in ("observation", "action_low", "action_high", "run")},
    }
    content: dict[str, Any] = {}
    if card["control_hz"]:
        content["step_dt"] = rounded(1 / card["control_hz"])
    if robot:
        robot["joint_range"] = _pairs(robot, "joint")
        about |= {"joint_names": robot["joints"]}
        about |= {name: robot[name] for name in ("base", "base_height", "prefix", "sensors")}
        optional = {name: robot[name] for name in ("disturbances", "joint_range", "effort_limit")}
        about |= {name: value for name, value in optional.items() if value}
        about["scene"] = robot["scene"]
        if robot.get("motion"):
            about["motion"] = robot["motion"]
        content |= _robot_yaml(robot) | (_motors_yaml(robot, motors) if motors else {})
    content["warpsac"] = about
    header = ROBOT_HEADER + (MOTORS_HEADER if motors else "") if robot else HEADER
    return header + yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120)


def _robot_yaml(robot: dict[str, Any]) -> dict[str, Any]:
    ranges = dict(zip(("lin_vel_x", "lin_vel_y", "ang_vel_z"), _pairs(robot, "command")))
    return {
        "joint_ids_map": list(range(len(robot["joints"]))),
        "stiffness": robot["stiffness"],
        "damping": robot["damping"],
        "default_joint_pos": robot["default_pose"],
        "commands": {"base_velocity": {"ranges": {**ranges, "heading": None}}} if ranges else {},
        "actions": {
            "JointPositionAction": {
                "clip": _pairs(robot, "target") or None,
                "joint_names": [".*"],
                "scale": robot["action_scale"],
                "offset": [*robot["default_pose"]],  # yaml would write the same list as a reference
                "joint_ids": None,
            }
        },
        "observations": _observations_yaml(robot),
    }


def _motors_yaml(robot: dict[str, Any], motors: Sequence[int]) -> dict[str, Any]:
    gains = {name: unitree.by_motor(robot[name], motors) for name in ("stiffness", "damping")}
    return {"joint_ids_map": list(motors), **gains}


def _pairs(robot: dict[str, Any], name: str) -> list[list[float]]:
    return [list(pair) for pair in zip(robot[f"{name}_low"], robot[f"{name}_high"])]


def _observations_yaml(robot: dict[str, Any]) -> dict[str, Any]:
    """Term by term in their order; the second of the same name is called name_2."""
    found: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for term in robot["observation"]:
        name = term["name"]
        seen[name] += 1
        found[name if seen[name] == 1 else f"{name}_{seen[name]}"] = _term_yaml(term, robot["gait"])
    return found


def _term_yaml(term: dict[str, Any], gait: dict[str, Any] | None) -> dict[str, Any]:
    parameters = {name: term[name] for name in ("function", "source") if term[name]}
    if term["name"] == "velocity_commands":
        parameters["command_name"] = "base_velocity"
    elif term["name"].startswith("motion_") and not term["function"]:
        parameters["command_name"] = "motion"
    elif term["name"] == "gait_phase" and gait:
        parameters["period"] = rounded(1 / gait["frequency"])
        parameters |= {name: gait[name] for name in ("start", "order", "standing", "standing_below")}
    if term["delay"]:
        parameters["delay"] = term["delay"]
    scale = term["scale"]
    return {
        "params": parameters,
        "clip": term["clip"],
        "scale": scale if isinstance(scale, list) else [scale] * (term["size"] // term["history"]),
        "history_length": term["history"],
    }
