"""Which runs a folder holds, and how each of them ended."""

from __future__ import annotations

import dataclasses
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from warpsac.config.schema import Config
from warpsac.envs import published
from warpsac.errors import UserError
from warpsac.report.groups import Changes, Group, Scale, group_of, scale_of
from warpsac.runs import checkpoint, rowfiles, run_folder
from warpsac.runs.files import in_words

Status = Literal["finished", "running", "interrupted", "failed", "damaged", "no evaluations", "duplicate"]

NOTHING = np.zeros(0)

# Runs of one horizon may end a few interactions apart; below this share of it they have another length.
REACHED = 0.98


@dataclass(frozen=True)
class Run:
    path: Path
    name: str
    status: Status
    detail: str = ""
    """More about the status, as text."""
    scale: Scale | None = None
    """None, like group and seed, if the config cannot be read."""
    group: Group | None = None
    seed: int | None = None
    steps: np.ndarray = field(default_factory=lambda: NOTHING)
    """Environment steps of the evaluations, without those that are not finite."""
    raw: np.ndarray = field(default_factory=lambda: NOTHING)
    """Mean return of each evaluation, or success in percent where that is the task's metric."""
    seconds: np.ndarray = field(default_factory=lambda: NOTHING)
    """Training time at each evaluation; empty if it was not recorded."""
    reached: int = 0
    end_step: int = 0
    total_steps: int = 0
    """The horizon of its schedule; `stop_at` may end the run before."""
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
    def last_score(self) -> float | None:
        return float(self.scores[-1]) if len(self.raw) and self.scale and self.scale.bounds else None

    @property
    def total_seconds(self) -> float | None:
        return float(self.seconds[-1]) if len(self.seconds) else None

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    def origin(self, part: str) -> Mapping[str, Any]:
        """One of the mappings of meta.json; empty if it is missing or broken."""
        return run_folder.part_of(self.meta, part, dict)

    @property
    def resumes(self) -> int:
        return len(run_folder.part_of(self.meta, "resumes", list))

    @property
    def ended_by_budget(self) -> bool:
        return self.finished and self.reached < self.end_step

    @property
    def set_to_stop_early(self) -> bool:
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
        try:
            is_run = (folder / run_folder.CONFIG).is_file()
            inside = [] if is_run else sorted(entry.name for entry in os.scandir(folder) if _is_folder(entry))
        except OSError:
            is_run, inside = True, []  # reading it as a run reports what is wrong
        if is_run:
            yield folder
        for name in inside:
            if not name.startswith("."):
                yield from below(folder / name)

    yield from below(root)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # such as a link to itself
        return False


def collect(roots: Sequence[Path]) -> list[Run]:
    """Every run below the folders, if any; of several with the same task, group and seed only one counts."""
    found: dict[Path, Run] = {}
    for root in roots:
        if not root.is_dir():
            raise UserError(f"{root}: no such folder" if not root.exists() else f"{root}: not a folder")
        for folder in find_folders(root):
            name = folder.relative_to(root).as_posix() if folder != root else folder.resolve().name
            found.setdefault(folder.resolve(), read_run(folder, name))
    return mark_duplicates(separate_lengths(separate_physics(list(found.values()))))


def read_run(folder: Path, name: str) -> Run:
    """One run folder; anything wrong with it becomes its status, so that it never spoils a report on others."""
    run = Run(folder, name, "damaged")
    try:
        opened = run_folder.open_run(folder)
        config, meta, scale = opened.config, opened.meta, scale_of(opened.config)
        impl = meta.get("impl", config.env.impl if config.env.impl != "auto" else None)
        run = dataclasses.replace(
            run, scale=scale, group=group_of(config), seed=opened.seed, end_step=config.end_step,
            total_steps=config.total_steps, impl=impl if isinstance(impl, str) else None, meta=meta,
        )  # fmt: skip
        rows = rowfiles.read_metrics(folder)
        return _with_results(run, config, rows, _evaluations(folder, rows, scale))
    except UserError as error:
        detail = str(error)
    except OSError as error:
        detail = f"{Path(error.filename or rowfiles.METRICS).name}: {in_words(error)}"
    except Exception as error:  # nothing that a file may contain is worth the report on the other runs
        detail = f"cannot be read: {type(error).__name__}: {error}"
    return dataclasses.replace(run, detail=" ".join(detail.split()))


