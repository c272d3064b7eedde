"""What every training loop does: start, log, evaluate, save, stop. How it interacts is its own affair.

`HostLoop` steps a simulator from Python, `TorchLoop` does so without leaving the device, `FusedLoop` compiles it
together with the learner; all make whole interactions, and whatever happens between two of them is here.
"""

from __future__ import annotations

import abc
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from warpsac.agents.sac.algorithm import make_setup
from warpsac.config import provenance
from warpsac.config.schema import Config
from warpsac.envs import contract, registry
from warpsac.envs.tasks import EXTRAS
from warpsac.errors import OtherSettings, TrainingStopped, UserError, in_a_line
from warpsac.replay.memory import choose_placement, free_device_bytes, free_host_bytes
from warpsac.replay.snapshot import seed_bytes
from warpsac.runs import checkpoint, curve, policy, rowfiles, run_folder
from warpsac.runs.run_folder import RunFolder
from warpsac.training import devices, evaluate, resuming
from warpsac.training.display import Progress
from warpsac.training.episodes import Episode
from warpsac.training.seed_engine import Groups
from warpsac.training.signals import Interrupted, StopSignals, Terminated

# Memory that replay leaves to the learner, the simulator and compiled programs.
RESERVED_BYTES = 1_000_000_000
STOPPING = "stopping as soon as it can, and saving; once more stops at once, without saving"


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


