"""What learners of any kind share when several seeds are trained side by side: the seed axis, random streams,
sums of metrics, and the state of all seeds as named arrays and back.

Arrays lead with the seed axis [S, ...]. Random numbers come from counters, not from a state that is
passed on: the key of seed s for its k-th action or update is fold_in(stream key of s, k), so a resumed
run, or a seed trained in company, draws what it would have drawn anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from warpsac import pytree
from warpsac.types import Array

Groups = dict[str, dict[str, np.ndarray]]  # of one seed: group -> name -> array


def over_seeds(function: Callable[..., Any], seeds: int) -> Callable[..., Any]:
    """The function of one seed applied to all; with one seed, exactly the one-seed program."""
    if seeds > 1:
        return jax.vmap(function)

    def single(*arguments: Any) -> Any:
        return jax.tree.map(lambda x: x[None], function(*jax.tree.map(lambda x: x[0], arguments)))

    return single


def stacked(parts: Sequence[Any]) -> Any:
    """The trees of all seeds as one with a leading seed axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)


def stream_roots(seeds: tuple[int, ...], count: int) -> list[Array]:
    """The roots [S] of `count` independent random streams of each seed."""
    roots = [jax.random.key(seed) for seed in seeds]
    return [jnp.stack([jax.random.fold_in(root, i) for root in roots]) for i in range(count)]


def stream(roots: Array, counter: Array) -> Array:
    """The keys [S] of the counter's draw from a stream."""
    return jax.vmap(jax.random.fold_in)(roots, jnp.broadcast_to(counter, roots.shape))


# --- metrics


class MetricSums(NamedTuple):
    """Sums of the learner's metrics since they were last read, so that the host need not see each."""

    totals: dict[str, Array]  # float32 [S]
    counts: dict[str, Array]  # float32 [S]


def zero_sums(names: Iterable[str], seeds: int) -> MetricSums:
    def zeros() -> dict[str, Array]:
        return {name: jnp.zeros(seeds, jnp.float32) for name in names}

    return MetricSums(zeros(), zeros())


def add_metrics(sums: MetricSums, metrics: dict[str, Array]) -> MetricSums:
    return MetricSums(
        {name: total + metrics[name] if name in metrics else total for name, total in sums.totals.items()},
        {name: count + (name in metrics) for name, count in sums.counts.items()},
    )


def mean_rows(sums: MetricSums, seeds: int) -> list[dict[str, float]]:
    """The means of each seed, from sums that were fetched; what was never measured is absent."""
    total, count = sums
    return [
        {name: float(total[name][s] / count[name][s]) for name in total if count[name][s] > 0} for s in range(seeds)
    ]


# --- state


class SeedEngine:
    """The learners of all seeds between two programs, whatever they learn by."""

    STATE: ClassVar[tuple[str, ...]]
    """Attributes that a checkpoint keeps beside the learner."""
    keeps_replay: ClassVar[bool] = False
    """Whether there is a memory that a resumed run may have to fill again."""
    setup: Any
    programs: Any
    learner: Any
    updates: int
    """Learner updates made, as the host counts them."""

    def best_policy(self) -> Callable[[np.ndarray], Array]:
        """The deterministic policies of all seeds, as they are until the next update: [S, N, D] -> [S, N, A]."""
        policy = self.learner.policy
        return lambda obs: self.programs.act_best(policy, obs)

    def first_bad_updates(self) -> list[int]:
        """For each seed the first update with a non-finite loss, or -1."""
        return [int(index) for index in np.asarray(self.learner.first_bad)]

    def batch_of(self, update: int, seed: int) -> dict[str, np.ndarray] | None:
        """What an update was made on, where it is still known."""
        return None

    def close_episodes(self, mask: np.ndarray, new_obs: Array) -> None:
        """The simulator begins anew in these environments [S, N]."""

    def snapshots(self, with_replay: bool) -> list[Groups]:
        """All state of each seed as named arrays; everything is fetched once, not seed by seed."""
        learner, state = jax.device_get((self.learner, {name: getattr(self, name) for name in self.STATE}))
        return [
            {
                name: pytree.flatten(jax.tree.map(lambda leaf, s=s: leaf[s], tree))
                for name, tree in (("policy", learner.policy), ("learner", learner), ("interaction", state))
            }
            for s in range(self.setup.seeds)
        ]

    def restore(self, parts: Sequence[Mapping[str, Mapping[str, np.ndarray]]], updates: int, where: str) -> None:
        """State of all seeds from their snapshots."""
        self.learner = self._joined(self.learner, [part["learner"] for part in parts], where)
        state = {name: getattr(self, name) for name in self.STATE}
        for name, tree in self._joined(state, [part["interaction"] for part in parts], where).items():
            setattr(self, name, tree)
        self.updates = updates

    def _joined(self, template: Any, parts: Sequence[Mapping[str, np.ndarray]], where: str) -> Any:
        """A tree like `template`, its leading seed axis put together from the named arrays of each seed."""
        one = jax.tree.map(lambda leaf: leaf[0], template)
        return stacked([pytree.restore(one, part, where) for part in parts])
