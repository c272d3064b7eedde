"""Own runs next to the published curves: every benchmark task, at each published fraction of its horizon.

    own        mean over seeds of the evaluation nearest to the fraction, if it is within NEAR of the horizon; nothing
               is interpolated. A run counts as far as it went, however it ended.
    apart      (own mean - published mean) / published standard deviation, which is at least LEAST_STD of the range
               between a random policy and the reference: where all published seeds agree it would be 0
    colour     green from -1 upwards, amber from -2, red below; of a line the worst of its fractions

Only runs that were trained as the published ones are judged; others are shown without a colour. Pure functions.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from rich.text import Text

from warpsac.config.profiles import default_variant
from warpsac.envs import published
from warpsac.envs.published import FRACTIONS, PublishedCurve
from warpsac.envs.tasks import EXTRAS, Task, benchmark_tasks
from warpsac.errors import UserError, counted
from warpsac.report.aggregate import mean_and_spread
from warpsac.report.groups import Group, Scale, in_order
from warpsac.report.numerals import DASH, plain, raw_number, with_minus
from warpsac.report.runs import Run

NEAR = 0.01
GREEN, AMBER = -1.0, -2.0
LEAST_STD = 0.01

# Settings that may differ from those of the published runs: they change how a run is evaluated, computed or drawn from
# replay but for rounding and noise; the schedule of earlier versions is judged too, as the line names it.
ALIKE = frozenset({"eval.episodes", "env.impl", "overlap", "replay.sampler", "learner.schedule"})

# Tasks that development leaves alone.
HELD_OUT = ("T1JoystickFlatTerrain", "T1JoystickRoughTerrain", "Walker2d-v4", "dog-walk", "h1-pole-v0")
# What a family's tasks cannot do without, besides its extra.
NEEDS = {
    "humanoidbench": "a checkout of humanoid-bench",
    "playground": "a GPU",
    "mjlab": "a GPU",
    "maniskill": "a GPU and Vulkan",
    "isaaclab": "a GPU and Isaac Sim's assets",
    "sim2real": "a GPU and unitree_rl_mjlab",
}

Colour = Literal["green", "amber", "red"]
COLOURS: tuple[Colour, ...] = ("red", "amber", "green")  # the worst first
SIGNS: dict[Colour, str] = {
    "green": "\N{LARGE GREEN CIRCLE}", "amber": "\N{LARGE ORANGE CIRCLE}", "red": "\N{LARGE RED CIRCLE}"
}  # fmt: skip
STYLES: dict[Colour | None, str] = {"green": "green", "amber": "yellow", "red": "bold red", None: "dim"}

BEGIN = "<!-- scoreboard: `warpsac report --scoreboard` writes what follows -->"
END = "<!-- end of the scoreboard -->"


@dataclass(frozen=True)
class Point:
    """One fraction of the horizon."""

    own: np.ndarray
    """Raw results, one for each seed that was evaluated there."""
    published: tuple[float, float] | None
    """Mean and standard deviation."""
    apart: float | None = None
    """In published standard deviations; None if not judged."""

    @property
    def colour(self) -> Colour | None:
        if self.apart is None:
            return None
        return "green" if self.apart >= GREEN else "amber" if self.apart >= AMBER else "red"


@dataclass(frozen=True)
class Line:
    """One group of runs on a task; of a task that was not run, its default variant."""

    task: Task
    group: Group
    seeds: tuple[int, ...]
    points: tuple[Point, ...]
    note: str = ""
    """Why it was not run, or is not judged, or what else to know."""

    @property
    def colour(self) -> Colour | None:
        found = {point.colour for point in self.points}
        return next((colour for colour in COLOURS if colour in found), None)

    @property
    def was_run(self) -> bool:
        return bool(self.seeds)

    @cached_property
    def curve(self) -> PublishedCurve | None:
        return published.curves(self.task.name).get(self.group.variant)

    @property
    def result(self) -> str:
        return ", ".join(filter(None, [self.colour, self.note]))

    @property
    def label(self) -> str:
        """The group's name as one line of text."""
        return "".join(c if c.isprintable() else "?" for c in self.group.label)


