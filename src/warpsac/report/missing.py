"""Which runs are missing: those that a bench has planned. Of runs that somebody started by hand none is expected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from warpsac.errors import UserError
from warpsac.report.groups import Group, group_of, scale_of
from warpsac.report.runs import Run
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


def find_missing(runs: Sequence[Run], planned: Sequence[Planned]) -> list[Missing]:
    """The runs that are planned and do not exist."""
    lengths: defaultdict[RunKey, set[int]] = defaultdict(set)  # a plan may have the same run at two lengths
    for run in runs:
        if run.group and run.seed is not None:
            lengths[run.task, run.group.planned, run.seed].add(run.end_step)
    gaps: defaultdict[tuple[str, Group], set[int]] = defaultdict(set)
    for (task, group, seed), wanted in _planned_lengths(runs, planned).items():
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
