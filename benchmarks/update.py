"""Milliseconds of one learner update, for each variant, number format and batch size.

An update is timed as it runs in training: the updates of one policy delay (one with an actor's turn, the
others without) are one compiled program with donated state, and its time is divided by their number.
Sampling is not part of it. Observations 128, actions 12, the published network sizes.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from common import as_command, command_line, positive
from warpsac.agents.algorithm import over_seeds, stacked
from warpsac.agents.networks import FORMATS
from warpsac.agents.sac import learner as sac
from warpsac.config.profiles import VARIANTS
from warpsac.config.schema import LearnerConfig
from warpsac.types import Array, Batch, ObsViews

OBS, ACTION = 128, 12


def make_program(variant: str, dtype: Any, batch_size: int, seeds: int) -> tuple[Any, Any, Any]:
    """The compiled program of one policy delay, its learner state and its minibatches."""
    axes = VARIANTS[variant]
    config = LearnerConfig(critics=axes.critics, projection=axes.projection, compute=dtype)
    agent = sac.SacActor(config, ObsViews(OBS, OBS), ACTION, horizon_updates=100_000)
    learner = stacked([sac.init_learner(agent, s) for s in range(seeds)])
    keys = jax.random.split(jax.random.key(0), (config.policy_delay, seeds, 4))

    def batch(k: Array) -> Batch:
        return Batch(
            obs=jax.random.normal(k[0], (batch_size, OBS)),
            action=jax.random.uniform(k[1], (batch_size, ACTION), minval=-1.0),
            reward=jax.random.normal(k[2], (batch_size,)),
            discount=jnp.full(batch_size, 0.97),
            next_obs=jax.random.normal(k[3], (batch_size, OBS)),
        )

    batches = [jax.vmap(batch)(k) for k in keys]
    noise = jax.vmap(lambda k: k[0])(keys[0])

    def updates(learner: sac.Learner, batches: list[Batch], noise: Array) -> tuple[sac.Learner, Any]:
        metrics: Any = None
        for i, minibatch in enumerate(batches):
            one = lambda state, rows, key, turn=i == 0: sac.update(
                agent, state, rows, jnp.float32(0.2), jax.random.fold_in(key, state.updates), turn
            )
            learner, metrics = over_seeds(one, seeds)(learner, minibatch, noise)
        return learner, metrics

    return jax.jit(updates, donate_argnums=0), learner, (batches, noise)


def measure(
    variant: str, dtype: str, batch_size: int, seeds: int, rounds: int, repetitions: int, warmups: int
) -> float:
    program, learner, (batches, noise) = make_program(variant, dtype, batch_size, seeds)

    def repeat(count: int) -> float:
        nonlocal learner
        started = time.perf_counter()
        for _ in range(count):
            learner, _ = program(learner, batches, noise)
        jax.block_until_ready(learner)
        return (time.perf_counter() - started) / (count * len(batches))

    repeat(warmups)
    return 1e3 * statistics.median(repeat(repetitions) for _ in range(rounds))


def main() -> None:
    parser = command_line(__doc__, as_json="print a list of objects instead of a table")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=list(FORMATS))
    parser.add_argument("--batches", nargs="+", type=positive, default=[2048, 512])
    parser.add_argument("--seeds", type=positive, default=1, help="seeds updated side by side in one program")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--repetitions", type=positive, default=80)
    parser.add_argument("--warmups", type=positive, default=20)
    asked = parser.parse_args()
    device = jax.devices()[0].device_kind
    rows: list[dict[str, Any]] = []
    for batch in asked.batches:
        for dtype in asked.dtypes:
            for variant in asked.variants:
                ms = measure(variant, dtype, batch, asked.seeds, asked.rounds, asked.repetitions, asked.warmups)
                row = {"device": device, "variant": variant, "dtype": dtype, "batch": batch, "ms": round(ms, 4)}
                rows.append(row | ({"seeds": asked.seeds} if asked.seeds > 1 else {}) | {"jax": jax.__version__})
    if asked.json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(title=f"one update on {device}, {asked.seeds} seed(s)")
    for column in ("batch", "dtype", "variant", "ms"):
        table.add_column(column, justify="right" if column in ("batch", "ms") else "left")
    for row in rows:
        table.add_row(str(row["batch"]), row["dtype"], row["variant"], f"{row['ms']:.3f}")
    Console().print(table)


if __name__ == "__main__":
    as_command(main)
