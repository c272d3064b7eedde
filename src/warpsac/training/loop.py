"""The training loop: collect, learn, log, evaluate, save, stop. Read `Loop.run` first.

How interactions are made is up to the driver (`stepped`, `fused`), what is learned from them up to the algorithm
(`agents`). What happens between two stretches of interactions is here.
"""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from warpsac.config.schema import Config
from warpsac.envs import modules
from warpsac.envs.contract import SimulatorFailed
from warpsac.envs.tasks import Task
from warpsac.errors import TrainingStopped, UserError, in_a_line
from warpsac.runs import checkpoint, curve, policies, rowfiles
from warpsac.runs.callbacks import Callback, CallbackFailed, Callbacks
from warpsac.runs.run_folder import RunFolder, resume_command
from warpsac.training import evaluate, processes
from warpsac.training.policy import portable_spec
from warpsac.training.simulators import ActionNotFinite
from warpsac.training.state import Counters, Driver, info, policy_groups
from warpsac.training.terminal import Display, Interrupted, StopSignals

SAME_SIGNAL = 2.0  # seconds within which a process and its parent get one signal
STOPPING = "stopping as soon as possible, and saving; a second signal stops at once, without saving"


@dataclass(frozen=True)
class Outcome:
    """How training ended, and where its runs are."""

    runs: list[Path]
    """The run folder of each seed."""
    reason: Literal["finished", "time budget", "signal", "callback"]
    signal: int | None = None
    """The signal that stopped training, if one did."""
    said: str | None = None
    """What the callback that stopped training gave as its reason, if one did."""

    @property
    def finished(self) -> bool:
        return self.reason == "finished"

    @property
    def evaluations(self) -> list[evaluate.Evaluation | None]:
        """The last evaluation of each run, read from its folder; None if it has none."""
        return [evaluate.last_evaluation(run) for run in self.runs]

    @property
    def in_words(self) -> str:
        return self.said or (signal.Signals(self.signal).name if self.signal else self.reason)


