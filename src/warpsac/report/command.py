"""`warpsac report`: read run folders, write the page and the tables, print where they are."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console

from warpsac.errors import UserError, counted, printable, shortened
from warpsac.report import missing, page, runs, scoreboard, tables, trials
from warpsac.report.aggregate import Estimate, mean_and_spread
from warpsac.report.groups import short_labels
from warpsac.report.numerals import plain
from warpsac.report.study import METRICS, Study, make_study
from warpsac.runs.bench_plan import Planned
from warpsac.runs.files import in_words, read_text, write_atomically

PAGE = "index.html"
MOST_LINES = 20  # about runs that cannot be read


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Write a page with learning curves and tables of all runs in a folder."""

    folders: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="FOLDER")] = ()
    """Folders that contain run folders, at any depth."""
    out: str | None = None
    """Folder to write to; none: FOLDER/report."""
    title: str | None = None
    """Heading of the page; none: the folder's name."""
    published: bool = False
    """Report on the published curves of the benchmark tasks instead of runs."""
    scoreboard: bool = False
    """All benchmark tasks next to published results: scoreboard.md and .csv; or between the marks in --out FILE.md."""
    json: bool = False
    """Print the aggregates, or the rows of the scoreboard, as JSON instead of lines."""


# Results near the largest float have no finite mean or spread: the report shows a dash there.
@np.errstate(over="ignore", invalid="ignore")
def command(asked: ReportOptions) -> int:
    planned: list[Planned] = []
    unreadable: list[str] = []
    searches: list[trials.Found] = []
    if asked.published:
        if asked.scoreboard:
            raise UserError(
                "report takes --scoreboard or --published, not both: runs are compared with published curves"
            )
        if asked.folders:
            raise UserError("report takes folders or --published, not both: runs are drawn with published curves")
        found = runs.published_runs()
        out, title = Path(asked.out or "report-published"), "Published results"
    else:
        if not asked.folders:
            raise UserError("report needs a folder with runs: `warpsac report runs`")
        if len(asked.folders) > 1 and asked.out is None:
            raise UserError("report on several folders needs --out FOLDER to write to")
        roots = [Path(folder) for folder in asked.folders]
        found = runs.collect(roots)
        planned, unreadable = missing.find_plans(roots)
        searches, without = trials.find_searches(roots)
        unreadable += without
        if not found and not planned and not searches:
            raise UserError(f"{', '.join(asked.folders)}: no run folders here; `warpsac train` makes them")
        out = Path(asked.out) if asked.out else roots[0] / "report"
        if not asked.out and out.is_symlink():
            raise UserError(f"{out}: a symbolic link; name the folder to write to with --out")
        title = ", ".join(root.resolve().name for root in roots)
        if asked.scoreboard:
            return _scoreboard(found, out, asked)
    study = make_study(found, planned, searches)
    written = write(study, out, asked.title or title, asked.published)
    if asked.json:
        print(json.dumps(summary(study) | {"page": str(written)}))
    else:
        print(*map(printable, [*summary_lines(study), f"report: {written}"]), sep="\n")
    for line in unreadable:
        print(f"warning: {printable(line)}", file=sys.stderr)
    return 1 if found and not any(run.group for run in found) else 0  # 1: not one of them can be read


def write(study: Study, out: Path, title: str, is_published: bool = False) -> Path:
    """Write the page and the tables to `out`; returns the path of the page."""
    _write_files(out, {PAGE: page.render(study, title, is_published)} | tables.csv_files(study))
    return out / PAGE


