"""Options of a command from its words. A mistake becomes one line that names the option."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from warpsac.config.validation import check_ranges
from warpsac.errors import UserError

try:  # tyro's structured errors, a private module since 1.0.14; without it tyro prints its own, of several lines
    from tyro._errors import on_parse_error
except ImportError:
    on_parse_error: Any = lambda hook: contextlib.nullcontext()  # type: ignore[no-redef]

Options = TypeVar("Options")
RULES = ConstructorRegistry()


def parse(options: type[Options], words: list[str], command: str, *, foreign: str = "", **more: Any) -> Options:
    """An object of type `options` from the words after the command; --help prints and ends the program.

    `foreign`: why words that are no options of the command are refused, where a suggestion would not help.
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
    """An error event of tyro as one line; None for an unknown kind of event, which tyro then prints itself."""
    argument: Any = getattr(event, "argument", None)
    name = argument.display_name().split("/")[-1] if argument else event.prog
    match type(event).__name__:
        case "UnrecognizedArgs":
            unknown = next((word.partition("=")[0] for word in event.tokens if word.startswith("-")), None)
            if unknown is None:
                return f"unexpected argument: {event.tokens[0]}"
            meant = _closest(unknown.replace("_", "-"), list(_names(options)))
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
    raise ValueError(f"{text} is not a whole number")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text} is not a number") from None


def _whole_numbers(words: list[str]) -> tuple[int, ...]:
    try:
        return tuple(map(whole_number, words))
    except ValueError as error:
        raise ValueError(f"{error}; separate several values by spaces") from None


READERS: dict[Any, tuple[str, int | Literal["*"], Callable[[list[str]], Any]]] = {  # of a type: metavar, words, reader
    int: ("INT", 1, lambda words: whole_number(words[0])),
    float: ("FLOAT", 1, lambda words: _number(words[0])),
    str: ("STR", 1, lambda words: words[0]),
    tuple[int, ...]: ("[INT [INT ...]]", "*", _whole_numbers),
    tuple[str, ...]: ("[STR [STR ...]]", "*", tuple),
    tuple[float, float, float]: ("FLOAT FLOAT FLOAT", 3, lambda words: tuple(map(_number, words))),
}


def _plain(hint: Any) -> Any:
    """Without annotations, and without typing.Tuple, which tyro makes of a tuple of fixed length."""
    if typing.get_origin(hint) is tuple:
        return types.GenericAlias(tuple, typing.get_args(hint))
    return hint.__origin__ if typing.get_origin(hint) is Annotated else hint


@RULES.primitive_rule
def _rule(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """The types above, also in unions: `int | None` is shown as INT|None, `int | Literal["auto"]` as INT|auto."""
    members = typing.get_args(kind.type) if kind.type_origin in (typing.Union, types.UnionType) else [kind.type]
    plain = [_plain(hint) for hint in members]
    reader = next((READERS[hint] for hint in plain if hint in READERS), None)
    if reader is None:
        return None
    metavar, count, read = reader
    choices = [word for hint in plain if typing.get_origin(hint) is Literal for word in typing.get_args(hint)]
    constants = dict(zip(choices, choices)) | ({"None": None} if types.NoneType in plain else {})

    def value_of(words: list[str]) -> Any:
        if len(words) == 1 and words[0] in constants:
            return constants[words[0]]
        try:
            return read(words)
        except ValueError as error:
            raise ValueError(", nor ".join([str(error), *map(repr, choices)])) from None

    def words_of(value: Any) -> list[str]:
        return list(map(str, value)) if isinstance(value, tuple) else [str(value)]

    return PrimitiveConstructorSpec(count, "|".join([metavar, *constants]), value_of, lambda value: True, words_of)
