"""A suite is a list of cells: a task, a variant with its settings, and the seeds to train.

Grids (tasks x variants x swept settings) expand to cells; with a search, to the origins of its trials, each of which is
a cell too. The built-in suites are at the end; `suite_file` reads others from YAML.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from warpsac.bench.space import SEARCH_SEEDS, Search, why_not
from warpsac.config.profiles import PROFILES, VARIANTS
from warpsac.config.schema import AUTO, PPO, Config
from warpsac.envs import modules, registry
from warpsac.envs.registry import configure
from warpsac.envs.tasks import EXTRAS, benchmark_tasks
from warpsac.errors import ConfigError, UserError
from warpsac.report.groups import is_material

Settings = Mapping[str, Any]

DEFAULT_SEEDS = (1, 2, 3, 4, 5)
MOST_RUNS = 100_000

# Not settings of a cell: decided by the suite's own keys or by the folder; a time budget because a run of a suite ends
# at its last step.
FIXED = frozenset({"task", "algo", "variant", "profile", "seeds", "out", "name", "time_budget"})
# Where some of these are given instead.
PLACE_OF = {
    "algo": f"choose it by variant, as variants: [{PPO}] or --variants {PPO}",
    "variant": "it stands beside `tasks`, as variants: [...]",
    "profile": "it stands beside `tasks`, as profile: ...",
    "seeds": "they stand beside `tasks`, as seeds: [...], or in --seeds",
}

# The variants with published curves, by regime: compared where a suite names none.
COMPARED = {
    "limited": ("warpsac-l", "warpsac-norm-off", "flashsac"),
    "abundant": ("warpsac-l", "warpsac-a", "warpsac-norm-off", "flashsac"),
}


@dataclass(frozen=True)
class Cell:
    """One task and variant; its seeds may be trained in one program."""

    config: Config
    label: str = ""
    """How it differs from the plain variant, in the name of its folder."""
    published: float | None = None
    """The published final return of these settings, if any."""

    @property
    def name(self) -> str:
        """Its folder; stable, so that the next bench finds the runs."""
        parts = (self.config.task, self.config.variant, self.label)
        return re.sub(r"[^\w.-]+", "-", "-".join(filter(None, parts)))

    @property
    def variant(self) -> str:
        return f"{self.config.variant} {self.label}".rstrip()


@dataclass(frozen=True)
class Origin:
    """Where a search starts: a task and variant, of which each trial has other settings."""

    cell: Cell
    """With some values of the searched settings; not trained itself."""
    search: Search
    make: Callable[[Settings], Config]
    """The config of a trial from its values, by dotted names."""

    def trial(self, number: int, values: Settings) -> Cell:
        return Cell(self.make(values), "-".join(filter(None, [self.cell.label, f"trial-{number}"])))


@dataclass(frozen=True)
class Suite:
    name: str
    cells: tuple[Cell, ...]
    origins: tuple[Origin, ...] = ()

    @property
    def runs(self) -> int:
        searched = sum(origin.search.trials * len(origin.cell.config.seeds) for origin in self.origins)
        return searched + sum(len(cell.config.seeds) for cell in self.cells)


@dataclass(frozen=True)
class Entry:
    """A variant of a grid with its own settings."""

    variant: str
    settings: Settings = field(default_factory=dict)
    label: str = ""


class SetError(UserError):
    """A --set that a suite refuses which is valid without it."""


@dataclass(frozen=True)
class Grid:
    """Every task with every variant and every combination of the swept settings."""

    tasks: tuple[str, ...]
    """Tasks, families, `limited` or `abundant`."""
    variants: tuple[Entry, ...] = ()
    """Empty: those of the regime's published comparison."""
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Dotted name of a setting -> its values."""
    settings: Settings = field(default_factory=dict)
    """Of every cell; overridden by a variant's own and by swept ones."""
    asked: Settings = field(default_factory=dict)
    """From --set: overridden by all of these."""
    profile: str | None = None
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    published: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    """(task, variant, label) -> published final return."""
    where: str = ""
    """The file that it was read from, for messages."""
    search: Search | None = None

    def sets(self, path: str) -> bool:
        """Whether the grid itself sets this in each of its cells."""
        by_variants = [path in dict(leaves(entry.settings)) for entry in self.variants]
        searched = self.search.space if self.search else ()
        everywhere = path in self.sweep or path in searched or path in dict(leaves(self.settings))
        return everywhere or (any(by_variants) and all(by_variants))

    @property
    def most_runs(self) -> int:
        """As many as its cells and seeds are, counted without making them."""
        tasks, swept = (len(tasks_of(group)) for group in self.tasks), map(len, self.sweep.values())
        trials = self.search.trials if self.search else 1
        return sum(tasks) * max(len(self.variants), 1) * math.prod(swept) * len(self.seeds) * trials

    def cells(self) -> Iterator[Cell]:
        # A published return belongs to exactly these settings, at the end of training.
        set_here = [path for path, _ in leaves(merged(self.asked, self.settings)) if not path.startswith("eval.")]
        published = {} if any(path == "stop_at" or is_material(path) for path in set_here) else self.published
        for task, variant, settings, label in self._combinations() if self.search is None else ():
            config = self._config(task, variant, settings)
            yield Cell(config, label, published.get((task, variant, label)))

    def origins(self) -> Iterator[Origin]:
        """Where its search starts, checked as far as that can be done before the trials are known."""
        search = self.search
        if search is None:
            return
        for path in search.space:
            if path in FIXED or (why := why_not(path)):
                raise UserError(f"search: {path} cannot be searched{'' if path in FIXED else f': {why}'}")
            if path in self.sweep:
                raise UserError(f"search: {path} is in `sweep` too: leave one of them out")
        if taken := sorted(set(self.seeds) & set(DEFAULT_SEEDS)):
            raise UserError(f"search: seed {taken[0]} is one that results are reported with: search with others, "
                            f"such as {min(SEARCH_SEEDS)} and up")  # fmt: skip
        for task, variant, settings, label in self._combinations():

            def make(values: Settings, task: str = task, variant: str = variant, own: Settings = settings) -> Config:
                return self._config(task, variant, merged(own, *(nested(path, v) for path, v in values.items())))

            for values in search.probes():
                config = make(values)
            if search.pruner != "none" and not 0 < config.eval.every < config.end_step:
                raise ConfigError("eval.every", config.eval.every, f"pruner {search.pruner} needs evaluations during "
                                  f"training, before step {config.end_step:,}")  # fmt: skip
            yield Origin(Cell(config, label), search, make)

    def _combinations(self) -> Iterator[tuple[str, str, dict[str, Any], str]]:
        """Task, variant, settings and label of each cell."""
        for name in dict.fromkeys(task for group in self.tasks for task in tasks_of(group)):
            target = registry.lookup(name)
            entries = self.variants or tuple(map(Entry, COMPARED[target.regime or "limited"]))
            for entry, values in itertools.product(entries, itertools.product(*self.sweep.values())):
                swept = dict(zip(self.sweep, values, strict=True))
                settings = merged(self.settings, entry.settings, *(nested(path, v) for path, v in swept.items()))
                label = "-".join(filter(None, [entry.label, *map(setting_label, swept, values)]))
                yield target.name, entry.variant, settings, label

    def _config(self, task: str, variant: str, own: Settings) -> Config:
        """The config of a cell; a mistake of --set alone is a SetError."""

        def made(settings: Settings) -> Config:
            for given in FIXED & settings.keys():
                hint = f": {PLACE_OF[given]}" if given in PLACE_OF else ""
                raise UserError(f"settings: {given} cannot be set for the cells of a suite{hint}")
            return configure(task, variant=variant, profile=self.profile, seeds=list(self.seeds), **settings)[0]

        modules.require_paths(own, self.where or "the suite", *modules.PATHS, modules.OWN)
        try:
            return made(merged(self.asked, own))
        except UserError as error:
            made(own)  # raises if the mistake is the suite's
            refused_by = f" (variant {variant})" if isinstance(error, ConfigError) else ""
            raise SetError(f"--set: {str(error).removeprefix('settings: ')}{refused_by}") from None


