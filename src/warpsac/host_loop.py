"""Training on host simulators, stepped from Python.

`HostLoop.interact` is the algorithm in one screen: act, step, store, update. With `overlap` the updates of
the interaction before run on the device while the simulator steps, so the policy acts with the parameters
of one interaction before; without it the order is strict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from warpsac import envs, evaluate
from warpsac.engine import Engine
from warpsac.envs.host import SeedEnvs, reset_seed
from warpsac.episodes import Episode, EpisodeLog
from warpsac.errors import TrainingStopped
from warpsac.loop import Groups, Loop
from warpsac.signals import StopSignals

T = TypeVar("T")


class HostLoop(Loop):
    def make_simulator(self) -> envs.EnvSpec:
        config = self.config
        sets = [envs.make(config.task, config.env.num_envs, config.env) for _ in config.seeds]
        self.envs = SeedEnvs(sets)
        self._to_close.callback(self.envs.close)
        self._evaluation_env: envs.HostEnv | None = None
        self.obs = self.envs.reset(config.seeds)
        self.episodes = [EpisodeLog(config.env.num_envs) for _ in config.seeds]
        self._compiled: set[str] = set()
        return self.envs.spec

    def make_engine(self) -> Engine:
        return Engine(self.setup, self.config.seeds, self.placement, self.obs)

    # --- the loop

    def advance(self) -> int:
        self.interact()
        return 1

    def interact(self) -> None:
        """Act, step, store, update; see the module's docstring for the order."""
        engine, overlap, t = self.engine, self.config.overlap, self.interaction
        if t < self.config.warmup_interactions:
            action = self.call("act_randomly", lambda: engine.act_randomly(t))
        else:
            action = self.call("act", lambda: engine.act(self.obs, t))
        if overlap and t > self.learning_from:
            self.learn()
        action = np.asarray(action)
        if not np.isfinite(action).all():
            self.require_finite()
            raise TrainingStopped("the policy gave an action that is not finite")
        self.envs.send(action)
        step = self.envs.recv()
        self.call("store", lambda: engine.store(action, step))
        if not overlap and t >= self.learning_from:
            self.learn()
        self.obs = step.result.obs
        for s, episodes in enumerate(self.episodes):
            one = type(step.result)(*(None if field is None else field[s] for field in step.result))
            episodes.observe(one, step.restart.mask[s] if step.restart else None, np.ravel(step.faults)[s])

    def learn(self) -> None:
        phase = self.engine.updates % self.config.learner.policy_delay
        self.call(f"learn{phase}", self.engine.learn)

    def call(self, program: str, function: Callable[[], T]) -> T:
        """Say so when a program is called for the first time: that call compiles it."""
        if program in self._compiled:
            return function()
        collecting = self.interaction < self.learning_from
        self.progress.phase("compiling", "the collector" if collecting else "the learner")
        result = function()
        self._compiled.add(program)
        self.show_phase()
        return result

    # --- metrics and evaluation

    def episode_rows(self) -> list[dict[str, float]]:
        return [episodes.take_row() for episodes in self.episodes]

    def evaluation_episodes(self, signals: StopSignals) -> list[list[Episode]]:
        return [self._episodes_of(s, signals) for s in range(len(self.runs))]

    def _episodes_of(self, s: int, signals: StopSignals) -> list[Episode]:
        config = self.config
        if self._evaluation_env is None:
            count = min(config.eval.num_envs, config.eval.episodes)
            self._evaluation_env = envs.make(config.task, count, config.env)
            self._to_close.callback(self._evaluation_env.close)
        return evaluate.run_episodes(
            self._evaluation_env,
            self.engine.best_policy(s),
            config.eval.episodes,
            evaluate.evaluation_seed(config.seeds[s], self.step),
            max_broken=config.env.max_faults,
            on_step=signals.check,
        )

    # --- checkpoints

    def snapshots(self, with_simulator: bool) -> list[Groups]:
        parts = self.engine.snapshots(self.saves_replay())
        for s, groups in enumerate(parts):
            groups["episodes"] = self.episodes[s].state() | {"obs": self.obs[s]}
            simulator = self.envs.sets[s].get_state() if with_simulator else None
            if simulator is not None:
                groups["env"] = simulator
        return parts

    def restore(self, parts: list[Groups]) -> bool:
        for episodes, part in zip(self.episodes, parts, strict=True):
            episodes.restore(part["episodes"])
        if self._restore_simulator(parts):
            self.obs = np.stack([part["episodes"]["obs"] for part in parts])
            return True
        self.obs = self.envs.reset([reset_seed(seed, self.interaction) for seed in self.config.seeds])
        for episodes in self.episodes:
            episodes.forget_running()
        return False

    def _restore_simulator(self, parts: list[Groups]) -> bool:
        """Whether the simulator goes on exactly where it was."""
        why = "was not saved"
        if all("env" in part for part in parts):
            try:
                for env, part in zip(self.envs.sets, parts, strict=True):
                    env.set_state(part["env"])
                return True
            except Exception as error:  # whatever a user's own set_state may raise
                why = f"cannot be restored ({envs.in_a_line(error)})"
        self.progress.message(f"the simulator's state {why}: episodes that were running are cut")
        return False

    @property
    def next_obs(self) -> np.ndarray:
        return self.obs
