"""The contract of a learning algorithm, the state it carries, and what all algorithms share.

An algorithm is a frozen record of settings (static under `jax.jit`) with pure functions over all seeds: every array
leads with the seed axis [S, ...], which `over_seeds` adds to functions written for one seed. SAC and PPO are two of
them; the drivers in `training` know nothing else of either.

Random numbers come from counters, not from a state that is passed on: the key of seed s for its k-th action or update
is fold_in(stream of s, k). So a resumed run, or a seed trained next to others, draws what it would have drawn anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from warpsac.replay.ring import RingSpec
from warpsac.types import Array, ObsViews, Restart, StepResult

# --- the seed axis


def over_seeds(function: Callable[..., Any], seeds: int) -> Callable[..., Any]:
    """The function of one seed applied to all; with one seed, exactly the one-seed program."""
    if seeds > 1:
        return jax.vmap(function)

    def single(*arguments: Any) -> Any:
        return jax.tree.map(lambda x: x[None], function(*jax.tree.map(lambda x: x[0], arguments)))

    return single


# --- the device axis


def over_devices(function: Callable[..., Any], mesh: Mesh | None, inputs: Any, outputs: Any) -> Callable[..., Any]:
    """The function of one device's part applied on all devices; without a mesh, the function itself.

    `inputs` and `outputs` say how arguments and results are divided; results that are not must be equal everywhere.
    """
    if mesh is None:
        return function
    return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)


def everywhere(array: Array, mesh: Mesh | None) -> Array:
    """The whole array on every device of the mesh, so that each process can read it."""
    if mesh is None or array.is_fully_addressable:
        return array
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))(array)


def own_keys(keys: Array, mesh: Mesh | None) -> Array:
    """Within `over_devices`: keys of this device alone, of the same shape."""
    if mesh is None:
        return keys
    (axis,) = mesh.axis_names
    flat = jax.vmap(lambda key: jax.random.fold_in(key, jax.lax.axis_index(axis)))(keys.reshape(-1))
    return flat.reshape(keys.shape)


# --- trees of all seeds, random streams


def stacked(parts: Sequence[Any]) -> Any:
    """The trees of all seeds as one with a leading seed axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)


def stream_roots(seeds: Sequence[int], count: int) -> list[Array]:
    """The roots [S] of `count` independent random streams of each seed."""
    roots = [jax.random.key(seed) for seed in seeds]
    return [jnp.stack([jax.random.fold_in(root, i) for root in roots]) for i in range(count)]


def stream(roots: Array, counter: Array) -> Array:
    """The keys [S] of the counter's draw from a stream."""
    return jax.vmap(jax.random.fold_in)(roots, jnp.broadcast_to(counter, roots.shape))


# --- the reward scale


class RewardScale(NamedTuple):
    """Running statistics of discounted returns G, of one seed; they give one number that keeps returns inside the value
    support.

    Per environment G <- gamma (1 - ended) G + r, where `ended` is whether the previous step closed an episode.
    """

    returns: Array  # float32 [N], the running discounted return G
    ended: Array  # bool [N], the last step closed an episode
    mean: Array  # float32 [], of G over environments and time
    var: Array  # float32 []
    count: Array  # float32 []
    largest: Array  # float32 [], all-time max |G|

    @classmethod
    def initial(cls, num_envs: int) -> RewardScale:
        return cls(
            returns=jnp.zeros(num_envs, jnp.float32),
            ended=jnp.zeros(num_envs, bool),
            mean=jnp.zeros((), jnp.float32),
            var=jnp.ones((), jnp.float32),
            count=jnp.full((), 1e-4, jnp.float32),
            largest=jnp.zeros((), jnp.float32),
        )

    def observe(self, reward: Array, ended: Array, gamma: float) -> RewardScale:
        """After one more vector step."""
        returns = gamma * jnp.where(self.ended, 0.0, self.returns) + reward
        mean, var, count = merged_moments(self.mean, self.var, self.count, returns)
        return RewardScale(returns, ended, mean, var, count, jnp.maximum(self.largest, jnp.abs(returns).max()))

    def restart(self, mask: Array) -> RewardScale:
        """After environments were restarted: their running return starts at zero."""
        return self._replace(ended=self.ended | mask)

    def factor(self, limit: float) -> Array:
        """1 / max(sqrt(var(G) + 1e-8), max|G| / limit)."""
        return 1.0 / jnp.maximum(jnp.sqrt(self.var + 1e-8), self.largest / limit)


