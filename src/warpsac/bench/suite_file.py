"""Suites from YAML files, and --set with YAML values; docs/bench.md defines the format."""

from __future__ import annotations

import difflib
import math
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from warpsac.bench.space import (
    MOST_TRIALS,
    SEARCH_SEEDS,
    Choice,
    Objective,
    Pruner,
    Range,
    Sampler,
    Search,
    objective_of,
    takes_floats,
)
from warpsac.bench.suite import DEFAULT_SEEDS, Entry, Grid, leaves, merged, nested, setting_label
from warpsac.errors import UserError
from warpsac.runs.files import read_text

GRID_KEYS = ("tasks", "variants", "sweep", "search", "settings", "profile", "seeds")
FILE_KEYS = ("name", "grids")
ENTRY_KEYS = ("variant", "label", "settings")
SEARCH_KEYS = ("space", "trials", "sampler", "pruner", "objective", "seed")
RANGE_KEYS = ("low", "high", "log")
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
    search = _search(data["search"], f"{where}: search") if "search" in data else None
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
            int, data.get("seeds", list(SEARCH_SEEDS if search else DEFAULT_SEEDS)),
            f"{where}: seeds must be whole numbers, such as [1, 2, 3]",
        ),
        where=where,
        search=search,
    )  # fmt: skip


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


def _search(data: Any, where: str) -> Search:
    data = _mapping(data, where, SEARCH_KEYS)
    space = data.get("space")
    if not isinstance(space, Mapping) or not space or not all(isinstance(path, str) for path in space):
        raise UserError(f"{where}: needs `space`, such as space: {{learner.tau: {{low: 0.001, high: 0.1, log: true}}}}")
    trials, seed = data.get("trials", Search.trials), data.get("seed", Search.seed)
    if type(trials) is not int or not 1 <= trials <= MOST_TRIALS:
        raise UserError(f"{where}: trials = {trials!r}: must be a whole number from 1 to {MOST_TRIALS:,}")
    if type(seed) is not int or not 0 <= seed < 2**31:
        raise UserError(f"{where}: seed = {seed!r}: must lie in 0..2147483647")
    text = data.get("objective", str(Objective()))
    if not isinstance(text, str) or (objective := objective_of(text)) is None:
        raise UserError(f"{where}: objective = {text!r}: must be final, auc or `last N`, a number of evaluations")
    return Search(
        {path: _values(path, values, f"{where}: {path}") for path, values in space.items()},
        trials,
        _one_of(Sampler, data.get("sampler", Search.sampler), f"{where}: sampler"),
        _one_of(Pruner, data.get("pruner", Search.pruner), f"{where}: pruner"),
        objective,
        seed,
    )


def _values(path: str, data: Any, where: str) -> Choice | Range:
    """A list of values, or the ends of a range."""
    if isinstance(data, list):
        if len(data) < 2 or any(value in data[:number] for number, value in enumerate(data)):
            raise UserError(f"{where}: a list needs two different values or more, none of them twice")
        return Choice(tuple(tuple(value) if isinstance(value, list) else value for value in data))
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: must be a list of values, or a range such as {{low: 0.1, high: 0.9}}")
    data = _mapping(data, where, RANGE_KEYS)
    low, high, log = data.get("low", math.nan), data.get("high", math.nan), data.get("log", False)
    for name, value in (("low", low), ("high", high)):
        if type(value) not in (int, float) or not abs(value) < 1e300:
            raise UserError(f"{where}: {name} = {value!r}: must be a number")
    if not low < high:
        raise UserError(f"{where}: low = {low!r}: must be below high = {high!r}")
    if type(log) is not bool:
        raise UserError(f"{where}: log = {log!r}: must be true or false")
    if log and low <= 0:
        raise UserError(f"{where}: low = {low!r}: must be above 0 with log: true")
    if takes_floats(path) or float in (type(low), type(high)):
        return Range(float(low), float(high), log)
    return Range(low, high, log)


def _one_of(kinds: Any, data: Any, where: str) -> Any:
    known = typing.get_args(kinds)
    if data not in known:
        raise UserError(f"{where} = {data!r}: must be one of {', '.join(known)}")
    return data


def _listed(data: Any) -> list[Any]:
    return data if isinstance(data, list) else [data]


def _list_of(kind: type, data: Any, message: str) -> tuple[Any, ...]:
    """One item or a list of them, all of exactly this type: a bool is no int."""
    if not _listed(data) or any(type(item) is not kind for item in _listed(data)):
        raise UserError(message)
    return tuple(_listed(data))
