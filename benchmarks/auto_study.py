"""What is tried for `--variant auto` or `--profile fast`, and what came of it: one table of every configuration of a
bench.

The configurations, tasks and seeds are suites (`benchmarks/suites/auto-*.yaml`, `clock-*.yaml`), trained by

    warpsac bench benchmarks/suites/auto-limited.yaml

Seeds are 11 and up, so that what is chosen here can be reported on seeds 1 to 5. This reads folders that were trained
and shows every cell that was planned, also those of which nothing is there yet: the mean return over seeds of the last
evaluation and of the mean of all (the height of the curve), the standard deviation between seeds, how many runs fell
below 0.7 of their best in an evaluation after 30 % of the run, and the last values of what is adapted. With --share S
also `reached`: the seconds of training after which each seed first had that share of the best return that a run of the
folder has on the task; a seed that has not is left out. With --save NAME the table goes to NAME.json and NAME.csv.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common import as_command, command_line, show
from warpsac.bench.suite import DEFAULT_SEEDS
from warpsac.config.schema import Config
from warpsac.errors import UserError
from warpsac.runs import rowfiles
from warpsac.runs.bench_plan import Planned, read_plan

LATE, FALLEN = 0.3, 0.7
ADAPTED = ("learner/pessimism", "value/bias", "learner/norm_cap_actor", "learner/norm_cap_critic", "auto/choice")
COLUMNS = (
    "task",
    "configuration",
    "seeds",
    "step",
    "final",
    "final_std",
    "height",
    "height_std",
    "collapses",
    "reached",
    *ADAPTED,
)


def collapsed(returns: Sequence[float]) -> bool:
    """Whether an evaluation after 30 % of the run is below 0.7 of the best before it, counted from the first."""
    heights = np.asarray(returns) - min(returns[0], 0)
    best = np.maximum.accumulate(heights)
    return bool((heights[1:] < FALLEN * best[:-1])[round(LATE * len(returns)) :].any())


def configuration(cell: Planned) -> str:
    """The variant and the label that the suite gave it, from the cell's name."""
    return cell.name.removeprefix(cell.config.task).strip("-")


def study(cell: Planned, folder: Path) -> dict[str, Any]:
    """One row of the table."""
    config: Config = cell.config
    if taken := sorted(set(config.seeds) & set(DEFAULT_SEEDS)):
        raise UserError(f"{cell.name}: seed {taken[0]} is one that results are reported with: study with 11 and up")
    curves, seconds, adapted, steps = {}, {}, [], []
    for seed in config.seeds:
        run = next(iter(sorted((folder / cell.name).glob(f"*-seed{seed}"))), None)
        if run is None or not (evaluations := rowfiles.read_evaluations(run)):
            continue
        curves[seed] = [row["return_mean"] for row in evaluations]
        seconds[str(seed)] = [row["seconds"] for row in evaluations]
        steps.append(int(evaluations[-1]["step"]))
        rows = [row for row in rowfiles.read_metrics(run) if row["kind"] == "train"]
        adapted.append({name: row[name] for row in rows for name in ADAPTED if name in row})
    found: dict[str, Any] = {"task": config.task, "configuration": configuration(cell), "seeds": list(curves)}
    if not curves:
        return found
    finals, heights = [curve[-1] for curve in curves.values()], [float(np.mean(c)) for c in curves.values()]
    found |= {"step": min(steps), "final": _round(np.mean(finals)), "height": _round(np.mean(heights))}
    if len(curves) > 1:
        found |= {"final_std": _round(np.std(finals, ddof=1)), "height_std": _round(np.std(heights, ddof=1))}
    found["collapses"] = sum(map(collapsed, curves.values()))
    for name in ADAPTED:
        if values := [one[name] for one in adapted if name in one]:
            found[name] = [_round(value) for value in values]
    rounded = {str(seed): [_round(value) for value in curve] for seed, curve in curves.items()}
    return found | {"curves": rounded, "seconds": seconds}


def add_reached(rows: Sequence[dict[str, Any]], share: float) -> None:
    """When each seed first had this share of its task's best return."""
    trained = [row for row in rows if "curves" in row]
    best: dict[str, float] = {}
    for row in trained:
        best[row["task"]] = max(best.get(row["task"], 0.0), *map(max, row["curves"].values()))
    for row in trained:
        least = share * best[row["task"]]
        pairs = [zip(curve, row["seconds"][seed], strict=True) for seed, curve in row["curves"].items()]
        firsts = [next((round(second) for value, second in one if value >= least), None) for one in pairs]
        row["reached"] = [first for first in firsts if first is not None]


def _round(value: Any) -> float:
    return float(f"{float(value):.4g}")


def save(rows: Sequence[Mapping[str, Any]], name: str, notes: str) -> None:
    Path(f"{name}.json").write_text(json.dumps({"notes": notes, "rows": rows}, indent=1) + "\n")
    with open(f"{name}.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in row.items()}
            for row in rows
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="of `warpsac bench`")
    parser.add_argument("--save", default=None, metavar="NAME", help="also write NAME.json and NAME.csv")
    parser.add_argument("--notes", default="", help="where and how it was trained, for NAME.json")
    parser.add_argument("--share", type=float, help="of a task's best return: also show when it was reached")
    asked = parser.parse_args(arguments)
    rows = []
    for folder in asked.folders:
        if not (cells := read_plan(folder)):
            raise UserError(f"{folder}: no plan.json: not a folder of warpsac bench")
        rows += [study(cell, folder) for cell in cells]
    if asked.share is not None:
        add_reached(rows, asked.share)
    if asked.save:
        save(rows, asked.save, asked.notes)
    show(
        {f"{row['task']} {row['configuration']}": {key: row[key] for key in COLUMNS[2:] if key in row} for row in rows},
        asked.json,
    )


if __name__ == "__main__":
    as_command(main)
