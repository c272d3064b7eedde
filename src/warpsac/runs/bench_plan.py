"""plan.json: what a bench is to train, from which the report knows what is missing. Resuming does not need it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from warpsac.config.loading import from_json
from warpsac.config.schema import Config
from warpsac.errors import UserError
from warpsac.runs.files import in_words, read_bytes, require_writable, write_atomically

PLAN = "plan.json"


class Planned(NamedTuple):
    """A folder of runs that differ in the seed only, and their settings."""

    name: str
    config: Config


def read_plan(folder: Path) -> list[Planned]:
    """What is planned in a folder; empty if it has no plan."""
    path = folder / PLAN
    try:
        cells = json.loads(read_bytes(path))["cells"]
        return [Planned(str(cell["name"]), from_json(json.dumps(cell["config"]), str(path))) for cell in cells]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: {in_words(error)}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{path}: not a plan; remove it, and `warpsac bench` writes it again") from None


def write_plan(folder: Path, cells: Sequence[Planned]) -> None:
    """Add these cells to the plan; a cell that was planned before gets the seeds of both."""
    plan = {cell.name: cell.config for cell in read_plan(folder)}
    for name, config in cells:
        seeds = config.seeds + tuple(s for s in plan.get(name, config).seeds if s not in config.seeds)
        plan[name] = dataclasses.replace(config, seeds=seeds, out=name)
    content = {"cells": [{"name": name, "config": dataclasses.asdict(config)} for name, config in plan.items()]}
    with require_writable(folder / PLAN):
        write_atomically(folder / PLAN, (json.dumps(content, indent=1) + "\n").encode())
