"""The tasks that MJLab has here: its own, those that packages announce to it, and those of unitree_rl_mjlab."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from warpsac.envs import overrides
from warpsac.envs.names import UNITREE, Target
from warpsac.envs.torch import unitree_package
from warpsac.envs.torch.base import quietly
from warpsac.errors import UserError

# Settings of a task's own config that are not for `task_config`: what to do instead.
GOVERNED = {
    "scene.num_envs": "use --env.num-envs",
    "seed": "use --seeds",
    "auto_reset": "ended episodes are reset by warpsac",
    "commands.motion.motion_file": "use --motion",
}


def task_names() -> list[str]:
    """Every task that can be made here, by name."""
    registry = _registry()
    with contextlib.suppress(UserError):  # whoever asks for one of its tasks is told why there is none
        _load_unitree()
    return list(registry.list_tasks())


def settings_of(target: Target) -> Any:
    """MJLab's own settings of a task, changed as `task_config` says."""
    task, registry = target.id, _registry()
    if task not in registry.list_tasks() and task.startswith(UNITREE):
        try:
            _load_unitree()
        except UserError as error:
            raise UserError(f"{task}: {error}") from error
    if task in registry.list_tasks() or task in task_names():
        settings = registry.load_env_cfg(task)
        overrides.apply(settings, target.overrides, target.name, GOVERNED)
        return settings
    raise UserError(
        f"{task}: the installed mjlab {metadata.version('mjlab')} has no such task; it has {', '.join(task_names())}"
    )


def _registry() -> Any:
    with without_tables():
        importlib.import_module("mjlab.tasks")
        return importlib.import_module("mjlab.tasks.registry")


def _load_unitree() -> None:
    with without_tables():
        unitree_package.load()


@contextlib.contextmanager
def without_tables() -> Iterator[None]:
    """Quietly, and without a line for each of a hundred kernels, now and later."""
    import warp

    settings: Any = warp.config
    settings.quiet = True
    if hasattr(warp, "LOG_WARNING"):
        settings.log_level = warp.LOG_WARNING
    with quietly():
        yield
