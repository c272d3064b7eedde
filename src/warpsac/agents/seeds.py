"""What learners of any kind share when several seeds are trained side by side: the seed axis, random streams,
sums of metrics, and the state of all seeds as named arrays and back.

Arrays lead with the seed axis [S, ...]. Random numbers come from counters, not from a state that is
passed on: the key of seed s for its k-th action or update is fold_in(stream key of s, k), so a resumed
run, or a seed trained in company, draws what it would have drawn anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from warpsac.types import Array


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
