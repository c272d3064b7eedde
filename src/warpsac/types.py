"""The records that flow between the rooms: simulator -> StepResult -> replay -> Batch -> learner.

The leading axes of every array are in brackets: S is the number of seeds trained side by side,
N the number of environments of one seed, B the batch size. D is the stored observation size: one
vector per environment from which actor and critic each read their own slice (see `ObsViews`), so
an observation is stored once even when the critic sees more than the actor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = Any  # numpy.ndarray or jax.Array: most functions here take either

# Larger ones are faults like NaN: float32 holds no sum of the squares of many, or of their discounted sums.
LARGEST_OBS, LARGEST_REWARD = 1e15, 1e12


def usable(obs: Any) -> Any:
    """Which numbers of an observation can be learned from; of any library's array, on the host or in a program."""
    return abs(obs) <= LARGEST_OBS


def usable_reward(reward: Any) -> Any:
    return abs(reward) <= LARGEST_REWARD


@dataclass(frozen=True)
class ObsViews:
    """How actor and critic read the stored observation vector.

    The actor sees `obs[..., :actor_dim]`, the critic `obs[..., critic_start:]`. Symmetric tasks have
    actor_dim == obs_dim and critic_start == 0. Where the actor's observation is a prefix of the
    critic's, critic_start is 0 and nothing is stored twice.
    """

    obs_dim: int
    actor_dim: int
    critic_start: int = 0

    @property
    def critic_dim(self) -> int:
        return self.obs_dim - self.critic_start

    def actor(self, obs: Array) -> Array:
        return obs[..., : self.actor_dim]

    def critic(self, obs: Array) -> Array:
        return obs[..., self.critic_start :]


@dataclass(frozen=True)
class Mirror:
    """A vector as a mirror shows it that swaps left and right: number i becomes signs[i] * vector[sources[i]]."""

    sources: tuple[int, ...]
    signs: tuple[int, ...]  # 1 or -1 each

    def __call__(self, vector: Array) -> Array:
        """Of float32 vectors [..., size]."""
        return vector[..., np.array(self.sources, np.int32)] * np.array(self.signs, np.float32)

    @property
    def size(self) -> int:
        return len(self.sources)

    @property
    def flaw(self) -> str | None:
        """Why it is no mirror, in which what is seen twice is itself again; None if it is one."""
        for i, (source, sign) in enumerate(zip(self.sources, self.signs, strict=True)):
            if not 0 <= source < self.size:
                return f"entry {i} takes number {source} of {self.size}"
            if sign not in (1, -1):
                return f"entry {i} has the sign {sign}, which must be 1 or -1"
            if self.sources[source] != i or self.signs[source] != sign:
                back = f"[{self.sources[source]}, {self.signs[source]}]"
                return f"entry {i} is [{source}, {sign}], so entry {source} must be [{i}, {sign}], and is {back}"
        return None


@dataclass(frozen=True)
class Symmetry:
    """What a left-right symmetric task looks like in a mirror."""

    obs: Mirror  # of the stored observation, the critic's part included
    action: Mirror


class StepResult(NamedTuple):
    """What one vector step of N environments returned (all of one seed, or [S, N, ...] of all).

    `obs` is what to act on next: after an automatic reset it is the first observation of the new
    episode, and `final_obs` holds the true last observation of the one that ended. Rows of
    `final_obs` where no episode ended are not read.
    """

    obs: Array  #: float32 [N, D]
    reward: Array  #: float32 [N], raw
    terminated: Array  #: bool [N], the episode ended, with no value beyond
    truncated: Array  #: bool [N], the episode was cut short: bootstrap from final_obs
    final_obs: Array  #: float32 [N, D]
    success: Array | None = None  #: bool [N], the task is solved at this step; None if the task defines no success
    faulty: Array | None = None
    """bool [N], the step is void and its environment restarted at `obs`: it was NaN, or, where the episode ended as
    well, the simulator lost the last observation."""

    def of_seed(self, s: int) -> StepResult:
        """One seed's part of a step [S, N, ...] of all seeds."""
        return StepResult(*(None if field is None else field[s] for field in self))


class Restart(NamedTuple):
    """Environments that had to be restarted before this step (fault, evaluation, resume).

    Their running episode is closed as truncated at the last stored observation; the step that comes
    with this record was taken from `obs`.
    """

    mask: Array  #: bool [N]
    obs: Array  #: float32 [N, D], read where mask is set


class Batch(NamedTuple):
    """A minibatch of n-step transitions, [B, ...] or [S, B, ...]; rewards are raw, not scaled."""

    obs: Array  # float32 [B, D]
    action: Array  # float32 [B, A], in [-1, 1]
    reward: Array  # float32 [B], sum over j < k of gamma^j r_j, k the steps actually taken
    discount: Array  # float32 [B], gamma^k, or 0 where the window ended in a termination
    next_obs: Array  # float32 [B, D], the true observation at the window's end
    following: Array | None = None  # float32 [B, D], the true observation one step later, where it is asked for
    windows: Any = None  # `replay.windows.Windows`, where pessimism is calibrated


def rescale(action: np.ndarray, low: Sequence[float], high: Sequence[float]) -> np.ndarray:
    """Actions [..., A] from [-1, 1] to [low, high], as float32 and never outside."""
    low64, high64, middle, half = _range(tuple(low), tuple(high))
    scaled = middle + half * np.asarray(action, np.float64)
    return np.minimum(np.maximum(scaled, low64), high64).astype(np.float32)


@functools.lru_cache(maxsize=8)
def _range(low: tuple[float, ...], high: tuple[float, ...]) -> tuple[np.ndarray, ...]:
    """Both bounds, the middle and the half width; cached, as every step needs them."""
    low64, high64 = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return low64, high64, (high64 + low64) / 2, (high64 - low64) / 2