def merged_moments(mean: Array, var: Array, count: Array, samples: Array) -> tuple[Array, Array, Array]:
    """Mean, biased variance and count after `samples` [M, ...] as well: two groups merged exactly."""
    size = samples.shape[0]
    total = count + size
    delta = samples.mean(0) - mean
    spread = var * count + samples.var(0) * size + jnp.square(delta) * count * size / total
    return mean + delta * size / total, spread / total, total


# --- metrics, summed on the device until a row is due


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MetricSums:
    """All metrics in two arrays: each of its own, a GPU would start some twenty kernels for one number each."""

    names: tuple[str, ...] = field(metadata={"static": True})
    totals: Array  # float32 [S, metrics], of several learners [S, K, metrics]
    counts: Array  # likewise

    def named(self) -> dict[str, dict[str, Array]]:
        """As a checkpoint keeps them, [S] or [S, K] each."""
        arrays = {"totals": self.totals, "counts": self.counts}
        return {kind: {name: array[..., i] for i, name in enumerate(self.names)} for kind, array in arrays.items()}

    @classmethod
    def of(cls, named: Mapping[str, Mapping[str, Array]]) -> MetricSums:
        names = tuple(sorted(named["totals"]))
        return cls(names, *(jnp.stack([named[kind][name] for name in names], -1) for kind in ("totals", "counts")))


def zero_sums(names: Iterable[str], seeds: int) -> MetricSums:
    names = tuple(sorted(names))
    return MetricSums(names, *(jnp.zeros((seeds, len(names)), jnp.float32) for _ in range(2)))


def add_metrics(sums: MetricSums, metrics: Mapping[str, Array]) -> MetricSums:
    # Each is added before all are joined: in another order XLA rounds otherwise, and rows of a seed change.
    before = sums.named()
    totals = [total + metrics[name] if name in metrics else total for name, total in before["totals"].items()]
    counts = [count + (name in metrics) for name, count in before["counts"].items()]
    return replace(sums, totals=jnp.stack(totals, -1), counts=jnp.stack(counts, -1))


def mean_rows(sums: MetricSums, seeds: int) -> list[dict[str, float]]:
    """The means of each seed, from sums that were fetched; what was never measured is absent."""
    totals, counts = sums.totals, sums.counts
    return [
        {name: float(totals[s, i] / counts[s, i]) for i, name in enumerate(sums.names) if counts[s, i] > 0}
        for s in range(seeds)
    ]


# --- the contract


Policy = TypeVar("Policy")
PolicyOut = TypeVar("PolicyOut", covariant=True)


class LearnerState(Protocol[PolicyOut]):
    """What every learner's state has, whatever else is in it."""

    @property
    def policy(self) -> PolicyOut:
        """All that acting needs."""

    @property
    def updates(self) -> Array:
        """int32 [S], updates made."""

    @property
    def first_bad(self) -> Array:
        """int32 [S], the first update with a non-finite loss, -1 while there is none."""


Learner = TypeVar("Learner", bound=LearnerState[Any])
Exploration = TypeVar("Exploration")
Memory = TypeVar("Memory")
Batches = TypeVar("Batches")
Streams = TypeVar("Streams")
Scale = TypeVar("Scale")


class AgentState(NamedTuple, Generic[Learner, Exploration, Memory, Scale]):
    """All that an algorithm changes while it trains, [S, ...]."""

    learner: Learner
    exploration: Exploration
    """What acting carries from one step to the next: noise that is held; nothing for PPO."""
    memory: Memory
    """A replay ring or a rollout."""
    scale: Scale
    """What is kept of the rewards seen: a `RewardScale`; with several arms also how these stand."""
    sums: MetricSums


