"""A suite is a list of cells: a task, a variant with its settings, and the seeds to train.

Grids (tasks x variants x swept settings) expand to cells. The built-in suites are grids made from the table of
tasks; `suite_file` reads others from YAML.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from warpsac.config.profiles import PROFILES, VARIANTS
from warpsac.config.schema import PPO, Config
from warpsac.envs import registry
from warpsac.envs.tasks import EXTRAS, benchmark_tasks
from warpsac.errors import ConfigError, UserError
from warpsac.report.groups import is_material
from warpsac.training.configure import configure

Settings = Mapping[str, Any]

DEFAULT_SEEDS = (1, 2, 3, 4, 5)

# Decided elsewhere: by the suite's own keys, by the folder, or (a time budget) never: a run ends at its last step.
FIXED = frozenset({"task", "algo", "variant", "profile", "seeds", "out", "name", "time_budget"})

# The variants whose curves were published, by regime: what is compared where a suite names none.
COMPARED = {
    "limited": ("warpsac-l", "warpsac-norm-off", "flashsac"),
    "abundant": ("warpsac-l", "warpsac-a", "warpsac-norm-off", "flashsac"),
}


@dataclass(frozen=True)
class Cell:
    """One task and variant; its seeds may be trained in one program."""

    config: Config
    label: str = ""
    """What sets it apart from the plain variant, in the name of its folder."""
    published: float | None = None
    """The published final return of just this, where there is one."""

    @property
    def name(self) -> str:
        """Its folder: stable, because a cell that is run again must find what is there."""
        parts = (self.config.task, self.config.variant, self.label)
        return re.sub(r"[^\w.-]+", "-", "-".join(filter(None, parts)))

    @property
    def variant(self) -> str:
        return f"{self.config.variant} {self.label}".rstrip()


@dataclass(frozen=True)
class Suite:
    name: str
    cells: tuple[Cell, ...]

    @property
    def runs(self) -> int:
        return sum(len(cell.config.seeds) for cell in self.cells)


@dataclass(frozen=True)
class Entry:
    """A variant with settings of its own."""

    variant: str
    settings: Settings = field(default_factory=dict)
    label: str = ""


class SetError(UserError):
    """What --set asks for does not go with a suite that is sound by itself."""


@dataclass(frozen=True)
class Grid:
    """Every task with every variant and every combination of the swept settings."""

    tasks: tuple[str, ...]
    """Tasks, families, `limited` or `abundant`."""
    variants: tuple[Entry, ...] = ()
    """None named: those of the regime's published comparison."""
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Dotted name of a setting -> its values."""
    settings: Settings = field(default_factory=dict)
    """Of every cell; a variant's own and swept ones come on top."""
    asked: Settings = field(default_factory=dict)
    """From --set: underneath all of these."""
    profile: str | None = None
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    published: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    """(task, variant, label) -> published final return."""
    where: str = ""
    """The file that it was read from, for messages."""

    def sets(self, path: str) -> bool:
        """Whether the grid itself decides a setting in each of its cells."""
        by_variants = [path in dict(leaves(entry.settings)) for entry in self.variants]
        return path in self.sweep or path in dict(leaves(self.settings)) or (any(by_variants) and all(by_variants))

    def cells(self) -> Iterator[Cell]:
        # A published return is that of just these settings, at the end of training.
        set_here = [path for path, _ in leaves(merged(self.asked, self.settings)) if not path.startswith("eval.")]
        published = {} if any(path == "stop_at" or is_material(path) for path in set_here) else self.published
        for name in dict.fromkeys(task for group in self.tasks for task in tasks_of(group)):
            target = registry.lookup(name)
            entries = self.variants or tuple(map(Entry, COMPARED[target.regime or "limited"]))
            for entry, values in itertools.product(entries, itertools.product(*self.sweep.values())):
                swept = dict(zip(self.sweep, values, strict=True))
                settings = merged(self.settings, entry.settings, *(nested(path, v) for path, v in swept.items()))
                config = self._config(target.name, entry.variant, settings)
                label = "-".join(filter(None, [entry.label, *map(_in_a_word, swept, values)]))
                yield Cell(config, label, published.get((target.name, entry.variant, label)))

    def _config(self, task: str, variant: str, own: Settings) -> Config:
        """The config of a cell; what is wrong with --set alone is a SetError."""

        def made(settings: Settings) -> Config:
            for given in FIXED & settings.keys():
                hint = f": its variants say it, as variants: [{PPO}] or --variants {PPO}" if given == "algo" else ""
                raise UserError(f"settings: {given} cannot be set for the cells of a suite{hint}")
            return configure(task, variant=variant, profile=self.profile, seeds=list(self.seeds), **settings)[0]

        try:
            return made(merged(self.asked, own))
        except UserError as error:
            made(own)  # raises what is wrong with the suite itself
            refused_by = f" (variant {variant})" if isinstance(error, ConfigError) else ""
            raise SetError(f"--set: {str(error).removeprefix('settings: ')}{refused_by}") from None


