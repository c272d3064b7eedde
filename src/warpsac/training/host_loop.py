"""Training on host simulators, stepped from Python.

`HostLoop.interact` is the algorithm in one screen: act, step, store, update. With `overlap` the updates of
the interaction before run on the device while the simulator steps, so the policy acts with the parameters
of one interaction before; without it the order is strict. Handing the updates to a GPU takes about as long as a
simulator's step (hundreds of kernels to launch), so there another thread does it meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from warpsac.config.schema import Config
from warpsac.envs import contract, registry
from warpsac.envs.host.vector import SeedEnvs, reset_seed
from warpsac.errors import TrainingStopped, in_a_line
from warpsac.training import devices, evaluate
from warpsac.training.engine import Engine
from warpsac.training.episodes import Episode, EpisodeLog
from warpsac.training.loop import Loop
from warpsac.training.seed_engine import Groups, SeedEngine
from warpsac.training.signals import StopSignals
from warpsac.types import Array

T = TypeVar("T")


class HostLoop(Loop):
    _handing_over: Future[None] | None = None

    def make_simulator(self) -> contract.EnvSpec:
        config = self.config
        self.envs = self._make_envs(config.env.num_envs)
        self._evaluation_envs: SeedEnvs | None = None
        self.envs.name(config.seeds)
        self.obs: Array = self.envs.reset(config.seeds)
        self.episodes = [EpisodeLog(config.env.num_envs) for _ in config.seeds]
        self._compiled: set[str] = set()
        return self.envs.spec

    def _make_envs(self, num_envs: int) -> SeedEnvs:
        made = registry.make_sets(self.config.task, num_envs, len(self.config.seeds), self.config.env)
        self._to_close.callback(made.close)
        return made

    def make_engine(self) -> SeedEngine:
        return Engine(self.setup, self.config.seeds, self.placement, self.obs)

    # --- the loop

    def advance(self) -> int:
        self.interact()
        return 1

    def interact(self) -> None:
        """Act, step, store, update; see the module's docstring for the order."""
        engine, overlap, t = self.engine, self.config.overlap, self.interaction
        action = self.call("act", lambda: engine.act(self.obs, t))
        with self.learning(overlap and t > self.learning_from and self.learned_during != t):
            step = self.take_step(self.ready(action))
        self.call("store", lambda: engine.store(action, step))
        if not overlap and t >= self.learning_from:
            self.learn()
        self.follow(step)

    def take_step(self, action: Array) -> contract.HostStep:
        self.envs.send(action)
        return self.envs.recv()

    def follow(self, step: contract.HostStep) -> None:
        """Go on from the step's observations."""
        self.obs = step.result.obs
        for line in step.events:
            self.progress.message(line)
        self.note_episodes(step)

    def ready(self, action: Array) -> Array:
        """The action as the simulator takes it; reading it waits for the device."""
        action = np.asarray(action)
        if not np.isfinite(action).all():
            self._settle()
            self.require_finite()
            raise TrainingStopped("the policy gave an action that is not finite")
        return action

    def note_episodes(self, step: contract.HostStep) -> None:
        """Keep account of the training episodes."""
        for s, episodes in enumerate(self.episodes):
            restarted = step.restart.mask[s] if step.restart else None
            episodes.observe(step.result.of_seed(s), restarted, np.ravel(step.faults)[s])

    @contextlib.contextmanager
    def learning(self, due: bool) -> Iterator[None]:
        """The updates of the interaction before, if they are due, are under way within and dispatched at the end."""
        if not due:
            yield
            return
        self.learned_during = self.interaction
        if not self.learns_in_a_thread() or self._learn_program not in self._compiled:
            self.learn()  # what compiles says so on the display, which belongs to this thread
            yield
        else:
            self._handing_over = self._learner_thread.submit(self.engine.learn)
            try:
                yield
            finally:
                self._settle()

    def _settle(self) -> None:
        """Wait until the updates are handed over: until then the learner is the other thread's."""
        if self._handing_over is not None:
            handed_over, self._handing_over = self._handing_over, None
            handed_over.result()

    def learns_in_a_thread(self) -> bool:
        """On a CPU the simulator needs the cores more than the learner needs another thread."""
        return not devices.on_cpu()

    def learn(self) -> None:
        self.call(self._learn_program, self.engine.learn)

    @property
    def _learn_program(self) -> str:
        return f"learn{self.engine.updates % self.config.learner.policy_delay}"

    @functools.cached_property
    def _learner_thread(self) -> ThreadPoolExecutor:
        thread = ThreadPoolExecutor(1, "learner")
        self._to_close.callback(thread.shutdown)
        return thread

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
        """All seeds are judged side by side."""
        config = self.config
        return evaluate.run_episodes_of_seeds(
            self.evaluation_envs(),
            self.engine.best_policy(),
            config.eval.episodes,
            [evaluate.evaluation_seed(seed, self.step) for seed in config.seeds],
            max_broken=config.env.max_faults,
            on_step=signals.check,
            report=self.progress.message,
        )

    def evaluation_envs(self) -> SeedEnvs:
        config = self.config
        if self._evaluation_envs is None:
            self._evaluation_envs = self._make_envs(min(config.eval.num_envs, config.eval.episodes))
            self.progress.message(_where("evaluation environments", self._evaluation_envs))
        return self._evaluation_envs

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
                why = f"cannot be restored ({in_a_line(error)})"
        self.progress.message(f"the simulator's state {why}: episodes that were running are cut")
        return False

    @property
    def next_obs(self) -> Array:
        return self.obs

    def _notes(self) -> list[str]:
        notes = [_where("environments", self.envs), *super()._notes()]
        if devices.on_cpu() and is_heavy(self.config):
            notes.append("no GPU: a CPU makes only a few updates of this size a second; `--profile demo` is small")
        return notes


def is_heavy(config: Config) -> bool:
    """Whether a run is long and each update is too much for a CPU, as those of the benchmarks are."""
    learner, updates = config.learner, config.end_step - config.learning_starts
    work = config.replay.batch_size * learner.critic_width**2 * learner.critic_blocks * learner.critics
    return config.algo == "sac" and work > 10_000_000 and updates > 20_000


def _where(what: str, made: SeedEnvs) -> str:
    seeds = f" for each of {len(made.sets)} seeds" if len(made.sets) > 1 else ""
    return f"{what}: {made.spec.num_envs}{seeds}, in {made.where}"
