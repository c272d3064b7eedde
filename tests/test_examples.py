"""The programs of examples/ run as they are, with a few steps instead of many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from warpsac.runs import rowfiles

EXAMPLES = Path(__file__).parents[1] / "examples"


class Example(NamedTuple):
    file: str
    arguments: tuple[str, ...]  # for a short run
    task: str
    needs: str | None = None  # package


RUNS = [
    Example("own_jax_env.py", ("240",), "own_jax_env:Pendulum"),
    Example("own_gym_env.py", ("240",), "own_gym_env:make_env"),
    Example("own_torch_env.py", ("240",), "own_torch_env:Carts", needs="torch"),
]


def run(*command: str, folder: Path) -> str:
    environment = os.environ | {"XDG_CONFIG_HOME": str(folder / "config")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", RUNS, ids=lambda example: example.file)
def test_an_example_trains_and_its_run_is_evaluated_from_the_shell(example: Example, tmp_path: Path) -> None:
    if example.needs is not None:
        pytest.importorskip(example.needs)
    run(sys.executable, str(EXAMPLES / example.file), *example.arguments, folder=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "config.json").read_text())["task"] == example.task
    assert rowfiles.read_evaluations(folder)[-1]["step"] == int(example.arguments[0])
    found = json.loads(run(sys.executable, "-m", "warpsac", "eval", str(folder), "--json", folder=tmp_path))
    assert found["eval/episodes"] == 10