def tasks_of(group: str) -> list[str]:
    """The benchmark tasks of a family or a regime, or the one task of that name."""
    return [task.name for task in benchmark_tasks() if group in (task.family, task.regime)] or [group]


def _in_a_word(path: str, value: Any) -> str:
    return f"{path.rpartition('.')[2]}-{value}"


def nested(path: str, value: Any) -> dict[str, Any]:
    """learner.blocks, 1 -> {"learner": {"blocks": 1}}"""
    head, _, rest = path.partition(".")
    return {head: nested(rest, value) if rest else value}


def leaves(settings: Settings, path: str = "") -> list[tuple[str, Any]]:
    """{"learner": {"blocks": 1}} -> [("learner.blocks", 1)]"""
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        found += leaves(value, f"{path}{name}.") if isinstance(value, Mapping) else [(path + name, value)]
    return found


def merged(*layers: Settings) -> dict[str, Any]:
    """Nested settings, later ones on top."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
            result[name] = merged(result[name], value) if both else value
    return result


def make_suite(name: str, grids: Sequence[Grid]) -> Suite:
    """All cells of the grids; a cell that two grids share counts once."""
    found: dict[str, Cell] = {}
    for grid in grids:
        try:
            for cell in grid.cells():
                if found.setdefault(cell.name, cell).config != cell.config:
                    raise UserError(f"two cells would share the folder {cell.name}: give one of them a `label`")
        except SetError:
            raise
        except UserError as error:
            raise UserError(f"{grid.where}: {error}" if grid.where else str(error)) from None
    return Suite(name, tuple(found.values()))


def narrowed(
    grids: Sequence[Grid],
    tasks: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    settings: Settings | None = None,
) -> list[Grid]:
    """The grids with fewer tasks or variants, other seeds, or settings underneath the suite's own."""
    for variant in variants or ():
        if variant not in (*VARIANTS, PPO):
            raise ConfigError("variants", variant, f"must be among {', '.join((*VARIANTS, PPO))}")
    wanted = None if tasks is None else {registry.lookup(name).name for group in tasks for name in tasks_of(group)}
    result = []
    for grid in grids:
        if wanted is not None:
            names = (registry.lookup(name).name for group in grid.tasks for name in tasks_of(group))
            grid = replace(grid, tasks=tuple(name for name in names if name in wanted))
        if variants is not None:
            entries = grid.variants or tuple(map(Entry, variants))
            grid = replace(grid, variants=tuple(entry for entry in entries if entry.variant in variants))
        if seeds is not None:
            grid = replace(grid, seeds=tuple(seeds))
        if grid.tasks and (grid.variants or variants is None):
            result.append(grid)
    if not result:
        raise UserError("nothing is left of the suite with these --tasks and --variants")
    for path, _ in leaves(settings or {}):
        if all(grid.sets(path) for grid in result):
            raise UserError(f"--set {path}: has no effect, the suite itself sets it everywhere")
    return [replace(grid, asked=settings or {}) for grid in result]


