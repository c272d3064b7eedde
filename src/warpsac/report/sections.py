"""The parts of the page that are there without any script: tables, lists and words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from warpsac.config.profiles import default_variant
from warpsac.envs import published
from warpsac.report.aggregate import Estimate, spread
from warpsac.report.groups import Group, short_labels
from warpsac.report.numerals import plain
from warpsac.report.runs import Run
from warpsac.report.study import Comparison, Metric, Scope, Study, TaskResults

FAMILY_TITLES = {
    "mujoco": "Gym-MuJoCo",
    "dmc": "DeepMind Control",
    "myosuite": "MyoSuite",
    "humanoidbench": "HumanoidBench",
    "playground": "MuJoCo Playground",
    "mjlab": "MJLab",
    "maniskill": "ManiSkill",
    "isaaclab": "Isaac Lab",
    "sim2real": "Sim-to-real",
    "other": "Other tasks",
    "all families": "All families",
}

DASH, TIMES = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"
UNKNOWN = f'<span class="none">{DASH}</span>'

METRIC_TITLES: dict[Metric, str] = {"auc": "Score-step AUC", "final": "Final score", "wall_auc": "Wall-time AUC"}


def family_title(name: str) -> str:
    return FAMILY_TITLES.get(name, name)


def table(head: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    """`head` and `rows` are finished cells; the script makes the columns sortable."""
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{"".join(head)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def th(text: str, title: str = "", attributes: str = "") -> str:
    hint = f' title="{escape(title)}"' if title else ""
    return f'<th scope="col"{hint} {attributes}>{escape(text)}</th>'


def td(text: Any, sort: float | str | None = None, attributes: str = "") -> str:
    key = f' data-sort="{escape(str(sort))}"' if sort is not None else ""
    return f"<td{key} {attributes}>{text}</td>"


class Labels:
    """Variants by number, name and colour, as all parts of the page show them."""

    def __init__(self, study: Study):
        self.study = study
        self.index = {group: number for number, group in enumerate(study.groups)}
        short = short_labels([group.without(study.common) for group in study.groups])
        self.short = dict(zip(study.groups, short, strict=True))

    def mark(self, group: Group) -> str:
        """What lets the script hide an element with its variant."""
        return f'data-g="{self.index[group]}"'

    def brief(self, group: Group) -> str:
        """The chip where there is little room; the whole name shows under the pointer."""
        return f'<span title="{escape(self.study.label(group))}">{self.chip(group, self.short[group])}</span>'

    def chip(self, group: Group, name: str | None = None) -> str:
        first, *settings = (escape(word) for word in (name or self.study.label(group)).split())
        number = self.index.get(group)  # none for a variant that is planned and has no run yet
        key = "" if number is None else f'<span class="key" style="--c:var(--g{number})"></span>'
        return " ".join(
            [
                f'<span class="word">{key}{first}</span>',
                *(f'<span class="word">{w.replace("=", "=<wbr>")}</span>' for w in settings),
            ]
        )


def number(value: float, digits: int = 3) -> str:
    return _with_minus(value, f".{digits}f")


def raw_number(value: float) -> str:
    return _with_minus(value, ",.0f" if abs(value) >= 1000 else ".1f" if abs(value) >= 10 else ".2f")


def _with_minus(value: float, form: str) -> str:
    """A dash where sums of huge results are not finite."""
    return plain(value, form).replace("-", "\N{MINUS SIGN}") if math.isfinite(value) else DASH


def interval_text(estimate: Estimate, digits: int = 3) -> str:
    if estimate.interval is None or not all(map(math.isfinite, estimate.interval)):
        return ""
    low, high = (number(end, digits) for end in estimate.interval)
    return f'<span class="ci">{low} {DASH} {high}</span>'


def bar(estimate: Estimate, top: float, group: int) -> str:
    """A small dot on a line from 0 to `top`, with its interval."""
    if not math.isfinite(estimate.value / top):
        return ""
    x = lambda value: f"{100 * min(max(value / top, 0.0), 1.0):.1f}"
    low, high = estimate.interval or (estimate.value, estimate.value)
    return (
        f'<svg class="dot" viewBox="0 0 108 10" aria-hidden="true" style="--c:var(--g{group})">'
        '<g transform="translate(4 5)"><line class="track" x2="100"/>'
        f'<line class="whisker" x1="{x(low)}" x2="{x(high)}"/><circle r="3.6" cx="{x(estimate.value)}"/></g></svg>'
    )


# --- aggregates -----------------------------------------------------------------------------------------


def headline(study: Study, labels: Labels, metric: Metric, measure: str) -> str:
    """Families down, variants across: one number with its interval in each cell."""
    rows = []
    shown = [(scope, scope.comparisons[metric]) for scope in study.scopes]
    shown = [(scope, comparison) for scope, comparison in shown if comparison.rows]
    if not shown:
        return '<p class="none">No finished runs have this yet.</p>'
    present = {row.group for _, comparison in shown for row in comparison.rows}
    groups = [group for group in study.groups if group in present]
    top = max(getattr(row, measure).value for _, comparison in shown for row in comparison.rows)
    for scope, comparison in shown:
        found = {row.group: getattr(row, measure) for row in comparison.rows}
        best = max(estimate.value for estimate in found.values())
        cells = [td(escape(family_title(scope.name))), td(_of_tasks(comparison), len(comparison.tasks))]
        for group in groups:
            estimate = found.get(group)
            if estimate is None:
                cells.append(td(UNKNOWN, -1, labels.mark(group)))
                continue
            strong = "b" if estimate.value == best and len(found) > 1 else "span"
            dot = bar(estimate, max(top, 1.0), labels.index[group])
            text = f"<{strong}>{number(estimate.value)}</{strong}>{interval_text(estimate)}{dot}"
            cells.append(td(text, estimate.value, labels.mark(group)))
        kind = ' class="total"' if scope.name == "all families" else ""
        rows.append(f"<tr{kind}>{''.join(cells)}</tr>")
    head = [th("family"), th("tasks")]
    head += [f'<th scope="col" {labels.mark(group)}>{labels.brief(group)}</th>' for group in groups]
    return table(head, rows, "headline")


def _of_tasks(comparison: Comparison) -> str:
    some, every = len(comparison.tasks), comparison.all_tasks
    return str(some) if some == every else f'{some} <span class="ci">of {every}</span>'


def pairwise(scope: Scope, labels: Labels, metric: Metric) -> str:
    """How likely a run of the row's variant beats one of the column's."""
    pairs = {(pair.group, pair.against): pair for pair in scope.comparisons[metric].pairs}
    groups = [group for group in labels.study.groups if any(group in key for key in pairs)]
    if len(groups) < 2:
        return ""
    rows = []
    for group in groups:
        cells = [f'<th scope="row">{labels.brief(group)}</th>']
        for against in groups:
            pair = pairs.get((group, against))
            if pair is None:
                cells.append(td('<span class="none">·</span>', attributes=labels.mark(against)))
                continue
            value = pair.probability.value
            gain = f"{'+' if pair.difference >= 0 else ''}{number(pair.difference)}"
            hint = (
                f"{labels.study.label(group)} against {labels.study.label(against)} on {pair.tasks} tasks: mean "
                f"difference {gain}, higher on {pair.higher}, lower on {pair.lower}"
            )
            tint = f"--p:{abs(value - 0.5) * 2:.2f}"
            side = "win" if value > 0.5 else "loss" if value < 0.5 else "even"
            below = f'<span class="gain">{gain} on {pair.tasks}</span>'
            text = f"{number(value, 2)}{interval_text(pair.probability, 2)}{below}"
            title = f'title="{escape(hint)}" class="{side}" style="{tint}" {labels.mark(against)}'
            cells.append(td(text, attributes=title))
        rows.append(f"<tr {labels.mark(group)}>{''.join(cells)}</tr>")
    head = [th("beats →")]
    head += [f'<th scope="col" {labels.mark(group)}>{labels.brief(group)}</th>' for group in groups]
    what = '<span class="soft">chance that a run of the row beats one of the column</span>'
    return f'<div class="pairing"><h4>{METRIC_TITLES[metric]} {what}</h4>{table(head, rows, "pairs plain")}</div>'


def scope_notes(scope: Scope, labels: Labels) -> str:
    """Which variants are not in a family's table, and why; or why there is none."""
    comparison = scope.comparisons["auc"]
    out = [labels.study.label(group) for group in comparison.left_out]
    if comparison.all_tasks and not comparison.rows:
        why = "every variant has fewer than half of them" if comparison.tasks else "none of them has all variants"
        return f'<p class="note">No mean over the {comparison.all_tasks} tasks: {why}.</p>'
    notes = []
    if len(comparison.tasks) < comparison.all_tasks and comparison.tasks:
        notes.append(f"take the {len(comparison.tasks)} of {comparison.all_tasks} tasks that all their variants have")
    if out:
        notes.append(f"leave out {', '.join(out)}, with fewer than half of the tasks")
    return f'<p class="note">Aggregates {escape(" and ".join(notes))}.</p>' if notes else ""


