"""A run resumed with other settings: those that may change, what becomes of them, and longer runs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

import warpsac
from runs import assert_same_run, rows_of, state_of, tiny, tiny_ppo
from warpsac import cli
from warpsac.config.resumable import changed, differences
from warpsac.errors import UserError
from warpsac.report.runs import collect
from warpsac.runs import checkpoint, run_folder
from warpsac.training import start


def rate(start: float, end: float, fraction: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * fraction)) / 2


def rates_of(run: Path) -> dict[int, float]:
    return {row["step"]: row["optimizer/learning_rate"] for row in rows_of(run) if "optimizer/learning_rate" in row}


def test_another_learning_rate_from_here_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rate of a row is the mean over its updates: those of one interaction here."""
    settings = {"log": {"every": 1}, "eval": {"every": 0}, "learner": {"policy_delay": 1}}
    (run,) = start.train(tiny(tmp_path, **settings, stop_at=120)).runs
    before = rates_of(run)
    capsys.readouterr()
    assert start.resume([run], stop_at=180, learner={"learning_rate": 1e-3, "final_learning_rate": 1e-4}).finished
    said = capsys.readouterr().out
    now = rates_of(run)
    assert {step: now[step] for step in before} == before
    # 270 steps of 3 environments are a horizon of 90 updates. At step 120 the last 20 of 40 interactions have learned,
    # and the last one's update is made with the next interaction.
    made = state_of(run)["info/updates"] - 20
    assert made == 20
    first = rate(1e-3, 1e-4, made / 90)
    assert now[123] == pytest.approx(first, rel=1e-6)
    assert now[180] == pytest.approx(rate(1e-3, 1e-4, (made + 19) / 90), rel=1e-6)
    old = rate(3e-4, 1.5e-4, made / 90)
    assert f"learning rate: {old:.3g} so far, {first:.3g} from here on, and 0.0001 at step 270, where the" in said
    assert "changed: stop_at 120 -> 180, learner.learning_rate 0.0003 -> 0.001, " in said
    opened = run_folder.open_run(run)
    assert opened.config.learner.learning_rate == 1e-3
    assert opened.meta["resumes"][-1]["changed"] == {
        "stop_at": [120, 180],
        "learner.learning_rate": [3e-4, 1e-3],
        "learner.final_learning_rate": [1.5e-4, 1e-4],
    }
    assert start.resume([run], stop_at=183).finished
    assert rates_of(run)[183] == pytest.approx(rate(1e-3, 1e-4, (made + 20) / 90), rel=1e-6)


