"""The study of what `auto` could be made of: its suites, and the table of every configuration."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from runs import tiny
from test_benchmarks import FOLDER, load
from warpsac.bench.suite import DEFAULT_SEEDS, make_suite
from warpsac.bench.suite_file import read_suite
from warpsac.config.arms import arms_of
from warpsac.config.schema import AUTO
from warpsac.errors import UserError
from warpsac.runs.bench_plan import Planned, write_plan

SUITES = sorted((FOLDER / "suites").glob("*.yaml"))
# What is judged at the end is not studied on.
KEPT = ("T1JoystickFlatTerrain", "T1JoystickRoughTerrain", "dog-walk", "h1-pole-v0")


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_suites_keep_seeds_and_tasks_of_the_verdict_apart(path: Path) -> None:
    name, grids = read_suite(path)
    suite = make_suite(name, grids)
    assert name == path.stem
    for cell in suite.cells:
        assert not set(cell.config.seeds) & set(DEFAULT_SEEDS)
        assert min(cell.config.seeds) >= 11
        assert cell.config.task not in KEPT
        assert "walker2d" not in cell.config.task.lower()
        if cell.config.variant == AUTO:
            arms_of(cell.config)
    tried = {cell.label for cell in suite.cells}
    assert {"", "calibrated", "cap-3", "own-half"} <= tried


def written(folder: Path, seed: int, returns: list[float], pessimism: float) -> None:
    run = folder / "probe-point-warpsac-l-calibrated" / f"probe-point-warpsac-l-seed{seed}"
    run.mkdir(parents=True)
    rows: list[dict[str, Any]] = [{"step": 5, "kind": "train", "learner/pessimism": 1.0}]
    rows += [{"step": 9, "kind": "train", "learner/pessimism": pessimism}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["step,return_mean,return_std,length_mean,episodes,seconds"]
    lines += [f"{10 * i},{value},0.0,3.0,2,1.0" for i, value in enumerate(returns)]
    (run / "evaluations.csv").write_text("\n".join(lines) + "\n")


def test_the_table_has_every_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("auto_study")
    config = tiny(Path("runs"), seeds=(11, 12))
    names = ("probe-point-warpsac-l-calibrated", "probe-point-warpsac-a")
    write_plan(tmp_path, [Planned(name, config) for name in names])
    written(tmp_path, 11, [0, 10, 20, 30], 0.5)
    written(tmp_path, 12, [0, 10, 20, 10], 0.25)
    module.main([str(tmp_path), "--json", "--save", str(tmp_path / "table"), "--notes", "here"])
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == ["probe-point warpsac-l-calibrated", "probe-point warpsac-a"]
    assert shown["probe-point warpsac-a"] == {"seeds": []}  # nothing is there yet, and it is said
    row = shown["probe-point warpsac-l-calibrated"]
    assert (row["seeds"], row["step"], row["final"], row["final_std"]) == ([11, 12], 30, 20, 14.14)
    assert (row["height"], row["height_std"], row["collapses"]) == (12.5, 3.536, 1)
    assert row["learner/pessimism"] == [0.5, 0.25]
    with open(tmp_path / "table.csv", newline="") as stream:
        assert [one["final"] for one in csv.DictReader(stream)] == ["20.0", ""]
    assert json.loads((tmp_path / "table.json").read_text())["notes"] == "here"


def test_mistakes_are_named(tmp_path: Path) -> None:
    module = load("auto_study")
    with pytest.raises(UserError, match=r"no plan\.json: not a folder of warpsac bench"):
        module.main([str(tmp_path)])
    write_plan(tmp_path, [Planned("probe-point-warpsac-l", tiny(Path("runs"), seeds=(3, 11)))])
    with pytest.raises(UserError, match="seed 3 is one that results are reported with"):
        module.main([str(tmp_path)])


def test_a_collapse_is_late_and_deep() -> None:
    module = load("auto_study")
    assert module.collapsed([0, 1, 10, 10, 10, 6.9])
    assert not module.collapsed([0, 1, 10, 10, 10, 7.1])
    assert not module.collapsed([0, 10, 2, 11, 12, 13, 14, 15, 16, 17])  # early
    assert module.collapsed([-100, -50, 0, 0, -40])  # counted from the first: 100, then 60
