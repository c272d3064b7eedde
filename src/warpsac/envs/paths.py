"""Which paths of a saved file are used: those that the user has named too.

A run folder, a `config.json` or a suite may come from somebody else. A path in it (a motion, a checkout, a run to start
from, a text of the task's own config) is used only if the user has named it as well: on the command line (`--path`, or
the setting's own option), at a prompt, or when training with it before. What was named before is kept in the list of
`modules`, as an absolute path. Nothing looks at a path that is not allowed, not even at whether it exists.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from warpsac.config.loading import absolute
from warpsac.config.schema import EnvConfig
from warpsac.envs import modules
from warpsac.errors import UserError

FOLDERS = ("menagerie", "humanoidbench")  # settings of `env` that environment variables name as well
FIELDS = ("env.motion", *(f"env.{name}" for name in FOLDERS), "init_from", "learner.symmetry")
OWN = "task_config"  # the task's own config, in which any text may be a path
_named: set[str] = set()  # absolute paths, named by the user of this process


def name(words: Iterable[str]) -> None:
    """Allow the paths that the user gives here and now; as words of a command line also `--option=PATH`."""
    for word in words:
        _named.update(absolute(text) for text in (word, word.partition("=")[2]) if text)


def is_named(path: str) -> bool:
    """Whether the user has named the path, here and now or before."""
    place = absolute(path)
    return place in _named or modules.trusted().get(place) == place


def remember(settings: Mapping[str, Any]) -> None:
    """Keep what the settings of a run name, so that the run needs no --path later."""
    found = [text for _, text in of(settings)]
    for text in filter(_names_code, found):
        modules.remember(text)
    modules.keep({(place := absolute(text)): place for text in found if not _names_code(text)})


def require(settings: Mapping[str, Any], where: str, *fields: str) -> None:
    """Refuse paths, and names of code, that only the file `where` names; `fields`: those that are about to be used."""
    for field, text in of(settings):
        if field.partition(".")[0] not in fields and field not in fields:
            continue
        if is_named(text) or (_names_code(text) and modules.is_named(text)):
            continue
        what, option = ("code", "--module") if _names_code(text) else ("a path", "--path")
        said = f"{field} = {text!r}: {what} that only {where} names"
        if modules.confirmed(f"{said}."):
            name([text])
            remember({OWN: {"": text}})
            continue
        add = f"add {option} {shlex.quote(text)}" if text.isprintable() else f"name it with {option}"
        raise UserError(f"{said}, so it is not used: if you trust it, {add}")


def without_folders(env: EnvConfig, where: str) -> tuple[list[str], EnvConfig]:
    """The settings without folders that only `where` names, which may be found otherwise; and a line for each."""
    unnamed = {name: given for name in FOLDERS if (given := getattr(env, name)) is not None and not is_named(given)}
    lines = [
        f"env.{name} = {given!r}: only {where} names it, so it is not used; --path allows it"
        for name, given in unnamed.items()
    ]
    absent: dict[str, Any] = dict.fromkeys(unnamed)
    return lines, dataclasses.replace(env, **absent)


def of(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings that name a path, or code in the task's own config: field and text."""
    for field, value in _texts("", settings):
        named = field in FIELDS and not (field == "learner.symmetry" and value in ("off", "auto"))
        if named or (field.startswith(f"{OWN}.") and (_looks_like_path(value) or _names_code(value))):
            yield field, value


def _texts(field: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(f"{field}.{key}" if field else str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(field, inner)


def _looks_like_path(text: str) -> bool:
    """Whether a text leads to a file: out of the current folder, or to something in it."""
    return os.sep in text or text.startswith("~") or (os.altsep or os.sep) in text or os.path.lexists(text)


def _names_code(text: str) -> bool:
    """`my_package.module:make_env`, which an environment may import."""
    module, colon, function = text.partition(":")
    return bool(colon) and function.isidentifier() and all(word.isidentifier() for word in module.split("."))
