"""What belongs together: runs of one variant with the same settings, and tasks with the scale of their results.

Runs are compared in groups: a variant and whatever was set otherwise than the variant's own defaults on the
task. Two ablations of one variant are two groups; seeds, folder names and what is only logged make none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from warpsac.config.profiles import FAMILY_PROFILES, VARIANTS, resolve
from warpsac.config.schema import PPO, Config
from warpsac.envs.tasks import EXTRAS, Task, find

# Settings that neither change what is learned nor how it is judged; a section stands for all its settings.
IMMATERIAL = frozenset({
    "task", "variant", "profile", "seeds", "out", "name", "stop_at", "checkpoint", "log", "eval.every",
    "eval.num_envs", "replay.placement", "env.menagerie", "env.humanoidbench", "env.max_faults", "env.workers",
    "env.worker_timeout", "env.impl",
})  # fmt: skip


def is_material(path: str) -> bool:
    """Whether a setting, by its dotted name, changes what is learned or how it is judged."""
    return path not in IMMATERIAL and path.partition(".")[0] not in IMMATERIAL


SHORT = 2  # settings in a short label

OTHER_FAMILY = "other"
FAMILIES = (*EXTRAS, OTHER_FAMILY)


class Group(NamedTuple):
    """A variant and the settings, as (name, value), that differ from its defaults."""

    variant: str
    changes: tuple[tuple[str, str], ...] = ()

    @property
    def settings(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.changes)

    @property
    def label(self) -> str:
        return f"{self.variant} {self.settings}".rstrip()

    @property
    def on_policy(self) -> bool:
        return self.variant == PPO

    def without(self, common: Sequence[tuple[str, str]]) -> Group:
        return Group(self.variant, tuple(change for change in self.changes if change not in common))

    def stopped_at(self, step: int) -> Group:
        """Those of this group that were told to stop earlier than others of it."""
        return Group(self.variant, (("stop_at", str(step)), *self.changes))

    def simulated_by(self, impl: str) -> Group:
        """Those of this group whose physics was simulated so, where others of it had another way."""
        return Group(self.variant, (*self.changes, ("env.impl", impl)))

    @property
    def whole(self) -> Group:
        """The group that `stopped_at` was taken from."""
        return Group(self.variant, tuple(change for change in self.changes if change[0] != "stop_at"))


@dataclass(frozen=True)
class Scale:
    """How the raw results of a task (returns, or success in percent) become scores."""

    task: str
    family: str
    known: Task | None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The results that count as score 0 and 1; None if nobody has said."""
        known = self.known
        if known is None or known.random_score is None or known.normalize_score is None:
            return None
        return known.random_score, known.normalize_score

    @property
    def metric(self) -> str:
        return "success" if self.known and self.known.metric == "success" else "return"

    def score(self, raw: np.ndarray) -> np.ndarray:
        """Scores, or the raw results themselves where there are no bounds."""
        if self.bounds is None:
            return raw
        low, high = self.bounds
        return (raw - low) / (high - low)


def scale_of(config: Config) -> Scale:
    task = find(config.task)
    if task is not None:
        return Scale(task.name, task.family, task)
    return Scale(config.task, config.profile if config.profile in FAMILY_PROFILES else OTHER_FAMILY, None)


def _flat(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if path + name in IMMATERIAL:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield path + name, value


def group_of(config: Config) -> Group:
    """The variant, and the settings that differ from what the variant would get on this task by default."""
    task = find(config.task)
    regime, family = (task.regime, task.family) if task else (None, None)
    usual = resolve(config.task, regime=regime, family=family, variant=config.variant)[0].profile
    default = resolve(config.task, regime=regime, family=family, variant=config.variant, profile=config.profile)[0]
    changes = [("profile", config.profile)] if config.profile != usual else []
    plain = dict(_flat(dataclasses.asdict(default)))
    for name, value in _flat(dataclasses.asdict(config)):
        if value != plain[name]:
            changes.append((name, f"{value:g}" if isinstance(value, float) else str(value).lower()))
    return Group(config.variant, tuple(changes))


def short_labels(groups: Sequence[Group]) -> list[str]:
    """Names for little room: few settings, without their section; in full where two would be called the same."""

    def brief(group: Group) -> str:
        words = [f"{name.rpartition('.')[2]}={value}" for name, value in group.changes]
        more = len(words) - SHORT
        return " ".join([group.variant, *words[:SHORT], *([f"+{more}"] if more > 0 else [])])

    found = [brief(group) for group in groups]
    return [group.label if found.count(name) > 1 else name for group, name in zip(groups, found, strict=True)]


def in_order(groups: set[Group]) -> list[Group]:
    """Known variants first, in their usual order, each followed by its own ablations."""
    rank = {variant: number for number, variant in enumerate(VARIANTS)}
    return sorted(groups, key=lambda group: (rank.get(group.variant, len(rank)), group.variant, group.changes))
