"""What an exported policy says about itself: the metadata inside the ONNX file, and deploy.yaml next to it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from warpsac.deploy.sim2sim.policy import METADATA
from warpsac.envs import deploy_contract
from warpsac.envs.deploy_contract import Gait, Robot, Term, rounded
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
# A term with a `function` has to be computed as that function of the task does.
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


def metadata(card: dict[str, Any], robot: Robot | None) -> dict[str, str]:
    """The ONNX file's metadata: everything as JSON under one key, and the names that other runners look for."""
    found = {METADATA: json.dumps(card), "task": card["task"], "run_path": card["run"]["name"]}
    if card["observation"]:
        found["observation_names"] = ",".join(term["name"] for term in card["observation"])
    if robot:
        found |= {
            "joint_names": ",".join(robot.joints),
            "joint_stiffness": _csv(robot.stiffness),
            "joint_damping": _csv(robot.damping),
            "default_joint_pos": _csv(robot.default_pose),
            "action_scale": _csv(robot.action_scale),
        }
        if robot.command_low:
            found["command_names"] = "base_velocity"
    return found


def _csv(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:.7g}" for number in numbers)


def deploy_yaml(card: dict[str, Any], robot: Robot | None) -> str:
    try:
        import yaml
    except ImportError:
        raise UserError("export needs pyyaml: pip install 'warpsac[export]'") from None
    about = {
        "task": card["task"],
        "policy": "policy.onnx",
        "input": {"name": "obs", "shape": [1, card["obs_size"]]},
        "output": {"name": "actions", "shape": [1, len(card["action_low"])]},
        "observation": card["observation"],
        "action_low": card["action_low"],
        "action_high": card["action_high"],
        "run": card["run"],
    }
    content: dict[str, Any] = {}
    if card["control_hz"]:
        content["step_dt"] = rounded(1 / card["control_hz"])
    if robot:
        about |= {"joint_names": list(robot.joints), "base": robot.base, "base_height": robot.base_height}
        about |= {"prefix": robot.prefix, "sensors": robot.sensors}
        if robot.disturbances:
            about["disturbances"] = list(robot.disturbances)
        if robot.joint_low:
            about["joint_range"] = _pairs(robot.joint_low, robot.joint_high)
        if robot.effort_limit:
            about["effort_limit"] = list(robot.effort_limit)
        about["scene"] = robot.scene
        content |= _robot_yaml(robot)
    content["warpsac"] = about
    header = ROBOT_HEADER if robot else HEADER
    return header + yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120)


def _robot_yaml(robot: Robot) -> dict[str, Any]:
    names = ("lin_vel_x", "lin_vel_y", "ang_vel_z")
    ranges = {name: [low, high] for name, low, high in zip(names, robot.command_low, robot.command_high)}
    return {
        "joint_ids_map": list(range(len(robot.joints))),
        "stiffness": list(robot.stiffness),
        "damping": list(robot.damping),
        "default_joint_pos": list(robot.default_pose),
        "commands": {"base_velocity": {"ranges": {**ranges, "heading": None}}} if ranges else {},
        "actions": {
            "JointPositionAction": {
                "clip": _pairs(robot.target_low, robot.target_high) or None,
                "joint_names": [".*"],
                "scale": list(robot.action_scale),
                "offset": list(robot.default_pose),
                "joint_ids": None,
            }
        },
        "observations": _observations_yaml(robot),
    }


def _pairs(low: Sequence[float], high: Sequence[float]) -> list[list[float]]:
    return [list(pair) for pair in zip(low, high)]


def _observations_yaml(robot: Robot) -> dict[str, Any]:
    """Term by term in their order; the second of the same name is called name_2."""
    found: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for term in robot.observation:
        seen[term.name] += 1
        key = term.name if seen[term.name] == 1 else f"{term.name}_{seen[term.name]}"
        found[key] = _term_yaml(term, robot.gait)
    return found


def _term_yaml(term: Term, gait: Gait | None) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    if term.function:
        parameters["function"] = term.function
    if term.source:
        parameters["source"] = term.source
    if term.name == "velocity_commands":
        parameters["command_name"] = "base_velocity"
    elif term.name == "gait_phase" and gait:
        parameters |= {"period": rounded(1 / gait.frequency), "start": list(gait.start), "order": gait.order}
        parameters |= {"standing": gait.standing, "standing_below": gait.standing_below}
    if term.delay:
        parameters["delay"] = term.delay
    each = term.size // term.history
    return {
        "params": parameters,
        "clip": list(term.clip) if term.clip else None,
        "scale": list(term.scale) if isinstance(term.scale, tuple) else [term.scale] * each,
        "history_length": term.history,
    }
