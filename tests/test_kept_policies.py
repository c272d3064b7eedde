"""The policy of every evaluation is kept, and `--step` finds the one that is meant."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import warpsac
from golden_runs import DATA
from run_folders import write_run
from runs import assert_same_run, rows_of, state_of, tiny
from test_resume import Killed, die, interrupt
from warpsac import cli
from warpsac.errors import TrainingStopped, UserError
from warpsac.report.runs import collect
from warpsac.runs import checkpoint, policies, rowfiles, run_folder
from warpsac.training import start
from warpsac.training.loop import Loop
from warpsac.watch import play_command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluated at 0, 120, 240 and 270; the last checkpoints are of 225 and 270."""
    return start.train(tiny(tmp_path_factory.mktemp("runs"))).runs[0]


def copy_of(run: Path, folder: Path, returns: dict[int, float] | None = None) -> Path:
    """A copy, in which evaluations had these returns."""
    shutil.copytree(run, folder)
    rows = rowfiles.read_metrics(folder)
    for row in rows:
        if returns and row["kind"] == "eval":
            row["eval/return"] = returns[row["step"]]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "evaluations.csv").unlink()  # derived from the rows
    return folder


def arrays_of(policy: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(policy)]


def test_every_evaluation_keeps_its_policy(run: Path) -> None:
    assert checkpoint.steps(run / "policies") == [0, 120, 240, 270]
    assert checkpoint.steps(run / "checkpoints") == [225, 270]
    for path in (run / "policies").iterdir():
        assert sorted(file.name for file in path.iterdir()) == ["manifest.json", "policy.npz"]
    (kept,), (saved,) = (checkpoint.find(run / folder, 270) for folder in ("policies", "checkpoints"))
    assert (kept / "policy.npz").read_bytes() == (saved / "policy.npz").read_bytes()
    assert checkpoint.load(kept).info["evaluated_at"] == 270
    assert [found.status for found in collect([run])] == ["finished"]


def test_a_policy_by_its_step(run: Path, tmp_path: Path) -> None:
    """A run that stopped there has the same one."""
    (shorter,) = start.train(tiny(tmp_path, stop_at=120)).runs
    policy = warpsac.load_policy(run, step=120)
    assert policy.step == 120
    for one, other in zip(arrays_of(policy.policy), arrays_of(warpsac.load_policy(shorter).policy), strict=True):
        np.testing.assert_array_equal(one, other)
    assert warpsac.load_policy(run).step == warpsac.load_policy(run, step="last").step == 270
    assert warpsac.load_policy(run, step=225).step == 225  # of a checkpoint
    for missing, nearest in ((123, "are 120 and 225"), (999, "is 270")):
        with pytest.raises(UserError, match=rf"no policy of step {missing}; the nearest {nearest}$"):
            warpsac.load_policy(run, step=missing)


