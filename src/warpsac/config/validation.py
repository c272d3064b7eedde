"""Configs that hold: every field checked, the first that is out of range named; settings from mappings and files."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

from warpsac.config import ppo as ppo_config
from warpsac.config.ppo import PpoConfig
from warpsac.config.profiles import PROFILES, VARIANTS, one_variant
from warpsac.config.schema import PPO, Algo, Config, LearnerConfig, ReplayConfig
from warpsac.errors import ConfigError, UserError

Check = Callable[[str, bool, str], None]


def _check_algorithm(config: Config, check: Check) -> None:
    """A setting of the other algorithm has no effect: whoever gave it is told."""
    if config.algo == PPO:
        check("variant", config.variant == PPO, one_variant(config.variant))
        foreign: dict[str, Any] = {"replay": ReplayConfig(), "learner": LearnerConfig()}
        for path, value in (("learning_starts", 0), ("updates_per_step", 1), ("overlap", True)):
            check(path, getattr(config, path) == value, "has no effect with algo ppo: leave it out")
    else:
        check("variant", config.variant in VARIANTS, f"must be one of {', '.join(VARIANTS)}")
        foreign = {PPO: PpoConfig()}
    for section, usual in foreign.items():
        for name in (entry.name for entry in dataclasses.fields(usual)):
            same = getattr(getattr(config, section), name) == getattr(usual, name)
            check(f"{section}.{name}", same, f"has no effect with algo {config.algo}: leave it out")


def _expanded(config: Config) -> Config:
    """The config without shorthands: what they set is what is recorded."""
    blocks = config.learner.blocks
    if blocks is None:
        return config
    if blocks not in (1, 2, 3):
        raise ConfigError("learner.blocks", blocks, "must be 1, 2 or 3")
    for name in ("actor_blocks", "critic_blocks"):
        given = getattr(config.learner, name)
        if given not in (blocks, getattr(LearnerConfig(), name)):
            raise ConfigError("learner.blocks", blocks, f"sets {name} too, which is {given}: leave one of them out")
    learner = dataclasses.replace(config.learner, blocks=None, actor_blocks=blocks, critic_blocks=blocks)
    return dataclasses.replace(config, learner=learner)


def validate(config: Config) -> Config:
    """The config, shorthands expanded, if every field is in range; a ConfigError naming the first that is not."""
    config = _expanded(config)

    def value_of(path: str) -> Any:
        return functools.reduce(getattr, path.split("."), config)

    def check(path: str, ok: bool, allowed: str) -> None:
        if not ok:
            raise ConfigError(path, value_of(path), allowed)

    def at_least(path: str, low: float) -> None:
        check(path, value_of(path) >= low, f"must be at least {low}")

    check("algo", config.algo in typing.get_args(Algo), f"must be one of {', '.join(typing.get_args(Algo))}")
    _check_algorithm(config, check)
    check("profile", config.profile in PROFILES, f"must be one of {', '.join(PROFILES)}")
    check("seeds", len(config.seeds) > 0, "must name at least one seed")
    check("seeds", len(set(config.seeds)) == len(config.seeds), "must not name a seed twice")
    check("seeds", all(0 <= seed < 2**31 for seed in config.seeds), "must lie in 0..2147483647")
    for path in ("env.num_envs", "env.max_faults", "updates_per_step", "total_steps", "eval.episodes",
                 "eval.num_envs", "checkpoint.keep", "log.every", "replay.batch_size", "replay.n_step",
                 "learner.actor_width", "learner.critic_width", "learner.expansion",
                 "learner.policy_delay", "learner.noise_repeat"):  # fmt: skip
        at_least(path, 1)
    for path in ("eval.every", "checkpoint.every", "checkpoint.replay_limit_gb", "replay.final_slots"):
        at_least(path, 0)
    check("stop_at", config.stop_at is None or config.stop_at >= 1, "must be at least 1")
    check("stop_at", config.stop_at is None or config.stop_at <= config.total_steps,
          f"the schedule ends at total_steps = {config.total_steps}; to go further, train anew with more")  # fmt: skip
    check("time_budget", config.time_budget is None or config.time_budget > 0, "must be positive (seconds)")
    check("env.workers", config.env.workers == "auto" or config.env.workers >= 0, "must be auto or at least 0")
    check("env.worker_timeout", 0 < config.env.worker_timeout < math.inf, "must be positive and finite (seconds)")
    check("env.action_limit", config.env.action_limit is None or 0 < config.env.action_limit < math.inf,
          "must be positive and finite")  # fmt: skip
    check("env.episode_limit", config.env.episode_limit is None or config.env.episode_limit >= 1, "must be at least 1")
    check("name", config.name is None or (config.name not in ("", ".", "..") and "/" not in config.name),
          "must be a plain folder name without '/'")  # fmt: skip
    check("total_steps", config.total_steps >= config.env.num_envs,
          f"must be at least one interaction of env.num_envs = {config.env.num_envs}")  # fmt: skip
    if config.algo == PPO:
        ppo_config.check_ranges(config.ppo, config.env.num_envs, check)
        return config
    _check_sac(config, check)
    return config


def _check_sac(config: Config, check: Check) -> None:
    """`check(path, ok, allowed)` for what only this algorithm has."""
    replay, learner = config.replay, config.learner
    check("total_steps", config.total_steps > config.learning_starts,
          f"must be above learning_starts = {config.learning_starts}, or nothing is learned")  # fmt: skip
    need = (replay.n_step + 1) * config.env.num_envs
    check("learning_starts", config.learning_starts >= need,
          f"must be at least (replay.n_step + 1) * env.num_envs = {need}")  # fmt: skip
    check("replay.capacity", replay.capacity >= need,
          f"must be at least (replay.n_step + 1) * env.num_envs = {need}")  # fmt: skip
    check("replay.capacity", replay.capacity < 2**31, "must be below 2147483648")
    check("replay.final_slots", replay.final_slots == 0 or replay.final_slots >= config.env.num_envs,
          f"must be 0 (automatic) or at least env.num_envs = {config.env.num_envs}")  # fmt: skip
    check("replay.decay_steps", abs(replay.decay_steps) < 2**24, "must lie between -16777215 and 16777215")
    check("replay.weight_floor", 0 < replay.weight_floor <= 1, "must be above 0 and at most 1")
    for path in ("learner.actor_blocks", "learner.critic_blocks"):
        check(path, getattr(learner, path.split(".")[1]) in (1, 2, 3), "must be 1, 2 or 3")
    check("learner.critics", learner.critics in (1, 2), "must be 1 or 2")
    check("learner.atoms", learner.atoms >= 2, "must be at least 2")
    check("learner.gamma", 0 <= learner.gamma < 1, "must be at least 0 and below 1")
    check("learner.tau", 0 < learner.tau <= 1, "must be above 0 and at most 1")
    for name in ("value_limit", "learning_rate", "final_learning_rate", "initial_alpha", "target_std"):
        check(f"learner.{name}", 0 < getattr(learner, name) < math.inf, "must be positive and finite")


def override(config: Config, settings: Mapping[str, Any], where: str = "settings") -> Config:
    """The config with some fields replaced; nested ones as mappings: {"replay": {"batch_size": 256}}."""

    def merge(base: Any, changes: Any, path: str) -> Any:
        if not isinstance(changes, Mapping):
            raise UserError(f"{where}: {path.rstrip('.')} must be a mapping")
        hints = typing.get_type_hints(type(base))
        values = {}
        for name, value in changes.items():
            if name not in hints:
                raise UserError(f"{where}: unknown setting {path}{name}")
            if dataclasses.is_dataclass(hints[name]):
                values[name] = merge(getattr(base, name), value, f"{path}{name}.")
            else:
                listed = list(value) if isinstance(value, tuple) else value
                values[name] = _typed(hints[name], listed, where, path + name)
        return dataclasses.replace(base, **values)

    return validate(merge(config, settings, ""))


def to_json(config: Config) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str, where: str) -> Config:
    """The config of a saved run; `where` names the file in errors."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not a config file ({error})") from None
    config = _build(Config, _with_schedule(data), where)
    try:
        return validate(config)
    except ConfigError as error:
        raise UserError(f"{error} (in {where})") from None


