"""Training on simulators that step on torch tensors: the host loop without the host.

Observations, actions and results stay on the device; the order of an interaction is that of `HostLoop`. Episodes
are followed on the device and read when a row is due. A simulator that exists once in a process is judged in the
training environments: their running episodes are cut in replay, and training goes on with new ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.envs import contract, registry
from warpsac.envs.host.vector import SeedEnvs, reset_seed
from warpsac.errors import ConfigError
from warpsac.runs import pytree
from warpsac.training import device_episodes, devices, evaluate
from warpsac.training.episodes import Episode
from warpsac.training.host_loop import HostLoop
from warpsac.training.seed_engine import Groups
from warpsac.training.signals import StopSignals
from warpsac.types import Array

if TYPE_CHECKING:
    from warpsac.envs.torch.base import TorchEnvs


class TorchLoop(HostLoop):
    def make_simulator(self) -> contract.EnvSpec:
        config = self.config
        devices.share_gpu_memory()
        self.require_gpu()
        self._sets = [self._make_set(config.seeds[0])]
        if self._sets[0].spec.single and len(config.seeds) > 1:
            once = f"{self.target.family} exists once in a process"
            raise ConfigError("seeds", config.seeds, f"must be one: {once}, so train one seed after the other")
        most, judges = self._sets[0].spec.most_envs, min(config.eval.num_envs, config.eval.episodes)
        if most is not None and judges > most:
            raise ConfigError("eval.num_envs", config.eval.num_envs, f"must be at most {most} on this machine")
        self._sets += [self._make_set(seed) for seed in config.seeds[1:]]
        from warpsac.envs.torch.base import from_jax

        # Actions are split as tensors, which are views. JAX would do it by a program, queued behind the learner's
        # updates, and the simulator would wait for these.
        self.envs = SeedEnvs(self._sets, f"lockstep, in torch on {self._sets[0].device}", _stack, from_jax)
        self._evaluation_envs: SeedEnvs | None = None
        self.obs = self._reset(config.seeds)
        self._running = device_episodes.no_episodes(len(config.seeds), config.env.num_envs)
        self._follow: Any = jax.jit(device_episodes.follow_episodes, donate_argnums=0)
        self._compiled: set[str] = set()
        return self.envs.spec

    def _make_set(self, seed: int) -> TorchEnvs:
        made = registry.make_torch(self.config.task, self.config.env.num_envs, self.config.env, seed)
        self._to_close.callback(made.close)
        return made

    def _reset(self, seeds: Sequence[int]) -> Array:
        obs = self.envs.reset(seeds)
        if self.config.env.stagger:
            for one in self._sets:
                one.stagger()
        return obs

    # --- the loop

    def learns_in_a_thread(self) -> bool:
        return False  # one thread orders the work of simulator and learner on their device

    def ready(self, action: Array) -> Array:
        return action  # not read here: that would wait for the device

    def note_episodes(self, step: contract.HostStep) -> None:
        self._running = self._follow(self._running, step.result)

    # --- metrics and evaluation

    def episode_rows(self) -> list[dict[str, float]]:
        self._require_sound()
        rows, self._running = device_episodes.take_rows(self._running, self.spec.has_success)
        return rows

    def _require_sound(self) -> None:
        longest, self._running = device_episodes.longest_fault(self._running)
        allowed = self.config.env.max_faults
        if longest >= allowed:
            raise contract.keeps_running_away(self.config.task, longest, allowed)

    def evaluation_episodes(self, signals: StopSignals) -> list[list[Episode]]:
        from warpsac.envs.torch.base import kept_randomness

        try:
            with kept_randomness():  # the training episodes draw from the same generators
                return super().evaluation_episodes(signals)
        finally:
            if self.spec.single:
                self._begin_anew()

    def evaluation_envs(self) -> SeedEnvs:
        from warpsac.envs.torch.base import OnHost, seed_generators

        if self.spec.single:
            return SeedEnvs([OnHost(one) for one in self._sets])
        if self._evaluation_envs is None:  # the same ones whenever they are made, also after a resume
            seed_generators(evaluate.evaluation_seed(self.config.seeds[0], 0))
        return super().evaluation_envs()

    def _begin_anew(self) -> None:
        """New training episodes; those that were running are closed in replay as truncated."""
        self._start_episodes()
        self.engine.close_episodes(np.ones(self.obs.shape[:2], bool), self.obs)

    def _start_episodes(self) -> None:
        self.obs = self._reset([reset_seed(seed, self.interaction) for seed in self.config.seeds])
        for one in self._sets:  # after the reset: at its first step MJLab takes one for no result of training
            one.set_progress(self.interaction)
        self._running = device_episodes.forget_running(self._running)

    # --- checkpoints

    def snapshots(self, with_simulator: bool) -> list[Groups]:
        parts = self.engine.snapshots(self.saves_replay())
        episodes = jax.device_get(self._running)
        for s, groups in enumerate(parts):
            groups["episodes"] = pytree.flatten(jax.tree.map(lambda leaf, s=s: leaf[s], episodes))
            if curriculum := self._sets[s].curriculum():
                groups["curriculum"] = curriculum
        return parts

    def restore(self, parts: list[Groups]) -> bool:
        template = jax.tree.map(lambda leaf: leaf[0], self._running)
        saved = [pytree.restore(template, part["episodes"], "checkpoint") for part in parts]
        self._running = jax.tree.map(lambda *leaves: jnp.stack(leaves), *saved)
        for one, part in zip(self._sets, parts, strict=True):
            one.take_up(part.get("curriculum", {}))
        self._start_episodes()
        self.progress.message("a torch simulator's state cannot be saved: episodes that were running are cut")
        return False

    def _notes(self) -> list[str]:
        return [*super()._notes(), *self._sets[0].notes]


@functools.partial(jax.jit, static_argnames="axis")
def _stack(arrays: Sequence[Array], axis: int = 0) -> Array:
    """The arrays of all seeds, or of all steps, as one, in memory of JAX's own."""
    return jnp.stack(arrays, axis)