def _write_files(out: Path, files: dict[str, str]) -> None:
    path = out / next(iter(files))
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = out / name
            # Names of folders and what is in them may hold what UTF-8 cannot. A link with that name is replaced.
            write_atomically(path, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {in_words(error)}") from error


def summary(study: Study) -> dict[str, Any]:
    """How many runs of which status, and the aggregates of each family."""
    counts = study.counts
    missing = counts.pop("missing", 0)
    return {
        "runs": dict(counts),
        "missing": missing,
        "tasks": len(study.tasks),
        "variants": [study.label(group) for group in study.groups],
        **({"searches": [_searched(of) for of in study.searches]} if study.searches else {}),
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


def _searched(found: trials.Found) -> dict[str, Any]:
    best = found.best
    return {
        "name": found.search.name,
        "trials": len(found.search.trials),
        "best": None if best is None else {"trial": best.number, "value": best.value, "settings": dict(best.settings)},
    }


def _estimate(name: str, estimate: Estimate) -> dict[str, Any]:
    """JSON has no number that is not finite."""
    value = estimate.value if math.isfinite(estimate.value) else None
    return {name: value, f"{name}_interval": estimate.interval}


def summary_lines(study: Study) -> list[str]:
    lines = [f"runs: {', '.join(f'{count} {status}' for status, count in study.counts.items())}"]
    left_out = [run for run in study.runs if run.status in ("damaged", "duplicate")]
    lines += [f"left out: {run.name}: {shortened(run.detail, 300)}" for run in left_out[:MOST_LINES]]
    if len(left_out) > MOST_LINES:
        lines.append(f"left out: {len(left_out) - MOST_LINES} more, all of them listed on the page")
    for found in study.searches:
        line = f"search {found.search.name}: {len(found.search.trials)} trials"
        if found.best is not None and found.best.value is not None:
            value = plain(found.best.value, ".6g")
            line += f", the best is {found.best.number}: {value} with {trials.words_of(found.best)}"
        lines.append(shortened(line, 300))
    for scope in study.scopes:
        comparison = scope.comparisons["auc"]
        if comparison.rows:
            values = ", ".join(f"{study.label(row.group)} {plain(row.mean.value, '.3f')}" for row in comparison.rows)
            tasks = counted(len(comparison.tasks), "task")
            lines.append(f"{scope.name}: score-step AUC over {tasks}: {values}")
    return lines + ([] if study.searches else _own(study))


def _own(study: Study) -> list[str]:
    """What was reached where no mean over several tasks says it."""
    short = dict(zip(study.groups, short_labels([group.without(study.common) for group in study.groups]), strict=True))
    means = [mean for scope in study.scopes if len((mean := scope.comparisons["auc"]).tasks) > 1]
    in_means = {(task, row.group) for mean in means for task in mean.tasks for row in mean.rows}
    lines = [
        f"{task.scale.task}, {short[group]}: {_final(task.scale.metric, task.finished[group])} at the last evaluation"
        for task in study.tasks
        for group in task.groups
        if group in task.finished and (task.scale.task, group) not in in_means
    ]
    more = len(lines) - MOST_LINES
    return lines if more <= 0 else [*lines[:MOST_LINES], f"{more} more of these, all of them on the page"]


def _final(metric: str, found: Sequence[runs.Run]) -> str:
    """The task's metric, and the success that some tasks report next to their return."""
    results = _mean_std([run.raw[-1] for run in found])
    text = f"return {results}" if metric == "return" else f"success {results} %"
    successes = [run.success for run in found if run.success is not None]
    if successes:
        text += f" and success {_mean_std(successes)} %"
    return text if len(found) == 1 else f"{text} over {len(found)} seeds"


def _mean_std(values: Sequence[float]) -> str:
    mean, std = mean_and_spread(np.array(values))
    return plain(mean, ",.1f") + ("" if std is None else f" ± {plain(std, ',.1f')}")


def _scoreboard(found: list[runs.Run], out: Path, asked: ReportOptions) -> int:
    """Write the table and say where it is."""
    if asked.title is not None:
        raise UserError("--title has no effect with --scoreboard: leave it out")
    lines = scoreboard.scoreboard(found)
    text, rows = scoreboard.markdown(lines), list(scoreboard.rows(lines))
    if out.suffix == ".md":
        written = out
        _write_files(out.parent, {out.name: scoreboard.inserted(read_text(out), text, str(out))})
    else:
        written = out / "scoreboard.md"
        _write_files(out, {written.name: text, "scoreboard.csv": tables.csv_text(scoreboard.COLUMNS, iter(rows))})
    if asked.json:
        print(json.dumps([dict(zip(scoreboard.COLUMNS, row, strict=True)) for row in rows]))
    else:
        console = Console(soft_wrap=True)
        for line in scoreboard.terminal(lines):
            console.print(line)
        left_out = [f"left out: {run.name}: {run.detail}" for run in found if run.status == "damaged"]
        print(*left_out, f"scoreboard: {written}", sep="\n")
    return 0