# --- built-in suites ------------------------------------------------------------------------------------

LIMITED_TASKS = ("humanoid-run", "humanoid-walk", "h1-hurdle-v0", "h1-reach-v0")
PLAYGROUND_TASKS = (
    "G1JoystickFlatTerrain",
    "G1JoystickRoughTerrain",
    "T1JoystickFlatTerrain",
    "T1JoystickRoughTerrain",
)

# Published final returns with one block: uniform replay, Sample Weight Decay.
ONE_BLOCK = {
    "humanoid-run": (209.93, 467.39),
    "humanoid-walk": (627.07, 924.39),
    "h1-hurdle-v0": (83.80, 101.09),
    "h1-reach-v0": (3018.97, 3529.44),
}
HORIZON_FACTORS = (0.25, 0.5, 1, 2, 4)
FLOORS = (0.02, 0.05, 0.1, 0.2, 0.5)


def _swd() -> list[Grid]:
    published = {
        (task, variant, "blocks-1"): value
        for task, values in ONE_BLOCK.items()
        for variant, value in zip(("flashsac", "warpsac-l"), values, strict=True)
    }
    variants = (Entry("flashsac"), Entry("warpsac-l"))
    return [Grid(LIMITED_TASKS, variants, {"learner.blocks": (1, 2, 3)}, published=published)]


def _norm() -> list[Grid]:
    variants = (Entry("warpsac-l"), Entry("warpsac-norm-off"), Entry("flashsac"))
    return [Grid(PLAYGROUND_TASKS, variants, {"learner.blocks": (1, 2)})]


def _critics() -> list[Grid]:
    critics = {"learner.critics": (1, 2)}
    return [
        Grid(LIMITED_TASKS, (Entry("warpsac-l"),), critics),
        Grid(PLAYGROUND_TASKS, (Entry("warpsac-a"),), critics),
    ]


def _horizon() -> list[Grid]:
    def values(profile: str) -> tuple[int, ...]:
        return tuple(round(PROFILES[profile].replay.decay_steps * factor) for factor in HORIZON_FACTORS)

    return [
        Grid(LIMITED_TASKS, (Entry("warpsac-l"),), {"replay.decay_steps": values("cpu")}),
        Grid(PLAYGROUND_TASKS, (Entry("warpsac-a"),), {"replay.decay_steps": values("playground")}),
    ]


def _floor() -> list[Grid]:
    return [
        Grid(LIMITED_TASKS, (Entry("warpsac-l"),), {"replay.weight_floor": FLOORS}),
        Grid(PLAYGROUND_TASKS, (Entry("warpsac-a"),), {"replay.weight_floor": FLOORS}),
    ]


@dataclass(frozen=True)
class BuiltIn:
    about: str
    grids: Callable[[], list[Grid]]


def _group(name: str, about: str) -> BuiltIn:
    return BuiltIn(about, lambda: [Grid((name,))])


BUILT_IN: dict[str, BuiltIn] = {
    "limited": _group("limited", "all data-limited tasks"),
    "abundant": _group("abundant", "all data-abundant tasks"),
    **{family: _group(family, f"the {family} family") for family in EXTRAS},
    "ablation-swd": BuiltIn("uniform replay or Sample Weight Decay, 1 to 3 blocks", _swd),
    "ablation-norm": BuiltIn("weights renormalised, not renormalised, or no Sample Weight Decay; 1 or 2 blocks", _norm),
    "ablation-critics": BuiltIn("one or two critics", _critics),
    "ablation-horizon": BuiltIn("a quarter to four times the Sample Weight Decay horizon", _horizon),
    "ablation-floor": BuiltIn("smallest weight of an old transition from 0.02 to 0.5", _floor),
}
