"""What may change when a run is resumed, and what has changed between two configs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from warpsac.config.loading import override
from warpsac.config.schema import Config
from warpsac.errors import ConfigError

# Settings that no state of a run depends on; a section stands for all its settings.
CHANGEABLE = (
    "total_steps", "stop_at", "time_budget", "learner.learning_rate", "learner.final_learning_rate",
    "devices", "eval", "checkpoint", "log",
)  # fmt: skip
# Where this machine has things, on which no result depends: config.json may be edited for another machine.
OF_THE_MACHINE = ("replay.placement", "env.workers", "env.worker_timeout", "env.menagerie", "env.humanoidbench")

Changes = dict[str, tuple[Any, Any]]
"""By dotted name: the value before, and the value now."""


def changed(config: Config, settings: Mapping[str, Any]) -> Config:
    """The config of a run that is resumed with these settings; nested ones as mappings.

    With more `total_steps` and no `stop_at` the run is trained to its new end.
    """
    new = override(config, settings)
    for path, (_, value) in differences(config, new).items():
        if not may_change(path):
            can = ", ".join(CHANGEABLE)
            raise ConfigError(path, value, f"cannot change when a run is resumed; what can: {can}")
    if new.total_steps < config.total_steps:
        raise ConfigError(
            "total_steps",
            new.total_steps,
            f"can only be raised, and the run has {config.total_steps:,}; --stop-at ends it earlier",
        )
    prolonged = new.total_steps > config.total_steps and "stop_at" not in settings
    return dataclasses.replace(new, stop_at=None) if prolonged else new


def may_change(path: str) -> bool:
    return path in CHANGEABLE or path.partition(".")[0] in CHANGEABLE


def differences(old: Config, new: Config) -> Changes:
    before, now = dict(_flat(dataclasses.asdict(old))), dict(_flat(dataclasses.asdict(new)))
    paths = dict.fromkeys([*before, *now])
    return {path: (before.get(path), now.get(path)) for path in paths if before.get(path) != now.get(path)}


def _flat(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield path + name, value
