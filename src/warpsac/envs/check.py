"""`warpsac check-env`: whether an environment fits the contract, as a list of findings.

Here is what all kinds have in common; what is particular to one is in `check` of `host/`, `jax/` and `torch/`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import EnvSpec, HostEnv
from warpsac.envs.registry import Target, for_episodes, lookup, make, why_not_made
from warpsac.errors import TrainingStopped, UserError, in_a_line

STEPS = 200


class Finding(NamedTuple):
    level: Literal["ok", "note", "problem"]
    text: str


def check_env(task: str | Target, config: EnvConfig | None = None) -> list[Finding]:
    """What fits and what does not, each with the way out; no `problem` means it can be trained."""
    target = lookup(task) if isinstance(task, str) else task
    try:
        with _contained():
            return _findings(target, config or EnvConfig())
    except (UserError, TrainingStopped) as error:
        return [Finding("problem", str(error).removeprefix(f"{target.name}: "))]
    except SystemExit as error:
        return [Finding("problem", f"it ends the program: {in_a_line(error)}")]
    except Exception as error:
        return [Finding("problem", why_not_made(target, error))]


def _findings(target: Target, config: EnvConfig) -> list[Finding]:
    room = "jax" if target.jax else "torch" if target.torch else "host" if target.family in OWN_ON_HOST else None
    if room is not None:
        kind: Any = importlib.import_module(f"warpsac.envs.{room}.check")
        return list(kind.findings(target, config))
    with contextlib.closing(make(target, 2, for_episodes(config))) as made:
        return [*of_spec(made.spec), *of_steps(made)]


OWN_ON_HOST = ("mujoco", "gymnasium")  # families whose environments a user may have written


@contextlib.contextmanager
def _contained() -> Iterator[None]:
    """What an environment's own code prints, warns of, or does to the working directory stays with it."""
    folder = os.getcwd()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        os.chdir(folder)


# --- findings that several kinds share


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def of_spec(spec: EnvSpec) -> list[Finding]:
    """Sizes, names, bounds, step limit and success."""
    views = spec.views
    found = [Finding("ok", f"observation: {counted(views.obs_dim, 'number')}")]
    if views.actor_dim < views.obs_dim or views.critic_start:
        text = f"asymmetric: the actor sees {counted(views.actor_dim, 'number')}, the critic {counted(views.critic_dim, 'number')}"
        found.append(Finding("ok", text))
    if spec.terms:
        terms = ", ".join(f"{name} {size}" for name, size in spec.terms)
        found.append(Finding("ok", f"the actor's observation, by name and in order: {terms}"))
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    same = (low == low[0]).all() and (high == high[0]).all()
    bounds = f"[{low[0]:g}, {high[0]:g}]" if same else "bounds of their own"
    found.append(Finding("ok", f"action: {counted(spec.action_dim, 'number')} in {bounds}, rescaled from [-1, 1]"))
    if views.obs_dim > 10_000:
        found.append(Finding("note", "observation is very large: warpsac learns from state, not from images"))
    if spec.episode_limit is None:
        found.append(Finding("note", "no step limit: if episodes may never end, set one with --env.episode-limit"))
    else:
        found.append(Finding("ok", f"episodes are truncated after {counted(spec.episode_limit, 'step')}"))
    return found


def of_steps(env: HostEnv) -> list[Finding]:
    """Step environments that fit the contract with random actions, twice from the same seed."""
    rows, seconds = roll(env)
    again, _ = roll(env)
    return [
        Finding("ok", f"{STEPS} random steps of {counted(env.spec.num_envs, 'environment')} at {duration(seconds)}"),
        reproduced(np.array_equal(rows, again)),
        Finding("ok", "steps say whether the task is solved") if env.spec.has_success else NO_SUCCESS,
        RESUME_EXACT if env.spec.restorable else RESUME_CUTS,
    ]


NO_SUCCESS = Finding("ok", "steps do not say whether the task is solved: there will be no success rate")
RESUME_EXACT = Finding("ok", "its state can be saved: resume is exact")
RESUME_CUTS = Finding("note", "its state cannot be saved: on resume running episodes are cut (nothing else is lost)")


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} microseconds each" if seconds < 1e-3 else f"{seconds * 1e3:.1f} milliseconds each"


def reproduced(same: bool) -> Finding:
    if same:
        return Finding("ok", "the same seed gives the same episodes")
    return Finding("note", "the same seed gives other episodes: results cannot be reproduced")


def roll(env: HostEnv) -> tuple[np.ndarray, float]:
    """Observations and rewards of random steps, the same at each call, and the seconds of one after the first."""
    rng, rows = np.random.default_rng(0), [env.reset(0).ravel()]
    started = time.perf_counter()
    for i in range(STEPS):
        if i == 1:
            started = time.perf_counter()  # the first one may compile
        env.send(rng.uniform(-1, 1, (env.spec.num_envs, env.spec.action_dim)).astype(np.float32))
        result = env.recv().result
        rows.append(np.concatenate([result.obs.ravel(), result.reward]))
    return np.concatenate(rows), (time.perf_counter() - started) / (STEPS - 1)
