"""Learning curves of run folders beside the published ones: a table and a picture for `results/`.

    python benchmarks/curves.py results/trained/G1JoystickFlatTerrain-* --out results/g1-h200

writes OUT.csv (every evaluation of every run, and the published points) and OUT.png: return over environment
steps, with the published mean and standard deviation over seeds, and return over seconds of training.
All runs must be of one task.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from common import as_command
from warpsac import published
from warpsac.errors import UserError
from warpsac.report.page import COLOURS
from warpsac.report.runs import Run, collect

OTHER = ("#334155",)  # a colour for what is no plain variant
COLUMNS = ("source", "variant", "seed", "step", "seconds", "value", "std")


def variant_of(run: Run) -> str:
    assert run.group is not None
    return run.group.variant


def rows(runs: list[Run]) -> Iterator[tuple[Any, ...]]:
    for run in runs:
        seconds = run.seconds if run.seconds.size else np.full(run.steps.shape, np.nan)
        for step, second, value in zip(run.steps, seconds, run.raw, strict=True):
            yield "measured", variant_of(run), run.seed, int(step), round(float(second), 1), round(float(value), 3), ""
    ours = {variant_of(run) for run in runs}
    for variant, curve in published.curves(runs[0].task).items():
        if variant in ours:
            for step, mean, std in zip(curve.steps, curve.mean, curve.std, strict=True):
                yield "published", variant, "", int(step), "", round(float(mean), 3), round(float(std), 3)


def seconds_to(run: Run, value: float) -> float | None:
    """When the curve first reaches a value, between two evaluations by a straight line."""
    above = np.flatnonzero(run.raw >= value)
    if not above.size or not run.seconds.size:
        return None
    i = int(above[0])
    if i == 0:
        return float(run.seconds[0])
    return float(np.interp(value, run.raw[i - 1 : i + 1], run.seconds[i - 1 : i + 1]))


def draw(runs: list[Run], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(11, 4.2), dpi=150, layout="constrained")
    by_steps, by_seconds = figure.subplots(1, 2, sharey=True)
    for variant in dict.fromkeys(map(variant_of, runs)):
        colour = COLOURS.get(variant, OTHER)[0]
        members = [run for run in runs if variant_of(run) == variant]
        for i, run in enumerate(members):
            label = f"{variant}, {len(members)} seed{'s' * (len(members) > 1)}" if i == 0 else None
            by_steps.plot(run.steps, run.raw, color=colour, linewidth=1.4, marker="o", markersize=3, label=label)
            if run.seconds.size:
                by_seconds.plot(run.seconds, run.raw, color=colour, linewidth=1.4, marker="o", markersize=3)
        curve = published.curves(runs[0].task).get(variant)
        if curve is not None:
            shown = curve.steps <= 1.3 * max(run.steps[-1] for run in runs)
            by_steps.errorbar(
                curve.steps[shown], curve.mean[shown], curve.std[shown], color=colour, linestyle=":", marker="s",
                markersize=4, markerfacecolor="white", capsize=3, label=f"{variant}, published, {curve.seeds} seeds",
            )  # fmt: skip
    by_steps.set_title(runs[0].task, loc="left", fontsize=11)
    by_steps.set_xlabel("environment steps")
    by_steps.set_ylabel("evaluation return" if runs[0].scale and runs[0].scale.metric == "return" else "success, %")
    by_steps.xaxis.set_major_formatter(EngFormatter(sep=""))
    by_seconds.set_xlabel("seconds of training, start and compilation included")
    by_steps.legend(frameon=False, fontsize=8)
    for axes in (by_steps, by_seconds):
        axes.grid(color="#e2e8f0", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    with path.open("wb") as picture:
        FigureCanvasAgg(figure).print_png(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="path without ending")
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
        writer.writerows(rows(runs))
    draw(runs, asked.out.with_suffix(".png"))
    if asked.reach is not None:
        for run in runs:
            reached = seconds_to(run, asked.reach)
            print(f"{run.name}: {asked.reach:g} after {'-' if reached is None else f'{reached:.0f} s'}")


if __name__ == "__main__":
    as_command(main)
