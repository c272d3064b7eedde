"""Milliseconds of one PPO iteration on a JAX simulator, and of its two halves by themselves.

`iteration_ms` is the program that training runs: a rollout and all updates on it. `rollout_ms` only collects,
`update_ms` only learns, each as a program of its own on the same sizes. They are measured in turn, `--rounds`
times; medians are printed. `start_s` is the time from nothing to the end of the first iteration, compilation
included.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common import as_command, command_line, fused_driver, positive, show
from warpsac.envs import registry
from warpsac.training import fused
from warpsac.training.api import configure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--task", default="G1JoystickFlatTerrain")
    parser.add_argument("--profile", default=None)
    parser.add_argument("--num-envs", type=positive, default=4096)
    parser.add_argument("--seeds", type=positive, default=1)
    parser.add_argument("--impl", choices=["auto", "jax", "warp"], default="auto")
    parser.add_argument("--iterations", type=positive, default=4, help="in one measurement")
    parser.add_argument("--rounds", type=positive, default=5)
    asked = parser.parse_args(arguments)

    started = time.perf_counter()
    config, _ = configure(
        asked.task,
        algo="ppo",
        profile=asked.profile,
        seeds=tuple(range(1, asked.seeds + 1)),
        env={"num_envs": asked.num_envs, "impl": asked.impl},
    )
    env: Any = registry.make_jax(config.task, asked.num_envs, config.env)
    driver = fused_driver(config, env)
    algorithm, steps = driver.algorithm, config.ppo.rollout_steps

    def iterate() -> None:
        driver.advance(steps * asked.iterations)
        jax.block_until_ready(driver.state.agent.learner)

    driver.advance(steps)
    jax.block_until_ready(driver.state.agent.learner)
    start_seconds = time.perf_counter() - started

    keys = driver.keys
    rollout = functools.partial(fused.advance, algorithm, env, learning=False, phase=0, rounds=1)
    collect = jax.jit(rollout, donate_argnums=0)
    learn = jax.jit(functools.partial(fused.learn, algorithm, phase=0), donate_argnums=0)
    # Copies: each program donates its state.
    collected, learned = (jax.tree.map(jnp.copy, driver.state) for _ in range(2))

    def rollouts() -> None:
        nonlocal collected
        for _ in range(asked.iterations):
            collected = collect(collected, keys, np.int32(0), np.int32(1))
        jax.block_until_ready(collected)

    def updates() -> None:
        nonlocal learned
        for _ in range(asked.iterations):
            learned = learn(learned, keys)
        jax.block_until_ready(learned)

    def milliseconds(work: Callable[[], None]) -> float:
        begun = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - begun) / asked.iterations

    works = (iterate, rollouts, updates)
    for work in works:
        work()
    measured = [[milliseconds(work) for work in works] for _ in range(asked.rounds)]
    iteration, rollout_ms, update_ms = (statistics.median(column) for column in zip(*measured, strict=True))
    memory = jax.local_devices()[0].memory_stats() or {}
    row = {
        "device": jax.devices()[0].device_kind,
        "task": config.task,
        "impl": str(getattr(env, "impl", asked.impl)),
        "num_envs": asked.num_envs,
        "seeds": asked.seeds,
        "rollout_steps": steps,
        "updates": algorithm.updates_per_round,
        "minibatch": steps * asked.num_envs // config.ppo.minibatches,
        "dtype": config.ppo.compute,
        "iteration_ms": round(iteration, 3),
        "rollout_ms": round(rollout_ms, 3),
        "update_ms": round(update_ms, 3),
        "steps_per_second": round(1e3 * steps * asked.num_envs / iteration),
        "start_s": round(start_seconds, 1),
        "peak_memory_gb": round(memory.get("peak_bytes_in_use", 0) / 1e9, 3) or None,
        "jax": jax.__version__,
        **{f"{name}_version": value for name, value in env.spec.versions.items()},
    }
    show(row, asked.json)


if __name__ == "__main__":
    as_command(main)
