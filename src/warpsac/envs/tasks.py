"""The table of benchmark tasks: family, sizes, regime, and the scores that map a result to 0..1."""

from __future__ import annotations

import csv
import difflib
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

Regime = Literal["limited", "abundant"]

# Families in the order they are listed, with the extra to install.
_FAMILIES = "mujoco dmc myosuite humanoidbench playground mjlab maniskill isaaclab sim2real"
EXTRAS = {family: family for family in _FAMILIES.split()}
# Extras that install nothing on some Pythons (their markers in pyproject.toml): the first and last that they are for.
_BY_HAND = "use Python 3.11 or 3.12, or install dm_control without labmaze: docs/simulators.md says how"
_PYTHONS = {
    "dmc": ((3, 11), (3, 12), _BY_HAND),
    "humanoidbench": ((3, 11), (3, 12), _BY_HAND),
    "maniskill": ((3, 11), (3, 12), "use Python 3.11 or 3.12"),
    "isaaclab": ((3, 12), (3, 12), "use Python 3.12"),
}

# Families with tasks outside the benchmark, and the regime of those.
SUITES: dict[str, Regime] = {
    "dmc": "limited", "myosuite": "limited", "humanoidbench": "limited", "playground": "abundant"
}  # fmt: skip


def how_to_install(extra: str, python: tuple[int, int] = sys.version_info[:2]) -> str:
    """The command that installs a family's packages, or what else to do on a Python that has none of them."""
    first, last, instead = _PYTHONS.get(extra, (python, python, ""))
    if first <= python <= last:
        return f"pip install 'warpsac[{extra}]'"
    return f"no release for Python {python[0]}.{python[1]}: {instead}"


@dataclass(frozen=True)
class Task:
    name: str
    family: str
    regime: Regime
    actor_obs_dim: int
    critic_obs_dim: int
    action_dim: int
    random_score: float | None
    normalize_score: float | None
    metric: Literal["return", "success"]

    def score(self, mean_return: float, success: float | None) -> float | None:
        """The result as a fraction between a random policy (0) and the reference (1); None if unknown."""
        value = mean_return if self.metric == "return" else None if success is None else 100.0 * success
        if value is None or self.normalize_score is None or self.random_score is None:
            return None
        return (value - self.random_score) / (self.normalize_score - self.random_score)


# Small tasks besides the benchmark: what the demo trains, and their best known returns.
_SMALL_TASKS = [
    Task("InvertedPendulum-v5", "mujoco", "limited", 4, 4, 1, 5.0, 1000.0, "return"),
    Task("InvertedDoublePendulum-v5", "mujoco", "limited", 9, 9, 1, 50.0, 9360.0, "return"),
]


@cache
def benchmark_tasks() -> tuple[Task, ...]:
    def task(row: dict[str, Any]) -> Task:
        actor, critic, action = (int(row[name]) for name in ("actor_obs_dim", "critic_obs_dim", "action_dim"))
        low, high = (float(row[name]) if row[name] else None for name in ("random_score", "normalize_score"))
        return Task(row["task"], row["family"], row["regime"], actor, critic, action, low, high, row["metric"])

    text = resources.files("warpsac.envs").joinpath("tables/tasks.csv").read_text()
    return tuple(task(row) for row in csv.DictReader(text.splitlines()))


@cache
def suite_names(family: str) -> tuple[str, ...]:
    """Every task of a family in `SUITES`; stored, as importing a simulator for a misspelled name takes seconds.

    The lists are those of dm_control 1.0.50, MyoSuite 3.0, HumanoidBench 0.2 and MuJoCo Playground 0.2.
    """
    return tuple(resources.files("warpsac.envs").joinpath(f"tables/{family}.txt").read_text().split())


def find_in_suites(name: str) -> tuple[str, str] | None:
    """The family that has a task of that name, and the name in the family's spelling."""
    for family in SUITES:
        spellings = {known.lower(): known for known in suite_names(family)}
        if name.lower() in spellings:
            return family, spellings[name.lower()]
    return None


def all_tasks() -> tuple[Task, ...]:
    return benchmark_tasks() + tuple(_SMALL_TASKS)


def find(name: str) -> Task | None:
    """The task of that name; case and a missing version are ignored."""
    tasks = {task.name: task for task in all_tasks()}
    if name in tasks:
        return tasks[name]
    folded = name.lower()
    close = [t for t in tasks.values() if folded in (t.name.lower(), re.sub(r"-v\d+$", "", t.name.lower()))]
    return close[0] if len(close) == 1 else None


def suggestions(name: str, more_names: list[str] | None = None, others_only: bool = False) -> list[str]:
    """The known names closest to a misspelled one, best first; of the benchmark's tasks, and of `more_names`."""
    own = [] if others_only else [task.name for task in all_tasks()]
    known = {n.lower(): n for n in own + (more_names or [])}

    def likeness(key: str) -> tuple[float, float]:
        """Without the version first: many tasks share one."""
        whole = (name.lower(), key)
        bare = (re.sub(r"-v\d+$", "", whole[0]), re.sub(r"-v\d+$", "", whole[1]))
        return difflib.SequenceMatcher(None, *bare).ratio(), difflib.SequenceMatcher(None, *whole).ratio()

    near = sorted((key for key in known if likeness(key)[0] >= 0.6), key=likeness, reverse=True)[:3]
    inside = [key for key in known if len(name) >= 3 and name.lower() in key and key not in near]
    return [known[key] for key in (near + inside)[:3]]
