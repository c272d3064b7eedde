"""Time of one replay batch, gather included: uniform, exact Sample Weight Decay, and the published ways.

Rows, for the ring in host memory (NumPy) and on the default JAX device:

- uniform      every transition alike;
- swd          the age law, drawn exactly with a few integers for each sample;
- swd_scan     exact too: a probability vector over the whole buffer at each call, then a binary search;
- swd_buckets  the published approximation with 2000 buckets.

Each row warms up, then is timed in alternating rounds; its figure is the median over the rounds of a
round's mean. Key derivation is part of every row; results are waited for at the end of a round.

    python benchmarks/sampling.py            # a table
    python benchmarks/sampling.py --json     # a JSON list, one object for each device and size
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common import as_command, positive
from warpsac.replay import age, ring
from warpsac.replay.age import AgeLaw
from warpsac.replay.host import HostRing
from warpsac.replay.ring import Ring, RingSpec
from warpsac.replay.words import random_words

OBS_DIM, ACTION_DIM, GAMMA, WEIGHT_FLOOR = 128, 12, 0.99, 0.1
ROWS = ("uniform", "swd", "swd_scan", "swd_buckets")


@dataclass(frozen=True)
class Size:
    capacity: int
    num_envs: int
    decay_steps: int

    @property
    def spec(self) -> RingSpec:
        return RingSpec(self.capacity, self.num_envs, OBS_DIM, ACTION_DIM)

    @property
    def law(self) -> AgeLaw:
        return AgeLaw.of(self.decay_steps, WEIGHT_FLOOR)


SIZES = {"1e6": Size(1_000_000, 1, 80_000), "1e7": Size(10_000_000, 1024, 2_000)}

Row = Callable[[], Any]  # draws the next batch


def full_ring(spec: RingSpec, xp: Any) -> Ring:
    """A ring that has wrapped around, every page of it written; one step in a thousand ends an episode."""
    fields = Ring.of(spec.arrays, lambda shape, dtype: xp.full(shape, 1, dtype))._asdict()
    end = (xp.arange(spec.rows, dtype=xp.int32) % 1000 == 999).astype(xp.int32)[:, None, None]
    fields["end"] = fields["end"] * end
    fields["oldest"] = xp.zeros_like(fields["oldest"])
    fields["count"] = xp.asarray(3 * spec.rows, xp.int32)
    return Ring(**fields)


def scan_indices(size: Size, word: Any, ages: int, xp: Any) -> tuple[Any, Any]:
    """(age, env) from the probabilities of all transitions."""
    floor, envs = xp.float32(WEIGHT_FLOOR), size.num_envs
    ages_of = xp.arange(ages * envs, dtype=xp.int32) // envs
    weight = xp.maximum(floor, 1 - ages_of.astype(xp.float32) / xp.float32(size.decay_steps))
    cumulative = xp.cumsum(weight)
    place = word.astype(xp.float32) * (cumulative[-1] * xp.float32(2.0**-32))
    flat = xp.minimum(xp.searchsorted(cumulative, place), ages * envs - 1).astype(xp.int32)
    return flat // envs, flat % envs


def host_rows(size: Size, batch_size: int) -> dict[str, Row]:
    spec, law, uniform = size.spec, size.law, AgeLaw.of(0, WEIGHT_FLOOR)
    replay = HostRing(spec, full_ring(spec, np))
    cpu = jax.local_devices(backend="cpu")[0]
    base = jax.device_put(jax.random.key(0), cpu)
    keys = functools.partial(jax.jit(lambda base, counter: jax.random.fold_in(base, counter)[None]), base)
    word = jax.jit(lambda keys: random_words(keys, 1, batch_size)[:, 0])

    def row(draw: Callable[[Any], Any]) -> Row:
        counter = itertools.count()
        return lambda: draw(keys(next(counter)))

    def scan(keys: Any) -> Any:
        return replay.gather(*scan_indices(size, np.asarray(word(keys)), spec.ages, np), GAMMA)

    return {
        "uniform": row(lambda keys: replay.sample(uniform, keys, batch_size, GAMMA)),
        "swd": row(lambda keys: replay.sample(law, keys, batch_size, GAMMA)),
        "swd_scan": row(scan),
        "swd_buckets": row(lambda keys: replay.sample(law, keys, batch_size, GAMMA, "buckets")),
    }


def device_rows(size: Size, batch_size: int) -> dict[str, Row]:
    spec = size.spec
    state = jax.block_until_ready(jax.jit(lambda: full_ring(spec, jnp))())

    def sample(state: Ring, keys: Any, law: AgeLaw, sampler: age.Sampler) -> Any:
        return ring.sample(state, spec, law, keys, batch_size, GAMMA, sampler)

    def scan(state: Ring, keys: Any) -> Any:
        word = random_words(keys, 1, batch_size)[:, 0]
        return ring.gather(state, spec, *scan_indices(size, word, spec.ages, jnp), GAMMA)

    def row(draw: Callable[..., Any], *static: Any) -> Row:
        @jax.jit
        def program(state: Ring, counter: Any) -> tuple[Any, Any]:
            keys = jax.random.fold_in(jax.random.key(0), counter)[None]
            return draw(state, keys, *static), counter + 1

        counter = jnp.uint32(0)  # stays on the device, as it does in a training loop

        def run() -> Any:
            nonlocal counter
            batch, counter = program(state, counter)
            return batch

        return run

    return {
        "uniform": row(sample, AgeLaw.of(0, WEIGHT_FLOOR), "exact"),
        "swd": row(sample, size.law, "exact"),
        "swd_scan": row(scan),
        "swd_buckets": row(sample, size.law, "buckets"),
    }


def time_rows(rows: dict[str, Row], repetitions: dict[str, int], rounds: int, warmups: int) -> dict[str, float]:
    """Milliseconds per batch of each row; the order of the rows alternates from round to round."""

    def run(row: Row, times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            batch = row()
        jax.block_until_ready(batch)
        return (time.perf_counter() - start) / times * 1e3

    means: dict[str, list[float]] = {name: [] for name in rows}
    for name, row in rows.items():
        run(row, max(1, warmups * repetitions[name] // max(repetitions.values())))
    for turn in range(rounds):
        for name in list(rows) if turn % 2 == 0 else reversed(rows):
            means[name].append(run(rows[name], repetitions[name]))
    return {name: statistics.median(values) for name, values in means.items()}


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for size in (SIZES[name] for name in options.sizes):
        for place, make in (("host", host_rows), (jax.devices()[0].device_kind, device_rows)):
            if place == "host" and options.skip_host:
                continue
            repetitions = dict.fromkeys(ROWS, options.repetitions)
            # A CPU needs tenths of a second to go through 1e7 transitions: fewer repetitions there.
            if size.capacity > 1_000_000 and place in ("host", "cpu"):
                repetitions["swd_scan"] = max(2, options.repetitions // 30)
            rows = make(size, options.batch_size)
            times = time_rows(rows, repetitions, options.rounds, options.warmups)
            del rows
            gc.collect()  # the ring goes before the next one comes
            yield {
                "device": place,
                "capacity": size.capacity,
                "num_envs": size.num_envs,
                **{f"{name}_ms": round(times[name], 5) for name in ROWS},
                "ratio": round(times["swd"] / times["uniform"], 3),
                "decay_steps": size.decay_steps,
                "batch_size": options.batch_size,
                "rounds": options.rounds,
                "repetitions": options.repetitions,
                "swd_scan_repetitions": repetitions["swd_scan"],
                "jax": jax.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of one replay batch.")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES), help="transitions stored")
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--repetitions", type=positive, default=300)
    parser.add_argument("--warmups", type=positive, default=80)
    parser.add_argument("--batch-size", type=positive, default=2048)
    parser.add_argument("--skip-host", action="store_true", help="only the JAX device")
    options = parser.parse_args()
    results = measure(options)
    if options.json:
        print(json.dumps(list(results), indent=2))
        return
    columns = ("device", "capacity", "num_envs", *(f"{name}_ms" for name in ROWS), "ratio")
    print("".join(f"{name:>16}" for name in columns))
    for result in results:
        print("".join(f"{result[name]:>16}" for name in columns), flush=True)


if __name__ == "__main__":
    as_command(main)
