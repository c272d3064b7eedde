"""TensorBoard and Weights & Biases: callbacks that pass every row on; imported when used."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import re
from pathlib import Path
from typing import Any

from warpsac.config.schema import Config
from warpsac.errors import in_a_line
from warpsac.runs.callbacks import RunView, Tracker
from warpsac.runs.run_folder import RunFolder


def trackers(config: Config) -> list[Tracker]:
    """Those that the settings ask for."""
    wanted: list[Tracker] = [TensorBoard()] if config.log.tensorboard else []
    return wanted + ([Wandb()] if config.log.wandb else [])


def wandb_obstacle() -> str | None:
    """Why W&B could not be used, told before training starts and not at the first row. Asks no server."""
    if importlib.util.find_spec("wandb") is None:
        return "log.wandb needs the wandb package: pip install 'warpsac[wandb]'"
    import wandb

    try:
        settings = wandb.setup().settings  # of the environment, and of W&B's own files
    except Exception as error:
        return f"log.wandb: W&B refuses its own settings ({in_a_line(error)})"
    if settings.mode in ("offline", "dryrun", "disabled") or settings.identity_token_file:
        return None
    with contextlib.redirect_stderr(io.StringIO()):  # in new versions a word about what may replace it
        # Where that is gone, the first row will show whether there is a login.
        key = getattr(getattr(wandb, "api", None), "api_key", "unknown")
    if settings.api_key or key:
        return None
    return "log.wandb: not logged in to Weights & Biases: run `wandb login`, or set WANDB_MODE=offline to sync later"


class TensorBoard(Tracker):
    def __init__(self) -> None:
        self._writers: dict[Path, Any] = {}

    def on_row(self, run: RunView, row: dict[str, Any]) -> None:
        if run.folder not in self._writers:
            self._writers[run.folder] = _event_writer(run)
        for key, value in row.items():
            if key not in ("step", "kind") and isinstance(value, (int, float)):
                self._writers[run.folder].add_scalar(key, value, row["step"])

    on_evaluation = on_row

    def on_end(self, run: RunView, reason: str) -> None:
        if run.folder in self._writers:
            self._writers.pop(run.folder).close()


def _event_writer(run: RunView) -> Any:
    from tensorboardX import SummaryWriter

    purge = None if run.resumed_at is None else run.resumed_at + 1  # hides what was written beyond the checkpoint
    folder = run.folder / "tensorboard"
    # Event files are named by the second: without a number, a quick resume would overwrite the first one.
    number = len(list(folder.glob("events*")))
    return SummaryWriter(str(folder), purge_step=purge, filename_suffix=f".{number}")


class Wandb(Tracker):
    def __init__(self) -> None:
        self._runs: dict[Path, Any] = {}

    def on_row(self, run: RunView, row: dict[str, Any]) -> None:
        if run.folder not in self._runs:
            self._runs[run.folder] = _wandb_run(run)
        self._runs[run.folder].log(row)

    on_evaluation = on_row

    def on_end(self, run: RunView, reason: str) -> None:
        if run.folder in self._runs:
            self._runs.pop(run.folder).finish()


def _wandb_run(run: RunView) -> Any:
    import wandb

    begun = RunFolder(run.folder, run.config).meta.get("time", "")  # distinguishes runs of one name
    # The same id after a resume continues the same W&B run; create_new: one W&B run per seed in one process.
    opened = wandb.init(
        project=run.config.log.wandb_project, name=run.folder.name,
        id=re.sub(r"\W+", "-", f"{run.folder.name}-{begun}"),
        dir=str(run.folder), config=dataclasses.asdict(run.config), resume="allow", reinit="create_new",
        settings=wandb.Settings(console="off"),  # or every frame of the display would be kept and sent
    )  # fmt: skip
    opened.define_metric("*", step_metric="step")
    return opened
