"""The learner's side of the host loop: all device state, the compiled programs, and their order.

Calls return as soon as the work is dispatched; only reading an action, metrics or a snapshot waits. An interaction
sends the device one array, the step's parcel: observations to act on and counters are there already.
Replay is on the device or in host memory; both give the same batches.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.agents import normalize
from warpsac.agents.normalize import RewardScale
from warpsac.agents.sac import algorithm as interaction
from warpsac.agents.sac import learner as sac
from warpsac.agents.sac.algorithm import Keys, Setup
from warpsac.agents.sac.learner import Exploration, Policy
from warpsac.agents.seeds import mean_rows, over_seeds, stacked
from warpsac.envs.contract import HostStep
from warpsac.replay import HostRing
from warpsac.replay import ring as device_ring
from warpsac.replay.age import effective_length
from warpsac.replay.memory import Placement
from warpsac.replay.ring import Ring
from warpsac.replay.snapshot import join_seeds, take_seed
from warpsac.training.packed_arrays import Parcel, pack, unpack
from warpsac.training.seed_engine import Groups, SeedEngine
from warpsac.types import Array, Batch, Restart, StepResult

Program = Any  # a function under jax.jit


@dataclass(frozen=True)
class Programs:
    """The pure functions, compiled: each is traced at its first call; what stores a step, also at the first restart."""

    act: Program
    act_best: Program
    store: Program
    cut: Program
    observe: Program
    sample: Program
    learn: tuple[Program, ...]  # by phase: the update index modulo the policy delay
    sample_keys: Program
    reward_scale: Program

    def traces(self) -> dict[str, int]:
        """How often each program was traced."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        named |= {f"learn{phase}": program for phase, program in enumerate(named.pop("learn"))}
        return {name: program._cache_size() for name, program in named.items()}


@functools.lru_cache(maxsize=8)
def compile_programs(setup: Setup) -> Programs:
    """The programs of a setup; a second run of the same in one process finds them compiled."""
    bind = functools.partial
    return Programs(
        act=jax.jit(bind(_act, setup), donate_argnums=1),
        act_best=jax.jit(over_seeds(bind(sac.best_action, setup.agent), setup.seeds)),
        store=jax.jit(bind(_store, setup), donate_argnums=(0, 1)),
        cut=jax.jit(lambda ring, mask, obs: device_ring.cut(ring, setup.ring, mask, obs), donate_argnums=0),
        observe=jax.jit(bind(interaction.observe_rewards, setup), donate_argnums=0),
        sample=jax.jit(bind(interaction.sample, setup)),
        learn=tuple(
            jax.jit(bind(interaction.learn, setup, phase=phase), donate_argnums=(0, 3))
            for phase in range(setup.agent.config.policy_delay)
        ),
        sample_keys=jax.jit(lambda keys, update: interaction.sample_keys(keys, update)),
        reward_scale=jax.jit(jax.vmap(lambda state: normalize.scale(state, setup.agent.config.value_limit))),
    )


def _act(
    setup: Setup, policy: Policy, exploration: Exploration, obs: Array, keys: Keys, counter: Array
) -> tuple[Array, Exploration, Array]:
    """Also the counter of the next interaction, so that it need not be sent."""
    return *interaction.act(setup, policy, exploration, obs, keys, counter), counter + 1


def _store(
    setup: Setup, ring: Ring, scale: RewardScale, action: Array, step: StepResult | Parcel, restart: Restart | None
) -> tuple[Ring, RewardScale, Array | None]:
    """Also the observations of a parcel, which are what to act on next."""
    if not isinstance(step, Parcel):
        return *interaction.store(setup, ring, scale, action, step, restart), None
    result = unpack(step)
    return *interaction.store(setup, ring, scale, action, result, restart), result.obs


