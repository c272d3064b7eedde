"""Configs that hold: the range of every setting, the rules between them; configs from JSON files and mappings."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from warpsac.config.profiles import PROFILES, VARIANTS, wrong_variant
from warpsac.config.schema import PPO, Algo, Config, Constraint, LearnerConfig, PpoConfig, ReplayConfig
from warpsac.errors import ConfigError, UserError

Rule = tuple[str, bool, str]  # the setting, whether it holds, what is allowed


def validate(config: Config) -> Config:
    """The config, shorthands expanded; a ConfigError for the first invalid setting."""
    _require(config, _algorithm_rules(config))
    check_ranges(config)
    config = _expanded(config)
    _require(config, itertools.chain(_rules(config), _ppo_rules(config) if config.algo == PPO else _sac_rules(config)))
    return config


def check_ranges(settings: Any, prefix: str = "") -> None:
    """Raise a ConfigError for the first field of a dataclass, nested ones included, that is out of its range."""
    for name, hint in typing.get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{prefix}{name}.")
        elif value is not None:
            for constraint in _declared(hint):
                if not constraint.holds(value):
                    raise ConfigError(prefix + name, value, constraint.allowed)


def _declared(hint: Any) -> Iterator[Constraint]:
    """The constraints in a type, also in a member of a union: `Count | None`."""
    if isinstance(hint, Constraint):
        yield hint
    for part in typing.get_args(hint):
        yield from _declared(part)


def _require(config: Config, rules: Iterator[Rule]) -> None:
    for path, holds, allowed in rules:
        if not holds:
            raise ConfigError(path, functools.reduce(getattr, path.split("."), config), allowed)


def _algorithm_rules(config: Config) -> Iterator[Rule]:
    """Names that exist, and no setting of the other algorithm: it would have no effect."""
    yield "algo", config.algo in typing.get_args(Algo), f"must be one of {', '.join(typing.get_args(Algo))}"
    if config.algo == PPO:
        yield "variant", config.variant == PPO, wrong_variant(config.variant)
        unused = {"learning_starts": 0, "updates_per_step": 1, "overlap": True}
        unused |= _defaults("replay", ReplayConfig()) | _defaults("learner", LearnerConfig())
    else:
        yield "variant", config.variant in VARIANTS, f"must be one of {', '.join(VARIANTS)}"
        unused = _defaults("ppo", PpoConfig())
    for path, default in unused.items():
        value = functools.reduce(getattr, path.split("."), config)
        yield path, value == default, f"has no effect with algo {config.algo}: leave it out"
    yield "profile", config.profile in PROFILES, f"must be one of {', '.join(PROFILES)}"


def _defaults(section: str, settings: Any) -> dict[str, Any]:
    return {f"{section}.{field.name}": getattr(settings, field.name) for field in dataclasses.fields(settings)}


def _expanded(config: Config) -> Config:
    """The config without shorthands: what they set is what gets recorded."""
    blocks = config.learner.blocks
    if blocks is None:
        return config
    for name in ("actor_blocks", "critic_blocks"):
        given = getattr(config.learner, name)
        if given not in (blocks, getattr(LearnerConfig(), name)):
            raise ConfigError("learner.blocks", blocks, f"also sets {name}, which is {given}: leave one of them out")
    learner = dataclasses.replace(config.learner, blocks=None, actor_blocks=blocks, critic_blocks=blocks)
    return dataclasses.replace(config, learner=learner)


def _rules(config: Config) -> Iterator[Rule]:
    total, envs = config.total_steps, config.env.num_envs
    yield ("stop_at", config.stop_at is None or config.stop_at <= total,
           f"the schedule ends at total_steps = {total}; to go further, start again with more")  # fmt: skip
    yield "total_steps", total >= envs, f"must be at least one interaction of env.num_envs = {envs}"


def _sac_rules(config: Config) -> Iterator[Rule]:
    replay, envs = config.replay, config.env.num_envs
    need = (replay.n_step + 1) * envs
    enough = f"must be at least (replay.n_step + 1) * env.num_envs = {need}"
    yield ("total_steps", config.total_steps > config.learning_starts,
           f"must be above learning_starts = {config.learning_starts}, or nothing is learned")  # fmt: skip
    yield "learning_starts", config.learning_starts >= need, enough
    yield "replay.capacity", replay.capacity >= need, enough
    yield ("replay.final_slots", replay.final_slots == 0 or replay.final_slots >= envs,
           f"must be 0 (automatic) or at least env.num_envs = {envs}")  # fmt: skip


def _ppo_rules(config: Config) -> Iterator[Rule]:
    samples, minibatches = config.ppo.rollout_steps * config.env.num_envs, config.ppo.minibatches
    yield ("ppo.minibatches", samples % minibatches == 0,
           f"must divide ppo.rollout_steps * env.num_envs = {samples}")  # fmt: skip
    yield ("ppo.minibatches", samples // minibatches >= 2,
           f"must leave at least 2 of the {samples} steps of a rollout to a minibatch")  # fmt: skip


# --- configs from mappings and files


def override(config: Config, settings: Mapping[str, Any], where: str = "settings") -> Config:
    """The config with some settings replaced; nested ones as mappings: {"replay": {"batch_size": 256}}."""
    return validate(_merged(config, settings, where))


def to_json(config: Config) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str, where: str) -> Config:
    """The config of a saved run; `where` names the file in errors."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not a config file ({error})") from None
    config = _merged(Config(), _with_schedule(data), where)
    try:
        return validate(config)
    except ConfigError as error:
        raise UserError(f"{error} (in {where})") from None


def _with_schedule(data: Any) -> Any:
    """Runs of earlier versions keep the learning-rate schedule that they started with, and did not record."""
    learner = data.get("learner") if isinstance(data, Mapping) and data.get("algo", "sac") != PPO else None
    if isinstance(learner, Mapping) and "final_learning_rate" in learner and "schedule" not in learner:
        return {**data, "learner": {**learner, "schedule": "shared"}}
    return data


def _merged(base: Any, changes: Any, where: str, path: str = "") -> Any:
    """The settings with those of `changes` in their place, each of the type that its field declares."""
    if not isinstance(changes, Mapping):
        raise UserError(f"{where}: {path.rstrip('.') or 'config'} must be a mapping")
    hints = typing.get_type_hints(type(base))
    values = {}
    for name, value in changes.items():
        if name not in hints:
            raise UserError(f"{where}: unknown setting {path}{name}: this version has no such field")
        if dataclasses.is_dataclass(hints[name]):
            values[name] = _merged(getattr(base, name), value, where, f"{path}{name}.")
        else:
            values[name] = _typed(hints[name], value, where, path + name)
    return dataclasses.replace(base, **values)


def _typed(hint: Any, value: Any, where: str, path: str) -> Any:
    """The value as the field's type (lists become tuples, ints stand for floats, 1e6 for an int), or a ConfigError."""
    names = []
    for kind in typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else [hint]:
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if origin is tuple and isinstance(value, list | tuple):
            return tuple(_typed(args[0], item, where, path) for item in value)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if kind is int and isinstance(value, float) and value.is_integer():
            return int(value)
        if origin is Literal:
            fits, name = value in args, ("one of " if len(args) > 1 else "") + ", ".join(args)
        else:
            fits = isinstance(value, origin or kind) and not (kind is int and isinstance(value, bool))
            name = f"of type {kind.__name__}"
        if fits:
            return value
        if kind is not types.NoneType:
            names.append(name)
    raise ConfigError(path, value, f"must be {' or '.join(names)} (in {where})")