class Loop:
    """All seeds of one run."""

    def __init__(
        self,
        config: Config,
        driver: Driver,
        runs: list[RunFolder],
        display: Display,
        task: Task | None,
        callbacks: Sequence[Callback] = (),
    ):
        self.config, self.driver, self.runs, self.display, self.task = config, driver, runs, display, task
        told = [*callbacks] if processes.writes() else []
        self.callbacks = Callbacks(told, runs, display.message, driver)
        self.seconds_before = 0.0  # of earlier processes, where the run was resumed
        self._started = time.monotonic()
        self._last_row = (self.step, self._started)
        self._drawn = True  # whether the learning curves show all evaluations

    def run(self) -> Outcome:
        config = self.config
        twice, began = SAME_SIGNAL if processes.count() > 1 else 0.0, self.step
        with (
            StopSignals(lambda: self.display.message(STOPPING), twice) as signals,
            self._saving_on_faults(),
        ):
            self._compile_ahead()
            if self._due(config.eval.every) and (self.step > 0 or config.eval.at_start):
                self.evaluate(signals)
            # Several processes agree between two stretches: within one they would wait for each other.
            stop = functools.partial(self._stop, signals) if processes.count() == 1 else lambda: False
            while self.step < config.end_step and not self._stop(signals):
                with modules.own_folder():
                    self.driver.advance(self._stretch(), stop)
                if self._row_due():
                    self.log()
                if self._due(config.eval.every):
                    self.evaluate(signals)
                if self._due(config.checkpoint.every) and self.step < config.end_step:
                    self.save()
            if not any(self._cut_short(signals)):
                self.evaluate(signals)
            self.save()
            outcome = self._outcome(self._cut_short(signals)[0])
        self.display.phase("done" if outcome.finished else "stopped")
        if self.step > began or not outcome.finished:
            self.display.message(f"saved at step {self.step:,}")
        self.callbacks.end(self.step, self.callbacks.failure or outcome.in_words)
        self._require_no_failed_callback(outcome)
        return outcome

    def _outcome(self, number: int) -> Outcome:
        paths, said = [run.path for run in self.runs], processes.gather(self.callbacks.asked or "")[0]
        if self.step >= self.config.end_step and self.counters.evaluated_at == self.step:
            return Outcome(paths, "finished")
        if number:
            return Outcome(paths, "signal", number)
        return Outcome(paths, "callback", said=said) if said else Outcome(paths, "time budget")

    def _compile_ahead(self) -> None:
        """Begin to compile what will be needed, all at once as far as there are cores; no number depends on it."""
        if self.driver.ahead is not None and self.step < self.config.end_step:
            with modules.own_folder():
                self.driver.compile_ahead(self.driver.ahead)

    # --- where it stands

    @property
    def counters(self) -> Counters:
        return self.driver.state.counters

    @property
    def step(self) -> int:
        """Environment steps of each seed so far."""
        return self.counters.interaction * self.config.env.num_envs

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self._started

    def _stretch(self) -> int:
        """Interactions up to the next row, evaluation, checkpoint or first update; whole strides."""
        config, now, num_envs = self.config, self.counters.interaction, self.config.env.num_envs

        def crossing(every: int) -> int:
            """The first interaction after now at whose end a multiple of `every` steps has been reached."""
            return -(-((now * num_envs) // every + 1) * every // num_envs)

        events = [(now // config.log.every + 1) * config.log.every, -(-config.end_step // num_envs)]
        events += [crossing(every) for every in (config.eval.every, config.checkpoint.every) if every > 0]
        events += [self.counters.learning_from] if self.counters.learning_from > now else []
        return -(-(min(events) - now) // config.stride) * config.stride

    def _row_due(self) -> bool:
        """Every `log.every` interactions; a run that is shorter has one row, at its end."""
        config, now = self.config, self.counters.interaction
        every = min(config.log.every, -(-config.total_steps // config.env.num_envs))
        return now // every > (now - config.stride) // every

    def _due(self, every: int) -> bool:
        """Whether the last `stride` of interactions crossed a multiple of `every` environment steps; 0 is one."""
        before = self.step - self.config.stride * self.config.env.num_envs
        return every > 0 and self.step // every > before // every

    def _stop(self, signals: StopSignals) -> bool:
        """Whether to stop before the end, asked after every interaction that the host sees."""
        self.display.reached(self.step)
        over = time.monotonic() - self._started >= (self.config.time_budget or math.inf)
        return any(processes.largest(signals.received or 0, over, self.callbacks.stopping))

    def _cut_short(self, signals: StopSignals) -> tuple[int, ...]:
        """The signal that any of the processes has received, and whether a callback failed; 0 if not."""
        return processes.largest(signals.received or 0, self.callbacks.failure is not None)

    # --- what is due between two stretches

    def log(self) -> None:
        self.require_finite()
        now = time.monotonic()
        steps, seconds = self.step - self._last_row[0], now - self._last_row[1]
        self._last_row = (self.step, now)
        times = {"time/seconds": self.seconds, "time/steps_per_second": steps / max(seconds, 1e-9)}
        head = {"step": self.step, "kind": "train"} | times
        rows = self._write([head | row for row in self.driver.rows()])
        with self._off_the_clock():
            self.callbacks.tell("on_row", self.step, rows)

    def evaluate(self, signals: StopSignals) -> None:
        """Evaluate the policy of every seed, once at a step.

        A signal ends it without a trace; the resumed run then makes up for it.
        """
        if self.counters.evaluated_at == self.step:
            return
        self.require_finite()
        count = self.config.eval.episodes
        self.display.phase("evaluating", f"{count} episode{'s' * (count != 1)}")
        with self._off_the_clock(), contextlib.suppress(Interrupted):
            head = {"step": self.step, "kind": "eval"}
            with modules.own_folder():
                check = signals.check if processes.count() == 1 else lambda: None  # all of them, or none
                episodes = self.driver.evaluate(self.step, check)
            results = [evaluate.result_row(found, self.task) for found in episodes]
            rows = [head | {"time/seconds": self.seconds} | row for row in results]
            self._keep_policies()  # before the rows: what a row calls the best is there
            rows = self._write(rows)
            self.driver.count(evaluated_at=self.step)
            self._drawn = False
            if self.counters.updates > 0:  # before, drawing would only delay the first of them
                self._draw_curves()
            self.callbacks.tell("on_evaluation", self.step, rows)
        self._show_phase()

    def _draw_curves(self) -> None:
        for run in self.runs if processes.writes() and not self._drawn else ():
            self._draw(run)
        self._drawn = True

    def _draw(self, run: RunFolder) -> None:
        """The learning curve, which never stops training: the next evaluation draws it again."""
        best = self.task.normalize_score if self.task else None
        try:
            curve.write_curve(run.curve, rowfiles.read_evaluations(run.path), run.config, best)
        except (OSError, UserError, ValueError) as error:
            self.display.message(f"{run.curve}: not drawn this time ({in_a_line(error)})")

    def _keep_policies(self) -> None:
        counters = self.counters._replace(evaluated_at=self.step)
        content = info(self.driver, counters, self.seconds, portable_spec(self.driver.spec))
        groups = policy_groups(self.driver.algorithm, self.driver.state.agent)
        for run, found, about in zip(self.runs, groups, content, strict=True):
            for arrays in found.values():
                self._require_finite_parameters(run, arrays)
            if processes.writes():
                policies.keep(run, self.step, found, about)

    def save(self, with_simulator: bool = True) -> None:
        """One checkpoint per seed: all that is needed to continue as if nothing had happened."""
        self.require_finite()
        self.display.phase("saving")
        keep, several = self.config.checkpoint.keep, len(self.runs) > 1
        content = info(self.driver, self.counters, self.seconds, portable_spec(self.driver.spec))
        with self._off_the_clock():
            self._draw_curves()
            for run in self.runs if processes.writes() else ():
                run.rows.sync()
            snapshots, paths = self.driver.snapshot(self._saves_memory(), with_simulator), []
            for run, groups, about in zip(self.runs, snapshots, content, strict=True):
                self._require_finite_parameters(run, groups["learner"])
                # Killed before the other seeds are saved, all go back to the checkpoint before this one.
                kept = max(keep, 2) if several else keep
                record = run.record() if processes.writes() else None
                together = processes.peers(), self.driver.axes
                paths.append(checkpoint.save(run.checkpoints, self.step, groups, about, kept, record, *together))
            for run in self.runs if processes.writes() else ():
                checkpoint.prune(run.checkpoints, keep)
            self.callbacks.tell("on_checkpoint", self.step, [path.absolute() for path in paths])
        self._show_phase()

    def _saves_memory(self) -> bool:
        setting, ring = self.config.checkpoint, self.driver.algorithm.ring
        if ring is None or setting.replay == "never":
            return False
        return setting.replay == "always" or ring.seed_bytes(self.counters.stored) <= setting.replay_limit_gb * 1e9

    def _show_phase(self) -> None:
        self.display.phase("training" if self.counters.interaction >= self.counters.learning_from else "collecting")

    @contextlib.contextmanager
    def _off_the_clock(self) -> Iterator[None]:
        """Steps per second do not count the time spent within."""
        entered = time.monotonic()
        yield
        self._last_row = (self._last_row[0], self._last_row[1] + time.monotonic() - entered)

    def _write(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows as they are in the files of the process that writes them."""
        written = [run.log(row) for run, row in zip(self.runs, rows, strict=True)] if processes.writes() else rows
        self.display.update(self.step, rows)
        return written

    # --- trouble

    @contextlib.contextmanager
    def _saving_on_faults(self) -> Iterator[None]:
        """If the simulator keeps failing: save what is good, then say so."""
        try:
            yield
        except SimulatorFailed as error:
            # Some environments may have made the step that others failed at: their state is not saved,
            # and the resumed run starts new episodes.
            self.save(with_simulator=False)
            command = resume_command([run.path for run in self.runs])
            raise TrainingStopped(f"{error}; saved, resume with: {command}") from None
        except ActionNotFinite:
            self.require_finite()
            raise

    @contextlib.contextmanager
    def telling_callbacks(self) -> Iterator[None]:
        """Callbacks are also told of an end that nobody wanted."""
        try:
            yield
        except BaseException as error:
            reason = "stopped at once"
            if isinstance(error, (Exception, SystemExit)):
                reason = str(error) if isinstance(error, TrainingStopped) else in_a_line(error)
            known = self.callbacks.failure
            self.callbacks.end(self.step, reason)
            if self.callbacks.failure != known:  # one more thing that failed, besides what ends the run
                self.display.message(str(self.callbacks.failure))
            raise

    def _require_no_failed_callback(self, outcome: Outcome) -> None:
        failure = processes.gather(self.callbacks.failure or "")[0]
        if failure:
            more = "" if outcome.finished else f"; resume with: {resume_command(outcome.runs)}"
            raise CallbackFailed(f"{failure}; step {self.step:,} is saved{more}") from self.callbacks.error

    def require_finite(self) -> None:
        """Stop, without saving, if a loss was not finite; the offending minibatch is kept for inspection."""
        first_bad = np.asarray(self.driver.state.agent.learner.first_bad)
        for s, (run, update) in enumerate(zip(self.runs, map(int, first_bad), strict=True)):
            if update < 0:
                continue
            what = f"the loss of update {update} is not finite"
            arrays = self.driver.batch_of(update, s)
            if arrays and processes.writes():
                path = run.path / "bad_batch.npz"
                with contextlib.suppress(OSError):  # what stopped training matters more
                    np.savez(path, **{"update": np.asarray(update), **arrays})  # type: ignore[arg-type]
                what += f"; its minibatch is in {path}"
            raise self._not_finite(run, what)

    def _require_finite_parameters(self, run: RunFolder, arrays: dict[str, np.ndarray]) -> None:
        """The last update may have spoiled what no loss has seen yet: a checkpoint of it would be of no use."""
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise self._not_finite(run, f"{name} is not finite")

    def _not_finite(self, run: RunFolder, what: str) -> TrainingStopped:
        steps = checkpoint.steps(run.checkpoints)
        kept = f"the last good checkpoint is at step {steps[-1]:,}" if steps else "no checkpoint was made yet"
        setting = self.driver.algorithm.rate_setting
        return TrainingStopped(f"seed {run.seed}: {what}; {kept}; a smaller {setting} may help")
