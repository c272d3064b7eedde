"""Which runs are missing: of a plan, or of the grid that the runs draw up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from warpsac.report.groups import OTHER_FAMILY, Group, group_of, in_order, scale_of
from warpsac.report.runs import Run, common_changes
from warpsac.runs.bench_plan import PLAN, Planned, read_plan


class Missing(NamedTuple):
    task: str
    group: Group
    seeds: tuple[int, ...]


def find_plans(roots: Sequence[Path]) -> list[Planned]:
    """What benches have planned in the folders, or in folders right inside them."""
    folders = (folder for root in roots for folder in (root, *sorted(file.parent for file in root.glob(f"*/{PLAN}"))))
    return [cell for folder in folders for cell in read_plan(folder)]


def find_missing(runs: Sequence[Run], planned: Sequence[Planned] = ()) -> list[Missing]:
    """The runs that are planned and not there; without a plan, the gaps of the grid that the runs draw up.

    Every group on a task should have the seeds that any group has there, and a plain variant that occurs in a
    family should have all tasks that occur in it. Ablations are not expected on other tasks. A seed that was trained
    for a shorter time is there: nobody is expected to have it at both lengths.
    """
    if planned:
        return _missing_of_plan(runs, planned)
    common = common_changes(runs)
    seeds: dict[str, set[int]] = {}
    there: dict[tuple[str, Group], set[int]] = {}
    family: dict[str, str] = {}
    for run in runs:
        if run.scale and run.group and run.seed is not None:
            seeds.setdefault(run.task, set()).add(run.seed)
            there.setdefault((run.task, run.group.whole), set()).add(run.seed)
            family[run.task] = run.scale.family
    plain = {(family[task], group) for task, group in there if not group.without(common).changes}
    for task in seeds:
        for of, group in plain:
            if of == family[task] and of != OTHER_FAMILY:
                there.setdefault((task, group), set())
    gaps = {key: seeds[key[0]] - found for key, found in there.items()}
    order = in_order({group for _, group in there})
    return [
        Missing(task, group, tuple(sorted(gaps[task, group])))
        for task in seeds
        for group in order
        if gaps.get((task, group))
    ]


def _missing_of_plan(runs: Sequence[Run], planned: Sequence[Planned]) -> list[Missing]:
    there: dict[Any, set[int]] = {}
    for run in runs:
        if run.group is not None:
            there.setdefault((run.task, run.group.whole, run.seed), set()).add(run.end_step)
    unreadable = {(run.path.parent.name, run.path.name) for run in runs if run.group is None}
    wanted: dict[tuple[str, Group, int], set[int]] = {}  # a plan may have the same run at two lengths
    for cell, config in planned:
        for seed in config.seeds:
            if any(folder == cell and name.endswith(f"-seed{seed}") for folder, name in unreadable):
                continue  # begun, and listed as damaged
            wanted.setdefault((scale_of(config).task, group_of(config), seed), set()).add(config.end_step)
    gaps: dict[tuple[str, Group], set[int]] = {}
    for (task, group, seed), lengths in wanted.items():
        if len(there.get((task, group, seed), ())) < len(lengths):
            gaps.setdefault((task, group), set()).add(seed)
    return [Missing(task, group, tuple(sorted(seeds))) for (task, group), seeds in gaps.items()]
