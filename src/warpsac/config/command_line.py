"""Options of a command from its words. A mistake becomes one line that names the option."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from warpsac.config.constraints import check_ranges
from warpsac.errors import UserError

try:  # tyro's structured errors, a private module since 1.0.14; without it tyro prints its own, of several lines
    from tyro._errors import on_parse_error
except ImportError:
    on_parse_error = lambda hook: contextlib.nullcontext()  # type: ignore[assignment]

Options = TypeVar("Options")
RULES = ConstructorRegistry()


def parse(options: type[Options], words: list[str], command: str, *, foreign: str = "", **more: Any) -> Options:
    """An object of type `options` from the words after the command; --help prints and ends the program.

    `foreign`: why words that are no option of the command are refused, where a suggestion would not help.
    """

    def refuse(event: Any) -> None:
        if foreign and type(event).__name__ == "UnrecognizedArgs":
            raise UserError(f"{' '.join(event.tokens)}: {foreign}")
        if line := _mistake(event, options):
            raise UserError(f"{line} (see {command} --help)")

    with on_parse_error(refuse):
        parsed = tyro.cli(options, args=words, prog=command, registry=RULES, **more)
    check_ranges(parsed)
    return parsed


def _mistake(event: Any, options: type) -> str | None:
    """One of tyro's error events as a line; None for an unknown kind of event, which tyro then prints itself."""
    argument = getattr(event, "argument", None)
    name = argument.display_name().split("/")[-1] if argument else event.prog
    match type(event).__name__:
        case "UnrecognizedArgs":
            unknown = [word.partition("=")[0] for word in event.tokens if word.startswith("-")]
            if not unknown:
                return f"unexpected argument: {event.tokens[0]}"
            meant = _closest(unknown[0].replace("_", "-"), list(_names(options)))
            return f"unknown option: {unknown[0]}" + (f"; did you mean {meant}?" if meant else "")
        case "MissingArgs":
            missing = [entry.arg for entry in event.missing_arguments]
            return f"missing: {', '.join(a.lowered.metavar if a.is_positional() else a.display_name() for a in missing)}"
        case "BadValue":
            count = argument.lowered.nargs
            return f"{name}: needs {'a value' if count == 1 else f'{count} values'}"
        case "InvalidChoice":
            return f"{name}: {event.value} is not one of {', '.join(event.choices)}"
        case "InstantiationFailure":
            return f"{name}: {event.message}"
    return None


def _names(options: type, group: str = "") -> Iterator[str]:
    """Every option, with its two forms where it is a switch."""
    for name, hint in typing.get_type_hints(options).items():
        if dataclasses.is_dataclass(hint):
            yield from _names(typing.cast(type, hint), f"{group}{name}.")
        else:
            forms = (name, f"no_{name}") if hint is bool else (name,)
            yield from (f"--{group}{form}".replace("_", "-") for form in forms)


def _closest(word: str, names: list[str]) -> str | None:
    """The option that was probably meant: --lr is --learner.learning-rate, --batch is --replay.batch-size."""
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


# --- values: tyro's own rules, but for what they say about mistakes


def whole_number(text: str) -> int:
    """1000000, 1_000_000 or 1e6; a ValueError for anything that is not a whole number."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError, OverflowError):
        if float(text).is_integer():
            return int(float(text))
    raise ValueError(f"{text} is not a whole number")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text} is not a number") from None


def _value(
    metavar: str, read: Callable[[list[str]], Any], nargs: int | Literal["*"] = 1
) -> PrimitiveConstructorSpec[Any]:
    def words_of(value: Any) -> list[str]:
        return list(map(str, value)) if isinstance(value, tuple) else [str(value)]

    return PrimitiveConstructorSpec(nargs, metavar, read, lambda value: True, words_of)


@RULES.primitive_rule
def _of_number(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    read = {int: whole_number, float: _number}.get(kind.type)
    return _value(kind.type.__name__.upper(), lambda words: read(words[0])) if read else None


@RULES.primitive_rule
def _of_tuple(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if kind.type != tuple[int, ...]:
        return None

    def read(words: list[str]) -> tuple[int, ...]:
        try:
            return tuple(map(whole_number, words))
        except ValueError as error:
            raise ValueError(f"{error}; separate several values by spaces") from None

    return _value("[INT [INT ...]]", read, "*")


@RULES.primitive_rule
def _of_union(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`int | None` and `int | Literal["auto"]`: shown as INT and INT|auto."""
    if kind.type_origin not in (typing.Union, types.UnionType):
        return None
    members = [hint for hint in typing.get_args(kind.type) if hint is not types.NoneType]
    literals = [word for hint in members if typing.get_origin(hint) is Literal for word in typing.get_args(hint)]
    (proper,) = (hint for hint in members if typing.get_origin(hint) is not Literal)
    spec: Any = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(proper, kind.markers))

    def read(words: list[str]) -> Any:
        if words == ["None"] and len(members) < len(typing.get_args(kind.type)):
            return None
        if len(words) == 1 and words[0] in literals:
            return words[0]
        try:
            return spec.instance_from_str(words)
        except ValueError as error:
            raise ValueError(", nor ".join([str(error), *map(repr, literals)])) from None

    return _value("|".join([spec.metavar, *literals]), read, spec.nargs)
