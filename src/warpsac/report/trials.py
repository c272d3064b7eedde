"""The trials of searches: which runs belong to them, their table, and the objective against each searched setting."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpsac.errors import UserError
from warpsac.report.runs import Run
from warpsac.runs.trials import TRIALS, Searched, Trial, read_trials

MOST_SHOWN = 8  # trials of a search with curves of their own: more cannot be told apart
MOST_LISTED = 200  # in the table on the page
WIDTH, HEIGHT, MARGIN = 260.0, 130.0, 8.0  # of a picture, in its own units
WIDE = 30.0  # the ratio of the ends of a range that is drawn on a logarithmic axis


@dataclass(frozen=True)
class Found:
    folder: Path
    search: Searched

    @property
    def best(self) -> Trial | None:
        first = next(iter(self.search.best_first), None)
        return first if first and first.state == "finished" else None

    @property
    def settings(self) -> list[str]:
        """The searched settings by their dotted names."""
        return list(dict.fromkeys(path for trial in self.search.trials for path in trial.settings))


def find_searches(roots: Sequence[Path]) -> tuple[list[Found], list[str]]:
    """The searches of benches in the folders, or in their direct subfolders; and lines about what is no such table."""
    folders = (folder for root in roots for folder in (root, *sorted(file.parent for file in root.glob(f"*/{TRIALS}"))))
    found, unreadable = [], []
    for folder in folders:
        try:
            found += [Found(folder, search) for search in read_trials(folder)]
        except UserError as error:
            unreadable.append(str(error))
    return found, unreadable


def marked(runs: Sequence[Run], searches: Sequence[Found]) -> list[Run]:
    """Runs of pruned trials are pruned, not interrupted; those of all but the best trials have no curves."""
    trials = {
        found.folder / trial.cell: (trial, rank)
        for found in searches
        for rank, trial in enumerate(found.search.best_first)
        if trial.cell
    }
    result = []
    for run in runs:
        trial, rank = trials.get(run.path.parent, (None, 0))
        if trial is not None and trial.state == "pruned" and run.status in ("interrupted", "no evaluations"):
            at = "" if trial.step is None else f" at step {trial.step:,}"
            run = dataclasses.replace(run, status="pruned", detail=f"by its search{at}")
        result.append(dataclasses.replace(run, shown=rank < MOST_SHOWN))
    return result


def text_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def words_of(trial: Trial) -> str:
    return " ".join(f"{path}={text_of(value)}" for path, value in trial.settings.items())


def rows(searches: Sequence[Found]) -> Iterator[tuple[Any, ...]]:
    """One for each trial, the best first, with a column for each setting that any of them searches."""
    columns = all_settings(searches)
    for found in searches:
        for trial in found.search.best_first:
            settings = (text_of(trial.settings[path]) if path in trial.settings else None for path in columns)
            yield (
                found.search.name,
                trial.number,
                trial.state,
                trial.value,
                trial.step,
                *settings,
                trial.cell,
                trial.detail,
            )


def all_settings(searches: Sequence[Found]) -> list[str]:
    return list(dict.fromkeys(path for found in searches for path in found.settings))


def pictures(found: Found) -> list[dict[str, Any]]:
    """The objective of each trial against each searched setting."""
    trials = [trial for trial in found.search.trials if trial.value is not None]
    return [_picture(path, trials, found.best) for path in found.settings] if len(trials) > 1 else []


def _picture(path: str, trials: Sequence[Trial], best: Trial | None) -> dict[str, Any]:
    known = [trial for trial in trials if path in trial.settings]
    places, left, right = _places([trial.settings[path] for trial in known])
    values = [trial.value or 0.0 for trial in known]
    low, high = min(values), max(values)
    points = [
        {
            "x": f"{MARGIN + place * (WIDTH - 2 * MARGIN):.1f}",
            "y": f"{HEIGHT - MARGIN - _share(value, low, high) * (HEIGHT - 2 * MARGIN):.1f}",
            "kind": "best" if trial is best else trial.state,
            "title": f"trial {trial.number}: {text_of(trial.settings[path])}: {value:.6g} ({trial.state})",
        }
        for trial, place, value in zip(known, places, values, strict=True)
    ]
    return {"path": path, "size": f"{WIDTH:g} {HEIGHT:g}", "left": left, "right": right, "points": points,
            "low": low, "high": high}  # fmt: skip


def _places(values: Sequence[Any]) -> tuple[list[float], str, str]:
    """Where values lie between 0 and 1, and what the ends are: numbers by size, others side by side."""
    if all(type(value) in (int, float) and abs(value) < 1e300 for value in values):
        low, high = min(values), max(values)
        if low > 0 and high / low > WIDE:
            return [_share(math.log(value), math.log(low), math.log(high)) for value in values], f"{low:g}", f"{high:g}"
        return [_share(value, low, high) for value in values], f"{low:g}", f"{high:g}"
    names = [text_of(value) for value in values]
    order = sorted(set(names))
    return [_share(order.index(name), 0, len(order) - 1) for name in names], order[0], order[-1]


def _share(value: float, low: float, high: float) -> float:
    return (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
