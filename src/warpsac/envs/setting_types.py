"""What a setting of a task's own config may be: its kinds are type hints, found in its annotation or its present value.

Plain kinds are None, bool, int, float, text, literals, enums, and lists and tuples of these.
"""

from __future__ import annotations

import collections.abc
import contextlib
import enum
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from warpsac.config.loading import whole_number

ANYTHING = UNKNOWN = typing.Any  # as a kind; as an annotation
NONE = type(None)
SCALARS = (bool, int, float, str)
CODE = (type, collections.abc.Callable)
NO_VALUE = ("None", "none", "null")


def is_plain(value: Any) -> bool:
    """A number, text, None or a list of such."""
    if isinstance(value, list | tuple):
        return all(item is None or isinstance(item, SCALARS) for item in value)
    return value is None or isinstance(value, (*SCALARS, enum.Enum))


def plain(value: Any) -> Any:
    """As it is written to a JSON file."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def _is_data(value: Any) -> bool:
    """What a JSON file can hold."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_data(item) for key, item in value.items())
    return all(map(_is_data, value)) if isinstance(value, list | tuple) else is_plain(value)


def named(value: Any) -> str:
    """What kind of thing a value is, for messages."""
    known: dict[type, str] = {types.FunctionType: "a function", type: "a class", slice: "a slice"}
    return known.get(type(value), f"a value of type {type(value).__name__}")


# --- kinds


def kinds(value: Any, hint: Any, strict: bool) -> list[Any]:
    """What may stand in place of a value; empty if nothing can. `strict`: a whole number cannot become another."""
    members = _members(hint)
    if not is_plain(value) or any(one is type or typing.get_origin(one) in CODE for one in members):
        return []
    declared = [kind for member in members if (kind := _plain_kind(member)) is not None]
    present = [] if value is None else [_kind_of(value, strict)]
    if hint is UNKNOWN or hint is object:
        return present or [ANYTHING]
    if not all(any(_covers(kind, one) for kind in declared) for one in present):
        declared += present
    return declared if any(kind is not NONE for kind in declared) else []


def item_hint(hint: Any, kind: type) -> Any:
    """The annotation of the items of a dictionary, list or tuple."""
    for member in _members(hint):
        arguments = typing.get_args(member)
        if _is_kind(typing.get_origin(member), kind) and arguments:
            same = kind is dict or len(arguments) == 1 or arguments[1:] == (...,)
            return arguments[-1] if kind is dict else arguments[0] if same else UNKNOWN
    return UNKNOWN


