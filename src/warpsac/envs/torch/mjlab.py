"""MJLab: MuJoCo-Warp on torch tensors. From 1.3 on ended episodes are reset here, so their last observation is
kept; 1.2, the version of the published runs, resets by itself and drops it (see `base`).

The stored observation is the actor's group followed by the critic's; the critic sees both. `mjlab_tasks` finds tasks
by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from warpsac.config.provenance import installed_versions
from warpsac.config.schema import EnvConfig
from warpsac.envs import warp_kernels
from warpsac.envs.contract import EnvSpec, Scene
from warpsac.envs.deploy_contract import Deployment
from warpsac.envs.drawing import FirstEnvironment
from warpsac.envs.names import Target
from warpsac.envs.torch import mjlab_motion, mjlab_robots, mjlab_symmetry
from warpsac.envs.torch.base import LOSES_LAST, Tensor, TorchEnvs, TorchStep, episode_seconds, learner_device
from warpsac.envs.torch.mjlab_tasks import GOVERNED as GOVERNED  # these three belong to a family's module
from warpsac.envs.torch.mjlab_tasks import settings_of as settings_of
from warpsac.envs.torch.mjlab_tasks import task_names as task_names
from warpsac.envs.torch.mjlab_tasks import without_tables
from warpsac.errors import UserError
from warpsac.types import ObsViews, Symmetry

ACTOR, CRITIC = "actor", "critic"
ACTION_LIMIT = 1.0  # where env.action_limit gives none: MJLab's own action spaces have no bounds
TERRAIN = ("terrain_levels", "terrain_types")  # row and column of each robot on rough terrain
PACKAGES = ["mjlab", "mujoco", "mujoco-warp", "warp-lang", "torch", "unitree_rl_mjlab"]
# A step is a thousand small operations, which the host can barely launch as fast as a GPU runs them: each is faster
# without autograd. Tensors made in this mode may only be changed in it, so everything that changes them is marked.
_INFERENCE = torch.inference_mode()


class MjlabEnvs(TorchEnvs):
    def __init__(self, target: Target, num_envs: int, config: EnvConfig, render: bool = False):
        device, task = learner_device(), target.name
        settings = settings_of(target)
        motion = mjlab_motion.follow(task, settings, config.motion)
        settings.scene.num_envs = num_envs
        if config.episode_limit is not None:
            control_step = settings.decimation * settings.sim.mujoco.timestep
            settings.episode_length_s = episode_seconds(config.episode_limit, control_step)
        self.resets_itself = not hasattr(settings, "auto_reset")
        if not self.resets_itself:
            settings.auto_reset = False
        cameras = [name for name in settings.observations if name not in (ACTOR, CRITIC)]
        self.notes = _choose_groups(task, settings, cameras, config.cameras)
        if self.resets_itself:
            self.notes += (LOSES_LAST,)
        if render:
            _draw_quickly(settings)
        with without_tables(), _kernels_side_by_side():
            from mjlab.envs import ManagerBasedRlEnv

            self._env: Any = ManagerBasedRlEnv(settings, str(device), render_mode="rgb_array" if render else None)
        self._motion: Any = None if motion is None else self._env.command_manager.get_term(motion)
        self._evaluates = False
        self._groups = [ACTOR, *(cameras if config.cameras else []), CRITIC]
        sizes = {name: int(np.prod(self._env.observation_manager.group_obs_dim[name])) for name in self._groups}
        limit = config.action_limit or ACTION_LIMIT
        action_dim = int(self._env.single_action_space.shape[0])
        self._first_env = FirstEnvironment()
        spec = EnvSpec(
            task=task,
            family="mjlab",
            num_envs=num_envs,
            views=ObsViews(sum(sizes.values()), sum(sizes.values()) - sizes[CRITIC]),
            action_dim=action_dim,
            action_low=(-limit,) * action_dim,
            action_high=(limit,) * action_dim,
            episode_limit=int(self._env.max_episode_length),
            control_hz=1.0 / self._env.step_dt,
            lockstep=True,
            terms=mjlab_robots.named_terms(self._env, self._groups[:-1]),
            critic_terms=mjlab_robots.named_terms(self._env, [CRITIC]),
            actions=mjlab_robots.action_names(self._env),
            versions=installed_versions(PACKAGES),
        )
        super().__init__(spec, device)

    def for_evaluation(self) -> None:
        """Stay at a curriculum's first stage, and every robot where it is on rough terrain, so that results compare."""
        self._evaluates = True
        if self._env.scene.terrain is not None:
            self._env.scene.terrain.update_env_origins = lambda *_: None
        if self._motion is not None:
            mjlab_motion.start_at_the_beginning(self._motion)

    @_INFERENCE
    def start(self, seed: int) -> Tensor:
        if self._evaluates:
            self.set_progress(1)  # not 0: 1.2 has no stage before the first step
        if self._motion is not None:
            self._motion.start_again()
        with without_tables():
            return self._observation(self._env.reset(seed=seed)[0])

    @_INFERENCE
    def stagger(self) -> None:
        counter = self._env.episode_length_buf
        counter[:] = torch.randint_like(counter, int(self._env.max_episode_length))

    def curriculum(self) -> dict[str, np.ndarray]:
        terrain = self._env.scene.terrain
        found = {name: getattr(terrain, name).cpu().numpy() for name in TERRAIN if hasattr(terrain, name)}
        return found if self._motion is None else found | mjlab_motion.sampling_of(self._motion)

    @_INFERENCE
    def take_up(self, curriculum: dict[str, np.ndarray]) -> None:
        terrain, levels = self._env.scene.terrain, {name: curriculum[name] for name in TERRAIN if name in curriculum}
        for name, numbers in levels.items():
            getattr(terrain, name)[:] = torch.as_tensor(numbers, device=self.device)
        if self._motion is not None and "motion_failures" in curriculum:
            mjlab_motion.take_up_sampling(self._motion, curriculum["motion_failures"])
        if levels:
            terrain.env_origins[:] = terrain.terrain_origins[terrain.terrain_levels, terrain.terrain_types]

    def set_progress(self, steps: int) -> None:
        self._env.common_step_counter = steps  # what its curricula go by, whenever an episode starts

    @_INFERENCE
    def step(self, action: Tensor) -> TorchStep:
        if self._evaluates:
            self.set_progress(0)  # and 1 when episodes that end now start again
        obs, reward, terminated, truncated, _ = self._env.step(action)
        if self._motion is None:
            return TorchStep(self._observation(obs), reward, terminated, truncated)
        metrics = mjlab_motion.errors_of(self._motion) if self._evaluates else None
        return TorchStep(self._observation(obs), reward, terminated, truncated | self._motion.over, metrics=metrics)

    @_INFERENCE
    def restart(self, envs: Tensor) -> Tensor:
        if not self.resets_itself:
            return self._observation(self._env.reset(env_ids=envs)[0])
        # 1.2 resets single environments only inside its step: the same calls, for those that failed.
        env = self._env
        env._reset_idx(envs)
        env.scene.write_data_to_sim()
        env.sim.forward()
        return self._observation(env.observation_manager.compute())

    def _observation(self, groups: dict[str, Tensor]) -> Tensor:
        return torch.cat([groups[name].flatten(1) for name in self._groups], dim=1)

    def render(self) -> np.ndarray:
        return np.asarray(self._env.render())

    def scene(self) -> Scene:
        return self._first_env.scene(self._env.sim.mj_model, self._env.sim.data)

    @_INFERENCE
    def deployment(self, steps: int) -> Deployment | None:
        """The robot after so many training steps, and its scene if the contract alone can make it walk there; the
        environments are unusable afterwards."""
        self.set_progress(max(steps, 1))  # from the first step on a curriculum sets the range of commands
        self.start(0)
        robot = mjlab_robots.robot_of(self._env, self._groups[:-1])
        if robot is None:
            return None
        clips = mjlab_motion.exported(self._motion.cfg.clips) if robot.motion else {}
        return Deployment(robot, None if robot.obstacle else mjlab_robots.scene_of(self._env), clips)

    @_INFERENCE
    def symmetry(self) -> Symmetry | None:
        self.start(0)
        return mjlab_symmetry.symmetry_of(self._env, self._groups)

    def close(self) -> None:
        self._env.close()


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> TorchEnvs:
    return MjlabEnvs(target, num_envs, config, render)


