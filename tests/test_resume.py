"""An interrupted and resumed run equals the uninterrupted one, bit for bit, however it was interrupted."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpsac
from runs import WARMUP, assert_same_run, assert_same_state, rows_of, state_of, tiny
from warpsac.config.schema import Config
from warpsac.errors import UserError
from warpsac.report.runs import collect
from warpsac.runs import checkpoint, rowfiles, run_folder
from warpsac.training import start
from warpsac.training.loop import Loop
from warpsac.training.state import _arrays_of
from warpsac.training.stepped import SteppedDriver


def per_env(num_envs: int) -> dict[str, Any]:
    """The sizes of a tiny run that count environment steps, so that interactions are the same for any number."""
    return {
        "env": {"num_envs": num_envs},
        "total_steps": 90 * num_envs,
        "learning_starts": WARMUP * num_envs,
        "eval": {"every": 40 * num_envs},
        "checkpoint": {"every": 25 * num_envs},
    }


# Each value of each setting, and each pair of them, at least once.
SETTINGS: dict[str, dict[str, Any]] = {
    "1-step-1-env-1-seed": {
        **per_env(1), "seeds": (1,), "replay": {"n_step": 1, "capacity": 50}, "updates_per_step": 2,
    },
    "1-step-3-envs-2-seeds": {**per_env(3), "seeds": (1, 2), "replay": {"n_step": 1}, "learner": {"policy_delay": 1}},
    "3-steps-1-env-2-seeds": {
        **per_env(1), "seeds": (1, 2), "replay": {"n_step": 3, "capacity": 50}, "learner": {"policy_delay": 1},
    },
    "3-steps-3-envs-1-seed": {**per_env(3), "seeds": (1,), "replay": {"n_step": 3}},
}  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @functools.cache
    def runs(setting: str, overlap: bool) -> list[Path]:
        out = tmp_path_factory.mktemp("reference")
        outcome = start.train(tiny(out, **SETTINGS[setting], overlap=overlap))
        assert outcome.finished
        return outcome.runs

    return runs


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int, how: Any) -> None:
    """Let `how()` happen within interaction number `at` of the next loop."""
    original = SteppedDriver.interact

    def interact(self: SteppedDriver) -> None:
        if self.state.counters.interaction == at:
            monkeypatch.setattr(SteppedDriver, "interact", original)
            how()
        original(self)

    monkeypatch.setattr(SteppedDriver, "interact", interact)


def kill_with(number: signal.Signals) -> Any:
    return lambda: os.kill(os.getpid(), number)


class Killed(Exception):
    """Ends a process of which nothing is left but its files, as far as a test in the same one can tell."""


def die() -> None:
    raise Killed


# --- bit for bit


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "strict"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_interrupted_four_times_equals_uninterrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Any, setting: str, overlap: bool
) -> None:
    """Stopped in the warm-up, when learning begins, within an episode and between two rows."""
    config = tiny(tmp_path, **SETTINGS[setting], overlap=overlap)
    envs = config.env.num_envs
    interrupt(monkeypatch, at=11, how=kill_with(signal.SIGTERM))
    outcome = start.train(config)
    assert (outcome.reason, outcome.signal) == ("signal", signal.SIGTERM)
    runs = outcome.runs
    assert checkpoint.steps(runs[0] / "checkpoints") == [12 * envs]

    interrupt(monkeypatch, at=WARMUP, how=kill_with(signal.SIGINT))
    outcome = start.resume(runs)
    assert (outcome.reason, outcome.signal) == ("signal", signal.SIGINT)

    assert start.resume(runs, stop_at=33 * envs).finished
    assert checkpoint.steps(runs[0] / "checkpoints")[-1] == 33 * envs

    interrupt(monkeypatch, at=70, how=die)  # after the checkpoint at 50, with three rows behind it
    with pytest.raises(Killed):
        start.resume(runs, stop_at=90 * envs)
    assert [row["step"] for row in rows_of(runs[0])][-3:] == [56 * envs, 63 * envs, 70 * envs]

    assert start.resume(runs, stop_at=90 * envs).finished
    for run, reference in zip(runs, uninterrupted(setting, overlap), strict=True):
        assert_same_run(run, reference, extra_evaluations=[33 * envs])
        aside = rowfiles.read_metrics(run / "set_aside" / "metrics-1.jsonl")
        assert [row["step"] for row in aside] == [56 * envs, 63 * envs, 70 * envs]
        assert [resume["step"] for resume in run_folder.open_run(run).meta["resumes"]] == [
            12 * envs, 21 * envs, 33 * envs, 50 * envs,
        ]  # fmt: skip


def test_resumed_with_replay_in_the_other_memory(tmp_path: Path, uninterrupted: Any) -> None:
    setting = SETTINGS["3-steps-3-envs-1-seed"]
    for before, after in (("host", "device"), ("device", "host")):
        config = tiny(tmp_path, **setting | {"replay": {"n_step": 3, "placement": before}}, stop_at=141)
        (run,) = start.train(config).runs
        settings = (run / "config.json").read_text()  # edited for another machine
        assert f'"placement": "{before}"' in settings
        (run / "config.json").write_text(settings.replace(f'"placement": "{before}"', f'"placement": "{after}"'))
        start.resume([run], stop_at=270)
        assert_same_run(run, uninterrupted("3-steps-3-envs-1-seed", True)[0], extra_evaluations=[141])


# --- what a signal may meet


def test_a_signal_during_an_evaluation_ends_it_and_the_resumed_run_makes_up_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Any
) -> None:
    config, setting = tiny(tmp_path, **SETTINGS["3-steps-3-envs-1-seed"]), "3-steps-3-envs-1-seed"
    original, calls = SteppedDriver.evaluate, []

    def interrupted(self: SteppedDriver, step: int, *arguments: Any) -> Any:
        calls.append(step)
        if calls in ([0], [0, 0, 120]) or (calls[-1] == 270 and calls.count(270) == 1):
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, step, *arguments)

    monkeypatch.setattr(SteppedDriver, "evaluate", interrupted)
    outcome = start.train(config)
    runs = outcome.runs
    assert (outcome.reason, rows_of(runs[0])) == ("signal", [])
    for step in (120, 270):
        assert start.resume(runs).reason == "signal"
        assert checkpoint.steps(runs[0] / "checkpoints")[-1] == step
    assert start.resume(runs).finished
    assert calls == [0, 0, 120, 120, 240, 270, 270]
    assert_same_run(runs[0], uninterrupted(setting, True)[0])


def test_killed_after_an_evaluation_that_the_checkpoint_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Any
) -> None:
    """A signal ended the evaluation at 120; it was made up for, then nothing was saved any more: it is there once."""
    setting, evaluate = "3-steps-3-envs-1-seed", SteppedDriver.evaluate

    def interrupted(self: SteppedDriver, step: int, *arguments: Any) -> Any:
        if step == 120:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, step, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(SteppedDriver, "evaluate", interrupted)
        runs = start.train(tiny(tmp_path, **SETTINGS[setting])).runs
    assert checkpoint.steps(runs[0] / "checkpoints")[-1] == 120
    interrupt(monkeypatch, at=41, how=die)
    with pytest.raises(Killed):
        start.resume(runs)
    assert rows_of(runs[0])[-1]["step"] == 120
    assert rows_of(runs[0])[-1]["kind"] == "eval"
    assert start.resume(runs).finished
    assert_same_run(runs[0], uninterrupted(setting, True)[0])
    assert [row["step"] for row in rowfiles.read_evaluations(runs[0])] == [0, 120, 240, 270]


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path, uninterrupted: Any) -> None:
    config = tiny(tmp_path, **SETTINGS["3-steps-3-envs-1-seed"])
    runs = start.train(config).runs
    assert start.resume(runs).finished
    assert_same_run(runs[0], uninterrupted("3-steps-3-envs-1-seed", True)[0])


def without_seconds(table: str) -> list[list[str]]:
    """The cells of an evaluations.csv, but for the second column."""
    return [[cell for i, cell in enumerate(line.split(",")) if i != 1] for line in table.splitlines()]


@pytest.mark.parametrize("damaged", ["metrics.jsonl", "evaluations.csv"])
def test_a_last_evaluation_that_was_lost_is_made_again(tmp_path: Path, damaged: str) -> None:
    runs = start.train(tiny(tmp_path, seeds=(1, 2), stop_at=120)).runs
    before = [(rows_of(run), (run / "evaluations.csv").read_text()) for run in runs]
    file = runs[1] / damaged
    file.write_text(file.read_text()[:-10])  # its last line is the evaluation's
    assert start.resume(runs).finished
    for run, (rows, table) in zip(runs, before, strict=True):
        assert rows_of(run) == rows
        assert without_seconds((run / "evaluations.csv").read_text()) == without_seconds(table)
    assert start.resume(runs).finished
    assert [rows_of(run) for run in runs] == [rows for rows, _ in before]


def test_before_the_first_checkpoint_resume_starts_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(monkeypatch, at=16, how=die)
    with pytest.raises(Killed):
        start.train(tiny(tmp_path, **SETTINGS["3-steps-3-envs-1-seed"]))
    (run,) = tmp_path.iterdir()
    assert [row["step"] for row in rows_of(run)] == [0, 21, 42]
    assert start.resume([run]).finished
    assert "no checkpoint is there: starting from the beginning; the rows up to step 42 and" in capsys.readouterr().out
    assert_same_run(run, uninterrupted("3-steps-3-envs-1-seed", True)[0])
    assert len(rowfiles.read_metrics(run / "set_aside" / "metrics-1.jsonl")) == 3


# --- damaged checkpoints


def damage(run: Path, name: str = "learner.npz", which: int = -1) -> None:
    file = run / "checkpoints" / f"step_{checkpoint.steps(run / 'checkpoints')[which]:012d}" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_taken(
    tmp_path: Path, uninterrupted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = "3-steps-3-envs-1-seed"
    (run,) = start.train(tiny(tmp_path, **SETTINGS[setting], stop_at=165)).runs
    assert checkpoint.steps(run / "checkpoints") == [150, 165]
    damage(run)
    capsys.readouterr()
    assert start.resume([run], stop_at=270).finished
    lines = [line for line in capsys.readouterr().out.splitlines() if " is damaged: " in line]
    assert len(lines) == 1
    assert lines[0].endswith("learner.npz has a wrong checksum; trying the checkpoint before it")
    assert_same_run(run, uninterrupted(setting, True)[0], extra_evaluations=[165])
    assert (run / "checkpoints" / "set-aside-step_000000000165").is_dir()


def test_all_seeds_go_back_to_the_newest_step_that_all_have(tmp_path: Path, uninterrupted: Any) -> None:
    setting = "1-step-3-envs-2-seeds"
    runs = start.train(tiny(tmp_path, **SETTINGS[setting], stop_at=165)).runs
    damage(runs[1], "replay.npz")
    assert start.resume(runs, stop_at=270).finished
    for run, reference in zip(runs, uninterrupted(setting, True), strict=True):
        assert_same_run(run, reference, extra_evaluations=[165])


def test_seeds_without_a_step_that_all_have_are_resumed_one_by_one(tmp_path: Path) -> None:
    runs = start.train(tiny(tmp_path, **SETTINGS["1-step-3-envs-2-seeds"], stop_at=81)).runs
    damage(runs[0], which=0)
    damage(runs[1], which=1)
    with pytest.raises(UserError, match=r"seed1: no good checkpoint of step 75 or before: resume the runs one by one"):
        start.resume(runs)
    assert start.resume(runs[:1], stop_at=84).finished
    assert start.resume(runs[1:], stop_at=84).finished


def test_seeds_can_be_resumed_alone(tmp_path: Path) -> None:
    runs = start.train(tiny(tmp_path, **SETTINGS["1-step-3-envs-2-seeds"], stop_at=48)).runs
    assert start.resume(runs[1:], stop_at=51).finished
    (runs[0] / "checkpoints" / "step_000000000048").rename(tmp_path / "gone")
    with pytest.raises(UserError, match=r"seed1 has no checkpoint yet, .*seed2 has: resume them one by one"):
        start.resume(runs)


def test_killed_while_the_seeds_are_saved_with_one_checkpoint_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Any
) -> None:
    """The first seed has the checkpoint at 50 already, the second still that at 25: what both have is not removed."""
    setting = "1-step-3-envs-2-seeds"
    save = checkpoint.save

    def killed(folder: Path, step: int, *rest: Any) -> Path:
        if step == 150 and "seed2" in str(folder):
            raise Killed
        return save(folder, step, *rest)

    changes = {**SETTINGS[setting], "checkpoint": {"every": 75, "keep": 1}}
    monkeypatch.setattr(checkpoint, "save", killed)
    with pytest.raises(Killed):
        start.train(tiny(tmp_path, **changes))
    monkeypatch.undo()
    runs = sorted(tmp_path.iterdir())
    assert [checkpoint.steps(run / "checkpoints") for run in runs] == [[75, 150], [75]]
    assert "step 75 is the last saved" in start.after_a_stop_at_once([run_folder.open_run(run) for run in runs])
    assert start.resume(runs).finished
    for run, reference in zip(runs, uninterrupted(setting, True), strict=True):
        assert_same_run(run, reference)
        assert checkpoint.steps(run / "checkpoints") == [270]


@pytest.mark.parametrize("killed_at", [1, 2])
def test_killed_while_the_seeds_save_their_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """80 environment steps, the first multiple of 10 environments after `checkpoint.every`, with a row at 80."""
    save, saves = checkpoint.save, 0

    def killed(folder: Path, *rest: Any) -> Path:
        nonlocal saves
        saves += folder.name == "checkpoints"
        if saves == killed_at + 1:
            raise Killed
        return save(folder, *rest)

    changes = {
        "seeds": (1, 2, 3),
        "env": {"num_envs": 10},
        "learning_starts": 60,
        "total_steps": 120,
        "log": {"every": 4},
    }
    reference = start.train(tiny(tmp_path / "reference", **changes)).runs
    monkeypatch.setattr(checkpoint, "save", killed)
    with pytest.raises(Killed):
        start.train(tiny(tmp_path / "killed", **changes))
    monkeypatch.undo()
    runs = sorted((tmp_path / "killed").iterdir())
    assert [checkpoint.steps(run / "checkpoints") for run in runs] == [[80]] * killed_at + [[]] * (3 - killed_at)
    assert rows_of(runs[2])[-1]["step"] == 80
    capsys.readouterr()
    assert start.resume(runs).finished
    assert "some seeds have no checkpoint: all start from the beginning" in capsys.readouterr().out
    for run, other in zip(runs, reference, strict=True):
        assert_same_run(run, other)
    assert (runs[0] / "checkpoints" / "set-aside-step_000000000080").is_dir()


def test_seeds_of_which_some_lost_their_checkpoints_do_not_begin_again(tmp_path: Path) -> None:
    runs = start.train(tiny(tmp_path, seeds=(1, 2), stop_at=150)).runs
    shutil.rmtree(runs[1] / "checkpoints")
    with pytest.raises(UserError, match=r"seed2: has rows up to step 150 but no checkpoint to resume from"):
        start.resume(runs)
    assert checkpoint.steps(runs[0] / "checkpoints") == [75, 150]


def test_a_run_that_was_resumed_from_a_checkpoint_has_lost_it(tmp_path: Path) -> None:
    """It has not come to its first regular one, but a signal had asked for one."""
    (run,) = start.train(tiny(tmp_path, stop_at=30)).runs
    start.resume([run], stop_at=60)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"has rows up to step 60 but no checkpoint to resume from"):
        start.resume([run])


# --- files that are not those of the checkpoint


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start.train(tiny(tmp_path_factory.mktemp("half"), stop_at=120)).runs[0]


def test_lost_rows_are_said_and_training_continues(
    tmp_path: Path, half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(half, run)
    (run / "metrics.jsonl").write_bytes(b"")
    capsys.readouterr()
    assert start.resume([run], stop_at=135).finished
    said = "metrics.jsonl is empty: rows 1 to 7, up to step 120, lost; 2 evaluations were rebuilt from evaluations.csv"
    assert said in capsys.readouterr().out
    assert [row["step"] for row in rowfiles.read_evaluations(run)] == [0, 120, 135]
    assert start.resume([run], stop_at=138).finished
    assert "metrics.jsonl" not in capsys.readouterr().out


@pytest.mark.parametrize("last", ["checkpoints", "policies"])
def test_an_altered_config_is_refused_wherever_it_matters(tmp_path: Path, half: Path, last: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(half, run)
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"gamma": 0.99,', '"gamma": 0.98,', 1))
    why = r"config\.json says learner\.gamma = 0\.98, but step_000000000120 was saved with 0\.99: .*set it back"
    with pytest.raises(UserError, match=why):
        start.resume([run])
    shutil.rmtree(run / ("policies" if last == "checkpoints" else "checkpoints"))
    with pytest.raises(UserError, match=why):
        warpsac.load_policy(run)
    with pytest.raises(UserError, match=why):
        start.train(tiny(tmp_path, init_from=str(run)))
    assert not (run / "failure.txt").exists()


def test_an_altered_config_is_refused_before_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that there is then is the policy of the first evaluation."""
    interrupt(monkeypatch, at=16, how=die)
    with pytest.raises(Killed):
        start.train(tiny(tmp_path))
    (run,) = tmp_path.iterdir()
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"total_steps": 270', '"total_steps": 271'))
    with pytest.raises(UserError, match=r"total_steps = 271, but step_000000000000 was saved with 270"):
        start.resume([run])
    (run / "config.json").write_text(text)
    assert start.resume([run], stop_at=30).finished


