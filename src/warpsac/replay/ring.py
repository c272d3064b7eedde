"""The compact replay ring: every observation stored once, n-step transitions built when sampled.

Row t of the ring belongs to interaction step t (modulo the number of rows). It holds the observation of
every environment before the step, the action, the reward, and whether the episode ended there:

    step        t-2     t-1      t          t counts the steps added so far
    obs         o_0     o_1      o'_0       row t already holds the observation to act on
    action      a_0     a_1      .
    reward      r_0     r_1      .
    end          0       e       .          here step t-1 was the last of its episode

`add` writes action, reward and end at row t and the next observation at row t + 1. Where an episode ends,
row t + 1 holds the first observation of the next one, so the true last observation goes to a side table
of F slots, itself a ring. `end` is 0 while the episode continues, and otherwise the slot + 1: positive if
the episode was truncated, negative if it terminated. If the table wraps around, the rows that still need
an overwritten slot leave replay, and all older ones with them: memory is bounded, and the age law
stays exact over the ages 0..available_ages-1 that remain.

Age 0 is the newest step whose n-step window is complete: t - n. With K = capacity // N ages, K + n rows
hold every window.

All functions are pure, and the same for NumPy arrays and JAX arrays except where XLA needs its own way
to write in place (`add`, `cut`, here) and NumPy its own (`host.HostRing`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from warpsac.errors import UserError
from warpsac.replay import age as age_law
from warpsac.replay import words
from warpsac.replay.age import AgeLaw, Sampler
from warpsac.types import Array, Batch, StepResult

FLOAT16_MAX = 65504.0
VOID = np.int32(-(2**31))  # `end` of a step that is never learned from


@dataclass(frozen=True)
class RingSpec:
    """Sizes of a ring; static."""

    capacity: int  # transitions of one seed
    num_envs: int
    obs_dim: int
    action_dim: int
    num_seeds: int = 1
    n_step: int = 1
    final_slots: int = 0  # slots of the side table for each seed; 0: automatic
    storage: Literal["float32", "float16"] = "float32"
    voids: bool = False  # steps may be marked faulty: void, and never sampled
    following: bool = False  # a batch also has the observations one step later
    owners: bool = False  # each step also says which of several learners acted

    def __post_init__(self) -> None:
        if self.ages < 1:
            raise UserError(f"replay.capacity = {self.capacity}: must hold env.num_envs = {self.num_envs}")
        if self.final_slots and self.final_slots < self.num_envs:
            raise UserError(f"replay.final_slots = {self.final_slots}: must be at least env.num_envs = {self.num_envs}")
        if (self.rows + self.n_step) * self.num_seeds * self.num_envs >= 2**31:
            raise UserError(
                f"replay.capacity = {self.capacity}: over all {self.num_seeds} seeds it must stay below 2147483648"
            )

    @property
    def ages(self) -> int:
        """K: interaction steps that replay holds."""
        return self.capacity // self.num_envs

    @property
    def rows(self) -> int:
        return self.ages + self.n_step

    @property
    def finals(self) -> int:
        """F: slots of the side table, for each seed."""
        return self.final_slots or max(2 * self.num_envs, self.capacity // 20)

    def part(self, devices: int) -> RingSpec:
        """The sizes of each device's part, where environments are divided over several."""
        if devices == 1:
            return self
        envs = self.num_envs // devices
        return replace(self, num_envs=envs, capacity=self.ages * envs, final_slots=max(self.finals // devices, envs))

    @property
    def transition_bytes(self) -> int:
        """Bytes of one stored transition, without its share of the side table."""
        return self.obs_dim * np.dtype(self.storage).itemsize + 4 * (self.action_dim + 2) + self.owners

    @property
    def nbytes(self) -> int:
        """Bytes of the whole ring, all seeds."""
        arrays = (array for array in self.arrays if array is not None)
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in arrays)

    def seed_bytes(self, count: int) -> int:
        """Bytes of one seed's part of a checkpoint after `count` steps, with a full side table."""
        rows = min(count + 1, self.rows)
        return rows * self.num_envs * self.transition_bytes + self.nbytes // self.num_seeds * self.finals // (
            self.finals + self.rows * self.num_envs
        )

    @property
    def arrays(self) -> Ring:
        """Shape and dtype of every field; None for one that this ring does not have."""
        rows, seeds, envs, finals = self.rows, self.num_seeds, self.num_envs, self.finals
        return Ring(
            obs=((rows, seeds, envs, self.obs_dim), self.storage),
            action=((rows, seeds, envs, self.action_dim), "float32"),
            reward=((rows, seeds, envs), "float32"),
            end=((rows, seeds, envs), "int32"),
            finals=((seeds, finals, self.obs_dim), self.storage),
            final_row=((seeds, finals), "int32"),
            final_count=((seeds,), "int32"),
            oldest=((seeds,), "int32"),
            count=((), "int32"),
            owner=((rows, seeds, envs), "int8") if self.owners else None,
        )


