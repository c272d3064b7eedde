"""Suites from YAML files, and --set with YAML values; docs/bench.md defines the format."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from warpsac.bench.suite import DEFAULT_SEEDS, Entry, Grid, leaves, merged, nested, setting_label
from warpsac.errors import UserError
from warpsac.runs.files import read_text

GRID_KEYS = ("tasks", "variants", "sweep", "settings", "profile", "seeds")
FILE_KEYS = ("name", "grids")
ENTRY_KEYS = ("variant", "label", "settings")
LONGEST, MOST_ENTRIES = 1_000_000, 100_000  # characters of a file, and what they may stand for


class _Loader(yaml.SafeLoader):
    """Plain data only; a key given twice is an error, and 1e-4 is a number (text in YAML 1.1)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"'{key}' is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def _load(text: str, where: str) -> Any:
    if len(text) > LONGEST:
        raise UserError(f"{where}: {len(text):,} characters; a suite has at most {LONGEST:,}")
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _entries(node, {}, ()) > MOST_ENTRIES:
            raise UserError(f"{where}: more than {MOST_ENTRIES:,} entries, with what its references stand for")
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UserError(f"{where}{line}: not YAML ({problem})") from None
    except (TypeError, RecursionError, ValueError) as error:  # a mapping as a key, endless references, 2026-99-99
        raise UserError(f"{where}: not YAML ({error})") from None


def _entries(node: yaml.Node, known: dict[int, int], above: tuple[int, ...]) -> int:
    """How many nodes there are once every reference is replaced by what it stands for, each visited once."""
    if id(node) in above:
        raise yaml.constructor.ConstructorError(None, None, "it contains itself", node.start_mark)
    if id(node) not in known:
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        inside = [*above, id(node)]
        known[id(node)] = 1 + sum(
            _entries(part, known, tuple(inside))
            for entry in parts
            for part in (entry if isinstance(entry, tuple) else (entry,))
        )
    return known[id(node)]


def read_suite(path: Path) -> tuple[str, Sequence[Grid]]:
    """The name and the grids of a suite file."""
    data = _mapping(_load(read_text(path), str(path)), str(path), (*FILE_KEYS, *GRID_KEYS))
    name = data.get("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise UserError(f"{path}: name = {name!r}: must be a word of letters, digits, '-', '_' and '.'")
    if "grids" not in data:
        return name, [_grid({key: data[key] for key in data if key != "name"}, str(path))]
    misplaced = sorted(set(data) & set(GRID_KEYS))
    if misplaced:
        raise UserError(f"{path}: {misplaced[0]} stands next to `grids`: move it into each of them")
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
            hint = f"did you mean {near[0]}?" if near else f"must be one of {', '.join(known)}"
            raise UserError(f"{where}: unknown key '{key}'; {hint}")
    return data


def _grid(data: Any, where: str) -> Grid:
    data = _mapping(data, where, GRID_KEYS)
    if "tasks" not in data:
        raise UserError(f"{where}: needs `tasks`, a list of tasks or families")
    profile = data.get("profile")
    if profile is not None and not isinstance(profile, str):
        raise UserError(f"{where}: profile must be a name")
    return Grid(
        tasks=_list_of(str, data["tasks"], f"{where}: tasks must be names"),
        variants=tuple(
            _entry(item, f"{where}: variant {number}")
            for number, item in enumerate(_listed(data.get("variants", [])), 1)
        ),
        sweep=_sweep(data.get("sweep", {}), f"{where}: sweep"),
        settings=_settings(data.get("settings", {}), f"{where}: settings"),
        profile=profile,
        seeds=_list_of(
            int, data.get("seeds", list(DEFAULT_SEEDS)), f"{where}: seeds must be whole numbers, such as [1, 2, 3]"
        ),
        where=where,
    )


def _entry(data: Any, where: str) -> Entry:
    if isinstance(data, str):
        return Entry(data)
    data = _mapping(data, where, ENTRY_KEYS)
    if not isinstance(data.get("variant"), str):
        raise UserError(f"{where}: needs `variant`, a name")
    settings = _settings(data.get("settings", {}), f"{where}: settings")
    label = data.get("label", "-".join(setting_label(path, value) for path, value in leaves(settings)))
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
            raise UserError(f"{where}: {path} is given twice: leave one of them out")
    return merged(*layers)


def _sweep(data: Any, where: str) -> dict[str, list[Any]]:
    if not isinstance(data, Mapping):
        raise UserError(f"{where} must be a mapping, such as learner.blocks: [1, 2, 3]")
    for path, values in data.items():
        if not isinstance(path, str) or not isinstance(values, list) or not values:
            raise UserError(f"{where}: {path} must have a list of values")
    return dict(data)


def _listed(data: Any) -> list[Any]:
    return data if isinstance(data, list) else [data]


def _list_of(kind: type, data: Any, message: str) -> tuple[Any, ...]:
    """One item or a list of them, all of exactly this type: a bool is no int."""
    if not _listed(data) or any(type(item) is not kind for item in _listed(data)):
        raise UserError(message)
    return tuple(_listed(data))
