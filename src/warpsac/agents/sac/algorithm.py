"""SAC as an `Algorithm`: act, remember, sample and learn over all seeds, with a replay ring as memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from warpsac.agents.algorithm import (
    AgentState,
    Algorithm,
    MetricSums,
    RewardScale,
    add_metrics,
    everywhere,
    mean_rows,
    over_devices,
    over_seeds,
    own_keys,
    stacked,
    stream,
    stream_roots,
    zero_sums,
)
from warpsac.agents.sac import calibration, norm_cap
from warpsac.agents.sac import learner as sac
from warpsac.agents.sac.learner import Exploration, Learner, Policy, SacActor
from warpsac.config.schema import CALIBRATED, Config, LearnerConfig
from warpsac.replay import own as own_steps
from warpsac.replay import ring as replay
from warpsac.replay import sharded, windows
from warpsac.replay.age import AgeLaw, Sampler, effective_length
from warpsac.replay.host import HostRing
from warpsac.replay.own import Own
from warpsac.replay.ring import Ring, RingSpec
from warpsac.replay.windows import Windows
from warpsac.types import Array, Batch, ObsViews, Restart, StepResult, Symmetry

METRICS = (
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


SAME = PartitionSpec()  # on all devices
ENVS = sharded.along(1)  # [S, N, ...] and [S, B, ...]: environments and minibatches are divided over devices
UNROLLED = 8  # updates of the longest round that is not a loop

Batches = tuple[Batch, ...] | Batch
"""The minibatches of a round: one after the other, or, for a loop, as one with a leading axis of updates."""


class Streams(NamedTuple):
    """The root of each random stream, [S]."""

    act: Array
    sample: Array
    noise: Array


@dataclass(frozen=True)
class Sac:
    actor: SacActor
    ring: RingSpec
    decay_steps: int
    weight_floor: float
    sampler: Sampler
    batch_size: int
    updates_per_round: int
    warmup: int
    """Interactions with random actions."""
    symmetry: Symmetry | None = None
    """How left and right are swapped in half of every minibatch."""
    mesh: Mesh | None = None
    """The devices over which environments and replay are divided, if there are several."""

    rate_setting = "learner.learning_rate"
    stride = 1
    rows = ENVS  # how a minibatch is divided

    @classmethod
    def of(
        cls,
        config: Config,
        views: ObsViews,
        action_dim: int,
        faulty_steps: bool,
        symmetry: Symmetry | None = None,
        mesh: Mesh | None = None,
    ) -> Sac:
        """`faulty_steps`: the simulator may mark steps that must never be learned from."""
        replay = config.replay
        learner, own = cls.own_settings(config)
        return cls(
            actor=SacActor(
                learner, views, action_dim, config.horizon_updates, replay.n_step, sharded.AXIS if mesh else None
            ),
            ring=RingSpec(
                capacity=replay.capacity,
                num_envs=config.env.num_envs,
                num_seeds=len(config.seeds),
                obs_dim=views.obs_dim,
                action_dim=action_dim,
                n_step=replay.n_step,
                final_slots=replay.final_slots,
                storage=replay.storage,
                voids=faulty_steps,
                following=config.learner.action_rate_weight > 0 and replay.n_step > 1,  # else it is next_obs
                owners=bool(own.get("own_share")) or ("arms" in own and learner.pessimism == CALIBRATED),
            ),
            decay_steps=replay.decay_steps,
            weight_floor=replay.weight_floor,
            sampler=replay.sampler,
            batch_size=replay.batch_size,
            updates_per_round=config.updates_per_step,
            warmup=config.random_interactions,
            symmetry=symmetry,
            mesh=mesh,
            **own,
        )

    @classmethod
    def own_settings(cls, config: Config) -> tuple[LearnerConfig, dict[str, Any]]:
        """Settings of the learner, and those that only a kind of SAC with several of them has."""
        return config.learner, {}

    @property
    def seeds(self) -> int:
        return self.ring.num_seeds

    def of_seeds(self, count: int) -> Sac:
        """The same for fewer seeds: those of one device, where seeds are divided over several."""
        return replace(self, ring=replace(self.ring, num_seeds=count))

    @property
    def phases(self) -> int:
        """The policy delay is part of the program, never a conditional on the device."""
        return self.actor.config.policy_delay

    @property
    def devices(self) -> int:
        return 1 if self.mesh is None else self.mesh.size

    @functools.cached_property
    def part(self) -> RingSpec:
        """The sizes of one device's part of the ring."""
        return self.ring.part(self.devices)

    @functools.cached_property
    def law(self) -> AgeLaw:
        return AgeLaw.of(self.decay_steps, self.weight_floor)

    @property
    def gamma(self) -> float:
        return self.actor.config.gamma

    @property
    def needs(self) -> dict[str, int]:
        """An actor is there four times, with its gradient and two moments of Adam; a critic has its target too."""
        config, views, action_dim = self.actor.config, self.actor.views, self.actor.action_dim
        members, critic_inner = config.critics, config.critic_width * config.expansion
        actor = config.actor_width * (
            views.actor_dim + 2 * config.actor_blocks * config.actor_width * config.expansion + 2 * action_dim
        )
        trunk = config.critic_width * (views.critic_dim + action_dim + 2 * config.critic_blocks * critic_inner)
        # What the gradient is computed from, of both halves of the minibatch.
        activations = 2 * members * config.critic_blocks * (critic_inner + config.critic_width)
        activations *= jnp.dtype(self.actor.number.dtype).itemsize
        of_actor = "actor_width" if config.actor_width >= config.expansion else "expansion"
        of_critic = "critic_width" if config.critic_width >= config.expansion else "expansion"
        parts = [
            (f"learner.{of_actor}", 4 * 4 * actor),
            (f"learner.{of_critic}", 5 * 4 * members * trunk),
            ("learner.atoms", 4 * members * config.atoms * (5 * config.critic_width + self.batch_size)),
            ("replay.batch_size", self.batch_size * activations),
            ("updates_per_step", self.updates_per_round * self.batch_size * self.ring.transition_bytes),
        ]
        return {name: self.seeds * max(size for other, size in parts if other == name) for name, _ in parts}

    # --- the first state

    def streams(self, seeds: Sequence[int]) -> Streams:
        return Streams(*stream_roots(seeds, 3))

    def init(self, seeds: Sequence[int], memory: Ring) -> AgentState[Any, Exploration, Ring, Any]:
        networks = [sac.init_networks(self.actor, seed) for seed in seeds]
        return first_state(self, networks)._replace(memory=memory)

    def first_state(self, networks: Sequence[sac.Networks]) -> AgentState[Any, Exploration, Any, Any]:
        """All but the memory."""
        return AgentState(
            learner=stacked([sac.new_learner(self.actor, one) for one in networks]),
            exploration=stacked([sac.init_exploration(self.actor, self.ring.num_envs) for _ in networks]),
            memory=(),
            scale=stacked([RewardScale.initial(self.ring.num_envs) for _ in networks]),
            sums=self.empty_sums(),
        )

    def init_memory(self, first_obs: Array) -> Ring:
        init = over_devices(lambda obs: replay.init(self.part, obs), self.mesh, ENVS, sharded.RING)
        return init(first_obs)

    def empty_sums(self) -> MetricSums:
        config, names = self.actor.config, [*METRICS]
        if config.action_rate_weight > 0:
            names.append(sac.ACTION_RATE)
        if config.pessimism == CALIBRATED:
            names += calibration.METRICS
        if config.norm_cap > 1:
            names += norm_cap.METRICS
        return zero_sums(names, self.seeds)

    # --- one interaction

    def act(
        self, policy: Policy, exploration: Exploration, scale: Any, obs: Array, keys: Streams, interaction: Array
    ) -> tuple[Array, Exploration]:
        """Exploring actions [S, N, A] of the current policy; uniform ones during the warm-up.

        The device decides which: one program serves the warm-up and the interaction that ends it, which is the first
        to be followed by updates.
        """

        def one(
            policy: Policy, exploration: Exploration, scale: Any, obs: Array, key: Array
        ) -> tuple[Array, Exploration]:
            random = sac.random_action(self.actor, self.ring.num_envs, key), exploration
            explored = self.explore(policy, exploration, scale, obs, key)
            return jax.tree.map(lambda r, e: jnp.where(interaction < self.warmup, r, e), random, explored)

        return over_seeds(one, self.seeds)(policy, exploration, scale, obs, stream(keys.act, interaction))

    def explore(
        self, policy: Policy, exploration: Exploration, scale: Any, obs: Array, key: Array
    ) -> tuple[Array, Exploration]:
        """The actions of one seed after the warm-up."""
        return sac.explore(self.actor, policy, exploration, obs, key)

    def to_simulator(self, action: Array) -> Array:
        return action

    def remember(
        self,
        memory: Ring,
        scale: Any,
        obs: Array,
        action: Array,
        step: StepResult,
        restart: Restart | None,
        interaction: Array,
    ) -> tuple[Ring, Any]:
        """The ring holds `obs` already, and counts the interactions itself."""
        if restart is not None:
            memory = self._cut(memory, restart.mask, restart.obs)
        add = lambda ring, *taken: replay.add(ring, self.part, *taken)
        taken = action, step, self.acting(scale)
        memory = over_devices(add, self.mesh, (sharded.RING, ENVS, ENVS, ENVS), sharded.RING)(memory, *taken)
        return memory, self.observe_rewards(scale, step, restart)

    def acting(self, scale: Any) -> Array | None:
        """The learner that acts in each environment, [S, N], where replay keeps that."""
        return None

    def observe_rewards(self, scale: Any, step: StepResult, restart: Restart | None) -> Any:
        if restart is not None:
            scale = self.restarted(scale, restart.mask)
        observe = over_seeds(lambda s, r, e: s.observe(r, e, self.gamma), self.seeds)
        ended = step.terminated | step.truncated
        return observe(scale, step.reward, ended if step.faulty is None else ended | step.faulty)

    def cut(self, memory: Ring, scale: Any, mask: Array, obs: Array) -> tuple[Ring, Any]:
        return self._cut(memory, mask, obs), self.restarted(scale, mask)

    def _cut(self, memory: Ring, mask: Array, obs: Array) -> Ring:
        cut = lambda ring, *now: replay.cut(ring, self.part, *now)
        return over_devices(cut, self.mesh, (sharded.RING, ENVS, ENVS), sharded.RING)(memory, mask, obs)

    def restarted(self, scale: Any, mask: Array) -> Any:
        return over_seeds(RewardScale.restart, self.seeds)(scale, mask)

    # --- learning

    def sample_keys(self, keys: Streams, update: Array) -> Array:
        """The keys [S] that draw the minibatch of an update."""
        return stream(keys.sample, update)

    @property
    def loops(self) -> bool:
        """Whether a round is a loop inside the program: unrolled, a long one takes minutes to compile."""
        return self.updates_per_round > UNROLLED

    def sample(self, memory: Ring, obs: Array, keys: Streams, updates: Array) -> Batches:
        """The minibatches of one round, whose first update has the index `updates`."""

        def draw(i: Array | int) -> Batch:
            return self.draw(memory, self.sample_keys(keys, updates + i))

        if self.loops:
            return jax.lax.map(draw, jnp.arange(self.updates_per_round))
        return tuple(draw(i) for i in range(self.updates_per_round))

    def draw(self, memory: Ring, keys: Array) -> Batch:
        """The minibatches of one update, from its `sample_keys`."""

        def part(ring: Ring, keys: Array) -> Batch:
            keys, size = own_keys(keys, self.mesh), self.batch_size // self.devices
            batch = replay.sample(ring, self.part, self.law, keys, size, self.gamma, self.sampler)
            return batch._replace(windows=self.windows(ring))

        return over_devices(part, self.mesh, (sharded.RING, SAME), ENVS)(memory, keys)

    def draw_on_host(self, memory: HostRing, keys: Array) -> Batch:
        batch = memory.sample(self.law, keys, self.batch_size, self.gamma, self.sampler)
        return batch._replace(windows=self.windows(memory.state, np))

    def windows(self, ring: Ring, xp: Any = jnp) -> Windows | None:
        """What came of the critics' predictions, where pessimism follows it."""
        if self.actor.config.pessimism != CALIBRATED:
            return None
        return windows.newest(ring, self.part, *self.looked_at, self.warmup, xp)

    @property
    def looked_at(self) -> tuple[int, int]:
        """The length of windows, and in how many environments of a device at most."""
        return calibration.window_length(self.gamma, self.ring.rows), max(1, calibration.MOST // self.devices)

    def sample_on_host(self, memory: HostRing, keys: Sequence[Array]) -> Batches:
        """The same from a ring in host memory; `keys` are the `sample_keys` of each update."""
        batches = [self.draw_on_host(memory, one) for one in keys]
        return jax.tree.map(lambda *arrays: np.stack(arrays), *batches) if self.loops else tuple(batches)

    def actor_turns(self, phase: int) -> list[bool]:
        """Which updates of a round update the actor too; `phase` is the update index modulo the delay."""
        return [(phase + i) % self.phases == 0 for i in range(self.updates_per_round)]

    def update(
        self, learner: Any, batch: Batch, scale: Any, sums: MetricSums, keys: Streams, actor_turn: bool
    ) -> tuple[Any, MetricSums]:
        """One update of every seed on its minibatch."""
        factor = over_seeds(lambda one: one.factor(self.actor.config.value_limit), self.seeds)(scale)
        one = over_seeds(functools.partial(self.update_one, actor_turn=actor_turn), self.seeds)
        on_all = over_devices(one, self.mesh, (SAME, self.rows, SAME, SAME), SAME)
        learner, metrics = on_all(learner, batch, factor, keys.noise)
        return learner, add_metrics(sums, metrics)

    def update_one(
        self, learner: Any, batch: Batch, reward_scale: Array, key: Array, actor_turn: bool
    ) -> tuple[Any, dict[str, Array]]:
        """One update of one seed."""
        key = jax.random.fold_in(key, learner.updates)
        if self.symmetry is not None:
            batch = sac.mirror_half(self.actor, batch, self.symmetry)
        return sac.update(self.actor, learner, batch, reward_scale, key, actor_turn)

    def learn(
        self,
        learner: Any,
        scale: Any,
        sums: MetricSums,
        batches: Batches,
        keys: Streams,
        phase: int,
    ) -> tuple[Any, Any, MetricSums]:
        """The updates of one round: unrolled, or in a loop over whole periods of the policy delay.

        Sampling is a program of its own on stepped simulators: batches from host memory then go through the same update
        program, so that where replay lives changes no bit of the result.
        """
        turns = self.actor_turns(phase)

        def one_by_one(state: tuple[Any, MetricSums], batches: Iterable[Batch]) -> tuple[Any, MetricSums]:
            for batch, turn in zip(batches, turns, strict=False):  # of a whole round, or of one period or less
                state = self.update(state[0], batch, scale, state[1], keys, turn)
            return state

        state = learner, sums
        if isinstance(batches, Batch):
            periods, batches = in_periods(batches, self.phases)
            state, _ = jax.lax.scan(lambda state, period: (one_by_one(state, period), None), state, periods)
        learner, sums = one_by_one(state, batches)
        return learner, scale, sums

    # --- reading

    def policies(self, learner: Any, scale: Any) -> dict[str, Policy]:
        return {"policy": learner.policy}

    def choices(self, scale: Any) -> list[str | None]:
        return [None] * self.seeds

    def metrics(self, memory: Ring, scale: Any, sums: MetricSums) -> list[dict[str, float]]:
        factors = _reward_scales(scale, self.actor.config.value_limit)
        oldest = everywhere(memory.oldest, self.mesh)
        sums, factors, count, oldest = jax.device_get((sums, factors, memory.count, oldest))
        ages = replay.available_ages(memory._replace(count=count, oldest=oldest), self.part, np)
        ages = ages.reshape(self.devices, self.seeds).min(0)
        reach = effective_length(self.law, ages)
        rows = mean_rows(sums, self.seeds)
        for s, row in enumerate(rows):
            if "policy/entropy" in row:
                row["policy/entropy_target"] = self.actor.entropy_target
            row["reward/scale"] = float(factors[s])
            row["replay/transitions"] = int(ages[s]) * self.ring.num_envs
            row["replay/effective_length"] = float(reach[s])
        return rows

    def batch_of(
        self, memory: Ring, keys: Streams, update: int, seed: int, updates: int, stored: int
    ) -> dict[str, np.ndarray]:
        drawn = self.sample_keys(keys, np.int32(update))
        return self.drawn_again(memory, self.law, drawn, update, seed, updates, stored)

    def drawn_again(
        self,
        memory: Ring,
        law: AgeLaw,
        keys: Array,
        update: int,
        seed: int,
        updates: int,
        stored: int,
        own: Own = own_steps.NONE,
    ) -> dict[str, np.ndarray]:
        """The minibatch of an update, as replay holds it: without left and right swapped in half. Empty if it was drawn
        on several devices.

        Rows that replay has overwritten since are marked False in `intact`. (Where the side table of last observations
        wrapped around since, the draw itself may differ: then it is a similar batch.)
        """
        if self.mesh is not None:
            return {}
        spec, per_round = self.ring, self.updates_per_round
        count = stored - ((updates - 1) // per_round - update // per_round)
        ring = jax.tree.map(np.asarray, memory)
        then = HostRing(spec, ring._replace(count=np.asarray(count, np.int32)))
        words = np.asarray(replay.random_words(keys, law, own.draws(self.batch_size), self.sampler))
        age, env = own_steps.indices(then.state, spec, law, words, self.sampler, own, np)
        batch = then.gather(age, env, self.gamma)
        intact = count - spec.n_step - age[seed] > int(ring.count) - spec.rows
        arrays = {name: np.asarray(value)[seed] for name, value in batch._asdict().items() if value is not None}
        return arrays | {"age": age[seed], "env": env[seed], "intact": intact}


def in_periods(batches: Batch, length: int) -> tuple[tuple[Batch, ...], tuple[Batch, ...]]:
    """Minibatches [updates, ...] as those of whole periods, `length` times [periods, ...], and those that are left."""
    updates = len(batches.obs)
    whole = updates // length * length

    def part(of: slice | int) -> Batch:
        return jax.tree.map(lambda array: array[of], batches)

    return tuple(part(slice(i, whole, length)) for i in range(length)), tuple(map(part, range(whole, updates)))


@functools.partial(jax.jit, static_argnums=0)
def first_state(algorithm: Sac, networks: Sequence[sac.Networks]) -> AgentState[Any, Exploration, Any, Any]:
    """One program: as single calls these few zeros would be some forty, each compiled before the first step."""
    return algorithm.first_state(networks)


@functools.partial(jax.jit, static_argnums=1)
def _reward_scales(scale: RewardScale, limit: float) -> Array:
    return jax.vmap(lambda state: state.factor(limit))(scale)


if TYPE_CHECKING:  # the contract holds, type by type
    _: type[Algorithm[Learner, Policy, Exploration, Ring, Batches, Streams, RewardScale]] = Sac
