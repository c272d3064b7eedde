"""Going on from checkpoints: which ones, and how the loop takes up the state that its `save` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from warpsac.errors import UserError
from warpsac.runs import checkpoint, rowfiles
from warpsac.runs.checkpoint import Checkpoint
from warpsac.runs.run_folder import RunFolder, resume_command

if TYPE_CHECKING:
    from warpsac.training.loop import Loop


def after_a_stop_at_once(runs: Sequence[RunFolder]) -> str:
    """A line for whoever did not wait until all was saved."""
    steps = set.intersection(*(set(checkpoint.steps(run.checkpoints)) for run in runs))  # some may be ahead
    if not steps:
        return "stopped at once: nothing is saved, as no checkpoint was made yet"
    go_on = resume_command([run.path for run in runs])
    return f"stopped at once: step {max(steps):,} is the last saved; go on with: {go_on}"


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
            _require_same_way(runs, found)
            return found


def _require_not_lost(run: RunFolder) -> None:
    """Before its first checkpoint a run begins anew; one that has logged more has lost its checkpoints."""
    every = run.config.checkpoint.every
    reached = max((int(row["step"]) for row in rowfiles.read_metrics(run.path)), default=0)
    if every and reached > max(every, run.config.stride * run.config.env.num_envs):
        raise UserError(
            f"{run.path}: has rows up to step {reached:,} but no checkpoint to go on from; "
            "start it again with `warpsac train`"
        )


def _require_same_way(runs: Sequence[RunFolder], found: Sequence[Checkpoint]) -> None:
    """All seeds of a process have made the same updates and have as much in replay; runs apart may not have."""

    def way(one: Checkpoint) -> tuple[int | None, ...]:
        stored = one.arrays["replay"]["count"] if "replay" in one.arrays else None
        return one.info["updates"], one.info["learning_from"], None if stored is None else int(stored)

    for run, one in zip(runs, found, strict=True):
        if way(one) != way(found[0]):
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
            "(a policy alone can be judged, watched and exported, not trained)"
        )
    return found


def restore(loop: Loop, checkpoints: list[Checkpoint] | None) -> None:
    """Go on exactly where the checkpoints were taken; rows logged after them are moved aside."""
    if checkpoints is None:
        loop.progress.message("no checkpoint was made yet: starting from the beginning")
    else:
        _restore_state(loop, checkpoints)
    meta = loop.meta()
    for s, run in enumerate(loop.runs):
        # Before the first checkpoint there was nothing: then the row of step 0 is moved aside too.
        run.resume(checkpoints[s].step if checkpoints else -1, meta, loop.config.stop_at, loop.config.time_budget)
        if checkpoints:
            checkpoint.set_aside_newer(checkpoints[s])
    _keep_one_evaluation(loop)
    if checkpoints:
        over = ", its last: nothing is left to train" if loop.step >= loop.config.end_step else ""
        if over and loop.config.end_step < loop.config.total_steps:
            over += f"; --stop-at goes further, up to {loop.config.total_steps:,}"
        loop.progress.message(f"resumed at step {loop.step:,}{over}")


def _keep_one_evaluation(loop: Loop) -> None:
    """The evaluation of the checkpoint's own step is kept if the checkpoint and all files have it, else made again.

    It may have been made after the checkpoint, for some of the seeds only, or the files were damaged since.
    """
    evaluated = loop.evaluated_at == loop.step
    if evaluated and all(run.rows.has_evaluation(loop.step) for run in loop.runs):
        return
    for run in loop.runs:
        run.rows.set_evaluation_aside(loop.step)
    if evaluated:
        loop.evaluated_at = None


def _restore_state(loop: Loop, checkpoints: list[Checkpoint]) -> None:
    info = checkpoints[0].info
    loop.interaction, loop.learning_from = info["interaction"], info["learning_from"]
    loop.evaluated_at, loop.seconds_before = info["evaluated_at"], info["seconds"]
    loop.learned_during = loop.interaction if info.get("learned_ahead") else None
    parts = [found.arrays for found in checkpoints]
    loop.engine.restore(parts, info["updates"], str(checkpoints[0].path))
    exact = loop.restore(parts)
    if loop.engine.keeps_replay and not all("replay" in part for part in parts):
        loop.engine.empty_replay(loop.next_obs)
        loop.learning_from = max(loop.learning_from, loop.interaction + loop.config.first_learning)
        loop.progress.message(
            "replay was not saved: collecting "
            f"{loop.config.learning_starts:,} transitions with the policy before learning goes on"
        )
    if not exact:
        # The simulator begins anew: episodes that were running are closed in replay as truncated.
        loop.engine.close_episodes(np.ones(loop.next_obs.shape[:2], bool), loop.next_obs)