class Ring(NamedTuple):
    """The ring's arrays: S seeds (which step together), N environments each, R rows, F side slots."""

    obs: Array  # storage dtype [R, S, N, D]
    action: Array  # float32 [R, S, N, A]
    reward: Array  # float32 [R, S, N]
    end: Array  # int32 [R, S, N]: 0, or +(slot + 1) truncated, or -(slot + 1) terminated
    finals: Array  # storage dtype [S, F, D]: last observations of ended episodes
    final_row: Array  # int32 [S, F]: the step that filled the slot, -1 if none
    final_count: Array  # int32 [S]: slots filled so far
    oldest: Array  # int32 [S]: steps before this one have left replay
    count: Array  # int32 []: steps added
    owner: Array | None = None  # int8 [R, S, N]: which of several learners acted

    @classmethod
    def of(cls, arrays: Ring, make: Any) -> Ring:
        """`make(shape, dtype)` for each of the fields that there are."""
        return cls(*(None if array is None else make(*array) for array in arrays))


def init(spec: RingSpec, first_obs: Array, xp: Any = jnp) -> Ring:
    """An empty ring that waits for the step taken from `first_obs` [S, N, D]."""
    ring = Ring.of(spec.arrays, xp.zeros)
    first = to_storage(first_obs, spec, xp)
    final_row = xp.full_like(ring.final_row, -1)
    if xp is np:
        ring.obs[0] = first
        return ring._replace(final_row=final_row)
    return ring._replace(obs=ring.obs.at[0].set(first), final_row=final_row)


def add(ring: Ring, spec: RingSpec, action: Array, step: StepResult, owner: Array | None = None) -> Ring:
    """The ring after one more step: `action` [S, N, A] and what it led to, [S, N, ...]; `owner` [S, N] is who acted.

    Where the step is faulty the episode is closed before it, and the step itself becomes void.
    """
    if step.faulty is not None:
        ring = cut(ring, spec, step.faulty, step.obs)
    row, next_row = ring.count % spec.rows, (ring.count + 1) % spec.rows
    ended = ended_with_last_observation(step)
    slot = final_slots(ring, spec, ended, jnp)
    ring = _write_finals(ring, spec, ended, slot, to_storage(step.final_obs, spec, jnp), ring.count)
    return ring._replace(
        obs=_write_row(ring.obs, to_storage(step.obs, spec, jnp), next_row),
        action=_write_row(ring.action, action.astype(jnp.float32), row),
        reward=_write_row(ring.reward, step.reward.astype(jnp.float32), row),
        end=_write_row(ring.end, end_code(ended, step, slot, jnp), row),
        count=ring.count + 1,
        owner=None if ring.owner is None else _write_row(ring.owner, jnp.asarray(owner, jnp.int8), row),
    )


def cut(ring: Ring, spec: RingSpec, mask: Array, new_obs: Array) -> Ring:
    """Close the running episodes where `mask` [S, N] is set; the next step is taken from `new_obs` there.

    The last stored step becomes the episode's last, truncated at the observation that was to be acted on.
    """
    row, last_row = ring.count % spec.rows, (ring.count - 1) % spec.rows
    pending, last_end = settle(ring.count, _read_row(ring.obs, row), _read_row(ring.end, last_row))
    ended = mask & (last_end == 0) & (ring.count > 0)
    slot = final_slots(ring, spec, ended, jnp)
    ring = _write_finals(ring, spec, ended, slot, pending, ring.count - 1)
    fresh = jnp.where(mask[..., None], to_storage(new_obs, spec, jnp), pending)
    return ring._replace(
        obs=_write_row(ring.obs, fresh, row),
        end=_write_row(ring.end, jnp.where(ended, slot + 1, last_end), last_row),
    )


def available_ages(ring: Ring, spec: RingSpec, xp: Any = jnp) -> Array:
    """int32 [S]: ages 0..this-1 can be sampled; 0 while no n-step window is complete."""
    newest = ring.count - spec.n_step
    oldest = xp.maximum(ring.oldest, newest - (spec.ages - 1))
    return xp.maximum(newest - oldest + 1, 0)


