"""The config of a task from what a user says about it; without JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpsac import envs
from warpsac.config import Config
from warpsac.profiles import resolve
from warpsac.validation import override


def configure(
    task: str, *, variant: str | None = None, profile: str | None = None, **settings: Any
) -> tuple[Config, str]:
    """The config of a task and the line that explains its variant.

    `settings` are fields of `Config`; nested ones as dictionaries: replay={"batch_size": 256}.
    """
    target = envs.lookup(task)
    env = settings.get("env")
    config, reason = resolve(
        target.name,
        regime=target.regime,
        family=target.family,
        num_envs=env.get("num_envs") if isinstance(env, Mapping) else None,
        variant=variant,
        profile=profile,
        algo=settings.pop("algo", None),
    )
    return override(config, settings), reason
