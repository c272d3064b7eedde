"""Milliseconds of one whole interaction on a torch simulator, and of the simulator step alone.

    python benchmarks/torch_loop.py --task Mjlab-Velocity-Flat-Unitree-G1 --json

`env_step_ms` hands random actions from JAX to the simulator and takes its step back; `iteration_ms` acts, steps, stores
and makes the profile's updates, as in training. The two are measured in turn, `--rounds` times; medians are printed.
`start_s` is the time from nothing to the simulator's first steps. `waits` counts the calls of one interaction that made
the host wait for the GPU, by file and line of the caller (reported by torch; none on a CPU).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

from common import as_command, command_line, positive, show
from warpsac.envs import registry
from warpsac.errors import UserError
from warpsac.training import devices
from warpsac.training import start as training
from warpsac.training.api import configure
from warpsac.training.loop import Loop
from warpsac.training.stepped import SteppedDriver

SMALL = {"replay": {"capacity": 6400, "batch_size": 64}, "learner": {"actor_width": 32, "critic_width": 32}}


def configuration(asked: argparse.Namespace, out: str) -> Any:
    """That of training; with few environments, to try it on a CPU, a small ring and small networks."""
    few = asked.num_envs < 64
    changes: dict[str, Any] = dict(SMALL, learning_starts=10 * asked.num_envs) if few else {}
    config, _ = configure(
        asked.task,
        variant=asked.variant,
        out=out,
        env={"num_envs": asked.num_envs},
        log={"tensorboard": False},
        **changes,
    )
    return config


def waits_of(action: Callable[[], Any]) -> dict[str, int]:
    """How often something made the host wait for the GPU meanwhile, by place."""
    import torch

    if not torch.cuda.is_available():
        return {}
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            action()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    places = collections.Counter("/".join(one.filename.split("/")[-3:]) + f":{one.lineno}" for one in caught)
    return dict(places.most_common(20))


def measured(loop: Loop, asked: argparse.Namespace, started: float) -> dict[str, Any]:
    import torch

    driver = loop.driver
    assert isinstance(driver, SteppedDriver)
    (env,) = driver.simulators.envs.sets
    draw = jax.jit(lambda key: jax.random.uniform(key, (asked.num_envs, env.spec.action_dim), minval=-1.0))
    keys = iter(jax.random.split(jax.random.key(7), (asked.rounds + 1) * asked.steps + 1))

    def step() -> None:
        env.send(draw(next(keys)))
        env.recv()

    def interact() -> None:
        driver.advance(1)

    def milliseconds(action: Callable[[], Any]) -> float:
        finish()
        begun = time.perf_counter()
        for _ in range(asked.steps):
            action()
        finish()
        return 1e3 * (time.perf_counter() - begun) / asked.steps

    def finish() -> None:
        jax.block_until_ready(driver.state.agent.learner)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    step()
    finish()
    start_seconds = time.perf_counter() - started
    driver.advance(loop.config.warmup_interactions + 3)
    pairs = [(milliseconds(step), milliseconds(interact)) for _ in range(asked.rounds + 1)][1:]  # the first warms up
    iteration = statistics.median(b for _, b in pairs)
    return {
        "env_step_ms": round(statistics.median(a for a, _ in pairs), 3),
        "iteration_ms": round(iteration, 3),
        "updates_per_iteration": loop.config.updates_per_step,
        "steps_per_second": round(1e3 * asked.num_envs / iteration, 1),
        "start_s": round(start_seconds, 1),
        "jax_gb": round((jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9, 3) or None,
        "torch_gb": round(torch.cuda.max_memory_reserved() / 1e9, 3) if torch.cuda.is_available() else None,
        "waits": waits_of(interact),
        "torch": torch.__version__,
        "jax": jax.__version__,
        **env.spec.versions,
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--task", default="Mjlab-Velocity-Flat-Unitree-G1")
    parser.add_argument("--variant", default="warpsac-a")
    parser.add_argument("--num-envs", type=positive, default=1024)
    parser.add_argument("--steps", type=positive, default=100, help="interactions in one measurement")
    parser.add_argument("--rounds", type=positive, default=3)
    asked = parser.parse_args(words)
    devices.use_compilation_cache()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(sys.stderr):
        config = configuration(asked, out)
        if not registry.lookup(config.task).torch:
            raise UserError(f"--task {asked.task}: no task of a torch simulator")
        with training.prepared(config) as loop:
            row = measured(loop, asked, started)
    named = {"device": jax.devices()[0].device_kind, "task": asked.task, "variant": asked.variant}
    show({**named, "num_envs": asked.num_envs, **row}, asked.json)


if __name__ == "__main__":
    as_command(main)
