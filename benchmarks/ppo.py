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
from warpsac.training.ppo_engine import FusedPpoEngine, make_setup

from common import as_command, command_line, positive, show
from warpsac.envs import registry
from warpsac.training import ppo_engine
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
    setup = make_setup(config, env.spec)
    engine = FusedPpoEngine(setup, config.seeds, env, env)
    steps = config.ppo.rollout_steps

    def iterate() -> None:
        engine.advance(0, steps * asked.iterations)
        jax.block_until_ready(engine.learner)

    engine.advance(0, steps)
    jax.block_until_ready(engine.learner)
    start_seconds = time.perf_counter() - started

    collect = jax.jit(functools.partial(ppo_engine.collect, setup, env), donate_argnums=0)
    state, _, counter, _ = jax.tree.map(jnp.copy, engine.arguments(0, 1))
    state, rollout = collect(state, engine.keys, np.int32(0))
    trained = jax.tree.map(jnp.copy, state.trained)

    def rollouts() -> None:
        nonlocal state, rollout
        for _ in range(asked.iterations):
            state, rollout = collect(state, engine.keys, counter)
        jax.block_until_ready(rollout)

    def updates() -> None:
        nonlocal trained
        for _ in range(asked.iterations):
            trained = engine.programs.learn(trained, rollout, engine.keys)
        jax.block_until_ready(trained)

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
        "updates": setup.updates_per_rollout,
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