def test_seeds_that_refilled_replay_at_different_times_are_not_resumed_together(tmp_path: Path) -> None:
    """Both are at one step, with replays of different lengths: one count of steps cannot describe both."""
    limit = {"replay_limit_gb": 1e-6}  # a few interactions
    runs = start.train(tiny(tmp_path, seeds=(1, 2), stop_at=105, eval={"every": 0}, checkpoint=limit)).runs
    for run, between in zip(runs, (132, 135), strict=True):
        start.resume([run], stop_at=between)
        start.resume([run], stop_at=141)
    assert [state_of(run)["replay/count"] for run in runs] == [3, 2]
    before = [rows_of(run) for run in runs]
    with pytest.raises(UserError, match=r"seed2 and .*seed1 differ in .* replay holds: resume them one by one"):
        start.resume(runs, stop_at=150)
    assert [rows_of(run) for run in runs] == before
    assert start.resume(runs[1:], stop_at=150).finished


def test_no_seed_is_touched_if_another_process_trains_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, at=30, how=die)  # after the checkpoint at 25
    with pytest.raises(Killed):
        start.train(tiny(tmp_path, **SETTINGS["1-step-3-envs-2-seeds"]))
    runs = sorted(tmp_path.iterdir())
    lock = run_folder.lock_file

    def held(path: Path) -> int | None:
        if "seed2" in str(path):
            raise run_folder.Held
        return lock(path)

    monkeypatch.setattr(run_folder, "lock_file", held)
    before = (runs[0] / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match="seed2: another process is training in this folder"):
        start.resume(runs)
    assert (runs[0] / "metrics.jsonl").read_text() == before
    assert run_folder.open_run(runs[0]).meta["resumes"] == []


