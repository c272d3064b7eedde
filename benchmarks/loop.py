"""Milliseconds of one whole interaction on a JAX simulator, and of the simulator step alone.

Both are loops on the device over the same number of steps, automatic reset included: `env_step_ms` steps
the environments with random actions, `iteration_ms` acts, steps, stores, samples and makes the profile's
updates. The two are measured in turn, `--rounds` times; medians are printed. `start_s` is the time from
nothing to the end of the first interaction that learns, compilation included: with a warm compilation
cache (JAX_COMPILATION_CACHE_DIR) a second run shows what it saves.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from common import as_command, command_line, fused_driver, positive, show
from warpsac.agents.algorithm import over_seeds
from warpsac.envs import registry
from warpsac.training.api import configure


def step_only(env: Any, seeds: int) -> Any:
    """A compiled loop that only steps the simulator."""

    def loop(state: Any, key: Any, count: Any) -> Any:
        def body(i: Any, state: Any) -> Any:
            shape = (seeds, env.spec.num_envs, env.spec.action_dim)
            action = jax.random.uniform(jax.random.fold_in(key, i), shape, minval=-1.0)
            return over_seeds(env.step, seeds)(state, action)[0]

        return jax.lax.fori_loop(0, count, body, state)

    return jax.jit(loop, donate_argnums=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--task", default="G1JoystickFlatTerrain")
    parser.add_argument("--variant", default=None)
    parser.add_argument("--profile", default="playground")
    parser.add_argument("--num-envs", type=positive, default=1024)
    parser.add_argument("--seeds", type=positive, default=1)
    parser.add_argument("--impl", choices=["auto", "jax", "warp"], default="auto")
    parser.add_argument("--capacity", type=positive, default=10_000_000)
    parser.add_argument("--storage", choices=["float32", "float16"], default="float32")
    parser.add_argument("--steps", type=positive, default=100, help="interactions in one measurement")
    parser.add_argument("--rounds", type=positive, default=5)
    asked = parser.parse_args(arguments)

    started = time.perf_counter()
    config, _ = configure(
        asked.task,
        variant=asked.variant,
        profile=asked.profile,
        seeds=tuple(range(1, asked.seeds + 1)),
        env={"num_envs": asked.num_envs, "impl": asked.impl},
        replay={"capacity": asked.capacity, "storage": asked.storage},
    )
    env: Any = registry.make_jax(config.task, asked.num_envs, config.env)
    driver = fused_driver(config, env)
    driver.advance(config.warmup_interactions)

    def learn(count: int) -> float:
        begun = time.perf_counter()
        driver.advance(count)
        jax.block_until_ready(driver.state.agent.learner)
        return (time.perf_counter() - begun) / count

    learn(1)
    start_seconds = time.perf_counter() - started

    loop, key = step_only(env, asked.seeds), jax.random.key(7)
    state = jax.tree.map(jnp.copy, driver.state.simulator)
    ring_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(driver.state.agent.memory))

    def step(count: int) -> float:
        nonlocal state
        begun = time.perf_counter()
        state = jax.block_until_ready(loop(state, key, jnp.int32(count)))
        return (time.perf_counter() - begun) / count

    step(asked.steps), learn(asked.steps)
    pairs = [(step(asked.steps), learn(asked.steps)) for _ in range(asked.rounds)]
    stats = jax.local_devices()[0].memory_stats() or {}
    row = {
        "device": jax.devices()[0].device_kind,
        "task": config.task,
        "variant": config.variant,
        "impl": str(getattr(env, "impl", asked.impl)),
        "num_envs": asked.num_envs,
        "seeds": asked.seeds,
        "updates_per_iteration": config.updates_per_step,
        "env_step_ms": round(1e3 * statistics.median(a for a, _ in pairs), 3),
        "iteration_ms": round(1e3 * statistics.median(b for _, b in pairs), 3),
        "start_s": round(start_seconds, 1),
        "replay_gb": round(ring_bytes / 1e9, 3),
        "peak_memory_gb": round(stats.get("peak_bytes_in_use", 0) / 1e9, 3) or None,
        "storage": asked.storage,
        "jax": jax.__version__,
        **{f"{name}_version": value for name, value in dataclasses.asdict(env.spec)["versions"].items()},
    }
    show(row, asked.json)


if __name__ == "__main__":
    as_command(main)
