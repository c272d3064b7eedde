"""`warpsac export`: build the policy's file, compare it with the policy on recorded observations, write it."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np
import tyro

from warpsac.agents.ppo import learner as ppo
from warpsac.config.schema import PolicyStep
from warpsac.deploy import describe, onnx_graph, unitree
from warpsac.deploy.sim2sim.follow import follow
from warpsac.deploy.sim2sim.policy import open_session
from warpsac.deploy.sim2sim.reference import Reference
from warpsac.deploy.sim2sim.robot import Simulated
from warpsac.deploy.sim2sim.walk import walk
from warpsac.envs import contract, modules, registry
from warpsac.envs.deploy_contract import ASSETS, Deployment, Motion
from warpsac.envs.motion import read_clip
from warpsac.envs.registry import has_effect
from warpsac.errors import UserError
from warpsac.runs import pretrained, rowfiles, run_folder
from warpsac.runs.files import free_name, require_writable
from warpsac.training.policy import LoadedPolicy, load_policy, require_fit

TOLERANCE = 1e-5  # largest difference from the policy, in its own units of [-1, 1]
RECORDED = 800  # observations that the file is compared on,
AT_ONCE = 4  # and environments that they are recorded in, if the simulator can hold that many
SCENE = "scene/scene.xml"
Layout = Literal["plain", "unitree"]
# Where a layout has the policy and its description, and how both get to the scene.
PLACES: dict[str, tuple[str, str, str]] = {
    "plain": ("policy.onnx", "deploy.yaml", SCENE),
    "unitree": ("exported/policy.onnx", "params/deploy.yaml", f"../{SCENE}"),
}
ENV_SETTINGS = ("num_envs", "pushes", "randomize", "action_limit")  # written if the task uses them

# Commands for recording: standing, ahead, to the left, turning; as fractions of the highest command.
_COMMANDS = ((0.0, 0.0, 0.0), (0.5, 0.0, 0.0), (0.0, 0.5, 0.0), (0.0, 0.0, 0.5))


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Write a policy of a run as an ONNX file with everything that a robot needs to know."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run folder, or pretrained:NAME."""
    step: PolicyStep = "last"
    """Which policy: the last one, that of the best evaluation, or that of an evaluation or checkpoint at this step."""
    arm: str | None = None
    """Of a run with --variant auto: which of its arms; none: the one that its returns chose."""
    out: str | None = None
    """Folder to write, which must be new or empty; none: export in the run folder, then export-2, export-3, ..."""
    without_robot: bool = False
    """Leave out the description of the task's robot, if its files are not available."""
    layout: Layout = "plain"
    """How the folder is laid out; unitree: as Unitree's deploy programs read it."""
    module: tuple[str, ...] = ()
    """Modules that the run's task may import; `module:make_env` also allows that call."""
    path: tuple[str, ...] = ()
    """Paths of the run's settings that may be used, where only the run names them."""
    motion: str | None = None
    """The clip, or the folder of clips, that a tracking policy follows; none: that of training."""
    json: bool = False
    """Print one JSON object instead of lines."""


class Exported(NamedTuple):
    path: Path  # of the folder
    error: float  # largest difference from the policy
    observations: int
    source: str  # where they come from
    robot: str  # what is known about it, as text
    layout: Layout = "plain"

    @property
    def policy(self) -> Path:
        return self.path / PLACES[self.layout][0]


def command(asked: ExportOptions) -> int:
    modules.use(asked.module)
    modules.name_paths(asked.path)
    done = export(asked.run, asked.out, asked.without_robot, asked.layout, asked.motion, asked.step, asked.arm)
    if asked.json:
        print(json.dumps(done._asdict() | {"path": str(done.path)}))
        return 0
    print(f"policy: {done.policy}")
    print(f"checked: largest difference {done.error:.1e} from the policy on {done.observations} observations")
    print(f"observations: {done.source}")
    print(f"robot: {done.robot}")
    if (done.path / SCENE).exists():
        print(f"next: {shlex.join(['warpsac', 'sim2sim', str(done.policy)])}")
    if done.layout == "unitree":
        print(f"warning: {unitree.NO_PROTECTION}", file=sys.stderr)
    return 0


