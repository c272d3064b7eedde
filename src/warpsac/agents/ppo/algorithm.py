"""PPO as an `Algorithm`: act, remember and learn over all seeds, with one rollout as memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.agents.algorithm import (
    AgentState,
    Algorithm,
    MetricSums,
    RewardScale,
    add_metrics,
    mean_rows,
    over_seeds,
    stacked,
    stream,
    stream_roots,
    zero_sums,
)
from warpsac.agents.ppo import learner as ppo
from warpsac.agents.ppo.learner import Learner, Policy, PpoActor, Rollout
from warpsac.config.schema import Config
from warpsac.types import Array, ObsViews, Restart, StepResult


class Streams(NamedTuple):
    """The root of each random stream, [S]."""

    act: Array
    shuffle: Array


@dataclass(frozen=True)
class Ppo:
    actor: PpoActor
    num_envs: int
    seeds: int

    rate_setting = "ppo.learning_rate"
    ring = None  # a rollout is never divided by a checkpoint
    devices = 1
    mesh = None
    phases = 1

    @classmethod
    def of(cls, config: Config, views: ObsViews, action_dim: int) -> Ppo:
        return cls(PpoActor(config.ppo, views, action_dim), config.env.num_envs, len(config.seeds))

    @property
    def stride(self) -> int:
        """A rollout is never divided: rows, evaluations and checkpoints fall between two."""
        return self.actor.config.rollout_steps

    @property
    def updates_per_round(self) -> int:
        return self.actor.config.epochs * self.actor.config.minibatches

    @property
    def needs(self) -> dict[str, int]:
        """Networks with their gradient and two moments of Adam, and the rollout."""
        config, views, action_dim = self.actor.config, self.actor.views, self.actor.action_dim

        def weights(inputs: int, hidden: tuple[int, ...], outputs: int) -> int:
            sizes = (inputs, *hidden, outputs)
            return sum(a * b for a, b in itertools.pairwise(sizes))

        step = 4 * (2 * views.obs_dim + action_dim + 1)
        return {
            "ppo.actor_hidden": 4 * 4 * self.seeds * weights(views.actor_dim, config.actor_hidden, action_dim),
            "ppo.critic_hidden": 4 * 4 * self.seeds * weights(views.critic_dim, config.critic_hidden, 1),
            "ppo.rollout_steps": self.seeds * self.stride * self.num_envs * step,
        }

    # --- the first state

    def streams(self, seeds: Sequence[int]) -> Streams:
        return Streams(*stream_roots(seeds, 2))

    def init(self, seeds: Sequence[int], memory: Rollout) -> AgentState[Learner, tuple[()], Rollout, RewardScale]:
        networks = [ppo.init_networks(self.actor, seed) for seed in seeds]
        return _first_state(self, networks)._replace(memory=memory)

    def first_state(self, networks: Sequence[ppo.Networks]) -> AgentState[Learner, tuple[()], Any, RewardScale]:
        """All but the memory."""
        learner = stacked([ppo.new_learner(self.actor, one) for one in networks])
        scale = stacked([RewardScale.initial(self.num_envs) for _ in networks])
        return AgentState(learner, (), (), scale, self.empty_sums())

    def init_memory(self, first_obs: Array) -> Rollout:
        """Arrays [T, S, N, ...] for the steps of one rollout."""
        lead = (self.stride, self.seeds, self.num_envs)
        floats, flags = jnp.zeros(lead, jnp.float32), jnp.zeros(lead, bool)
        return Rollout(
            obs=jnp.zeros((*lead, self.actor.views.obs_dim), jnp.float32),
            action=jnp.zeros((*lead, self.actor.action_dim), jnp.float32),
            reward=floats,
            terminated=flags,
            truncated=jnp.copy(flags),
            void=jnp.copy(flags),
            final_obs=jnp.zeros((*lead, self.actor.views.obs_dim), jnp.float32),
            last_obs=None,
        )

    def empty_sums(self) -> MetricSums:
        return zero_sums(ppo.METRICS, self.seeds)

    # --- one interaction

    def act(
        self,
        policy: Policy,
        exploration: tuple[()],
        scale: RewardScale,
        obs: Array,
        keys: Streams,
        interaction: Array,
    ) -> tuple[Array, tuple[()]]:
        """Actions [S, N, A] as drawn."""
        draw = over_seeds(lambda *arguments: ppo.draw_action(self.actor, *arguments), self.seeds)
        return draw(policy, obs, stream(keys.act, interaction)), ()

    def to_simulator(self, action: Array) -> Array:
        return ppo.to_simulator(self.actor, action)

    def remember(
        self,
        memory: Rollout,
        scale: RewardScale,
        obs: Array,
        action: Array,
        step: StepResult,
        restart: Restart | None,
        interaction: Array,
    ) -> tuple[Rollout, RewardScale]:
        """Rewards are observed when the rollout is complete, in `learn`."""
        void = step.terminated & False if step.faulty is None else step.faulty
        if restart is not None:
            # The action was drawn for the observation before the restart, and applied to another one.
            void = void | restart.mask
        taken = Rollout(obs, action, step.reward, step.terminated, step.truncated, void, step.final_obs, None)
        row = interaction % self.stride
        return jax.tree.map(
            lambda all_, one: jax.lax.dynamic_update_index_in_dim(all_, one, row, 0), memory, taken
        ), scale

    def cut(self, memory: Rollout, scale: RewardScale, mask: Array, obs: Array) -> tuple[Rollout, RewardScale]:
        """Between two rollouts, so none of them holds a step across it: only running returns start again."""
        return memory, self.restarted(scale, mask)

    def restarted(self, scale: RewardScale, mask: Array) -> RewardScale:
        return scale.restart(mask)

    # --- learning

    def sample(self, memory: Rollout, obs: Array, keys: Streams, updates: Array) -> Rollout:
        """The whole rollout, [S, T, N, ...]."""
        return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), memory)._replace(last_obs=obs)

    def learn(
        self, learner: Learner, scale: RewardScale, sums: MetricSums, batches: Rollout, keys: Streams, phase: int
    ) -> tuple[Learner, RewardScale, MetricSums]:
        """All updates on one rollout."""

        def one(learner: Learner, scale: RewardScale, rollout: Rollout, key: Array) -> Any:
            key = jax.random.fold_in(key, learner.updates)
            return ppo.update(self.actor, learner, scale, rollout, key)

        learner, scale, metrics = over_seeds(one, self.seeds)(learner, scale, batches, keys.shuffle)
        return learner, scale, add_metrics(sums, metrics)

    # --- reading

    def policies(self, learner: Learner, scale: RewardScale) -> dict[str, Policy]:
        return {"policy": learner.policy}

    def choices(self, scale: RewardScale) -> list[str | None]:
        return [None] * self.seeds

    def metrics(self, memory: Rollout, scale: RewardScale, sums: MetricSums) -> list[dict[str, float]]:
        factors = jax.vmap(lambda state: state.factor(ppo.RETURN_LIMIT))(scale)
        sums, factors = jax.device_get((sums, factors))
        rows = mean_rows(sums, self.seeds)
        for row, factor in zip(rows, factors, strict=True):
            row["reward/scale"] = float(factor) if self.actor.config.normalize_rewards else 1.0
        return rows

    def batch_of(
        self, memory: Rollout, keys: Streams, update: int, seed: int, updates: int, stored: int
    ) -> dict[str, np.ndarray] | None:
        return None


@functools.partial(jax.jit, static_argnums=0)
def _first_state(algorithm: Ppo, networks: Sequence[ppo.Networks]) -> AgentState[Learner, tuple[()], Any, RewardScale]:
    """One program: single calls would each be compiled, before the first step."""
    return algorithm.first_state(networks)


if TYPE_CHECKING:  # the contract holds, type by type
    _: type[Algorithm[Learner, Policy, tuple[()], Rollout, Rollout, Streams, RewardScale]] = Ppo
