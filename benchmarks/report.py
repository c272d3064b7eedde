"""Seconds that `warpsac report` takes on a folder of synthetic runs: 200 runs of 1000 rows unless set otherwise.

The runs are written as training writes them (config, meta, metrics) on the benchmark tasks of four families, with
two variants and five seeds each. Reading, aggregating and writing the page are timed together, without writing
the runs themselves. On a busy machine look at the CPU seconds.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from common import as_command, command_line, positive
from warpsac.config import provenance
from warpsac.config.loading import to_json
from warpsac.config.profiles import resolve
from warpsac.envs.tasks import Task, benchmark_tasks
from warpsac.errors import UserError
from warpsac.report import runs
from warpsac.report.command import write
from warpsac.report.study import make_study

FAMILIES = ("mujoco", "dmc", "playground", "mjlab")
VARIANTS = ("warpsac-l", "flashsac")
SEEDS = (1, 2, 3, 4, 5)


def write_run(folder: Path, task: Task, variant: str, seed: int, rows: int, evaluations: int, meta: str) -> None:
    """A finished run with a curve that rises and levels off."""
    config = resolve(task.name, regime=task.regime, family=task.family, variant=variant)[0]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(to_json(replace(config, seeds=(seed,))))
    (folder / "meta.json").write_text(meta)
    noise = np.random.default_rng([seed, len(task.name), len(variant)])
    speed, level = noise.uniform(3, 6), noise.uniform(0.6, 1.0)
    low, high = task.random_score or 0.0, task.normalize_score or 1.0
    each = max(1, (rows - 1) // (evaluations - 1))
    lines = []
    for number in range(rows):
        share = number / (rows - 1)
        step, seconds = round(share * config.end_step), 5 + 3600 * share
        row: dict[str, Any] = {"step": step, "kind": "train", "time/seconds": seconds}
        if number % each == 0 or number == rows - 1:
            score = level * (1 - math.exp(-speed * share)) + 0.02 * noise.normal()
            row |= {"kind": "eval", "eval/return": low + score * (high - low), "eval/episodes": 50, "eval/score": score}
        else:
            row |= {f"loss/metric_{i}": value for i, value in enumerate(noise.normal(size=16).tolist())}
        lines.append(json.dumps(row))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def make_runs(out: Path, count: int, rows: int, evaluations: int) -> None:
    tasks = [task for family in FAMILIES for task in benchmark_tasks() if task.family == family]
    meta = json.dumps(provenance.describe(command=["warpsac", "train"]))
    made = 0
    for task in tasks:
        for variant in VARIANTS:
            for seed in SEEDS:
                if made < count and task.metric == "return":
                    folder = out / f"{task.name}-{variant}-seed{seed}"
                    write_run(folder, task, variant, seed, rows, evaluations, meta)
                    made += 1
    if made < count:
        raise SystemExit(f"--runs: at most {made}")


def main() -> None:
    parser = command_line(__doc__, as_json="print one object instead of a line")
    parser.add_argument("--runs", type=positive, default=200)
    parser.add_argument("--rows", type=positive, default=1000, help="rows of each run")
    parser.add_argument("--evaluations", type=positive, default=100, help="how many of them are evaluations")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--keep", help="write the runs and the report to this new folder and leave them there")
    asked = parser.parse_args()
    if asked.evaluations > asked.rows:
        raise UserError(f"--evaluations {asked.evaluations}: must be at most the {asked.rows} rows")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(asked.keep or temporary) / "runs"
        make_runs(folder, asked.runs, asked.rows, asked.evaluations)
        seconds, cpu_seconds = [], []
        for _ in range(asked.rounds):
            started, cpu_started = time.perf_counter(), time.process_time()
            page = write(make_study(runs.collect([folder])), folder / "report", "synthetic runs")
            seconds.append(time.perf_counter() - started)
            cpu_seconds.append(time.process_time() - cpu_started)
        result = {
            "runs": asked.runs, "rows": asked.rows, "evaluations": asked.evaluations,
            "seconds": round(statistics.median(seconds), 2), "cpu_seconds": round(statistics.median(cpu_seconds), 2),
            "page_mb": round(page.stat().st_size / 1e6, 2), "cpu": provenance.describe()["cpu"],
        }  # fmt: skip
    what = "{runs} runs of {rows} rows, {evaluations} of them evaluations"
    line = what + ": {seconds} s ({cpu_seconds} s of CPU), page of {page_mb} MB ({cpu})"
    print(json.dumps(result) if asked.json else line.format(**result))


if __name__ == "__main__":
    as_command(main)
