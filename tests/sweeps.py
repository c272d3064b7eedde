"""Searches without training: programs that write rows of runs whose results are a known function of the settings."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from warpsac import cli
from warpsac.bench import command, search
from warpsac.bench.scheduler import Job
from warpsac.bench.state import folder_of
from warpsac.bench.worker import Ended
from warpsac.config.loading import to_json
from warpsac.config.schema import Config
from warpsac.runs import rowfiles, run_folder
from warpsac.runs.trials import Trial, read_trials

EVERY, END = 100, 400
SPACE: dict[str, Any] = {
    "learner.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True},
    "replay.n_step": {"low": 1, "high": 5},
    "learner.projection": [True, False],
}
SETTINGS: dict[str, Any] = {
    "total_steps": END, "learning_starts": 60, "eval": {"every": EVERY, "episodes": 2, "num_envs": 2},
}  # fmt: skip


def write_sweep(path: Path, trials: int = 4, **more: Any) -> Path:
    """A suite with a search on a toy task; `more` are keys of the search, or of its grid."""
    of_grid = {key: more.pop(key) for key in ("tasks", "variants", "seeds", "settings") if key in more}
    content = {"tasks": "probe-point", "variants": "warpsac-l", "seeds": [11], "settings": SETTINGS} | of_grid
    path.write_text(yaml.safe_dump(content | {"search": {"space": SPACE, "trials": trials} | more}))
    return path


def result_of(config: Config, seed: int, step: int) -> float:
    """Highest at a learning rate of 1e-3 with one step of rewards; half of it is reached at once."""
    height = 10.0 - abs(math.log10(config.learner.learning_rate) + 3) - config.replay.n_step
    return (height + seed / 1000 + config.learner.projection) * (0.5 + step / END / 2)


class Killed(BaseException):
    """As by SIGKILL: nothing is done after it."""


class Trainer:
    """A launcher whose programs make one evaluation between two looks at them."""

    def __init__(
        self, bench: Path, room: int = 1, result: Callable[[Config, int, int], float | None] = result_of,
        kill_after: int | None = None,
    ):  # fmt: skip
        """`result` None: the program fails there. `kill_after`: looks until the bench itself is killed."""
        self.bench, self.room, self.result, self.left = bench, room, result, kill_after
        self.running: list[Job] = []
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.most = 0  # programs at a time

    def has_room(self) -> bool:
        return len(self.running) < self.room

    def start(self, job: Job) -> str:
        self.running.append(job)
        self.started.append(job.cell.name)
        self.most = max(self.most, len(self.running))
        return "nowhere"

    def ended(self) -> list[tuple[Job, Ended]]:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed
        found = []
        for job in list(self.running):
            ended = Ended("stopped") if job.cell.name in self.stopped else self._work(job)
            if ended is not None:
                self.running.remove(job)
                found.append((job, ended))
        return found

    def _work(self, job: Job) -> Ended | None:
        config = job.cell.config
        for seed in job.seeds:
            folder = folder_of(self.bench / job.cell.name, config, seed)
            if not folder.exists():
                folder.mkdir(parents=True)
                one = dataclasses.replace(config, seeds=(seed,))
                (folder / run_folder.CONFIG).write_text(to_json(one))
                (folder / run_folder.META).write_text("{}")
                (folder / rowfiles.METRICS).touch()
            rows = rowfiles.read_metrics(folder)
            step = len(rows) * EVERY
            value = self.result(config, seed, step)
            if value is None:
                return Ended("failed", "out of luck")
            row = {"step": step, "kind": "eval", "eval/return": value, "time/seconds": 1.0 + step}
            with open(folder / rowfiles.METRICS, "a") as stream:
                stream.write(json.dumps(row) + "\n")
        return Ended("done") if step >= END else None

    def stop(self, job: Job | None = None) -> None:
        self.stopped += [one.cell.name for one in self.running if job is None or one is job]

    def close(self) -> None: ...


def sweep(monkeypatch: Any, suite: Path, out: Path, *words: str, **more: Any) -> tuple[int, Trainer]:
    """`warpsac bench` with such programs; its exit code."""
    trainer = Trainer(out, **more)
    monkeypatch.setattr(command, "_launcher", lambda *_: trainer)
    monkeypatch.setattr(command, "POLL", 0.0)
    monkeypatch.setattr(search, "LOOK_INTERVAL", 0.0)
    return cli.main(["bench", str(suite), "--out", str(out), *words]), trainer


def trials_of(out: Path) -> list[Trial]:
    (found,) = read_trials(out)
    return list(found.trials)
