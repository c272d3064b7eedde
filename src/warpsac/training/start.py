"""Start a training run, or resume one from its checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from warpsac.agents.algorithm import Algorithm
from warpsac.config import provenance
from warpsac.config.loading import validate
from warpsac.config.profiles import recipe_notes
from warpsac.config.schema import PPO, Config
from warpsac.envs import modules, motion, registry
from warpsac.envs import symmetry as mirrors
from warpsac.envs.contract import EnvSpec
from warpsac.errors import ConfigError, TrainingStopped, UserError, in_a_line
from warpsac.replay.ring import RingSpec
from warpsac.runs import checkpoint, run_folder
from warpsac.runs.checkpoint import Checkpoint
from warpsac.runs.run_folder import RunFolder, resume_command
from warpsac.training import devices
from warpsac.training.devices import Placement
from warpsac.training.loop import Loop, Outcome
from warpsac.training.state import Driver, restored_counters
from warpsac.training.terminal import Display, Terminated
from warpsac.types import Symmetry

__all__ = ["Outcome", "resume", "train"]


def train(config: Config, notes: Sequence[str] = ()) -> Outcome:
    """Train every seed of the config from the start; `notes` are lines to show first."""
    config = validate(config)
    registry.require_effect(config)
    if config.env.motion is not None:
        motion.clip_files(config.env.motion)  # before a simulator is imported
    with prepared(config, [*notes, *recipe_notes(config)]) as loop:
        modules.remember(config.task)
        return loop.run()


def resume(
    folders: Sequence[Path | str],
    stop_at: int | None = None,
    time_budget: float | None = None,
) -> Outcome:
    """Resume interrupted runs (the seeds of one config) from their last good checkpoint."""
    runs = [run_folder.open_run(folder) for folder in folders]
    if not runs:
        raise UserError("resume needs at least one run folder")
    with contextlib.ExitStack() as locked:
        for run in runs:  # all of them, or none is touched; a process that trains there may be about to save
            run.lock()
            locked.callback(run.close)
        config = _common_config(runs, stop_at, time_budget)
        checkpoints = find_checkpoints(runs)
        reached = checkpoints[0].step if checkpoints else 0
        if stop_at is not None and stop_at < reached:
            raise ConfigError("stop_at", stop_at, f"the run is already at step {reached}")
        changed = {note for run in runs if (note := run.follow())}
        with prepared(config, sorted(changed), resumed=runs, checkpoints=checkpoints) as loop:
            return loop.run()


def _common_config(runs: Sequence[RunFolder], stop_at: int | None, time_budget: float | None) -> Config:
    base = runs[0].config
    for run in runs[1:]:
        # Seeds that were resumed alone for a while may have been given different ends.
        ends = dataclasses.replace(run.config, stop_at=base.stop_at, time_budget=base.time_budget)
        if dataclasses.replace(ends, seeds=base.seeds, name=base.name) != base:
            raise UserError(f"{run.path} and {runs[0].path} have different settings: resume them one by one")
    config = dataclasses.replace(base, seeds=tuple(run.seed for run in runs), env=runs[0].env, time_budget=time_budget)
    return validate(config if stop_at is None else dataclasses.replace(config, stop_at=stop_at))


@contextlib.contextmanager
def prepared(
    config: Config,
    notes: Sequence[str] = (),
    resumed: list[RunFolder] | None = None,
    checkpoints: list[Checkpoint] | None = None,
) -> Iterator[Loop]:
    """A loop ready to run, with simulators, run folders and display; closed afterwards, whatever happens.

    The simulators come first: if they cannot be made, no run folder is left behind.
    """
    target = registry.target_of(config)
    symmetry = find_symmetry(config, resumed)
    with contextlib.ExitStack() as to_close:
        driver, placement = make_driver(config, to_close, resumed is not None, symmetry)
        meta = provenance.describe(simulators=driver.spec.versions, accelerators=devices.accelerators())
        meta |= {"impl": driver.spec.impl} if driver.spec.impl else {}
        if config.env.motion is not None:
            meta[run_folder.MOTION] = motion.fingerprint(config.env.motion)
        meta |= {"task_source": source} if (source := modules.source_of(config.task)) else {}
        mapping = None if symmetry is None else mirrors.to_json(symmetry)
        runs = resumed or [
            run_folder.create(config.out, run_folder.run_name(config, seed), config, seed, meta, mapping)
            for seed in config.seeds
        ]
        with _recording_failures(runs):
            display = Display(
                config.last_step, f"{target.name} · {config.variant}", checkpoints[0].step if checkpoints else 0
            )
            to_close.callback(display.close)
            for run in runs:
                to_close.callback(run.close)
            lines = [*notes, *target.notes, f"device: {devices.describe_device()}", *_notes(config, driver, placement)]
            for line in (*lines, *(f"run folder: {run.path}" for run in runs)):
                display.message(line)
            driver.init(display)
            if checkpoints:
                _restore(driver, checkpoints, config, display)
            loop = Loop(config, driver, runs, display, target.task)
            if resumed is not None:
                _resume_folders(loop, checkpoints, meta)
            yield loop


@contextlib.contextmanager
def _recording_failures(runs: Sequence[RunFolder]) -> Iterator[None]:
    """What ends training early is said, and recorded in the run folders."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        print(after_a_stop_at_once(runs), file=sys.stderr)
        raise
    except Exception as error:
        for run in runs:
            run.record_failure(str(error) if isinstance(error, TrainingStopped) else in_a_line(error))
        raise