def tasks_of(group: str) -> list[str]:
    """The benchmark tasks of a family or a regime, or the one task of that name."""
    return [task.name for task in benchmark_tasks() if group in (task.family, task.regime)] or [group]


def setting_label(path: str, value: Any) -> str:
    """learner.blocks, 1 -> blocks-1"""
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
    """Nested settings; later ones override earlier ones."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
            result[name] = merged(result[name], value) if both else value
    return result


def make_suite(name: str, grids: Sequence[Grid]) -> Suite:
    """All cells of the grids; a cell that two grids share counts once."""
    found: dict[str, Cell] = {}
    origins: dict[str, Origin] = {}
    runs = sum(grid.most_runs for grid in grids)
    if runs > MOST_RUNS:
        raise UserError(f"{name}: would be {runs:,} runs; a suite has at most {MOST_RUNS:,}")
    for grid in grids:
        try:
            for cell in grid.cells():
                if found.setdefault(cell.name, cell).config != cell.config:
                    raise UserError(f"two cells would share the folder {cell.name}: give one of them a `label`")
            for origin in grid.origins():
                if origins.setdefault(origin.cell.name, origin) is not origin:
                    raise UserError(f"two searches would share the name {origin.cell.name}: give one of them a `label`")
        except SetError:
            raise
        except UserError as error:
            raise UserError(f"{grid.where}: {error}" if grid.where else str(error)) from None
    return Suite(name, tuple(found.values()), tuple(origins.values()))


def narrowed(
    grids: Sequence[Grid], tasks: Sequence[str] | None = None, variants: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None, settings: Settings | None = None,
) -> list[Grid]:  # fmt: skip
    """The grids with fewer tasks or variants, other seeds, or settings that the suite's own override."""
    for variant in variants or ():
        if variant not in (*VARIANTS, AUTO, PPO):
            raise ConfigError("variants", variant, f"must be one of {', '.join((*VARIANTS, AUTO, PPO))}")

    def names_of(groups: Sequence[str]) -> list[str]:
        return [registry.lookup(name).name for group in groups for name in tasks_of(group)]

    wanted = None if tasks is None else names_of(tasks)
    result = []
    for grid in grids:
        if wanted is not None:
            grid = replace(grid, tasks=tuple(name for name in names_of(grid.tasks) if name in wanted))
        if variants is not None:
            entries = grid.variants or tuple(map(Entry, variants))
            grid = replace(grid, variants=tuple(entry for entry in entries if entry.variant in variants))
        if seeds is not None:
            grid = replace(grid, seeds=tuple(seeds))
        if grid.tasks and (grid.variants or variants is None):
            result.append(grid)
    if not result:
        raise UserError("no cell of the suite has these --tasks and --variants")
    for path, _ in leaves(settings or {}):
        if all(grid.sets(path) for grid in result):
            raise UserError(f"--set {path}: has no effect, the suite itself sets it everywhere")
    return [replace(grid, asked=settings or {}) for grid in result]


