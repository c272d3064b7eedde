"""Simulator and learner in one compiled program, for simulators written in JAX.

A whole stretch of interactions is one call: act, step, store, sample and update run in a loop on the
device, with donated state, and the host is needed only for logging, evaluation and checkpoints. The parts
are those of the host loop (`interaction`); the order is strict: act, step, store, then learn.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from warpsac.agents.normalize import RewardScale
from warpsac.agents.sac import algorithm as interaction
from warpsac.agents.sac import learner as sac
from warpsac.agents.sac.algorithm import Keys, Setup
from warpsac.agents.sac.learner import Exploration, Learner
from warpsac.agents.seeds import MetricSums, over_seeds
from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import JaxEnv
from warpsac.replay.ring import Ring
from warpsac.training.device_episodes import Running, follow_episodes
from warpsac.training.engine import Engine
from warpsac.training.native import NativeEngine
from warpsac.types import Array

Mode = Literal["collect", "learn"]  # warm-up or refill after resume, training
MODES: tuple[Mode, ...] = ("collect", "learn")


class State(NamedTuple):
    """Everything that an interaction changes, [S, ...]."""

    env: Any
    obs: Array
    learner: Learner
    exploration: Exploration
    ring: Ring
    scale: RewardScale
    sums: MetricSums
    episodes: Running


def interact(setup: Setup, env: JaxEnv, state: State, keys: Keys, counter: Array, mode: Mode, phase: int) -> State:
    """One interaction of all seeds."""
    action, exploration = interaction.act(setup, state.learner.policy, state.exploration, state.obs, keys, counter)
    env_state, step = over_seeds(env.step, setup.seeds)(state.env, action)
    episodes = follow_episodes(state.episodes, step)
    ring, scale = interaction.store(setup, state.ring, state.scale, action, step._replace(success=None), None)
    learner, sums = state.learner, state.sums
    if mode == "learn":
        batches = interaction.sample(setup, ring, keys, learner.updates)
        learner, sums = interaction.learn(setup, learner, batches, scale, sums, keys, phase)
    return State(env_state, step.obs, learner, exploration, ring, scale, sums, episodes)


def period(setup: Setup) -> int:
    """Interactions after which the policy delay is at the same phase again."""
    delay = setup.agent.config.policy_delay
    return delay // math.gcd(delay, setup.updates_per_step)


def advance(
    setup: Setup,
    env: JaxEnv,
    state: State,
    keys: Keys,
    counter: Array,
    rounds: Array,
    mode: Mode,
    phase: int,
    interactions: int,
) -> State:
    """`rounds` times `interactions` interactions, the first of them number `counter`."""

    def body(i: Array, state: State) -> State:
        for j in range(interactions):
            now = (phase + j * setup.updates_per_step) % setup.agent.config.policy_delay
            state = interact(setup, env, state, keys, counter + i * interactions + j, mode, now)
        return state

    return jax.lax.fori_loop(0, rounds, body, state)


class FusedEngine(NativeEngine, Engine):
    """An `Engine` whose simulator is part of its programs."""

    def __init__(
        self,
        setup: Setup,
        seeds: tuple[int, ...],
        env: JaxEnv,
        evaluation_env: JaxEnv,
        max_broken: int = EnvConfig().max_faults,
    ):
        self.place(seeds, env, evaluation_env, functools.partial(sac.best_action, setup.agent), max_broken)
        super().__init__(setup, seeds, "device", self.obs)
        self._used: set[tuple[Mode, int, int]] = set()
        self._advance: Any = jax.jit(
            functools.partial(advance, setup, env),
            static_argnames=("mode", "phase", "interactions"),
            donate_argnums=0,
        )

    def advance(self, counter: int, count: int, mode: Mode) -> None:
        """`count` interactions, the first of them number `counter`."""
        whole, per_step = period(self.setup), self.setup.updates_per_step
        for rounds, interactions in ((count // whole, whole), *(((1, 1),) * (count % whole))):
            if rounds == 0:
                continue
            state = self._advance(*self._arguments(counter, rounds), **self._program(mode, interactions))
            self.env_state, self.obs, self.learner, self.exploration = state[:4]
            self.ring, self.scale, self.sums, self.episodes = state[4:]
            done = rounds * interactions
            counter += done
            self.stored += done
            if mode == "learn":
                self.updates += done * per_step
                self._count_at_last_learn = self.stored

    def _arguments(self, counter: int, rounds: int) -> tuple[State, Keys, np.int32, np.int32]:
        state = State(
            self.env_state, self.obs, self.learner, self.exploration, self.ring, self.scale, self.sums, self.episodes
        )
        return state, self.keys, np.int32(counter), np.int32(rounds)

    def _program(self, mode: Mode, interactions: int) -> dict[str, Any]:
        """What the compiled program depends on, besides the setup."""
        phase = self.updates % self.setup.agent.config.policy_delay if mode == "learn" else 0
        self._used.add((mode, phase, interactions))
        return {"mode": mode, "phase": phase, "interactions": interactions}

    def traces(self) -> dict[str, int]:
        """How many programs each mode of the loop has needed; they were traced as often."""
        modes = [mode for mode, _, _ in self._used]
        assert self._advance._cache_size() == len(modes), "a program was traced twice"
        return {mode: modes.count(mode) for mode in MODES if mode in modes}

    def lower(self, mode: Mode) -> Any:
        """The program of a mode before compilation, to look into."""
        return self._advance.lower(*self._arguments(0, 1), **self._program(mode, period(self.setup)))
