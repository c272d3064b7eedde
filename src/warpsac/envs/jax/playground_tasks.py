"""How a task of MuJoCo Playground is loaded: the physics, the robots' meshes, domain randomisation; and what its
robots observe, which is in the tasks' code and not in their models."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

from warpsac.config.schema import EnvConfig
from warpsac.envs import overrides, symmetry
from warpsac.envs.deploy_contract import Gait, Term
from warpsac.envs.mujoco_robots import Sensing
from warpsac.envs.names import Target
from warpsac.errors import UserError
from warpsac.types import Mirror

MENAGERIE_VARIABLE = "WARPSAC_MENAGERIE"
# Settings of a task's own config that are not for `task_config`: what to do instead.
GOVERNED = {"impl": "use --env.impl", "push_config.enable": "use --env.pushes"}


def import_playground() -> Any:
    """The package, without what it prints if warp-lang is missing and the warnings of its imports."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mujoco_playground
    return mujoco_playground


def missing(config: EnvConfig) -> str | None:
    """What the benchmark's tasks need besides the packages: meshes, if they have not been fetched yet."""
    package = find_spec("mujoco_playground")
    folders = list(package.submodule_search_locations or ()) if package else []
    fetched = any((Path(folder) / "external_deps" / "mujoco_menagerie").is_dir() for folder in folders)
    if fetched or config.menagerie or os.environ.get(MENAGERIE_VARIABLE):
        return None
    return f"needs mujoco_menagerie: set {MENAGERIE_VARIABLE} (docs/simulators.md)"


def task_names() -> list[str]:
    """Playground's own tasks, and those that other packages have registered in its suites."""
    import_playground()
    from mujoco_playground._src import dm_control_suite, locomotion, manipulation

    return [name for suite in (dm_control_suite, locomotion, manipulation) for name in suite.ALL_ENVS]


def settings_of(target: Target) -> Any:
    """Playground's own settings of a task, changed as `task_config` says."""
    return _settings_of(target.id, target.overrides)


def _settings_of(task: str, changes: Mapping[str, Any] | None) -> Any:
    if task not in task_names():
        raise UserError(f"{task}: the installed MuJoCo Playground has no such task")
    settings = import_playground().registry.get_default_config(task)
    overrides.apply(settings, changes or {}, task, GOVERNED)
    return settings


def load(task: str, config: EnvConfig, impl: str, changes: Mapping[str, Any] | None = None) -> Any:
    """The environment of a task on the physics `impl`; `changes` of its own config, as in `Target.overrides`."""
    settings = _settings_of(task, changes)
    if "push_config" in settings:
        settings.push_config.enable = config.pushes
    elif config.pushes:
        raise UserError(f"env.pushes = True: {task} has no pushes")
    if "impl" in settings:
        settings.impl = impl
    _find_menagerie(task, config)
    if impl != "warp":
        return _made(task, settings)
    import warp

    if "njmax" in settings:
        # A fallen robot has more contacts than Playground allows for; the excess would be ignored.
        settings.njmax *= 2
    warp.config.log_level = warp.LOG_WARNING  # else a line for each of a hundred kernels
    env = _made(task, settings)
    _allow_few_iterations(env.unwrapped)
    return env


def _made(task: str, settings: Any) -> Any:
    from mujoco_playground._src import mjx_env

    try:
        return import_playground().registry.load(task, config=settings)
    except (ValueError, OSError) as error:
        lost = re.search(r"mujoco_menagerie/([\w./-]+)", str(error))
        if lost is None:
            raise
        raise UserError(
            f"{task}: {mjx_env.MENAGERIE_PATH} has no {lost[1]}: it must hold a whole copy of mujoco_menagerie; "
            f"name one with {MENAGERIE_VARIABLE}, or when training with --env.menagerie"
        ) from None


def _allow_few_iterations(env: Any) -> None:
    """Keep MuJoCo-Warp from printing a line for every environment whose solver uses all its iterations: Playground
    allows few on purpose, and MJX stops there silently."""
    from mujoco.mjx.third_party.mujoco_warp._src.types import OverflowType

    options = env._mjx_model.opt
    reported = int(options._impl.warn_overflow) & ~int(OverflowType.ITERATIONS | OverflowType.LS_ITERATIONS)
    quiet = options.replace(_impl=options._impl.replace(warn_overflow=reported))
    env._mjx_model = env._mjx_model.replace(opt=quiet)


