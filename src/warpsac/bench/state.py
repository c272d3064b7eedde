"""Where each run of a suite stands, as its folder tells. There is no other record: whatever ends a bench, the next
one sees what is there.

A run's folder is CELL/TASK-VARIANT-seedN below the folder of the bench, however seeds are put together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from warpsac.bench.suite import Cell
from warpsac.config.schema import Config
from warpsac.errors import UserError
from warpsac.report.runs import read_run
from warpsac.runs import checkpoint, run_folder

Status = Literal["waiting", "running", "interrupted", "failed", "finished"]

# Settings in which a run may differ from what is planned: where and how much is written, and with which seeds.
FREE = ("seeds", "out", "name", "log", "checkpoint")


@dataclass(frozen=True)
class RunState:
    seed: int
    folder: Path
    status: Status = "waiting"
    detail: str = ""
    """What is wrong with it, if its folder tells."""
    reached: int = 0
    result: float | None = None
    """The last evaluation: mean return, or success in percent where that is the task's metric."""


def folder_of(cell_folder: Path, config: Config, seed: int) -> Path:
    return cell_folder / run_folder.run_name(dataclasses.replace(config, name=None), seed)


def state_of(folder: Path, seed: int) -> RunState:
    if not (folder / run_folder.CONFIG).exists():
        return RunState(seed, folder)
    run = read_run(folder, folder.name)
    status: Status
    detail = run.detail if run.status in ("failed", "damaged") else ""
    if run.status == "finished" and not _saved_its_end(folder, run.reached):
        status, detail = "interrupted", "its last step is not saved"
    elif run.status == "finished" or run.status == "running" or run.status == "failed":
        status = run.status
    else:  # resuming mends what can be mended, and says what cannot
        status = "interrupted"
    result = float(run.raw[-1]) if len(run.raw) else None
    return RunState(seed, folder, status, detail, run.reached, result)


def _saved_its_end(folder: Path, end: int) -> bool:
    """A program killed after its last evaluation may not have saved yet. Without any checkpoint: they were removed."""
    saved = checkpoint.steps(folder / run_folder.CHECKPOINTS)
    return not saved or saved[-1] >= end


def states_of(bench: Path, cell: Cell) -> list[RunState]:
    return [state_of(folder_of(bench / cell.name, cell.config, seed), seed) for seed in cell.config.seeds]


def saved_steps(states: Sequence[RunState]) -> int:
    """Steps that would not have to be made again, over all of these runs."""
    return sum(max(checkpoint.steps(state.folder / run_folder.CHECKPOINTS), default=0) for state in states)


def require_as_planned(bench: Path, cell: Cell) -> None:
    """Runs that are there were trained with the settings that are asked for now, or a UserError says which differ."""
    for seed in cell.config.seeds:
        folder = folder_of(bench / cell.name, cell.config, seed)
        try:
            config = run_folder.open_run(folder).config
        except UserError:
            continue  # none yet; or its state will say what is wrong
        for path, there, wanted in _differences(config, cell.config):
            raise UserError(
                f"{folder} was trained with {path} = {there!r}, the suite says {wanted!r}: choose another --out, "
                "or move the folder away"
            )


def _differences(one: Config, other: Config) -> Iterator[tuple[str, Any, Any]]:
    def walk(left: dict[str, Any], right: dict[str, Any], path: str) -> Iterator[tuple[str, Any, Any]]:
        for name, value in left.items():
            if isinstance(value, dict):
                yield from walk(value, right[name], f"{path}{name}.")
            elif value != right[name]:
                yield path + name, value, right[name]

    left, right = (
        {name: value for name, value in dataclasses.asdict(config).items() if name not in FREE}
        for config in (one, other)
    )
    yield from walk(left, right, "")