class Loop(abc.ABC):
    """The state of a run that is not the learner's; what a checkpoint keeps of it is in `save`."""

    # What makes a GPU-sized task small enough for a CPU, beside fewer environments.
    small: Mapping[str, object] = {
        "total_steps": 100_000, "learning_starts": 1000, "replay.capacity": 100_000, "replay.batch_size": 128,
        "learner.compute": "float32", "learner.actor_width": 64, "learner.critic_width": 64, "eval.every": 20_000,
    }  # fmt: skip

    def __init__(self, config: Config, resumed: list[RunFolder] | None = None):
        self.config = config
        self.target = registry.lookup(config.task)
        self.interaction = 0
        self.learning_from = config.first_learning  # interactions before this one only collect
        self.evaluated_at: int | None = None  # the step of the last evaluation
        self.learned_during: int | None = None  # the last interaction during which updates were made, with `overlap`
        self.seconds_before = 0.0
        self.resumed = resumed is not None
        with contextlib.ExitStack() as self._to_close:  # closed if anything here fails
            self.spec = self.make_simulator()
            self.plan()
            self.runs = resumed or self._create_runs()
            self._to_close = self._to_close.pop_all()

    def start(self, notes: Sequence[str] = (), checkpoints: list[checkpoint.Checkpoint] | None = None) -> None:
        """Make display and learner, and take up the state of the checkpoints if there are any."""
        config = self.config
        start_step = checkpoints[0].step if checkpoints else 0
        self.progress = Progress(config.last_step, f"{self.target.name} · {config.variant}", start_step)
        self._to_close.callback(self.progress.close)
        for note in (*notes, f"device: {devices.describe_device()}", *self._notes()):
            self.progress.message(note)
        for run in self.runs:
            self.progress.message(f"run folder: {run.path}")
            self._to_close.callback(run.close)
        self.engine = self.make_engine()
        if self.resumed:
            resuming.restore(self, checkpoints)
        self._started = time.monotonic()
        self._last_row = (self.step, self._started)

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, KeyboardInterrupt | Terminated):
            print(resuming.after_a_stop_at_once(self.runs), file=sys.stderr)
        if isinstance(error, Exception):
            for run in self.runs:
                run.record_failure(str(error) if isinstance(error, TrainingStopped) else in_a_line(error))
        self._to_close.close()

    # --- what a kind of loop provides

    setup: Any
    engine: Any  # a `SeedEngine` that also tells its metrics
    rate_setting = "learner.learning_rate"  # what to try where losses are not finite

    @abc.abstractmethod
    def make_simulator(self) -> contract.EnvSpec:
        """Make the environments of all seeds; returns what they are."""

    def plan(self) -> None:
        """What stays fixed during the run, and where replay lives."""
        self.setup = make_setup(self.config, self.spec)
        self.placement = choose_placement(
            self.setup.ring, self.wanted_placement(), free_device_bytes(), free_host_bytes(), RESERVED_BYTES
        )

    @abc.abstractmethod
    def make_engine(self) -> Any:
        """Make the learner with its replay."""

    def require_gpu(self) -> None:
        """Say at once that so many environments of a parallel simulator are nothing for a CPU."""
        config = self.config
        if self.target.expects_gpu(config.env.num_envs) and devices.on_cpu():
            warp = "warp" if self.target.family == "playground" else None
            needed = ",".join(filter(None, (EXTRAS.get(self.target.family), warp, "cuda")))
            why = (
                f"{config.task} with {config.env.num_envs} environments expects a GPU, and JAX sees none: "
                f"install 'warpsac[{needed}]', or"
            )
            if self.resumed:
                raise UserError(f"{why} resume it where there is one")
            most = registry.most_envs(config.task) or 8
            judged = {"eval.episodes": 4, "eval.num_envs": min(4, most)}
            raise OtherSettings(
                f"{why} try it small on the CPU", {"env.num_envs": min(8, most), **self.small, **judged}
            )

    def wanted_placement(self) -> Literal["auto", "device", "host"]:
        return self.config.replay.placement

    @abc.abstractmethod
    def advance(self) -> int:
        """Make one interaction or more, at most to the next event; returns how many."""

    @abc.abstractmethod
    def episode_rows(self) -> list[dict[str, float]]:
        """Metrics of the training episodes that ended since the last call, for each seed."""

    @abc.abstractmethod
    def evaluation_episodes(self, signals: StopSignals) -> list[list[Episode]]:
        """Complete episodes of each seed's policy, on environments of their own."""

    @abc.abstractmethod
    def snapshots(self, with_simulator: bool) -> list[Groups]:
        """All arrays of each seed's checkpoint."""

    @abc.abstractmethod
    def restore(self, parts: list[Groups]) -> bool:
        """Take up simulator and episodes of a checkpoint; False: the simulator begins anew."""

    @property
    @abc.abstractmethod
    def next_obs(self) -> Any:
        """The observations [S, N, D] that will be acted on next."""

    # --- the loop

    def run(self) -> Outcome:
        config = self.config
        with StopSignals(lambda: self.progress.message(STOPPING)) as signals, self.saving_on_faults():
            if self.due(config.eval.every):
                self.evaluate(signals)
            while self.step < config.end_step and not signals.received and self.within_budget():
                self.interaction += self.advance()
                self.progress.reached(self.step)
                if self.interaction // config.log.every > (self.interaction - config.stride) // config.log.every:
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
        """Whether the last `stride` of interactions crossed a multiple of `every` environment steps; 0 is one."""
        before = self.step - self.config.stride * self.config.env.num_envs
        return every > 0 and self.step // every > before // every

    def within_budget(self) -> bool:
        budget = self.config.time_budget
        return budget is None or time.monotonic() - self._started < budget

    def show_phase(self, reached: int | None = None) -> None:
        self.progress.phase("training" if self.interaction >= self.learning_from else "collecting", reached=reached)

    # --- metrics and evaluation

    def log(self) -> None:
        self.require_finite()
        now = time.monotonic()
        steps, seconds = self.step - self._last_row[0], now - self._last_row[1]
        self._last_row = (self.step, now)
        times = {"time/seconds": self.seconds, "time/steps_per_second": steps / max(seconds, 1e-9)}
        head = {"step": self.step, "kind": "train"} | times
        rows = zip(self.episode_rows(), self.engine.read_metrics(), strict=True)
        self._write([head | episodes | metrics for episodes, metrics in rows])

    def evaluate(self, signals: StopSignals) -> None:
        """Judge the policy of every seed on environments of their own, once at a step.

        A signal ends it without a trace; the resumed run then makes up for it.
        """
        if self.evaluated_at == self.step:
            return
        self.require_finite()
        count = self.config.eval.episodes
        self.progress.phase("evaluating", f"{count} episode{'s' * (count != 1)}")
        with self._off_the_clock(), contextlib.suppress(Interrupted):
            head = {"step": self.step, "kind": "eval"}
            results = [evaluate.result_row(found, self.target.task) for found in self.evaluation_episodes(signals)]
            self._write([head | {"time/seconds": self.seconds} | row for row in results])
            self.evaluated_at = self.step
            best = self.target.task.normalize_score if self.target.task else None
            for run in self.runs:
                curve.write_curve(run.curve, rowfiles.read_evaluations(run.path), run.config, best)
        self.show_phase()

    @contextlib.contextmanager
    def _off_the_clock(self) -> Any:
        """Steps per second do not count the time spent within."""
        begun = time.monotonic()
        yield
        self._last_row = (self._last_row[0], self._last_row[1] + time.monotonic() - begun)

    def _write(self, rows: list[dict[str, Any]]) -> None:
        for run, row in zip(self.runs, rows, strict=True):
            run.log(row)
        self.progress.update(self.step, rows)

    # --- checkpoints

    def save(self, with_simulator: bool = True) -> None:
        """One checkpoint per seed: all that is needed to go on as if nothing had happened."""
        self.require_finite()
        self.progress.phase("saving")
        keep = self.config.checkpoint.keep
        info = {
            "interaction": self.interaction,
            "updates": self.engine.updates,
            "learning_from": self.learning_from,
            # Its updates are made already, but its step was not: the simulator failed for good.
            "learned_ahead": self.learned_during == self.interaction,
            "evaluated_at": self.evaluated_at,
            "seconds": self.seconds,
            "env_spec": policy.portable_spec(self.spec),
        }
        with self._off_the_clock():
            for run, groups in zip(self.runs, self.snapshots(with_simulator), strict=True):
                self._require_finite_parameters(run, groups["learner"])
                run.rows.sync()
                # Killed before the other seeds are saved, all go back to the checkpoint before this one.
                checkpoint.save(run.checkpoints, self.step, groups, info, max(keep, 2) if len(self.runs) > 1 else keep)
            for run in self.runs:
                checkpoint.prune(run.checkpoints, keep)
        self.show_phase()

    def saves_replay(self) -> bool:
        setting = self.config.checkpoint
        if setting.replay == "auto":
            return seed_bytes(self.setup.ring, self.engine.stored) <= setting.replay_limit_gb * 1e9
        return setting.replay == "always"

    # --- start and trouble

    def _create_runs(self) -> list[RunFolder]:
        config, meta = self.config, self.meta()
        return [run_folder.create(config.out, run_folder.run_name(config, s), config, s, meta) for s in config.seeds]

    def meta(self) -> dict[str, Any]:
        found = provenance.describe(simulators=self.spec.versions, accelerators=devices.accelerators())
        return found | ({"impl": self.spec.impl} if self.spec.impl else {})

    def _notes(self) -> list[str]:
        notes = self.memory_notes()
        if self.spec.episode_limit is None:
            notes.append("episodes have no step limit: if they may never end, give one with --env.episode-limit")
        return notes

    def memory_notes(self) -> list[str]:
        ring, setting = self.setup.ring, self.config.checkpoint
        each = f"{ring.capacity:,} transitions of {ring.transition_bytes} bytes"
        seeds = f" x {ring.num_seeds} seeds" if ring.num_seeds > 1 else ""
        where = "memory" if devices.on_cpu() else f"{self.placement} memory"
        size = f"{ring.nbytes / 1e9:.2f} GB" if ring.nbytes >= 1e8 else f"{ring.nbytes / 1e6:.1f} MB"
        notes = [f"replay: {each}{seeds}, {size} in {where}, {ring.storage}"]
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
        except contract.SimulatorFailed as error:
            # Some environments may have made the step that others failed at: their state is not saved,
            # and the resumed run begins new episodes.
            self.save(with_simulator=False)
            raise TrainingStopped(f"{error}; saved, go on with: {run_folder.resume_command(self.paths)}") from None

    def require_finite(self) -> None:
        """Stop, without saving, if a loss was not finite; the offending minibatch is kept for inspection."""
        for run, update, s in zip(self.runs, self.engine.first_bad_updates(), range(len(self.runs)), strict=True):
            if update >= 0:
                what = f"the loss of update {update} is not finite"
                arrays = self.engine.batch_of(update, s)
                if arrays is not None:
                    path = run.path / "bad_batch.npz"
                    with contextlib.suppress(OSError):  # what stopped training matters more
                        np.savez(path, update=update, **arrays)
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
        return TrainingStopped(f"seed {run.seed}: {what}; {kept}; a smaller {self.rate_setting} may help")
