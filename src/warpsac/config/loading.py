"""Settings that hold, wherever they come from: JSON files, mappings, the command line.

Every setting is checked against its declared range and the rules between settings; a mistake becomes one line that
names the setting or option.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import itertools
import json
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from warpsac.config.arms import arms_of
from warpsac.config.profiles import FAST, PROFILES, VARIANTS, wrong_variant
from warpsac.config.schema import (
    AUTO,
    CALIBRATED,
    PPO,
    Algo,
    AutoConfig,
    Config,
    Constraint,
    LearnerConfig,
    PpoConfig,
    ReplayConfig,
)
from warpsac.errors import ConfigError, UserError, shortened

try:  # tyro's structured errors, a private module since 1.0.14; without it tyro prints its own, of several lines
    from tyro._errors import on_parse_error
except ImportError:
    on_parse_error: Any = lambda hook: contextlib.nullcontext()  # type: ignore[no-redef]

OF_EACH_ARM = ("projection", "norm_cap", "critics", "pessimism")  # settings of the learner
Rule = tuple[str, bool, str]  # the setting, whether it holds, what is allowed
Options = TypeVar("Options")
RULES = ConstructorRegistry()


def validate(config: Config) -> Config:
    """The config, shorthands expanded; a ConfigError for the first invalid setting."""
    _require(config, _algorithm_rules(config))
    check_ranges(config)
    config = _expanded(config)
    if config.variant == AUTO:
        arms_of(config)
    _require(config, itertools.chain(_rules(config), _ppo_rules(config) if config.algo == PPO else _sac_rules(config)))
    return config


def check_ranges(settings: Any, prefix: str = "") -> None:
    """Raise a ConfigError for the first field of a dataclass, nested ones included, that is out of its range."""
    for name, hint in _hints(typing.cast(Any, type(settings)), extras=True).items():
        value = getattr(settings, name)
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{prefix}{name}.")
        elif value is not None:
            for constraint in _declared(hint):
                if not constraint.holds(value):
                    raise ConfigError(prefix + name, value, constraint.allowed)


@functools.cache
def _hints(kind: type, extras: bool = False) -> Mapping[str, Any]:
    """The types of a dataclass's fields: working them out takes longer than all checks of a config."""
    return typing.get_type_hints(kind, include_extras=extras)


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
        unused = {"devices": 1, "learning_starts": 0, "updates_per_step": 1, "overlap": True}
        unused |= _defaults("replay", ReplayConfig()) | _defaults("learner", LearnerConfig())
    else:
        known = (*VARIANTS, AUTO)
        yield "variant", config.variant in known, f"must be one of {', '.join(known)}"
        unused = _defaults("ppo", PpoConfig())
    for path, default in unused.items():
        value = functools.reduce(getattr, path.split("."), config)
        yield path, value == default, f"has no effect with algo {config.algo}: leave it out"
    if config.variant == AUTO:
        axes = {f"learner.{name}": getattr(LearnerConfig(), name) for name in OF_EACH_ARM}
        only = "is a setting of each arm: see --auto.arms"
    else:
        axes, only = _defaults("auto", AutoConfig()), f"has no effect with variant {config.variant}: leave it out"
    for path, default in axes.items():
        yield path, functools.reduce(getattr, path.split("."), config) == default, only
    profiles = f"must be one of {', '.join(PROFILES)}; {FAST} goes with a task alone, once"
    yield "profile", config.profile in PROFILES, profiles


def _defaults(section: str, settings: Any) -> dict[str, Any]:
    return {f"{section}.{field.name}": getattr(settings, field.name) for field in dataclasses.fields(settings)}


def _expanded(config: Config) -> Config:
    """The config without shorthands: what they set is what gets recorded."""
    if config.env.motion is not None:  # a run may be resumed from another folder
        env = dataclasses.replace(config.env, motion=absolute(config.env.motion))
        config = dataclasses.replace(config, env=env)
    blocks = config.learner.blocks
    if blocks is None:
        return config
    for name in ("actor_blocks", "critic_blocks"):
        given = getattr(config.learner, name)
        if given not in (blocks, getattr(LearnerConfig(), name)):
            raise ConfigError("learner.blocks", blocks, f"also sets {name}, which is {given}: leave one of them out")
    learner = dataclasses.replace(config.learner, blocks=None, actor_blocks=blocks, critic_blocks=blocks)
    return dataclasses.replace(config, learner=learner)


def absolute(path: str) -> str:
    """As paths are recorded and compared; the file system is not asked."""
    return os.path.abspath(os.path.expanduser(path))


def _rules(config: Config) -> Iterator[Rule]:
    total, envs = config.total_steps, config.env.num_envs
    yield ("stop_at", config.stop_at is None or config.stop_at <= total,
           f"must be at most total_steps = {total}, where the schedule ends; raise it, or --stop-at none")  # fmt: skip
    for name, usual in (("init_step", "last"), ("init_with", ())):
        yield name, config.init_from is not None or getattr(config, name) == usual, "needs init_from, a run folder"
    yield "total_steps", total >= envs, f"must be at least one interaction of env.num_envs = {envs}"


