"""Changes of a task's own config: which settings there are, and how a few of them are replaced.

A config is whatever a simulator has: dataclasses, dictionaries (ConfigDicts too), lists and tuples, in each other. A
setting is named by its path, `rewards.action_rate_l2.weight`; items of lists by their number. Keys may hold dots
themselves, as patterns of joint names do. Keyword arguments of a class or function are a config too: `Keywords`.

    changes = checked(settings, {"rewards.action_rate_l2.weight": Words("-0.2")}, "My-Task")     # typed, plain data
    apply(settings, changes, "My-Task")
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from warpsac.envs import setting_types
from warpsac.errors import ConfigError, UserError

LISTED = 12  # names that a message lists at most
# Text that names code which a simulator would import: not to be set, a saved file must not import anything.
NAMES_CODE = re.compile(r"\w+(\.\w+)*:\w+")


class Words(list[str]):
    """A value as it was given on the command line."""


class Required:
    """In place of the default of an argument that has none."""

    def __repr__(self) -> str:
        return "(required)"


REQUIRED = Required()


class Keywords(dict[str, Any]):
    """Keyword arguments, name -> default; `hints`: what their annotations say; `more`: whether others are taken too."""

    hints: Mapping[str, Any]
    more: bool

    @classmethod
    def of(cls, *callables: Callable[..., Any], given: Mapping[str, Any], without: Iterable[str] = ()) -> Keywords:
        """The arguments of a class or function; of several, what the first passes on to the next as **keywords.

        `given` are defaults that replace the signature's own; `without` are arguments that are not the user's.
        """
        found, hints, more = {}, {}, True
        for inner, function in enumerate(_initialisers(callables)):
            if not more:
                break
            parameters, own_hints = _signature(function)
            more = parameters is None or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
            for name, one in (parameters or {}).items():
                if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) or name in found:
                    continue
                if one.default is not one.empty or not inner:  # an outer one passes the others by itself
                    found[name] = REQUIRED if one.default is one.empty else one.default
                    hints.update({name: own_hints[name]} if name in own_hints else {})
        made = cls({name: value for name, value in {**found, **given}.items() if name not in (*without, "self")})
        made.hints, made.more = hints, more
        return made


def _initialisers(callables: Iterable[Callable[..., Any]]) -> Iterator[Callable[..., Any]]:
    for one in callables:
        if inspect.isclass(one):
            yield from (vars(base)["__init__"] for base in one.__mro__[:-1] if "__init__" in vars(base))
        else:
            yield one


def _signature(function: Callable[..., Any]) -> tuple[Mapping[str, inspect.Parameter] | None, dict[str, Any]]:
    """The parameters, None if they cannot be known, and what their annotations mean."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return None, {}
    try:
        return parameters, typing.get_type_hints(function)
    except Exception:  # a name that is imported for type checkers only
        return parameters, {}


# --- what there is


@dataclasses.dataclass(frozen=True)
class _Place:
    """A value within a config."""

    path: str
    owner: Any
    key: Any
    value: Any
    hint: Any  # its annotation, `setting_types.UNKNOWN` if it has none

    @property
    def kinds(self) -> list[Any]:
        """What may be set here; empty: nothing."""
        if isinstance(self.value, str) and NAMES_CODE.fullmatch(self.value):
            return []
        present = None if self.value is REQUIRED or self.value is dataclasses.MISSING else self.value
        kinds = setting_types.kinds(present, self.hint, strict=_is_config_dict(self.owner))
        if isinstance(self.owner, Keywords) and (present is None or present == {}):
            return kinds or [setting_types.ANYTHING]
        return kinds

    @property
    def is_group(self) -> bool:
        return not setting_types.is_plain(self.value) and bool(list(_inside(self)))

    @property
    def is_term(self) -> bool:
        """Whether None switches it off: a term of a manager."""
        return dataclasses.is_dataclass(self.value) and hasattr(self.value, "func")


