"""Training on simulators written in JAX: a stretch of interactions is one call of one compiled program."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.envs import contract, registry
from warpsac.errors import ConfigError
from warpsac.training.episodes import Episode
from warpsac.training.evaluate import evaluation_seed
from warpsac.training.fused import FusedEngine, Mode
from warpsac.training.loop import Loop
from warpsac.training.native import NativeEngine
from warpsac.training.seed_engine import Groups
from warpsac.training.signals import StopSignals


class FusedLoop(Loop):
    def make_simulator(self) -> contract.EnvSpec:
        config = self.config
        self._check_settings()
        self.env = registry.make_jax(config.task, config.env.num_envs, config.env)
        self._evaluation_env = registry.make_jax(config.task, config.eval.num_envs, registry.for_episodes(config.env))
        self._compiled: set[str] = set()
        return self.env.spec

    def _check_settings(self) -> None:
        """What this kind of loop cannot do, said before anything is compiled."""
        config, replay, episodes = self.config, self.config.replay, self.config.eval.episodes
        if config.eval.num_envs != episodes:
            raise ConfigError("eval.num_envs", config.eval.num_envs, f"must equal eval.episodes = {episodes} here")
        if replay.placement == "host":
            raise ConfigError("replay.placement", "host", "must be auto or device: this simulator runs on the device")
        self.require_gpu()

    def wanted_placement(self) -> Literal["auto", "device", "host"]:
        return "device"

    def make_engine(self) -> NativeEngine:
        self.progress.phase("compiling", "the simulator")
        return FusedEngine(self.setup, self.config.seeds, self.env, self._evaluation_env, self.config.env.max_faults)

    # --- the loop

    def advance(self) -> int:
        """All interactions up to the next row, evaluation, checkpoint or change of mode."""
        mode, count = self._mode(), self._until_next_event()
        first = mode not in self._compiled
        if first:
            self.progress.phase("compiling", "simulator and learner" if mode == "learn" else "the collector")
            self._compiled.add(mode)
        self.engine.advance(self.interaction, count, mode)
        # Waits for the device: dispatch ahead of it would make signals and the time budget wait for all of it.
        longest, allowed = self.engine.longest_fault(), self.config.env.max_faults
        if longest >= allowed:
            self.interaction += count
            raise contract.keeps_running_away(self.config.task, longest, allowed)
        if first:
            self.show_phase(self.step + count * self.config.env.num_envs)
        return count

    def _mode(self) -> Mode:
        return "collect" if self.interaction < self.learning_from else "learn"

    def _until_next_event(self) -> int:
        config, now, num_envs = self.config, self.interaction, self.config.env.num_envs

        def crossing(every: int) -> int:
            """The first interaction after now at whose end a multiple of `every` steps has been reached."""
            return -(-((now * num_envs) // every + 1) * every // num_envs)

        events = [(now // config.log.every + 1) * config.log.every, -(-config.end_step // num_envs)]
        events += [crossing(every) for every in (config.eval.every, config.checkpoint.every) if every > 0]
        events += [self.learning_from] if self.learning_from > now else []
        return -(-(min(events) - now) // config.stride) * config.stride

    # --- metrics and evaluation

    def episode_rows(self) -> list[dict[str, float]]:
        return self.engine.read_episodes()

    def evaluation_episodes(self, signals: StopSignals) -> list[list[Episode]]:
        if "evaluation" not in self._compiled:
            self.progress.phase("compiling", "the evaluation")
            self._compiled.add("evaluation")
        seeds = [evaluation_seed(seed, self.step) for seed in self.config.seeds]
        found = self.engine.evaluate(jnp.stack([jax.random.key(np.uint32(seed)) for seed in seeds]))
        signals.check()
        return found

    # --- checkpoints

    def snapshots(self, with_simulator: bool) -> list[Groups]:
        # All environments have made the same steps, whatever failed: the simulator's state is always whole.
        return self.engine.snapshots(self.saves_replay())

    def restore(self, parts: list[Groups]) -> bool:
        return True  # the engine has taken up the simulator with the rest

    @property
    def next_obs(self) -> jax.Array:
        return self.engine.obs
