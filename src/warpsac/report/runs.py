"""Which runs a folder holds, and how each of them ended."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from warpsac.config.schema import Config
from warpsac.envs import published
from warpsac.errors import UserError
from warpsac.report.groups import Group, Scale, group_of, scale_of
from warpsac.runs import checkpoint, rowfiles, run_folder
from warpsac.runs.files import in_words

Status = Literal["finished", "running", "interrupted", "failed", "damaged", "no evaluations", "duplicate"]

NOTHING = np.zeros(0)

# Runs of one horizon may end a few interactions apart; below this share of it they are of another length.
REACHED = 0.98


@dataclass(frozen=True)
class Run:
    path: Path
    name: str
    status: Status
    detail: str = ""
    """What there is to say about the status, in words."""
    scale: Scale | None = None
    """Unknown, as are group and seed, if the config cannot be read."""
    group: Group | None = None
    seed: int | None = None
    steps: np.ndarray = field(default_factory=lambda: NOTHING)
    """Environment steps of the evaluations; those that are not finite are left out."""
    raw: np.ndarray = field(default_factory=lambda: NOTHING)
    """Mean return of each evaluation, or success in percent where that is the task's metric."""
    seconds: np.ndarray = field(default_factory=lambda: NOTHING)
    """Training time at each evaluation; empty if it was not recorded."""
    reached: int = 0
    end_step: int = 0
    total_steps: int = 0
    """The horizon of its schedule, which the run may have been told to stop before."""
    faults: int | None = None
    impl: str | None = None
    """What simulated the physics, where there was a choice."""
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> str:
        return self.scale.task if self.scale else "?"

    @property
    def scores(self) -> np.ndarray:
        assert self.scale is not None
        return self.scale.score(self.raw)

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    def origin(self, part: str) -> Mapping[str, Any]:
        """One of the mappings of meta.json, which may be missing or broken."""
        return run_folder.part_of(self.meta, part, dict)

    @property
    def resumes(self) -> int:
        return len(run_folder.part_of(self.meta, "resumes", list))

    @property
    def ended_by_budget(self) -> bool:
        return self.finished and self.reached < self.end_step

    @property
    def told_to_stop_early(self) -> bool:
        return self.end_step < REACHED * self.total_steps


# --- finding and reading --------------------------------------------------------------------------------


def find_folders(root: Path) -> Iterator[Path]:
    """All run folders at or below a folder, in order of name; links are followed, but not in circles."""
    seen: set[Path] = set()

    def below(folder: Path) -> Iterator[Path]:
        real = folder.resolve()
        if real in seen:
            return
        seen.add(real)
        if (folder / run_folder.CONFIG).is_file():
            yield folder
            return
        try:
            inside = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        except OSError:
            yield folder  # reading it as a run says what is wrong
            return
        for name in inside:
            if not name.startswith("."):
                yield from below(folder / name)

    yield from below(root)


def collect(roots: Sequence[Path]) -> list[Run]:
    """Every run below the folders, if any; of several with the same task, group and seed only one counts."""
    found: dict[Path, Run] = {}
    for root in roots:
        if not root.is_dir():
            raise UserError(f"{root}: no such folder" if not root.exists() else f"{root}: not a folder")
        for folder in find_folders(root):
            name = folder.relative_to(root).as_posix() if folder != root else folder.resolve().name
            found.setdefault(folder.resolve(), read_run(folder, name))
    return without_duplicates(told_apart_by_length(told_apart_by_physics(list(found.values()))))


def read_run(folder: Path, name: str) -> Run:
    """One run folder; whatever is wrong with it becomes its status."""
    try:
        opened = run_folder.open_run(folder)
    except UserError as error:
        return Run(folder, name, "damaged", str(error))
    config = opened.config
    scale = scale_of(config)
    impl = opened.meta.get("impl", config.env.impl if config.env.impl != "auto" else None)
    known = Run(folder, name, "damaged", "", scale, group_of(config), opened.seed, end_step=config.end_step,
                total_steps=config.total_steps, impl=impl if isinstance(impl, str) else None,
                meta=opened.meta)  # fmt: skip
    try:
        rows = rowfiles.read_metrics(folder)
        return _judged(known, config, rows, _evaluations(folder, rows, scale.metric))
    except UserError as error:
        return dataclasses.replace(known, detail=str(error))
    except OSError as error:
        return dataclasses.replace(known, detail=f"{rowfiles.METRICS}: {in_words(error)}")


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _evaluations(folder: Path, rows: Sequence[Mapping[str, Any]], metric: str) -> np.ndarray:
    """[evaluations, 3]: step, raw result, seconds; the last two may be NaN. Steps only ever rise in a sound file."""
    found: list[tuple[float, float, float]] = []
    last = -math.inf
    for number, row in enumerate(rows, 1):
        step = _number(row.get("step"))
        if not (math.isfinite(step) and step >= last) or row.get("kind") not in ("train", "eval"):
            raise UserError(f"{folder / rowfiles.METRICS}, line {number}: not a row of metrics")
        last = step
        if row["kind"] == "eval":
            result = _number(row.get(f"eval/{metric}")) * (100.0 if metric == "success" else 1.0)
            if found and found[-1][0] == step:
                found.pop()  # judged again at the same step: the later one holds
            found.append((step, result, _number(row.get("time/seconds"))))
    return np.array(found, np.float64).reshape(-1, 3)


