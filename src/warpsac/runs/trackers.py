"""TensorBoard and Weights & Biases, which receive the rows too; imported when used."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from warpsac.config.schema import Config
from warpsac.errors import UserError


class Tracker(Protocol):
    def log(self, row: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def require_wandb() -> None:
    """Refuse a tracker that is not installed before training starts, not at the first row."""
    if importlib.util.find_spec("wandb") is None:
        raise UserError("log.wandb needs the wandb package: pip install 'warpsac[wandb]'")


def open_trackers(path: Path, config: Config, created: str, resumed_at: int | None) -> list[Tracker]:
    """The trackers of a run folder; `created` distinguishes runs of one name, `resumed_at` is a step."""
    trackers: list[Tracker] = []
    if config.log.tensorboard:
        trackers.append(_TensorBoard(path, resumed_at))
    if config.log.wandb:
        trackers.append(_Wandb(path, config, created))
    return trackers


class _TensorBoard:
    def __init__(self, path: Path, resumed_at: int | None):
        from tensorboardX import SummaryWriter

        purge = None if resumed_at is None else resumed_at + 1  # hides what was written beyond the checkpoint
        folder = path / "tensorboard"
        # Event files are named by the second: without a number, a quick resume would overwrite the first one.
        number = len(list(folder.glob("events*")))
        self._writer = SummaryWriter(str(folder), purge_step=purge, filename_suffix=f".{number}")

    def log(self, row: Mapping[str, Any]) -> None:
        for key, value in row.items():
            if key not in ("step", "kind") and isinstance(value, (int, float)):
                self._writer.add_scalar(key, value, row["step"])

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, path: Path, config: Config, created: str):
        import wandb

        # The same id after a resume continues the same W&B run; create_new: one W&B run per seed in one process.
        self._run = wandb.init(
            project=config.log.wandb_project, name=path.name, id=re.sub(r"\W+", "-", f"{path.name}-{created}"),
            dir=str(path), config=dataclasses.asdict(config), resume="allow", reinit="create_new",
        )  # fmt: skip
        self._run.define_metric("*", step_metric="step")

    def log(self, row: Mapping[str, Any]) -> None:
        self._run.log(dict(row))

    def close(self) -> None:
        self._run.finish()
