"""The public Python functions: train, resume, configure, load_policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warpsac.envs.registry import configure
from warpsac.training import devices
from warpsac.training import start as training
from warpsac.training.policy import LoadedPolicy, load_policy
from warpsac.training.start import Outcome

__all__ = ["LoadedPolicy", "Outcome", "configure", "load_policy", "resume", "train"]


def train(task: str, *, variant: str | None = None, profile: str | None = None, **settings: Any) -> Outcome:
    """Train a policy; the same as `warpsac train TASK` with the same settings."""
    config, reason = configure(task, variant=variant, profile=profile, **settings)
    devices.use_compilation_cache()
    return training.train(config, [reason])


def resume(
    runs: Path | str | Sequence[Path | str],
    *,
    stop_at: int | None = None,
    time_budget: float | None = None,
    **settings: Any,
) -> Outcome:
    """Resume an interrupted run, or several seeds of one config; the same as `warpsac train --resume RUN ...`.

    `settings` are fields of `Config` that may change: eval={"every": 50_000}, a larger total_steps.
    """
    devices.use_compilation_cache()
    return training.resume([runs] if isinstance(runs, (Path, str)) else runs, stop_at, time_budget, **settings)