class Engine(SeedEngine):
    STATE = ("exploration", "scale", "sums")
    keeps_replay = True

    def __init__(self, setup: Setup, seeds: tuple[int, ...], placement: Placement, first_obs: Array):
        self.setup = setup
        self.placement = placement
        self.programs = compile_programs(setup)
        self.keys = interaction.make_keys(seeds)
        self.updates = 0
        self.stored = 0  # interactions in the ring since it was created
        self._count_at_last_learn = 0
        self.learner = stacked([sac.init_learner(setup.agent, seed) for seed in seeds])
        self.exploration = stacked([sac.init_exploration(setup.agent, setup.ring.num_envs) for _ in seeds])
        self.scale = stacked([normalize.init(setup.ring.num_envs) for _ in seeds])
        self.sums = interaction.empty_sums(len(seeds))
        # What the device has of the host's: the host's value and the device's.
        self._obs: tuple[Array, Array] = (None, None)
        self._counter: tuple[int, Array] = (-1, None)
        self.empty_replay(first_obs)

    def empty_replay(self, first_obs: Array) -> None:
        self.stored = 0
        if self.placement == "device":
            self.ring = jax.jit(functools.partial(device_ring.init, self.setup.ring))(first_obs)
        else:
            self.host_ring = HostRing.init(self.setup.ring, first_obs)

    # --- one interaction

    def act(self, obs: Array, counter: int) -> Array:
        if self._obs[0] is not obs:
            self._obs = obs, jnp.asarray(obs)
        if self._counter[0] != counter:
            self._counter = counter, jnp.asarray(counter, jnp.int32)
        action, self.exploration, following = self.programs.act(
            self.learner.policy, self.exploration, self._obs[1], self.keys, self._counter[1]
        )
        self._counter = counter + 1, following
        return action

    def store(self, action: Array, step: HostStep) -> None:
        result = step.result._replace(success=None)  # replay has no use for it
        if self.placement == "device":
            sent = pack(result) if isinstance(result.obs, np.ndarray) else result
            self.ring, self.scale, obs = self.programs.store(self.ring, self.scale, action, sent, step.restart)
            self._obs = result.obs, result.obs if obs is None else obs
        else:
            if step.restart is not None:
                self.host_ring.cut(*step.restart)
            self.host_ring.add(*jax.device_get((action, result)))
            self.scale = self.programs.observe(self.scale, result, step.restart)
        self.stored += 1

    def learn(self) -> None:
        """All updates of one interaction."""
        setup, programs, count = self.setup, self.programs, self.setup.updates_per_step
        if self.placement == "device":
            # The learner's own counter is on the device already, and says the same as `self.updates`.
            batches = programs.sample(self.ring, self.keys, self.learner.updates)
        else:
            batches = tuple(self._host_batch(self.updates + i) for i in range(count))
        learn = programs.learn[self.updates % setup.agent.config.policy_delay]
        self.learner, self.sums = learn(self.learner, batches, self.scale, self.sums, self.keys)
        self.updates += count
        self._count_at_last_learn = self.stored

    def _host_batch(self, update: int) -> Batch:
        setup = self.setup
        keys = self.programs.sample_keys(self.keys, np.int32(update))
        return self.host_ring.sample(setup.law, keys, setup.batch_size, setup.gamma, setup.sampler)

    def close_episodes(self, mask: np.ndarray, new_obs: Array) -> None:
        """Cut the running episodes [S, N]: the simulator begins anew there."""
        if self.placement == "device":
            self.ring = self.programs.cut(self.ring, mask, new_obs)
        else:
            self.host_ring.cut(mask, new_obs)
        self.scale = normalize.forget_episodes(self.scale, mask)

    # --- reading

    def read_metrics(self) -> list[dict[str, float]]:
        """Means of the learner's metrics since the last reading, and the health of replay, for each seed."""
        setup, ring = self.setup, self.replay_state
        readings = (self.sums, self.programs.reward_scale(self.scale))
        (sums, scale), stored, oldest = jax.device_get((readings, ring.count, ring.oldest))
        self.sums = interaction.empty_sums(setup.seeds)
        ages = device_ring.available_ages(ring._replace(count=stored, oldest=oldest), setup.ring, np)
        reach = effective_length(setup.law, ages)
        rows = mean_rows(sums, setup.seeds)
        for s, row in enumerate(rows):
            if "policy/entropy" in row:
                row["policy/entropy_target"] = setup.agent.entropy_target
            row["reward/scale"] = float(scale[s])
            row["replay/transitions"] = int(ages[s]) * setup.ring.num_envs
            row["replay/effective_length"] = float(reach[s])
        return rows

    @property
    def replay_state(self) -> device_ring.Ring:
        return self.ring if self.placement == "device" else self.host_ring.state

    def batch_of(self, update: int, seed: int) -> dict[str, np.ndarray]:
        """The minibatch that an update of the recent past was made on, drawn again.

        Rows that replay has overwritten since are marked False in `intact`. (Where the side table of last
        observations wrapped around since, the draw itself may differ: then read it as a like batch.)
        """
        setup, spec, per_step = self.setup, self.setup.ring, self.setup.updates_per_step
        back = (self.updates - 1) // per_step - update // per_step
        count = self._count_at_last_learn - back
        ring = jax.tree.map(np.asarray, self.replay_state)
        then = HostRing(spec, ring._replace(count=np.asarray(count, np.int32)))
        keys = self.programs.sample_keys(self.keys, np.int32(update))
        words = np.asarray(device_ring.random_words(keys, setup.law, setup.batch_size, setup.sampler))
        age, env = then.indices(setup.law, words, setup.sampler)
        batch = then.gather(age, env, setup.gamma)
        start = count - spec.n_step - age[seed]
        intact = start > int(ring.count) - spec.rows
        arrays = {name: np.asarray(value)[seed] for name, value in batch._asdict().items()}
        return arrays | {"age": age[seed], "env": env[seed], "intact": intact}

    # --- saving and restoring, one part for each seed

    def snapshots(self, with_replay: bool) -> list[Groups]:
        parts = super().snapshots(with_replay)
        if with_replay:
            ring = jax.device_get(self.replay_state)
            for s, groups in enumerate(parts):
                groups["replay"] = take_seed(ring, self.setup.ring, s)
        return parts

    def restore(self, parts: Sequence[Mapping[str, Mapping[str, np.ndarray]]], updates: int, where: str) -> None:
        """State of all seeds from their snapshots; replay only if every snapshot has it."""
        super().restore(parts, updates, where)
        if all("replay" in part for part in parts):
            ring = join_seeds(self.setup.ring, [part["replay"] for part in parts], where)
            self.stored = int(ring.count)
            self._count_at_last_learn = self.stored
            if self.placement == "device":
                self.ring = jax.tree.map(jnp.asarray, ring)
            else:
                self.host_ring = HostRing(self.setup.ring, ring)
