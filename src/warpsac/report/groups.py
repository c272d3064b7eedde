"""What belongs together: runs of one variant with the same settings, and tasks with the scale of their results.

Runs are compared in groups: a variant, and every setting that differs from the variant's defaults on the task. Two
ablations of one variant are two groups; seeds and settings of logging make no difference. What `runs` adds by comparing
runs (where they stop, the code of their task, their names) is a change like a setting.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from warpsac.config.profiles import FAMILY_PROFILES, TRACKING, VARIANTS, base_of, resolve
from warpsac.config.schema import AUTO, PPO, Config
from warpsac.envs.tasks import EXTRAS, Task, find

# Settings that change neither what is learned nor how it is evaluated; a section stands for all its settings.
IMMATERIAL = frozenset({
    "task", "variant", "profile", "seeds", "out", "name", "stop_at", "checkpoint", "log", "eval.every",
    "eval.at_start", "eval.num_envs", "replay.placement", "env.menagerie", "env.humanoidbench", "env.max_faults",
    "env.workers", "env.worker_timeout", "env.impl", "devices", "envs_per_device",
})  # fmt: skip

# Sections and settings that only one of the algorithms has.
OF_SAC = frozenset({"replay", "learner", "auto", "learning_starts", "updates_per_step", "overlap"})
OF_PPO = frozenset({"ppo"})

# What makes groups only where it is all that tells runs apart, or tells apart what was compared; see `runs`.
BY_COMPARISON = ("stop_at", "name", "source")

SHORT = 4  # settings in a short label
LONGEST = 24  # characters of a value in it

OTHER_FAMILY = "other"
FAMILIES = (*EXTRAS, OTHER_FAMILY)

Changes = tuple[tuple[str, str], ...]
"""Settings as (dotted name, value)."""


def is_material(path: str) -> bool:
    """Whether a setting, by its dotted name, changes what is learned or how it is evaluated."""
    return path not in IMMATERIAL and path.partition(".")[0] not in IMMATERIAL


class Group(NamedTuple):
    """A variant and the settings that differ from its defaults."""

    variant: str
    changes: Changes = ()

    @property
    def settings(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.changes)

    @property
    def label(self) -> str:
        return f"{self.variant} {self.settings}".rstrip()

    @property
    def on_policy(self) -> bool:
        return self.variant == PPO

    @property
    def is_long(self) -> bool:
        """Whether a short label cannot hold all of it."""
        return len(self.changes) > SHORT or any(len(value) > LONGEST for _, value in self.changes)

    def has(self, setting: str) -> bool:
        """Whether its algorithm has this setting."""
        return setting.partition(".")[0] not in (OF_SAC if self.on_policy else OF_PPO)

    def without(self, common: Changes) -> Group:
        return Group(self.variant, tuple(change for change in self.changes if change not in common))

    @property
    def planned(self) -> Group:
        """The group that the config alone gives, without what only a comparison of runs tells."""
        return Group(
            self.variant, tuple(change for change in self.changes if change[0].partition(".")[0] not in BY_COMPARISON)
        )


@dataclass(frozen=True)
class Scale:
    """How the raw results of a task (returns, or success in percent) become scores."""

    task: str
    family: str
    known: Task | None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The results that count as score 0 and 1; None if the task has no reference scores."""
        known = self.known
        if known is None or known.random_score is None or known.normalize_score is None:
            return None
        return known.random_score, known.normalize_score

    @property
    def metric(self) -> str:
        return "success" if self.known and self.known.metric == "success" else "return"

    @property
    def factor(self) -> float:
        """From recorded results to raw ones: success rates become percent."""
        return 100.0 if self.metric == "success" else 1.0

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
    # Others are named as their family is.
    family = "mjlab" if config.profile == TRACKING else base_of(config.profile)
    return Scale(config.task, family if family in FAMILY_PROFILES else OTHER_FAMILY, None)


def _flat(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The material settings by their dotted names."""
    for name, value in settings.items():
        if path + name in IMMATERIAL:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield path + name, value


def group_of(config: Config) -> Group:
    """The variant, and the settings that differ from the variant's defaults on this task.

    The defaults are those for its number of environments: what follows from that number is not named next to it.
    """
    task, count = find(config.task), config.env.num_envs
    regime, family = (task.regime, task.family) if task else (None, None)
    resolved = functools.partial(resolve, config.task, regime=regime, family=family, variant=config.variant)
    profile = resolved(profile=config.profile)[0]
    defaults = dict(_flat(dataclasses.asdict(resolved(profile=config.profile, num_envs=count)[0])))
    defaults["env.num_envs"] = profile.env.num_envs
    changes = [("profile", config.profile)] if config.profile != resolved()[0].profile else []
    for name, value in _flat(dataclasses.asdict(config)):
        if name not in defaults or value != defaults[name]:
            changes.append((name, _text(value)))
    return Group(config.variant, tuple(changes))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def short_labels(groups: Sequence[Group]) -> list[str]:
    """Names for narrow columns: short names of few settings, those first that tell a group from others of its variant;
    in full where two names would be the same."""
    found = [_short_label(group, groups) for group in groups]
    return [group.label if found.count(name) > 1 else name for group, name in zip(groups, found, strict=True)]


def _short_label(group: Group, groups: Sequence[Group]) -> str:
    alike = [other for other in groups if other.variant == group.variant]
    # What fewest others have tells most.
    shown = sorted(group.changes, key=lambda change: sum(change in other.changes for other in alike))[:SHORT]
    left_out = len(group.changes) - len(shown)
    words = [_short_setting(*change) for change in group.changes if change in shown]
    return " ".join([group.variant, *words, *([f"and {left_out} more"] if left_out else [])])


def _short_setting(name: str, value: str) -> str:
    """Without the section; of a path within the task's own config the last two parts, as many end in the same word.
    Of a long value the end: the name of a file."""
    parts = name.split(".")
    text = value if len(value) <= LONGEST else f"\N{HORIZONTAL ELLIPSIS}{value[1 - LONGEST :]}"
    return f"{'.'.join(parts[-2 if len(parts) > 2 else -1 :])}={text}"


def in_order(groups: set[Group]) -> list[Group]:
    """Known variants first, in their usual order, each followed by its ablations."""
    rank = {variant: number for number, variant in enumerate((*VARIANTS, AUTO))}
    return sorted(groups, key=lambda group: (rank.get(group.variant, len(rank)), group.variant, group.changes))
