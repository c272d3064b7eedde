"""How one run should scale over GPUs: arithmetic on figures measured on one H200, nothing more. No GPU is used.

On d GPUs an interaction with n environments on each, and u updates on a minibatch of B rows in all, takes

    t(d) = sim(n) + u * (update(B / d) + reduce(d))

    sim(n)       a + b n, through the simulator's steps with 1024 and 2048 robots      results/loop-h200.json
    update(r)    c + e r, through the updates of 512 and 2048 rows                     results/update-h200.json
    reduce(d)    calls * latency(d) + 2 (d - 1) / d * bytes / bandwidth(d)             collectives of one update, and
                 + kernels * KERNEL_MS                                                 kernels that they split in two:
                                                                                       results/devices-h200.json

and 0 for reduce(1). Below 512 rows and 1024 robots the lines are continued, which nobody has measured. Latency and
bandwidth are of `NVLINK` up to `HOST` GPUs, of `INFINIBAND` beyond. Efficiency is the environment steps per second of d
GPUs, divided by d times those of one, for a recipe that says what stays the same:

    same         the run of one GPU, divided: n = N / d
    wide         --envs-per-device: n = N, as many updates per interaction
    wide-ratio   the same with d times the updates, so that there are as many updates per environment step as before
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parents[1] / "results"
GPUS = (2, 4, 8, 64)
HOST = 8  # GPUs of one host, all connected by NVLink
GOOD = 0.9
KERNEL_MS = 0.002  # of a small kernel; under the profiler they took 1.5 to 6 microseconds (docs/performance.md)
RECIPES = ("same", "wide", "wide-ratio")
ROBOTS = (1024, 2048, 4096, 8192, 16384)


class Link(NamedTuple):
    latency_ms: float
    """Of a small all-reduce."""
    bytes_per_ms: float
    """What a large one moves."""


# Careful figures, not ours. NVLink 4 has 450 GB/s in each direction, of which NCCL reaches 370 (NVIDIA/nccl-tests,
# issue 212). A small all-reduce of two H100 takes 6 microseconds in a CUDA graph, of eight more (NVIDIA/nccl, 1259).
NVLINK = Link(0.015, 370e6)
# NDR InfiniBand, one adapter of 400 Gb/s for each GPU, at 80 percent; small ones of 16 GPUs on two hosts take 47
# microseconds (NVIDIA/nccl, issue 1244).
INFINIBAND = Link(0.050, 40e6)


class Line(NamedTuple):
    """a + b x."""

    start: float
    slope: float

    @classmethod
    def through(cls, one: tuple[float, float], other: tuple[float, float]) -> Line:
        slope = (other[1] - one[1]) / (other[0] - one[0])
        return cls(one[1] - slope * one[0], slope)

    def __call__(self, x: float) -> float:
        return self.start + self.slope * x


@dataclass(frozen=True)
class Parts:
    """What was measured of one GPU, in milliseconds, and what an update reduces."""

    sim: Line
    update: Line
    calls: float  # collectives of one update
    reduced: float  # bytes of one update
    kernels: float = 0.0  # of one update, more than on one GPU and besides the collectives
    robots: int = 1024
    batch: int = 2048
    updates: int = 2

    def reduce(self, gpus: int) -> float:
        if gpus == 1:
            return 0.0
        link = NVLINK if gpus <= HOST else INFINIBAND
        moved = 2 * (gpus - 1) / gpus * self.reduced / link.bytes_per_ms
        return self.calls * link.latency_ms + moved + self.kernels * KERNEL_MS

    def interaction(self, gpus: int, robots: float, updates: float) -> float:
        """Milliseconds, with so many robots on each GPU."""
        return self.sim(robots) + updates * (self.update(self.batch / gpus) + self.reduce(gpus))

    def efficiency(self, gpus: int, recipe: str, robots: int | None = None, updates: float | None = None) -> float:
        """`robots` are those of the run on one GPU."""
        robots, updates = robots or self.robots, updates or self.updates
        each = robots / gpus if recipe == "same" else robots
        made = updates * (gpus if recipe == "wide-ratio" else 1)
        return self.interaction(1, robots, updates) / self.interaction(gpus, each, made) * each / robots

    def least_robots(self, gpus: int, recipe: str) -> int | None:
        """Robots of the run on one GPU from which on the efficiency is good; None: with none of `ROBOTS`."""
        return next((n for n in ROBOTS if self.efficiency(gpus, recipe, n) >= GOOD), None)

    def most_updates(self, gpus: int) -> int:
        """Updates per interaction up to which the efficiency of `wide` is good."""
        good = (u for u in range(1, 1000) if self.efficiency(gpus, "wide", updates=u) < GOOD)
        return next(good, 1000) - 1


def rows_of(name: str, **wanted: Any) -> list[dict[str, Any]]:
    """The measured rows of a results file that have these values, the newest last, as measurements are listed."""
    measured = json.loads((RESULTS / name).read_text())["measurements"]
    rows = [row for one in measured for row in one["rows"]]
    return [row for row in rows if all(row.get(key, 1) == value for key, value in wanted.items())]


def measured() -> Parts:
    """From the files in results/; collectives of the program for eight H200."""
    loop = {"impl": "warp", "storage": "float32"}
    one, two = (rows_of("loop-h200.json", seeds=seeds, **loop)[-1] for seeds in (1, 2))
    # Both sizes of minibatch from one measurement.
    rows = rows_of("update-h200.json", variant="warpsac-a", dtype="bfloat16", seeds=1)
    update = {row["batch"]: row["ms"] for row in rows}
    alone, found = (rows_of("devices-h200.json", devices=count, variant="warpsac-a")[-1] for count in (1, 8))
    calls, per = sum(found["collectives"].values()), found["updates_per_interaction"]
    return Parts(
        sim=Line.through((one["num_envs"], one["env_step_ms"]), (2 * two["num_envs"], two["env_step_ms"])),
        update=Line.through((512, update[512]), (2048, update[2048])),
        calls=calls / per,
        kernels=(found["kernels"] - alone["kernels"] - calls) / per,
        reduced=found["reduced_mb"] * 1e6,
        robots=one["num_envs"],
        updates=one["updates_per_iteration"],
    )


def table(parts: Parts) -> list[dict[str, Any]]:
    """The efficiency of each recipe, and what keeps it above `GOOD`."""
    return [
        {
            "gpus": gpus,
            **{recipe: round(parts.efficiency(gpus, recipe), 2) for recipe in RECIPES},
            "reduce_ms": round(parts.reduce(gpus), 2),
            **{f"{recipe}_robots": parts.least_robots(gpus, recipe) for recipe in RECIPES},
            "wide_updates": parts.most_updates(gpus),
        }
        for gpus in GPUS
    ]


def markdown(parts: Parts) -> str:
    """The table of docs/performance.md."""

    def robots(number: int | None) -> str:
        return f"more than {ROBOTS[-1]:,} robots" if number is None else f"{number:,} robots"

    lines = [
        "| GPUs | same | wide | wide-ratio | wide, 0.9 up to | wide, 0.9 from | wide-ratio, 0.9 from |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in table(parts):
        shares = [f"{row[recipe]:.2f}" for recipe in RECIPES]
        least = [robots(row[f"{recipe}_robots"]) for recipe in RECIPES[1:]]
        updates = f"{row['wide_updates']} update{'s' * (row['wide_updates'] != 1)}"
        lines.append(f"| {' | '.join([str(row['gpus']), *shares, updates, *least])} |")
    return "\n".join(lines)