# --- one task -------------------------------------------------------------------------------------------


def task_table(task: TaskResults, labels: Labels) -> str:
    final, auc, wall = (task.values(metric) for metric in ("final", "auc", "wall_auc"))
    rows = []
    for group in task.groups:
        runs = task.finished.get(group, [])
        seeds = str(len(runs)) if runs else f'<span class="none">0/{len(task.unfinished[group])}</span>'
        cells = [td(labels.brief(group), labels.study.label(group)), td(seeds, len(runs))]
        ended_early = group in task.shorter or any(run.ended_by_budget or run.told_to_stop_early for run in runs)
        remark = f"at {runs[0].steps[-1]:,.0f}" if ended_early and runs else ""
        if task.scale.bounds:
            cells.append(_mean_std(final.get(group), number, remark))
        raw_remark = "" if task.scale.bounds else remark
        cells.append(_mean_std(np.array([run.raw[-1] for run in runs]), raw_number, raw_remark))
        show = number if task.scale.bounds else raw_number
        cells += [_mean_std(auc.get(group), show), _mean_std(wall.get(group), show)]
        rows.append(f"<tr {labels.mark(group)}>{''.join(cells)}</tr>")
    head = [th("variant"), th("n", "seeds: finished runs")]
    head += [th("final", "normalised score of the last evaluation")] if task.scale.bounds else []
    raw_name = "success %" if task.scale.metric == "success" else "return"
    head += [th(raw_name, "at the last evaluation"), th("AUC", "score-step AUC"), th("wall AUC", "wall-time AUC")]
    return table(head, rows, "small")


