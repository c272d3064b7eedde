"""Tiny suites on toy tasks, benches as processes, and what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from run_folders import write_run
from runs import TINY
from warpsac.bench.command import BenchOptions, load_suite
from warpsac.bench.scheduler import Job
from warpsac.bench.suite import Cell
from warpsac.bench.worker import Ended
from warpsac.config.loading import override

# One evaluation, at the end: drawing the curve takes longer than the training.
SETTINGS = {key: value for key, value in TINY.items() if key != "task"} | {
    "eval": {"every": 0, "episodes": 2, "num_envs": 2},
    "checkpoint": {"every": 30},
    "learner": TINY["learner"] | {"policy_delay": 1},  # one program of updates, not one for each phase
}


def write_suite(path: Path, tasks: list[str], variants: list[Any] | None = None, **more: Any) -> Path:
    """A YAML file with a grid of tiny runs."""
    settings = SETTINGS | more.pop("settings", {})
    content = {"tasks": tasks, "variants": variants or ["warpsac-l"], "seeds": [1], "settings": settings} | more
    path.write_text(yaml.safe_dump(content))
    return path


def start_bench(suite: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "warpsac.cli", "bench", str(suite), "--out", str(out), "--module", "bench_envs", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parent,
        env=os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
    )


def run_bench(suite: Path, out: Path, *words: str) -> tuple[int, str]:
    process = start_bench(suite, out, *words)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def wait_until(condition: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


END = 1_000_000
FULL = [(0, 0.0, 1.0), (END, 800.0, 200.0)]
HALF = [(0, 0.0, 1.0), (END // 2, 500.0, 100.0)]


def cell_of(seeds: tuple[int, ...] = (1, 2), task: str = "dog-run", **settings: Any) -> Cell:
    (cell,) = load_suite(BenchOptions("dmc", tasks=(task,), variants=("warpsac-l",), seeds=seeds)).cells
    return Cell(override(cell.config, settings), cell.label)


def leave(
    bench: Path, cell: Cell, seed: int, evaluations: list[tuple[int, Any, float]], saved: tuple[int, ...]
) -> Path:
    """A run folder of the cell as training would have left it, checkpoints by name only."""
    run = write_run(bench / cell.name, cell.config.task, cell.config.variant, seed, evaluations)
    for step in saved:
        (run / "checkpoints" / f"step_{step:012d}").mkdir(parents=True)
    return run


class Script:
    """A launcher with room for a few programs, which end one by one as the script says, each after a last deed."""

    def __init__(self, script: list[tuple[Ended, Any]], room: int = 1):
        self.script, self.room = script, room
        self.running: list[Job] = []
        self.started: list[tuple[int, ...]] = []
        self.stopped = False

    def has_room(self) -> bool:
        return len(self.running) < self.room

    def start(self, job: Job) -> str:
        self.running.append(job)
        self.started.append(job.seeds)
        return "nowhere"

    def ended(self) -> list[tuple[Job, Ended]]:
        if not self.running:
            return []
        ended, deed = (Ended("stopped"), None) if self.stopped else self.script.pop(0)
        if deed:
            deed()
        return [(self.running.pop(0), ended)]

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None: ...
