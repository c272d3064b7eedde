"""The report as one self-contained HTML page: templates/ holds the HTML, this module the data that it shows."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import jinja2
import numpy as np

from warpsac.config.profiles import default_variant
from warpsac.config.provenance import own_version
from warpsac.envs import published
from warpsac.report import arms, charts, trials
from warpsac.report.aggregate import mean_and_spread
from warpsac.report.groups import Group, short_labels
from warpsac.report.numerals import DASH, duration, number, raw_number, with_minus
from warpsac.report.runs import Run
from warpsac.report.study import AREAS, Metric, Study, TaskResults

# One colour for each variant, (on white, on black), distinct for any colour vision; ablations take the spare ones.
COLOURS = {
    "warpsac-l": ("#0072b2", "#5ab4f0"),
    "warpsac-a": ("#d55e00", "#ff9a52"),
    "warpsac-norm-off": ("#009e73", "#3fd6a8"),
    "flashsac": ("#6b7280", "#b4bcc8"),
    "auto": ("#c2185b", "#ff7fb0"),
    "ppo": ("#8e44ad", "#d59bf0"),
}
SPARE_COLOURS = (
    ("#b8860b", "#f0c24b"), ("#cc79a7", "#f2a7cd"), ("#332288", "#9a8cff"), ("#117733", "#7ccf8b"),
    ("#882255", "#e083b3"), ("#44aa99", "#7fded0"), ("#999933", "#d6d66b"), ("#5b4636", "#c9a98f"),
)  # fmt: skip

# The tabs of the headline table: metric, which of its estimates, title.
HEADLINES: tuple[tuple[Metric, str, str], ...] = (
    ("auc", "mean", "Score-step AUC"),
    ("final", "iqm", "Final score, IQM"),
    ("final", "mean", "Final score, mean"),
    ("wall_auc", "mean", "Wall-time AUC"),
)
PAIRED: tuple[tuple[Metric, str], ...] = (("auc", "Score-step AUC"), ("final", "Final score"))

# Width that a table of pairs needs, in rem: for the names of its rows, and for each of its columns.
LABEL_WIDTH, COLUMN_WIDTH = 9.0, 5.5

Data = dict[str, Any]
Labels = Mapping[Group, Data]


def colours(groups: list[Group]) -> list[tuple[str, str]]:
    """The first group of a variant has the variant's own colour, as its published curve does; others get spare ones."""
    spare, own = itertools.cycle(SPARE_COLOURS), dict(COLOURS)
    return [own.pop(group.variant) if group.variant in own else next(spare) for group in groups]


