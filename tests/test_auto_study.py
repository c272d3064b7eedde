"""The studies of what `auto` and the fast profile could be made of: suites, and the table of every configuration."""

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
from warpsac.envs.registry import configure
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
    if name.startswith("auto-"):
        assert {"", "calibrated", "cap-3", "own-half"} <= {cell.label for cell in suite.cells}


def test_the_suites_of_the_clock_keep_the_horizon_in_transitions() -> None:
    """With the number of robots, as in the profile; a label says what its cell has. Three tasks, a few minutes each."""
    suite = make_suite(*read_suite(FOLDER / "suites" / "clock-robots.yaml"))
    for cell in suite.cells:
        config = cell.config
        assert cell.label == f"{config.env.num_envs}-{config.updates_per_step}"
        assert config.replay.decay_steps * config.env.num_envs == 500 * 4096
        assert (config.profile, config.stop_at, config.eval.at_start) == ("playground-fast", 16_000_000, False)
    assert len({cell.config.task for cell in suite.cells}) == 3
    assert {cell.config.env.num_envs for cell in suite.cells} == {2048, 4096, 8192}
    others = make_suite(*read_suite(FOLDER / "suites" / "clock-learning.yaml"))
    profile = configure("G1JoystickFlatTerrain", profile="fast")[0]
    assert {(one.config.env.num_envs, one.config.updates_per_step) for one in others.cells} == {
        (profile.env.num_envs, profile.updates_per_step)
    }


def written(folder: Path, seed: int, returns: list[float], pessimism: float) -> None:
    run = folder / "probe-point-warpsac-l-calibrated" / f"probe-point-warpsac-l-seed{seed}"
    run.mkdir(parents=True)
    rows: list[dict[str, Any]] = [{"step": 5, "kind": "train", "learner/pessimism": 1.0}]
    rows += [{"step": 9, "kind": "train", "learner/pessimism": pessimism}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["step,return_mean,return_std,length_mean,episodes,seconds"]
    lines += [f"{10 * i},{value},0.0,3.0,2,{20.0 * i}" for i, value in enumerate(returns)]
    (run / "evaluations.csv").write_text("\n".join(lines) + "\n")


def test_the_table_has_every_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("auto_study")
    config = tiny(Path("runs"), seeds=(11, 12))
    names = ("probe-point-warpsac-l-calibrated", "probe-point-warpsac-a")
    write_plan(tmp_path, [Planned(name, config) for name in names])
    written(tmp_path, 11, [0, 10, 20, 30], 0.5)
    written(tmp_path, 12, [0, 10, 20, 10], 0.25)
    words = [str(tmp_path), "--json", "--save", str(tmp_path / "table"), "--notes", "here"]
    module.main([*words, "--share", "0.75"])
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == ["probe-point warpsac-l-calibrated", "probe-point warpsac-a"]
    assert shown["probe-point warpsac-a"] == {"seeds": []}  # nothing is there yet, and it is said
    row = shown["probe-point warpsac-l-calibrated"]
    assert (row["seeds"], row["step"], row["final"], row["final_std"]) == ([11, 12], 30, 20, 14.14)
    assert (row["height"], row["height_std"], row["collapses"]) == (12.5, 3.536, 1)
    assert row["learner/pessimism"] == [0.5, 0.25]
    assert row["reached"] == [60]  # 22.5 of 30, by one seed in its fourth evaluation
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
