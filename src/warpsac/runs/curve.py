"""The learning curve of one run as a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from warpsac.config.schema import Config
from warpsac.runs.files import write_atomically

LINE, REFERENCE, INK = "#1f6feb", "#c2410c", "#334155"
FAR = 2.0  # heights of the curve


def is_near(reference: float, low: np.ndarray, high: np.ndarray) -> bool:
    """Whether a picture of the band from `low` to `high` can show the reference without flattening it."""
    if low.size == 0:
        return True
    bottom, top = float(low.min()), float(high.max())
    return bottom - FAR * (top - bottom) <= reference <= top + FAR * (top - bottom)


def write_curve(
    path: Path, evaluations: Sequence[Mapping[str, float]], config: Config, best_known: float | None = None
) -> None:
    """Evaluation return over environment steps, with a band of one standard deviation over episodes.

    `evaluations` are those of `rowfiles.read_evaluations`. `best_known` is drawn as a dashed line where the curve
    comes near, otherwise only written. The picture is replaced atomically.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    evaluations = [row for row in evaluations if "return_mean" in row]
    steps = np.array([row["step"] for row in evaluations], np.float64)
    mean = np.array([row["return_mean"] for row in evaluations], np.float64)
    spread = np.array([row.get("return_std", 0.0) for row in evaluations], np.float64)

    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(steps, mean - spread, mean + spread, color=LINE, alpha=0.15, linewidth=0)
    mark = "o" if len(steps) <= 60 else None  # more marks would run into each other
    axes.plot(steps, mean, color=LINE, linewidth=1.8, marker=mark, markersize=3.5, clip_on=False)
    if best_known is not None:
        near = is_near(best_known, mean - spread, mean + spread)
        if near:
            axes.axhline(best_known, color=REFERENCE, linewidth=1.2, linestyle="--")
        axes.annotate(
            f"best known {best_known:,.6g}", (1.0, best_known if near else 1.0),
            xycoords=("axes fraction", "data" if near else "axes fraction"),
            xytext=(-4, -4 if near else 4), textcoords="offset points", ha="right", va="top" if near else "bottom",
            color=REFERENCE, fontsize=8,
        )  # fmt: skip
    if len(steps) == 0:
        axes.text(0.5, 0.5, "no evaluation yet", transform=axes.transAxes, ha="center", color=INK)

    axes.set_title(f"{config.task} · {config.variant} · seed {config.seeds[0]}", loc="left", fontsize=11, color=INK)
    axes.set_xlabel("environment steps", color=INK)
    axes.set_ylabel("evaluation return", color=INK)
    axes.set_xlim(0, steps[-1] if len(steps) > 1 else config.end_step)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color="#e2e8f0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#94a3b8")
    axes.tick_params(colors=INK, labelsize=9)

    picture = io.BytesIO()
    FigureCanvasAgg(figure).print_png(picture)
    write_atomically(path, picture.getvalue())
