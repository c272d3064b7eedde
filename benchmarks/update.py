"""Milliseconds of one learner update, for each variant, number format and batch size; of auto, all arms together.

An update is timed as it runs in training: the updates of one policy delay (one with an actor's turn, the
others without) are one compiled program with donated state, and its time is divided by their number.
Sampling is not part of it. Observations 128, actions 12, the published network sizes.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from common import as_command, command_line, positive
from warpsac.agents.networks import FORMATS
from warpsac.agents.sac.algorithm import Sac
from warpsac.agents.sac.portfolio import Portfolio
from warpsac.config.profiles import VARIANTS, resolve
from warpsac.config.schema import AUTO
from warpsac.types import Array, Batch, ObsViews

OBS, ACTION = 128, 12


def make_program(variant: str, dtype: Any, batch_size: int, seeds: int) -> tuple[Any, Any, Any]:
    """The compiled program of one policy delay, what it carries, and its minibatches with the reward scale."""
    base, _ = resolve("task", regime="abundant", family="playground", variant=variant)
    learner_config = dataclasses.replace(base.learner, compute=dtype)
    replay = dataclasses.replace(base.replay, capacity=100_000, batch_size=batch_size)
    config = dataclasses.replace(base, learner=learner_config, replay=replay, seeds=tuple(range(seeds)))
    algorithm = (Portfolio if variant == AUTO else Sac).of(config, ObsViews(OBS, OBS), ACTION, faulty_steps=False)
    state = algorithm.init(config.seeds, None)  # type: ignore[arg-type]
    lead = (seeds, len(config.auto.arms)) if variant == AUTO else (seeds,)
    keys = jax.random.split(jax.random.key(0), (algorithm.phases, 4))

    def batch(k: Array) -> Batch:
        return Batch(
            obs=jax.random.normal(k[0], (*lead, batch_size, OBS)),
            action=jax.random.uniform(k[1], (*lead, batch_size, ACTION), minval=-1.0),
            reward=jax.random.normal(k[2], (*lead, batch_size)),
            discount=jnp.full((*lead, batch_size), 0.97),
            next_obs=jax.random.normal(k[3], (*lead, batch_size, OBS)),
        )

    streams = algorithm.streams(config.seeds)

    def updates(carried: Any, batches: list[Batch], scale: Any) -> Any:
        learner, sums = carried
        for i, minibatch in enumerate(batches):
            learner, sums = algorithm.update(learner, minibatch, scale, sums, streams, actor_turn=i == 0)
        return learner, sums

    return jax.jit(updates, donate_argnums=0), (state.learner, state.sums), ([batch(k) for k in keys], state.scale)


def measure(
    variant: str, dtype: str, batch_size: int, seeds: int, rounds: int, repetitions: int, warmups: int
) -> float:
    program, carried, (batches, scale) = make_program(variant, dtype, batch_size, seeds)

    def repeat(count: int) -> float:
        nonlocal carried
        started = time.perf_counter()
        for _ in range(count):
            carried = program(carried, batches, scale)
        jax.block_until_ready(carried)
        return (time.perf_counter() - started) / (count * len(batches))

    repeat(warmups)
    return 1e3 * statistics.median(repeat(repetitions) for _ in range(rounds))


def main() -> None:
    parser = command_line(__doc__, as_json="print a list of objects instead of a table")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=[*VARIANTS, AUTO])
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