def _with_schedule(data: Any) -> Any:
    """Runs of earlier versions keep the learning-rate schedule that they were started with, and did not record."""
    learner = data.get("learner") if isinstance(data, Mapping) and data.get("algo", "sac") != PPO else None
    if isinstance(learner, Mapping) and "final_learning_rate" in learner and "schedule" not in learner:
        return {**data, "learner": {**learner, "schedule": "shared"}}
    return data


def _build(cls: type, data: Any, where: str, path: str = "") -> Any:
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: {path.rstrip('.') or 'config'} must be an object")
    hints = typing.get_type_hints(cls)  # without the command line's annotations
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise UserError(f"{where}: unknown setting {path + unknown[0]}: this version has no such field")
    values = {}
    for name, value in data.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _build(typing.cast(type, hint), value, where, f"{path}{name}.")
        else:
            values[name] = _typed(hint, value, where, path + name)
    return cls(**values)


def whole_number(text: str) -> int:
    """1000000, 1_000_000 or 1e6; a ValueError for what is no whole number."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number.is_integer():
        raise ValueError(f"{text} is not a whole number")
    return int(number)


def _typed(hint: Any, value: Any, where: str, path: str) -> Any:
    """The value as the field's type (lists become tuples, ints stand for floats, 1e6 for an int), or a clear error."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        kinds = [kind for kind in args if kind is not type(None)]
        for kind in kinds:
            try:
                return _typed(kind, value, where, path)
            except ConfigError:
                if len(kinds) == 1:
                    raise
        names = (", ".join(map(str, typing.get_args(kind))) or f"of type {kind.__name__}" for kind in kinds)
        raise ConfigError(path, value, f"must be {' or '.join(names)} (in {where})")
    if origin is Literal:
        if value not in args:
            raise ConfigError(path, value, f"must be one of {', '.join(map(str, args))} (in {where})")
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_typed(args[0], item, where, path) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, origin or hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(path, value, f"must be of type {getattr(hint, '__name__', hint)} (in {where})")
    return value