def paths(settings: Any, governed: Mapping[str, str] | None = None) -> Iterator[tuple[str, Any]]:
    """Every path that can be set and its present value, as plain data; without those that warpsac sets itself."""
    for place in _leaves(_root(settings)):
        if place.kinds and place.path not in (governed or {}):
            yield place.path, "(required)" if place.value is REQUIRED else setting_types.plain(place.value)


def _leaves(place: _Place, above: tuple[int, ...] = ()) -> Iterator[_Place]:
    for inner in _inside(place):
        if not inner.is_group:
            yield inner
        elif id(inner.value) not in above:
            yield from _leaves(inner, (*above, id(inner.value)))


def _root(settings: Any) -> _Place:
    return _Place("", None, None, settings, setting_types.UNKNOWN)


def _inside(group: _Place) -> Iterator[_Place]:
    """The values that a group holds."""
    node, hint = group.value, group.hint
    found: list[tuple[Any, Any, Any]]
    if isinstance(node, Keywords):
        found = [(name, value, node.hints.get(name, setting_types.UNKNOWN)) for name, value in node.items()]
    elif isinstance(node, Mapping) or _is_config_dict(node):
        item = setting_types.item_hint(hint, dict)
        found = [(key, node[key], item) for key in node]
    elif isinstance(node, list | tuple):
        item = setting_types.item_hint(hint, type(node))
        found = [(number, value, item) for number, value in enumerate(node)]
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        hints = _annotations(type(node))
        names = dict.fromkeys([*(field.name for field in dataclasses.fields(node)), *getattr(node, "__dict__", {})])
        found = [
            (name, getattr(node, name), hints.get(name, setting_types.UNKNOWN))
            for name in names
            if not name.startswith("_") and hasattr(node, name)
        ]
    else:
        return
    prefix = f"{group.path}." if group.path else ""
    for key, value, own in found:
        yield _Place(f"{prefix}{key}", node, key, value, own)


def _is_config_dict(node: Any) -> bool:
    """An ml_collections.ConfigDict, without importing that package."""
    return any(base.__name__ == "ConfigDict" for base in type(node).__mro__)


