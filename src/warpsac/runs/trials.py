"""trials.json: the trials of the searches of a bench, for the report. A bench writes it, and continues from
the study, which only Optuna can read."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warpsac.errors import UserError
from warpsac.runs.files import in_words, read_bytes, require_writable, write_atomically

TRIALS = "trials.json"
STATES = ("finished", "pruned", "failed", "unfinished")


@dataclass(frozen=True)
class Trial:
    number: int
    cell: str
    """The name of its folder."""
    state: str
    settings: Mapping[str, Any]
    """Those that are searched, by their dotted names."""
    value: float | None = None
    """The objective: at the end, or where it was pruned."""
    step: int | None = None
    """Where that was."""
    detail: str = ""


@dataclass(frozen=True)
class Searched:
    name: str
    """Of its origin: task, variant and label."""
    objective: str
    """In words."""
    trials: tuple[Trial, ...] = field(default=())

    @property
    def best_first(self) -> list[Trial]:
        """Finished trials, the highest first, then the others, those that got further first."""

        def rank(trial: Trial) -> tuple[float, ...]:
            value = -math.inf if trial.value is None else trial.value
            return trial.state != "finished", *((-value,) if trial.state == "finished" else ()), trial.number

        return sorted(self.trials, key=rank)


def read_trials(folder: Path) -> list[Searched]:
    """The searches of a folder; empty if it has none."""
    path = folder / TRIALS
    try:
        return [
            Searched(_text(one["name"]), _text(one["objective"]), tuple(map(_trial, one["trials"])))
            for one in json.loads(read_bytes(path))["searches"]
        ]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: {in_words(error)}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{path}: not a table of trials; remove it, and `warpsac bench` writes it again") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _trial(data: Any) -> Trial:
    trial = Trial(**data)
    value = trial.value
    if not isinstance(trial.settings, dict) or type(trial.number) is not int or trial.state not in STATES:
        raise TypeError
    if value is not None and (type(value) not in (int, float) or not abs(value) < 1e308):
        raise TypeError
    if trial.step is not None and type(trial.step) is not int:
        raise TypeError
    return dataclasses.replace(trial, cell=_text(trial.cell), detail=_text(trial.detail))


def write_trials(folder: Path, searches: Sequence[Searched]) -> None:
    content = {"searches": [dataclasses.asdict(one) for one in searches]}
    with require_writable(folder / TRIALS):
        write_atomically(folder / TRIALS, (json.dumps(content, indent=1) + "\n").encode())
