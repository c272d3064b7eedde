"""Where the environments of a run are stepped: in this process, or in worker processes where that is quicker.

The numbers are the same either way, so the choice may depend on the machine and on measured time.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from warpsac.config import EnvConfig
from warpsac.envs.host import InProcessEnvs, Recipe, SeedEnvs
from warpsac.envs.workers import WorkerEnvs, WorkerLost, WorkerRefused
from warpsac.errors import UserError

MEASURED_STEPS = 20
# Seconds that a vector step costs beyond the simulator's own: for waking processes up, and for each of them.
# `benchmarks/host_loop.py` measures both sides.
WAKE_SECONDS, WORKER_SECONDS = 100e-6, 20e-6
WORTH = 1.5  # how many times that must be saved


def spread(first: InProcessEnvs, sets: int, config: EnvConfig) -> SeedEnvs:
    """`sets` sets of environments like the first, none of them made yet, wherever they are stepped best."""
    recipe = first.recipe
    if config.workers == "auto":
        workers, why = _automatic(recipe, sets)
    else:
        workers, why = min(config.workers, recipe.spec.num_envs), f"env.workers = {config.workers}"
    if workers > 0:
        try:
            made = _in_workers(recipe, sets, workers, config.worker_timeout)
            first.close()
            count = f"{sets * workers} worker process{'es' if sets * workers > 1 else ''}"
            return SeedEnvs(made, f"{count} ({why})")
        except (WorkerLost, WorkerRefused) as error:
            trouble = f"{recipe.spec.task} cannot be made in a worker process: {error}"
            if config.workers != "auto":
                raise UserError(f"{trouble}; --env.workers 0 steps it in this one") from None
            why = trouble
    every = [first, *(recipe.slice(0, recipe.spec.num_envs) for _ in range(sets - 1))]
    for one in every:
        one.make()
    return SeedEnvs(every, f"this process ({why})")


def choose(step_seconds: float, num_envs: int, sets: int, cores: int) -> int:
    """Worker processes for each set; 0: the environments are better stepped in this process.

    One core is left to the learner. With n environments in all and w processes, a vector step takes
    ceil(n / w) steps instead of n, and the time to wake the processes up.
    """
    total = num_envs * sets
    busy = min(cores - 1, total)
    if busy < 2:
        return 0
    saved = (total - math.ceil(total / busy)) * step_seconds
    workers = max(1, busy // sets)
    return workers if saved > WORTH * (WAKE_SECONDS + workers * sets * WORKER_SECONDS) else 0


def step_cost(recipe: Recipe) -> float:
    """Seconds of one step of one environment, made for this and closed again: no episode is disturbed."""
    env = recipe.build()
    random = np.random.default_rng(0)
    actions = recipe.spec.rescale(random.uniform(-1, 1, (MEASURED_STEPS, recipe.spec.action_dim)))
    try:
        return statistics.median(_times(env, actions))
    except Exception:
        return 0.0  # a faulty one shows itself when it is used
    finally:
        env.close()


def _times(env: Any, actions: np.ndarray) -> Iterable[float]:
    env.reset(seed=0)
    for action in actions:
        started = time.perf_counter()
        _, _, terminated, truncated, _ = env.step(action)
        yield time.perf_counter() - started
        if terminated or truncated:
            env.reset()


def _automatic(recipe: Recipe, sets: int) -> tuple[int, str]:
    total, cores = recipe.spec.num_envs * sets, _cores()
    if total == 1:
        return 0, "one environment"
    if cores < 3:
        return 0, f"{cores} core{'s' if cores > 1 else ''}"
    seconds = step_cost(recipe)
    workers = choose(seconds, recipe.spec.num_envs, sets, cores)
    return workers, f"a step takes {1e3 * seconds:.2f} ms, {cores} cores"


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_workers(recipe: Recipe, sets: int, workers: int, timeout: float) -> list[WorkerEnvs]:
    """All sets are started before the first is waited for."""
    made: list[WorkerEnvs] = []
    try:
        for _ in range(sets):
            made.append(WorkerEnvs(recipe, workers, timeout))
        for one in made:
            one.wait_until_made()
    except BaseException:
        for one in made:
            one.close()
        raise
    return made