def export(
    run: Path | str,
    out: Path | str | None = None,
    without_robot: bool = False,
    layout: Layout = "plain",
    motion: str | None = None,
    step: PolicyStep = "last",
    arm: str | None = None,
) -> Exported:
    """Write a policy of a run into a new folder, or refuse and write nothing."""
    folder, policy = pretrained.opened(run), load_policy(run, step, arm)
    folder.require_named(modules.OWN)
    for note in () if without_robot else folder.follow(motion):
        print(note, file=sys.stderr)
    target = Path(out) if out is not None else free_name(folder.products / "export")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: exists already; name a new folder with --out")
    policy_file, deploy_file, scene = PLACES[layout]
    deployment, known = (None, "left out, as requested") if without_robot else _deployment(folder, policy.step, scene)
    robot = deployment.robot if deployment else None
    motors = unitree.motors_of(robot, folder.config.task) if layout == "unitree" else None
    views, low, high = policy.actor.views, policy.info["action_low"], policy.info["action_high"]
    if robot and (robot.observation_size, len(robot.joints)) != (views.actor_dim, len(low)):
        raise UserError(
            f"{folder.config.task}: its robot has {robot.observation_size} observations and {len(robot.joints)} "
            f"joints, the policy was trained with {views.actor_dim} and {len(low)}"
        )
    rate = robot.control_hz if robot else policy.info["control_hz"]
    about, terms = _training_run(folder, policy, evaluated=arm is None), policy.info.get("terms", ())
    card = describe.card(folder.config.task, views.actor_dim, low, high, rate, about, robot, terms)
    content = onnx_graph.build(actor_of(policy), low, high, describe.metadata(card))
    obs, source = recorded_observations(folder, policy, deployment, _runner(content))
    error = largest_difference(content, policy, obs)
    if not error <= TOLERANCE:
        raise UserError(
            f"{folder.path}: not exported: the ONNX network differs from the policy by {error:.1e} on "
            f"{len(obs)} observations ({source}); allowed is {TOLERANCE:g}"
        )
    text = describe.deploy_yaml(card, os.path.relpath(policy_file, Path(deploy_file).parent), motors)
    _write(target, {policy_file: content, deploy_file: text.encode()}, deployment)
    return Exported(target, error, len(obs), source, known, layout)


# --- what is known about the run and its robot


class IncompleteRobot(UserError):
    """A description of the robot lacks something; what is lacking is the error's cause."""


