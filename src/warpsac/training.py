"""The training loop on host simulators, and what surrounds it: start, log, evaluate, save, stop.

`HostLoop.run` and `interact` are the algorithm in one screen. One interaction is: act, step, store,
update. With `overlap` the updates of the interaction before run on the device while the simulator
steps, so the policy acts with the parameters of one interaction before; without it the order is strict.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from warpsac import checkpoint, curve, envs, evaluate, policy, provenance, resuming, rundir, runtime
from warpsac.config import Config, validate
from warpsac.engine import Engine
from warpsac.envs.host import SeedEnvs
from warpsac.episodes import EpisodeLog
from warpsac.errors import TrainingStopped, UserError
from warpsac.interaction import make_setup
from warpsac.progress import Progress
from warpsac.replay.memory import choose_placement, free_device_bytes, free_host_bytes
from warpsac.replay.snapshot import seed_bytes
from warpsac.rundir import RunDir
from warpsac.signals import Interrupted, StopSignals

# Memory that replay leaves to the learner, the simulator and compiled programs.
RESERVED_BYTES = 1_000_000_000

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    runs: list[Path]
    """The run folder of each seed."""
    reason: Literal["finished", "time budget", "signal"]
    signal: int | None = None
    """The signal that stopped training, if one did."""

    @property
    def finished(self) -> bool:
        return self.reason == "finished"


def train(config: Config, notes: Sequence[str] = ()) -> Outcome:
    """Train every seed of the config from the start; `notes` are lines to show first."""
    with HostLoop(validate(config)) as loop:
        loop.start(notes)
        return loop.run()


def resume(
    folders: Sequence[Path | str],
    stop_at: int | None = None,
    time_budget: float | None = None,
) -> Outcome:
    """Go on with interrupted runs (the seeds of one config) from their last good checkpoint."""
    runs = [rundir.open_run(folder) for folder in folders]
    if not runs:
        raise UserError("resume needs at least one run folder")
    base = runs[0].config
    for run in runs[1:]:
        if dataclasses.replace(run.config, seeds=base.seeds, name=base.name) != base:
            raise UserError(f"{run.path} and {runs[0].path} have different settings: resume them one by one")
    config = dataclasses.replace(base, seeds=tuple(run.seed for run in runs), time_budget=time_budget)
    if stop_at is not None:
        config = dataclasses.replace(config, stop_at=stop_at)
    validate(config)
    checkpoints = resuming.find_checkpoints(runs)
    with HostLoop(config, runs) as loop:
        loop.start(checkpoints=checkpoints)
        return loop.run()


class HostLoop:
    """All state of a run on host simulators; what a checkpoint keeps of it is in `save` and `resuming`."""

    def __init__(self, config: Config, resumed: list[RunDir] | None = None):
        self.config = config
        self.target = envs.lookup(config.task)
        self._to_close = contextlib.ExitStack()
        self.envs = SeedEnvs([envs.make(config.task, config.env.num_envs, config.env) for _ in config.seeds])
        self._to_close.callback(self.envs.close)
        self._evaluation_env: envs.HostEnv | None = None
        self.setup = make_setup(config, self.envs.spec)
        self.placement = choose_placement(
            self.setup.ring, config.replay.placement, free_device_bytes(), free_host_bytes(), RESERVED_BYTES
        )
        self.obs = self.envs.reset(config.seeds)
        self.interaction = 0
        self.learning_from = config.warmup_interactions  # interactions before this one only collect
        self.evaluated_at: int | None = None  # the step of the last evaluation
        self.episodes = [EpisodeLog(config.env.num_envs) for _ in config.seeds]
        self.seconds_before = 0.0
        self.resumed = resumed is not None
        self.runs = resumed or self._create_runs()
        self._compiled: set[str] = set()

    def start(self, notes: Sequence[str] = (), checkpoints: list[checkpoint.Checkpoint] | None = None) -> None:
        """Make display and learner, and take up the state of the checkpoints if there are any."""
        config = self.config
        start_step = checkpoints[0].step if checkpoints else 0
        self.progress = Progress(config.end_step, f"{self.target.name} · {config.variant}", start_step)
        self._to_close.callback(self.progress.close)
        for note in (*notes, f"device: {runtime.describe_device()}", *self._memory_notes()):
            self.progress.message(note)
        for run in self.runs:
            self.progress.message(f"run folder: {run.path}")
            self._to_close.callback(run.close)
        self.engine = Engine(self.setup, config.seeds, self.placement, self.obs)
        if self.resumed:
            resuming.restore(self, checkpoints)
        self._started = time.monotonic()
        self._last_row = (self.step, self._started)

    def __enter__(self) -> HostLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self._to_close.close()

    # --- the loop

    def run(self) -> Outcome:
        config = self.config
        with StopSignals() as signals, self.saving_on_faults():
            if self.due(config.eval.every):
                self.evaluate(signals)
            while self.step < config.end_step and not signals.received and self.within_budget():
                self.interact()
                self.interaction += 1
                if self.interaction % config.log.every == 0:
                    self.log()
                if self.due(config.eval.every):
                    self.evaluate(signals)
                if self.due(config.checkpoint.every) and self.step < config.end_step:
                    self.save()
            if not signals.received:
                self.evaluate(signals)
            self.save()
        self.progress.phase("done")
        self.progress.message(f"saved at step {self.step:,}")
        if self.step >= config.end_step and self.evaluated_at == self.step:
            return Outcome(self.paths, "finished")
        return Outcome(self.paths, "signal" if signals.received else "time budget", signals.received)

    def interact(self) -> None:
        """Act, step, store, update; see the module's docstring for the order."""
        engine, overlap, t = self.engine, self.config.overlap, self.interaction
        if t < self.config.warmup_interactions:
            action = self.call("act_randomly", lambda: engine.act_randomly(t))
        else:
            action = self.call("act", lambda: engine.act(self.obs, t))
        if overlap and t > self.learning_from:
            self.learn()
        action = np.asarray(action)
        if not np.isfinite(action).all():
            self.require_finite()
            raise TrainingStopped("the policy gave an action that is not finite")
        self.envs.send(action)
        step = self.envs.recv()
        self.call("store", lambda: engine.store(action, step))
        if not overlap and t >= self.learning_from:
            self.learn()
        self.obs = step.result.obs
        for s, episodes in enumerate(self.episodes):
            one = type(step.result)(*(None if field is None else field[s] for field in step.result))
            episodes.observe(one, step.restart.mask[s] if step.restart else None, np.ravel(step.faults)[s])

    def learn(self) -> None:
        phase = self.engine.updates % self.config.learner.policy_delay
        self.call(f"learn{phase}", self.engine.learn)

    def call(self, program: str, function: Callable[[], T]) -> T:
        """Say so when a program is called for the first time: that call compiles it."""
        if program in self._compiled:
            return function()
        collecting = self.interaction < self.learning_from
        self.progress.phase("compiling", "the collector" if collecting else "the learner")
        result = function()
        self._compiled.add(program)
        self._show_phase()
        return result

    # --- where it stands

    @property
    def step(self) -> int:
        """Environment steps of each seed so far."""
        return self.interaction * self.config.env.num_envs

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self._started

    @property
    def paths(self) -> list[Path]:
        return [run.path for run in self.runs]

    def due(self, every: int) -> bool:
        """Whether the interaction just made crossed a multiple of `every` environment steps; 0 is one."""
        before = self.step - self.config.env.num_envs
        return every > 0 and self.step // every > before // every

    def within_budget(self) -> bool:
        budget = self.config.time_budget
        return budget is None or time.monotonic() - self._started < budget

    def _show_phase(self) -> None:
        self.progress.phase("training" if self.interaction >= self.learning_from else "collecting")

    # --- metrics and evaluation

    def log(self) -> None:
        self.require_finite()
        now = time.monotonic()
        steps, seconds = self.step - self._last_row[0], now - self._last_row[1]
        self._last_row = (self.step, now)
        times = {"time/seconds": self.seconds, "time/steps_per_second": steps / max(seconds, 1e-9)}
        head = {"step": self.step, "kind": "train"} | times
        self._write([
            head | episodes.take_row() | metrics
            for episodes, metrics in zip(self.episodes, self.engine.read_metrics(), strict=True)
        ])  # fmt: skip

    def evaluate(self, signals: StopSignals) -> None:
        """Judge the policy of every seed on environments of their own, once at a step.

        A signal ends it without a trace; the resumed run then makes up for it.
        """
        if self.evaluated_at == self.step:
            return
        self.require_finite()
        self.progress.phase("evaluating")
        with contextlib.suppress(Interrupted):
            self._write([self._evaluation_row(s, signals) for s in range(len(self.runs))])
            self.evaluated_at = self.step
            best = self.target.task.normalize_score if self.target.task else None
            for run in self.runs:
                curve.write_curve(run.curve, rundir.read_evaluations(run.path), run.config, best)
        self._show_phase()

    def _evaluation_row(self, s: int, signals: StopSignals) -> dict[str, Any]:
        config = self.config
        if self._evaluation_env is None:
            count = min(config.eval.num_envs, config.eval.episodes)
            self._evaluation_env = envs.make(config.task, count, config.env)
            self._to_close.callback(self._evaluation_env.close)
        episodes = evaluate.run_episodes(
            self._evaluation_env,
            self.engine.best_policy(s),
            config.eval.episodes,
            evaluate.evaluation_seed(config.seeds[s], self.step),
            on_step=signals.check,
        )
        head = {"step": self.step, "kind": "eval", "time/seconds": self.seconds}
        return head | evaluate.result_row(episodes, self.target.task)

    def _write(self, rows: list[dict[str, Any]]) -> None:
        for run, row in zip(self.runs, rows, strict=True):
            run.log(row)
        self.progress.update(self.step, rows)

    # --- checkpoints

    def save(self, with_simulator: bool = True) -> None:
        """One checkpoint per seed: all that is needed to go on as if nothing had happened."""
        self.require_finite()
        self.progress.phase("saving")
        info = {
            "interaction": self.interaction,
            "updates": self.engine.updates,
            "learning_from": self.learning_from,
            "evaluated_at": self.evaluated_at,
            "seconds": self.seconds,
            "env_spec": policy.portable_spec(self.envs.spec),
        }
        for s, (run, groups) in enumerate(zip(self.runs, self.engine.snapshots(self._saves_replay()), strict=True)):
            groups["episodes"] = self.episodes[s].state() | {"obs": self.obs[s]}
            simulator = self.envs.sets[s].get_state() if with_simulator else None
            if simulator is not None:
                groups["env"] = simulator
            _require_finite_parameters(run, groups["learner"])
            run.sync()
            checkpoint.save(run.checkpoints, self.step, groups, info, self.config.checkpoint.keep)
        self._show_phase()

    def _saves_replay(self) -> bool:
        setting = self.config.checkpoint
        if setting.replay == "auto":
            return seed_bytes(self.setup.ring, self.engine.stored) <= setting.replay_limit_gb * 1e9
        return setting.replay == "always"

    # --- start and trouble

    def _create_runs(self) -> list[RunDir]:
        config, meta = self.config, self.meta()
        return [rundir.create(config.out, rundir.run_name(config, s), config, s, meta) for s in config.seeds]

    def meta(self) -> dict[str, Any]:
        return provenance.describe(simulators=self.envs.spec.versions, accelerators=runtime.accelerators())

    def _memory_notes(self) -> list[str]:
        ring, setting = self.setup.ring, self.config.checkpoint
        each = f"{ring.capacity:,} transitions of {ring.transition_bytes} bytes"
        seeds = f" x {ring.num_seeds} seeds" if ring.num_seeds > 1 else ""
        size = f"{ring.nbytes / 1e9:.2f} GB" if ring.nbytes >= 1e8 else f"{ring.nbytes / 1e6:.1f} MB"
        notes = [f"replay: {each}{seeds}, {size} in {self.placement} memory, {ring.storage}"]
        full = seed_bytes(ring, ring.rows) / 1e9
        if setting.replay == "auto" and full > setting.replay_limit_gb:
            limit = f"checkpoint.replay_limit_gb = {setting.replay_limit_gb:g}"
            notes.append(f"replay will outgrow {limit} ({full:.1f} GB when full): then checkpoints do without it")
        return notes

    @contextlib.contextmanager
    def saving_on_faults(self) -> Any:
        """If the simulator keeps failing: save what is good, then say so."""
        try:
            yield
        except envs.SimulatorFailed as error:
            # Some environments may have made the step that others failed at: their state is not saved,
            # and the resumed run begins new episodes.
            self.save(with_simulator=False)
            raise TrainingStopped(f"{error}; saved, go on with: {resuming.command(self.paths)}") from None

    def require_finite(self) -> None:
        """Stop, without saving, if a loss was not finite; the offending minibatch is kept for inspection."""
        for run, update, s in zip(self.runs, self.engine.first_bad_updates(), range(len(self.runs)), strict=True):
            if update >= 0:
                path = run.path / "bad_batch.npz"
                arrays: Any = self.engine.batch_of(update, s)
                with contextlib.suppress(OSError):  # what stopped training matters more
                    np.savez(path, update=update, **arrays)
                raise _not_finite(run, f"the loss of update {update} is not finite; its minibatch is in {path}")


def _require_finite_parameters(run: RunDir, arrays: dict[str, np.ndarray]) -> None:
    """The last update may have spoiled what no loss has seen yet: a checkpoint of it would be of no use."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise _not_finite(run, f"{name} is not finite")


def _not_finite(run: RunDir, what: str) -> TrainingStopped:
    steps = checkpoint.steps(run.checkpoints)
    kept = f"the last good checkpoint is at step {steps[-1]:,}" if steps else "no checkpoint was made yet"
    return TrainingStopped(f"seed {run.seed}: {what}; {kept}; a smaller learner.learning_rate may help")
