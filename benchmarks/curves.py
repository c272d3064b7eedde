"""Learning curves of run folders with the published ones: a table and a picture for `results/`.

    python benchmarks/curves.py results/trained/G1JoystickFlatTerrain-* --out results/g1-h200

writes OUT.csv (every evaluation of every run, and the published points) and OUT.png: return over environment
steps, with the published mean and standard deviation over seeds, and return over seconds of training.
All runs must be of one task. From three runs of one length on the line is their mean and each run a thin one.
`--steps-only` leaves the seconds out of both: for runs that shared their machine.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from common import as_command, command_line
from warpsac.envs import published
from warpsac.errors import UserError
from warpsac.report.page import COLOURS
from warpsac.report.runs import Run, collect

OTHER = ("#334155",)  # a colour for what is no plain variant
COLUMNS = ("source", "variant", "run", "seed", "step", "seconds", "value", "std")


def variant_of(run: Run) -> str:
    assert run.group is not None
    return run.group.variant


def rows(runs: list[Run], with_seconds: bool) -> Iterator[tuple[Any, ...]]:
    for run in runs:
        seconds = run.seconds if run.seconds.size else np.full(run.steps.shape, np.nan)
        for step, second, value in zip(run.steps, seconds, run.raw, strict=True):
            shown = round(float(second), 1) if with_seconds else ""
            yield "measured", variant_of(run), run.path.name, run.seed, int(step), shown, round(float(value), 3), ""
    ours = {variant_of(run) for run in runs}
    for variant, curve in published.curves(runs[0].task).items():
        if variant in ours:
            for step, mean, std in zip(curve.steps, curve.mean, curve.std, strict=True):
                yield "published", variant, "", "", int(step), "", round(float(mean), 3), round(float(std), 3)


def seconds_to(run: Run, value: float) -> float | None:
    """When the curve first reaches a value, between two evaluations by a straight line."""
    above = np.flatnonzero(run.raw >= value)
    if not above.size or not run.seconds.size:
        return None
    i = int(above[0])
    if i == 0:
        return float(run.seconds[0])
    return float(np.interp(value, run.raw[i - 1 : i + 1], run.seconds[i - 1 : i + 1]))


def draw(runs: list[Run], path: Path, with_seconds: bool) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2) if with_seconds else (6.5, 4.2), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2 if with_seconds else 1, sharey=True, squeeze=False)[0]
    _draw_over_steps(panels[0], runs)
    if with_seconds:
        for run in runs:
            panels[1].plot(run.seconds, run.raw, **_line(variant_of(run)))
        panels[1].set_xlabel("seconds of training, start and compilation included")
    for axes in panels:
        axes.grid(color="#e2e8f0", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    with path.open("wb") as picture:
        FigureCanvasAgg(figure).print_png(picture)


def _line(variant: str, **more: Any) -> dict[str, Any]:
    return {"color": COLOURS.get(variant, OTHER)[0], "linewidth": 1.4, "marker": "o", "markersize": 3} | more


def _draw_over_steps(axes: Any, runs: list[Run]) -> None:
    from matplotlib.ticker import EngFormatter

    for variant in dict.fromkeys(map(variant_of, runs)):
        members = [run for run in runs if variant_of(run) == variant]
        several = len(members) > 2 and all(np.array_equal(run.steps, members[0].steps) for run in members)
        seeds = len({run.seed for run in members})
        count = f"{len(members)} {'seed' if seeds == len(members) else 'run'}{'s' * (len(members) > 1)}"
        for i, run in enumerate(members):
            label = f"{variant}, {count}" if i == 0 and not several else None
            faint = {"linewidth": 0.8, "marker": "", "alpha": 0.45} if several else {}
            axes.plot(run.steps, run.raw, **_line(variant, label=label, **faint))
        if several:
            mean = np.mean([run.raw for run in members], axis=0)
            axes.plot(members[0].steps, mean, **_line(variant, linewidth=2.0, label=f"{variant}, mean of {count}"))
        curve = published.curves(runs[0].task).get(variant)
        if curve is not None:
            shown = curve.steps <= 1.3 * max(run.steps[-1] for run in runs)
            axes.errorbar(
                curve.steps[shown], curve.mean[shown], curve.std[shown], capsize=3,
                **_line(variant, linestyle=":", marker="s", markersize=4, markerfacecolor="white",
                        label=", ".join(filter(None, [variant, "published", f"{curve.seeds} seeds", curve.changed]))),
            )  # fmt: skip
    axes.set_title(runs[0].task, loc="left", fontsize=11)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("evaluation return" if runs[0].scale and runs[0].scale.metric == "return" else "success, %")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(frameon=False, fontsize=8)


def main() -> None:
    parser = command_line(__doc__, as_json=None)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="path without ending")
    parser.add_argument("--steps-only", action="store_true", help="leave the seconds out")
    parser.add_argument("--reach", type=float, help="also print the seconds until this value is reached")
    asked = parser.parse_args()
    runs = [run for run in collect(asked.runs) if run.steps.size]
    if len({run.task for run in runs}) != 1:
        raise UserError(
            f"the runs must be of one task and have evaluations; found {sorted({run.task for run in runs})}"
        )
    with asked.out.with_suffix(".csv").open("w", newline="") as table:
        writer = csv.writer(table)
        writer.writerow(COLUMNS)
        writer.writerows(rows(runs, not asked.steps_only))
    draw(runs, asked.out.with_suffix(".png"), not asked.steps_only)
    if asked.reach is not None:
        for run in runs:
            reached = seconds_to(run, asked.reach)
            print(f"{run.name}: {asked.reach:g} after {'-' if reached is None else f'{reached:.0f} s'}")


if __name__ == "__main__":
    as_command(main)