def _mean_std(values: np.ndarray | None, show: Callable[[float], str], remark: str = "") -> str:
    if values is None or not len(values):
        return td(UNKNOWN, -1e18)
    small = [f"± {show(float(spread(values)))}"] if len(values) > 1 else []
    small += [remark] if remark else []
    return td(show(float(values.mean())) + "".join(f' <span class="ci">{part}</span>' for part in small),
              float(values.mean()))  # fmt: skip


def favour_note(task: TaskResults) -> str:
    """What the published data say on a task where it is not the regime's default."""
    found = published.favour(task.scale.task)
    if found is None:
        return ""
    factor = 100.0 if task.scale.metric == "success" else 1.0
    unit = " % success" if task.scale.metric == "success" else ""
    best, default = raw_number(factor * found.value), raw_number(factor * found.default_value)
    return (
        f'<p class="favour">Published data favour <b>{found.variant}</b> here: {best}{unit} at the end, '
        f"against {default} for {found.default}, the default.</p>"
    )


def task_facts(task: TaskResults) -> str:
    known, facts = task.scale.known, []
    if known:
        facts.append(f"data-{known.regime}, default {default_variant(known.regime)}")
    if task.scale.bounds:
        low, high = (f"{bound:,.6g}".replace("-", "\N{MINUS SIGN}") for bound in task.scale.bounds)
        facts.append(f"score 0 at {low}, 1 at {high}{' % success' if task.scale.metric == 'success' else ''}")
    else:
        facts.append("no reference scores: raw values, not in the aggregates")
    return escape(" · ".join(facts))


