"""The course of a search: trials are asked for while there is room, followed, pruned, and told to the study."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpsac.bench.board import LOOK_INTERVAL, Board
from warpsac.bench.scheduler import Job, Scheduler
from warpsac.bench.space import progress
from warpsac.bench.state import folder_of, require_as_planned, states_of
from warpsac.bench.study import Entry, Study
from warpsac.bench.suite import DEFAULT_SEEDS, Cell, Origin, leaves
from warpsac.config.schema import Config
from warpsac.envs.registry import configure
from warpsac.errors import UserError
from warpsac.report.groups import scale_of
from warpsac.report.numerals import plain
from warpsac.report.runs import read_run
from warpsac.runs.trials import Searched, Trial

# New trials that fail one after the other before no more are asked for: it is hardly a matter of their settings.
MOST_FAILED = 5


@dataclass
class _Trial:
    entry: Entry
    cell: Cell | None
    """None if its settings exclude one another."""
    new: bool = False
    """Asked for by this bench."""
    failed: bool = False
    """Not finished when its programs ended; the next bench tries it again."""

    @property
    def open(self) -> bool:
        return self.entry.state == "open" and not self.failed


class Course:
    """One search in the folder of a bench. A trial is a cell; its number in the study names its folder."""

    def __init__(self, bench: Path, origin: Origin, clock: Callable[[], float] = time.monotonic):
        self.origin, self._bench, self._clock = origin, bench, clock
        self._study = Study(bench, origin.cell.name, origin.search, origin.cell.config)
        self._trials = [self._made(entry) for entry in self._study.entries()]
        for cell in self.cells:
            require_as_planned(bench, cell)
        # The bench may have been killed between the report of an evaluation and what follows from it.
        self._unsure = {trial.entry.number for trial in self._trials if trial.open}
        self._failed_in_row, self._look_due = 0, 0.0
        self.closed = False
        """Whether no more trials are asked for, although some are left."""

    def _made(self, entry: Entry, new: bool = False) -> _Trial:
        if entry.state == "refused":
            return _Trial(entry, None)
        try:
            return _Trial(entry, self.origin.trial(entry.number, entry.values), new)
        except UserError as error:
            if entry.state != "open":
                raise
            self._study.refuse(entry.number, str(error))
            return _Trial(self._study.entries()[entry.number], None)

    @property
    def name(self) -> str:
        return self.origin.cell.name

    @property
    def cells(self) -> list[Cell]:
        return [trial.cell for trial in self._trials if trial.cell]

    @property
    def pruned(self) -> set[str]:
        return {trial.cell.name for trial in self._trials if trial.cell and trial.entry.state == "pruned"}

    @property
    def left(self) -> int:
        """Trials still to be asked for."""
        return max(0, self.origin.search.trials - len(self._trials))

    @property
    def done(self) -> bool:
        return (self.closed or not self.left) and not any(trial.open for trial in self._trials)

    @property
    def complete(self) -> bool:
        """Whether all trials were made, and each came to an end."""
        return not self.left and all(trial.entry.state != "open" for trial in self._trials)

    # --- what happens

    def turn(self, scheduler: Scheduler, board: Board, jobs_for: Callable[[Cell], list[Job]]) -> bool:
        """Take note of new evaluations and of trials that have ended, then ask for as many trials as there is room
        for; whether anything has changed."""
        busy, now = scheduler.busy, self._clock()
        look = now >= self._look_due
        if look:
            self._look_due = now + LOOK_INTERVAL
        before = self.summary()
        for trial in [trial for trial in self._trials if trial.open]:
            assert trial.cell is not None
            if (ended := trial.cell.name not in busy) or look:
                self._follow(trial, ended, scheduler, board.say)
        while self.left and not self.closed and scheduler.has_room:
            self._ask(scheduler, board, jobs_for)
        return self.summary() != before

    def _ask(self, scheduler: Scheduler, board: Board, jobs_for: Callable[[Cell], list[Job]]) -> None:
        trial = self._made(self._study.ask(), new=True)
        self._trials.append(trial)
        settings = _words(trial.entry.values)
        if trial.cell is None:
            board.say(f"refused: {self._called(trial)}: {settings}: {trial.entry.reason}")
            return
        require_as_planned(self._bench, trial.cell)
        board.add([trial.cell])
        board.say(f"new: {self._called(trial)}: {settings}")
        scheduler.add(jobs_for(trial.cell))

    def _follow(self, trial: _Trial, ended: bool, scheduler: Scheduler, say: Callable[[str], None]) -> None:
        cell, number = trial.cell, trial.entry.number
        assert cell is not None
        found = progress(self._curves(cell), self.origin.search.objective)
        sure = number not in self._unsure or not 0 < (trial.entry.step or 0) < cell.config.end_step
        prune = not sure and self._study.to_prune(number)
        self._unsure.discard(number)
        for step, value in found:
            if not prune and step > (trial.entry.step or 0):
                prune = self._study.report(number, step, value) and step < cell.config.end_step
                trial.entry = self._study.entries()[number]
        if prune:
            self._study.prune(number)
            trial.entry = self._study.entries()[number]
            self._failed_in_row = 0
            scheduler.drop(cell.name)
            say(f"pruned: {self._called(trial)} at step {trial.entry.step:,}: {_number(trial.entry.value)}")
        elif ended and all(state.status == "finished" for state in states_of(self._bench, cell)) and found:
            self._study.complete(number, found[-1][1])
            trial.entry = self._study.entries()[number]
            self._failed_in_row = 0
            best = self.best
            assert best is not None
            other = f"best so far: {_number(best.entry.value)} of trial-{best.entry.number}"
            ranked = "the best so far" if best is trial else other
            say(f"result: {self._called(trial)}: {_number(trial.entry.value)} ({ranked})")
        elif ended:
            trial.failed = True
            self._failed_in_row += trial.new
            if self._failed_in_row >= MOST_FAILED and self.left:
                self.closed = True
                say(f"{self.name}: {MOST_FAILED} trials failed one after the other: no more are started")

    def _curves(self, cell: Cell) -> list[Any]:
        folders = (folder_of(self._bench / cell.name, cell.config, seed) for seed in cell.config.seeds)
        runs = [read_run(folder, folder.name) for folder in folders if folder.exists()]
        # One seed without an evaluation: nothing can be said of the trial yet.
        whole = len(runs) == len(cell.config.seeds) and all(len(run.steps) for run in runs)
        return [(run.steps, run.raw) for run in runs] if whole else []

    # --- what is shown

    @property
    def best(self) -> _Trial | None:
        complete = [trial for trial in self._trials if trial.entry.state == "complete"]
        return max(complete, key=lambda trial: (trial.entry.value, -trial.entry.number), default=None)

    def _called(self, trial: _Trial) -> str:
        cell = self.origin.cell
        return f"{cell.config.task} {cell.variant} trial-{trial.entry.number}"

    def summary(self) -> Searched:
        """What trials.json says."""
        scale = scale_of(self.origin.cell.config)
        metric = "success in percent" if scale.metric == "success" else "return"
        seeds = len(self.origin.cell.config.seeds)
        over = f", mean of {seeds} seeds" if seeds > 1 else ""
        return Searched(
            self.name, f"{metric}, {self.origin.search.objective.in_words}{over}", tuple(map(self._shown, self._trials))
        )

    def _shown(self, trial: _Trial) -> Trial:
        number, values, state, value, step, reason = trial.entry
        states = {"complete": "finished", "pruned": "pruned", "refused": "failed", "open": "unfinished"}
        cell = trial.cell.name if trial.cell else ""
        shown = "failed" if trial.failed else states[state]
        settings = {path: list(found) if isinstance(found, tuple) else found for path, found in values.items()}
        return Trial(number, cell, shown, settings, value, step, reason)

    def lines(self) -> list[str]:
        """What the search has found so far."""
        shown = [trial.state for trial in self.summary().trials]
        counts = ", ".join(f"{shown.count(state)} {state}" for state in dict.fromkeys(sorted(shown)))
        head = f"{self.name}: {len(shown)} of {max(self.origin.search.trials, len(shown))} trials"
        lines = [f"{head}: {counts}" if counts else head]
        if (best := self.best) is not None and best.cell is not None:
            lines += [
                f"best: trial {best.entry.number} with {_words(best.entry.values)}: {_number(best.entry.value)} "
                f"({self.summary().objective})",
                f"train it with: {train_command(best.cell.config)}",
            ]
        return lines


def _number(value: float | None) -> str:
    return "nothing" if value is None else plain(value, ",.4g" if abs(value) < 1000 else ",.1f")


def _words(values: Mapping[str, Any]) -> str:
    return " ".join(f"{path}={_word(value)}" for path, value in values.items())


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def train_command(config: Config, seeds: Sequence[int] = DEFAULT_SEEDS) -> str:
    """The command that trains with these settings, on the seeds that results are reported with."""
    usual = functools.partial(configure, config.task, variant=config.variant, simulator=config.simulator)
    words = ["warpsac", "train", config.task]
    words += ["--variant", config.variant] if config.algo == "sac" else ["--algo", config.algo]
    profile = None
    if usual()[0].profile != config.profile:
        profile = config.profile
        words += ["--profile", profile]
    if usual(profile=profile)[0].env.num_envs != config.env.num_envs:
        words += ["--env.num-envs", str(config.env.num_envs)]
    default = usual(profile=profile, env={"num_envs": config.env.num_envs})[0]
    before, now = (dict(leaves({**dataclasses.asdict(one), "task_config": {}})) for one in (default, config))
    for path in (path for path in now if path not in ("seeds", "out", "name") and now[path] != before[path]):
        words += _option(path, now[path])
    for path, value in config.task_config.items():
        words += [f"--task-config.{path}", *_listed(value)]
    return shlex.join([*words, "--seeds", *map(str, seeds)])


def _option(path: str, value: Any) -> list[str]:
    section, dot, name = path.rpartition(".")
    if isinstance(value, bool):
        return [f"--{section}{dot}{'' if value else 'no-'}{name}".replace("_", "-")]
    return [f"--{path}".replace("_", "-"), *_listed(value)]


def _listed(value: Any) -> list[str]:
    return list(map(str, value if isinstance(value, list | tuple) else [value]))
