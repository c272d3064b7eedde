"""Callbacks: code of a user, called at every row, evaluation and checkpoint of a run and at its end.

A callback reads what is recorded anyway, in copies, and may ask for an end: with it or without it, a run of the same
length is the same, bit for bit. Only the command line or a program names callbacks. No file of a run does, so neither a
resume nor an evaluation of somebody else's run imports one. Trackers (`trackers`) are callbacks too.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from warpsac.config.schema import Config
from warpsac.envs import modules
from warpsac.errors import TrainingStopped, UserError, in_a_line, in_a_line_with_place
from warpsac.runs.run_folder import RunFolder


class Callback:
    """Derive from it what should be called. Each hook is called for every seed's run, by the process that writes it."""

    wants_driver: ClassVar[bool] = False
    """Whether `run.driver` may be used: the live simulators, networks and replay. What is changed there is in no file,
    and may go wrong with any version: neither the same numbers for a seed nor an exact resume is promised then."""

    def on_row(self, run: RunView, row: dict[str, Any]) -> None:
        """A row of metrics was written, every `log.every` interactions."""

    def on_evaluation(self, run: RunView, row: dict[str, Any]) -> None:
        """The policy was evaluated: its row, the kept policy and the learning curve are written."""

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        """A checkpoint is complete, in this folder; a later one may remove it."""

    def on_end(self, run: RunView, reason: str) -> None:
        """Training is over, once: finished, stopped or failed. No hook is called after it."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class Tracker(Callback):
    """A callback that passes rows on. If it fails, it is left out, with a line, and training goes on without it."""


class CallbackFailed(TrainingStopped):
    """A callback raised an exception. Of the run, all is saved: nothing in its folder says that it failed."""


@dataclass(frozen=True)
class RunView:
    """The run of one seed, as a callback sees it."""

    folder: Path
    """The run folder, as an absolute path."""
    config: Config
    """Its settings, as a copy."""
    seed: int
    step: int
    """Environment steps so far."""
    resumed_at: int | None
    """The step at which this process resumed the run; None if it began it."""
    _all: Callbacks = field(repr=False)
    _driver: Any = field(default=None, repr=False)

    def stop(self, reason: str = "no reason given") -> None:
        """End training of all seeds as soon as possible: as with a time budget all is evaluated and saved first."""
        self._all.stop(reason)

    def message(self, text: str) -> None:
        """Show a line above the display."""
        self._all.say(str(text))

    @property
    def driver(self) -> Any:
        """The live `training.state.Driver` of all seeds, for a callback that has `wants_driver`."""
        if self._driver is None:
            raise UserError("run.driver is only for a callback with `wants_driver = True`")
        return self._driver


@dataclass
class Callbacks:
    """The callbacks of a run of several seeds, and what they have asked for."""

    told: list[Callback]
    runs: Sequence[RunFolder]
    say: Callable[[str], None]
    driver: Any = None
    stopping: bool = False
    asked: str | None = None
    """Why one of them wants training to end."""
    failure: str | None = None
    """What went wrong in one of them; it is called no more."""
    error: BaseException | None = None

    def stop(self, reason: str) -> None:
        self.asked = self.asked or " ".join(str(reason).split()) or "no reason given"
        self.stopping = True

    def tell(self, hook: str, step: int, contents: Sequence[Any]) -> None:
        """Call one hook of all of them: `contents` are what is new of each run."""
        for callback in tuple(self.told):
            for run, content in zip(self.runs, contents, strict=True):
                if callback in self.told:
                    self._call(callback, hook, self._view(callback, run, step), copy.copy(content))

    def end(self, step: int, reason: str) -> None:
        self.tell("on_end", step, [reason] * len(self.runs))
        self.told.clear()

    def _view(self, callback: Callback, run: RunFolder, step: int) -> RunView:
        folder, config = Path(os.path.abspath(run.path)), copy.deepcopy(run.config)
        driver = self.driver if callback.wants_driver else None
        return RunView(folder, config, run.seed, step, run.resumed_at, self, driver)

    def _call(self, callback: Callback, hook: str, view: RunView, content: Any) -> None:
        try:
            with modules.own_folder():
                getattr(callback, hook)(view, content)
        except (Exception, SystemExit) as error:
            self.told = [other for other in self.told if other is not callback]
            line = in_a_line(error)
            if isinstance(callback, Tracker):
                with contextlib.suppress(Exception):
                    for run in self.runs if hook != "on_end" else ():
                        callback.on_end(self._view(callback, run, view.step), line)
                self.say(f"{name_of(callback)}: left out from here on ({line}); metrics.jsonl has all rows")
                return
            failure = f"callback {name_of(callback)} failed in {hook} ({in_a_line_with_place(error)})"
            if self.failure is None:
                self.failure, self.error, self.stopping = failure, error, True
            else:
                self.say(failure)


def name_of(callback: Callback) -> str:
    return type(callback).__name__


def require_callbacks(callbacks: Any) -> None:
    if not isinstance(callbacks, Sequence):
        raise UserError("callbacks: must be a list, also of one: callbacks=[...]")
    for one in callbacks:
        if isinstance(one, type) and issubclass(one, Callback):
            raise UserError(f"callbacks: {one.__name__} is a class: give an object of it, {one.__name__}(...)")
        if not isinstance(one, Callback):
            what = one.__name__ if isinstance(one, type) else name_of(one)
            what = repr(one) if isinstance(one, str | int | float) else what
            raise UserError(f"callbacks: {what} is not derived from warpsac.runs.callbacks.Callback")
        for name in (name for name in dir(one) if name.startswith("on_") and name not in HOOKS):
            near = difflib.get_close_matches(name, HOOKS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(HOOKS)}"
            raise UserError(f"callbacks: {name_of(one)}.{name} would never be called; {hint}")


def load(name: str) -> Callback:
    """The callback that a command names: `module:Class`, or a function that makes one, called without arguments."""
    module, _, made_by = name.partition(":")
    if not made_by.isidentifier():
        raise UserError(f"--callback {name}: must be module:Class")
    try:
        modules.use([module])
        make = getattr(sys.modules[module], made_by, None)
        if not callable(make):
            own = [key for key, value in vars(sys.modules[module]).items() if _is_own(value, module)]
            raise UserError(f"{module} has no class '{made_by}'" + (f"; it has {', '.join(own)}" if own else ""))
        try:
            with modules.own_folder():
                callback = make()
        except (Exception, SystemExit) as error:
            raise UserError(f"{made_by}() failed ({in_a_line(error)}); it is called without arguments") from error
        require_callbacks([callback])
    except UserError as error:
        raise UserError(f"--callback {name}: {error}") from error.__cause__
    return callback


def _is_own(value: Any, module: str) -> bool:
    return isinstance(value, type) and issubclass(value, Callback) and value.__module__ == module