def test_when_every_checkpoint_is_damaged_nothing_is_guessed(tmp_path: Path) -> None:
    (run,) = start.train(tiny(tmp_path, stop_at=15, eval={"every": 0})).runs
    damage(run)
    before = sorted(path.name for path in run.iterdir())
    with pytest.raises(UserError, match=r"no good checkpoint to resume from; start it again with `warpsac train`"):
        start.resume([run])
    assert sorted(path.name for path in run.iterdir()) == before


def test_runs_of_different_settings_are_not_resumed_together(tmp_path: Path) -> None:
    runs = [
        start.train(tiny(tmp_path, seeds=(seed,), stop_at=15, eval={"every": 0}, log={"every": seed})).runs[0]
        for seed in (1, 2)
    ]
    with pytest.raises(UserError, match=r"different settings .log.every: 2 and 1.: give --log.every again, or resume"):
        start.resume(runs)
    with pytest.raises(UserError, match="at least one run folder"):
        start.resume([])


# --- what cannot be restored


@contextlib.contextmanager
def loop_resumed(run: Path) -> Iterator[Loop]:
    """The loop right after it was restored from the checkpoint."""
    opened = run_folder.open_run(run)
    found = start.find_checkpoints([opened])
    with start.prepared(opened.config, resumed=[opened], checkpoints=found) as loop:
        yield loop


