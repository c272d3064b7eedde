"""Where each run of a suite stands, read from its folder alone: however a bench ends, the next one sees what was done.

A run's folder is CELL/TASK-VARIANT-seedN below the folder of the bench, whichever seeds are trained together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from warpsac.bench.suite import Cell, leaves
from warpsac.config.schema import Config
from warpsac.errors import UserError
from warpsac.report.runs import read_run
from warpsac.runs import checkpoint, run_folder

Status = Literal["waiting", "running", "interrupted", "failed", "finished"]

NOT_SAVED = "its last step is not saved"

# Sections in which a run may differ from its plan: where and how much is written, and with which seeds.
FREE = ("seeds", "out", "name", "log", "checkpoint", "devices", "envs_per_device")


@dataclass(frozen=True)
class RunState:
    seed: int
    folder: Path
    status: Status = "waiting"
    detail: str = ""
    """What is wrong with it, as far as its folder shows."""
    reached: int = 0
    result: float | None = None
    """The last evaluation: mean return, or success in percent where that is the task's metric."""

    @property
    def begun(self) -> bool:
        """Whether it can be resumed, if only from the beginning."""
        return (self.folder / run_folder.CONFIG).exists()

    @property
    def saved(self) -> list[int]:
        """The steps of its checkpoints."""
        return checkpoint.steps(self.folder / run_folder.CHECKPOINTS)


def folder_of(cell_folder: Path, config: Config, seed: int) -> Path:
    return cell_folder / run_folder.run_name(dataclasses.replace(config, name=None), seed)


def state_of(folder: Path, seed: int) -> RunState:
    if not (folder / run_folder.CONFIG).exists():
        return RunState(seed, folder)
    run = read_run(folder, folder.name)
    detail = run.detail if run.status in ("failed", "damaged") else ""
    result = float(run.raw[-1]) if len(run.raw) else None
    # Resuming fixes what is damaged, or reports why it cannot.
    status: Status = run.status if run.status in ("finished", "running", "failed") else "interrupted"
    state = RunState(seed, folder, status, detail, run.reached, result)
    # Killed between its last evaluation and its last checkpoint. Without any checkpoint: they were removed later.
    if status == "finished" and state.saved and state.saved[-1] < run.reached:
        return dataclasses.replace(state, status="interrupted", detail=NOT_SAVED)
    return state


def states_in(cell_folder: Path, config: Config, seeds: Sequence[int]) -> list[RunState]:
    """The states of some seeds. A program saves one after the other: if it was killed when some had saved their last
    step, these are not finished either, so that all continue together from the step that all have."""
    states = [state_of(folder_of(cell_folder, config, seed), seed) for seed in seeds]
    behind = [state for state in states if state.detail == NOT_SAVED]
    return [
        dataclasses.replace(state, status="interrupted", detail="another seed's last step is not saved")
        if state.status == "finished" and any(_of_one_program(state, other) for other in behind)
        else state
        for state in states
    ]


def _of_one_program(done: RunState, behind: RunState) -> bool:
    """Whether both have the checkpoint before the last from one program: all its seeds are saved at one time."""
    step = behind.saved[-1]
    try:
        found = [checkpoint.find(state.folder / run_folder.CHECKPOINTS, step) for state in (done, behind)]
        times = [checkpoint.load(paths[0], ()).info["seconds"] for paths in found if paths]
    except (UserError, KeyError):
        return False
    return len(times) == 2 and times[0] == times[1] and done.reached == behind.reached


def states_of(bench: Path, cell: Cell, seeds: Sequence[int] | None = None) -> list[RunState]:
    """The states of these seeds of the cell; default: all of them."""
    return states_in(bench / cell.name, cell.config, cell.config.seeds if seeds is None else seeds)


def saved_steps(states: Sequence[RunState]) -> int:
    """Steps that need not be trained again, over all of these runs."""
    return sum(max(state.saved, default=0) for state in states)


def require_as_planned(bench: Path, cell: Cell) -> None:
    """Refuse a folder whose runs were trained with other settings, naming the first that differs."""
    wanted = dict(leaves(dataclasses.asdict(cell.config)))
    folders = [folder_of(bench / cell.name, cell.config, seed) for seed in cell.config.seeds]
    for link in filter(Path.is_symlink, [bench / "logs", bench / cell.name, *folders]):
        raise UserError(f"{link}: a symbolic link, and a bench writes to its own folder only: move it away")
    for folder in folders:
        try:
            config = run_folder.open_run(folder).config
        except UserError:
            continue  # no run yet; or its state says what is wrong
        for path, found in leaves(dataclasses.asdict(config)):
            if path.partition(".")[0] not in FREE and found != wanted[path]:
                raise UserError(
                    f"{folder} was trained with {path} = {found!r}, the suite says {wanted[path]!r}: "
                    "choose another --out, or move the folder away"
                )