def find_symmetry(config: Config, resumed: Sequence[RunFolder] | None) -> Symmetry | None:
    """How left and right are swapped in minibatches, if they are: as resumed runs recorded it, else as asked for."""
    asked = config.learner.symmetry
    if asked == "off":
        return None
    if resumed:
        found = [mirrors.read(run.path / run_folder.SYMMETRY) for run in resumed]
        if found.count(found[0]) < len(found):
            raise UserError(f"the runs have different {run_folder.SYMMETRY} files: resume them one by one")
        return found[0]
    return registry.symmetry(registry.target_of(config), config.env) if asked == "auto" else mirrors.read(Path(asked))


def make_driver(
    config: Config, to_close: contextlib.ExitStack, resumed: bool, symmetry: Symmetry | None = None
) -> tuple[Driver, Placement]:
    """The driver that fits the task's simulator, and where its replay lives."""
    target = registry.target_of(config)
    if target.jax:
        from warpsac.training.fused import FusedDriver, make_envs

        env, evaluation_env = make_envs(config, resumed)
        algorithm = make_algorithm(config, env.spec, symmetry)
        placement = _placement(algorithm.ring, "device")
        return FusedDriver(config, algorithm, env, evaluation_env), placement
    from warpsac.training.simulators import HostSimulators, TorchSimulators
    from warpsac.training.stepped import SteppedDriver

    simulators = (TorchSimulators if target.torch else HostSimulators)(config, to_close, resumed)
    algorithm = make_algorithm(config, simulators.spec, symmetry)
    placement = _placement(algorithm.ring, config.replay.placement)
    return SteppedDriver(config, algorithm, simulators, placement), placement


def make_algorithm(config: Config, spec: EnvSpec, symmetry: Symmetry | None = None) -> Algorithm:
    if config.algo == PPO:
        from warpsac.agents.ppo.algorithm import Ppo

        return Ppo.of(config, spec.views, spec.action_dim)
    from warpsac.agents.sac.algorithm import Sac

    if symmetry is not None:
        mirrors.require_fit(symmetry, spec, f"learner.symmetry = {config.learner.symmetry!r}")
    return Sac.of(config, spec.views, spec.action_dim, spec.lockstep, symmetry)


def _placement(ring: RingSpec | None, wanted: Literal["auto", "device", "host"]) -> Placement:
    if ring is None:
        return "device"
    return devices.choose_placement(
        ring, wanted, devices.free_device_bytes(), devices.free_host_bytes(), devices.RESERVED_BYTES
    )


