"""`warpsac check-env`: whether a user's environment fits the contract, as a list of findings."""

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


class _Unfit(Exception):
    """What a step returned that cannot be used."""


def check_env(name: str, config: EnvConfig | None = None, simulator: str | None = None) -> list[Finding]:
    """What fits and what does not, each with the way out; no `problem` means it can be trained."""
    config = config or EnvConfig()
    target = lookup(name, simulator)
    try:
        if target.family not in ("mujoco", "gymnasium"):
            with contextlib.closing(make(target, 1, config)) as made:
                return [Finding("ok", f"{target.name} is built in: {made.spec.views.obs_dim} observations")]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gym.build_single(gym.gymnasium.registry[target.id], episode_limit=config.episode_limit)
    except UserError as error:
        return [Finding("problem", str(error))]
    except Exception as error:
        return [Finding("problem", why_not_made(target, error))]
    with contextlib.closing(env):
        spaces = _check_spaces(target.name, env, config)
        return spaces if spaces[0].level == "problem" else [*spaces, *_check_behaviour(env)]


def _check_spaces(name: str, env: Any, config: EnvConfig) -> list[Finding]:
    try:
        spec = gym.describe(name, env, 1, config, has_success=False)
    except UserError as error:
        return [Finding("problem", str(error))]
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    same = (low == low[0]).all() and (high == high[0]).all()
    bounds = f"[{low[0]:g}, {high[0]:g}]" if same else "bounds of their own"
    found = [
        Finding("ok", f"observation: {spec.views.obs_dim} numbers"),
        Finding("ok", f"action: {spec.action_dim} numbers in {bounds}, rescaled from [-1, 1]"),
    ]
    if (low >= high).any():
        found.append(Finding("problem", "action bounds: a lower bound is not below its upper bound"))
    if spec.views.obs_dim > 10_000:
        found.append(Finding("note", "observation is very large: warpsac learns from state, not from images"))
    if spec.episode_limit is None:
        found.append(Finding("note", "no step limit: if episodes may never end, set one with --env.episode-limit"))
    else:
        found.append(Finding("ok", f"episodes are truncated after {spec.episode_limit} steps"))
    if not spec.restorable:
        note = "its state cannot be saved: on resume running episodes are cut (nothing else is lost); "
        found.append(Finding("note", note + "get_state() and set_state() with plain arrays would make resume exact"))
    return found


def _check_behaviour(env: Any) -> list[Finding]:
    """Step it with random actions, twice from the same seed."""
    try:
        rows, seconds = _roll(env, env.reset(seed=0)[0])
        again, _ = _roll(env, env.reset(seed=0)[0])
    except _Unfit as error:
        return [Finding("problem", str(error))]
    except Exception as error:
        return [Finding("problem", f"stepping it raises {in_a_line(error)}")]
    found = [Finding("ok", f"{STEPS} random steps at {seconds / STEPS * 1e6:.0f} microseconds each")]
    if not np.isfinite(rows).all():
        found.append(Finding("problem", "observations or rewards are not finite: such steps are never learned from"))
    elif not np.array_equal(rows, again):
        found.append(Finding("note", "the same seed gives other episodes: results cannot be reproduced"))
    else:
        found.append(Finding("ok", "the same seed gives the same episodes"))
        if isinstance(env, gym.Snapshot):
            found.append(_check_snapshot(env))
    return found


def _check_snapshot(env: gym.Snapshot) -> Finding:
    """Whether a restored state leads to the same steps again."""
    advice = "resume would not be exact"
    try:
        state = env.get_state()
        names = [name for name, value in state.items() if value.dtype.kind not in "biuf"]
        if names:
            return Finding("note", f"get_state() gives {names[0].removeprefix('own/')}, not plain numbers: {advice}")
        rows, _ = _roll(env, None)
        env.reset(seed=1)
        env.set_state(state)
        again, _ = _roll(env, None)
    except Exception as error:
        return Finding("note", f"get_state() or set_state() raises {in_a_line(error)}: {advice}")
    if np.array_equal(rows, again):
        return Finding("ok", "its state can be saved and restored: resume is exact")
    return Finding("note", f"set_state() does not restore all that get_state() saw: {advice}")


def _roll(env: Any, first_obs: Any) -> tuple[np.ndarray, float]:
    """Random steps, the same at each call, from the present state: observation and reward of each, and seconds."""
    rng, space = np.random.default_rng(0), env.action_space
    low = np.where(np.isfinite(space.low), space.low, -1.0)
    high = np.where(np.isfinite(space.high), space.high, 1.0)
    rows: list[np.ndarray] = []

    def record(obs: Any, reward: Any) -> None:
        expected = env.observation_space.shape
        if np.shape(obs) != expected:
            raise _Unfit(f"observations have shape {np.shape(obs)}, not {expected}")
        if np.ndim(reward) != 0 or np.asarray(reward).dtype.kind not in "biuf":
            raise _Unfit(f"reward is {type(reward).__name__} {reward!r}, not a number")
        rows.append(np.append(np.asarray(obs, np.float64).reshape(-1), float(reward)))

    if first_obs is not None:
        record(first_obs, 0.0)
    started = time.perf_counter()
    for _ in range(STEPS):
        obs, reward, terminated, truncated, _ = env.step(rng.uniform(low, high).astype(space.dtype))
        record(obs, reward)
        if terminated or truncated:
            env.reset()
    return np.array(rows), time.perf_counter() - started
