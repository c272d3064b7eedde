"""Policies that come with the package: `pretrained:NAME` stands for a run folder that is only read."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpsac
from warpsac import cli
from warpsac.envs import modules
from warpsac.errors import UserError
from warpsac.runs import pretrained, rowfiles
from warpsac.watch import play_command

ROOT = Path(__file__).parents[1]
DEMO = "pretrained:InvertedDoublePendulum-v5"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(list(words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_all_of_them_act_and_are_listed_with_what_they_reached(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pretrained", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in listed} == {f"pretrained:{one.name}" for one in pretrained.everything()}
    for row in listed:
        policy = warpsac.load_policy(row["name"])
        assert (policy.step, policy.info["task"]) == (row["step"], row["task"])
        assert np.isfinite(policy(np.zeros(policy.actor.views.actor_dim))).all()
        last = rowfiles.read_evaluations(Path(row["folder"]))[-1]
        assert (row["return"], row["evaluated_at"]) == (last["return_mean"], int(last["step"]))
        assert row["licence"] == "Apache-2.0"
    assert cli.main(["pretrained"]) == 0
    table = capsys.readouterr().out
    assert "pretrained:InvertedDoublePendulum-v5       warpsac-l      20,000   9359.5 ± 0.2  mujoco" in table


@pytest.mark.mujoco
def test_it_still_reaches_its_return(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", DEMO, "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["eval/return"] == pytest.approx(9359.5, abs=1.0)


@pytest.mark.mujoco
def test_what_is_made_of_it_goes_to_the_current_folder(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    filmed: list[Path] = []
    monkeypatch.setattr(play_command.play, "record", lambda agent, task, out, *rest: filmed.append(out))
    assert cli.main(["play", DEMO]) == 0
    assert cli.main(["play", DEMO, "--agent", "zero"]) == 0  # its task, without the policy
    folder = Path("pretrained-InvertedDoublePendulum-v5")
    assert filmed == [folder / "policy.mp4", folder / "zero.mp4"]
    assert folder.is_dir()
    pytest.importorskip("onnx")
    assert cli.main(["export", DEMO]) == 0
    assert (folder / "export/policy.onnx").exists()


@pytest.mark.mujoco
def test_a_video_that_fails_leaves_no_folder(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise UserError("no way to draw here")

    monkeypatch.setattr(play_command.play, "record", fail)
    assert "no way to draw here" in fails(capsys, "play", DEMO)
    assert list(here.iterdir()) == []


@pytest.mark.playground
def test_where_a_simulator_in_jax_is_slow_another_way_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play_command.play, "record", lambda *_: "25 steps")
    monkeypatch.setattr(play_command.devices, "on_cpu", lambda: True)
    assert cli.main(["play", "pretrained:G1JoystickFlatTerrain"]) == 0
    instead = "in real time: warpsac sim2sim pretrained:G1JoystickFlatTerrain --viewer\n"
    assert capsys.readouterr().out.splitlines(keepends=True)[0].endswith(instead)


def test_what_cannot_walk_is_called_by_its_name(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    assert f"{DEMO}: carries no description of a robot: " in fails(capsys, "sim2sim", DEMO)

    def incomplete(*_: Any) -> None:
        raise UserError("no meshes here")

    monkeypatch.setattr("warpsac.envs.registry.deployment", incomplete)
    assert fails(capsys, "sim2sim", DEMO).endswith("no meshes here")
    assert "; or export the policy alone with --without-robot" in fails(capsys, "export", DEMO)


def test_a_way_to_draw_is_chosen_before_mujoco_is_imported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides then how it draws, and exporting a policy of a robot imports it."""
    pytest.importorskip("mujoco")
    done: list[str] = []

    def export(*_: Any) -> None:
        done.append("exported")
        raise UserError("enough")

    monkeypatch.setattr("warpsac.deploy.sim2sim.command.prepare_to_draw", lambda: done.append("chosen"))
    monkeypatch.setattr("warpsac.deploy.export.export", export)
    assert cli.main(["sim2sim", DEMO, "--video", "walk.mp4"]) == 2
    assert done == ["chosen", "exported"]


def test_an_unknown_name_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean pretrained:G1JoystickFlatTerrain?" in fails(capsys, "eval", "pretrained:G1JoystickFlatTerain")
    for words in (["eval"], ["play"], ["export"], ["sim2sim"]):
        assert "no such policy; there are InvertedDoublePendulum-v5, G1" in fails(capsys, *words, "pretrained:None")
    for word in ("pretrained", "pretrained:"):
        assert fails(capsys, "play", word).startswith(
            "warpsac: pretrained:NAME: needs one of InvertedDoublePendulum-v5, G1"
        )
    assert "init_from: pretrained:None: no such" in fails(
        capsys, "train", "InvertedDoublePendulum-v5", "--profile", "demo", "--init-from", "pretrained:None"
    )
    assert "no run folder; `train TASK --init-from" in fails(capsys, "train", "--resume", DEMO)
    assert list(here.iterdir()) == []


def test_an_installation_without_them_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pretrained, "IN_CHECKOUT", tmp_path / "gone")
    with pytest.raises(UserError, match="pretrained:G1JoystickFlatTerrain: this installation came without it"):
        warpsac.load_policy("pretrained:G1JoystickFlatTerrain")


def test_a_saved_file_that_names_one_names_no_path_of_others() -> None:
    """It is of this package, so a run that starts from it begins again without a question."""
    assert list(modules.paths_of({"init_from": DEMO})) == []
    assert list(modules.paths_of({"init_from": "runs/other"})) == [("init_from", "runs/other")]


def test_the_wheel_carries_what_acting_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the list of setup.py, without rows and other policies: the same actions as from the checkout."""
    setup: dict[str, Any] = {}
    source = (ROOT / "setup.py").read_text().rpartition("\nsetup(")[0]
    exec(compile(source, str(ROOT / "setup.py"), "exec"), setup | {"__file__": str(ROOT / "setup.py")}, setup)
    with open(ROOT / "src/warpsac/runs/pretrained.csv", newline="") as file:
        runs = [row["run"] for row in csv.DictReader(file)]
    for run in runs:
        for pattern in setup["CARRIED"]:
            for path in (ROOT / "results/trained" / run).glob(pattern):
                target = tmp_path / path.relative_to(ROOT / "results/trained")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
    assert not list(tmp_path.rglob("metrics.jsonl"))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 4e6
    expected = warpsac.load_policy(DEMO)(np.full(9, 0.1))
    monkeypatch.setattr(pretrained, "IN_WHEEL", tmp_path)
    np.testing.assert_array_equal(warpsac.load_policy(DEMO)(np.full(9, 0.1)), expected)
