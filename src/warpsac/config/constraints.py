"""Ranges that settings declare next to their type, and the check that every one of them holds.

episodes: Annotated[int, at_least(1)] = 50
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from warpsac.errors import ConfigError


@dataclass(frozen=True)
class Constraint:
    allowed: str
    """How the error message ends: "must be at least 1"."""
    holds: Callable[[Any], bool]


def at_least(low: int) -> Constraint:
    return Constraint(f"must be at least {low}", lambda value: value >= low)


POSITIVE = Constraint("must be positive and finite", lambda value: 0 < value < math.inf)
SEED = Constraint("must lie in 0..2147483647", lambda seed: 0 <= seed < 2**31)

Count = Annotated[int, at_least(1)]
CountOrZero = Annotated[int, at_least(0)]
Positive = Annotated[float, POSITIVE]
PositiveOrZero = Annotated[float, Constraint("must be at least 0 and finite", lambda value: 0 <= value < math.inf)]
Share = Annotated[float, Constraint("must be above 0 and at most 1", lambda value: 0 < value <= 1)]
Discount = Annotated[float, Constraint("must be at least 0 and below 1", lambda value: 0 <= value < 1)]
Seed = Annotated[int, SEED]


def check_ranges(settings: Any, prefix: str = "") -> None:
    """Raise a ConfigError for the first field of a dataclass, nested ones included, that is out of its range."""
    for name, hint in typing.get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{prefix}{name}.")
        elif value is not None:
            for constraint in _declared(hint):
                if not constraint.holds(value):
                    raise ConfigError(prefix + name, value, constraint.allowed)


def _declared(hint: Any) -> Iterator[Constraint]:
    """The constraints in a type, also in one member of a union: `Count | None`."""
    if isinstance(hint, Constraint):
        yield hint
    for part in typing.get_args(hint):
        yield from _declared(part)