def render(study: Study, title: str, is_published: bool = False) -> str:
    labels, numbers = _labels(study), _arm_numbers(study)
    families = dict.fromkeys(task.scale.family for task in study.tasks if task.groups)
    known = {variant for task in study.tasks for variant in published.curves(task.scale.task)}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("warpsac.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["setting"] = trials.text_of
    filters = (number, raw_number, with_minus, duration, share, default_variant, published.published_notes)
    environment.filters |= {function.__name__: function for function in filters}
    environment.tests["finite"] = math.isfinite
    return environment.get_template("page.html.j2").render(
        title=title,
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=own_version() or "of unknown version",
        palette={f"g{i}": pair for i, pair in enumerate(colours(study.groups))}
        | {f"a{i}": pair for i, pair in enumerate(colours([Group(arm.partition(",")[0]) for arm in numbers]))}
        | COLOURS,
        study=study,
        trouble=[run for run in study.runs if not run.finished],
        is_published=is_published,
        labels=labels,
        in_full=[
            label
            for group in study.groups
            if (label := labels[group])["short"] != label["name"] and group.without(study.common).is_long
        ],
        training_seconds=_training_seconds(study.runs),
        cautions=_cautions(study),
        published_variants=[] if is_published else [variant for variant in COLOURS if variant in known],
        searches=[
            {"search": found.search, "settings": found.settings, "pictures": trials.pictures(found)}
            for found in study.searches
        ],
        most_shown=trials.MOST_SHOWN,
        most_listed=trials.MOST_LISTED,
        panels=_panels(study, labels),
        has_scores=any(task.scale.bounds for task in study.tasks),
        overall=_scope(study, labels, len(study.scopes) - 1) if study.scopes else None,
        families=[_family(study, labels, numbers, family) for family in families],
        provenance=_provenance(study),
        data={
            "groups": [labels[group]["short"] for group in study.groups],
            "variants": [group.variant for group in study.groups],
            "charts": charts.charts(study, is_published),
            "mode": "published" if is_published else "runs",
        },
    )


def share(value: float, top: float) -> str:
    """A position on a line from 0 to `top`, in percent."""
    return f"{100 * min(max(value / top, 0.0), 1.0):.1f}"


def _labels(study: Study) -> Labels:
    """The names of the groups, and the number of their colour and switch: None for a group that has no run yet, or is
    not shown."""
    short = short_labels([group.without(study.common) for group in study.groups])
    others = [gap.group for gap in study.missing] + [run.group for run in study.runs if run.group and not run.shown]
    missing = {group: {"number": None, "name": study.label(group)} for group in others}
    numbered = {
        group: {"number": i, "name": study.label(group), "short": short[i]} for i, group in enumerate(study.groups)
    }
    return missing | numbered


def _arm_numbers(study: Study) -> dict[str, int]:
    """The arms of all runs, and the number of their colour."""
    found = (run.arms.arms for run in study.runs if run.arms)
    return {arm: i for i, arm in enumerate(dict.fromkeys(itertools.chain(*found)))}


# --- the head of the page -------------------------------------------------------------------------------


def _training_seconds(runs: Sequence[Run]) -> float:
    """Seeds trained together started in the same second, by one command, and each record the time of all: it counts
    once."""
    longest: dict[Any, float] = {}
    for run in runs:
        if run.total_seconds is not None:
            started = run.meta.get("time")
            key = (str(started), str(run.meta.get("command"))) if started else run.path
            longest[key] = max(longest.get(key, 0.0), run.total_seconds)
    return sum(longest.values())


def _cautions(study: Study) -> Data:
    """What a reader should know before comparing."""
    seeds = [len(runs) for task in study.tasks for runs in task.finished.values()]
    without_area = [
        (f"{study.label(group)} on {task.scale.task}", group in task.shorter)
        for task in study.tasks
        for group in task.finished
        if "steps" in task.ranges and group not in task.compared["steps"]
    ]
    return {
        "curves": len(seeds),
        "with_few_seeds": sum(count < 3 for count in seeds),
        "stopped_early": [max(runs, key=lambda run: run.end_step) for runs in map(_finished, study.tasks)
                          if runs and all(run.set_to_stop_early for run in runs)],
        "commits": len({str(run.origin("git").get("commit")) for run in study.runs if run.finished and run.meta}),
        "several_machines": [task.scale.task for task in study.tasks
                             if len({_origin(run)[3:] for run in _finished(task) if run.meta}) > 1],
        "shorter": [name for name, is_shorter in without_area if is_shorter],
        "without_area": [name for name, is_shorter in without_area if not is_shorter],
    }  # fmt: skip


def _finished(task: TaskResults) -> list[Run]:
    return [run for runs in task.finished.values() for run in runs]


# --- means over tasks -----------------------------------------------------------------------------------


def _panels(study: Study, labels: Labels) -> list[Data]:
    """A table for each headline, families down and variants across: one estimate in each cell."""
    panels = []
    for metric, measure, title in HEADLINES:
        shown = [(scope.name, scope.comparisons[metric]) for scope in study.scopes if scope.comparisons[metric].rows]
        found = {name: {row.group: getattr(row, measure) for row in comparison.rows} for name, comparison in shown}
        groups = [group for group in study.groups if any(group in estimates for estimates in found.values())]
        rows = [
            {
                "family": name,
                "comparison": comparison,
                "cells": [(labels[group], found[name].get(group)) for group in groups],
                "best": max(estimate.value for estimate in found[name].values()) if len(found[name]) > 1 else None,
            }
            for name, comparison in shown
        ]
        if rows:
            top = max(1.0, *(estimate.value for estimates in found.values() for estimate in estimates.values()))
            panels.append({"title": title, "labels": [labels[group] for group in groups], "rows": rows, "top": top})
    return panels


def _scope(study: Study, labels: Labels, number: int) -> Data:
    """The curve over all tasks of a scope, and its variants against each other."""
    scope = study.scopes[number]
    pairings = []
    for metric, title in PAIRED:
        pairs = {(pair.group, pair.against): pair for pair in scope.comparisons[metric].pairs}
        groups = [group for group in study.groups if any(group in key for key in pairs)]
        rows = [
            (labels[group], [(labels[against], pairs.get((group, against))) for against in groups]) for group in groups
        ]
        if rows:
            pairings.append({"title": title, "labels": [label for label, _ in rows], "rows": rows})
    compared = {pair.group for comparison in scope.comparisons.values() for pair in comparison.pairs}
    # The mean over one task is the curve of its card.
    over_tasks = any(len(scope.comparisons[AREAS[over]].tasks) > 1 for over in scope.curves)
    return {
        "name": scope.name,
        "comparison": scope.comparisons["auc"],
        "left_out": [labels[group]["name"] for group in scope.comparisons["auc"].left_out],
        "chart": f"scope-{number}" if over_tasks else None,
        "pairings": pairings,
        "shown": over_tasks or bool(pairings),
        "least_width": f"{LABEL_WIDTH + COLUMN_WIDTH * len(compared):g}rem",
    }


# --- families and tasks ---------------------------------------------------------------------------------


def _family(study: Study, labels: Labels, arm_numbers: Mapping[str, int], family: str) -> Data:
    numbers = {scope.name: number for number, scope in enumerate(study.scopes[:-1])}  # the last one is shown above
    return {
        "name": family,
        "scope": _scope(study, labels, numbers[family]) if family in numbers else None,
        "tasks": [
            _task(labels, task) | {"chart": f"task-{number}", "arms": _arms(labels, arm_numbers, task)}
            for number, task in enumerate(study.tasks)
            if task.scale.family == family and task.groups
        ],
    }


def _task(labels: Labels, task: TaskResults) -> Data:
    scale, rows = task.scale, []
    final, auc, wall = (task.values(metric) for metric in ("final", "auc", "wall_auc"))
    show = number if scale.bounds else raw_number
    has_success = any(run.success is not None for run in _finished(task))
    for group in task.groups:
        runs = task.finished.get(group, [])
        ended_early = group in task.shorter or any(run.ended_by_budget or run.set_to_stop_early for run in runs)
        remark = f"at {runs[0].steps[-1]:,.0f}" if ended_early and runs else ""
        raw = np.array([run.raw[-1] for run in runs])
        cells = [_mean_std(final.get(group), number, remark), _mean_std(raw, raw_number)]
        if not scale.bounds:
            cells = [_mean_std(raw, raw_number, remark)]
        cells += [_mean_std(auc.get(group), show), _mean_std(wall.get(group), show)]
        if has_success:
            successes = [run.success for run in runs if run.success is not None]
            cells.insert(-2, _mean_std(np.array(successes), raw_number))
        unfinished = len(task.unfinished.get(group, ()))
        rows.append({"label": labels[group], "runs": len(runs), "unfinished": unfinished, "cells": cells})
    return {"scale": scale, "rows": rows, "has_success": has_success, "favour": published.favour(scale.task)}


def _arms(labels: Labels, numbers: Mapping[str, int], task: TaskResults) -> list[Data]:
    """A picture for each run with several arms."""
    runs = [(group, run) for found in (task.finished, task.unfinished) for group, of in found.items() for run in of]
    return [
        {
            "label": labels[group],
            "seed": run.seed,
            "picture": arms.picture(run.arms),
            "colours": [numbers[arm] for arm in run.arms.arms],
        }
        for group, run in runs
        if run.arms
    ]


def _mean_std(values: np.ndarray | None, show: Callable[[float], str], remark: str = "") -> Data | None:
    """A cell of a task's table: the mean, and in small print its standard deviation and a remark."""
    if values is None or not len(values):
        return None
    mean, std = mean_and_spread(values)
    small = [] if std is None else [f"± {show(std)}"]
    return {"mean": mean, "text": show(mean), "small": [*small, remark] if remark else small}


# --- where the runs come from ---------------------------------------------------------------------------


def _origin(run: Run) -> tuple[str, ...]:
    """Package version, commit, other versions, device and machine of a run, as text."""
    git, versions, meta = run.origin("git"), run.origin("versions"), run.meta
    commit = str(git.get("commit", ""))[:10] + (" (changed)" if git.get("dirty") else "") if git else "not a checkout"
    others = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "warpsac")
    listed = meta.get("accelerators")
    devices = Counter(map(str, listed if isinstance(listed, list) else ()))
    device = ", ".join(f"{n} \N{MULTIPLICATION SIGN} {name}" if n > 1 else name for name, n in devices.items()) or DASH
    machine = f"{meta.get('cpu', 'unknown CPU')}, {meta.get('cpu_count', '?')} cores"
    return (str(versions.get("warpsac", "")), commit, others, device, machine)


def _provenance(study: Study) -> Data:
    """One row for each combination of code, versions and machine; a column that nobody fills is left out."""
    found = Counter(_origin(run) for run in study.runs if run.meta)
    names = ("warpsac", "commit", "versions", "device", "machine")
    filled = [column for column in range(len(names)) if any(origin[column] for origin in found)]
    return {
        "names": [names[column] for column in filled],
        "rows": [(count, [origin[column] for column in filled]) for origin, count in found.most_common()],
    }
