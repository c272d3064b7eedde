"""The training loop on host simulators, and what surrounds it: start, resume, evaluate, save, stop.

`HostLoop.run` is the algorithm in one screen. One interaction is: act, step, store, update. With
`overlap` the updates of the interaction before run on the device while the simulator steps, so the
policy acts with the parameters of one interaction before; without it the order is strict.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from warpsac import checkpoint, curve, envs, evaluate, provenance, rundir, runtime
from warpsac.config import Config, validate
from warpsac.engine import Engine
from warpsac.envs.host import SeedEnvs, reset_seed
from warpsac.episodes import Episode, EpisodeTracker, summary
from warpsac.errors import TrainingStopped, UserError
from warpsac.interaction import make_setup
from warpsac.progress import Progress
from warpsac.replay.memory import choose_placement, free_device_bytes, free_host_bytes
from warpsac.replay.snapshot import seed_bytes
from warpsac.rundir import RunDir
from warpsac.signals import StopSignals

# Memory that replay leaves to the learner, the simulator and compiled programs.
RESERVED_BYTES = 1_000_000_000


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
    validate(config)
    with HostLoop(config, None, notes) as loop:
        return loop.run()


def resume(
    folders: Sequence[Path | str],
    stop_at: int | None = None,
    time_budget: float | None = None,
) -> Outcome:
    """Go on with interrupted runs (the seeds of one config) from their last good checkpoint."""
    runs = [rundir.open_run(folder) for folder in folders]
    base = runs[0].config
    for run in runs[1:]:
        if dataclasses.replace(run.config, seeds=base.seeds, name=base.name) != base:
            raise UserError(f"{run.path} and {runs[0].path} have different settings: resume them one by one")
    config = dataclasses.replace(base, seeds=tuple(run.seed for run in runs), time_budget=time_budget)
    if stop_at is not None:
        config = dataclasses.replace(config, stop_at=stop_at)
    validate(config)
    with HostLoop(config, runs, ()) as loop:
        return loop.run()


class HostLoop:
    def __init__(self, config: Config, resumed: list[RunDir] | None, notes: Sequence[str]):
        self.config = config
        self.target = envs.lookup(config.task)
        self.envs = SeedEnvs([envs.make(config.task, config.env.num_envs, config.env) for _ in config.seeds])
        self._evaluation_env: envs.HostEnv | None = None
        self.interaction = 0
        self.learning_from = config.warmup_interactions  # interactions before this one only collect
        self.seconds_before = 0.0
        self.trackers = [EpisodeTracker(config.env.num_envs) for _ in config.seeds]
        self.recent: list[list[Episode]] = [[] for _ in config.seeds]
        self.faults = np.zeros(len(config.seeds), np.int64)

        checkpoints = [self._newest_checkpoint(run) for run in resumed] if resumed else None
        setup = make_setup(config, self.envs.spec)
        placement = choose_placement(
            setup.ring, config.replay.placement, free_device_bytes(), free_host_bytes(), RESERVED_BYTES
        )
        self.obs = self.envs.reset(config.seeds)
        self.runs = resumed or self._create_runs()
        start_step = checkpoints[0].step if checkpoints else 0
        self.progress = Progress(config.end_step, f"{self.target.name} · {config.variant}", start_step=start_step)
        for note in (*notes, f"device: {runtime.describe_device()}", _memory_line(setup.ring, placement)):
            self.progress.message(note)
        for run in self.runs:
            self.progress.message(f"run folder: {run.path}")
        self.engine = Engine(setup, config.seeds, placement, self.obs)
        if checkpoints:
            self._restore(checkpoints)
        self._compiled: set[str] = set()
        self._started = time.monotonic()
        self._last_row = (self.step, self._started)

    def __enter__(self) -> HostLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.close()
        self.envs.close()
        if self._evaluation_env is not None:
            self._evaluation_env.close()
        for run in self.runs:
            run.close()

    @property
    def step(self) -> int:
        """Environment steps of each seed so far."""
        return self.interaction * self.config.env.num_envs

    # --- the loop

    def run(self) -> Outcome:
        config, engine = self.config, self.engine
        with StopSignals() as signals:
            if self.step == 0 and config.eval.every:
                self.evaluate()
            while self.step < config.end_step and not signals.received and self.within_budget():
                try:
                    self.interact(engine)
                except TrainingStopped as error:
                    self.stop_for_fault(error)
                self.interaction += 1
                if self.interaction % config.log.every == 0:
                    self.log()
                if self.due(config.eval.every) or self.step >= config.end_step:
                    self.evaluate()
                if self.due(config.checkpoint.every) and self.step < config.end_step:
                    self.save()
            self.save()
        if signals.received:
            return Outcome(self.paths, "signal", signals.received)
        return Outcome(self.paths, "finished" if self.step >= config.end_step else "time budget")

    def interact(self, engine: Engine) -> None:
        """Act, step, store, update; see the module's docstring for the order."""
        overlap, t = self.config.overlap, self.interaction
        if t < self.config.warmup_interactions:
            action = self.call("act_randomly", lambda: engine.act_randomly(t))
        else:
            action = self.call("act", lambda: engine.act(self.obs, t))
        if overlap and t > self.learning_from:
            self.call(f"learn{engine.updates % self.config.learner.policy_delay}", engine.learn)
        action = np.asarray(action)
        self.envs.send(action)
        step = self.envs.recv()
        self.call("store", lambda: engine.store(action, step))
        if not overlap and t >= self.learning_from:
            self.call(f"learn{engine.updates % self.config.learner.policy_delay}", engine.learn)
        self.obs = step.result.obs
        self.follow_episodes(step)

    def follow_episodes(self, step: envs.HostStep) -> None:
        self.faults += step.faults
        for s, tracker in enumerate(self.trackers):
            if step.restart is not None:
                tracker.forget(np.flatnonzero(step.restart.mask[s]))
            one = type(step.result)(*(None if field is None else field[s] for field in step.result))
            self.recent[s] += tracker.observe(one)

    def call(self, program: str, function: Callable[[], object]) -> object:
        """Say so when a program is called for the first time: that call compiles it."""
        if program in self._compiled:
            return function()
        self.progress.phase("compiling")
        result = function()
        self._compiled.add(program)
        self.progress.phase("training" if self.interaction >= self.learning_from else "collecting")
        return result

    def due(self, every: int) -> bool:
        """Whether the interaction just made crossed a multiple of `every` environment steps."""
        before = self.step - self.config.env.num_envs
        return every > 0 and self.step // every > before // every

    def within_budget(self) -> bool:
        budget = self.config.time_budget
        return budget is None or time.monotonic() - self._started < budget

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self._started

    @property
    def paths(self) -> list[Path]:
        return [run.path for run in self.runs]

    # --- metrics and evaluation

    def log(self) -> None:
        self.require_finite()
        now = time.monotonic()
        steps, seconds = self.step - self._last_row[0], now - self._last_row[1]
        self._last_row = (self.step, now)
        rows = []
        for s, metrics in enumerate(self.engine.read_metrics()):
            rows.append(
                {"step": self.step, "kind": "train", "time/seconds": self.seconds}
                | {"time/steps_per_second": steps / max(seconds, 1e-9)}
                | summary(self.recent[s], "episode")
                | metrics
                | {"faults/count": int(self.faults[s])}
            )
            self.recent[s] = []
        self._write(rows)

    def evaluate(self) -> None:
        """Judge the policy of every seed on environments of their own."""
        self.require_finite()
        self.progress.phase("evaluating")
        config = self.config
        if self._evaluation_env is None:
            count = min(config.eval.num_envs, config.eval.episodes)
            self._evaluation_env = envs.make(config.task, count, config.env)
        rows = []
        for s, seed in enumerate(config.seeds):
            episodes = evaluate.run_episodes(
                self._evaluation_env,
                self.engine.best_policy(s),
                config.eval.episodes,
                evaluate.evaluation_seed(seed, self.step),
            )
            row = {"step": self.step, "kind": "eval", "time/seconds": self.seconds}
            rows.append(row | evaluate.result_row(episodes, self.target.task))
        self._write(rows)
        best = self.target.task.normalize_score if self.target.task else None
        for run in self.runs:
            curve.write_curve(run.curve, rundir.read_evaluations(run.path), run.config, best)
        self.progress.phase("training" if self.interaction >= self.learning_from else "collecting")

    def _write(self, rows: list[dict]) -> None:
        for run, row in zip(self.runs, rows, strict=True):
            run.log(row)
        self.progress.update(self.step, rows)

    # --- checkpoints

    def save(self) -> None:
        self.require_finite()
        self.progress.phase("saving")
        for s, run in enumerate(self.runs):
            groups = self.engine.snapshot(s, self._saves_replay())
            groups["episodes"] = self._episode_arrays(s)
            state = self._env_state(s)
            if state is not None:
                groups["env"] = state
            info = {
                "interaction": self.interaction,
                "updates": self.engine.updates,
                "learning_from": self.learning_from,
                "seconds": self.seconds,
                "faults": int(self.faults[s]),
                "env_spec": _portable_spec(self.envs.spec),
            }
            run.sync()
            checkpoint.save(run.checkpoints, self.step, groups, info, self.config.checkpoint.keep)
        self.progress.phase("training")

    def _saves_replay(self) -> bool:
        setting = self.config.checkpoint
        if setting.replay == "auto":
            return seed_bytes(self.engine.setup.ring, self.engine.stored) <= setting.replay_limit_gb * 1e9
        return setting.replay == "always"

    def _episode_arrays(self, s: int) -> dict[str, np.ndarray]:
        recent = self.recent[s]
        return self.trackers[s].state() | {
            "obs": self.obs[s],
            "recent_env": np.array([e.env for e in recent], np.int64),
            "recent_total": np.array([e.total for e in recent], np.float64),
            "recent_length": np.array([e.length for e in recent], np.int64),
            "recent_success": np.array([-1 if e.success is None else e.success for e in recent], np.int64),
        }

    def _env_state(self, s: int) -> dict[str, np.ndarray] | None:
        try:
            return self.envs.sets[s].get_state()
        except Exception:
            return None  # a simulator that has just failed may not tell its state: resume cuts there

    def _newest_checkpoint(self, run: RunDir) -> checkpoint.Checkpoint:
        found = checkpoint.newest_good(run.checkpoints, report=lambda line: print(line, flush=True))
        if found is None:
            raise UserError(f"{run.path}: no good checkpoint to resume from; start it again with `warpsac train`")
        return found

    def _restore(self, checkpoints: list[checkpoint.Checkpoint]) -> None:
        """Go on exactly where the checkpoints were taken; rows logged after them are moved aside."""
        steps = {found.step for found in checkpoints}
        if len(steps) > 1:
            raise UserError(
                f"the runs' checkpoints are at different steps ({', '.join(map(str, sorted(steps)))}): "
                "resume them one by one"
            )
        info = checkpoints[0].info
        self.interaction, self.learning_from = info["interaction"], info["learning_from"]
        self.seconds_before = info["seconds"]
        parts = [found.arrays for found in checkpoints]
        self.engine.restore(parts, info["updates"], str(checkpoints[0].path))
        exact = all("env" in part for part in parts)
        for s, part in enumerate(parts):
            self._restore_episodes(s, part["episodes"], checkpoints[s].info["faults"])
            if exact:
                self.envs.sets[s].set_state(part["env"])
                self.obs[s] = part["episodes"]["obs"]
        has_replay = all("replay" in part for part in parts)
        if not exact:
            # The simulator begins anew: episodes that were running are closed in replay as truncated.
            seeds = [reset_seed(seed, self.interaction) for seed in self.config.seeds]
            self.obs = self.envs.reset(seeds)
            everywhere = np.ones(self.obs.shape[:2], bool)
            for tracker in self.trackers:
                tracker.forget(np.arange(self.config.env.num_envs))
            self.progress.message("the simulator's state cannot be restored: running episodes are cut")
        if not has_replay:
            self.engine.empty_replay(self.obs)
            self.learning_from = max(self.learning_from, self.interaction + self.config.warmup_interactions)
            self.progress.message(
                "replay was not saved: collecting "
                f"{self.config.learning_starts} transitions with the policy before learning goes on"
            )
        elif not exact:
            self.engine.close_episodes(everywhere, self.obs)
        meta = self._meta()
        for run, found in zip(self.runs, checkpoints, strict=True):
            run.resume(found.step, meta)
            checkpoint.set_aside_newer(found)
        self.progress.message(f"resumed at step {self.step}")

    def _restore_episodes(self, s: int, arrays: dict[str, np.ndarray], faults: int) -> None:
        self.faults[s] = faults
        self.trackers[s].restore(arrays)
        columns = (arrays[f"recent_{name}"].tolist() for name in ("env", "total", "length", "success"))
        self.recent[s] = [
            Episode(env, total, length, None if success < 0 else bool(success))
            for env, total, length, success in zip(*columns, strict=True)
        ]

    # --- start and trouble

    def _create_runs(self) -> list[RunDir]:
        meta = self._meta()
        return [
            rundir.create(self.config.out, rundir.run_name(self.config, seed), self.config, seed, meta)
            for seed in self.config.seeds
        ]

    def _meta(self) -> dict:
        return provenance.describe(simulators=self.envs.spec.versions, accelerators=runtime.accelerators())

    def stop_for_fault(self, error: TrainingStopped) -> None:
        """The simulator keeps failing: save what is good, then say so."""
        self.save()
        raise TrainingStopped(f"{error}; saved, resume with: {resume_command(self.paths)}") from None

    def require_finite(self) -> None:
        """Stop, without saving, if a loss was not finite; the offending minibatch is kept for inspection."""
        for s, update in enumerate(self.engine.first_bad_updates()):
            if update < 0:
                continue
            run = self.runs[s]
            path = run.path / "bad_batch.npz"
            arrays: Any = self.engine.batch_of(update, s)
            np.savez(path, update=update, **arrays)
            steps = checkpoint.steps(run.checkpoints)
            kept = f"the last good checkpoint is at step {steps[-1]}" if steps else "no checkpoint was made yet"
            raise TrainingStopped(
                f"seed {run.seed}: the loss of update {update} is not finite; {kept}; "
                f"the minibatch is in {path}; a smaller learner.learning_rate may help"
            )


def resume_command(paths: Sequence[Path]) -> str:
    return "warpsac train --resume " + " ".join(str(path) for path in paths)


def _memory_line(ring: object, placement: str) -> str:
    from warpsac.replay.ring import RingSpec

    assert isinstance(ring, RingSpec)
    each = f"{ring.capacity:,} transitions of {ring.transition_bytes} bytes"
    seeds = f" x {ring.num_seeds} seeds" if ring.num_seeds > 1 else ""
    return f"replay: {each}{seeds}, {ring.nbytes / 1e9:.2f} GB in {placement} memory, {ring.storage}"


def _portable_spec(spec: envs.EnvSpec) -> dict:
    """What a policy needs to know about its environment to act without the simulator."""
    return {
        "task": spec.task,
        "obs_dim": spec.views.obs_dim,
        "actor_dim": spec.views.actor_dim,
        "critic_start": spec.views.critic_start,
        "action_low": list(spec.action_low),
        "action_high": list(spec.action_high),
        "control_hz": spec.control_hz,
    }