def _sac_rules(config: Config) -> Iterator[Rule]:
    replay, envs = config.replay, config.env.num_envs
    yield ("learner.pessimism", config.learner.pessimism != CALIBRATED or config.learner.critics == 2,
           "lies between two critics: needs learner.critics = 2")  # fmt: skip
    yield ("learner.norm_cap", config.learner.norm_cap == 1 or config.learner.projection,
           "has no effect without learner.projection: leave it out")  # fmt: skip
    need = config.least_transitions
    enough = f"must be at least (replay.n_step + 1) * env.num_envs = {need}"
    yield ("total_steps", config.total_steps > config.learning_starts,
           f"must be above learning_starts = {config.learning_starts}, or nothing is learned")  # fmt: skip
    yield ("init_from", config.init_from is None or config.variant != AUTO,
           "starts a single learner: name another variant than auto")  # fmt: skip
    yield "learning_starts", config.learning_starts >= need, enough
    yield "replay.capacity", replay.capacity >= need, enough
    yield ("replay.final_slots", replay.final_slots == 0 or replay.final_slots >= envs,
           f"must be 0 (automatic) or at least env.num_envs = {envs}")  # fmt: skip


def _ppo_rules(config: Config) -> Iterator[Rule]:
    yield "init_with", set(config.init_with) <= {"reward-scale"}, "must be reward-scale alone with algo ppo"
    samples, minibatches = config.ppo.rollout_steps * config.env.num_envs, config.ppo.minibatches
    yield ("ppo.minibatches", samples % minibatches == 0,
           f"must divide ppo.rollout_steps * env.num_envs = {samples}")  # fmt: skip
    yield ("ppo.minibatches", samples // minibatches >= 2,
           f"must leave at least 2 of the {samples} steps of a rollout to a minibatch")  # fmt: skip


# --- configs from mappings and files


def override(config: Config, settings: Mapping[str, Any], where: str = "settings") -> Config:
    """The config with some settings replaced; nested ones as mappings: {"replay": {"batch_size": 256}}."""
    return validate(merged(config, settings, where))


def to_json(config: Config) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str, where: str) -> Config:
    """The config of a saved run; `where` names the file in errors."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not a config file ({error})") from None
    config = merged(Config(), _with_schedule(data), where)
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


def merged(base: Any, changes: Any, where: str, path: str = "") -> Any:
    """The settings with those of `changes` in their place, each of the type that its field declares."""
    if not isinstance(changes, Mapping):
        raise UserError(f"{where}: {path.rstrip('.') or 'config'} must be a mapping")
    hints = _hints(typing.cast(Any, type(base)))
    values = {}
    for name, value in changes.items():
        if name not in hints:
            meant = _closest(f"--{path}{name}".replace("_", "-"), list(_names(Config)))
            hint = f"; did you mean {meant.lstrip('-').replace('-', '_')}?" if meant else ""
            raise UserError(f"{where}: unknown setting {path}{name}: this version has no such field{hint}")
        if dataclasses.is_dataclass(hints[name]):
            values[name] = merged(getattr(base, name), value, where, f"{path}{name}.")
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
        number = isinstance(value, numbers.Real) and not isinstance(value, bool)  # NumPy's too
        if number and kind is float:
            return float(value)
        if number and kind is int and (isinstance(value, numbers.Integral) or float(value).is_integer()):
            return int(value)
        if origin is Literal:
            fits, name = value in args, ("one of " if len(args) > 1 else "") + ", ".join(args)
        else:
            fits = kind not in (int, float) and isinstance(value, origin or kind)
            name = f"of type {kind.__name__}"
        if fits:
            return value
        if kind is not types.NoneType:
            names.append(name)
    raise ConfigError(path, value, f"must be {' or '.join(names)} (in {where})")


# --- the command line


def parse(
    options: type[Options],
    words: list[str],
    command: str,
    *,
    foreign: str = "",
    beside: Sequence[str] = (),
    **more: Any,
) -> Options:
    """An object of type `options` from the words after the command; --help prints and ends the program.

    `foreign`: why words that are no options of the command are refused, where a suggestion would not help.
    `beside`: options that were taken out of the words already, which may have been meant too.
    """

    def refuse(event: Any) -> None:
        if foreign and type(event).__name__ == "UnrecognizedArgs":
            raise UserError(f"{' '.join(event.tokens)}: {foreign}")
        if line := _mistake(event, [*_names(options), *beside]):
            raise UserError(f"{line} (see {command} --help)")

    with on_parse_error(refuse):
        parsed = tyro.cli(options, args=words, prog=command, registry=RULES, **more)
    check_ranges(parsed)
    return parsed


def _mistake(event: Any, options: list[str]) -> str | None:
    """An error event of tyro as one line; None for an unknown kind of event, which tyro then prints itself."""
    argument: Any = getattr(event, "argument", None)
    name = argument.display_name().split("/")[-1] if argument else event.prog
    match type(event).__name__:
        case "UnrecognizedArgs":
            unknown = next((word.partition("=")[0] for word in event.tokens if word.startswith("-")), None)
            if unknown is None:
                return f"unexpected argument: {event.tokens[0]}"
            meant = _closest(unknown.replace("_", "-"), options)
            return f"unknown option: {unknown}" + (f"; did you mean {meant}?" if meant else "")
        case "MissingArgs":
            missing = [entry.arg for entry in event.missing_arguments]
            names = [arg.lowered.metavar if arg.is_positional() else arg.display_name() for arg in missing]
            return f"missing: {', '.join(names)}"
        case "BadValue":
            count = argument.lowered.nargs
            return f"{name}: needs {'a value' if count == 1 else f'{count} values'}"
        case "InvalidChoice":
            return f"{name}: {event.value} is not one of {', '.join(event.choices)}"
        case "InstantiationFailure":
            return f"{name}: {event.message}"
    return None


def _names(options: type, group: str = "") -> Iterator[str]:
    """Every option; a switch also in its negative form."""
    for name, hint in typing.get_type_hints(options).items():
        if dataclasses.is_dataclass(hint):
            yield from _names(typing.cast(type, hint), f"{group}{name}.")
        else:
            for no in ("", "no-") if hint is bool else ("",):
                yield f"--{group}{no}{name}".replace("_", "-")


def _closest(word: str, names: list[str]) -> str | None:
    """The option that was probably meant: --learner.lr is --learner.learning-rate, --batch is --replay.batch-size."""
    group, _, asked = word.lstrip("-").rpartition(".")

    def closeness(name: str) -> tuple[float, float]:
        own_group, _, own = name.lstrip("-").rpartition(".")
        likeness = difflib.SequenceMatcher(a=asked, b=own).ratio()
        if asked in (own, "".join(part[0] for part in own.split("-"))):
            likeness = 1.0
        elif len(asked) >= 3 and (own.startswith(asked) or own.endswith(asked)):
            likeness = max(likeness, 0.9)
        return likeness, difflib.SequenceMatcher(a=group, b=own_group).ratio()

    best = max(names, key=closeness, default="")
    return best if best and closeness(best)[0] >= 0.75 else None


# --- values, with messages of one line


def whole_number(text: str) -> int:
    """1000000, 1_000_000 or 1e6; a ValueError for anything that is not a whole number."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if float(text).is_integer():
            return int(float(text))
    raise ValueError(f"{shortened(text)} is not a whole number")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{shortened(text)} is not a number") from None