# --- built-in suites ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BuiltIn:
    about: str
    grids: Sequence[Grid]


LIMITED_TASKS = ("humanoid-run", "humanoid-walk", "h1-hurdle-v0", "h1-reach-v0")
PLAYGROUND_TASKS = (
    "G1JoystickFlatTerrain", "G1JoystickRoughTerrain", "T1JoystickFlatTerrain", "T1JoystickRoughTerrain",
)  # fmt: skip

# Published final returns with one block: uniform replay, Sample Weight Decay.
ONE_BLOCK = {
    "humanoid-run": (209.93, 467.39),
    "humanoid-walk": (627.07, 924.39),
    "h1-hurdle-v0": (83.80, 101.09),
    "h1-reach-v0": (3018.97, 3529.44),
}
PUBLISHED = {
    (task, variant, "blocks-1"): value
    for task, values in ONE_BLOCK.items()
    for variant, value in zip(("flashsac", "warpsac-l"), values, strict=True)
}
HORIZON_FACTORS = (0.25, 0.5, 1, 2, 4)
FLOORS = (0.02, 0.05, 0.1, 0.2, 0.5)


def _in_both_regimes(path: str, limited: Sequence[Any], abundant: Sequence[Any]) -> tuple[Grid, ...]:
    return (
        Grid(LIMITED_TASKS, (Entry("warpsac-l"),), {path: limited}),
        Grid(PLAYGROUND_TASKS, (Entry("warpsac-a"),), {path: abundant}),
    )


def _horizons(profile: str) -> list[int]:
    return [round(PROFILES[profile].replay.decay_steps * factor) for factor in HORIZON_FACTORS]


BUILT_IN: dict[str, BuiltIn] = {
    "limited": BuiltIn("all data-limited tasks", (Grid(("limited",)),)),
    "abundant": BuiltIn("all data-abundant tasks", (Grid(("abundant",)),)),
    **{family: BuiltIn(f"the {family} family", (Grid((family,)),)) for family in EXTRAS},
    "flashsac-myosuite": BuiltIn(
        "flashsac on MyoSuite as it was published, with a discount of 0.95",
        (Grid(("myosuite",), (Entry("flashsac", {"learner": {"gamma": 0.95}}, "gamma-0.95"),)),),
    ),
    "ablation-swd": BuiltIn(
        "uniform replay or Sample Weight Decay, 1 to 3 blocks",
        (Grid(LIMITED_TASKS, (Entry("flashsac"), Entry("warpsac-l")), {"learner.blocks": (1, 2, 3)},
              published=PUBLISHED),),
    ),
    "ablation-norm": BuiltIn(
        "weights renormalised, not renormalised, or no Sample Weight Decay; 1 or 2 blocks",
        (Grid(PLAYGROUND_TASKS, tuple(map(Entry, COMPARED["limited"])), {"learner.blocks": (1, 2)}),),
    ),
    "ablation-critics": BuiltIn("one or two critics", _in_both_regimes("learner.critics", (1, 2), (1, 2))),
    "ablation-horizon": BuiltIn(
        "a quarter to four times the Sample Weight Decay horizon",
        _in_both_regimes("replay.decay_steps", _horizons("cpu"), _horizons("playground")),
    ),
    "ablation-floor": BuiltIn(
        "smallest weight of an old transition from 0.02 to 0.5", _in_both_regimes("replay.weight_floor", FLOORS, FLOORS)
    ),
}  # fmt: skip
