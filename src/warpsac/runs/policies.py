"""The policies that a run folder holds, and which of them is meant.

Every evaluation keeps its policy in RUN/policies, a folder for each step in the format of checkpoints; a checkpoint
holds the policy of its own step. Which one is the best is not stored: the evaluations say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from warpsac.config.schema import PolicyStep
from warpsac.envs.tasks import find
from warpsac.errors import ConfigError, UserError
from warpsac.runs import checkpoint, rowfiles
from warpsac.runs.checkpoint import Arrays, Checkpoint, DamagedCheckpoint
from warpsac.runs.run_folder import RunFolder

POLICY = "policy"  # the group that acting needs


def keep(run: RunFolder, step: int, policies: Mapping[str, Arrays], info: Mapping[str, Any]) -> None:
    """Keep the policies of an evaluation; TrainingStopped if they cannot be written."""
    checkpoint.save(run.policies, step, policies, info, None, run.record())


def group_of(run: RunFolder, arm: str | None) -> str:
    """The group with the policy of an arm; without one, of the arm that counts."""
    arms = run.config.auto.arms
    if arm is None:
        return POLICY
    if arm not in arms:
        has = f"its arms are {', '.join(arms)}" if arms else f"a run of variant {run.config.variant} has no arms"
        raise UserError(f"--arm {arm}: {has}")
    return f"arm{arms.index(arm)}"


def load(run: RunFolder, step: PolicyStep, report: Callable[[str], None], group: str = POLICY) -> Checkpoint:
    """The policy of a step, of the best evaluation, or the last one; damaged ones are reported and passed over."""
    there = steps(run)
    if not there:
        raise UserError(f"{run.path}: no checkpoint, so no policy")
    if step == "last":
        wanted = there[::-1]
    elif step == "best":
        wanted = _best_first(run, there, report)
    elif step in there:
        wanted = [step]
    elif isinstance(step, str):
        raise ConfigError("step", step, "must be best, last or a number")
    else:
        raise UserError(f"{run.path}: no policy of step {step}; {_nearest(step, there)}")
    for path in (path for one in wanted for path in _folders(run, one)):
        try:
            found = checkpoint.load(path, (group,))
            run.require_as_saved(found.run, found.path)
            return found
        except DamagedCheckpoint as error:
            report(str(error) if len(wanted) == 1 else f"{error}; trying the next")
    raise UserError(f"{run.path}: no undamaged checkpoint" + (f" of step {step}" if isinstance(step, int) else ""))


def steps(run: RunFolder) -> list[int]:
    """The steps that have a policy, in ascending order; not verified."""
    return sorted({*checkpoint.steps(run.policies), *checkpoint.steps(run.checkpoints)})


def _folders(run: RunFolder, step: int) -> list[Path]:
    return checkpoint.find(run.policies, step) + checkpoint.find(run.checkpoints, step)


def _nearest(step: int, there: list[int]) -> str:
    below, above = [one for one in there if one < step][-1:], [one for one in there if one > step][:1]
    return f"the nearest {'are' if below and above else 'is'} {' and '.join(map(str, below + above))}"


# --- the best


def ranked(run: RunFolder) -> list[dict[str, float]]:
    """The evaluations, best first: by success where that is the task's measure, by return otherwise; of equals, the
    later one first."""
    task = find(run.config.task)
    measures = ("success", "return_mean") if task and task.metric == "success" else ("return_mean",)
    rows = rowfiles.read_evaluations(run.path)
    rows = [row for row in rows if all(math.isfinite(row.get(name, math.nan)) for name in measures)]
    return sorted(rows, key=lambda row: (*(row[measure] for measure in measures), row["step"]), reverse=True)


def _best_first(run: RunFolder, there: list[int], report: Callable[[str], None]) -> list[int]:
    """The steps of evaluations that have a policy, best first."""
    evaluated = [int(row["step"]) for row in ranked(run)]
    if not evaluated:
        raise UserError(f"{run.path}: no evaluation yet, so no best policy; the last is of step {there[-1]}")
    wanted = [step for step in evaluated if step in there]
    if not wanted:
        raise UserError(
            f"{run.path}: no policy of an evaluation is left, so none is the best; the last is of step {there[-1]}"
        )
    if wanted[0] != evaluated[0]:  # a run of an earlier version, which kept those of its checkpoints only
        report(f"the policy of the best evaluation, at step {evaluated[0]}, was not kept: taking that of {wanted[0]}")
    return wanted
