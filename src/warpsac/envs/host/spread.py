"""Where the environments of a run are stepped: in this process, or in worker processes where that is faster.

The numbers are the same either way, so the choice may depend on the machine and on measured time.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.envs.host.vector import FAULTS, InProcessEnvs, Recipe, SeedEnvs
from warpsac.envs.host.workers import WorkerEnvs, WorkerLost, WorkerRefused
from warpsac.errors import UserError, counted
from warpsac.types import rescale

MEASURED = 20  # steps, and messages
# Seconds that a vector step costs beyond the simulator's own, on an average machine: for waking processes up, and for
# each of them. A first estimate that avoids starting them in vain; then it is measured.
WAKE_SECONDS, WORKER_SECONDS = 100e-6, 20e-6
WORTH = 1.5  # how many times that must be saved


def spread(first: InProcessEnvs, sets: int, config: EnvConfig) -> SeedEnvs:
    """`sets` sets of environments like the first, none of them made yet, stepped wherever that is fastest."""
    recipe, task = first.recipe, first.spec.task
    try:
        if config.workers == "auto":
            made, why = _automatic(recipe, sets, config.worker_timeout)
        else:
            workers, why = min(config.workers, recipe.spec.num_envs), f"env.workers = {config.workers}"
            made = _in_workers(recipe, sets, workers, config.worker_timeout)
    except (WorkerLost, WorkerRefused) as error:
        made, why = [], f"{task} cannot be made in a worker process: {error}"
        if config.workers != "auto":
            instead = "use --env.workers 0 to step it in this process"
            if "<module '__main__'" in str(error):  # a worker process does not run the script that defines it
                instead = f"define it in a module of its own, or {instead}"
            raise UserError(f"{why}; {instead}") from None
    if made:
        first.close()
        count = sum(one.workers for one in made)
        return SeedEnvs(made, f"{count} worker process{'es' if count > 1 else ''} ({why})")
    every = [first, *(recipe.slice(0, recipe.spec.num_envs) for _ in range(sets - 1))]
    for one in every:
        one.make()
    return SeedEnvs(every, f"this process ({why})" if why else "this process")


def choose(step_seconds: float, num_envs: int, sets: int, cores: int, wake_seconds: float | None = None) -> int:
    """Worker processes for each set; 0: stepping in this process is faster.

    One core is left to the learner. With n environments in all and w processes, a vector step takes
    ceil(n / w) steps instead of n, plus the time to wake the processes up.
    """
    total = num_envs * sets
    busy = min(cores - 1, total)
    if busy < 2:
        return 0
    workers = max(1, busy // sets)
    if wake_seconds is None:
        wake_seconds = WAKE_SECONDS + workers * sets * WORKER_SECONDS
    saved = (total - math.ceil(total / busy)) * step_seconds
    return workers if saved > WORTH * wake_seconds else 0


def _automatic(recipe: Recipe, sets: int, timeout: float) -> tuple[list[WorkerEnvs], str]:
    """The sets in worker processes, none if this process is faster; and why, if there was a choice."""
    num_envs, cores = recipe.spec.num_envs, _cores()
    if num_envs * sets == 1:
        return [], ""
    if cores < 3:
        return [], counted(cores, "core")
    step = step_cost(recipe)
    why = f"a step takes {1e3 * step:.2f} ms, {cores} cores"
    made = _in_workers(recipe, sets, choose(step, num_envs, sets, cores), timeout)
    if made and not choose(step, num_envs, sets, cores, wake := wake_cost(made)):
        for one in made:
            one.close()
        return [], f"{why}, but {1e3 * wake:.2f} ms to wake worker processes up"
    return made, why


def step_cost(recipe: Recipe) -> float:
    """Seconds of one step, on an environment made for this and closed again: no episode is disturbed."""
    env = recipe.build()
    random = np.random.default_rng(0)
    actions = rescale(
        random.uniform(-1, 1, (MEASURED, recipe.spec.action_dim)), recipe.spec.action_low, recipe.spec.action_high
    )
    with contextlib.closing(env):
        try:
            return statistics.median(_times(env, actions))
        except FAULTS:
            return 0.0  # a faulty environment is noticed when it is used


def wake_cost(made: Sequence[WorkerEnvs]) -> float:
    """Seconds until all worker processes have answered a command to do nothing."""

    def once() -> float:
        started = time.perf_counter()
        for one in made:
            one.post("nothing")
        for one in made:
            one.wait()
        return time.perf_counter() - started

    return statistics.median(once() for _ in range(MEASURED))


def _times(env: Any, actions: np.ndarray) -> Iterable[float]:
    env.reset(seed=0)
    for action in actions:
        started = time.perf_counter()
        _, _, terminated, truncated, _ = env.step(action)
        yield time.perf_counter() - started
        if terminated or truncated:
            env.reset()


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_workers(recipe: Recipe, sets: int, workers: int, timeout: float) -> list[WorkerEnvs]:
    """All sets are started before the first is waited for; none if `workers` is 0."""
    made: list[WorkerEnvs] = []
    try:
        for _ in range(sets if workers else 0):
            made.append(WorkerEnvs(recipe, workers, timeout))
        for one in made:
            one.wait()
    except BaseException:
        for one in made:
            one.close()
        raise
    return made
