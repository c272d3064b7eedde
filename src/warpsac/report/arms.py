"""Runs with several arms (`--variant auto`): how the environments were shared between them, and which was chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpsac.config.schema import Config
from warpsac.report.aggregate import thinned

MOST_POINTS = 160
WIDTH, HEIGHT = 320.0, 96.0  # of the picture, in its own units
STRIP = 10.0  # height of the line that shows the choice


@dataclass(frozen=True)
class History:
    arms: tuple[str, ...]
    steps: np.ndarray  # [T]
    shares: np.ndarray  # [T, K], each row sums to 1
    choice: np.ndarray  # [T], numbers of arms


def history(config: Config, rows: Sequence[Mapping[str, Any]]) -> History | None:
    """What the rows tell of a run's arms; rows that say nothing sensible are passed over."""
    arms = config.auto.arms
    found = []
    for row in rows if arms else ():
        numbers = [row.get("step"), row.get("auto/choice"), *(row.get(f"auto/share/{arm}") for arm in arms)]
        if all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
            found.append(numbers)
    table = np.array(found, np.float64).reshape(-1, 2 + len(arms))
    shares, choice = table[:, 2:], table[:, 1]
    sensible = (shares >= 0).all(1) & (shares.sum(1) > 0) & (choice >= 0) & (choice < len(arms))
    table = table[sensible]
    if len(table) < 2:
        return None
    table = table[thinned(len(table), MOST_POINTS)]
    shares = table[:, 2:] / table[:, 2:].sum(1, keepdims=True)
    return History(arms, table[:, 0], shares, table[:, 1].astype(int))


def picture(history: History) -> dict[str, Any]:
    """Areas of the shares, one above the other, and below them a line in the colour of the chosen arm."""
    start, end = history.steps[0], history.steps[-1]
    x = (history.steps - start) / max(end - start, 1) * WIDTH
    tops = np.concatenate([np.zeros((len(x), 1)), np.cumsum(history.shares, axis=1)], axis=1) * (HEIGHT - STRIP - 2)
    areas = []
    for k in range(len(history.arms)):
        above = [f"{a:.1f},{b:.1f}" for a, b in zip(x, tops[:, k], strict=True)]
        below = [f"{a:.1f},{b:.1f}" for a, b in zip(x[::-1], tops[::-1, k + 1], strict=True)]
        areas.append(" ".join(above + below))
    begins = [0, *(np.flatnonzero(np.diff(history.choice)) + 1).tolist()]
    ends = [*x[begins[1:]], WIDTH]
    stretches = [
        {"arm": int(history.choice[i]), "x": f"{x[i]:.1f}", "width": f"{max(stop - x[i], 0.5):.1f}"}
        for i, stop in zip(begins, ends, strict=True)
    ]
    return {
        "size": f"{WIDTH:g} {HEIGHT:g}",
        "areas": areas,
        "stretches": stretches,
        "strip": f"{HEIGHT - STRIP:g}",
        "strip_height": f"{STRIP:g}",
        "arms": history.arms,
        "chosen": history.arms[history.choice[-1]],
        "shares": [f"{100 * share:.0f} %" for share in history.shares[-1]],
        "end": int(end),
    }
