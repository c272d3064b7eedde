"""Start a training run, or resume one from its checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
from jax.sharding import Mesh

from warpsac.agents.algorithm import Algorithm
from warpsac.config import provenance
from warpsac.config.loading import validate
from warpsac.config.profiles import recipe_notes
from warpsac.config.schema import AUTO, PPO, Config
from warpsac.envs import modules, motion, registry
from warpsac.envs import symmetry as mirrors
from warpsac.envs.contract import EnvSpec
from warpsac.errors import ConfigError, TrainingStopped, UserError, counted, exited, in_a_line
from warpsac.replay.ring import RingSpec
from warpsac.runs import run_folder
from warpsac.runs.callbacks import Callback, CallbackFailed, name_of, require_callbacks
from warpsac.runs.checkpoint import Checkpoint
from warpsac.runs.run_folder import RunFolder
from warpsac.training import devices, processes, supervise, warm_start
from warpsac.training.devices import Placement
from warpsac.training.loop import Loop, Outcome
from warpsac.training.resuming import (
    after_a_stop_at_once,
    common_config,
    find_checkpoints,
    is_over,
    restore_checkpoints,
    resume_folders,
)
from warpsac.training.state import Driver
from warpsac.training.terminal import Display, Terminated, to_nowhere
from warpsac.types import Symmetry

__all__ = ["Outcome", "resume", "train"]


def train(config: Config, notes: Sequence[str] = (), callbacks: Sequence[Callback] = ()) -> Outcome:
    """Train every seed of the config from the start; `notes` are lines to show first."""
    config = devices.spread(validate(config))
    callbacks = _all_callbacks(config, callbacks)
    registry.require_effect(config)
    if config.env.motion is not None:
        motion.clip_files(config.env.motion)  # before a simulator is imported
    with prepared(config, [*notes, *recipe_notes(config)], callbacks=callbacks) as loop:
        modules.remember(config.task)
        modules.remember_paths(dataclasses.asdict(config))
        return loop.run()


def resume(
    folders: Sequence[Path | str],
    stop_at: int | None = None,
    time_budget: float | None = None,
    moved_motion: str | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Outcome:
    """Resume interrupted runs (the seeds of one config) from their last good checkpoint.

    `settings` are what changes from there on, the same for all seeds; see `resumable.CHANGEABLE`. `moved_motion` is
    where the clips are now that the runs follow.
    """
    runs = [run_folder.open_run(folder) for folder in folders]
    if not runs:
        raise UserError("resume needs at least one run folder")
    places = [run.path.resolve() for run in runs]
    for run, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise UserError(f"{run.path}: named twice")
    with contextlib.ExitStack() as locked:
        changed = {note for run in runs for note in run.follow(moved_motion)}  # before anything they name is used
        if registry.target_of(runs[0].config).torch:
            devices.share_gpu_memory()  # before JAX looks for devices, which it does to know who writes
        settings |= {} if stop_at is None else {"stop_at": stop_at}
        config = devices.spread(common_config(runs, settings, time_budget), len(runs))
        for run in runs:  # all of them, or none is touched; a process that trains there may be about to save
            locked.callback(run.close)
            processes.by_first(run.lock)
        callbacks = _all_callbacks(config, callbacks)
        checkpoints = find_checkpoints(runs)
        if checkpoints is None:  # it begins again
            runs[0].require_named("init_from")
        reached = checkpoints[0].step if checkpoints else 0
        if stop_at is not None and stop_at < reached:
            raise ConfigError("stop_at", stop_at, f"the run is already at step {reached}")
        with prepared(config, sorted(changed), runs, checkpoints, callbacks) as loop:
            modules.remember(config.task)
            modules.remember_paths(
                {"env": {"motion": config.env.motion}, modules.OWN: config.task_config}
            )  # what was checked
            return loop.run()


@contextlib.contextmanager
def prepared(
    config: Config,
    notes: Sequence[str] = (),
    resumed: list[RunFolder] | None = None,
    checkpoints: list[Checkpoint] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Iterator[Loop]:
    """A loop ready to run, with simulators, run folders and display; closed afterwards, whatever happens.

    The simulators come first: if they cannot be made, no run folder is left behind.
    """
    target = registry.target_of(config)
    symmetry = find_symmetry(config, resumed)
    if config.init_from and not checkpoints and processes.count() > 1:
        raise ConfigError("init_from", config.init_from, "a run on several processes starts without one")
    source = warm_start.find(config) if config.init_from and not checkpoints else None
    if source:
        config = dataclasses.replace(config, init_step=source[1].step)  # what "best" and "last" mean may change
    with contextlib.ExitStack() as to_close:
        driver, placement = make_driver(config, to_close, resumed is not None, symmetry)
        meta = provenance.describe(simulators=driver.spec.versions, accelerators=devices.accelerators())
        meta |= {"impl": driver.spec.impl} if driver.spec.impl else {}
        if config.env.motion is not None:
            meta[run_folder.MOTION] = motion.fingerprint(config.env.motion)
        meta |= {"task_source": file} if (file := modules.source_of(config.task)) else {}
        mapping = None if symmetry is None else mirrors.to_json(symmetry)
        warm = warm_start.fitted(config, driver, *source) if source else None
        meta |= {"init": warm.record} if warm else {}
        runs = list(resumed or ())
        for run in runs:
            to_close.callback(run.close)
        for seed in () if resumed else config.seeds:
            name = run_folder.run_name(config, seed)
            create = functools.partial(run_folder.create, config.out, name, config, seed, meta, mapping)
            runs.append(processes.made_by_first(create, lambda run: run.path, run_folder.open_run))
            to_close.callback(runs[-1].close)
        supervise.tell(runs=[str(run.path) for run in runs])
        with _recording_failures(runs):
            display = Display(
                config.last_step,
                f"{target.name} · {config.variant}",
                checkpoints[0].step if checkpoints else 0,
                console=None if processes.writes() else to_nowhere(to_close),
            )
            to_close.callback(display.close)
            device = devices.describe_device(driver.devices)
            lines = [*notes, *target.notes, f"device: {device}", *_notes(config, driver, placement)]
            lines += warm.notes if warm else ()
            lines += [f"callback {name_of(one)} may change what is trained" for one in callbacks if one.wants_driver]
            lines += [f"run folder: {run.path}" for run in runs]
            for line in notes if checkpoints and is_over(config, checkpoints) else lines:
                display.message(line)
            ahead = devices.CompiledAhead() if processes.count() == 1 else None  # several compile in the same order
            if ahead is not None:
                to_close.callback(ahead.close)
            driver.ahead = None if checkpoints else ahead  # where a resumed run stands is not known yet
            with modules.own_folder():
                driver.init(display)
            driver.ahead = ahead
            if warm:
                warm_start.apply(warm, config, driver)
            if checkpoints:
                with modules.own_folder():
                    restore_checkpoints(driver, checkpoints, config, display)
            loop = Loop(config, driver, runs, display, target.task, callbacks)
            if resumed is not None:
                resume_folders(loop, checkpoints, meta)
            with loop.telling_callbacks():
                yield loop


def _all_callbacks(config: Config, given: Sequence[Callback]) -> list[Callback]:
    """Trackers, and those of the user; a UserError before anything is made if they could not be used."""
    if given:
        require_callbacks(given)
    if processes.count() > 1 and (greedy := [name_of(one) for one in given if one.wants_driver]):
        raise UserError(f"callback {greedy[0]}: wants_driver is not for a run on several processes")
    if not (config.log.tensorboard or config.log.wandb):
        return list(given)
    from warpsac.runs import trackers

    obstacle = trackers.wandb_obstacle() if config.log.wandb and processes.writes() else None
    if obstacle := processes.gather(obstacle or "")[0]:
        raise UserError(obstacle)
    return [*trackers.trackers(config), *given]


@contextlib.contextmanager
def _recording_failures(runs: Sequence[RunFolder]) -> Iterator[None]:
    """What ends training early is said, and recorded in the run folders."""
    try:
        yield
    except CallbackFailed:  # the run itself did not
        raise
    except (KeyboardInterrupt, Terminated):
        print(after_a_stop_at_once(runs), file=sys.stderr)
        raise
    except (Exception, SystemExit) as error:
        reason = _explained(error, runs)
        for run in runs:
            run.record_failure(str(reason) if isinstance(reason, TrainingStopped) else in_a_line(reason))
        if reason is error:
            raise
        raise reason from error


def _explained(error: BaseException, runs: Sequence[RunFolder]) -> BaseException:
    """A call of sys.exit must not look like success, and XLA's own page about memory becomes a line."""
    if isinstance(error, SystemExit):
        return exited(error)
    if isinstance(error, jax.errors.JaxRuntimeError) and "out of memory" in str(error).lower():
        return TrainingStopped(f"out of memory ({in_a_line(error)[:200]}); smaller settings may fit")
    if processes.is_lost(error):
        return processes.Lost(error, supervise.how_to_go_on([run.path for run in runs]))
    return error


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
        algorithm = make_algorithm(config, env.spec, symmetry, devices.mesh_of(config))
        placement = _placement(algorithm, config, "device")
        return FusedDriver(config, algorithm, env, evaluation_env), placement
    from warpsac.training.simulators import HostSimulators, TorchSimulators
    from warpsac.training.stepped import SteppedDriver

    simulators = (TorchSimulators if target.torch else HostSimulators)(config, to_close, resumed)
    if target.torch:  # environments are divided, over processes
        mesh = devices.mesh_of(config)
        algorithm = make_algorithm(config, simulators.spec, symmetry, mesh)
        placement = _placement(algorithm, config, config.replay.placement if mesh is None else "device")
        return SteppedDriver(config, algorithm, simulators, placement), placement
    algorithm = make_algorithm(config, simulators.spec, symmetry)
    division = devices.division_of(config)
    placement = _placement(division.part(algorithm), config, config.replay.placement, algorithm.ring)
    return SteppedDriver(config, algorithm, simulators, placement, division), placement