def choose_impl(asked: str) -> str:
    """MuJoCo-Warp where it can run (its package and a GPU), else MJX."""
    if asked != "auto":
        if asked == "warp" and find_spec("warp") is None:
            way_out = "pip install 'warpsac[warp]', or use `--env.impl jax`"
            raise UserError(f"env.impl = 'warp': needs the package warp-lang: {way_out}")
        return asked
    return "warp" if find_spec("warp") and jax.default_backend() == "gpu" else "jax"


def _find_menagerie(task: str, config: EnvConfig) -> None:
    """Point Playground to the robot meshes: the user's folder, or what it has fetched before."""
    from mujoco_playground._src import locomotion, manipulation, mjx_env

    if task not in (*locomotion.ALL_ENVS, *manipulation.ALL_ENVS):
        return  # the control suite brings its own models
    given = config.menagerie or os.environ.get(MENAGERIE_VARIABLE)
    if given:
        folder = Path(given).expanduser()
        if not folder.is_dir():
            source = "env.menagerie" if config.menagerie else MENAGERIE_VARIABLE
            raise UserError(f"{source} = '{given}': no such folder; it must hold a copy of mujoco_menagerie")
        mjx_env.MENAGERIE_PATH = type(mjx_env.MENAGERIE_PATH)(folder)
        return
    if Path(mjx_env.MENAGERIE_PATH).exists():
        return
    if not _fetched(mjx_env.ensure_menagerie_exists):
        raise UserError(
            f"{task} needs the robot meshes of mujoco_menagerie, and they cannot be fetched here: copy that repository "
            f"to this machine and name its folder with {MENAGERIE_VARIABLE}, or when training with --env.menagerie"
        )


@functools.cache
def _fetched(fetch: Callable[[], Any]) -> bool:
    """Whether Playground could fetch the meshes: tried once, because it is slow and prints a lot."""
    try:
        fetch()
    except Exception:
        return False
    return True


def randomizer(task: str, env: Any, num_envs: int) -> tuple[Any, Any]:
    registry = import_playground().registry
    randomize = registry.get_domain_randomizer(task)
    if randomize is None:
        raise UserError(f"env.randomize = True: {task} has no domain randomisation")
    # One fixed draw: the physics of an environment must not depend on the run's seed or on resume.
    return randomize(env.mjx_model, jax.random.split(jax.random.PRNGKey(0), num_envs))


# --- robots


def _sensing(base: str, imu: str, velocimeter: str, gyro: str, joints: int, gait: Gait) -> Sensing:
    """Of the humanoid joystick tasks. Each step computes its observation before it stores the action and advances the
    gait: both are observed one control step late."""
    observation = (
        Term("base_lin_vel", 3, velocimeter),
        Term("base_ang_vel", 3, gyro),
        Term("projected_gravity", 3, imu),
        Term("velocity_commands", 3),
        Term("joint_pos_rel", joints),
        Term("joint_vel_rel", joints),
        Term("last_action", joints, delay=1),
        Term("gait_phase", 4, delay=1),
    )
    return Sensing(base, observation, gait)


# Training draws each robot's gait frequency from a range; its middle is exported.
_G1 = _sensing(
    "pelvis", "imu_in_pelvis", "local_linvel_pelvis", "gyro_pelvis", 29,
    Gait((1.25 + 1.5) / 2, (0.0, math.pi), "cos_sin"),
)  # fmt: skip
_T1 = _sensing(
    "Trunk", "imu", "local_linvel", "gyro", 23,
    Gait((1.25 + 1.75) / 2, (0.0, math.pi), "cos_sin", standing="held", standing_below=0.01),
)  # fmt: skip
ROBOTS = {f"{name}Joystick{terrain}Terrain": sensing for name, sensing in (("G1", _G1), ("T1", _T1))
          for terrain in ("Flat", "Rough")}  # fmt: skip


def critic_parts(joints: Mirror) -> tuple[tuple[str, Mirror], ...]:
    """What the critic of these tasks sees after the actor's observation, part by part, and how each is mirrored."""
    feet = ("left_foot", "right_foot")
    return (
        ("gyro", symmetry.ROTATION),
        ("accelerometer", symmetry.VECTOR),
        ("gravity", symmetry.VECTOR),
        ("linvel", symmetry.VECTOR),
        ("global_angvel", symmetry.ROTATION),
        ("joint_angles", joints),
        ("joint_vel", joints),
        ("root_height", symmetry.NUMBER),
        ("actuator_force", joints),
        ("contact", symmetry.swapped(feet)),
        ("feet_vel", symmetry.swapped_vectors(feet)),
        ("feet_air_time", symmetry.swapped(feet)),
    )