def _is_kind(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(kind, origin)


def _members(hint: Any) -> list[Any]:
    """The members of a union, annotations taken off."""
    while typing.get_origin(hint) in (typing.Annotated, typing.ClassVar) or hasattr(hint, "__value__"):
        hint = getattr(hint, "__value__", None) or typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [inner for member in typing.get_args(hint) for inner in _members(member)]
    return [hint]


def _plain_kind(member: Any) -> Any:
    """The member if it is a plain kind, else None."""
    if member is None or member is NONE:
        return NONE
    if member in SCALARS or typing.get_origin(member) is Literal:
        return member
    if isinstance(member, type) and issubclass(member, enum.Enum):
        return member
    origin, arguments = typing.get_origin(member), typing.get_args(member)
    if origin in (list, tuple, collections.abc.Sequence) and arguments:
        items = [one for one in arguments if one is not ...]
        if all(any(_plain_kind(inner) not in (None, NONE) for inner in _members(one)) for one in items):
            kept = list if origin is list else tuple
            variable = kept is tuple and (origin is not tuple or ... in arguments)
            return types.GenericAlias(kept, (arguments[0], ...) if variable else arguments)
    return None


def _kind_of(value: Any, strict: bool = False) -> Any:
    """The kind of a present value: numbers in a list keep their count, names do not."""
    if isinstance(value, list | tuple):
        kept = list if isinstance(value, list) else tuple
        if not value or any(isinstance(item, str) for item in value):
            items: tuple[Any, ...] = (str if value else ANYTHING,)
            return types.GenericAlias(kept, items if kept is list else (*items, ...))
        return types.GenericAlias(kept, tuple(_kind_of(item) for item in value))
    if type(value) is int and not strict:
        return int | float
    return next((kind for kind in SCALARS if isinstance(value, kind)), type(value))


def _covers(declared: Any, present: Any) -> bool:
    if typing.get_origin(declared) is Literal:
        return typing.get_origin(present) is None
    if present == int | float:
        return declared in (int, float)
    return declared == present or typing.get_origin(declared) is typing.get_origin(present) is not None


# --- values


def fit(wanted: Sequence[Any], value: Any) -> Any:
    """A value from a program or a file as the first kind that it fits (1 is a float too, a list a tuple)."""
    return _first(wanted, value, _fit_one)


def read(wanted: Sequence[Any], words: Sequence[str]) -> Any:
    """The same from the words of a command: one for a value, several (or one with commas) for a list."""
    if len(words) == 1:
        with contextlib.suppress(ValueError):
            return _first(wanted, words[0], _read_one)
        words = [word for word in words[0].strip("()[]").split(",") if word.strip()]
    return _first(wanted, [word.strip() for word in words], _read_one)


def _first(wanted: Sequence[Any], value: Any, convert: Any) -> Any:
    members = [member for kind in wanted for member in _members(kind)]
    for kind in sorted(members, key=lambda kind: (kind is ANYTHING, kind is str, kind is float)):
        with contextlib.suppress(ValueError):
            return _sequence(kind, value, convert) if typing.get_origin(kind) in (list, tuple) else convert(kind, value)
    raise ValueError


def _sequence(kind: Any, value: Any, convert: Any) -> Any:
    arguments = typing.get_args(kind)
    if not isinstance(value, list | tuple):
        raise ValueError
    variable = arguments[-1] is ... or (typing.get_origin(kind) is list and len(arguments) == 1)
    if not variable and len(value) != len(arguments):
        raise ValueError
    items = [arguments[0]] * len(value) if variable else arguments
    return typing.get_origin(kind)(_first([item], one, convert) for item, one in zip(items, value, strict=True))


def _fit_one(kind: Any, value: Any) -> Any:
    if typing.get_origin(kind) is Literal and value in typing.get_args(kind):
        return value
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum_member(kind, value)
    if kind is ANYTHING and _is_data(value):
        return value
    if kind is float and type(value) in (int, float) and not math.isnan(value):
        return float(value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    if kind in (NONE, bool, int, str) and type(value) is kind:
        return value
    raise ValueError


def _read_one(kind: Any, word: Any) -> Any:
    if not isinstance(word, str):
        if kind is ANYTHING:
            return [_first([ANYTHING], one, _read_one) for one in word]
        raise ValueError
    if typing.get_origin(kind) is Literal:
        found = [choice for choice in typing.get_args(kind) if str(choice) == word]
        if not found:
            raise ValueError
        return found[0]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum_member(kind, word)
    if kind is ANYTHING:
        return _first([NONE, bool, int, float, str], word, _read_one)
    if kind is NONE and word in NO_VALUE:
        return None
    if kind is bool and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if kind is int:
        return whole_number(word) if set("eE.") & set(word) else int(word)
    if kind is float and not math.isnan(number := float(word)):
        return number
    if kind is str:
        return word
    raise ValueError


def _enum_member(kind: type[enum.Enum], value: Any) -> enum.Enum:
    for member in kind:
        if value is member or value in (member.name, member.value) or str(member.value) == value:
            return member
    raise ValueError


def describe(wanted: Sequence[Any]) -> str:
    """What is allowed, in words."""
    members = [member for kind in wanted for member in _members(kind)]
    words = [_in_words(kind) for kind in members if not (kind is int and float in members)]
    return " or ".join(dict.fromkeys(sorted(words, key=lambda word: word == "None")))


def _in_words(kind: Any) -> str:
    known = {NONE: "None", bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(member.name for member in kind)
    if typing.get_origin(kind) in (list, tuple):
        arguments = [one for one in typing.get_args(kind) if one is not ...]
        items = {"true or false": "switches (true or false)", "a whole number": "whole numbers", "a number": "numbers",
                 "text": "words"}.get(describe(arguments[:1]), "values")  # fmt: skip
        variable = ... in typing.get_args(kind) or (typing.get_origin(kind) is list and len(arguments) == 1)
        return (
            f"a list of {items}"
            if variable
            else f"{len(arguments)} {items if len(arguments) > 1 else items.removesuffix('s')}"
        )
    return known.get(kind, "a value")
