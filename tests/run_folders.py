"""Run folders with known evaluations, as training would have left them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from warpsac.config import provenance
from warpsac.config.loading import override, to_json
from warpsac.config.profiles import resolve
from warpsac.config.schema import Config
from warpsac.envs.tasks import find
from warpsac.runs import rowfiles, run_folder


def config_of(task: str, variant: str, seed: int = 1, **changes: Any) -> Config:
    known = find(task)
    regime, family = (known.regime, known.family) if known else (None, None)
    config = resolve(task, regime=regime, family=family, variant=variant, profile=changes.pop("profile", None))[0]
    return override(config, {"seeds": (seed,), **changes})


def write_run(
    out: Path,
    task: str,
    variant: str,
    seed: int,
    evaluations: Sequence[tuple[int, float | str, float]],
    name: str | None = None,
    meta: Mapping[str, Any] | None = None,
    metric: str = "return",
    given_name: str | None = None,
    **changes: Any,
) -> Path:
    """A run with (step, value, seconds) as its evaluations, a train row before each; returns its folder, `name`."""
    config = dataclasses.replace(config_of(task, variant, seed, **changes), name=given_name)
    folder = out / (name or run_folder.run_name(dataclasses.replace(config, name=None), seed))
    folder.mkdir(parents=True)
    (folder / run_folder.CONFIG).write_text(to_json(config))
    content = provenance.describe(command=["warpsac", "train", task]) | {"resumes": []} | dict(meta or {})
    (folder / run_folder.META).write_text(json.dumps(content))
    lines: list[dict[str, Any]] = []
    for step, value, seconds in evaluations:
        head = {"step": step, "time/seconds": seconds}
        if step:
            lines.append(head | {"kind": "train", "faults/count": 0})
        lines.append(head | {"kind": "eval", f"eval/{metric}": value, "eval/episodes": 5})
    (folder / rowfiles.METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