def _whole_numbers(words: list[str]) -> tuple[int, ...]:
    try:
        return tuple(map(whole_number, words))
    except ValueError as error:
        raise ValueError(f"{error}; separate several values by spaces") from None


NONE = "none"  # how --help shows a setting that is not set, and what unsets it
READERS: dict[Any, tuple[str, int | Literal["*"], Callable[[list[str]], Any]]] = {  # of a type: metavar, words, reader
    int: ("INT", 1, lambda words: whole_number(words[0])),
    float: ("FLOAT", 1, lambda words: _number(words[0])),
    str: ("STR", 1, lambda words: words[0]),
    tuple[int, ...]: ("INT ...", "*", _whole_numbers),
    tuple[str, ...]: ("STR ...", "*", tuple),
    tuple[float, float, float]: ("FLOAT FLOAT FLOAT", 3, lambda words: tuple(map(_number, words))),
}


def _plain(hint: Any) -> Any:
    """Without annotations, and without typing.Tuple, which tyro makes of a tuple of fixed length."""
    if typing.get_origin(hint) is tuple:
        return types.GenericAlias(tuple, typing.get_args(hint))
    return hint.__origin__ if typing.get_origin(hint) is Annotated else hint


@RULES.primitive_rule
def _rule(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """The types above, also in unions: `int | Literal["auto"]` is shown as INT|auto, `int | None` as INT; none unsets
    it."""
    members = typing.get_args(kind.type) if kind.type_origin in (typing.Union, types.UnionType) else [kind.type]
    plain = [_plain(hint) for hint in members]
    reader = next((READERS[hint] for hint in plain if hint in READERS), None)
    if reader is None:
        return None
    metavar, count, read = reader
    choices = [word for hint in plain if typing.get_origin(hint) is Literal for word in typing.get_args(hint)]
    constants = dict(zip(choices, choices))
    unset: dict[str, Any] = {NONE: ()} if count == "*" else {}
    unset |= dict.fromkeys((NONE, "None")) if types.NoneType in plain else {}

    def value_of(words: list[str]) -> Any:
        if len(words) == 1 and words[0] in constants | unset:
            return (constants | unset)[words[0]]
        try:
            return read(words)
        except ValueError as error:
            raise ValueError(", nor ".join([str(error), *map(repr, choices)])) from None

    def words_of(value: Any) -> list[str]:
        if value is None or value == ():
            return [NONE]
        return list(map(str, value)) if isinstance(value, tuple) else [str(value)]

    return PrimitiveConstructorSpec(count, "|".join([metavar, *constants]), value_of, lambda value: True, words_of)
