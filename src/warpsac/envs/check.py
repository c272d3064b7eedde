"""Whether a user's environment fits the contract, told as a list of findings."""

from __future__ import annotations

import contextlib
import time
import warnings
from typing import Any, Literal, NamedTuple

import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.envs.host import gym
from warpsac.envs.registry import lookup, make, why_not_made
from warpsac.errors import UserError, in_a_line

STEPS = 200


class Finding(NamedTuple):
    level: Literal["ok", "note", "problem"]
    text: str


def check_env(name: str, config: EnvConfig | None = None) -> list[Finding]:
    """What fits and what does not, each with the way out; no `problem` means it can be trained."""
    config = config or EnvConfig()
    target = lookup(name)
    try:
        if target.family not in ("mujoco", "gymnasium"):
            with contextlib.closing(make(target.name, 1, config)) as made:
                return [Finding("ok", f"{target.name} is built in: {made.spec.views.obs_dim} observations")]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gym.build_single(target.name, episode_limit=config.episode_limit)
    except UserError as error:
        return [Finding("problem", str(error))]
    except Exception as error:
        return [Finding("problem", why_not_made(target, error))]
    try:
        spaces = _check_spaces(target.name, env, config)
        return spaces if spaces[0].level == "problem" else [*spaces, *_check_behaviour(env)]
    finally:
        env.close()


def _check_spaces(name: str, env: Any, config: EnvConfig) -> list[Finding]:
    try:
        spec = gym.describe(name, env, 1, config, has_success=False)
    except UserError as error:
        return [Finding("problem", str(error))]
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    found = [
        Finding("ok", f"observation: {spec.views.obs_dim} numbers"),
        Finding("ok", f"action: {spec.action_dim} numbers in {_range(low, high)}, rescaled from [-1, 1]"),
    ]
    if (low >= high).any():
        found.append(Finding("problem", "action bounds: a lower bound is not below its upper bound"))
    if spec.views.obs_dim > 10_000:
        found.append(Finding("note", "observation is very large: warpsac learns from state, not from images"))
    if spec.episode_limit is None:
        found.append(Finding("note", "no step limit: if episodes may never end, give one with --env.episode-limit"))
    else:
        found.append(Finding("ok", f"episodes are truncated after {spec.episode_limit} steps"))
    if not spec.restorable:
        found.append(
            Finding(
                "note",
                "its state cannot be saved: on resume running episodes are cut (nothing else is lost); "
                "get_state() and set_state() with plain arrays would make resume exact",
            )
        )
    return found


def _range(low: np.ndarray, high: np.ndarray) -> str:
    same = (low == low[0]).all() and (high == high[0]).all()
    return f"[{low[0]:g}, {high[0]:g}]" if same else "bounds of their own"


def _check_behaviour(env: Any) -> list[Finding]:
    """Step it with random actions, twice from the same seed."""
    try:
        first = _roll(env, env.reset(seed=0)[0])
        again = _roll(env, env.reset(seed=0)[0])
    except Exception as error:
        return [Finding("problem", f"stepping it raises {in_a_line(error)}")]
    if first.problem:
        return [Finding("problem", first.problem)]
    found = [Finding("ok", f"{STEPS} random steps at {first.seconds / STEPS * 1e6:.0f} microseconds each")]
    if not np.isfinite(first.rows).all():
        found.append(Finding("problem", "observations or rewards are not finite: such steps are never learned from"))
    elif not np.array_equal(first.rows, again.rows):
        found.append(Finding("note", "the same seed gives other episodes: results cannot be reproduced"))
    else:
        found.append(Finding("ok", "the same seed gives the same episodes"))
        if isinstance(env, gym.Snapshot):
            found.append(_check_snapshot(env))
    return found


def _check_snapshot(env: gym.Snapshot) -> Finding:
    """Whether the state, put back, leads to the same steps again."""
    advice = "resume would not be exact"
    try:
        state = env.get_state()
        names = [name for name, value in state.items() if value.dtype.kind not in "biuf"]
        if names:
            return Finding("note", f"get_state() gives {names[0].removeprefix('own/')}, not plain numbers: {advice}")
        first = _roll(env, None)
        env.reset(seed=1)
        env.set_state(state)
        again = _roll(env, None)
    except Exception as error:
        return Finding("note", f"get_state() or set_state() raises {in_a_line(error)}: {advice}")
    if np.array_equal(first.rows, again.rows):
        return Finding("ok", "its state can be saved and put back: resume is exact")
    return Finding("note", f"set_state() does not bring back all that get_state() saw: {advice}")


class _Roll(NamedTuple):
    rows: np.ndarray  # observation and reward of each step
    seconds: float
    problem: str | None


def _roll(env: Any, first_obs: Any) -> _Roll:
    """Random steps, the same at each call, from where the environment is."""
    rng, space = np.random.default_rng(0), env.action_space
    low = np.where(np.isfinite(space.low), space.low, -1.0)
    high = np.where(np.isfinite(space.high), space.high, 1.0)
    rows: list[np.ndarray] = []
    started = time.perf_counter()

    def wrong_shape(obs: Any) -> str | None:
        expected = env.observation_space.shape
        return None if np.shape(obs) == expected else f"observations have shape {np.shape(obs)}, not {expected}"

    problem = wrong_shape(first_obs) if first_obs is not None else None
    if first_obs is not None and not problem:
        rows.append(np.append(np.asarray(first_obs, np.float64).reshape(-1), 0.0))
    for _ in range(STEPS):
        if problem:
            break
        obs, reward, terminated, truncated, _ = env.step(rng.uniform(low, high).astype(space.dtype))
        problem = wrong_shape(obs)
        if np.ndim(reward) != 0 or np.asarray(reward).dtype.kind not in "biuf":
            problem = f"reward is {type(reward).__name__} {reward!r}, not a number"
        if not problem:
            rows.append(np.append(np.asarray(obs, np.float64).reshape(-1), float(reward)))
        if terminated or truncated:
            env.reset()
    return _Roll(np.array(rows), time.perf_counter() - started, problem)
