"""`warpsac report`: read run folders, write the page and the tables, say where they are."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from warpsac.errors import UserError
from warpsac.report import page, runs, tables
from warpsac.report.aggregate import Estimate
from warpsac.report.missing import find_plans
from warpsac.report.numerals import plain
from warpsac.report.study import METRICS, Study, make_study
from warpsac.runs.files import in_words, write_atomically

PAGE = "index.html"


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Write a page with learning curves and tables of all runs in a folder."""

    folders: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="FOLDER")] = ()
    """Folders with run folders in them, at any depth."""
    out: str | None = None
    """Where to write; default: FOLDER/report."""
    title: str | None = None
    """Heading of the page; default: the folder's name."""
    published: bool = False
    """Instead of runs, the published curves of the benchmark tasks."""
    json: bool = False
    """Print the aggregates as one JSON object instead of lines."""


# Results near the largest number there is have no mean and no spread: where one is missing, a dash says so.
@np.errstate(over="ignore", invalid="ignore")
def command(asked: ReportOptions) -> int:
    if asked.published:
        if asked.folders:
            raise UserError("report takes folders or --published, not both: published curves are drawn beside runs")
        found, planned = runs.published_runs(), []
        out, title = Path(asked.out or "report-published"), "Published results"
    else:
        if not asked.folders:
            raise UserError("report needs a folder with runs: `warpsac report runs`")
        if len(asked.folders) > 1 and asked.out is None:
            raise UserError("report on several folders needs --out FOLDER for what it writes")
        roots = [Path(folder) for folder in asked.folders]
        found, planned = runs.collect(roots), find_plans(roots)
        if not found and not planned:
            raise UserError(f"{', '.join(asked.folders)}: no run folders here; `warpsac train` makes them")
        out = Path(asked.out) if asked.out else roots[0] / "report"
        title = ", ".join(root.resolve().name for root in roots)
    study = make_study(found, planned)
    written = write(study, out, asked.title or title, asked.published)
    if asked.json:
        print(json.dumps(summary(study) | {"page": str(written)}))
        return 0
    for line in in_lines(study):
        print(line)
    print(f"report: {written}")
    return 0


def write(study: Study, out: Path, title: str, is_published: bool = False) -> Path:
    """The page and the tables in `out`; returns the page."""
    path = out / PAGE
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.render(study, title, is_published).encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {in_words(error)}") from error
    tables.write_tables(study, out)
    return path


def summary(study: Study) -> dict[str, Any]:
    """How many runs of which status, and the aggregates of each family."""
    counts: dict[str, int] = dict(Counter(run.status for run in study.runs))
    return {
        "runs": counts,
        "missing": sum(len(gap.seeds) for gap in study.missing),
        "tasks": len(study.tasks),
        "variants": [study.label(group) for group in study.groups],
        "families": {
            scope.name: {
                metric: {
                    study.label(row.group): {**_estimate("mean", row.mean), **_estimate("iqm", row.iqm),
                                             "tasks": len(scope.comparisons[metric].tasks), "runs": row.runs}
                    for row in scope.comparisons[metric].rows
                }
                for metric in METRICS
            }
            for scope in study.scopes
        },
    }  # fmt: skip


def _estimate(name: str, estimate: Estimate) -> dict[str, Any]:
    """JSON knows no number that is not finite."""
    interval = estimate.interval if estimate.interval and all(map(math.isfinite, estimate.interval)) else None
    return {name: estimate.value if math.isfinite(estimate.value) else None, f"{name}_interval": interval}


def in_lines(study: Study) -> list[str]:
    """What came out, for the screen."""
    counts = Counter(run.status for run in study.runs)
    missing = sum(len(gap.seeds) for gap in study.missing)
    said = [f"{count} {status}" for status, count in counts.most_common()] + ([f"{missing} missing"] if missing else [])
    lines = [f"runs: {', '.join(said)}"]
    for scope in study.scopes:
        comparison = scope.comparisons["auc"]
        if comparison.rows:
            values = ", ".join(f"{study.label(row.group)} {plain(row.mean.value, '.3f')}" for row in comparison.rows)
            count = len(comparison.tasks)
            lines.append(f"{scope.name}: score-step AUC over {count} task{'s' if count > 1 else ''}: {values}")
    return lines
