"""Which runs are missing: of a plan, or of the grid that the existing runs form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from warpsac.report.groups import OTHER_FAMILY, Group, group_of, in_order, scale_of
from warpsac.report.runs import Run, common_changes
from warpsac.runs.bench_plan import PLAN, Planned, read_plan


class Missing(NamedTuple):
    task: str
    group: Group
    seeds: tuple[int, ...]


def find_plans(roots: Sequence[Path]) -> list[Planned]:
    """The plans of benches in the folders, or in their direct subfolders."""
    folders = (folder for root in roots for folder in (root, *sorted(file.parent for file in root.glob(f"*/{PLAN}"))))
    return [cell for folder in folders for cell in read_plan(folder)]


def find_missing(runs: Sequence[Run], planned: Sequence[Planned] = ()) -> list[Missing]:
    """The runs that are planned and do not exist; without a plan, the gaps in the grid that the runs form.

    Every group on a task should have the seeds that any group has on it, and a plain variant that occurs in a family
    should have all tasks that occur in it. Ablations are not expected on other tasks. A seed with a shorter run is not
    missing: it need not exist at both lengths.
    """
    if planned:
        return _missing_of_plan(runs, planned)
    common = common_changes(runs)
    seeds: defaultdict[str, set[int]] = defaultdict(set)
    existing: defaultdict[tuple[str, Group], set[int]] = defaultdict(set)
    family: dict[str, str] = {}
    for run in runs:
        if run.scale and run.group and run.seed is not None:
            seeds[run.task].add(run.seed)
            existing[run.task, run.group.whole].add(run.seed)
            family[run.task] = run.scale.family
    plain = {(family[task], group) for task, group in existing if not group.without(common).changes}
    expected = {(task, group) for task in seeds for of, group in plain if of == family[task] != OTHER_FAMILY}
    expected |= existing.keys()
    return [
        Missing(task, group, tuple(sorted(gap)))
        for task in seeds
        for group in in_order({group for _, group in existing})
        if (task, group) in expected and (gap := seeds[task] - existing[task, group])
    ]


def _missing_of_plan(runs: Sequence[Run], planned: Sequence[Planned]) -> list[Missing]:
    existing: defaultdict[tuple[str, Group, int | None], set[int]] = defaultdict(set)
    for run in runs:
        if run.group is not None:
            existing[run.task, run.group.whole, run.seed].add(run.end_step)
    unreadable = {(run.path.parent.name, run.path.name) for run in runs if run.group is None}
    wanted: defaultdict[tuple[str, Group, int], set[int]] = defaultdict(
        set
    )  # a plan may have the same run at two lengths
    for cell, config in planned:
        for seed in config.seeds:
            # A run that was started and is listed as damaged is not missing.
            if not any(folder == cell and name.endswith(f"-seed{seed}") for folder, name in unreadable):
                wanted[scale_of(config).task, group_of(config), seed].add(config.end_step)
    gaps: defaultdict[tuple[str, Group], set[int]] = defaultdict(set)
    for (task, group, seed), lengths in wanted.items():
        if len(existing[task, group, seed]) < len(lengths):
            gaps[task, group].add(seed)
    return [Missing(task, group, tuple(sorted(seeds))) for (task, group), seeds in gaps.items()]
