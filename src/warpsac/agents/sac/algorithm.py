"""One interaction of all seeds as pure functions: act, store, learn. Host and fused loops use the same.

Arrays lead with the seed axis [S, ...]; random numbers come from counters (see `seeds`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from warpsac.agents import normalize
from warpsac.agents.normalize import RewardScale
from warpsac.agents.sac import learner as sac
from warpsac.agents.sac.learner import Agent, Exploration, Learner, Policy
from warpsac.agents.seeds import MetricSums, add_metrics, over_seeds, stream, stream_roots, zero_sums
from warpsac.config.schema import Config
from warpsac.replay import ring as replay
from warpsac.replay.age import AgeLaw
from warpsac.replay.ring import Ring, RingSpec
from warpsac.types import Array, Batch, Restart, StepResult

if TYPE_CHECKING:
    from warpsac.envs.contract import EnvSpec


@dataclass(frozen=True)
class Setup:
    """All that stays fixed during a run; static under `jax.jit`."""

    agent: Agent
    ring: RingSpec
    law: AgeLaw
    sampler: Literal["exact", "buckets"]
    batch_size: int
    updates_per_step: int
    warmup: int  # interactions with random actions

    @property
    def seeds(self) -> int:
        return self.ring.num_seeds

    @property
    def gamma(self) -> float:
        return self.agent.config.gamma


def make_setup(config: Config, env: EnvSpec) -> Setup:
    return Setup(
        agent=Agent(config.learner, env.views, env.action_dim, config.horizon_updates, config.replay.n_step),
        ring=RingSpec(
            capacity=config.replay.capacity,
            num_envs=config.env.num_envs,
            num_seeds=len(config.seeds),
            obs_dim=env.views.obs_dim,
            action_dim=env.action_dim,
            n_step=config.replay.n_step,
            final_slots=config.replay.final_slots,
            storage=config.replay.storage,
            voids=env.lockstep,
        ),
        law=AgeLaw.of(config.replay.decay_steps, config.replay.weight_floor),
        sampler=config.replay.sampler,
        batch_size=config.replay.batch_size,
        updates_per_step=config.updates_per_step,
        warmup=config.warmup_interactions,
    )


class Keys(NamedTuple):
    """The root of each random stream, [S]."""

    act: Array
    sample: Array
    noise: Array


def make_keys(seeds: tuple[int, ...]) -> Keys:
    return Keys(*stream_roots(seeds, 3))


# --- acting


def act(
    setup: Setup, policy: Policy, exploration: Exploration, obs: Array, keys: Keys, interaction: Array
) -> tuple[Array, Exploration]:
    """Exploring actions [S, N, A] of the current policy; uniform ones during the warm-up.

    Which of them is decided on the device: one program serves the warm-up and the interaction that ends it, which is
    the first to be followed by updates.
    """

    def one(policy: Policy, exploration: Exploration, obs: Array, key: Array) -> tuple[Array, Exploration]:
        random = sac.random_action(setup.agent, setup.ring.num_envs, key), exploration
        explored = sac.explore(setup.agent, policy, exploration, obs, key)
        return jax.tree.map(lambda r, e: jnp.where(interaction < setup.warmup, r, e), random, explored)

    return over_seeds(one, setup.seeds)(policy, exploration, obs, stream(keys.act, interaction))


# --- storing


def observe_rewards(setup: Setup, scale: RewardScale, step: StepResult, restart: Restart | None) -> RewardScale:
    if restart is not None:
        scale = over_seeds(normalize.forget_episodes, setup.seeds)(scale, restart.mask)
    observe = over_seeds(lambda s, r, e: normalize.observe(s, r, e, setup.gamma), setup.seeds)
    ended = step.terminated | step.truncated
    return observe(scale, step.reward, ended if step.faulty is None else ended | step.faulty)


def store(
    setup: Setup, ring: Ring, scale: RewardScale, action: Array, step: StepResult, restart: Restart | None
) -> tuple[Ring, RewardScale]:
    if restart is not None:
        ring = replay.cut(ring, setup.ring, restart.mask, restart.obs)
    return replay.add(ring, setup.ring, action, step), observe_rewards(setup, scale, step, restart)


# --- learning


METRIC_NAMES = (
    "loss/actor",
    "loss/critic",
    "optimizer/learning_rate",
    "policy/alpha",
    "policy/entropy",
    "policy/saturation",
    "value/edge_high",
    "value/edge_low",
    "value/mean",
)


def empty_sums(seeds: int) -> MetricSums:
    return zero_sums(METRIC_NAMES, seeds)


def sample_keys(keys: Keys, updates: Array) -> Array:
    """The keys [S] that draw the minibatch of an update."""
    return stream(keys.sample, updates)


def sample(setup: Setup, ring: Ring, keys: Keys, update: Array) -> tuple[Batch, ...]:
    """The minibatches of one interaction, whose first update has the index `update`."""
    spec, law, size, gamma = setup.ring, setup.law, setup.batch_size, setup.gamma
    drawn = (sample_keys(keys, update + i) for i in range(setup.updates_per_step))
    return tuple(replay.sample(ring, spec, law, one, size, gamma, setup.sampler) for one in drawn)


def update(
    setup: Setup,
    learner: Learner,
    batch: Batch,
    scale: RewardScale,
    sums: MetricSums,
    keys: Keys,
    actor_turn: bool,
) -> tuple[Learner, MetricSums]:
    """One update of every seed on its minibatch."""

    def one(learner: Learner, batch: Batch, scale: RewardScale, key: Array) -> Any:
        reward_scale = normalize.scale(scale, setup.agent.config.value_limit)
        key = jax.random.fold_in(key, learner.updates)
        return sac.update(setup.agent, learner, batch, reward_scale, key, actor_turn)

    learner, metrics = over_seeds(one, setup.seeds)(learner, batch, scale, keys.noise)
    return learner, add_metrics(sums, metrics)


def actor_turns(setup: Setup, phase: int) -> list[bool]:
    """Which updates of an interaction are an actor's turn; `phase` is the update index modulo the delay."""
    delay = setup.agent.config.policy_delay
    return [(phase + i) % delay == 0 for i in range(setup.updates_per_step)]


def learn(
    setup: Setup,
    learner: Learner,
    batches: tuple[Batch, ...],
    scale: RewardScale,
    sums: MetricSums,
    keys: Keys,
    phase: int,
) -> tuple[Learner, MetricSums]:
    """All updates of one interaction, unrolled: the policy delay is part of the program.

    Sampling is not: in the host loop batches from host memory go through the very same program, so that
    where replay lives changes no bit of the result.
    """
    for batch, turn in zip(batches, actor_turns(setup, phase), strict=True):
        learner, sums = update(setup, learner, batch, scale, sums, keys, turn)
    return learner, sums
