"""Suites from YAML files, and settings in YAML on the command line; docs/bench.md defines the format."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from warpsac.bench.suite import DEFAULT_SEEDS, Entry, Grid, leaves, merged, nested
from warpsac.errors import UserError
from warpsac.runs.files import in_words

GRID_KEYS = ("tasks", "variants", "sweep", "settings", "profile", "seeds")
FILE_KEYS = ("name", "grids")
ENTRY_KEYS = ("variant", "label", "settings")


class _Loader(yaml.SafeLoader):
    """Plain data only; a key given twice is an error, and 1e-4 is a number (YAML 1.1 reads it as a text)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"'{key}' is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def _load(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # (a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UserError(f"{where}{line}: not YAML ({problem})") from None
    except (TypeError, RecursionError, ValueError) as error:  # a mapping as a key, endless references, 2026-99-99
        raise UserError(f"{where}: not YAML ({error})") from None


def read_suite(path: Path) -> tuple[str, list[Grid]]:
    """The name and the grids of a suite file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file") from None
    except OSError as error:
        raise UserError(f"{path}: {in_words(error)}") from None
    data = _mapping(_load(text, str(path)), str(path), (*FILE_KEYS, *GRID_KEYS))
    name = data.get("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise UserError(f"{path}: name = {name!r}: must be a word of letters, digits, '-', '_' and '.'")
    if "grids" not in data:
        return name, [_grid({key: data[key] for key in data if key != "name"}, str(path))]
    besides = sorted(set(data) & set(GRID_KEYS))
    if besides:
        raise UserError(f"{path}: {besides[0]} stands beside `grids`: move it into each of them")
    if not isinstance(data["grids"], list) or not data["grids"]:
        raise UserError(f"{path}: grids must be a list of mappings")
    return name, [_grid(grid, f"{path}, grid {number}") for number, grid in enumerate(data["grids"], 1)]


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """learner.blocks=1 total_steps=1000 -> nested settings."""
    layers = []
    for word in words:
        path, equals, value = word.partition("=")
        if not equals or not all(path.split(".")):
            raise UserError(f"--set {word}: must look like learner.blocks=1")
        layers.append(nested(path, _load(value, f"--set {word}")))
    return merged(*layers)


def _mapping(data: Any, where: str, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: must be a mapping with the keys {', '.join(known)}")
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise UserError(f"{where}: unknown key '{key}'; {hint}")
    return data


def _grid(data: Any, where: str) -> Grid:
    data = _mapping(data, where, GRID_KEYS)
    if "tasks" not in data:
        raise UserError(f"{where}: needs `tasks`, a list of tasks or families")
    tasks = _words(data["tasks"], f"{where}: tasks")
    listed = data.get("variants", [])
    listed = listed if isinstance(listed, list) else [listed]
    profile = data.get("profile")
    if profile is not None and not isinstance(profile, str):
        raise UserError(f"{where}: profile must be the name of one")
    return Grid(
        tasks=tasks,
        variants=tuple(_entry(item, f"{where}: variant {number}") for number, item in enumerate(listed, 1)),
        sweep=_sweep(data.get("sweep", {}), f"{where}: sweep"),
        settings=_settings(data.get("settings", {}), f"{where}: settings"),
        profile=profile,
        seeds=_seeds(data.get("seeds", list(DEFAULT_SEEDS)), f"{where}: seeds"),
        where=where,
    )


def _entry(data: Any, where: str) -> Entry:
    if isinstance(data, str):
        return Entry(data)
    data = _mapping(data, where, ENTRY_KEYS)
    if not isinstance(data.get("variant"), str):
        raise UserError(f"{where}: needs `variant`, the name of one")
    settings = _settings(data.get("settings", {}), f"{where}: settings")
    label = data.get("label", "-".join(f"{path.rpartition('.')[2]}-{value}" for path, value in leaves(settings)))
    if not isinstance(label, str | int | float):
        raise UserError(f"{where}: label must be a word")
    return Entry(data["variant"], settings, str(label))


def _settings(data: Any, where: str) -> dict[str, Any]:
    """Nested settings; dotted names are accepted as well."""
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise UserError(f"{where} must be a mapping of settings")
    inner = {key: _settings(value, where) if isinstance(value, Mapping) else value for key, value in data.items()}
    layers = [nested(path, value) for path, value in inner.items()]
    paths = [path for layer in layers for path, _ in leaves(layer)]
    for number, path in enumerate(paths):
        if any(f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.") for other in paths[:number]):
            raise UserError(f"{where}: {path} is there twice: leave one of them out")
    return merged(*layers)


def _sweep(data: Any, where: str) -> dict[str, list[Any]]:
    if not isinstance(data, Mapping):
        raise UserError(f"{where} must be a mapping, such as learner.blocks: [1, 2, 3]")
    for path, values in data.items():
        if not isinstance(path, str) or not isinstance(values, list) or not values:
            raise UserError(f"{where}: {path} must have a list of values")
    return dict(data)


def _words(data: Any, where: str) -> tuple[str, ...]:
    listed = data if isinstance(data, list) else [data]
    if not listed or not all(isinstance(word, str) for word in listed):
        raise UserError(f"{where} must be names")
    return tuple(listed)


def _seeds(data: Any, where: str) -> tuple[int, ...]:
    listed = data if isinstance(data, list) else [data]
    if not listed or any(not isinstance(seed, int) or isinstance(seed, bool) for seed in listed):
        raise UserError(f"{where} must be whole numbers, such as [1, 2, 3]")
    return tuple(listed)