@pytest.mark.parametrize("placement", ["device", "host"])
def test_a_simulator_without_state_is_cut_as_truncated(
    tmp_path: Path, placement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(tmp_path, task="Forgetful-v0", stop_at=37 * 3, eval={"every": 0}, replay={"placement": placement})
    (run,) = start.train(config).runs
    saved = state_of(run)
    assert not any(name.startswith("env/") for name in saved)
    last, slots = 36, saved["replay/final_count"]  # 36 is the last step stored, within the second episode
    assert slots == 3
    assert (saved["replay/end"][last] == 0).all()

    with loop_resumed(run) as loop:
        state = loop.driver.state
        ring = _arrays_of(state.agent.memory)
        np.testing.assert_array_equal(np.asarray(ring.end)[last, 0], slots + 1 + np.arange(3))  # truncated
        np.testing.assert_array_equal(np.asarray(ring.finals)[0, slots : slots + 3], saved["episodes/obs"])
        np.testing.assert_array_equal(np.asarray(ring.obs)[last + 1, 0], state.obs[0])
        assert not np.isclose(state.obs[0], saved["episodes/obs"]).all(1).any()  # new episodes, at rest
        np.testing.assert_array_equal(state.obs[0, :, 2:], 0)
        np.testing.assert_array_equal(np.asarray(state.agent.scale.ended), True)
        assert state.episodes.length.tolist() == [[0, 0, 0]]
    assert start.resume([run], stop_at=270).finished
    later = state_of(run)
    assert later["info/interaction"] == 90
    assert later["info/updates"] == 90 - WARMUP
    assert "running episodes are cut" in capsys.readouterr().out
    assert start.resume([run]).finished  # nothing else to say about a run that is not trained on
    said = capsys.readouterr().out
    assert said == "finished at step 270: nothing is left to train; --total-steps prolongs it\n"


def test_an_environment_of_the_users_with_a_state_of_its_own_resumes_exactly(tmp_path: Path) -> None:
    reference = start.train(tiny(tmp_path, task="Own-v0")).runs[0]
    (run,) = start.train(tiny(tmp_path, task="Own-v0", stop_at=111)).runs
    assert {"env/0/own/position", "env/2/own/steps", "env/1/random", "env/1/elapsed"} <= state_of(run).keys()
    start.resume([run], stop_at=270)
    assert_same_run(run, reference, extra_evaluations=[111])


@pytest.mark.parametrize(
    "setting", [{"replay": "never"}, {"replay": "auto", "replay_limit_gb": 1e-6}], ids=["never", "too-large"]
)
def test_without_saved_replay_it_is_refilled_by_the_policy_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any]
) -> None:
    (run,) = start.train(tiny(tmp_path, stop_at=35 * 3, eval={"every": 0}, checkpoint=setting)).runs
    saved = state_of(run)
    assert not any(name.startswith("replay/") for name in saved)
    with loop_resumed(run) as loop:
        loop.config = tiny(tmp_path, stop_at=58 * 3, eval={"every": 0}, checkpoint=setting)
        assert loop.counters.stored == 0
        ring = _arrays_of(loop.driver.state.agent.memory)
        np.testing.assert_array_equal(np.asarray(ring.obs)[0, 0], saved["episodes/obs"])
        stored: list[int] = []
        driver: Any = loop.driver
        learn = driver._learn
        monkeypatch.setattr(driver, "_learn", lambda: (stored.append(loop.counters.stored), learn()))
        loop.run()
    assert stored == [20, 21, 22]  # 60 transitions first; the overlap is one interaction behind
    assert state_of(run)["info/updates"] == saved["info/updates"] + 3