def test_a_longer_run_is_the_run_that_was_longer_from_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a constant rate the schedule is the same for any horizon."""
    settings = {"learner": {"learning_rate": 2e-4, "final_learning_rate": 2e-4, "policy_delay": 1}}
    whole = start.train(tiny(tmp_path / "whole", **settings, total_steps=390)).runs
    runs = start.train(tiny(tmp_path / "part", **settings, stop_at=90)).runs
    assert start.resume(runs, stop_at=270).finished
    capsys.readouterr()
    assert start.resume(runs).finished
    assert "finished at step 270: nothing is left to train; --total-steps prolongs it" in capsys.readouterr().out
    assert start.resume(runs, total_steps=390).finished
    for run, reference in zip(runs, whole, strict=True):
        assert_same_run(run, reference, extra_evaluations=[90, 270])
        opened = run_folder.open_run(run)
        assert (opened.config.total_steps, opened.config.stop_at) == (390, None)
        assert opened.meta["resumes"][-1]["changed"] == {"total_steps": [270, 390], "stop_at": [270, None]}
        assert [found.status for found in collect([run])] == ["finished"]


def test_a_longer_run_follows_the_new_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = start.train(tiny(tmp_path, eval={"every": 0}, log={"every": 1}, learner={"policy_delay": 1})).runs
    capsys.readouterr()
    warpsac.resume(run, total_steps=540, stop_at=300)
    made = 270 // 3 - 20  # updates until then; the last interaction's is still to be made
    now = rate(3e-4, 1.5e-4, made / 180)
    assert rates_of(run)[273] == pytest.approx(now, rel=1e-6)
    old = rate(3e-4, 1.5e-4, made / 90)
    said = capsys.readouterr().out
    assert (
        f"learning rate: {old:.3g} so far, {now:.3g} from here on, and 0.00015 at step 540, where the schedule" in said
    )
    assert checkpoint.steps(run / "checkpoints")[-1] == 300
    assert run_folder.open_run(run).config.stop_at == 300


def test_ppo_is_prolonged_too(tmp_path: Path) -> None:
    whole = start.train(tiny_ppo(tmp_path / "whole", total_steps=240)).runs[0]
    (run,) = start.train(tiny_ppo(tmp_path / "part")).runs
    assert start.resume([run], total_steps=240).finished
    assert_same_run(run, whole, extra_evaluations=[180])
    with pytest.raises(UserError, match=r"learner.learning_rate = 0.1: has no effect with algo ppo"):
        start.resume([run], learner={"learning_rate": 0.1})


def test_evaluations_checkpoints_and_rows(tmp_path: Path) -> None:
    (run,) = start.train(tiny(tmp_path, stop_at=90)).runs
    changes = {"eval": {"every": 60, "episodes": 1}, "checkpoint": {"every": 30, "keep": 3}, "log": {"every": 10}}
    assert start.resume([run], stop_at=240, **changes).finished
    rows = rows_of(run)
    assert [row["step"] for row in rows if row["kind"] == "eval"] == [0, 90, 120, 180, 240]
    assert [row["eval/episodes"] for row in rows if row["kind"] == "eval"] == [2, 2, 1, 1, 1]
    assert [row["step"] for row in rows if row["kind"] == "train"][-5:] == [120, 150, 180, 210, 240]
    assert checkpoint.steps(run / "checkpoints") == [180, 210, 240]
    recorded = run_folder.open_run(run)
    assert (recorded.config.eval.every, recorded.config.checkpoint.keep, recorded.config.log.every) == (60, 3, 10)
    assert recorded.meta["resumes"][0]["changed"]["eval.episodes"] == [2, 1]


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"replay": {"batch_size": 32}},
        r"replay.batch_size = 32: cannot change when a run is resumed; what can: total_ste",
    ),
    ({"learner": {"tau": 0.5}}, "learner.tau = 0.5: cannot change"),
    ({"task": "probe-action"}, "task = 'probe-action': cannot change"),
    ({"init_from": "x"}, "init_from = 'x': cannot change"),
    ({"total_steps": 200}, "total_steps = 200: can only be raised, and the run has 270; --stop-at ends it earlier"),
    ({"eval": {"episods": 3}}, r"unknown setting eval\.episods"),
    ({"learner": {"learning_rate": -1.0}}, "learner.learning_rate = -1.0: must be positive"),
]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start.train(tiny(tmp_path_factory.mktemp("stopped"), stop_at=30, eval={"every": 0})).runs[0]


@pytest.mark.parametrize(("settings", "why"), REFUSED, ids=[next(iter(settings)) for settings, _ in REFUSED])
def test_what_cannot_change(stopped: Path, settings: dict[str, Any], why: str) -> None:
    before = {path: path.read_bytes() for path in (stopped / "config.json", stopped / "meta.json")}
    with pytest.raises(UserError, match=why):
        start.resume([stopped], **settings)
    assert {path: path.read_bytes() for path in before} == before


def test_seeds_with_different_settings_are_one_again_if_they_change_to_the_same(tmp_path: Path) -> None:
    runs = start.train(tiny(tmp_path, seeds=(1, 2), stop_at=30, eval={"every": 0})).runs
    start.resume(runs[1:], log={"every": 5})
    again = r"different settings \(log.every: 5 and 7\): give --log.every again, or resume them one by one"
    with pytest.raises(UserError, match=again):
        start.resume(runs, stop_at=60)
    assert start.resume(runs, stop_at=60, log={"every": 3}).finished
    assert [run_folder.open_run(run).config.log.every for run in runs] == [3, 3]
    assert [run_folder.open_run(run).meta["resumes"][-1]["changed"]["log.every"] for run in runs] == [[7, 3], [5, 3]]


def test_an_unchanged_resume_records_no_change(tmp_path: Path) -> None:
    (run,) = start.train(tiny(tmp_path, stop_at=30, eval={"every": 0})).runs
    text = (run / "config.json").read_text()
    start.resume([run], eval={"every": 0}, replay={"batch_size": 16})  # the values that it has
    assert (run / "config.json").read_text() == text
    assert "changed" not in json.loads((run / "meta.json").read_text())["resumes"][0]


def test_the_words_of_a_resume(stopped: Path) -> None:
    words = ["--resume", str(stopped), "--eval.episodes", "4", "--log.no-tensorboard", "--total-steps", "9e3"]
    asked, settings = cli.resume_options([*words, "--learner.final-learning-rate", "1e-5", "--stop-at", "60"])
    assert asked.resume == (str(stopped),)
    assert (asked.stop_at, asked.time_budget) == (60, None)
    learner = {"final_learning_rate": 1e-5}
    assert settings == {"total_steps": 9000, "learner": learner, "eval": {"episodes": 4}, "checkpoint": {}, "log": {}}
    with pytest.raises(UserError, match=r"eval\.episodes = 0: must be at least 1"):
        cli.resume_options(["--resume", str(stopped), "--eval.episodes", "0"])


def test_differences_are_by_dotted_name(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    assert differences(config, config) == {}
    longer = changed(config, {"total_steps": 300, "eval": {"every": 7}})
    assert differences(config, longer) == {"total_steps": (270, 300), "eval.every": (120, 7)}
    early = dataclasses.replace(config, stop_at=90)
    assert changed(early, {"total_steps": 300}).stop_at is None  # to its new end
    assert changed(early, {"total_steps": 300, "stop_at": 280}).stop_at == 280
    assert changed(early, {"eval": {"every": 7}}).stop_at == 90
