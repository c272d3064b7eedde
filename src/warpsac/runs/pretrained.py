"""Policies that come with the package: `pretrained:NAME` in the place of a run folder, and `warpsac pretrained`.

They are run folders of results/trained, of which a wheel holds what acting needs (setup.py): one copy in the
repository, which a checkout reads where it is. pretrained.csv says which.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import json
from pathlib import Path
from typing import NamedTuple

from warpsac.config.schema import PRETRAINED
from warpsac.errors import UserError, printable, shortened
from warpsac.runs import policies, rowfiles
from warpsac.runs.run_folder import RunFolder, open_run

HERE = Path(__file__).parent
IN_WHEEL, IN_CHECKOUT = HERE / "pretrained", HERE.parents[2] / "results" / "trained"


class Pretrained(NamedTuple):
    name: str  # as after `pretrained:`, and the task that it was trained on
    run: str  # its run folder
    needs: str  # the extra that its simulator is in
    licence: str  # of the policy; the robot's model is not part of it

    @property
    def folder(self) -> Path:
        return (IN_WHEEL if IN_WHEEL.is_dir() else IN_CHECKOUT) / self.run


def everything() -> list[Pretrained]:
    with open(HERE / "pretrained.csv", encoding="utf-8", newline="") as file:
        return [Pretrained(**row) for row in csv.DictReader(file)]


def located(run: Path | str) -> Path:
    """The folder that is meant: a path as it is, or that of `pretrained:NAME`."""
    if not str(run).startswith(PRETRAINED) and (str(run) != PRETRAINED[:-1] or Path(run).exists()):
        return Path(run)
    name, known = str(run)[len(PRETRAINED) :], {one.name: one for one in everything()}
    if not name:
        raise UserError(f"{PRETRAINED}NAME: needs one of {', '.join(known)} (`warpsac pretrained`)")
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {PRETRAINED}{near[0]}?" if near else f"there are {', '.join(known)}"
        raise UserError(f"{PRETRAINED}{printable(shortened(name))}: no such policy; {hint} (`warpsac pretrained`)")
    if not known[name].folder.is_dir():
        raise UserError(f"{PRETRAINED}{name}: this installation came without it; a wheel, or a checkout, has it")
    return known[name].folder


def opened(run: Path | str) -> RunFolder:
    """A run folder to read, also `pretrained:NAME`; what is made of that goes to a folder in the current one."""
    found = open_run(located(run))
    if str(run).startswith(PRETRAINED):
        found.products = Path(f"{PRETRAINED}{found.config.task}".replace(":", "-"))
    return found


# --- the command


@dataclasses.dataclass(frozen=True)
class PretrainedOptions:
    """List the policies that come with the package, the returns that they reached, and their licence."""

    json: bool = False
    """Print a JSON list instead of a table."""


def described(one: Pretrained) -> dict[str, object]:
    """What is known about it: the evaluation of its training run at the step of the policy, or the last before it."""
    run = open_run(one.folder)
    step = policies.steps(run)[-1]
    last = [row for row in rowfiles.read_evaluations(run.path) if row["step"] <= step][-1]
    return {
        "name": f"{PRETRAINED}{one.name}",
        "task": run.config.task,
        "variant": run.config.variant,
        "step": step,
        "return": last["return_mean"],
        "return_std": last["return_std"],
        "episodes": int(last["episodes"]),
        "evaluated_at": int(last["step"]),
        "extra": one.needs,
        "licence": one.licence,
        "folder": str(one.folder),
    }


def command(asked: PretrainedOptions) -> int:
    rows = [described(one) for one in everything() if one.folder.is_dir()]
    if asked.json:
        print(json.dumps(rows))
        return 0
    width = max((len(str(row["name"])) for row in rows), default=0)
    print(f"{'policy':{width}}  {'variant':9}  {'steps':>10}  {'return':>13}  {'extra':10}  licence")
    for row in rows:
        reached = f"{row['return']:.1f} ± {row['return_std']:.1f}"
        of_run = f"{row['variant']:9}  {row['step']:>10,}  {reached:>13}"
        print(f"{row['name']:{width}}  {of_run}  {row['extra']:10}  {row['licence']}")
    print("\nreturn: of the last evaluation in training, mean and standard deviation over its episodes")
    print(f"watch one: warpsac play {rows[0]['name']}" if rows else "this installation came without any")
    return 0
