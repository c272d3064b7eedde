"""The arms of a portfolio (`--variant auto`): learners of different settings that share one replay.

An arm is written as a variant and its changes, separated by commas:

    warpsac-a                                  one critic, no projection
    warpsac-norm-off,pessimism=0.5             two critics, half way between their mean and the lower one
    warpsac-l,pessimism=calibrated             pessimism that follows the returns of its own episodes
    warpsac-l,norm_cap=4                       weights may grow to four times the usual norm
    warpsac-l,decay_steps=500                  as warpsac-l, with another horizon of the age weights
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from warpsac.config.profiles import VARIANTS
from warpsac.config.schema import CALIBRATED, Config
from warpsac.errors import ConfigError

FEWEST, MOST = 2, 8


@dataclass(frozen=True)
class Arm:
    """One learner of a portfolio."""

    name: str
    projection: bool
    norm_cap: float
    critics: int
    pessimism: float | Literal["calibrated"]
    decay_steps: int


def _switch(text: str) -> bool:
    return {"on": True, "off": False}[text]


def _critics(text: str) -> int:
    return {"1": 1, "2": 2}[text]


def _degree(text: str) -> float | Literal["calibrated"]:
    if text == CALIBRATED:
        return CALIBRATED
    if not 0 <= (value := float(text)) <= 1:
        raise ValueError
    return value


def _norm_cap(text: str) -> float:
    if not 1 <= (value := float(text)) < math.inf:
        raise ValueError
    return value


def _decay_steps(text: str) -> int:
    if not abs(value := int(text)) < 2**24:
        raise ValueError
    return value


READERS: dict[str, tuple[Callable[[str], Any], str]] = {  # of a change: how it is read, what is allowed
    "projection": (_switch, "on or off"),
    "critics": (_critics, "1 or 2"),
    "pessimism": (_degree, "a number in 0..1, or calibrated"),
    "decay_steps": (_decay_steps, "a whole number between -16777215 and 16777215"),
    "norm_cap": (_norm_cap, "a number of at least 1"),
}


def arms_of(config: Config) -> tuple[Arm, ...]:
    """The arms of a portfolio, the default one first; a ConfigError if they are not well-formed."""
    texts = config.auto.arms
    if not FEWEST <= len(texts) <= MOST:
        raise ConfigError("auto.arms", texts, f"must name {FEWEST} to {MOST} arms")
    if len(set(texts)) < len(texts):
        raise ConfigError("auto.arms", texts, "must not name an arm twice")
    if config.auto.floor * len(texts) > 1:
        raise ConfigError("auto.floor", config.auto.floor, f"must be at most 1 / {len(texts)}, the number of arms")
    return tuple(_arm(text, config.replay.decay_steps) for text in texts)


def _arm(text: str, decay_steps: int) -> Arm:
    variant, *changes = text.split(",")
    if variant not in VARIANTS:
        raise ConfigError("auto.arms", text, f"must begin with one of {', '.join(VARIANTS)}")
    axes = VARIANTS[variant]
    settings: dict[str, Any] = {
        "projection": axes.projection,
        "norm_cap": 1.0,
        "critics": axes.critics,
        "pessimism": 1.0,
        "decay_steps": decay_steps if axes.swd else 0,
    }
    for change in changes:
        name, _, value = change.partition("=")
        if name not in READERS:
            raise ConfigError("auto.arms", text, f"{name!r} is not one of {', '.join(READERS)}")
        read, allowed = READERS[name]
        try:
            settings[name] = read(value)
        except (KeyError, ValueError):
            raise ConfigError("auto.arms", text, f"{name} must be {allowed}") from None
    if settings["pessimism"] == CALIBRATED and settings["critics"] == 1:
        raise ConfigError("auto.arms", text, "pessimism=calibrated needs two critics")
    if settings["norm_cap"] > 1 and not settings["projection"]:
        raise ConfigError("auto.arms", text, "norm_cap needs projection=on")
    return Arm(text, **settings)
