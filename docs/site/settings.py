"""Tables of every setting, made from the dataclasses that are the command line: option, default, meaning and range."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

from warpsac.config import schema

OPTION = re.compile(r"(`[^`]*`)|(--[a-z]\w*(?:[.-]\w+)*(?:\.\*)?)")  # as code already, or to become code
FILLER = re.compile(r"^must (be |lie |hold )?| and finite| \(seconds\)")
UNSAID = re.compile(r"\d{7}|seed|^must be at least [01]$")  # ranges that nobody would leave
# What is not an option with a value of its own, as it is typed.
SPELT = {"task": "TASK", "task_config": "--task-config.PATH"}


def meanings() -> dict[tuple[str, str], str]:
    """Class and field -> the string below the field."""
    found = {}
    for kind in ast.parse(inspect.getsource(schema)).body:
        if isinstance(kind, ast.ClassDef):
            for field, text in zip(kind.body, kind.body[1:]):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(text, ast.Expr)
                    and isinstance(field.target, ast.Name)
                ):
                    found[kind.name, field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


def parts(kind: Any) -> Iterator[Any]:
    """Everything that an annotation is made of."""
    yield kind
    for part in [*typing.get_args(kind), *getattr(kind, "__metadata__", ())]:
        yield from parts(part)


def allowed(kind: Any) -> str:
    """The words and the range that a setting may have, as far as they say something."""
    words = next((typing.get_args(part) for part in parts(kind) if typing.get_origin(part) is typing.Literal), ())
    ranges = dict.fromkeys(part.allowed for part in parts(kind) if isinstance(part, schema.Constraint))
    told = [FILLER.sub("", text) for text in ranges if not UNSAID.search(text)]
    if words and not any(words[0] in text for text in told):
        told.insert(0, ", ".join(f"`{word}`" for word in words))
    return "; ".join(told)


def shown(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{' '.join(map(str, value)) if isinstance(value, tuple) else value}`"


def table(kind: type, prefix: str) -> str:
    types, told = typing.get_type_hints(kind, include_extras=True), meanings()
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(types[field.name]):
            continue
        text = OPTION.sub(lambda found: found[1] or f"`{found[2]}`", told[kind.__name__, field.name])
        limits = allowed(types[field.name])
        text += f" ({limits})" if limits else ""
        spelt = field.name in SPELT
        name = SPELT[field.name] if spelt else f"--{prefix}{field.name}".replace("_", "-")
        default = "" if spelt else shown(field.default)
        rows.append(f"| `{name}` | {default} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def tables() -> str:
    """One for what belongs to no section, and one for each section."""
    types = typing.get_type_hints(schema.Config)
    inner = {name: kind for name, kind in types.items() if dataclasses.is_dataclass(kind)}
    sections = [f"## `--{name}.*`\n\n{table(kind, f'{name}.')}" for name, kind in inner.items()]
    return "\n\n".join([table(schema.Config, ""), *sections]) + "\n"
