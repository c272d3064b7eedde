"""The simulators of all seeds that are stepped from Python: on the host, or on torch tensors on the device.

Both give the stepped driver the same things: steps, training episodes, environments to evaluate on, and what a
checkpoint keeps of them. On torch, observations, actions and results stay on the device and episodes are followed
there. A torch simulator that exists once in a process is evaluated in the training environments: their running episodes
are cut, and training continues with new ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.config.schema import Config
from warpsac.envs import registry
from warpsac.envs.contract import EnvSpec, HostStep, keeps_running_away
from warpsac.envs.host.vector import SeedEnvs, reset_seed
from warpsac.errors import ConfigError, TrainingStopped, in_a_line
from warpsac.training import device_episodes, devices
from warpsac.training.device_episodes import DeviceEpisodes
from warpsac.training.episodes import HostEpisodes
from warpsac.training.evaluate import evaluation_seed
from warpsac.training.state import Groups, joined, of_seed
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

    def groups(self, obs: Array, episodes: Any, with_simulator: bool) -> list[Groups]:
        """What a checkpoint keeps of the simulators and episodes of each seed."""
        parts: list[Groups] = []
        for s, env in enumerate(self.envs.sets):
            state = env.get_state() if with_simulator else None
            groups = {"episodes": episodes.of_seed(s) | {"obs": obs[s]}}
            parts.append(groups if state is None else groups | {"env": state})
        return parts

    def restore(self, parts: Sequence[Groups], interaction: int) -> tuple[Array, Any, bool]:
        """Observations, episodes, and whether the simulator continues exactly where it was."""
        episodes = HostEpisodes.joined([part["episodes"] for part in parts])
        reason = "was not saved"
        if all("env" in part for part in parts):
            try:
                for env, part in zip(self.envs.sets, parts, strict=True):
                    env.set_state(part["env"])
                return np.stack([part["episodes"]["obs"] for part in parts]), episodes, True
            except Exception as error:  # whatever a user's own set_state may raise
                reason = f"cannot be restored ({in_a_line(error)})"
        self.report(f"the simulator's state {reason}: running episodes are cut")
        obs, episodes = self.restart(interaction, episodes)
        return obs, episodes, False

    def restart(self, interaction: int, episodes: Any) -> tuple[Array, Any]:
        """New training episodes; those that were running do not count."""
        obs = self.reset(interaction)
        episodes.forget(np.ones(obs.shape[:2], bool))
        return obs, episodes


class TorchSimulators(HostSimulators):
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
        made = registry.make_torch(registry.target_of(self.config), self.config.env.num_envs, self.config.env, seed)
        self.to_close.callback(made.close)
        return made

    @property
    def notes(self) -> list[str]:
        return [*super().notes, *self._sets[0].notes]

    def reset(self, interaction: int | None = None) -> Array:
        obs = super().reset(interaction)
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
        self.envs.send(action)
        step = self.envs.recv()
        return step, _follow(episodes, step.result)

    def no_episodes(self) -> DeviceEpisodes:
        return device_episodes.no_episodes(len(self.config.seeds), self.spec.num_envs)

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
        fetched, parts = jax.device_get(episodes), []
        for s, one in enumerate(self._sets):
            curriculum = one.curriculum()
            groups = {"episodes": of_seed(fetched, s)}
            parts.append(groups | {"curriculum": curriculum} if curriculum else groups)
        return parts

    def restore(self, parts: Sequence[Groups], interaction: int) -> tuple[Array, Any, bool]:
        episodes = joined(self.no_episodes(), [part["episodes"] for part in parts], "checkpoint")
        # A checkpoint of a simulator that kept failing: its faults must not stop the resumed run at its first row.
        _, episodes = device_episodes.longest_fault(episodes)
        for one, part in zip(self._sets, parts, strict=True):
            one.take_up(part.get("curriculum", {}))
        obs, episodes = self.restart(interaction, episodes)
        self.report("a torch simulator's state cannot be saved: running episodes are cut")
        return obs, episodes, False

    def restart(self, interaction: int, episodes: DeviceEpisodes) -> tuple[Array, DeviceEpisodes]:
        return self.reset(interaction), device_episodes.forget_running(episodes)


_follow: Any = jax.jit(device_episodes.follow_episodes, donate_argnums=0)


@jax.jit
def _stack(arrays: Sequence[Array]) -> Array:
    """The arrays of all seeds as one, in memory of JAX's own."""
    return jnp.stack(arrays)


def _where(what: str, made: SeedEnvs) -> str:
    seeds = f" for each of {len(made.sets)} seeds" if len(made.sets) > 1 else ""
    return f"{what}: {made.spec.num_envs}{seeds}, in {made.where}"
