"""plan.json: what a bench means to train, so that others can tell what is missing. Never needed to go on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from warpsac.config.schema import Config
from warpsac.errors import UserError
from warpsac.runs.files import in_words
from warpsac.runs.files import write_atomically
from warpsac.config.validation import from_json

PLAN = "plan.json"


class Planned(NamedTuple):
    """A folder of runs that are alike but for the seed, and the settings of all of them."""

    name: str
    config: Config


def read_plan(folder: Path) -> list[Planned]:
    """What is planned in a folder; nothing if nobody has planned there."""
    path = folder / PLAN
    try:
        cells = json.loads(path.read_bytes())["cells"]
        return [Planned(str(cell["name"]), from_json(json.dumps(cell["config"]), str(path))) for cell in cells]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: {in_words(error)}") from None
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path}: not a plan; `warpsac bench` writes it anew if you remove it") from None


def write_plan(folder: Path, cells: Sequence[Planned]) -> None:
    """Plan these cells, beside those that were planned before; one that was there gets the seeds of both."""
    plan = {cell.name: cell.config for cell in read_plan(folder)}
    for name, config in cells:
        seeds = config.seeds + tuple(s for s in plan.get(name, config).seeds if s not in config.seeds)
        plan[name] = dataclasses.replace(config, seeds=seeds, out=name)
    content = {"cells": [{"name": name, "config": dataclasses.asdict(config)} for name, config in plan.items()]}
    try:
        write_atomically(folder / PLAN, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise UserError(f"{folder / PLAN}: cannot be written: {in_words(error)}") from error