# --- runs and where they come from ----------------------------------------------------------------------


def trouble(study: Study, labels: Labels) -> str:
    rows = []
    for run in study.trouble:
        variant = labels.chip(run.group) if run.group else "?"
        seed = "?" if run.seed is None else str(run.seed)
        rows.append(
            f"<tr>{td(_badge(run.status), run.status)}{td(escape(run.task))}{td(variant)}{td(seed)}"
            f"{td(escape(run.name))}{td(escape(run.detail), attributes='class=wide')}</tr>"
        )
    why = "planned, and not begun" if study.planned else "others of this grid are there"
    for gap in study.missing:
        seeds = ", ".join(map(str, gap.seeds))
        rows.append(
            f"<tr>{td(_badge('missing'), 'missing')}{td(escape(gap.task))}{td(labels.chip(gap.group))}{td(seeds)}"
            f"{td(UNKNOWN)}{td(why, attributes='class=wide')}</tr>"
        )
    if not rows:
        return '<p class="good">None: every run of the grid that these folders draw up is there and finished.</p>'
    return table([th(name) for name in ("status", "task", "variant", "seed", "run", "what happened")], rows, "list")


def _badge(status: str) -> str:
    return f'<span class="badge {escape(status.replace(" ", "-"))}">{escape(status)}</span>'


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def all_runs(study: Study, labels: Labels) -> str:
    rows = []
    for run in study.runs:
        variant = labels.chip(run.group) if run.group else "?"
        seconds = float(run.seconds[-1]) if len(run.seconds) else None
        score = float(run.scores[-1]) if len(run.raw) and run.scale and run.scale.bounds else None
        rows.append(
            f"<tr>{td(escape(run.name))}{td(_badge(run.status), run.status)}{td(escape(run.task))}{td(variant)}"
            f"{td(run.seed, run.seed)}{td(f'{run.reached:,}', run.reached)}{td(len(run.steps))}"
            f"{td('' if score is None else number(score), score)}"
            f"{td(duration(seconds) if seconds else '', seconds)}{td('' if run.faults is None else run.faults)}</tr>"
        )
    head = ("run", "status", "task", "variant", "seed", "steps", "evaluations", "last score", "time", "faults")
    return table([th(name) for name in head], rows, "list")


def origin(run: Run) -> tuple[str, ...]:
    """Commit, versions and machine of a run, in words."""
    git, versions, meta = run.origin("git"), run.origin("versions"), run.meta
    commit = str(git.get("commit", ""))[:10] + (" (changed)" if git.get("dirty") else "") if git else "not a checkout"
    words = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "warpsac")
    listed = meta.get("accelerators")
    devices = Counter(map(str, listed if isinstance(listed, list) else ()))
    device = ", ".join(f"{count} {TIMES} {name}" if count > 1 else name for name, count in devices.items()) or DASH
    machine = f"{meta.get('cpu', 'unknown CPU')}, {meta.get('cpu_count', '?')} cores"
    return (str(versions.get("warpsac", "")), commit, words, device, machine)


def provenance(study: Study) -> str:
    """One line for each combination of code, versions and machine."""
    found = Counter(origin(run) for run in study.runs if run.meta)
    if not found:
        return f'<p class="none">{"These runs do not say where they come from" if study.runs else "No runs yet"}.</p>'
    head = ("warpsac", "commit", "versions", "device", "machine")
    told = [number for number in range(len(head)) if any(source[number] for source in found)]
    rows = [
        f"<tr>{td(count, count)}{''.join(td(escape(source[number]) or UNKNOWN) for number in told)}</tr>"
        for source, count in found.most_common()
    ]
    return table([th(name) for name in ("runs", *(head[number] for number in told))], rows, "list")
