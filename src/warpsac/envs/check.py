"""Whether a user's environment fits the contract, told as a list of findings."""

from __future__ import annotations

import time
import warnings
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np

from warpsac.config import EnvConfig
from warpsac.envs import gym, lookup, make
from warpsac.errors import UserError

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
            env = make(target.name, 1, config)
            return [Finding("ok", f"{target.name} is built in: {env.spec.views.obs_dim} observations")]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gym.build_single(target.name)
    except UserError as error:
        return [Finding("problem", str(error))]
    except Exception as error:
        return [Finding("problem", f"cannot be made: {type(error).__name__}: {error}")]
    try:
        return [*_check_spaces(target.name, env, config), *_check_behaviour(env)]
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
        found.append(Finding("note", "no step limit: register it with max_episode_steps, or episodes may never end"))
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
    if not isinstance(env.action_space, gymnasium.spaces.Box):
        return []
    try:
        first, seconds, facts = _roll(env)
        again, _, _ = _roll(env)
    except Exception as error:
        return [Finding("problem", f"stepping it raises {type(error).__name__}: {error}")]
    found = [Finding("ok", f"{STEPS} random steps at {seconds / STEPS * 1e6:.0f} microseconds each")]
    if facts["bad_shape"]:
        found.append(Finding("problem", f"observations have shape {facts['bad_shape']}, not the space's"))
        return found
    if not np.isfinite(first).all():
        found.append(Finding("problem", "observations or rewards are not finite: such steps are never learned from"))
    elif not np.array_equal(first, again):
        found.append(Finding("note", "the same seed gives other episodes: results cannot be reproduced"))
    else:
        found.append(Finding("ok", "the same seed gives the same episodes"))
    if facts["reward_type"]:
        found.append(Finding("problem", f"reward is a {facts['reward_type']}, not a number"))
    return found


def _roll(env: Any) -> tuple[np.ndarray, float, dict[str, Any]]:
    rng, space = np.random.default_rng(0), env.action_space
    low = np.where(np.isfinite(space.low), space.low, -1.0)
    high = np.where(np.isfinite(space.high), space.high, 1.0)
    rows: list[np.ndarray] = []
    facts: dict[str, Any] = {"bad_shape": None, "reward_type": None}
    obs, _ = env.reset(seed=0)
    started = time.perf_counter()
    for _ in range(STEPS):
        obs, reward, terminated, truncated, _ = env.step(rng.uniform(low, high).astype(space.dtype))
        if np.shape(obs) != env.observation_space.shape:
            facts["bad_shape"] = np.shape(obs)
            break
        if np.ndim(reward) != 0 or not np.issubdtype(np.asarray(reward).dtype, np.number):
            facts["reward_type"] = type(reward).__name__
            reward = 0.0
        rows.append(np.append(np.asarray(obs, np.float64).reshape(-1), float(reward)))
        if terminated or truncated:
            obs, _ = env.reset()
    return np.array(rows), time.perf_counter() - started, facts