def _deployment(folder: run_folder.RunFolder, step: int, scene: str) -> tuple[Deployment | None, str]:
    """The robot of the run's task, and a line about it."""
    try:
        found = registry.deployment(registry.target_of(folder.config), folder.env, step // folder.env.num_envs)
    except UserError as error:  # an incomplete description would only be noticed on the robot
        raise IncompleteRobot(f"{error}; or export the policy alone with --without-robot") from error
    if found is None:
        return None, f"none is known for {folder.config.task}"
    robot = dataclasses.replace(found.robot, scene=scene if found.scene else None)
    known = f"{len(robot.joints)} joints, {len(robot.observation)} observation terms, {robot.control_hz:g} Hz"
    known += f"; not for sim2sim: {robot.obstacle}" if robot.obstacle else ""
    return found._replace(robot=robot), known


def _training_run(folder: run_folder.RunFolder, policy: LoadedPolicy, evaluated: bool) -> dict[str, Any]:
    """`evaluated`: it is the policy that the run's evaluations are of, not that of an arm which was asked for."""
    meta = folder.meta
    git = run_folder.part_of(meta, "git", dict)
    evaluations = [row for row in rowfiles.read_evaluations(folder.path) if row["step"] <= policy.step]
    last = evaluations[-1] if evaluations and evaluated else None
    return {
        "name": folder.path.resolve().name,
        "variant": folder.config.variant,
        **({"arm": policy.arm} if policy.arm else {}),
        "seed": folder.seed,
        "step": policy.step,
        "evaluation_return": last["return_mean"] if last else None,
        "evaluation_step": int(last["step"]) if last else None,
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
        "time": meta.get("time"),
        "resumes": len(run_folder.part_of(meta, "resumes", list)),
        "env": _simulator_settings(folder),
        "versions": run_folder.part_of(meta, "versions", dict),
    }


def _simulator_settings(folder: run_folder.RunFolder) -> dict[str, Any]:
    """Those that the task uses; all of them if the task is unknown here."""
    try:
        family = registry.target_of(folder.config).family
        names = [name for name in ENV_SETTINGS if has_effect(family, name)]
    except UserError:
        names = list(ENV_SETTINGS)
    return {name: getattr(folder.env, name) for name in names}


# --- the check


def _runner(content: bytes) -> Callable[[np.ndarray], np.ndarray]:
    """The exported network on one observation."""
    session = open_session(content)
    return lambda obs: session.run(["actions"], {"obs": obs[None].astype(np.float32)})[0][0]


def largest_difference(content: bytes, policy: LoadedPolicy, obs: np.ndarray) -> float:
    """Between the exported network and the policy in float32, over observations [N, D], in units of [-1, 1]."""
    run = _runner(content)
    found = np.stack([run(row) for row in obs])
    middle, half = onnx_graph.action_range(policy.info["action_low"], policy.info["action_high"])
    expected = middle + half * exact_actions(policy, obs)
    return float(np.abs((found - expected) / np.maximum(half, 1e-30)).max())


def exact_actions(policy: LoadedPolicy, obs: np.ndarray) -> np.ndarray:
    """The policy's actions in [-1, 1], in float32 whatever it was trained in, with full products on a GPU too."""
    actor: Any = policy.actor
    actor = dataclasses.replace(actor, config=dataclasses.replace(actor.config, compute="float32-exact"))
    return np.asarray(jax.jit(lambda rows: actor.best_action(policy.policy, rows))(obs), np.float64)


def actor_of(policy: LoadedPolicy) -> onnx_graph.Folded | ppo.ActorLayers:
    """The policy as plain arrays, of either algorithm."""
    if isinstance(policy.policy, ppo.Policy):
        assert isinstance(policy.actor, ppo.PpoActor)
        return ppo.actor_layers(policy.actor, policy.policy)
    return onnx_graph.fold(policy.policy)


def _seen_in_training(policy: LoadedPolicy) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the actor's observations."""
    own = policy.policy
    if isinstance(own, ppo.Policy):
        views = policy.actor.views
        return np.asarray(views.actor(own.obs.mean)), np.asarray(views.actor(own.obs.var))
    return np.asarray(own.moments.norm_in.mean), np.asarray(own.moments.norm_in.var)


def recorded_observations(
    folder: run_folder.RunFolder,
    policy: LoadedPolicy,
    deployment: Deployment | None,
    act: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, str]:
    """Observations [N, D] that the policy encounters, and where they come from.

    From the robot in plain MuJoCo if there is one (nothing has to be compiled), else from the task's own simulator. If
    that cannot be made either, they are drawn with the mean and spread of training.
    """
    if deployment and deployment.scene:
        how = "following the motion" if deployment.robot.motion else "under four commands"
        return _from_scene(deployment, act), f"recorded in plain MuJoCo, {how}"
    task = folder.config.task
    try:
        target = registry.target_of(folder.config)
        count = min(AT_ONCE, registry.most_envs(target) or AT_ONCE)
        env = registry.make(target, count, folder.env)
    except UserError as error:
        mean, var = _seen_in_training(policy)
        noise = np.random.default_rng(0).standard_normal((RECORDED, policy.actor.views.actor_dim))
        drawn = mean + np.sqrt(var) * noise
        return drawn.astype(np.float32), f"drawn with the mean and spread of training, because {error}"
    try:
        require_fit(policy, env.spec)
        return _from_task(env, policy), f"recorded on {task}"
    finally:
        env.close()


def _from_scene(deployment: Deployment, act: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    assert deployment.scene is not None
    robot = deployment.robot
    if robot.motion:
        return _from_motion(deployment, robot.motion, act)
    simulated = Simulated(deployment.scene.load(), robot)
    seconds = RECORDED / len(_COMMANDS) / robot.control_hz
    rows: list[np.ndarray] = []
    for parts in _COMMANDS:
        order = np.array(parts) * np.array(robot.command_high)
        walk(simulated, act, order, seconds, lambda step, obs: rows.append(obs))
    return np.stack(rows)


def _from_motion(deployment: Deployment, motion: Motion, act: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    assert deployment.scene is not None
    hz = deployment.robot.control_hz
    clip = read_clip(io.BytesIO(deployment.clips[motion.files[0]]))
    simulated = Simulated(deployment.scene.load(), deployment.robot, Reference(clip, motion))
    rows: list[np.ndarray] = []
    follow(simulated, act, RECORDED / hz, lambda step, obs: rows.append(obs))
    return np.stack(rows)


def _from_task(env: contract.HostEnv, policy: LoadedPolicy) -> np.ndarray:
    obs, rows = env.reset(0), []
    for _ in range(RECORDED // env.spec.num_envs):
        rows.append(policy.actor.views.actor(obs))
        env.send(policy.normalized(obs))
        obs = env.recv().result.obs
    return np.concatenate(rows)


# --- files


def _write(target: Path, files: dict[str, bytes], deployment: Deployment | None) -> None:
    """All files or none: written next to the target and renamed."""
    if deployment and deployment.scene:
        folder = PurePosixPath(SCENE).parent / ASSETS
        files |= {SCENE: deployment.scene.xml.encode()}
        files |= {str(folder / name): data for name, data in deployment.scene.assets.items()}
    files |= deployment.clips if deployment else {}
    unfinished = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    try:
        with require_writable(target):
            for name, data in files.items():
                (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
                (unfinished / name).write_bytes(data)
            if target.is_dir():
                target.rmdir()  # empty, as checked before
            os.rename(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
