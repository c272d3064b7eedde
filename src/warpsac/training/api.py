"""The public Python functions: train, resume, evaluate, configure, load_policy."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from warpsac.config.loading import check_ranges, merged
from warpsac.config.schema import AUTO, PolicyStep
from warpsac.envs import modules
from warpsac.envs.names import bring
from warpsac.envs.registry import configure
from warpsac.errors import UserError
from warpsac.runs import pretrained
from warpsac.runs.callbacks import Callback
from warpsac.runs.run_folder import open_run
from warpsac.training import devices
from warpsac.training import start as training
from warpsac.training.evaluate import Evaluation
from warpsac.training.policy import LoadedPolicy, load_policy
from warpsac.training.start import Outcome

__all__ = ["Evaluation", "LoadedPolicy", "Outcome", "configure", "evaluate", "load_policy", "resume", "train"]


def train(
    task: Any = None,
    *,
    env: Any = None,
    num_envs: int | Literal["auto"] | None = None,
    variant: str | None = None,
    profile: str | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Outcome:
    """Train a policy; the same as `warpsac train TASK` with the same settings.

    The task is a name or an environment of your own, also as `env=`: a class or function that makes one (gymnasium,
    JAX or torch), or an object. A mapping as `env` holds settings of the environments: env={"episode_limit": 200}.
    `callbacks` are told of rows, evaluations, checkpoints and the end (`runs.callbacks`).
    """
    modules.require_not_importing()
    given = {} if env is None or not isinstance(env, Mapping) else dict(env)
    own = None if isinstance(env, Mapping) else env
    if task is None and own is None:
        raise UserError("train needs a task: its name, or an environment of your own as `env`")
    if task is not None and own is not None:
        raise UserError("train takes either a task or an environment of your own as `env`, not both")
    if num_envs is not None:
        given["num_envs"] = num_envs
    name = bring(task if own is None else own)
    measured = given.get("num_envs") == AUTO and bool(given.pop("num_envs"))
    config, *notes = configure(name, variant=variant, profile=profile, env=given, **settings)
    devices.use_compilation_cache()
    if measured:
        from warpsac.training import env_count

        config, why = env_count.settled(config)
        notes.append(why)
    return training.train(config, notes, callbacks)


def resume(
    runs: Path | str | Sequence[Path | str] | Outcome,
    *,
    env: Any = None,
    stop_at: int | None = None,
    time_budget: float | None = None,
    paths: Sequence[Path | str] = (),
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Outcome:
    """Resume an interrupted run, or several seeds of one config; the same as `warpsac train --resume RUN ...`.

    `runs` may be what `train` returned. `env` is the environment that `train` was given, where that was an object of
    the program. `paths` are those of the runs' settings that may be used, where only the runs name them. `callbacks` as
    for `train`: a run folder names none.
    `settings` are fields of `Config` that may change: eval={"every": 50_000}, a larger total_steps.
    """
    modules.require_not_importing()
    modules.name_paths(map(str, paths))
    runs = runs.runs if isinstance(runs, Outcome) else runs
    folders = [runs] if isinstance(runs, (Path, str)) else runs
    if env is not None and folders:
        bring(env, open_run(folders[0]).config.task)
    devices.use_compilation_cache()
    return training.resume(folders, stop_at, time_budget, callbacks=callbacks, **settings)


def evaluate(
    run: Path | str | Outcome,
    *,
    episodes: int | None = None,
    step: PolicyStep = "last",
    arm: str | None = None,
    seed: int = 0,
    env: Any = None,
    motion: Path | str | None = None,
    paths: Sequence[Path | str] = (),
) -> Evaluation:
    """Evaluate a policy of a run, or `pretrained:NAME`, on new episodes; the same as `warpsac eval RUN ...`.

    What `train` returned is taken as well, if it was of one seed.
    Without `episodes` as many as in the run's own evaluations. `env` is the environment that `train` was given, where
    the run names one of your own. `paths` are those of the run's settings that may be used, where only the run names
    them; `motion` is the clip, or the folder of clips, that a tracking task follows.
    """
    from warpsac.training.eval_command import EvalOptions, play_episodes

    if isinstance(run, Outcome):
        if len(run.runs) != 1:
            raise UserError(f"evaluate takes one run, not {len(run.runs)}: evaluate(outcome.runs[0])")
        run = run.runs[0]
    given = {"step": step, "arm": arm, "episodes": episodes, "seed": seed}
    asked = merged(EvalOptions(str(run)), given, "evaluate")
    check_ranges(asked)
    folder = pretrained.opened(run)
    modules.name_paths(map(str, paths))
    for note in folder.follow(None if motion is None else str(motion)):
        print(note, file=sys.stderr)
    if env is not None:
        bring(env, folder.config.task)
    found, row = play_episodes(folder, asked.run, asked.step, asked.arm, asked.episodes, asked.seed)
    return Evaluation.of_row(row, [episode.total for episode in found], row.get("arm"))
