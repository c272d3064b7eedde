"""Resuming runs: with which settings, from which checkpoints, and what becomes of files that are ahead of these."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from warpsac.config.loading import validate
from warpsac.config.resumable import Changes, changed, differences, may_change
from warpsac.config.schema import PPO, Config
from warpsac.errors import UserError, counted
from warpsac.runs import checkpoint, rowfiles
from warpsac.runs.checkpoint import Checkpoint, DamagedCheckpoint
from warpsac.runs.run_folder import RunFolder, part_of, resume_command
from warpsac.training import processes
from warpsac.training.loop import Loop
from warpsac.training.state import Driver, restored_counters
from warpsac.training.terminal import Display

SCHEDULE = ("total_steps", "learner.learning_rate", "learner.final_learning_rate")  # what the learning rate follows


def common_config(runs: Sequence[RunFolder], settings: Mapping[str, Any], time_budget: float | None) -> Config:
    base, *others = (changed(run.config, settings) for run in runs)
    for run, config in zip(runs[1:], others, strict=True):
        # Seeds that were resumed alone for a while may have been given different ends.
        ends = dataclasses.replace(config, stop_at=base.stop_at, time_budget=base.time_budget)
        for path, (mine, first) in differences(
            dataclasses.replace(ends, seeds=base.seeds, name=base.name), base
        ).items():
            # A resume that changes it for all may have been killed when it had changed some.
            way = f"give --{path.replace('_', '-')} again, or " if may_change(path) else ""
            raise UserError(
                f"{run.path} and {runs[0].path} have different settings ({path}: {mine!r} and {first!r}): "
                f"{way}resume them one by one"
            )
    seeds = tuple(run.seed for run in runs)
    return validate(dataclasses.replace(base, seeds=seeds, env=runs[0].env, time_budget=time_budget))


def after_a_stop_at_once(runs: Sequence[RunFolder]) -> str:
    """A line for a user who did not wait until all was saved."""
    steps = set.intersection(*(set(checkpoint.steps(run.checkpoints)) for run in runs))  # some may be ahead
    if not steps:
        return "stopped at once: nothing is saved, as no checkpoint was made yet"
    command = resume_command([run.path for run in runs])
    return f"stopped at once: step {max(steps):,} is the last saved; resume with: {command}"


def find_checkpoints(runs: Sequence[RunFolder]) -> list[Checkpoint] | None:
    """The newest step of which every run has a good checkpoint; None if they begin again, as none had been made.

    The seeds of one process save one after the other: killed in between, some are a checkpoint ahead. Killed in their
    first, some have none.
    """
    saved = [bool(checkpoint.steps(run.checkpoints)) for run in runs]
    if not all(saved):
        for run in (run for run, has in zip(runs, saved) if not has):
            _require_not_lost(run)
        if any(saved) and not killed_in_first_save(runs):
            with_none, with_some = runs[saved.index(False)].path, runs[saved.index(True)].path
            raise UserError(f"{with_none} has no checkpoint yet, {with_some} has: resume them one by one")
        return None
    limit = None
    while True:
        found = [_newest(run, limit) for run in runs]
        least, most = min(one.step for one in found), max(one.step for one in found)
        limit, most = -processes.largest(-least)[0], processes.largest(most)[0]
        if limit == most:
            for run, one in zip(runs, found, strict=True):
                run.require_as_saved(one.run, one.path)
            _require_same_history(runs, found)
            return found


def is_over(config: Config, checkpoints: Sequence[Checkpoint] | None) -> bool:
    """Whether nothing is left to train."""
    return checkpoints is not None and checkpoints[0].step >= config.end_step


def killed_in_first_save(runs: Sequence[RunFolder]) -> bool:
    """Whether some of these seeds have their first checkpoint, and the others had come as far when they were killed."""
    steps = {run: checkpoint.steps(run.checkpoints) for run in runs}
    first = {step for found in steps.values() for step in found}
    if len(first) != 1 or max(first) > runs[0].config.first_checkpoint:
        return False
    rows = {rowfiles.last_step(run.path, max(first)) for run in runs}
    return len(rows) == 1 and all(rowfiles.last_step(run.path) <= max(first) for run in runs if not steps[run])


def _require_not_lost(run: RunFolder) -> None:
    """Before its first checkpoint a run starts again; one that has got further has lost its checkpoints."""
    reached, every = rowfiles.last_step(run.path), run.config.checkpoint.every
    resumes = [entry.get("step") for entry in part_of(run.meta, "resumes", list) if isinstance(entry, dict)]
    resumed = bool(resumes) and isinstance(resumes[-1], int) and resumes[-1] >= 0
    if resumed or (every and reached > run.config.first_checkpoint):
        raise UserError(
            f"{run.path}: has rows up to step {reached:,} but no checkpoint to resume from; "
            "start it again with `warpsac train`"
        )
    for step in reversed(checkpoint.steps(run.policies)):  # nothing else says with which settings it was started
        for path in checkpoint.find(run.policies, step):
            with contextlib.suppress(DamagedCheckpoint):
                run.require_as_saved(checkpoint.load(path, ()).run, path)


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
    found = checkpoint.newest_good(
        run.checkpoints, report=lambda line: print(line, flush=True), up_to=limit, peers=processes.peers()
    )
    if found is None and limit is not None:
        raise UserError(f"{run.path}: no good checkpoint of step {limit:,} or before: resume the runs one by one")
    if found is None:
        raise UserError(
            f"{run.path}: no good checkpoint to resume from; start it again with `warpsac train` "
            "(a policy alone can be evaluated, watched and exported, not trained)"
        )
    return found


def restore_checkpoints(driver: Driver, checkpoints: list[Checkpoint], config: Config, display: Display) -> None:
    """Continue exactly where the checkpoints were taken."""
    parts = [found.arrays for found in checkpoints]
    driver.restore(parts, restored_counters(checkpoints[0]), str(checkpoints[0].path))
    if driver.algorithm.ring is None or all("replay" in part for part in parts):
        return
    driver.empty_memory()
    counters = driver.state.counters
    refilled = max(counters.learning_from, counters.interaction + config.first_learning)
    driver.count(learning_from=refilled)
    if not is_over(config, checkpoints):
        display.message(
            f"replay was not saved: collecting {counted(config.learning_starts, 'transition')} with the policy before "
            "learning continues"
        )


def resume_folders(loop: Loop, checkpoints: list[Checkpoint] | None, meta: dict[str, Any]) -> None:
    """Make the run folders ready for further rows; rows logged after the checkpoints are moved aside."""
    config, before = loop.config, loop.runs[0].config
    if checkpoints is None:
        some = any(checkpoint.steps(run.checkpoints) for run in loop.runs)
        which = "some seeds have no checkpoint: all start" if some else "no checkpoint is there: starting"
        reached = max(rowfiles.last_step(run.path) for run in loop.runs)
        aside = f"; the rows up to step {reached:,} and their policies are set aside" if reached > 0 else ""
        loop.display.message(f"{which} from the beginning{aside}")
    else:
        loop.seconds_before = checkpoints[0].info["seconds"]
    processes.largest(0)  # all have read what is moved aside now
    changes = _resume_files(loop, checkpoints, meta) if processes.writes() else {}
    _keep_one_evaluation(loop)
    if checkpoints:
        if not is_over(config, checkpoints):
            said = f"resumed at step {loop.step:,}"
        elif config.end_step < config.total_steps:
            said = f"stopped at step {loop.step:,}, as asked: --stop-at goes further, up to {config.total_steps:,}"
        else:
            said = f"finished at step {loop.step:,}: nothing is left to train; --total-steps prolongs it"
        loop.display.message(said)
    if changes:
        listed = (f"{path} {old} -> {new}" for path, (old, new) in changes.items())
        loop.display.message(f"changed: {', '.join(listed)}")
        if config.algo != PPO and not changes.keys().isdisjoint(SCHEDULE):
            loop.display.message(_rate_note(before, config, loop.counters.updates))


def _resume_files(loop: Loop, checkpoints: list[Checkpoint] | None, meta: dict[str, Any]) -> Changes:
    """What the resume changes in the settings."""
    # Checkpoints before rows, so that none is ever ahead of its rows, whichever seeds are resumed next.
    for s, run in enumerate(loop.runs):
        if checkpoints:
            checkpoint.set_aside_newer(checkpoints[s])
        else:
            checkpoint.set_aside_after(run.checkpoints, -1)
    for s, run in enumerate(loop.runs):
        # Before the first checkpoint there was nothing: then the row of step 0 is moved aside too.
        step, record = (checkpoints[s].step, checkpoints[s].run) if checkpoints else (-1, None)
        changes = run.resume(step, meta, loop.config, record, loop.display.message)
        checkpoint.set_aside_after(run.policies, step)
    return changes


def _rate_note(before: Config, now: Config, updates: int) -> str:
    """What a changed schedule does to the learning rate, of the critic: the actor's is as many updates behind."""
    from warpsac.agents.sac.losses import cosine

    old, new = (
        float(cosine(one.learner.learning_rate, one.learner.final_learning_rate, updates / one.horizon_updates))
        for one in (before, now)
    )
    end = f"{now.learner.final_learning_rate:.3g} at step {now.total_steps:,}, where the schedule ends"
    return f"learning rate: {old:.3g} so far, {new:.3g} from here on, and {end}"


def _keep_one_evaluation(loop: Loop) -> None:
    """The evaluation of the checkpoint's own step is kept if the checkpoint and all files have it, else made again.

    It may have been made after the checkpoint, for some of the seeds only, or the files were damaged since.
    """
    evaluated = loop.counters.evaluated_at == loop.step
    there = processes.writes() and all(run.rows.has_evaluation(loop.step) for run in loop.runs)
    if evaluated and processes.largest(there)[0]:
        return
    for run in loop.runs if processes.writes() else ():
        run.rows.set_evaluation_aside(loop.step)
    if evaluated:
        loop.driver.count(evaluated_at=None)
