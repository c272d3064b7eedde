"""The config of a task, and what a task has to do with what a user asks for; without JAX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warpsac.config.loading import override
from warpsac.config.profiles import resolve
from warpsac.config.schema import Config, EnvConfig
from warpsac.envs import registry
from warpsac.errors import ConfigError, UserError

NO_LIMIT = ("probe-native",)  # families whose episodes have a fixed length
# The families that use a setting of `EnvConfig`; settings that are not listed are used by all.
USED_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("pushes", "randomize", "full_reset", "impl"), ("playground",)),
    "cameras": ("mjlab", "sim2real"),
    "action_limit": ("mjlab", "sim2real", "isaaclab", "gymnasium"),  # whose actions may have no bounds
    "workers": tuple(
        family for family in registry.FAMILIES if family not in (*registry.JAX_FAMILIES, *registry.TORCH_FAMILIES)
    ),
    "episode_limit": tuple(family for family in registry.FAMILIES if family not in NO_LIMIT),
}
ALWAYS_TRUE: dict[str, tuple[object, ...]] = {"workers": (0,)}  # values that also describe a simulator without them


def has_effect(family: str, name: str) -> bool:
    """Whether the simulators of a family use a setting of `EnvConfig`."""
    return family in USED_BY.get(name, (family,))


def require_effect(config: Config) -> None:
    """Refuse settings that the simulator ignores: the run would look as if it had used them."""
    target, defaults = registry.lookup(config.task), EnvConfig()
    for name in USED_BY:
        value = getattr(config.env, name)
        if not has_effect(target.family, name) and value not in (getattr(defaults, name), *ALWAYS_TRUE.get(name, ())):
            raise ConfigError(f"env.{name}", value, f"has no effect on {target.name}: leave it out")


def require_no_task(name: str, way_out: str) -> None:
    """Refuse a task where a run folder is expected; `way_out` says what to do with it."""
    if Path(name).exists():
        return
    try:
        task = registry.lookup(name).name
    except UserError:
        return
    raise UserError(f"{task}: a task, not a run folder; {way_out.format(task)}")


def defaults_of(
    task: str, num_envs: int | None, variant: str | None, profile: str | None, algo: str | None
) -> tuple[Config, str]:
    """The config that a task gets by default, and the line that explains its variant."""
    target = registry.lookup(task)
    return resolve(
        target.name, regime=target.regime, family=target.family,
        num_envs=num_envs, variant=variant, profile=profile, algo=algo,
    )  # fmt: skip


def configure(
    task: str, *, variant: str | None = None, profile: str | None = None, **settings: Any
) -> tuple[Config, str]:
    """The config of a task and the line that explains its variant.

    `settings` are fields of `Config`; nested ones as dictionaries: replay={"batch_size": 256}.
    """
    env = settings.get("env")
    num_envs = env.get("num_envs") if isinstance(env, Mapping) else None
    config, reason = defaults_of(task, num_envs, variant, profile, settings.pop("algo", None))
    return override(config, settings), reason