# --- what a user should know at the start


def _notes(config: Config, driver: Driver, placement: Placement) -> list[str]:
    notes = [*driver.notes, *_memory_notes(config, driver.algorithm.ring, placement)]
    if config.learner.symmetry != "off":
        notes.append(f"symmetry: left and right are swapped in half of every minibatch ({config.learner.symmetry})")
    if driver.spec.episode_limit is None:
        notes.append("episodes have no step limit: if they may never end, give one with --env.episode-limit")
    if not registry.target_of(config).jax and devices.on_cpu() and is_heavy(config):
        notes.append("no GPU: a CPU makes only a few updates of this size a second; `--profile demo` is small")
    return notes


def _memory_notes(config: Config, ring: RingSpec | None, placement: Placement) -> list[str]:
    if ring is None:
        ppo, envs = config.ppo, config.env.num_envs
        size = ppo.rollout_steps * envs // ppo.minibatches
        steps = f"{ppo.rollout_steps} steps of {envs:,} environments"
        return [f"rollout: {steps}; {ppo.epochs} passes in minibatches of {size:,}"]
    setting = config.checkpoint
    each = f"{ring.capacity:,} transitions of {ring.transition_bytes} bytes"
    seeds = f" x {ring.num_seeds} seeds" if ring.num_seeds > 1 else ""
    where = "memory" if devices.on_cpu() else f"{placement} memory"
    size_text = f"{ring.nbytes / 1e9:.2f} GB" if ring.nbytes >= 1e8 else f"{ring.nbytes / 1e6:.1f} MB"
    notes = [f"replay: {each}{seeds}, {size_text} in {where}, {ring.storage}"]
    full = ring.seed_bytes(ring.rows) / 1e9
    if setting.replay == "auto" and full > setting.replay_limit_gb:
        limit = f"checkpoint.replay_limit_gb = {setting.replay_limit_gb:g}"
        notes.append(f"replay will outgrow {limit} ({full:.1f} GB when full): then checkpoints do without it")
    return notes


def is_heavy(config: Config) -> bool:
    """Whether a run is long and each update is too much for a CPU, as those of the benchmarks are."""
    learner, updates = config.learner, config.end_step - config.learning_starts
    work = config.replay.batch_size * learner.critic_width**2 * learner.critic_blocks * learner.critics
    return config.algo == "sac" and work > 10_000_000 and updates > 20_000


# --- resuming


def after_a_stop_at_once(runs: Sequence[RunFolder]) -> str:
    """A line for a user who did not wait until all was saved."""
    steps = set.intersection(*(set(checkpoint.steps(run.checkpoints)) for run in runs))  # some may be ahead
    if not steps:
        return "stopped at once: nothing is saved, as no checkpoint was made yet"
    command = resume_command([run.path for run in runs])
    return f"stopped at once: step {max(steps):,} is the last saved; resume with: {command}"


def find_checkpoints(runs: Sequence[RunFolder]) -> list[Checkpoint] | None:
    """The newest step of which every run has a good checkpoint; None if no run has been saved yet.

    The seeds of one process save one after the other: killed in between, some are a checkpoint ahead.
    """
    saved = [bool(checkpoint.steps(run.checkpoints)) for run in runs]
    if not any(saved):
        for run in runs:
            _require_not_lost(run)
        return None
    if not all(saved):
        with_none, with_some = runs[saved.index(False)].path, runs[saved.index(True)].path
        raise UserError(f"{with_none} has no checkpoint yet, {with_some} has: resume them one by one")
    limit = None
    while True:
        found = [_newest(run, limit) for run in runs]
        limit = min(one.step for one in found)
        if all(one.step == limit for one in found):
            _require_same_history(runs, found)
            return found