def _judged(run: Run, config: Config, rows: Sequence[Mapping[str, Any]], evaluations: np.ndarray) -> Run:
    """The run with its evaluations and how it ended."""
    sound = evaluations[np.isfinite(evaluations[:, 1])]
    seconds = sound[:, 2]
    timed = np.isfinite(seconds).all() and (np.diff(seconds) > 0).all()
    faults = next((_number(row["faults/count"]) for row in reversed(rows) if "faults/count" in row), math.nan)
    run = dataclasses.replace(
        run,
        steps=sound[:, 0],
        raw=sound[:, 1],
        seconds=seconds if timed else NOTHING,
        reached=int(_number(rows[-1]["step"])) if rows else 0,
        faults=int(faults) if math.isfinite(faults) else None,
    )
    status, detail = _status(run, config, evaluations)
    dropped = len(evaluations) - len(sound)
    if dropped and status != "failed":
        detail = "; ".join(filter(None, [detail, f"{dropped} of {len(evaluations)} evaluations are not finite"]))
    return dataclasses.replace(run, status=status, detail=detail)


def _status(run: Run, config: Config, evaluations: np.ndarray) -> tuple[Status, str]:
    failure = run_folder.read_failure(run.path)
    if failure is not None:
        return "failed", failure
    judged_at = evaluations[-1, 0] if len(evaluations) else -1.0
    if len(evaluations) and not math.isfinite(evaluations[-1, 1]):
        return "failed", f"the last evaluation, at step {judged_at:,.0f}, is not finite"
    if judged_at >= run.end_step:
        return "finished", ""
    budget, spent = config.time_budget, evaluations[-1, 2] if len(evaluations) else 0.0
    if budget is not None and spent >= budget and judged_at == run.reached:
        return "finished", f"by its time budget of {budget:g} s"
    if (run.path / "bad_batch.npz").exists():
        return "failed", "a loss was not finite; its minibatch is in bad_batch.npz"
    progress = f"at step {run.reached:,} of {run.end_step:,}"
    if run_folder.in_use(run.path):
        return "running", progress
    checkpoints = run.path / run_folder.CHECKPOINTS
    saved = checkpoint.steps(checkpoints)
    if saved and not (run.path / rowfiles.METRICS).exists():
        return "damaged", f"{rowfiles.METRICS} is gone; step {saved[-1]:,} was saved"
    if not len(evaluations):
        return "no evaluations", progress
    if checkpoint.any_complete(checkpoints):
        return "interrupted", f"{progress}; go on with: {run_folder.resume_command([run.path])}"
    return "interrupted", f"{progress}, no {'complete ' if saved else ''}checkpoint"


# --- which runs are alike -------------------------------------------------------------------------------


def common_changes(runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    """The settings that every run of the report has: said once instead of in every label."""
    groups = [run.group for run in runs if run.group]
    if not groups:
        return ()
    return tuple(change for change in groups[0].changes if all(change in group.changes for group in groups))


def told_apart_by_physics(runs: Sequence[Run]) -> list[Run]:
    """Two ways to simulate the same physics make no two groups, unless a task and group has runs of both: then one was
    likely held against the other, and their seconds do not compare."""
    ways: dict[tuple[str, Group], set[str]] = {}
    for run in runs:
        if run.group is not None and run.impl is not None:
            ways.setdefault((run.task, run.group), set()).add(run.impl)
    return [
        dataclasses.replace(run, group=run.group.simulated_by(run.impl))
        if run.group is not None and run.impl is not None and len(ways[run.task, run.group]) > 1
        else run
        for run in runs
    ]


def told_apart_by_length(runs: Sequence[Run]) -> list[Run]:
    """Where a run stops changes nothing that it learned before, so it makes no group; only runs that were told to stop
    earlier than others of their task and group are told apart, since a mean over both would jump where they end."""
    longest: dict[tuple[str, Group], int] = {}
    for run in runs:
        if run.group is not None:
            key = run.task, run.group
            longest[key] = max(longest.get(key, 0), run.end_step)
    return [
        dataclasses.replace(run, group=run.group.stopped_at(run.end_step))
        if run.group is not None and run.end_step < REACHED * longest[run.task, run.group]
        else run
        for run in runs
    ]


def without_duplicates(runs: list[Run]) -> list[Run]:
    """The same task, group and seed twice is no second seed: the one that got further counts, else the later."""
    best: dict[tuple[str, Group, int], int] = {}

    def rank(run: Run) -> tuple[bool, float, int, str]:
        judged_at = float(run.steps[-1]) if len(run.steps) else -1.0
        return run.finished, judged_at, len(run.steps), str(run.meta.get("time", ""))

    for number, run in enumerate(runs):
        if run.group is None or run.seed is None:
            continue
        key = (run.task, run.group, run.seed)
        if key not in best or rank(run) > rank(runs[best[key]]):
            best[key] = number
    kept = set(best.values())
    result = []
    for number, run in enumerate(runs):
        if run.group is not None and run.seed is not None and number not in kept:
            other = runs[best[run.task, run.group, run.seed]].name
            was = f"{run.status}{': ' if run.detail else ''}{run.detail}"
            detail = f"{was}; same task, settings and seed as {other}"
            run = dataclasses.replace(run, status="duplicate", detail=detail)
        result.append(run)
    return result


# --- published curves as runs ---------------------------------------------------------------------------


def published_runs() -> list[Run]:
    """Each published mean curve as if it were the one run of its variant on its task."""
    runs = []
    for name in published.tasks():
        for variant, curve in published.curves(name).items():
            scale = Scale(name, curve.task.family, curve.task)
            detail, end = f"mean of {curve.seeds} seeds", published.horizon(curve.task)
            percent = 100.0 if scale.metric == "success" else 1.0
            runs.append(
                Run(Path(), f"{name}/{variant}", "finished", detail, scale, Group(variant), 0, curve.steps,
                    percent * curve.mean, reached=end, end_step=end)
            )  # fmt: skip
    return runs