def test_auto_saves_a_replay_within_the_limit(tmp_path: Path) -> None:
    (run,) = start.train(tiny(tmp_path, stop_at=15, eval={"every": 0}, checkpoint={"replay_limit_gb": 1e-4})).runs
    assert state_of(run)["replay/obs"].shape == (6, 3, 4)  # 5 steps, and the observation to act on


def test_replay_not_saved_while_the_warm_up_lasts(tmp_path: Path, uninterrupted: Any) -> None:
    config: Config = tiny(tmp_path, stop_at=30, eval={"every": 0}, checkpoint={"replay": "never"})
    (run,) = start.train(config).runs
    with loop_resumed(run) as loop:
        assert loop.counters.interaction == 10
        assert loop.counters.learning_from == 10 + WARMUP - 1
    same = {name: value for name, value in state_of(run).items() if name.startswith("learner/")}
    with loop_resumed(run) as loop:
        (groups,) = loop.driver.snapshot(with_memory=False, with_simulator=True)
        again = {f"learner/{name}": array for name, array in groups["learner"].items()}
    assert_same_state(same, again)


def test_a_resumed_run_is_done_at_its_last_step_only(tmp_path: Path) -> None:
    outcome = start.train(tiny(tmp_path, time_budget=1e-9))
    assert outcome.reason == "time budget"
    (run,) = outcome.runs
    assert run_folder.open_run(run).config.time_budget == 1e-9
    assert [found.status for found in collect([run])] == ["finished"]
    start.resume([run], stop_at=99)
    assert run_folder.open_run(run).config.time_budget is None
    assert start.resume([run], stop_at=270, time_budget=1e-9).reason == "time budget"
    opened = run_folder.open_run(run)
    assert (opened.config.time_budget, opened.meta["resumes"][-1]["time_budget"]) == (None, 1e-9)
    assert [found.status for found in collect([run])] == ["interrupted"]  # a budget ends this stretch, not the run
    assert start.resume([run]).finished
    assert run_folder.open_run(run).config.time_budget is None
    assert [found.status for found in collect([run])] == ["finished"]