def follows_motion(target: Target) -> bool:
    return mjlab_motion.command_of(settings_of(target)) is not None


def deployment(target: Target, config: EnvConfig, steps: int = 0) -> Deployment | None:
    """How a policy of this task drives its robot; None where its actions are not joint targets."""
    with contextlib.closing(MjlabEnvs(target, 1, config)) as made:
        return made.deployment(steps)


def symmetry(target: Target, config: EnvConfig) -> Symmetry | None:
    """How a task's observations and actions look in a mirror; None where its actions are not joint targets."""
    with contextlib.closing(MjlabEnvs(target, 1, config)) as made:
        return made.symmetry()


@contextlib.contextmanager
def _kernels_side_by_side() -> Iterator[None]:
    """On a GPU MJLab's simulations record their steps when they are made, for which all kernels must be there."""
    from mjlab.sim import Simulation

    record, known = Simulation.create_graph, False

    def load_and_record(simulation: Any) -> None:
        nonlocal known
        if simulation.use_cuda_graph and not known:  # it is recorded again when models become different
            warp_kernels.load_in_time(lambda: (warp_kernels.of_mjlab(simulation), simulation.wp_device))()
        known = True
        record(simulation)

    Simulation.create_graph = load_and_record
    try:
        yield
    finally:
        Simulation.create_graph = record


def _draw_quickly(settings: Any) -> None:
    """Without shadows, reflections and antialiasing: twenty times as fast on a machine without a GPU."""
    settings.viewer.enable_shadows = settings.viewer.enable_reflections = False
    given = settings.scene.spec_fn

    def without_antialiasing(spec: Any) -> None:
        if given is not None:
            given(spec)
        spec.visual.quality.offsamples = 0

    settings.scene.spec_fn = without_antialiasing


def _choose_groups(task: str, settings: Any, cameras: list[str], wanted: bool) -> tuple[str, ...]:
    """Leave out camera groups, and the cameras themselves, unless asked for; returns the note that says so."""
    missing = [name for name in (ACTOR, CRITIC) if name not in settings.observations]
    if missing:
        raise UserError(f"{task}: has no observation group {missing[0]}, only {', '.join(settings.observations)}")
    if wanted and not cameras:
        raise UserError(f"env.cameras = True: {task} has no camera")
    if wanted or not cameras:
        return ()
    for name in cameras:
        del settings.observations[name]
    sensors = settings.scene.sensors or ()
    settings.scene.sensors = tuple(one for one in sensors if type(one).__name__ != "CameraSensorCfg")
    return (f"observations: {' and '.join(cameras)} left out, as in the published runs; --env.cameras adds the pixels",)
