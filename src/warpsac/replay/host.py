"""The ring in host memory: the same arrays and the same index function, written in place by NumPy.

Its batches equal those of the device ring bit for bit, for the same keys.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpsac.replay import own as own_steps
from warpsac.replay import ring as device_ring
from warpsac.replay.age import AgeLaw, Sampler, draw
from warpsac.replay.own import Own
from warpsac.replay.ring import Ring, RingSpec, end_code, ended_with_last_observation, final_slots, to_storage
from warpsac.types import Array, Batch, StepResult


class HostRing:
    """A `Ring` of NumPy arrays (`state`, what a checkpoint saves) and the functions of `ring` on it."""

    def __init__(self, spec: RingSpec, state: Ring):
        self.spec = spec
        self.state = state

    @classmethod
    def init(cls, spec: RingSpec, first_obs: Array) -> HostRing:
        return cls(spec, device_ring.init(spec, np.asarray(first_obs), np))

    def add(self, action: Array, step: StepResult, owner: Array | None = None) -> None:
        state, spec = self.state, self.spec
        if step.faulty is not None:
            self.cut(step.faulty, step.obs)
        count = int(state.count)
        row, next_row = count % spec.rows, (count + 1) % spec.rows
        ended = np.asarray(ended_with_last_observation(step))
        state.obs[next_row] = to_storage(step.obs, spec, np)
        state.action[row] = action
        state.reward[row] = step.reward
        if state.owner is not None:
            state.owner[row] = owner
        slot = final_slots(state, spec, ended, np)
        state.end[row] = end_code(ended, step, slot, np)
        if ended.any():
            self._write_finals(ended, slot, to_storage(step.final_obs, spec, np), count)
        state.count[...] = count + 1

    def cut(self, mask: Array, new_obs: Array) -> None:
        state, spec, mask = self.state, self.spec, np.asarray(mask)
        count = int(state.count)
        pending, last_end = state.obs[count % spec.rows], state.end[(count - 1) % spec.rows]
        ended = mask & (last_end == 0) & (count > 0)
        if ended.any():
            slot = final_slots(state, spec, ended, np)
            last_end[ended] = slot[ended] + 1
            self._write_finals(ended, slot, pending, count - 1)
        pending[mask] = to_storage(new_obs, spec, np)[mask]

    def available_ages(self) -> np.ndarray:
        return device_ring.available_ages(self.state, self.spec, np)

    def indices(self, law: AgeLaw, drawn: np.ndarray, sampler: Sampler = "exact") -> tuple[Array, Array]:
        return device_ring.indices(self.state, self.spec, law, drawn, sampler, np)

    def gather(self, age: Array, env: Array, gamma: float) -> Batch:
        return device_ring.gather(self.state, self.spec, age, env, gamma, np)

    def sample(
        self,
        law: AgeLaw,
        keys: Array,
        batch_size: int,
        gamma: float,
        sampler: Sampler = "exact",
        own: Own = own_steps.NONE,
    ) -> Batch:
        if keys.devices() != {_host_device()}:
            keys = jax.device_put(keys, _host_device())
        program = _index_program(law, self.spec.num_envs, own.draws(batch_size), sampler)
        age, env = map(np.asarray, program(keys, self.available_ages()))
        if own.rows:
            age, env = own_steps.chosen(self.state, self.spec, age, env, own, np)
        return self.gather(age, env, gamma)

    def _write_finals(self, ended: np.ndarray, slot: np.ndarray, obs: np.ndarray, step: int) -> None:
        state = self.state
        seed, env = ended.nonzero()
        slot = slot[seed, env]
        np.maximum.at(state.oldest, seed, state.final_row[seed, slot] + 1)
        state.finals[seed, slot] = obs[seed, env]
        state.final_row[seed, slot] = step
        state.final_count[...] += ended.sum(axis=1, dtype=np.int32)


@functools.cache
def _index_program(law: AgeLaw, num_envs: int, batch_size: int, sampler: Sampler) -> Any:
    """Random words and indices in one small program on the CPU: a few NumPy calls cost more than all of it."""

    def indices(keys: Array, ages: Array) -> tuple[Array, Array]:
        drawn = device_ring.random_words(keys, law, batch_size, sampler)
        return draw(law, drawn, ages, num_envs, jnp, sampler)

    return jax.jit(indices)


@functools.cache
def _host_device() -> jax.Device:
    return jax.local_devices(backend="cpu")[0]