def random_words(keys: Array, law: AgeLaw, batch_size: int, sampler: Sampler = "exact") -> Array:
    """All random words of one batch for each seed, uint32 [S, W, B]."""
    return words.random_words(keys, law.words(sampler), batch_size)


def indices(
    ring: Ring, spec: RingSpec, law: AgeLaw, drawn: Array, sampler: Sampler = "exact", xp: Any = jnp
) -> tuple[Array, Array]:
    """(age, env), int32 [S, B], of one batch from its random words; the same for host and device."""
    return age_law.draw(law, drawn, available_ages(ring, spec, xp), spec.num_envs, xp, sampler)


def acted_by(ring: Ring, spec: RingSpec, age: Array, env: Array, owner: int, xp: Any = jnp) -> Array:
    """bool: whether this learner acted in the steps at `age` of `env`, both [S, ...]."""
    seed = xp.arange(spec.num_seeds, dtype=xp.int32).reshape(-1, *[1] * (age.ndim - 1))
    row = (ring.count - spec.n_step - age) % spec.rows
    return take(ring.owner, (row * spec.num_seeds + seed) * spec.num_envs + env, xp) == owner


def gather(ring: Ring, spec: RingSpec, age: Array, env: Array, gamma: float, xp: Any = jnp) -> Batch:
    """The n-step transitions that start at `age` of `env`, both [S, B].

    reward = sum over j < k of gamma^j r_j and discount = gamma^k, where k = n or the steps up to the
    episode's end; 0 if it terminated there.
    """
    stride = spec.num_seeds * spec.num_envs
    lane = xp.arange(spec.num_seeds, dtype=xp.int32)[:, None] * spec.num_envs + env
    row = (ring.count - spec.n_step) % spec.rows - age
    here = xp.where(row < 0, row + spec.rows, row) * stride + lane
    if spec.voids:
        here = _pass_over_voids(ring, here, xp)
    if xp is not np:
        (here,) = settle(ring.count, here)

    def ahead(steps: Array) -> Array:
        index = here + steps * stride
        return xp.where(index < spec.rows * stride, index, index - spec.rows * stride)

    reward, end = take(ring.reward, here, xp), take(ring.end, here, xp)
    if spec.voids:  # even if nothing but void steps was drawn, no index may leave the ring
        end = xp.where(end == VOID, 0, end)
    steps: Array = 1
    first_end = end
    discount = xp.full_like(reward, gamma)
    for j in range(1, spec.n_step):
        going, index = end == 0, ahead(j)
        # The select between product and sum keeps compilers from fusing the two, which rounds otherwise.
        reward = reward + xp.where(going, xp.float32(gamma**j) * take(ring.reward, index, xp), xp.float32(0))
        end = xp.where(going, take(ring.end, index, xp), end)
        steps = xp.where(going, j + 1, steps)
        discount = xp.where(going, xp.float32(gamma ** (j + 1)), discount)
    there = ahead(steps)
    if xp is not np:
        there, end = settle(ring.count, there, end)
    following = None
    if spec.following:
        after = ahead(1)
        if xp is not np:
            after, first_end = settle(ring.count, after, first_end)
        following = _next_obs(ring, spec, after, first_end, xp).astype(xp.float32, copy=False)
    return Batch(
        obs=take(ring.obs, here, xp, spec.obs_dim).astype(xp.float32, copy=False),
        action=take(ring.action, here, xp, spec.action_dim),
        reward=reward,
        discount=xp.where(end < 0, xp.float32(0), discount),
        next_obs=_next_obs(ring, spec, there, end, xp).astype(xp.float32, copy=False),
        following=following,
    )


def sample(
    ring: Ring,
    spec: RingSpec,
    law: AgeLaw,
    keys: Array,
    batch_size: int,
    gamma: float,
    sampler: Sampler = "exact",
) -> Batch:
    """One batch for each seed, [S, B, ...], drawn with replacement; `keys` [S]."""
    drawn = random_words(keys, law, batch_size, sampler)
    if sampler == "buckets":  # many gathers read these
        (drawn,) = settle(ring.count, drawn)
    age, env = indices(ring, spec, law, drawn, sampler)
    return gather(ring, spec, age, env, gamma)


# What host and device share besides: the storage format and the bookkeeping of ended episodes.


def to_storage(obs: Array, spec: RingSpec, xp: Any) -> Array:
    obs = xp.asarray(obs)
    if spec.storage == "float16":
        obs = xp.clip(obs, -FLOAT16_MAX, FLOAT16_MAX)
    return obs.astype(spec.storage)


