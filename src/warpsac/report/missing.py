"""Which runs are missing: those of a plan, or the gaps in the grid that the runs form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from warpsac.errors import UserError
from warpsac.report.groups import OTHER_FAMILY, Group, group_of, in_order, scale_of
from warpsac.report.runs import Run, common_changes
from warpsac.runs.bench_plan import PLAN, Planned, read_plan

RunKey = tuple[str, Group, int]
"""Task, group and seed."""


class Missing(NamedTuple):
    task: str
    group: Group
    seeds: tuple[int, ...]


def find_plans(roots: Sequence[Path]) -> tuple[list[Planned], list[str]]:
    """The plans of benches in the folders, or in their direct subfolders; and lines about those that are no plans."""
    folders = (folder for root in roots for folder in (root, *sorted(file.parent for file in root.glob(f"*/{PLAN}"))))
    cells, unreadable = [], []
    for folder in folders:
        try:
            cells += read_plan(folder)
        except UserError as error:
            unreadable.append(str(error))
    return cells, unreadable


def find_missing(runs: Sequence[Run], planned: Sequence[Planned] = ()) -> list[Missing]:
    """The runs that are planned and do not exist; without a plan, the gaps in the grid that the runs form."""
    lengths: defaultdict[RunKey, set[int]] = defaultdict(set)  # a plan may have the same run at two lengths
    for run in runs:
        if run.group and run.seed is not None:
            lengths[run.task, run.group.planned, run.seed].add(run.end_step)
    expected = _planned_lengths(runs, planned) if planned else {key: {0} for key in _grid(runs, lengths.keys())}
    gaps: defaultdict[tuple[str, Group], set[int]] = defaultdict(set)
    for (task, group, seed), wanted in expected.items():
        if len(lengths[task, group, seed]) < len(wanted):
            gaps[task, group].add(seed)
    return [Missing(task, group, tuple(sorted(seeds))) for (task, group), seeds in gaps.items()]


def _planned_lengths(runs: Sequence[Run], planned: Sequence[Planned]) -> Mapping[RunKey, set[int]]:
    """The planned runs, without those that were started and are listed as damaged."""
    unreadable = {(run.path.parent.name, run.path.name) for run in runs if run.group is None}
    wanted: defaultdict[RunKey, set[int]] = defaultdict(set)
    for name, config in planned:
        for seed in config.seeds:
            if not any(folder == name and run.endswith(f"-seed{seed}") for folder, run in unreadable):
                wanted[scale_of(config).task, group_of(config), seed].add(config.end_step)
    return wanted


def _grid(runs: Sequence[Run], existing: Collection[RunKey]) -> Iterator[RunKey]:
    """Every plain variant on a task should have the seeds that any of them has on it, and one that occurs in a family
    all tasks that occur in it. Of an ablation nothing is expected: who tries one chooses where and with which seeds. A
    seed with a shorter run is not missing: it need not exist at both lengths."""
    common = common_changes(runs)
    family = {run.task: run.scale.family for run in runs}
    plain = [(task, group, seed) for task, group, seed in existing if not group.without(common).changes]
    in_family = {(family[task], group) for task, group, _ in plain if family[task] != OTHER_FAMILY}
    for task in dict.fromkeys(task for task, _, _ in existing):
        seeds = sorted({seed for of, _, seed in plain if of == task})
        for group in in_order({group for _, group, _ in plain}):
            if (family[task], group) in in_family or any((task, group, seed) in existing for seed in seeds):
                yield from ((task, group, seed) for seed in seeds)
