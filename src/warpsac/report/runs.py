"""Which runs folders hold, how each of them ended, and which of them are alike."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from warpsac.config.schema import Config
from warpsac.envs import published
from warpsac.errors import UserError
from warpsac.report.arms import History, history
from warpsac.report.groups import OTHER_FAMILY, Changes, Group, Scale, group_of, in_order, scale_of
from warpsac.runs import checkpoint, rowfiles, run_folder
from warpsac.runs.files import in_words

Status = Literal["finished", "running", "interrupted", "failed", "damaged", "no evaluations", "duplicate", "pruned"]

Axis = Literal["steps", "seconds"]
NOTHING = np.zeros(0)
UNKNOWN = Scale("?", OTHER_FAMILY, None)

# Runs of one horizon may end a few interactions apart; below this share of it they have another length.
REACHED = 0.98


@dataclass(frozen=True)
class Run:
    path: Path
    name: str
    status: Status
    detail: str = ""
    """More about the status, as text."""
    scale: Scale = UNKNOWN
    group: Group | None = None
    """None, like the seed, if the config cannot be read."""
    seed: int | None = None
    steps: np.ndarray = field(default_factory=lambda: NOTHING)
    """Environment steps of the evaluations, without those that are not finite."""
    raw: np.ndarray = field(default_factory=lambda: NOTHING)
    """Mean return of each evaluation, or success in percent where that is the task's metric."""
    success: float | None = None
    """Success of the last evaluation in percent, where it is recorded besides the return."""
    seconds: np.ndarray = field(default_factory=lambda: NOTHING)
    """Training time at each evaluation; empty if it was not recorded."""
    reached: int = 0
    end_step: int = 0
    total_steps: int = 0
    """The horizon of its schedule; `stop_at` may end the run before."""
    faults: int | None = None
    impl: str | None = None
    """What simulated the physics, where there was a choice."""
    given_name: str | None = None
    """The name that the user gave it; `name` is its folder."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    shown: bool = True
    """Whether it has a part in curves and results, if it is finished: of a search, only the best trials' runs have."""
    arms: History | None = None
    """Of a run with several arms: who acted, and who was chosen."""

    @property
    def task(self) -> str:
        return self.scale.task

    @property
    def scores(self) -> np.ndarray:
        return self.scale.score(self.raw)

    def curve(self, over: Axis) -> tuple[np.ndarray, np.ndarray]:
        return (self.steps if over == "steps" else self.seconds), self.scores

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
    def source(self) -> tuple[str, str] | None:
        """The module that the task comes from and the first digits of its hash, where both are recorded."""
        module, digest = (self.origin("task_source").get(part) for part in ("module", "sha256"))
        return (module, digest[:6]) if isinstance(module, str) and isinstance(digest, str) and digest else None

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
    """All run folders at or below a folder, in order of name, then the folders that cannot be listed; links are
    followed, but not in circles."""
    seen: set[str] = set()
    unreadable: list[OSError] = []
    for folder, inside, files in os.walk(root, followlinks=True, onerror=unreadable.append):
        real, is_run = os.path.realpath(folder), run_folder.CONFIG in (*files, *inside)
        if is_run and real not in seen:
            yield Path(folder)
        inside[:] = [] if is_run or real in seen else sorted(name for name in inside if not name.startswith("."))
        seen.add(real)
    yield from (Path(error.filename) for error in unreadable)


def collect(roots: Sequence[Path]) -> list[Run]:
    """Every run below the folders, if any; of several with the same task, group and seed only one counts."""
    found: dict[Path, Run] = {}
    for root in roots:
        if not root.is_dir():
            raise UserError(f"{root}: no such folder" if not root.exists() else f"{root}: not a folder")
        for folder in find_folders(root):
            name = folder.relative_to(root).as_posix() if folder != root else folder.resolve().name
            found.setdefault(folder.resolve(), read_run(folder, name))
    runs = separate_lengths(separate_sources(separate_physics(list(found.values()))))
    return mark_duplicates(separate_names(runs))


