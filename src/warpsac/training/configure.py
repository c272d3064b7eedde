"""The config of a task from what a user says about it; without JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpsac.config.profiles import resolve
from warpsac.config.schema import Config, EnvConfig
from warpsac.config.validation import override
from warpsac.envs import registry
from warpsac.errors import ConfigError

NO_LIMIT = ("probe-native",)  # families whose episodes are as long as they are
# The families that heed a setting which others pass over.
HEEDED_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("pushes", "randomize", "full_reset", "impl"), ("playground",)),
    "cameras": ("mjlab", "sim2real"),
    "action_limit": ("mjlab", "sim2real", "isaaclab", "gymnasium"),  # whose actions may have no bounds
    "workers": tuple(
        family for family in registry.FAMILIES if family not in (*registry.JAX_FAMILIES, *registry.TORCH_FAMILIES)
    ),
    "episode_limit": tuple(family for family in registry.FAMILIES if family not in NO_LIMIT),
}

TRUE_OF_ALL: dict[str, tuple[object, ...]] = {"workers": (0,)}  # may be said of a simulator that does not heed it


def heeds(family: str, name: str) -> bool:
    """Whether a setting of `EnvConfig` means something to the simulators of a family."""
    return family in HEEDED_BY.get(name, (family,))


def require_effect(config: Config) -> None:
    """Tell whoever asks a simulator for what it does not do: the run would look as if it did."""
    target, usual = registry.lookup(config.task), EnvConfig()
    for name in HEEDED_BY:
        value = getattr(config.env, name)
        if not heeds(target.family, name) and value not in (getattr(usual, name), *TRUE_OF_ALL.get(name, ())):
            raise ConfigError(f"env.{name}", value, f"has no effect on {target.name}: leave it out")


def configure(
    task: str, *, variant: str | None = None, profile: str | None = None, **settings: Any
) -> tuple[Config, str]:
    """The config of a task and the line that explains its variant.

    `settings` are fields of `Config`; nested ones as dictionaries: replay={"batch_size": 256}.
    """
    target = registry.lookup(task)
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
