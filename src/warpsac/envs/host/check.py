"""What `warpsac check-env` finds out about gymnasium environments, single and vector."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from warpsac.config.schema import EnvConfig
from warpsac.envs.findings import (
    NO_SUCCESS,
    NOT_FINITE,
    RESUME_CUTS,
    RESUME_EXACT,
    Clock,
    Finding,
    of_ends,
    of_spec,
    reproduced,
    roll,
    timed,
)
from warpsac.envs.host import gym, named, single
from warpsac.envs.host.vector_env import Mode, VectorEnvs, autoreset_mode, in_lockstep, resets_by_mask
from warpsac.envs.kinds import kind_of
from warpsac.envs.names import Target
from warpsac.errors import UserError, counted, in_a_line, in_a_line_with_place
from warpsac.types import usable, usable_reward

UNSAVED = RESUME_CUTS._replace(
    text=f"{RESUME_CUTS.text}; get_state() and set_state() with plain arrays would make resume exact"
)


def findings(target: Target, config: EnvConfig) -> list[Finding]:
    count = max(config.num_envs, 2)
    env = gym.builder(target, count, config)()
    with contextlib.closing(env):
        if kind_of(env) == "vector":
            return _of_vector(target.name, env, count, config)
        return _of_single(target.name, env, config)


# --- one environment


def _of_single(name: str, env: Any, config: EnvConfig) -> list[Finding]:
    spec = single.describe(name, env, 1, config, has_success=False)
    found = [*of_spec(spec), *_number_formats(_declared(env))]
    if not spec.restorable:
        found.append(UNSAVED)
    return [*found, *_behaviour(env, config, spec.episode_limit)]


def _declared(env: Any) -> Any:
    """The observation space as the user wrote it."""
    parts = single.find_wrapper(env, named.NamedObservation)
    return parts.env.observation_space if parts else env.observation_space


def _number_formats(space: Any) -> list[Finding]:
    """Of the parts that are numbers; others, such as Discrete, become zeros and ones."""
    boxes = [(path, str(part.dtype)) for path, part in named.leaves(space) if isinstance(part, spaces.Box)]
    floats = sorted({kind for _, kind in boxes if kind.startswith("float")} - {"float32"})
    found = [Finding("ok", f"observations are {', '.join(floats)}: stored as float32")] if floats else []
    for path, kind in boxes:
        if not kind.startswith("float"):
            text = f"{named.called(path)} is {kind}: the networks see {kind} as plain numbers"
            found.append(Finding("note", text))
    return found


def _behaviour(env: Any, config: EnvConfig, limit: int | None) -> list[Finding]:
    """Step it with random actions, twice from the same seed."""
    doing = "resetting"
    try:
        first = env.reset(seed=0)
        doing = "stepping"
        taken = _roll(env, first)
        again = _roll(env, env.reset(seed=0), taken.steps)
    except UserError as error:
        return [Finding("problem", str(error))]
    except SystemExit as error:
        return [Finding("problem", f"{doing} it ends the program ({in_a_line(error)})")]
    except Exception as error:
        text = f"{doing} it raises {in_a_line_with_place(error)}"
        if "(expected 5, got 4)" in str(error):  # gymnasium's own wrappers say it like this
            text += ": step must return observation, reward, terminated, truncated, info"
        return [Finding("problem", text)]
    found = [timed(taken.steps, again.seconds), *of_ends(limit, taken.steps, taken.longest)]
    found.append(_success(taken.keys, config))
    if bad := _not_finite(taken.rows):
        return [*found, NOT_FINITE._replace(text=f"{NOT_FINITE.text} ({bad})")]
    found.append(reproduced(np.array_equal(taken.rows, again.rows)))
    if found[-1].level == "ok" and isinstance(env, single.Snapshot):
        found.append(_snapshot(env))
    return found


def _not_finite(rows: np.ndarray) -> str:
    """The first number that cannot be learned from, if there is one."""
    fit = np.column_stack([usable(rows[:, :-1]), usable_reward(rows[:, -1])])
    if fit.all():
        return ""
    row, column = np.argwhere(~fit)[0]
    what = "the reward" if column == rows.shape[1] - 1 else f"number {column} of the observation"
    return f"first, {what} is {rows[row, column]:g}"


def _success(keys: set[str], config: EnvConfig) -> Finding:
    """Which key says that the task is solved, of those seen in `info`."""
    if config.success_key is not None:
        if config.success_key in keys:
            return Finding("ok", f"success: info['{config.success_key}'], as env.success_key says")
        seen = f"; it has {', '.join(sorted(keys))}" if keys else ""
        return Finding("note", f"env.success_key = '{config.success_key}' was not seen in info{seen}")
    for key in single.SUCCESS_KEYS:
        if key in keys:
            return Finding("ok", f"success: info['{key}']")
    wanted = " or ".join(single.SUCCESS_KEYS)
    return Finding("ok", f"{NO_SUCCESS.text} (info has no {wanted}; --env.success-key names another)")


def _snapshot(env: single.Snapshot) -> Finding:
    """Whether a restored state leads to the same steps again."""
    advice = "resume would not be exact"
    try:
        state = env.get_state()
        names = [name for name, value in state.items() if value.dtype.kind not in "biuf"]
        if names:
            return Finding("note", f"get_state() gives {names[0].removeprefix('own/')}, not plain numbers: {advice}")
        taken = _roll(env, None)
        env.reset(seed=1)
        env.set_state(state)
        again = _roll(env, None, taken.steps)
    except Exception as error:
        return Finding("note", f"get_state() or set_state() raises {in_a_line(error)}: {advice}")
    if np.array_equal(taken.rows, again.rows):
        return Finding("ok", "its state can be saved and restored: resume is exact")
    return Finding("note", f"set_state() does not restore all that get_state() saw: {advice}")


class _Steps(NamedTuple):
    rows: np.ndarray  # observation and reward of each
    steps: int
    seconds: float  # of one
    keys: set[str]  # seen in `info`
    longest: int | None  # steps of the longest episode that ended


def _roll(env: Any, first: Any, steps: int | None = None) -> _Steps:
    """Random steps, the same at each call, from the present state; `first` is what reset() returned."""
    rng, space, clock = np.random.default_rng(0), env.action_space, Clock(steps)
    low = np.where(np.isfinite(space.low), space.low, -1.0)
    high = np.where(np.isfinite(space.high), space.high, 1.0)
    rows: list[np.ndarray] = []
    keys: set[str] = set()

    def record(obs: Any, info: Any, reward: Any = 0.0) -> None:
        single.require_numbers(env, obs, reward)
        if not isinstance(info, Mapping):
            raise UserError(f"info is {type(info).__name__}, not a dict")
        keys.update(info)
        rows.append(np.append(np.asarray(obs, np.float64).reshape(-1), float(reward)))

    if first is not None:
        record(*first)
    made = started = 0
    longest: int | None = None
    while not clock.over():
        obs, reward, terminated, truncated, info = env.step(rng.uniform(low, high).astype(space.dtype))
        made += 1
        record(obs, info, reward)
        for flag, what in ((terminated, "terminated"), (truncated, "truncated")):
            if np.ndim(flag) != 0 or np.asarray(flag).dtype.kind not in "biu":
                raise UserError(f"{what} is {type(flag).__name__} {flag!r}, not True or False")
        if terminated or truncated:
            longest, started = max(longest or 0, made - started), made
            record(*env.reset())
    return _Steps(np.array(rows), made, clock.seconds, keys, longest)


# --- a VectorEnv


class _Watched(VectorEnvs):
    """Remembers what the environment itself said."""

    ended = lost = paid_for_nothing = 0
    finite = True
    keys: frozenset[str] = frozenset()

    def _settle(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        started = self._over.copy()
        result, faulty = super()._settle(obs, reward, terminated, truncated, info)
        over = result.terminated | result.truncated
        self.ended += int(over.sum())
        self.paid_for_nothing += int((np.asarray(reward, float)[started] != 0).sum())
        if self._mode is Mode.SAME_STEP and over.any():
            self.lost += int((over & ~self._final_rows(info, over, result.obs)[1]).sum())
        self.finite &= not faulty.any()
        last = info.get("final_info")
        self.keys |= {*info, *(last if isinstance(last, Mapping) else ())}
        return result, faulty

    def resets_others(self) -> bool:
        """Whether a reset of the first environment moves others."""
        self.reset(0)
        self.send(np.ones((self.spec.num_envs, self.spec.action_dim), np.float32))
        before = self.recv().result.obs
        return not np.array_equal(self._reset(np.arange(self.spec.num_envs) == 0)[1:], before[1:])


def _of_vector(name: str, env: Any, count: int, config: EnvConfig) -> list[Finding]:
    with single.about(name):
        made = in_lockstep(name, env, count, config, _Watched)
    assert isinstance(made, _Watched)
    found = [*of_spec(made.spec), *_number_formats(env.single_observation_space)]
    rows, _ = roll(made)
    again, seconds = roll(made, len(rows) - 1)
    found += [timed(len(rows) - 1, seconds, count), _autoreset(env, made, len(rows) - 1)]
    found += of_ends(made.spec.episode_limit, len(rows) - 1, len(rows) - 1 if made.ended else None, settable=False)
    found.append(_success(set(made.keys), config))
    if not made.finite:
        found.append(NOT_FINITE)
    else:
        found.append(reproduced(all(map(np.array_equal, rows, again))))
    return [*found, RESUME_EXACT if made.spec.restorable else UNSAVED]


def _autoreset(env: Any, made: _Watched, steps: int) -> Finding:
    """What is done about the ends of episodes."""
    mode = autoreset_mode(env)
    said = f"autoreset mode {mode.value}"
    if not made.ended:
        return Finding("note", f"{said}; no episode ended in {counted(steps, 'step')}, so ends were not checked")
    if mode is Mode.SAME_STEP:
        if made.lost:
            text = "no info['final_obs'] at the end of an episode: truncated ones end a step early in replay"
            return Finding("note", f"{said}: {text}")
        return Finding("ok", f"{said}: the last observation of an episode is info['final_obs']")
    if resets_by_mask(env):
        if made.resets_others():
            text = "reset(options={'reset_mask': ...}) changes environments that are not in the mask"
            return Finding("problem", f"{said}: {text}")
        return Finding("ok", f"{said}: ended episodes are reset by options={{'reset_mask': ...}}")
    if made.paid_for_nothing:
        text = "the step after an episode's end has a reward, so it is a real one: is the mode SameStep?"
        return Finding("problem", f"{said}: {text}")
    text = "the step after each end starts the next episode and is not learned from; SameStep would save it"
    return Finding("ok", f"{said}: {text}")
