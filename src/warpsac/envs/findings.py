"""What `warpsac check-env` says about an environment, and what the checks of all kinds have in common."""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

import numpy as np

from warpsac.envs.contract import EnvSpec, HostEnv
from warpsac.errors import counted
from warpsac.types import LARGEST_OBS, LARGEST_REWARD

STEPS = 200
USUAL_LIMIT = 1000  # steps of an episode, where a limit has to be suggested
PATIENCE = 5.0  # seconds after which a slow environment has been stepped enough


class Finding(NamedTuple):
    level: Literal["ok", "note", "problem"]
    text: str
    options: str = ""
    """What `warpsac train` should be given because of it."""


NO_SUCCESS = Finding("ok", "steps do not say whether the task is solved: there will be no success rate")
NOT_FINITE = Finding(
    "problem",
    f"observations or rewards are not finite, or beyond {LARGEST_OBS:g} and {LARGEST_REWARD:g}: "
    "such steps are never learned from",
)
NOT_STEPPED = Finding("note", "not stepped: a task of the simulator's own, which may take minutes to compile")
RESUME_EXACT = Finding("ok", "its state can be saved: resume is exact")
RESUME_CUTS = Finding("note", "its state cannot be saved: on resume running episodes are cut (nothing else is lost)")


def of_spec(spec: EnvSpec) -> list[Finding]:
    """Sizes, names, bounds and step limit."""
    views = spec.views
    found = [Finding("ok", f"observation: {counted(views.obs_dim, 'number')}")]
    if views.actor_dim < views.obs_dim or views.critic_start:
        actor, critic = counted(views.actor_dim, "number"), counted(views.critic_dim, "number")
        found.append(Finding("ok", f"asymmetric: the actor sees {actor}, the critic {critic}"))
    if spec.terms:
        terms = ", ".join(f"{name} {size}" for name, size in spec.terms)
        found.append(Finding("ok", f"the actor's observation, by name and in order: {terms}"))
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    same = (low == low[0]).all() and (high == high[0]).all()
    bounds = f"[{low[0]:g}, {high[0]:g}]" if same else "bounds of their own"
    found.append(Finding("ok", f"action: {counted(spec.action_dim, 'number')} in {bounds}, rescaled from [-1, 1]"))
    if views.obs_dim > 10_000:
        found.append(Finding("note", "observation is very large: warpsac learns from state, not from images"))
    if spec.episode_limit is not None:
        found.append(Finding("ok", f"episodes are truncated after {counted(spec.episode_limit, 'step')}"))
    return found


def of_ends(limit: int | None, steps: int, within: int | None, settable: bool = True) -> list[Finding]:
    """What random steps showed about episodes without a step limit: `within` how many of them one ended, if any did.
    Not `settable`: the environment may not take a limit."""
    if limit is not None:
        return []
    if within is not None:
        return [Finding("ok", f"no step limit, but episodes ended within {counted(within, 'random step')}")]
    option = f"--env.episode-limit {USUAL_LIMIT}"
    if settable:
        return [Finding("note", f"no episode ended in {counted(steps, 'random step')}: give a limit, {option}", option)]
    return [Finding("note", "no step limit: if episodes may never end, end them in the environment, or with " + option)]


def of_steps(env: HostEnv) -> list[Finding]:
    """Step environments that fit the contract with random actions, twice from the same seed."""
    rows, _ = roll(env)
    again, seconds = roll(env, len(rows) - 1)
    return [
        timed(len(rows) - 1, seconds, env.spec.num_envs),
        *of_ends(env.spec.episode_limit, len(rows) - 1, len(rows) - 1 if _any_ended(env, rows) else None),
        reproduced(all(map(np.array_equal, rows, again))),
        Finding("ok", "steps say whether the task is solved") if env.spec.has_success else NO_SUCCESS,
        RESUME_EXACT if env.spec.restorable else RESUME_CUTS,
    ]


def timed(steps: int, seconds: float, num_envs: int = 1) -> Finding:
    what = counted(steps, "random step") + (f" of {num_envs} environments" if num_envs > 1 else "")
    each = f"{seconds * 1e6:.0f} microseconds" if seconds < 1e-3 else f"{seconds * 1e3:.1f} milliseconds"
    return Finding("ok", f"{what} at {each} each")


def reproduced(same: bool) -> Finding:
    if same:
        return Finding("ok", "the same seed gives the same episodes")
    return Finding("note", "the same seed gives other episodes: results cannot be reproduced")


class Clock:
    """Time of a step without the first; `over` once there have been enough.

    The time that is reported is that of the same steps taken again: those before compile and load.
    """

    def __init__(self, steps: int | None):
        self._wanted, self._made, self._started, self.seconds = steps, -1, 0.0, 0.0

    def over(self) -> bool:
        """Call it before each step."""
        self._made += 1
        now = time.perf_counter()
        if self._made <= 1:
            self._started = now
        self.seconds = (now - self._started) / max(self._made - 1, 1)
        if self._wanted is not None:
            return self._made == self._wanted
        return self._made == STEPS or (self._made > 1 and now - self._started > PATIENCE)


def roll(env: HostEnv, steps: int | None = None) -> tuple[list[np.ndarray], float]:
    """Random steps, the same at each call: observations, rewards and ends of each, and the seconds of one."""
    rng, rows, clock = np.random.default_rng(0), [env.reset(0).ravel()], Clock(steps)
    while not clock.over():
        env.send(rng.uniform(-1, 1, (env.spec.num_envs, env.spec.action_dim)).astype(np.float32))
        result = env.recv().result
        rows.append(np.concatenate([result.obs.ravel(), result.reward, result.terminated | result.truncated]))
    return rows, clock.seconds


def _any_ended(env: HostEnv, rows: list[np.ndarray]) -> bool:
    return any(row[-env.spec.num_envs :].any() for row in rows[1:])