@functools.cache
def _annotations(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except Exception:  # a name that is imported for type checkers only
        return {}


def _find(settings: Any, path: str) -> list[_Place]:
    """The places from the outermost group to the value of a path; empty if there is none. A dash is an underscore."""

    def search(group: _Place, asked: str) -> list[_Place]:
        for inner in _inside(group):
            name = str(inner.key).replace("-", "_")
            if asked == name:
                return [inner]
            if asked.startswith(f"{name}.") and (rest := search(inner, asked[len(name) + 1 :])):
                return [inner, *rest]
        return []

    return search(_root(settings), path.replace("-", "_"))


# --- changes


def flat(changes: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """{"rewards": {"upright": {"weight": 2}}} -> {"rewards.upright.weight": 2}"""
    found: dict[str, Any] = {}
    for name, value in changes.items():
        nested = isinstance(value, Mapping) and value
        found |= flat(value, f"{path}{name}.") if nested else {f"{path}{name}": value}
    return found


def checked(
    settings: Any, changes: Mapping[str, Any], task: str, governed: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The changes as they are recorded: full path -> plain data of the setting's type. A UserError for the first that
    is not possible. Of keyword arguments whole ones are recorded: {"weights": {"speed": 1.0, "height": 2.0}}."""
    typed = list(_typed(settings, changes, task, governed))
    if isinstance(settings, Keywords):
        edited = copy.copy(settings)
        _set(edited, typed)
        names = dict.fromkeys(places[0].key for places, _ in typed)
        return {name: setting_types.plain(edited[name]) for name in names}
    return {places[-1].path: setting_types.plain(value) for places, value in typed}


def apply(settings: Any, changes: Mapping[str, Any], task: str, governed: Mapping[str, str] | None = None) -> None:
    """Set the changes in the config, which stays the same object; what others refer to as well is not changed."""
    _set(settings, _typed(settings, changes, task, governed))


def _typed(
    settings: Any, changes: Mapping[str, Any], task: str, governed: Mapping[str, str] | None
) -> Iterator[tuple[list[_Place], Any]]:
    """The places of the changes and the values to be set there."""
    arguments = isinstance(settings, Keywords)
    # An argument may be a whole dictionary, unless its default is one whose entries are settings.
    whole = {name for name in changes if arguments and not (isinstance(settings.get(name), Mapping) and settings[name])}
    pairs = flat({name: value for name, value in changes.items() if name not in whole})
    for path, value in (pairs | {name: changes[name] for name in whole}).items():
        places = _find(settings, path)
        if not places and arguments and settings.more and "." not in path:
            name = path.replace("-", "_")
            places = [_Place(name, settings, name, None, setting_types.UNKNOWN)]
        if not places:
            raise UserError(f"{task}: task_config.{path}: no such setting{_nearest(settings, path, task)}")
        place = places[-1]
        if instead := (governed or {}).get(place.path):
            raise UserError(f"{task}: task_config.{place.path}: {instead}")
        yield places, _value_for(place, value, task)


def _value_for(place: _Place, value: Any, task: str) -> Any:
    if place.is_group:
        if place.is_term and value in (None, ["None"]):
            return None
        inside = [str(inner.key) for inner in _inside(place)]
        more = f" and {len(inside) - LISTED} more" if len(inside) > LISTED else ""
        off = "; None switches it off" if place.is_term else ""
        names = ", ".join(inside[:LISTED])
        raise UserError(f"{task}: task_config.{place.path}: a group of settings: {names}{more}{off}")
    kinds = place.kinds
    if not kinds:
        raise UserError(f"{task}: task_config.{place.path}: {setting_types.named(place.value)} cannot be set here")
    try:
        if isinstance(value, Words):
            return setting_types.read(kinds, value)
        return setting_types.fit(kinds, value)
    except ValueError:
        shown = " ".join(value) if isinstance(value, Words) else value
        allowed = f"must be {setting_types.describe(kinds)}"
        raise ConfigError(f"task_config.{place.path}", shown, allowed) from None


def _nearest(settings: Any, path: str, task: str) -> str:
    """Paths that may have been meant: those that end like it first."""
    known, asked = [name for name, _ in paths(settings)], path.replace("-", "_")
    near = [name for name in known if name.endswith(f".{asked}")]
    near += difflib.get_close_matches(asked, known, 3, 0.7)
    near += [name for name in known if not near and name.rpartition(".")[2] == asked.rpartition(".")[2]][:3]
    if not near:
        return f"; `warpsac tasks --config {task}` lists them"
    return f"; did you mean {' or '.join(list(dict.fromkeys(near))[:3])}?"


def _set(settings: Any, typed: Iterable[tuple[list[_Place], Any]]) -> None:
    for places, value in list(typed):
        # Found again: an earlier change has replaced the groups above. An argument without default is nowhere yet.
        for place in (_find(settings, places[-1].path) or [_Place("", settings, places[-1].key, None, None)])[::-1]:
            if place.owner is settings or _is_config_dict(place.owner):
                _assign(place.owner, place.key, value)
                break
            value = _replaced(place.owner, place.key, value)


def _replaced(owner: Any, key: Any, value: Any) -> Any:
    """A copy of a group with one value replaced."""
    if isinstance(owner, list | tuple):
        items = [*owner[:key], value, *owner[key + 1 :]]
        return type(owner)(*items) if hasattr(owner, "_fields") else type(owner)(items)
    changed = copy.copy(owner)
    _assign(changed, key, value)
    return changed


def _assign(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, Mapping) or _is_config_dict(owner):
        owner[key] = value
    else:
        object.__setattr__(owner, key, value)  # also where it is frozen