def test_the_best_is_what_the_evaluations_say(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = copy_of(run, tmp_path / "a", {0: -9.0, 120: 5.0, 240: 5.0, 270: float("nan")})
    assert warpsac.load_policy(copy, step="best").step == 240  # of equals, the later one
    (checkpoint.find(copy / "policies", 240)[0] / "policy.npz").write_bytes(b"")
    assert warpsac.load_policy(copy, step="best").step == 120
    assert "policy.npz has 0 bytes instead of" in capsys.readouterr().err
    # A run of an earlier version has only its checkpoints.
    shutil.rmtree(copy / "policies")
    with pytest.raises(
        UserError, match="no policy of an evaluation is left, so none is the best; the last is of step 270"
    ):
        warpsac.load_policy(copy, step="best")
    older = copy_of(run, tmp_path / "b", {0: -9.0, 120: 5.0, 240: 4.0, 270: 3.0})
    shutil.rmtree(older / "policies")
    assert warpsac.load_policy(older, step="best").step == 270
    assert "the best evaluation, at step 120, was not kept: taking that of 270" in capsys.readouterr().err
    (older / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="no evaluation yet, so no best policy; the last is of step 270"):
        warpsac.load_policy(older, step="best")


def test_success_counts_first_where_it_is_the_measure(tmp_path: Path) -> None:
    rows = [(0, 0.5, 0.0), (100, 0.9, 1.0), (200, 0.9, 2.0), (300, 0.2, 3.0)]
    folder = write_run(tmp_path, "myo-key-turn", "warpsac-l", 1, rows, metric="success")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    returns = {0: 9.0, 100: 8.0, 200: 7.0, 300: 99.0}
    text = "".join(json.dumps(line | {"eval/return": returns[line["step"]]}) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    assert [row["step"] for row in policies.ranked(run_folder.open_run(folder))] == [100, 200, 0, 300]


def test_run_folders_of_earlier_versions() -> None:
    folder = DATA / "sac-host"
    assert not (folder / "policies").exists()
    last = warpsac.load_policy(folder).step
    assert warpsac.load_policy(folder, step=last).step == last
    assert warpsac.load_policy(folder, step="best").step == last


# --- commands


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert cli.main(list(words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_commands_take_a_step(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of(run, tmp_path / "a", {0: -9.0, 120: 5.0, 240: 4.0, 270: 3.0})
    for step, found in (("0", 0), ("best", 120), ("last", 270)):
        assert cli.main(["eval", str(copy), "--step", step, "--episodes", "1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["step"] == found
    assert "no policy of step 123; the nearest are 120 and 225" in fails(capsys, "eval", str(copy), "--step", "123")
    assert "--step: many is not a whole number" in fails(capsys, "eval", str(copy), "--step", "many")
    assert "step = -1: must be best, last or at least 0" in fails(capsys, "eval", str(copy), "--step=-1")
    assert cli.main(["export", str(copy), "--step", "best", "--json"]) == 0
    assert "step: 120" in (Path(json.loads(capsys.readouterr().out)["path"]) / "deploy.yaml").read_text()
    filmed: list[tuple[int, Path]] = []
    monkeypatch.setattr(play_command.play, "record", lambda agent, task, out, *rest: filmed.append((agent.step, out)))
    assert cli.main(["play", str(copy), "--step", "best"]) == 0
    assert cli.main(["play", str(copy)]) == 0
    assert filmed == [(120, copy / "policy-120.mp4"), (270, copy / "policy.mp4")]
    said = fails(capsys, "play", "probe-point", "--agent", "zero", "--step", "3")
    assert said.endswith("--step 3: only a policy has one: leave it out with --agent zero")


# --- when training ends early


def test_killed_between_policy_and_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    keep = policies.keep

    def killed(folder: Any, step: int, *rest: Any) -> None:
        keep(folder, step, *rest)
        if step == 120:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(policies, "keep", killed)
        with pytest.raises(Killed):
            start.train(tiny(tmp_path))
    (mine,) = tmp_path.iterdir()
    assert checkpoint.steps(mine / "policies") == [0, 120]
    assert [row["step"] for row in rows_of(mine) if row["kind"] == "eval"] == [0]
    assert warpsac.load_policy(mine).step == 120
    assert warpsac.load_policy(mine, step="best").step == 0  # the other has no evaluation
    assert start.resume([mine]).finished
    assert_same_run(mine, run)
    assert checkpoint.steps(mine / "policies") == [0, 120, 240, 270]
    assert (mine / "policies" / "set-aside-step_000000000120").is_dir()


def test_policies_beyond_the_checkpoint_are_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"eval": {"every": 30}, "checkpoint": {"every": 75}}
    interrupt(monkeypatch, at=48, how=die)  # at step 144: the checkpoint is of 75, policies of 90 and 120 are later
    with pytest.raises(Killed):
        start.train(tiny(tmp_path, **settings))
    (mine,) = tmp_path.iterdir()
    assert checkpoint.steps(mine / "policies") == [0, 30, 60, 90, 120]
    assert start.resume([mine], stop_at=90).finished
    names = sorted(path.name for path in (mine / "policies").iterdir())
    assert names == ["set-aside-step_000000000090", "set-aside-step_000000000120",
                     *(f"step_{step:012d}" for step in (0, 30, 60, 90))]  # fmt: skip
    assert len(rowfiles.read_evaluations(mine)) == 4


def test_an_evaluation_made_again_replaces_its_policy(tmp_path: Path) -> None:
    (mine,) = start.train(tiny(tmp_path, stop_at=120)).runs
    (mine / "metrics.jsonl").write_text((mine / "metrics.jsonl").read_text()[:-10])  # the last evaluation
    (mine / "evaluations.csv").unlink()  # from which it would be rebuilt
    (kept,) = checkpoint.find(mine / "policies", 120)
    (kept / "mark").touch()
    assert start.resume([mine]).finished
    assert not (kept / "mark").exists()
    assert sorted(path.name for path in (mine / "policies").iterdir()) == ["step_000000000000", "step_000000000120"]


def test_a_full_disk_at_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    write = checkpoint._write_file

    def full(path: Path, produce: Any) -> tuple[int, int]:
        if "policies" in path.parts and "120" in path.parent.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, produce)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write_file", full)
        with pytest.raises(
            TrainingStopped, match=r"^cannot write policy .*000120 \(no space .*; the policy of step 0 is kept$"
        ):
            start.train(tiny(tmp_path))
    (mine,) = tmp_path.iterdir()
    assert [path.name for path in (mine / "policies").iterdir()] == ["step_000000000000"]
    assert state_of(mine)["info/interaction"] == 25  # the checkpoint before it
    assert start.resume([mine]).finished
    assert_same_run(mine, run)


def test_a_policy_that_is_not_finite_is_not_kept(tmp_path: Path) -> None:
    with start.prepared(tiny(tmp_path)) as loop:
        policy = {"actor/vectors": np.array([1.0, np.nan], np.float32)}
        with pytest.raises(TrainingStopped, match="actor/vectors is not finite"):
            Loop._require_finite_parameters(loop, loop.runs[0], policy)


def test_the_end_of_training_names_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Path) -> None:
    from warpsac.training.loop import Outcome

    copy = copy_of(run, tmp_path / "a", {0: -9.0, 120: 5.0, 240: 4.0, 270: 3.0})
    assert cli._end_of_training(Outcome([copy], "finished")) == 0
    assert "best evaluation: return 5.0 at step 120; --step best takes it" in capsys.readouterr().out
    untrained = copy_of(run, tmp_path / "c", {0: 9.0, 120: 5.0, 240: 4.0, 270: 3.0})
    assert cli._end_of_training(Outcome([untrained], "finished")) == 0
    assert "best evaluation" not in capsys.readouterr().out
    other = copy_of(run, tmp_path / "b", {0: -9.0, 120: 5.0, 240: 4.0, 270: 6.0})
    assert cli._end_of_training(Outcome([other], "finished")) == 0
    assert "best" not in capsys.readouterr().out
