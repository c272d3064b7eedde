"""The two functions that most Python users need."""

from __future__ import annotations

from typing import Any

from warpsac import runtime, training
from warpsac.policy import LoadedPolicy, load_policy
from warpsac.settings import configure
from warpsac.training import Outcome

__all__ = ["LoadedPolicy", "Outcome", "configure", "load_policy", "train"]


def train(task: str, *, variant: str | None = None, profile: str | None = None, **settings: Any) -> Outcome:
    """Train a policy; the same as `warpsac train TASK` with the same settings."""
    config, reason = configure(task, variant=variant, profile=profile, **settings)
    runtime.use_compilation_cache()
    return training.train(config, [reason])