def ended_with_last_observation(step: StepResult) -> Array:
    """bool [S, N]: the episode ended here, and its last observation is to be kept."""
    ended = step.terminated | step.truncated
    return ended if step.faulty is None else ended & ~step.faulty


def final_slots(ring: Ring, spec: RingSpec, ended: Array, xp: Any) -> Array:
    """int32 [S, N]: the slot of each episode that ended now; meaningless elsewhere."""
    rank = xp.cumsum(ended, axis=1, dtype=xp.int32) - 1
    return (ring.final_count[:, None] + rank) % spec.finals


def end_code(ended: Array, step: StepResult, slot: Array, xp: Any) -> Array:
    code = xp.where(ended, xp.where(step.terminated, -(slot + 1), slot + 1), 0).astype(xp.int32)
    return code if step.faulty is None else xp.where(step.faulty, VOID, code)


# Access to the arrays. Views that merge leading axes are free in row-major order.


def take(array: Array, index: Array, xp: Any, width: int | None = None) -> Array:
    flat = array.reshape(-1) if width is None else array.reshape(-1, width)
    if xp is np:
        return flat.take(index, axis=0)
    return flat.at[index].get(mode="promise_in_bounds")


def _pass_over_voids(ring: Ring, here: Array, xp: Any) -> Array:
    """The first transition of the batch that is not void stands in for those that are."""
    void = take(ring.end, here, xp) == VOID
    stand_in = xp.take_along_axis(here, void.argmin(axis=1)[:, None], axis=1)
    return xp.where(void, stand_in, here)


def _next_obs(ring: Ring, spec: RingSpec, index: Array, end: Array, xp: Any) -> Array:
    """Observations at the windows' ends: from the side table where the episode ended."""
    slot = xp.arange(spec.num_seeds, dtype=xp.int32)[:, None] * spec.finals + abs(end) - 1
    obs = take(ring.obs, index, xp, spec.obs_dim)
    if xp is np:
        ended = end.nonzero()
        obs[ended] = ring.finals.reshape(-1, spec.obs_dim)[slot[ended]]
        return obs
    ended = end != 0
    finals = take(ring.finals, jnp.where(ended, slot, 0), xp, spec.obs_dim)
    return jnp.where(ended[..., None], finals, obs)


def settle(count: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, computed here and once: what follows reads them and does not compute them again.

    XLA for CPU drops optimization barriers before it fuses. It would then repeat the index arithmetic for
    each element of each gathered row (more than twice the time of a batch), and read a row again after
    writing it (for which it first copies the ring). It does not look through a branch on a number that it
    does not know, such as the count of steps.
    """

    def branch(count: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        return jax.lax.cond(count >= 0, lambda: arrays, lambda: tuple(map(jnp.zeros_like, arrays)))

    def barrier(_: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        return jax.lax.optimization_barrier(arrays)

    return jax.lax.platform_dependent(count, *arrays, cpu=branch, default=barrier)


def _row_major(array: jax.Array) -> jax.Array:
    """Left alone, XLA picks another layout for the ring inside a loop and copies all of it to get there."""
    pinned = with_layout_constraint(array, Layout(tuple(range(array.ndim))))
    # jit refuses to donate an argument to an output that is itself a layout constraint.
    return jax.lax.optimization_barrier(pinned)


def _read_row(array: jax.Array, row: Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(array, row, axis=0, keepdims=False)


def _write_row(array: jax.Array, value: Array, row: Array) -> jax.Array:
    return _row_major(jax.lax.dynamic_update_index_in_dim(array, value, row, axis=0))


def _write_finals(ring: Ring, spec: RingSpec, ended: Array, slot: Array, obs: Array, step: Array) -> Ring:
    """Scatter the last observations into their slots; steps that lose theirs leave replay."""
    seed = jnp.arange(spec.num_seeds, dtype=jnp.int32)[:, None]
    lost = jnp.where(ended, ring.final_row[seed, slot], -1)
    index = jnp.where(ended, slot, spec.finals)  # out of range: dropped
    return ring._replace(
        finals=_row_major(ring.finals.at[seed, index].set(obs, mode="drop")),
        final_row=ring.final_row.at[seed, index].set(step, mode="drop"),
        final_count=ring.final_count + ended.sum(axis=1, dtype=jnp.int32),
        oldest=jnp.maximum(ring.oldest, lost.max(axis=1) + 1),
    )
