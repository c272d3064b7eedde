"""The simulator's side of an engine whose programs contain it: its state, and episodes played on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.agents.seeds import over_seeds
from warpsac.envs.contract import JaxEnv
from warpsac.runs import pytree
from warpsac.training import device_episodes
from warpsac.training.device_episodes import Running, no_episodes
from warpsac.training.episodes import Episode
from warpsac.training.evaluate import broken_evaluation
from warpsac.training.seed_engine import Groups, SeedEngine
from warpsac.types import Array

BestAction = Callable[[Any, Array], Array]  # of a policy for observations [N, D]


class Played(NamedTuple):
    """The first complete episode of each environment, [E]."""

    total: Array  # float32
    length: Array  # int32
    success: Array  # bool
    broken: Array  # int32, episodes in a row that a fault cut short; the limit: it was given up


def run_episodes(best_action: BestAction, env: JaxEnv, max_broken: int, policy: Any, key: Array) -> Played:
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
        env_state, step = env.step(env_state, best_action(policy, obs))
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


class NativeEngine(SeedEngine):
    """An engine with a simulator inside its programs; what it learns by is added by another base class."""

    def place(
        self,
        seeds: tuple[int, ...],
        env: JaxEnv,
        evaluation_env: JaxEnv,
        best_action: BestAction,
        max_broken: int,
    ) -> None:
        """Reset the training environments of all seeds."""
        self.env, self.evaluation_env, self._max_broken = env, evaluation_env, max_broken
        reset = jax.jit(over_seeds(env.reset, len(seeds)))
        # Copies: an environment's first state is kept twice, and one buffer cannot be donated twice.
        self.env_state, self.obs = jax.tree.map(jnp.copy, reset(reset_keys(seeds)))
        self.episodes = no_episodes(len(seeds), env.spec.num_envs)
        one = functools.partial(run_episodes, best_action, evaluation_env, max_broken)
        self._evaluate = jax.jit(over_seeds(one, len(seeds)))

    def evaluate(self, keys: Array) -> list[list[Episode]]:
        """The first episode of each evaluation environment, for every seed."""
        found = jax.device_get(self._evaluate(self.learner.policy, keys))
        if found.broken.max() >= self._max_broken:
            raise broken_evaluation(self.evaluation_env.spec.task, int(found.broken.max(0).argmax()), self._max_broken)
        has_success = self.evaluation_env.spec.has_success
        return [as_episodes(Played(*columns), has_success) for columns in zip(*found, strict=True)]

    def longest_fault(self) -> int:
        """The most faulty steps in a row of any environment since the last call."""
        longest, self.episodes = device_episodes.longest_fault(self.episodes)
        return longest

    def read_episodes(self) -> list[dict[str, float]]:
        """Metrics of the training episodes that ended since the last reading, for each seed."""
        rows, self.episodes = device_episodes.take_rows(self.episodes, self.env.spec.has_success)
        return rows

    def snapshots(self, with_replay: bool) -> list[Groups]:
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
