"""The simulators of all seeds that are stepped from Python: on the host, or on torch tensors on the device.

Both give the stepped driver the same things: steps, training episodes, environments to evaluate on, and what a
checkpoint keeps of them. On torch, observations, actions and results stay on the device and episodes are followed
there. A torch simulator that exists once in a process is evaluated in the training environments: their running episodes
are cut, and training continues with new ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from warpsac.config.schema import Config
from warpsac.envs import registry
from warpsac.envs.contract import EnvSpec, HostStep, keeps_running_away
from warpsac.envs.host.vector import SeedEnvs, reset_seed
from warpsac.errors import ConfigError, TrainingStopped, in_a_line
from warpsac.training import device_episodes, devices, processes
from warpsac.training.device_episodes import DeviceEpisodes
from warpsac.training.episodes import HostEpisodes
from warpsac.training.evaluate import evaluation_seed
from warpsac.training.state import Groups, fetched, joined, of_seed
from warpsac.types import Array


class ActionNotFinite(TrainingStopped):
    """An update has spoiled the policy."""


class HostSimulators:
    def __init__(self, config: Config, to_close: contextlib.ExitStack, resumed: bool = False):
        self.config, self.to_close, self._resumed = config, to_close, resumed
        self.report: Callable[[str], None] = print  # where lines for the user go, once there is a display
        self._evaluation_envs: SeedEnvs | None = None
        self.envs = self._make()
        self.spec: EnvSpec = self.envs.spec

    def _make(self) -> SeedEnvs:
        made = self._make_sets(self.config.env.num_envs)
        made.name(self.config.seeds)
        return made

    def _make_sets(self, num_envs: int) -> SeedEnvs:
        made = registry.make_sets(registry.target_of(self.config), num_envs, len(self.config.seeds), self.config.env)
        self.to_close.callback(made.close)
        return made

    @property
    def notes(self) -> list[str]:
        return [_where("environments", self.envs)]

    def reset(self, interaction: int | None = None) -> Array:
        """New episodes, of the start or after so many interactions; returns observations [S, N, D]."""
        seeds = self.config.seeds
        return self.envs.reset(seeds if interaction is None else [reset_seed(seed, interaction) for seed in seeds])

    # --- one step

    @property
    def overlaps_in_a_thread(self) -> bool:
        """Handing updates to a GPU takes about as long as a simulator's step, so another thread does it meanwhile. On a
        CPU the simulator needs the cores more."""
        return not devices.on_cpu()

    def step(self, action: Array, episodes: Any) -> tuple[HostStep, Any]:
        """One step of all environments, and the training episodes after it; reading the action waits for the device."""
        action = np.asarray(action)
        if not np.isfinite(action).all():
            raise ActionNotFinite("the policy gave an action that is not finite")
        self.envs.send(action)
        step = self.envs.recv()
        episodes.observe(step.result, step.restart.mask if step.restart else None, step.faults)
        return step, episodes

    # --- training episodes

    def no_episodes(self) -> Any:
        return HostEpisodes.none(len(self.config.seeds), self.spec.num_envs)

    def episode_rows(self, episodes: Any) -> tuple[list[dict[str, float]], Any]:
        return episodes.take_rows(), episodes

    # --- evaluation

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[SeedEnvs]:
        """The environments to evaluate on, while it lasts."""
        if self._evaluation_envs is None:
            self._evaluation_envs = self._make_sets(min(self.config.eval.num_envs, self.config.eval.episodes))
            self.report(_where("evaluation environments", self._evaluation_envs))
        yield self._evaluation_envs

    @property
    def evaluation_cuts(self) -> bool:
        """Whether an evaluation resets the training environments."""
        return False

    # --- checkpoints

    @property
    def curriculum_axes(self) -> dict[str, int]:
        """Of the arrays of a curriculum that are divided among processes."""
        return {}

    def groups(self, obs: Array, episodes: Any, with_simulator: bool) -> list[Groups]:
        """What a checkpoint keeps of the simulators and episodes of each seed."""
        parts: list[Groups] = []
        for s, env in enumerate(self.envs.sets):
            state = env.get_state() if with_simulator else None
            groups = {"episodes": episodes.of_seed(s) | {"obs": obs[s]}}
            parts.append(groups if state is None else groups | {"env": state})
        return parts

    def restore(self, parts: Sequence[Groups], interaction: int) -> tuple[Array, Any, str | None]:
        """Observations, episodes, and a line if the simulator does not continue exactly where it was."""
        episodes = HostEpisodes.joined([part["episodes"] for part in parts])
        reason = "was not saved"
        if all("env" in part for part in parts):
            try:
                for env, part in zip(self.envs.sets, parts, strict=True):
                    env.set_state(part["env"])
                return np.stack([part["episodes"]["obs"] for part in parts]), episodes, None
            except Exception as error:  # whatever a user's own set_state may raise
                reason = f"cannot be restored ({in_a_line(error)})"
        obs, episodes = self.restart(interaction, episodes)
        return obs, episodes, f"the simulator's state {reason}: running episodes are cut"

    def restart(self, interaction: int, episodes: Any) -> tuple[Array, Any]:
        """New training episodes; those that were running do not count."""
        obs = self.reset(interaction)
        episodes.forget(np.ones(obs.shape[:2], bool))
        return obs, episodes


class TorchSimulators(HostSimulators):
    """Of several processes each has a simulator with its share of the environments; arrays are those of all."""

    def __init__(self, config: Config, to_close: contextlib.ExitStack, resumed: bool = False):
        self._mesh = devices.mesh_of(config)
        super().__init__(config, to_close, resumed)
        self.spec = dataclasses.replace(self.spec, num_envs=config.env.num_envs)

    def _make(self) -> SeedEnvs:
        config = self.config
        devices.share_gpu_memory()
        devices.require_gpu(config, self._resumed)
        self._sets = [self._make_set(config.seeds[0])]
        spec, family = self._sets[0].spec, registry.target_of(config).family
        if spec.single and len(config.seeds) > 1:
            once = f"{family} exists once in a process"
            raise ConfigError("seeds", config.seeds, f"must be one: {once}, so train one seed after the other")
        if spec.most_envs is not None and min(config.eval.num_envs, config.eval.episodes) > spec.most_envs:
            raise ConfigError(
                "eval.num_envs", config.eval.num_envs, f"must be at most {spec.most_envs} on this machine"
            )
        self._sets += [self._make_set(seed) for seed in config.seeds[1:]]
        from warpsac.envs.torch.base import from_jax

        # Actions are split as tensors, which are views. JAX would do it by a program, queued behind the learner's
        # updates, and the simulator would wait for these.
        return SeedEnvs(self._sets, f"lockstep, in torch on {self._sets[0].device}", _stack, from_jax)

    def _make_set(self, seed: int) -> Any:
        count = self.config.env.num_envs // processes.count()
        made = registry.make_torch(registry.target_of(self.config), count, self.config.env, _own_seed(seed))
        self.to_close.callback(made.close)
        return made

    @property
    def notes(self) -> list[str]:
        return [*super().notes, *self._sets[0].notes]

    def reset(self, interaction: int | None = None) -> Array:
        seeds = self.config.seeds
        started = seeds if interaction is None else [reset_seed(seed, interaction) for seed in seeds]
        obs = self._of_all(self.envs.reset([_own_seed(seed) for seed in started]))
        for one in self._sets if self.config.env.stagger else ():
            one.stagger()
        if interaction is not None:
            for one in self._sets:  # after the reset: MJLab does not count a reset at step 0 as a result of training
                one.set_progress(interaction)
        return obs

    @property
    def overlaps_in_a_thread(self) -> bool:
        return False  # one thread orders the work of simulator and learner on their device

    def step(self, action: Array, episodes: DeviceEpisodes) -> tuple[HostStep, DeviceEpisodes]:
        """The action is not read here: that would wait for the device."""
        self.envs.send(action if self._mesh is None else action.addressable_data(0))
        step = self.envs.recv()
        if self._mesh is not None:
            step = step._replace(result=jax.tree.map(self._of_all, step.result))
        return step, self._follow(episodes, step.result)

    def _of_all(self, array: Array) -> Array:
        """The array of all processes."""
        return array if self._mesh is None else processes.joined_envs(array, self._mesh)

    @functools.cached_property
    def _follow(self) -> Any:
        if self._mesh is None:
            return _follow
        follow, mesh, envs = device_episodes.follow_episodes, self._mesh, self.spec.num_envs
        specs = jax.tree.map(lambda leaf: processes.of_envs(leaf, envs), self.no_episodes())
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        return jax.jit(follow, donate_argnums=0, out_shardings=shardings)

    def no_episodes(self) -> DeviceEpisodes:
        none = device_episodes.no_episodes(len(self.config.seeds), self.spec.num_envs)
        return none if self._mesh is None else processes.placed_by_envs(none, self._mesh, self.spec.num_envs)

    def episode_rows(self, episodes: DeviceEpisodes) -> tuple[list[dict[str, float]], DeviceEpisodes]:
        longest, episodes = device_episodes.longest_fault(episodes)
        if longest >= self.config.env.max_faults:
            raise keeps_running_away(self.config.task, longest, self.config.env.max_faults)
        return device_episodes.take_rows(episodes, self.spec.has_success)

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[SeedEnvs]:
        from warpsac.envs.torch.base import OnHost, kept_randomness, seed_generators

        with kept_randomness():  # the training episodes draw from the same generators
            if self.spec.single:
                yield SeedEnvs([OnHost(one) for one in self._sets])
                return
            if self._evaluation_envs is None:  # the same ones whenever they are made, also after a resume
                seed_generators(evaluation_seed(self.config.seeds[0], 0))
            with super().evaluation() as envs:
                yield envs

    @property
    def evaluation_cuts(self) -> bool:
        return self.spec.single

    def groups(self, obs: Array, episodes: DeviceEpisodes, with_simulator: bool) -> list[Groups]:
        read, parts = fetched(episodes), []
        for s, one in enumerate(self._sets):
            curriculum = one.curriculum()
            groups = {"episodes": of_seed(read, s)}
            parts.append(groups | {"curriculum": curriculum} if curriculum else groups)
        return parts

    @property
    def curriculum_axes(self) -> dict[str, int]:
        return dict.fromkeys(self._sets[0].curriculum(), 0)

    def restore(self, parts: Sequence[Groups], interaction: int) -> tuple[Array, Any, str | None]:
        episodes = self._restored_episodes([part["episodes"] for part in parts])
        # A checkpoint of a simulator that kept failing: its faults must not stop the resumed run at its first row.
        _, episodes = device_episodes.longest_fault(episodes)
        for one, part in zip(self._sets, parts, strict=True):
            one.take_up(part.get("curriculum", {}))
        obs, episodes = self.restart(interaction, episodes)
        return obs, episodes, "a torch simulator's state cannot be saved: running episodes are cut"

    def _restored_episodes(self, parts: Sequence[Any]) -> DeviceEpisodes:
        none, mesh = self.no_episodes(), self._mesh
        if mesh is None:
            return joined(none, parts, "checkpoint")
        specs = jax.tree.map(lambda leaf: processes.of_envs(leaf, self.spec.num_envs), none)
        own = joined(jax.tree.map(processes.local_shape, none, specs), parts, "checkpoint")
        return processes.placed_by(own, specs, mesh, own=True)

    def restart(self, interaction: int, episodes: DeviceEpisodes) -> tuple[Array, DeviceEpisodes]:
        return self.reset(interaction), device_episodes.forget_running(episodes)


def _own_seed(seed: int) -> int:
    """The seed of this process's environments: each has others."""
    return reset_seed(seed, processes.index(), attempt=1) if processes.index() else seed


_follow: Any = jax.jit(device_episodes.follow_episodes, donate_argnums=0)


@jax.jit
def _stack(arrays: Sequence[Array]) -> Array:
    """The arrays of all seeds as one, in memory of JAX's own."""
    return jnp.stack(arrays)


def _where(what: str, made: SeedEnvs) -> str:
    seeds = f" for each of {len(made.sets)} seeds" if len(made.sets) > 1 else ""
    return f"{what}: {made.spec.num_envs}{seeds}, in {made.where}"