def make_algorithm(
    config: Config, spec: EnvSpec, symmetry: Symmetry | None = None, mesh: Mesh | None = None
) -> Algorithm:
    if config.algo == PPO:
        from warpsac.agents.ppo.algorithm import Ppo

        return Ppo.of(config, spec.views, spec.action_dim)
    from warpsac.agents.sac.algorithm import Sac

    if symmetry is not None:
        mirrors.require_fit(symmetry, spec, f"learner.symmetry = {config.learner.symmetry!r}")
    kind = Sac
    if config.variant == AUTO:
        from warpsac.agents.sac.portfolio import Portfolio

        kind = Portfolio
    return kind.of(config, spec.views, spec.action_dim, spec.lockstep, symmetry, mesh)


def _placement(
    algorithm: Algorithm,
    config: Config,
    wanted: Literal["auto", "device", "host"],
    of_all: RingSpec | None = None,
) -> Placement:
    """Where replay lives; NotNow if it, or the learner besides it, fits nowhere.

    `algorithm` is that of one device; `of_all` the ring of all devices' seeds, which may have to lie on the host.
    """
    free, on_host = devices.free_device_bytes(), devices.free_host_bytes()
    ring = None if algorithm.ring is None else algorithm.ring.part(algorithm.devices)  # of one device
    placement: Placement = "device"
    if ring is not None:
        placement = devices.choose_placement(ring, wanted, free, on_host, devices.RESERVED_BYTES)
        if placement == "host" and of_all is not None:
            devices.choose_placement(of_all, "host", free, on_host, devices.RESERVED_BYTES)
    beside = 0 if ring is None or (placement == "host" and not devices.on_cpu()) else ring.nbytes
    devices.require_memory(algorithm.needs, config, free - beside)
    return placement