def read_run(folder: Path, name: str) -> Run:
    """One run folder; anything wrong with it becomes its status, so that it never spoils a report on others."""
    run = Run(folder, name, "damaged")
    try:
        opened = run_folder.open_run(folder)
        config, meta, scale = opened.config, opened.meta, scale_of(opened.config)
        impl = meta.get("impl", config.env.impl if config.env.impl != "auto" else None)
        run = dataclasses.replace(
            run, scale=scale, group=group_of(config), seed=opened.seed, end_step=config.end_step,
            total_steps=config.total_steps, impl=impl if isinstance(impl, str) else None, given_name=config.name,
            meta=meta,
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
    """NaN for what is no number, and for an integer that no float can hold."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and not abs(value) > sys.float_info.max else math.nan


def _evaluations(folder: Path, rows: Sequence[Mapping[str, Any]], scale: Scale) -> np.ndarray:
    """[evaluations, 3]: step, raw result, seconds; the last two may be NaN. Steps never decrease in an intact file."""
    found: dict[float, tuple[float, float, float]] = {}  # of two evaluations at one step the later counts
    last = 0.0
    for number, row in enumerate(rows, 1):
        step = _number(row.get("step"))
        if not (math.isfinite(step) and step >= last) or row.get("kind") not in ("train", "eval"):
            raise UserError(f"{folder / rowfiles.METRICS}, line {number}: not a row of metrics")
        last = step
        if row["kind"] == "eval":
            result = _number(row.get(f"eval/{scale.metric}")) * scale.factor
            found[step] = step, result, _number(row.get("time/seconds"))
    return np.array(list(found.values()), np.float64).reshape(-1, 3)


def _with_results(run: Run, config: Config, rows: Sequence[Mapping[str, Any]], evaluations: np.ndarray) -> Run:
    """The run with its evaluations and how it ended."""
    finite = evaluations[np.isfinite(evaluations[:, 1])]
    seconds = finite[:, 2]
    timed = np.isfinite(seconds).all() and (np.diff(seconds, prepend=-1e-300) > 0).all()
    faults = next((_number(row["faults/count"]) for row in reversed(rows) if "faults/count" in row), math.nan)
    last: Mapping[str, Any] = next((row for row in reversed(rows) if row["kind"] == "eval"), {})
    success = 100.0 * _number(last.get("eval/success"))
    run = dataclasses.replace(
        run,
        success=success if run.scale.metric == "return" and math.isfinite(success) else None,
        steps=finite[:, 0],
        raw=finite[:, 1],
        seconds=seconds if timed else NOTHING,
        reached=int(_number(rows[-1]["step"])) if rows else 0,
        faults=int(faults) if math.isfinite(faults) else None,
        arms=history(config, rows),
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
    if saved and saved[-1] > 0 and not (run.path / rowfiles.METRICS).exists():  # at step 0 there is no row yet
        return "damaged", f"{rowfiles.METRICS} is gone; step {saved[-1]:,} was saved"
    if not len(evaluations) and not (saved and run.reached < run.end_step):
        return "no evaluations", progress
    if checkpoint.any_complete(checkpoints):
        return "interrupted", f"{progress}; resume with: {run_folder.resume_command([run.path])}"
    return "interrupted", f"{progress}, no {'complete ' if saved else ''}checkpoint"


# --- which runs are alike -------------------------------------------------------------------------------


def common_changes(runs: Sequence[Run]) -> Changes:
    """The changes that all runs share whose algorithm has the setting: named once instead of in every label."""
    groups = in_order({run.group for run in runs if run.group})
    changes = dict.fromkeys(change for group in groups for change in group.changes)
    return tuple(
        change for change in changes if all(change in group.changes for group in groups if group.has(change[0]))
    )


def _by_task_and_group(runs: Sequence[Run]) -> dict[tuple[str, Group | None], list[Run]]:
    """The runs of each task and group."""
    found: defaultdict[tuple[str, Group | None], list[Run]] = defaultdict(list)
    for run in runs:
        found[run.task, run.group].append(run)
    return found


def _with_change(run: Run, name: str, value: str) -> Run:
    """The run in a group of its own kind: with one change more."""
    assert run.group is not None
    return dataclasses.replace(run, group=run.group._replace(changes=(*run.group.changes, (name, value))))


def separate_physics(runs: Sequence[Run]) -> list[Run]:
    """Two implementations of the same physics make two groups only where a task and group has runs of both: then the
    runs probably compare them, and their seconds differ."""
    impls = {key: {run.impl for run in members if run.impl} for key, members in _by_task_and_group(runs).items()}
    return [
        _with_change(run, "env.impl", run.impl)
        if run.group and run.impl and len(impls[run.task, run.group]) > 1
        else run
        for run in runs
    ]


def separate_sources(runs: Sequence[Run]) -> list[Run]:
    """Runs on a task whose code was changed between them are different groups; unknown code differs from none."""
    sources: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for run in runs:
        if run.source:
            sources[run.task].add(run.source)
    return [
        _with_change(run, f"source.{run.source[0]}", run.source[1])
        if run.group and run.source and len(sources[run.task]) > 1
        else run
        for run in runs
    ]


def separate_lengths(runs: Sequence[Run]) -> list[Run]:
    """Where a run stops does not change what it learned before, so it makes no group; only runs that were set to stop
    earlier than others of their task and group get one, since a mean over both would jump where they end."""
    longest = {key: max(run.end_step for run in members) for key, members in _by_task_and_group(runs).items()}
    return [
        dataclasses.replace(run, group=run.group._replace(changes=(("stop_at", str(run.end_step)), *run.group.changes)))
        if run.group and run.end_step < REACHED * longest[run.task, run.group]
        else run
        for run in runs
    ]


def separate_names(runs: Sequence[Run]) -> list[Run]:
    """Runs of different seeds belong together whatever their names. Where one seed was run several times under
    different names, the names are all that tells these tries apart: there, and wherever else they were given."""

    def tries(members: Sequence[Run]) -> set[str | None]:
        names: defaultdict[int | None, set[str | None]] = defaultdict(set)
        for run in members:
            if run.status in ("finished", "running", "interrupted"):  # one that failed was probably run again
                names[run.seed].add(run.given_name)
        return set().union(*(found for found in names.values() if len(found) > 1))

    of_tries = {key: tries(members) for key, members in _by_task_and_group(runs).items()}
    return [
        _with_change(run, "name", run.given_name)
        if run.group and run.given_name and run.given_name in of_tries[run.task, run.group]
        else run
        for run in runs
    ]


def mark_duplicates(runs: Sequence[Run]) -> list[Run]:
    """The same task, group and seed twice is no second seed: the run that got further counts, else the later one."""

    def rank(run: Run) -> tuple[bool, float, int, str]:
        last_step = float(run.steps[-1]) if len(run.steps) else -1.0
        return run.finished, last_step, len(run.steps), str(run.meta.get("time", ""))

    key = lambda run: (run.task, run.group, run.seed) if run.group else run.path
    best: dict[Any, Run] = {}
    for run in runs:
        best[key(run)] = max(best.get(key(run), run), run, key=rank)
    marked = []
    for run in runs:
        if (other := best[key(run)]) is not run:
            was = f"{run.status}: {run.detail}" if run.detail else run.status
            detail = f"{was}; same task, settings and seed as {other.name}"
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
