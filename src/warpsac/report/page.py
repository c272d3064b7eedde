"""The report as one HTML page that needs nothing else: styles, script and data are inside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import Any

from warpsac.config.provenance import own_version
from warpsac.report import payload, sections
from warpsac.report.groups import Group
from warpsac.report.runs import Run
from warpsac.report.sections import Labels, duration, family_title
from warpsac.report.study import Metric, Scope, Study, TaskResults

# One colour for each variant, (on white, on black), told apart with any colour vision; ablations take the rest.
COLOURS = {
    "warpsac-l": ("#0072b2", "#5ab4f0"),
    "warpsac-a": ("#d55e00", "#ff9a52"),
    "warpsac-norm-off": ("#009e73", "#3fd6a8"),
    "flashsac": ("#6b7280", "#b4bcc8"),
    "ppo": ("#8e44ad", "#d59bf0"),
}
SPARE_COLOURS = (
    ("#b8860b", "#f0c24b"), ("#cc79a7", "#f2a7cd"), ("#332288", "#9a8cff"), ("#117733", "#7ccf8b"),
    ("#882255", "#e083b3"), ("#44aa99", "#7fded0"), ("#999933", "#d6d66b"), ("#5b4636", "#c9a98f"),
)  # fmt: skip

# What a table of pairs needs to be read, in rem: for the names of its rows, and for each of its columns.
LABEL_ROOM, COLUMN_ROOM = 9.0, 5.5

# What the headline table can show: metric, which of its estimates, title.
HEADLINES: tuple[tuple[Metric, str, str], ...] = (
    ("auc", "mean", "Score-step AUC"),
    ("final", "iqm", "Final score, IQM"),
    ("final", "mean", "Final score, mean"),
    ("wall_auc", "mean", "Wall-time AUC"),
)


def colours(groups: list[Group]) -> list[tuple[str, str]]:
    """The first group of a variant has the variant's own colour, which is that of its published curve; whatever else
    there is takes the spare ones in turn."""
    spare = iter(SPARE_COLOURS * (len(groups) // len(SPARE_COLOURS) + 1))
    first = {group.variant: number for number, group in reversed(list(enumerate(groups)))}
    return [
        COLOURS[group.variant] if first[group.variant] == number and group.variant in COLOURS else next(spare)
        for number, group in enumerate(groups)
    ]


def render(study: Study, title: str, is_published: bool = False) -> str:
    labels = Labels(study)
    plain = [group.without(study.common) for group in study.groups]
    charts = payload.charts(study, is_published)
    data = {
        "groups": [labels.short[group] for group in study.groups],
        "variants": [group.variant for group in study.groups],
        "charts": charts,
        "mode": "published" if is_published else "runs",
    }
    parts = {
        "title": escape(title),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": escape(own_version() or "of unknown version"),
        "style": _part("page.css") + _palette(plain),
        "legend": "".join(
            f'<button type="button" class="chip" aria-pressed="true" data-toggle="{i}">{labels.brief(group)}</button>'
            for i, group in enumerate(study.groups)
        ),
        "published": "" if is_published else _published_legend(charts),
        "tiles": _tiles(study, is_published),
        "cautions": _cautions(study, is_published),
        "headlines": _headlines(study, labels),
        "pairwise": _overall(study, labels),
        "contents": _contents(study),
        "families": "".join(_family(study, labels, family) for family in _families(study)),
        "trouble": sections.trouble(study, labels),
        "provenance": _published_source() if is_published else sections.provenance(study),
        "runs": sections.all_runs(study, labels),
        # "</" would end the script element, wherever it stands in a name
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("</", "<\\/"),
        "script": _part("page.js"),
    }
    page = _part("page.html")
    for name in parts:
        assert page.count(f"{{{{{name}}}}}") >= 1, name
    # In one pass: what is put in is not searched for further places.
    pieces = page.split("{{")
    return pieces[0] + "".join(parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces[1:]))


def _part(name: str) -> str:
    return resources.files("warpsac.report").joinpath(name).read_text(encoding="utf-8")


def _palette(groups: list[Group]) -> str:
    found = colours(groups)
    named = {**{f"g{i}": pair for i, pair in enumerate(found)}, **COLOURS}
    light, dark = ("".join(f"--{name}:{pair[side]};" for name, pair in named.items()) for side in (0, 1))
    return (
        f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n@media print{{:root:root:root{{{light}}}}}\n"
    )


def _published_legend(charts: dict[str, Any]) -> str:
    """A key to every dashed curve, of variants without a run too."""
    series = (series for chart in charts.values() for series in chart.get("steps", {}).get("series", ()))
    drawn = {one["published"] for one in series if "published" in one}
    if not drawn:
        return ""
    keys = "".join(
        f'<button type="button" class="chip" aria-pressed="true" data-toggle-published="{variant}">'
        f'<span class="dashes" style="--c:var(--{variant})"></span>{variant}</button>'
        for variant in COLOURS
        if variant in drawn
    )
    every = '<button type="button" class="chip" aria-pressed="true" data-published>published</button>'
    return f'<div class="legend" role="group" aria-label="published curves, click to hide or show">{every}{keys}</div>'


def _tiles(study: Study, is_published: bool) -> str:
    count = Counter(run.status for run in study.runs)
    missing = sum(len(gap.seeds) for gap in study.missing)
    seconds = sum(_seconds_of_programs(study.runs))
    tiles = [
        (str(count["finished"]), "published mean curves" if is_published else "finished runs", ""),
        (str(len(study.tasks)), f"task{'s' if len(study.tasks) != 1 else ''}", ""),
        (str(len(study.groups)), f"variant{'s' if len(study.groups) != 1 else ''}", ""),
    ]
    if seconds:
        tiles.append((duration(seconds), "of training in all", ""))
    for status in ("running", "interrupted", "failed", "damaged", "no evaluations", "duplicate"):
        if count[status]:
            tiles.append((str(count[status]), status, "bad" if status in ("failed", "damaged") else "warn"))
    if missing:
        tiles.append((str(missing), "missing", "warn"))
    return "".join(
        f'<div class="tile {kind}"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for value, name, kind in tiles
    )


def _seconds_of_programs(runs: Sequence[Run]) -> Iterable[float]:
    """Seeds trained together began in one second, by one command, and each carry the time of all: it counts once."""
    longest: dict[Any, float] = {}
    for run in runs:
        if len(run.seconds):
            began = run.meta.get("time"), str(run.meta.get("command"))
            key = began if began[0] else run.path
            longest[key] = max(longest.get(key, 0.0), float(run.seconds[-1]))
    return longest.values()


def _cautions(study: Study, is_published: bool) -> str:
    """What a reader should know before comparing."""
    if is_published:
        return ""
    notes = []
    if study.common:
        settings = ", ".join(f"{name}={value}" for name, value in study.common)
        notes.append(f"All runs share settings that are not the defaults of their tasks: {settings}.")
    seeds = [len(runs) for task in study.tasks for runs in task.finished.values()]
    if seeds and min(seeds) < 3:
        few = sum(n < 3 for n in seeds)
        notes.append(
            f"{few} of {len(seeds)} curves rest on fewer than three seeds: bands and intervals say little there."
        )
    early = [_early(task) for task in study.tasks]
    if any(early):
        notes.append(f"Told to stop before the end of their schedule: {', '.join(filter(None, early))}.")
    commits = {str(run.origin("git").get("commit")) for run in study.runs if run.finished and run.meta}
    if len(commits) > 1:
        notes.append(f"The runs come from {len(commits)} different commits; see where they come from, below.")
    mixed = [task.scale.task for task in study.tasks if len(_machines(task)) > 1]
    if mixed:
        names = ", ".join(mixed[:3]) + (" and others" if len(mixed) > 3 else "")
        notes.append(f"Wall times on {names} were measured on different machines and do not compare.")
    short = [
        f"{study.label(group)} on {task.scale.task}"
        for task in study.tasks
        for group in task.finished
        if task.step_range and group not in task.compared
    ]
    if short:
        names = ", ".join(short[:3]) + (f" and {len(short) - 3} more" if len(short) > 3 else "")
        notes.append(
            "No AUC for runs that end before the others of their task, or were judged only once, and no comparison of "
            f"the final score for the former: {names}."
        )
    return f'<ul class="cautions">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""


def _early(task: TaskResults) -> str:
    """How far the finished runs of a task were to go, if none of them to the end of its schedule."""
    runs = [run for group in task.finished.values() for run in group]
    if not runs or not all(run.told_to_stop_early for run in runs):
        return ""
    furthest = max(runs, key=lambda run: run.end_step)
    return f"{task.scale.task} (at {furthest.end_step:,} of {furthest.total_steps:,} steps)"


def _machines(task: TaskResults) -> set[tuple[str, ...]]:
    return {sections.origin(run)[3:] for runs in task.finished.values() for run in runs if run.meta}


def _headlines(study: Study, labels: Labels) -> str:
    """One table for each measure; the script shows one at a time, paper shows all."""
    if not study.scopes:
        return '<p class="none">No finished run on a task with reference scores yet: nothing to aggregate.</p>'
    tabs, panels = [], []
    for number, (metric, measure, title) in enumerate(HEADLINES):
        if not any(scope.comparisons[metric].rows for scope in study.scopes):
            continue
        tabs.append(f'<button type="button" role="tab" data-tab="{number}">{title}</button>')
        panels.append(
            f'<div class="panel" data-panel="{number}"><h3 class="paper">{title}</h3>'
            f"{sections.headline(study, labels, metric, measure)}</div>"
        )
    if not tabs:
        return '<p class="none">No task has finished runs of all variants: nothing to aggregate.</p>'
    return f'<div class="tabs" role="tablist">{"".join(tabs)}</div>{"".join(panels)}'


def _has_curve(scope: Scope) -> bool:
    return len(scope.tasks) > 1 and (scope.step_curve is not None or scope.wall_curve is not None)


def _scope(study: Study, labels: Labels, number: int) -> str:
    """The curve over all tasks of a scope, beside how its variants fare against each other."""
    scope = study.scopes[number]
    curve = f'<figure class="chart big" data-chart="scope-{number}"></figure>' if _has_curve(scope) else ""
    pairs = "".join(sections.pairwise(scope, labels, metric) for metric in ("auc", "final"))
    inside = f'<div>{curve}</div><div class="against">{pairs}</div>' if curve and pairs else curve + pairs
    compared = {group for comparison in scope.comparisons.values() for pair in comparison.pairs for group in pair[:2]}
    room = f"--least:{LABEL_ROOM + COLUMN_ROOM * len(compared):g}rem"
    return f'{sections.scope_notes(scope, labels)}<div class="two" style="{room}">{inside}</div>'


def _overall(study: Study, labels: Labels) -> str:
    """All families, or the only one."""
    if not study.scopes:
        return '<p class="none">Nothing to compare yet.</p>'
    title = escape(family_title(study.scopes[-1].name))
    return f"<h3>{title}</h3>{_scope(study, labels, len(study.scopes) - 1)}"


def _families(study: Study) -> list[str]:
    return list(dict.fromkeys(task.scale.family for task in study.tasks))


def _contents(study: Study) -> str:
    return "".join(f'<a href="#{family}">{escape(family_title(family))}</a>' for family in _families(study))


def _family(study: Study, labels: Labels, family: str) -> str:
    """Curves first: the family's own, if it has one, beside its tables; then a card for each task."""
    numbers = {scope.name: number for number, scope in enumerate(study.scopes[:-1])}  # the last stands above
    whole = _scope(study, labels, numbers[family]) if family in numbers else ""
    cards = [
        f'<article class="card"><h3>{escape(task.scale.task)}</h3><p class="facts">{sections.task_facts(task)}</p>'
        f'<figure class="chart" data-chart="task-{number}"></figure>'
        f"<div>{sections.favour_note(task)}{sections.task_table(task, labels)}</div></article>"
        for number, task in enumerate(study.tasks)
        if task.scale.family == family
    ]
    tasks = f'<div class="cards{" lone" if len(cards) == 1 else ""}">{"".join(cards)}</div>'
    curve_first = family in numbers and _has_curve(study.scopes[numbers[family]])
    body = whole + tasks if curve_first else tasks + whole
    return f'<section class="family" id="{family}"><h2>{escape(family_title(family))}</h2>{body}</section>'


def _published_source() -> str:
    return (
        "<p>Means and standard deviations over seeds that the method's and the baseline's authors published with "
        "their code, at seven fractions of the training horizon. The aggregates treat each mean curve as one run, so "
        "they have no intervals. Baseline curves of 50 M-step tasks other than MJLab's are labelled about 1 % of "
        "the horizon later than the evaluation they report; no step-0 evaluations and no wall times were published.</p>"
    )