def _require_not_lost(run: RunFolder) -> None:
    """Before its first checkpoint a run starts again; one that has logged more has lost its checkpoints."""
    from warpsac.runs import rowfiles

    every = run.config.checkpoint.every
    reached = max((int(row["step"]) for row in rowfiles.read_metrics(run.path)), default=0)
    if every and reached > max(every, run.config.stride * run.config.env.num_envs):
        raise UserError(
            f"{run.path}: has rows up to step {reached:,} but no checkpoint to resume from; "
            "start it again with `warpsac train`"
        )


def _require_same_history(runs: Sequence[RunFolder], found: Sequence[Checkpoint]) -> None:
    """All seeds of a process have made the same updates and have as much in replay; separate runs may not have."""

    def history(one: Checkpoint) -> tuple[int | None, ...]:
        stored = one.arrays["replay"]["count"] if "replay" in one.arrays else None
        return one.info["updates"], one.info["learning_from"], None if stored is None else int(stored)

    for run, one in zip(runs, found, strict=True):
        if history(one) != history(found[0]):
            raise UserError(
                f"{run.path} and {runs[0].path} differ in the updates made or in how much replay holds: "
                "resume them one by one"
            )


def _newest(run: RunFolder, limit: int | None) -> Checkpoint:
    found = checkpoint.newest_good(run.checkpoints, report=lambda line: print(line, flush=True), up_to=limit)
    if found is None and limit is not None:
        raise UserError(f"{run.path}: no good checkpoint of step {limit:,} or before: resume the runs one by one")
    if found is None:
        raise UserError(
            f"{run.path}: no good checkpoint to resume from; start it again with `warpsac train` "
            "(a policy alone can be evaluated, watched and exported, not trained)"
        )
    return found


def _restore(driver: Driver, checkpoints: list[Checkpoint], config: Config, display: Display) -> None:
    """Continue exactly where the checkpoints were taken."""
    parts = [found.arrays for found in checkpoints]
    driver.restore(parts, restored_counters(checkpoints[0]), str(checkpoints[0].path))
    if driver.algorithm.ring is None or all("replay" in part for part in parts):
        return
    driver.empty_memory()
    counters = driver.state.counters
    refilled = max(counters.learning_from, counters.interaction + config.first_learning)
    driver.count(learning_from=refilled)
    display.message(
        f"replay was not saved: collecting {config.learning_starts:,} transitions with the policy before "
        "learning continues"
    )


def _resume_folders(loop: Loop, checkpoints: list[Checkpoint] | None, meta: dict[str, Any]) -> None:
    """Make the run folders ready for further rows; rows logged after the checkpoints are moved aside."""
    config = loop.config
    if checkpoints is None:
        loop.display.message("no checkpoint was made yet: starting from the beginning")
    else:
        loop.seconds_before = checkpoints[0].info["seconds"]
    for s, run in enumerate(loop.runs):
        # Before the first checkpoint there was nothing: then the row of step 0 is moved aside too.
        run.resume(checkpoints[s].step if checkpoints else -1, meta, config.stop_at, config.time_budget)
        if checkpoints:
            checkpoint.set_aside_newer(checkpoints[s])
    _keep_one_evaluation(loop)
    if checkpoints:
        over = ", its last: nothing is left to train" if loop.step >= config.end_step else ""
        if over and config.end_step < config.total_steps:
            over += f"; --stop-at goes further, up to {config.total_steps:,}"
        loop.display.message(f"resumed at step {loop.step:,}{over}")


def _keep_one_evaluation(loop: Loop) -> None:
    """The evaluation of the checkpoint's own step is kept if the checkpoint and all files have it, else made again.

    It may have been made after the checkpoint, for some of the seeds only, or the files were damaged since.
    """
    evaluated = loop.counters.evaluated_at == loop.step
    if evaluated and all(run.rows.has_evaluation(loop.step) for run in loop.runs):
        return
    for run in loop.runs:
        run.rows.set_evaluation_aside(loop.step)
    if evaluated:
        loop.driver.count(evaluated_at=None)