# --- what a user should know at the start


def _notes(config: Config, driver: Driver, placement: Placement) -> list[str]:
    notes = [*driver.notes, *_memory_notes(config, driver.algorithm.ring, placement)]
    if config.variant == AUTO:
        notes.append(f"arms: {', '.join(config.auto.arms)}; their training returns decide")
    if config.learner.symmetry != "off":
        notes.append(f"symmetry: left and right are swapped in half of every minibatch ({config.learner.symmetry})")
    if config.stop_at is not None and config.end_step <= config.learning_starts:
        notes.append(
            f"stop_at = {config.stop_at} is not above learning_starts = {config.learning_starts}: nothing is learned"
        )
    if driver.spec.episode_limit is None:
        notes.append("episodes have no step limit: if they may never end, give one with --env.episode-limit")
    if not registry.target_of(config).jax and devices.on_cpu() and is_heavy(config):
        notes.append("no GPU: a CPU makes only a few updates of this size a second; `--profile demo` is small")
    return notes


def _memory_notes(config: Config, ring: RingSpec | None, placement: Placement) -> list[str]:
    if ring is None:
        ppo, envs = config.ppo, config.env.num_envs
        size = ppo.rollout_steps * envs // ppo.minibatches
        steps = f"{counted(ppo.rollout_steps, 'step')} of {counted(envs, 'environment')}"
        return [f"rollout: {steps}; {ppo.epochs} pass{'es' * (ppo.epochs != 1)} in minibatches of {size:,}"]
    setting = config.checkpoint
    each = f"{ring.capacity:,} transitions of {ring.transition_bytes} bytes"
    seeds = f" x {ring.num_seeds} seeds" if ring.num_seeds > 1 else ""
    where = "memory" if devices.on_cpu() else f"{placement} memory"
    small = f"{ring.nbytes / 1e6:.1f} MB" if ring.nbytes >= 1e5 else f"{ring.nbytes / 1e3:.1f} kB"
    size_text = f"{ring.nbytes / 1e9:.2f} GB" if ring.nbytes >= 1e8 else small
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
