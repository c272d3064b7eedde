"""How the observations and actions of an MJLab environment look in a mirror, read off its managers and sensors.

What the deploy contract has a name for is mirrored by that name. Of the other terms those of the velocity tasks, of
MJLab and of unitree_rl_mjlab, are known by their functions: feet, by the names of what touches the ground, and height
scans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from warpsac.envs import symmetry as mirrors
from warpsac.envs.deploy_contract import Term
from warpsac.envs.torch import mjlab_robots
from warpsac.types import Mirror, Symmetry

VELOCITY = ("mjlab.tasks.velocity.mdp.observations", "src.tasks.velocity.mdp.observations")
SCANS = (f"{mjlab_robots.OBSERVATIONS}.height_scan", *(f"{module}.height_scan" for module in VELOCITY))


def symmetry_of(env: Any, groups: Sequence[str]) -> Symmetry | None:
    """Of an environment whose stored observation consists of these groups; None if its actions are no joint targets."""
    robot = mjlab_robots.robot_of(env, groups)
    if robot is None:
        return None
    manager, model = env.observation_manager, env.sim.mj_model
    settings = [manager.get_term_cfg(group, name) for group in groups for name in manager.active_terms[group]]
    if len(settings) != len(robot.observation):
        raise mirrors.Unknown("how the pixels of cameras look in a mirror is not known")
    joints = mirrors.of_joints(model, robot)
    return mirrors.of_parts(
        [
            (term.name, mirrors.of_term(model, term, robot, joints, _own(env, term, chosen.params)))
            for term, chosen in zip(robot.observation, settings, strict=True)
        ],
        joints,
    )


def _own(env: Any, term: Term, parameters: dict[str, Any]) -> Mirror | None:
    """Of one control step of a task's own term; None if it is not known."""
    module, _, function = term.function.rpartition(".")
    if term.function in SCANS:
        return _of_scan(env.scene[parameters["sensor_name"]])
    if module not in VELOCITY:
        return None
    match function:
        case "foot_height":
            return mirrors.swapped(_frames(env, parameters))
        case "foot_contact" | "foot_air_time":
            return mirrors.swapped(_touching(env.scene[parameters["sensor_name"]]))
        case "foot_contact_forces":
            sensor = env.scene[parameters["sensor_name"]]
            in_the_world = sensor.cfg.reduce == "netforce" or sensor.cfg.global_frame
            return mirrors.swapped_vectors(_touching(sensor)) if in_the_world else None
    return None


def _touching(sensor: Any) -> list[str]:
    """The parts whose contacts a sensor reports, in its order: one contact each, or the sizes will not fit."""
    return list(dict.fromkeys(slot.primary_name for slot in sensor._slots))


def _frames(env: Any, parameters: dict[str, Any]) -> list[str]:
    """The sites above the ground: of a sensor since MJLab 1.3, before of the robot."""
    if "sensor_name" in parameters:
        frames = env.scene[parameters["sensor_name"]].cfg.frame
        return [frame.name for frame in (frames if isinstance(frames, tuple) else (frames,))]
    chosen = parameters["asset_cfg"]
    return list(np.array(env.scene[chosen.name].site_names)[chosen.site_ids])


def _of_scan(sensor: Any) -> Mirror | None:
    """Of the heights under the rays of one frame: each is that under the ray on the other side."""
    rays = np.hstack([sensor._local_offsets.cpu().numpy(), sensor._local_directions.cpu().numpy()])
    far = np.abs(rays[:, None] * np.tile(mirrors.FLIP, 2) - rays).max(axis=2)
    if sensor.cfg.ray_alignment == "world" or (far.min(axis=1) > mirrors.TOLERANCE).any():
        return None
    return Mirror(tuple(far.argmin(axis=1).tolist()), (1,) * len(rays))