def scoreboard(runs: Sequence[Run]) -> list[Line]:
    """Every benchmark task in the order of families, with a line for each group of SAC runs on it."""
    found: defaultdict[str, defaultdict[Group, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.group and not run.group.on_policy and run.status != "duplicate" and len(run.steps):
            found[run.task][run.group].append(run)
    families = list(EXTRAS)
    lines: list[Line] = []
    for task in sorted(benchmark_tasks(), key=lambda task: families.index(task.family)):
        groups = found[task.name]
        lines += [_line(task, group, groups[group]) for group in in_order(set(groups))] or [_not_run(task)]
    return lines


def _not_run(task: Task) -> Line:
    """With the default variant's curve, or what else was published."""
    needs = f" (needs {NEEDS[task.family]})" if task.family in NEEDS else ""
    why = "held out for a final check" if task.name in HELD_OUT else f"not yet{needs}"
    curves, default = published.curves(task.name), default_variant(task.regime)
    variant = next(iter(curves)) if curves and default not in curves else default
    points = tuple(Point(np.zeros(0), known) for known in _published(curves.get(variant)))
    return Line(task, Group(variant), (), points, why if curves else f"{why}; nothing published")


def _line(task: Task, group: Group, runs: Sequence[Run]) -> Line:
    runs = sorted(runs, key=lambda run: run.seed or 0)
    seeds = tuple(run.seed or 0 for run in runs)
    curve = published.curves(task.name).get(group.variant)
    horizon = published.horizon(task)
    own = [np.array([x for run in runs if (x := nearest(run, horizon * f, NEAR * horizon)) is not None])
           for f in FRACTIONS]  # fmt: skip
    unjudged = _unjudged(group, curve) or ("" if any(map(len, own)) else "no evaluation near a published fraction")
    failed = sum(run.status == "failed" for run in runs)  # what they would have reached is not in the mean
    notes = [unjudged, f"{failed} of {len(runs)} seeds failed" if failed else ""]
    known = _published(curve)
    apart = [None if unjudged else deviations(task, x, point) for x, point in zip(own, known, strict=True)]
    return Line(task, group, seeds, tuple(map(Point, own, known, apart)), "; ".join(filter(None, notes)))


def _published(curve: PublishedCurve | None) -> list[tuple[float, float] | None]:
    """Mean and standard deviation at each fraction, raw."""
    if curve is None:
        return [None] * len(FRACTIONS)
    factor = _scale(curve.task).factor
    return [(factor * mean, factor * std) for mean, std in zip(curve.mean.tolist(), curve.std.tolist(), strict=True)]


def _scale(task: Task) -> Scale:
    return Scale(task.name, task.family, task)


def nearest(run: Run, step: float, within: float) -> float | None:
    """The result of the evaluation nearest to a step; None if it is further away than `within`."""
    i = int(np.abs(run.steps - step).argmin())
    return float(run.raw[i]) if abs(run.steps[i] - step) <= within else None


def _unjudged(group: Group, curve: PublishedCurve | None) -> str:
    """Why runs of a group are not judged; empty if they are."""
    if curve is None:
        return "nothing published"
    changed = {change for change in group.planned.changes if change[0] not in ALIKE}
    if changed == set(curve.settings):
        return ""
    return f"published with {curve.changed}" if curve.settings else "other settings than published"


def deviations(task: Task, own: np.ndarray, known: tuple[float, float] | None) -> float | None:
    """How many published standard deviations the mean lies above the published one."""
    if known is None or not len(own):
        return None
    low, high = _scale(task).bounds or (0.0, 0.0)
    found = (own.mean() - known[0]) / max(known[1], LEAST_STD * (high - low))
    return float(found) if math.isfinite(found) else None


# --- as text --------------------------------------------------------------------------------------------


def summary(lines: Sequence[Line]) -> str:
    """How many tasks were run, and how many groups of runs have which colour."""
    run = [line for line in lines if line.was_run]
    tasks, of = (len({line.task.name for line in some}) for some in (run, lines))
    colours: Counter[str] = Counter(line.colour or "not judged" for line in run)
    shown = ", ".join(f"{colours[name]} {name}" for name in (*reversed(COLOURS), "not judged") if colours[name])
    groups = f", in {counted(len(run), 'group')} of runs: {shown}" if run else ""
    return f"{tasks} of {of} tasks run{groups}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _own(point: Point, seeds: int) -> str:
    if not len(point.own):
        return DASH
    mean, std = mean_and_spread(point.own)
    fewer = f" (n = {len(point.own)})" if len(point.own) < seeds else ""
    return raw_number(mean) + ("" if std is None else f" ± {raw_number(std)}") + fewer


def _theirs(point: Point) -> str:
    return " ± ".join(map(raw_number, point.published)) if point.published else DASH


def _apart(point: Point) -> str:
    return "" if point.apart is None else plain(point.apart, "+.2f")


def _metric(task: Task) -> str:
    return f"{task.name}, success %" if task.metric == "success" else task.name


def markdown(lines: Sequence[Line]) -> str:
    """Two tables: tasks with runs, and the others with the reason."""

    def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
        return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]

    def cell(line: Line, point: Point) -> str:
        colour = f"{SIGNS[point.colour]} {with_minus(_apart(point))}" if point.colour else ""
        return "<br>".join(filter(None, [_own(point, len(line.seeds)), _theirs(point), colour]))

    def named(line: Line) -> str:
        settings = line.label.removeprefix(line.group.variant).strip()
        for mark in "\\|<>`*_":
            settings = settings.replace(mark, f"&#{ord(mark)};")
        count = counted(len(line.seeds), "seed")
        whose = "published by the baseline's authors" if line.curve and line.curve.source == "baseline" else ""
        return "<br>".join(filter(None, [f"`{line.group.variant}`", settings, count, whose]))

    fractions = list(map(_percent, FRACTIONS))
    run, others = ([line for line in lines if line.was_run == wanted] for wanted in (True, False))
    measured = [
        [_metric(line.task), named(line), *(cell(line, point) for point in line.points),
         f"{SIGNS[line.colour]} {line.result}" if line.colour else line.result]
        for line in run
    ]  # fmt: skip
    unmeasured = [
        [_metric(line.task), f"`{line.group.variant}`", *map(_theirs, line.points), line.note] for line in others
    ]
    return "\n".join([
        f"{summary(lines)}. In each cell: own, published, published standard deviations apart.",
        "",
        *table(["task", "runs", *fractions, "result"], measured),
        "",
        "Not run; published at each fraction:",
        "",
        *table(["task", "variant", *fractions, "why"], unmeasured),
        "",
    ])  # fmt: skip


def inserted(document: str, text: str, where: str) -> str:
    """The document with this text between its two marks."""
    before, begin, rest = document.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(f"{END}\n")
    if not begin or not end:
        raise UserError(f"{where}: the scoreboard goes between two lines that it does not have: {BEGIN} and {END}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def terminal(lines: Sequence[Line]) -> list[Text]:
    """Deviations at each fraction and the last results, one line for each group; then what the columns mean."""
    task, label = (max(map(len, names)) for names in ([x.task.name for x in lines], [x.label for x in lines]))
    head = [f"{'task':{task}}", f"{'runs':{label}}", "seeds", *(f"{_percent(f):>6}" for f in FRACTIONS), "result"]
    shown = [Text("  ".join(head))]
    for line in lines:
        row = Text(f"{line.task.name:{task}}  {line.label:{label}}  {len(line.seeds) or '':>5}")
        for point in line.points:
            text = _apart(point) or (DASH if len(point.own) else "")
            row.append("  ").append(f"{text:>6}", STYLES[point.colour])
        row.append("  ").append(line.result, STYLES[line.colour])
        measured = [(f, point) for f, point in zip(FRACTIONS, line.points, strict=True) if len(point.own)]
        for fraction, last in measured[-1:]:
            row.append(f"  {_own(last, len(line.seeds))}, published {_theirs(last)} at {_percent(fraction)}")
        shown.append(row)
    rule = f"green from {GREEN:g} upwards, amber from {AMBER:g}, red below; a line has its worst"
    meaning = f"published standard deviations above the published mean: {rule}"
    return [*shown, Text(), Text(meaning), Text(summary(lines))]


COLUMNS = (
    "family", "task", "variant", "settings", "seeds", "metric", "fraction", "own_n", "own_mean", "own_std",
    "published_source", "published_n", "published_mean", "published_std", "deviations", "colour", "result", "note",
)  # fmt: skip


def rows(lines: Sequence[Line]) -> Iterator[tuple[Any, ...]]:
    """A row for each line and fraction; an unknown value is None."""
    for line in lines:
        head = line.task.family, line.task.name, line.group.variant, line.group.settings, " ".join(map(str, line.seeds))
        source = (line.curve.source, line.curve.seeds) if line.curve else (None, None)
        for fraction, point in zip(FRACTIONS, line.points, strict=True):
            found = mean_and_spread(point.own) if len(point.own) else (None, None)
            own = (value if value is not None and math.isfinite(value) else None for value in found)
            judged = point.apart, point.colour, line.colour, line.note
            theirs = point.published or (None, None)
            yield *head, _scale(line.task).metric, fraction, len(point.own), *own, *source, *theirs, *judged