def _number(value: Any) -> float:
    """NaN for anything else; for an integer beyond the range of floats too."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def _evaluations(folder: Path, rows: Sequence[Mapping[str, Any]], scale: Scale) -> np.ndarray:
    """[evaluations, 3]: step, raw result, seconds; the last two may be NaN. Steps never decrease in an intact file."""
    found: list[tuple[float, float, float]] = []
    last = -math.inf
    for number, row in enumerate(rows, 1):
        step = _number(row.get("step"))
        if not (math.isfinite(step) and step >= last) or row.get("kind") not in ("train", "eval"):
            raise UserError(f"{folder / rowfiles.METRICS}, line {number}: not a row of metrics")
        last = step
        if row["kind"] == "eval":
            if found and found[-1][0] == step:
                found.pop()  # evaluated again at the same step: the later result counts
            result = _number(row.get(f"eval/{scale.metric}")) * scale.factor
            found.append((step, result, _number(row.get("time/seconds"))))
    return np.array(found, np.float64).reshape(-1, 3)


def _with_results(run: Run, config: Config, rows: Sequence[Mapping[str, Any]], evaluations: np.ndarray) -> Run:
    """The run with its evaluations and how it ended."""
    finite = evaluations[np.isfinite(evaluations[:, 1])]
    seconds = finite[:, 2]
    timed = np.isfinite(seconds).all() and (np.diff(seconds) > 0).all()
    faults = next((_number(row["faults/count"]) for row in reversed(rows) if "faults/count" in row), math.nan)
    run = dataclasses.replace(
        run,
        steps=finite[:, 0],
        raw=finite[:, 1],
        seconds=seconds if timed else NOTHING,
        reached=int(_number(rows[-1]["step"])) if rows else 0,
        faults=int(faults) if math.isfinite(faults) else None,
    )
    status, detail = _status(run, config, evaluations)
    dropped = len(evaluations) - len(finite)
    if dropped and status != "failed":
        detail = "; ".join(filter(None, [detail, f"{dropped} of {len(evaluations)} evaluations are not finite"]))
    return dataclasses.replace(run, status=status, detail=detail)


def _status(run: Run, config: Config, evaluations: np.ndarray) -> tuple[Status, str]:
    failure = run_folder.read_failure(run.path)
    if failure is not None:
        return "failed", failure
    evaluated_at, result, spent = evaluations[-1] if len(evaluations) else (-1.0, 0.0, 0.0)
    if not math.isfinite(result):
        return "failed", f"the last evaluation, at step {evaluated_at:,.0f}, is not finite"
    if evaluated_at >= run.end_step:
        return "finished", ""
    budget = config.time_budget
    if budget is not None and spent >= budget and evaluated_at == run.reached:
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
        return "interrupted", f"{progress}; resume with: {run_folder.resume_command([run.path])}"
    return "interrupted", f"{progress}, no {'complete ' if saved else ''}checkpoint"


# --- which runs are alike -------------------------------------------------------------------------------


def common_changes(runs: Sequence[Run]) -> Changes:
    """The settings that every run of the report has: named once instead of in every label."""
    groups = [run.group for run in runs if run.group]
    return (
        tuple(change for change in groups[0].changes if all(change in group.changes for group in groups))
        if groups
        else ()
    )


def _cells(runs: Sequence[Run]) -> dict[tuple[str, Group | None], list[Run]]:
    """The runs of each task and group."""
    cells: defaultdict[tuple[str, Group | None], list[Run]] = defaultdict(list)
    for run in runs:
        cells[run.task, run.group].append(run)
    return cells


def separate_physics(runs: Sequence[Run]) -> list[Run]:
    """Two implementations of the same physics make two groups only where a task and group has runs of both: then the
    runs probably compare them, and their seconds differ."""
    impls = {cell: {run.impl for run in members if run.impl} for cell, members in _cells(runs).items()}
    return [
        dataclasses.replace(run, group=run.group._replace(changes=(*run.group.changes, ("env.impl", run.impl))))
        if run.group and run.impl and len(impls[run.task, run.group]) > 1
        else run
        for run in runs
    ]


def separate_lengths(runs: Sequence[Run]) -> list[Run]:
    """Where a run stops does not change what it learned before, so it makes no group; only runs that were set to stop
    earlier than others of their task and group get one, since a mean over both would jump where they end."""
    longest = {cell: max(run.end_step for run in members) for cell, members in _cells(runs).items()}
    return [
        dataclasses.replace(run, group=run.group._replace(changes=(("stop_at", str(run.end_step)), *run.group.changes)))
        if run.group and run.end_step < REACHED * longest[run.task, run.group]
        else run
        for run in runs
    ]


def mark_duplicates(runs: Sequence[Run]) -> list[Run]:
    """The same task, group and seed twice is no second seed: the run that got further counts, else the later one."""

    def rank(run: Run) -> tuple[bool, float, int, str]:
        last_step = float(run.steps[-1]) if len(run.steps) else -1.0
        return run.finished, last_step, len(run.steps), str(run.meta.get("time", ""))

    best: dict[Any, Run] = {}
    # A run without group or seed is alike to none.
    keys = [(run.task, run.group, run.seed) if run.group and run.seed is not None else run.path for run in runs]
    for key, run in zip(keys, runs, strict=True):
        best[key] = max(best.get(key, run), run, key=rank)
    marked = []
    for key, run in zip(keys, runs, strict=True):
        if best[key] is not run:
            was = f"{run.status}: {run.detail}" if run.detail else run.status
            detail = f"{was}; same task, settings and seed as {best[key].name}"
            run = dataclasses.replace(run, status="duplicate", detail=detail)
        marked.append(run)
    return marked


# --- published curves as runs ---------------------------------------------------------------------------


def published_runs() -> list[Run]:
    """Each published mean curve as if it were the only run of its variant on its task."""
    runs = []
    for name in published.tasks():
        for variant, curve in published.curves(name).items():
            scale, end = Scale(name, curve.task.family, curve.task), published.horizon(curve.task)
            run = Run(Path(), f"{name}/{variant}", "finished", f"mean of {curve.seeds} seeds", scale, Group(variant), 0)
            raw = scale.factor * curve.mean
            runs.append(dataclasses.replace(run, steps=curve.steps, raw=raw, reached=end, end_step=end))
    return runs