def test_lost_checkpoints_are_not_taken_for_a_run_that_has_none_yet(tmp_path: Path) -> None:
    (run,) = start.train(tiny(tmp_path, stop_at=60, checkpoint={"every": 30})).runs
    rows = (run / "metrics.jsonl").read_bytes()
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"has rows up to step 60 but no checkpoint to resume from; start it again"):
        start.resume([run])
    assert (run / "metrics.jsonl").read_bytes() == rows
    # Killed before its first checkpoint it starts again.
    (early,) = start.train(tiny(tmp_path / "early", stop_at=30, checkpoint={"every": 30})).runs
    shutil.rmtree(early / "checkpoints")
    assert start.resume([early]).finished


def test_checkpoints_are_looked_for_when_nobody_else_can_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = start.train(tiny(tmp_path, stop_at=60)).runs
    order: list[str] = []
    lock, find = run_folder.RunFolder.lock, start.find_checkpoints
    monkeypatch.setattr(run_folder.RunFolder, "lock", lambda self: (order.append("lock"), lock(self))[1])
    monkeypatch.setattr(start, "find_checkpoints", lambda runs: (order.append("find"), find(runs))[1])
    assert start.resume([run], stop_at=90).finished
    assert order[:2] == ["lock", "find"]
    assert start.resume([run]).finished  # the lock was given back
