"""The public Python functions: train, resume, configure, load_policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from warpsac.envs import modules
from warpsac.envs.names import bring
from warpsac.envs.registry import configure
from warpsac.errors import UserError
from warpsac.runs.callbacks import Callback
from warpsac.runs.run_folder import open_run
from warpsac.training import devices
from warpsac.training import start as training
from warpsac.training.policy import LoadedPolicy, load_policy
from warpsac.training.start import Outcome

__all__ = ["LoadedPolicy", "Outcome", "configure", "load_policy", "resume", "train"]


def train(
    task: Any = None,
    *,
    env: Any = None,
    num_envs: int | None = None,
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
    given = {} if env is None or not isinstance(env, Mapping) else dict(env)
    own = None if isinstance(env, Mapping) else env
    if (task is None) == (own is None):
        raise UserError("train needs a task: its name, or an environment of your own as `env`")
    if num_envs is not None:
        given["num_envs"] = num_envs
    name = bring(task if own is None else own)
    config, reason = configure(name, variant=variant, profile=profile, env=given, **settings)
    devices.use_compilation_cache()
    return training.train(config, [reason], callbacks)


def resume(
    runs: Path | str | Sequence[Path | str],
    *,
    env: Any = None,
    stop_at: int | None = None,
    time_budget: float | None = None,
    paths: Sequence[Path | str] = (),
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Outcome:
    """Resume an interrupted run, or several seeds of one config; the same as `warpsac train --resume RUN ...`.

    `env` is the environment that `train` was given, where that was an object of the program. `paths` are those of the
    runs' settings that may be used, where only the runs name them. `callbacks` as for `train`: a run folder names none.
    `settings` are fields of `Config` that may change: eval={"every": 50_000}, a larger total_steps.
    """
    modules.name_paths(map(str, paths))
    folders = [runs] if isinstance(runs, (Path, str)) else runs
    if env is not None and folders:
        bring(env, open_run(folders[0]).config.task)
    devices.use_compilation_cache()
    return training.resume(folders, stop_at, time_budget, callbacks=callbacks, **settings)
