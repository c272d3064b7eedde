"""Start a training run, or go on with one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from warpsac.config.schema import Config
from warpsac.config.validation import validate
from warpsac.envs import registry
from warpsac.errors import ConfigError, UserError
from warpsac.runs import run_folder
from warpsac.runs.run_folder import RunFolder
from warpsac.training import resuming
from warpsac.training.configure import require_effect
from warpsac.training.loop import Loop, Outcome

__all__ = ["Outcome", "make_loop", "resume", "train"]


def make_loop(config: Config, resumed: list[RunFolder] | None = None) -> Loop:
    """The loop that fits the task's simulator and the algorithm."""
    target = registry.lookup(config.task)
    if config.algo == "ppo":
        from warpsac.training.ppo_loop import FusedPpoLoop, HostPpoLoop, TorchPpoLoop

        if target.torch:
            return TorchPpoLoop(config, resumed)
        return (FusedPpoLoop if target.jax else HostPpoLoop)(config, resumed)
    if target.torch:
        from warpsac.training.torch_loop import TorchLoop

        return TorchLoop(config, resumed)
    if target.jax:
        from warpsac.training.fused_loop import FusedLoop

        return FusedLoop(config, resumed)
    from warpsac.training.host_loop import HostLoop

    return HostLoop(config, resumed)


def train(config: Config, notes: Sequence[str] = ()) -> Outcome:
    """Train every seed of the config from the start; `notes` are lines to show first."""
    config = validate(config)
    require_effect(config)
    with make_loop(config) as loop:
        loop.start(notes)
        return loop.run()


def resume(
    folders: Sequence[Path | str],
    stop_at: int | None = None,
    time_budget: float | None = None,
) -> Outcome:
    """Go on with interrupted runs (the seeds of one config) from their last good checkpoint."""
    runs = [run_folder.open_run(folder) for folder in folders]
    if not runs:
        raise UserError("resume needs at least one run folder")
    with contextlib.ExitStack() as locked:
        for run in runs:  # all of them, or none is touched; whoever trains there may be about to save
            run.lock()
            locked.callback(run.close)
        return _resume(runs, stop_at, time_budget)


def _resume(runs: list[RunFolder], stop_at: int | None, time_budget: float | None) -> Outcome:
    base = runs[0].config
    for run in runs[1:]:
        # Seeds that were resumed alone for a while may have been given different ends.
        ends = dataclasses.replace(run.config, stop_at=base.stop_at, time_budget=base.time_budget)
        if dataclasses.replace(ends, seeds=base.seeds, name=base.name) != base:
            raise UserError(f"{run.path} and {runs[0].path} have different settings: resume them one by one")
    config = dataclasses.replace(base, seeds=tuple(run.seed for run in runs), env=runs[0].env, time_budget=time_budget)
    if stop_at is not None:
        config = dataclasses.replace(config, stop_at=stop_at)
    validate(config)
    checkpoints = resuming.find_checkpoints(runs)
    reached = checkpoints[0].step if checkpoints else 0
    if stop_at is not None and stop_at < reached:
        raise ConfigError("stop_at", stop_at, f"the run is already at step {reached}")
    with make_loop(config, runs) as loop:
        loop.start(checkpoints=checkpoints)
        return loop.run()