class Actor(Protocol[Policy]):
    """One seed's policy of an algorithm: static, what a loaded policy needs."""

    @property
    def views(self) -> ObsViews: ...

    @property
    def action_dim(self) -> int: ...

    def init_policy(self) -> Policy:
        """An untrained policy: the template that a saved one is read into."""

    def best_action(self, policy: Policy, obs: Array) -> Array:
        """The deterministic actions [N, A] in [-1, 1]: evaluation and deployment."""


class Algorithm(Protocol[Learner, Policy, Exploration, Memory, Batches, Streams, Scale]):
    @property
    def seeds(self) -> int:
        """Seeds trained next to each other."""

    @property
    def actor(self) -> Actor[Policy]: ...

    @property
    def ring(self) -> RingSpec | None:
        """The sizes of a memory that checkpoints keep; None if it is collected again."""

    @property
    def needs(self) -> Mapping[str, int]:
        """Bytes that each of these settings asks for at least, over all seeds and besides replay: parameters with what
        the optimizer keeps, and what one update holds."""

    @property
    def mesh(self) -> Mesh | None:
        """The devices over which environments and memory are divided; None: one device has all of them."""

    @property
    def devices(self) -> int: ...

    @property
    def rate_setting(self) -> str:
        """The setting to lower where losses are not finite."""

    @property
    def stride(self) -> int:
        """Interactions that are made in one piece before the memory can be learned from."""

    @property
    def updates_per_round(self) -> int:
        """Updates that one call of `learn` makes."""

    @property
    def phases(self) -> int:
        """Different programs of `learn`; round k is of phase `updates % phases`."""

    def streams(self, seeds: Sequence[int]) -> Streams:
        """The roots of the algorithm's random streams."""

    def init(self, seeds: Sequence[int], memory: Memory) -> AgentState[Learner, Exploration, Memory, Scale]:
        """The first state of all seeds, with an empty memory."""

    def init_memory(self, first_obs: Array) -> Memory:
        """An empty memory on the device; the first step will be taken from `first_obs` [S, N, D]."""

    def act(
        self, policy: Policy, exploration: Exploration, scale: Scale, obs: Array, keys: Streams, interaction: Array
    ) -> tuple[Array, Exploration]:
        """Exploring actions [S, N, A], as `remember` wants them."""

    def to_simulator(self, action: Array) -> Array:
        """The same actions within [-1, 1]; `action` itself if it is there already."""

    def remember(
        self,
        memory: Memory,
        scale: Scale,
        obs: Array,
        action: Array,
        step: StepResult,
        restart: Restart | None,
        interaction: Array,
    ) -> tuple[Memory, Scale]:
        """Take in one step [S, N, ...] made with `action` from `obs`."""

    def cut(self, memory: Memory, scale: Scale, mask: Array, obs: Array) -> tuple[Memory, Scale]:
        """Close the running episodes of the mask [S, N]: the simulator was reset to `obs` there."""

    def restarted(self, scale: Scale, mask: Array) -> Scale:
        """The part of `cut` that is about rewards."""

    def sample(self, memory: Memory, obs: Array, keys: Streams, updates: Array) -> Batches:
        """What the next call of `learn` learns from; `obs` is what will be acted on next."""

    def learn(
        self, learner: Learner, scale: Scale, sums: MetricSums, batches: Batches, keys: Streams, phase: int
    ) -> tuple[Learner, Scale, MetricSums]:
        """One round of updates."""

    def policies(self, learner: Learner, scale: Scale) -> dict[str, Policy]:
        """What a checkpoint keeps to act with, [S, ...]: "policy" is evaluated and deployed; of several arms also the
        others, by their numbers."""

    def choices(self, scale: Scale) -> list[str | None]:
        """For each seed the arm whose policy that is; None if there is only one."""

    def metrics(self, memory: Memory, scale: Scale, sums: MetricSums) -> list[dict[str, float]]:
        """Means of the metrics since `empty_sums`, and the health of the memory, for each seed; reads the device."""

    def empty_sums(self) -> MetricSums: ...

    def batch_of(
        self, memory: Memory, keys: Streams, update: int, seed: int, updates: int, stored: int
    ) -> dict[str, np.ndarray] | None:
        """What an update of the recent past was made on, if it can still be found.

        `updates` were made by now, the last of them when `stored` interactions were in memory.
        """
