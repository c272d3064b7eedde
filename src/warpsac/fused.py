"""Simulator and learner in one compiled program, for simulators written in JAX.

A whole stretch of interactions is one call: act, step, store, sample and update run in a loop on the
device, with donated state, and the host is needed only for logging, evaluation and checkpoints. The parts
are those of the host loop (`interaction`); the order is strict: act, step, store, then learn.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac import interaction, pytree, running, sac
from warpsac.config import EnvConfig
from warpsac.engine import Engine
from warpsac.envs import NativeEnv
from warpsac.episodes import Episode
from warpsac.evaluate import broken_evaluation
from warpsac.interaction import Keys, MetricSums, Setup, over_seeds
from warpsac.normalize import RewardScale
from warpsac.replay.ring import Ring
from warpsac.running import Running, follow_episodes, no_episodes
from warpsac.sac import Exploration, Learner, Policy
from warpsac.types import Array

Mode = Literal["random", "policy", "learn"]  # warm-up, refill after resume, training
MODES: tuple[Mode, ...] = ("random", "policy", "learn")


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


def interact(setup: Setup, env: NativeEnv, state: State, keys: Keys, counter: Array, mode: Mode, phase: int) -> State:
    """One interaction of all seeds."""
    exploration = state.exploration
    if mode == "random":
        action = interaction.act_randomly(setup, keys, counter)
    else:
        action, exploration = interaction.act(setup, state.learner.policy, exploration, state.obs, keys, counter)
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
    env: NativeEnv,
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


class Played(NamedTuple):
    """The first complete episode of each environment, [E]."""

    total: Array  # float32
    length: Array  # int32
    success: Array  # bool
    broken: Array  # int32, episodes in a row that a fault cut short; the limit: it was given up


def run_episodes(agent: sac.Agent, env: NativeEnv, max_broken: int, policy: Policy, key: Array) -> Played:
    """Play the first complete episode of each environment, under the best action.

    An episode that ran away begins anew; an environment in which `max_broken` did so in a row is given up.
    """
    env_state, obs = env.reset(key)
    count = env.spec.num_envs
    nothing = Played(
        total=jnp.zeros(count, jnp.float32),
        length=jnp.zeros(count, jnp.int32),
        success=jnp.zeros(count, bool),
        broken=jnp.zeros(count, jnp.int32),
    )

    def going(carry: Any) -> Array:
        return carry[2].any()

    def one_step(carry: Any) -> Any:
        env_state, obs, alive, played = carry
        env_state, step = env.step(env_state, sac.best_action(agent, policy, obs))
        faulty = jnp.zeros(count, bool) if step.faulty is None else step.faulty
        begin = alive & faulty
        success = played.success if step.success is None else played.success | (alive & step.success)
        played = Played(
            total=jnp.where(begin, 0.0, played.total + jnp.where(alive, step.reward, 0.0)),
            length=jnp.where(begin, 0, played.length + alive),
            success=success & ~begin,
            broken=played.broken + begin,
        )
        alive = alive & ~(step.terminated | step.truncated) & (played.broken < max_broken)
        return env_state, step.obs, alive, played

    return jax.lax.while_loop(going, one_step, (env_state, obs, jnp.ones(count, bool), nothing))[3]


def as_episodes(played: Played, has_success: bool) -> list[Episode]:
    """One record for each environment."""
    columns = zip(played.total, played.length, played.success, strict=True)
    return [
        Episode(i, float(total), int(length), bool(success) if has_success else None)
        for i, (total, length, success) in enumerate(columns)
    ]


class FusedEngine(Engine):
    """An `Engine` whose simulator is part of its programs."""

    def __init__(
        self,
        setup: Setup,
        seeds: tuple[int, ...],
        env: NativeEnv,
        evaluation_env: NativeEnv,
        max_broken: int = EnvConfig().max_faults,
    ):
        self.env, self.evaluation_env, self._max_broken = env, evaluation_env, max_broken
        reset = jax.jit(over_seeds(env.reset, len(seeds)))
        # Copies: an environment's first state is kept twice, and one buffer cannot be donated twice.
        self.env_state, self.obs = jax.tree.map(jnp.copy, reset(reset_keys(seeds)))
        super().__init__(setup, seeds, "device", self.obs)
        self.episodes = no_episodes(len(seeds), setup.ring.num_envs)
        self._used: set[tuple[Mode, int, int]] = set()
        self._advance: Any = jax.jit(
            functools.partial(advance, setup, env),
            static_argnames=("mode", "phase", "interactions"),
            donate_argnums=0,
        )
        one = functools.partial(run_episodes, setup.agent, evaluation_env, max_broken)
        self._evaluate = jax.jit(over_seeds(one, len(seeds)))

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

    def evaluate(self, keys: Array) -> list[list[Episode]]:
        """The first episode of each evaluation environment, for every seed."""
        found = jax.device_get(self._evaluate(self.learner.policy, keys))
        if found.broken.max() >= self._max_broken:
            raise broken_evaluation(self.evaluation_env.spec.task, int(found.broken.max(0).argmax()), self._max_broken)
        has_success = self.evaluation_env.spec.has_success
        return [as_episodes(Played(*columns), has_success) for columns in zip(*found, strict=True)]

    def longest_fault(self) -> int:
        """The most faulty steps in a row of any environment since the last call."""
        longest, self.episodes = running.longest_fault(self.episodes)
        return longest

    def read_episodes(self) -> list[dict[str, float]]:
        """Metrics of the training episodes that ended since the last reading, for each seed."""
        rows, self.episodes = running.take_rows(self.episodes, self.env.spec.has_success)
        return rows

    # --- saving and restoring

    def snapshots(self, with_replay: bool) -> list[dict[str, dict[str, np.ndarray]]]:
        parts = super().snapshots(with_replay)
        state = jax.device_get((self.env_state, self.obs, self.episodes))
        for s, groups in enumerate(parts):
            env, obs, episodes = jax.tree.map(lambda leaf, s=s: leaf[s], state)
            groups["env"] = pytree.flatten(env)
            groups["episodes"] = pytree.flatten(episodes) | {"obs": obs}
        return parts

    def restore(self, parts: Sequence[Mapping[str, Mapping[str, np.ndarray]]], updates: int, where: str) -> None:
        super().restore(parts, updates, where)
        self.env_state = self._joined(self.env_state, [part["env"] for part in parts], where)
        template = self.episodes._asdict() | {"obs": self.obs}
        state = self._joined(template, [part["episodes"] for part in parts], where)
        self.obs = state.pop("obs")
        self.episodes = Running(**state)


def reset_keys(seeds: tuple[int, ...]) -> Array:
    """The stream that a run's environments begin from, apart from the learner's streams."""
    return jnp.stack([jax.random.fold_in(jax.random.key(seed), 1000) for seed in seeds])
