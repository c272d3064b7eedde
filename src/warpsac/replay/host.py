"""The ring in host memory: the same arrays and the same index function, written in place by NumPy.

Its batches equal those of the device ring bit for bit, for the same keys.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from warpsac.replay import ring as device_ring
from warpsac.replay.age import AgeLaw, Sampler
from warpsac.replay.ring import Ring, RingSpec, end_code, final_slots, to_storage
from warpsac.types import Array, Batch, StepResult


class HostRing:
    """A `Ring` of NumPy arrays (`state`, what a checkpoint saves) and the functions of `ring` on it."""

    def __init__(self, spec: RingSpec, state: Ring):
        self.spec = spec
        self.state = state

    @classmethod
    def init(cls, spec: RingSpec, first_obs: Array) -> HostRing:
        return cls(spec, device_ring.init(spec, np.asarray(first_obs), np))

    def add(self, action: Array, step: StepResult) -> None:
        state, spec = self.state, self.spec
        count = int(state.count)
        row, next_row = count % spec.rows, (count + 1) % spec.rows
        terminated = np.asarray(step.terminated)
        ended = terminated | np.asarray(step.truncated)
        state.obs[next_row] = to_storage(step.obs, spec, np)
        state.action[row] = action
        state.reward[row] = step.reward
        state.end[row] = 0
        if ended.any():
            slot = final_slots(state, spec, ended, np)
            state.end[row] = end_code(ended, terminated, slot, np)
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

    def indices(self, law: AgeLaw, words: np.ndarray, sampler: Sampler = "exact") -> tuple[Array, Array]:
        return device_ring.indices(self.state, self.spec, law, words, sampler, np)

    def gather(self, age: Array, env: Array, gamma: float) -> Batch:
        return device_ring.gather(self.state, self.spec, age, env, gamma, np)

    def sample(
        self, law: AgeLaw, keys: Array, batch_size: int, gamma: float, sampler: Sampler = "exact"
    ) -> Batch:
        words = np.asarray(_host_words(law, batch_size, sampler)(jax.device_put(keys, _host_device())))
        return self.gather(*self.indices(law, words, sampler), gamma)

    def _write_finals(self, ended: np.ndarray, slot: np.ndarray, obs: np.ndarray, step: int) -> None:
        state = self.state
        seed, env = ended.nonzero()
        slot = slot[seed, env]
        np.maximum.at(state.oldest, seed, state.final_row[seed, slot] + 1)
        state.finals[seed, slot] = obs[seed, env]
        state.final_row[seed, slot] = step
        state.final_count[...] += ended.sum(axis=1, dtype=np.int32)


@functools.cache
def _host_words(law: AgeLaw, batch_size: int, sampler: Sampler) -> Any:
    return jax.jit(lambda keys: device_ring.random_words(keys, law, batch_size, sampler))


@functools.cache
def _host_device() -> jax.Device:
    return jax.local_devices(backend="cpu")[0]
