"""`warpsac sim2sim`: make an exported policy walk in plain MuJoCo, and report how well it did."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warpsac.config.schema import PRETRAINED
from warpsac.deploy.sim2sim.follow import Followed, follow
from warpsac.deploy.sim2sim.policy import Policy
from warpsac.deploy.sim2sim.robot import load_scene, require_mujoco
from warpsac.deploy.sim2sim.walk import SETTLING_SECONDS, Each, Walk, film, prepare_to_draw, walk
from warpsac.envs.deploy_contract import Robot
from warpsac.envs.motion import ERRORS
from warpsac.errors import UserError

LONGEST_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True)
class Sim2SimOptions:
    """Run an exported policy on plain MuJoCo, under a command or along its motion; exit code 1: it fell."""

    policy: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="POLICY.onnx")]
    """policy.onnx of an exported folder, or pretrained:NAME, which is exported first."""
    command: tuple[float, float, float] = (0.5, 0.0, 0.0)
    """Velocity ahead, to the left (m/s), turning left (rad/s); without effect on a policy that follows a motion."""
    seconds: float = 20.0
    """How long to walk; a motion ends earlier if it is shorter."""
    video: str | None = None
    """An mp4 file to write."""
    viewer: bool = False
    """Watch and steer it in the browser instead, until Ctrl-C."""
    host: str = "127.0.0.1"
    """With --viewer: the address to serve on."""
    port: int = 8080
    """With --viewer: the port to serve on; 0: any free port."""
    motion: str | None = None
    """Another clip (npz) for a policy that follows a motion; none: the one exported with it."""
    scene: str | None = None
    """Another MuJoCo scene with the same robot; none: the one exported with the policy."""
    json: bool = False
    """Print one JSON object instead of a table."""


def command(asked: Sim2SimOptions) -> int:
    if not 0 < asked.seconds <= LONGEST_SECONDS:
        raise UserError(f"seconds = {asked.seconds:g}: must be above 0 and at most {LONGEST_SECONDS:g}")
    if not (np.abs(asked.command) < np.finfo(np.float32).max).all():  # the policy takes float32
        raise UserError(f"command = {asked.command}: must be three finite numbers")
    if asked.viewer and (asked.video or asked.json):
        raise UserError("--viewer writes no video and prints no result: leave out --video and --json, or --viewer")
    if asked.video:
        require_mujoco()
        prepare_to_draw()  # now: exporting what comes with the package imports MuJoCo
    with _exported(asked.policy) as file:
        return _run(asked, Policy(file))


@contextlib.contextmanager
def _exported(policy: str) -> Iterator[Path]:
    """The file of a policy; one that comes with the package is exported for as long as it runs."""
    if not policy.startswith(PRETRAINED):
        yield Path(policy)
        return
    from warpsac.deploy.export import IncompleteRobot, export  # with JAX, which an exported policy does without

    with tempfile.TemporaryDirectory(prefix="warpsac-") as folder:
        try:
            file = export(policy, Path(folder) / "export").policy
        except IncompleteRobot as error:  # nothing can walk without it
            raise UserError(str(error.__cause__)) from error
        try:
            yield file
        except UserError as error:  # by the name that the user knows
            raise UserError(str(error).replace(str(file), policy)) from error


def _run(asked: Sim2SimOptions, policy: Policy) -> int:
    robot = load_scene(policy, asked.scene, asked.motion)
    follows = robot.reference is not None
    outside = None if follows else _outside(asked.command, robot.robot)
    scene = asked.scene or "the exported scene"
    for line in ([outside] if outside else []) + [f"{scene}: {one}" for one in robot.differences]:
        print(f"warning: {line}", file=sys.stderr)
    if asked.viewer:
        from warpsac.deploy.sim2sim import stage

        stage.watch(robot, policy, asked.command, asked.host, asked.port)
        return 0

    def go(each: Each = lambda step, obs: None) -> Walk | Followed:
        if follows:
            return follow(robot, policy, asked.seconds, each)
        return walk(robot, policy, asked.command, asked.seconds, each)

    done = film(robot, go, Path(asked.video)) if asked.video else go()
    found: dict[str, Any] = {"task": policy.card["task"], "policy": asked.policy, **done.summary()}
    if asked.video:
        found["video"] = asked.video
    if asked.json:
        print(json.dumps(found))
    else:
        _show(found)
    return 1 if found["falls"] else 0


def _outside(asked: tuple[float, float, float], robot: Robot) -> str | None:
    """A warning about a command outside the range of training; None if it is inside."""
    ranges = list(zip(robot.command_low, robot.command_high))
    if all(low <= value <= high for value, (low, high) in zip(asked, ranges)):
        return None
    parts = ("m/s ahead", "m/s to the left", "rad/s turning")
    trained = ", ".join(f"{low:g} to {high:g} {part}" for (low, high), part in zip(ranges, parts))
    return f"command = {' '.join(f'{value:g}' for value in asked)}: the policy was trained with {trained}"


def _show(found: dict[str, Any]) -> None:
    console = Console()
    console.print(_errors_table(found) if "command" not in found else _velocity_table(found))
    if "command" in found and "velocity" not in found:
        console.print(
            f"velocities: not evaluated, as it never walked for more than {SETTLING_SECONDS:g} s after a start"
        )
    fell = f", the first after {found['first_fall']:.2f} s" if found["falls"] else ""
    console.print(f"falls: {found['falls']}{fell}")
    console.print(f"mechanical power: {found['power']:.0f} W")
    if "action_rate" in found:
        console.print(f"action rate: {found['action_rate']:.4f} (mean squared change of the actions per control step)")
    if "video" in found:
        console.print(Text(f"video: {found['video']}"))


def _errors_table(found: dict[str, Any]) -> Table:
    table = Table(title=Text(f"{found['task']}, {found['seconds']:g} s of its motion in plain MuJoCo"))
    table.add_column("mean error")
    table.add_column("", justify="right")
    for name, unit in ERRORS.items():
        table.add_row(name.removeprefix("error_").replace("_", " "), f"{found[name]:.3f} {unit}")
    return table


def _velocity_table(found: dict[str, Any]) -> Table:
    table = Table(title=Text(f"{found['task']}, {found['seconds']:g} s in plain MuJoCo"))
    for heading in ("", "ahead m/s", "left m/s", "turning rad/s"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = {"command": "command", "velocity": "mean velocity", "mean_error": "mean error", "rms_error": "rms error"}
    for key, name in rows.items():
        if key in found:
            table.add_row(name, *(f"{value:+.3f}" if key != "rms_error" else f"{value:.3f}" for value in found[key]))
    return table
