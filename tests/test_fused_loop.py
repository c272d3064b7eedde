"""Training with simulator and learner in one program: run folders, resume, seeds, and what it refuses."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from runs import assert_same_run, rows_of, state_of, tiny
from warpsac.config.schema import Config
from warpsac.errors import ConfigError, TrainingStopped, UserError
from warpsac.runs import rowfiles
from warpsac.training import start as training
from warpsac.training.fused import FusedDriver


def native(out: Path, **changes: Any) -> Config:
    """The tiny run of 90 interactions, on the probe that is written in JAX."""
    return tiny(out, **{"task": "probe-native", "updates_per_step": 2, **changes})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return training.train(native(tmp_path_factory.mktemp("whole"), seeds=(1, 2))).runs


def test_rows_evaluations_and_checkpoints_are_where_they_belong(uninterrupted: list[Path]) -> None:
    rows = rowfiles.read_metrics(uninterrupted[0])
    assert [row["step"] for row in rows if row["kind"] == "train"] == [3 * 7 * i for i in range(1, 13)]
    assert [row["step"] for row in rows if row["kind"] == "eval"] == [0, 120, 240, 270]
    learning = [row for row in rows if "loss/critic" in row]
    assert learning[0]["step"] == 63  # the first row after the warm-up of 20 interactions
    assert {"episode/return", "episode/success", "reward/scale", "faults/count"} <= set().union(*rows)
    state = state_of(uninterrupted[0])
    assert int(state["info/interaction"]) == 90
    assert int(state["info/updates"]) == int(state["learner/updates"]) == 2 * 71


def test_a_run_that_is_shorter_than_a_row_has_one_at_its_end(tmp_path: Path) -> None:
    (run,) = training.train(native(tmp_path, log={"every": 1000, "tensorboard": False})).runs
    rows = rowfiles.read_metrics(run)
    assert [row["step"] for row in rows if row["kind"] == "train"] == [270]
    assert {"loss/critic", "episode/return"} <= {name for row in rows if row["kind"] == "train" for name in row}


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path, uninterrupted: list[Path]) -> None:
    """Stopped in the warm-up, stopped between two rows, and stopped by a signal; then to the end."""
    runs = training.train(native(tmp_path, seeds=(1, 2), stop_at=24)).runs
    training.resume(runs, stop_at=150)
    advance = FusedDriver.advance

    def interrupted(self: FusedDriver, *arguments: Any) -> None:
        if self.state.counters.interaction > 60:
            os.kill(os.getpid(), signal.SIGTERM)
        advance(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedDriver, "advance", interrupted)
        outcome = training.resume(runs, stop_at=270)
    assert outcome.signal == signal.SIGTERM
    assert training.resume(runs, stop_at=270).finished
    for resumed, whole in zip(runs, uninterrupted):
        assert_same_run(resumed, whole, extra_evaluations=(24, 150))


def test_without_replay_it_refills_before_learning(tmp_path: Path) -> None:
    config = native(tmp_path, checkpoint={"replay": "never"}, eval={"every": 0})
    (run,) = training.train(dataclasses.replace(config, stop_at=120)).runs
    assert int(state_of(run)["info/updates"]) == 2 * 21  # after interactions 19 to 39
    training.resume([run], stop_at=210)
    state = state_of(run)
    assert int(state["info/learning_from"]) == 59  # 20 interactions with the policy fill replay first
    assert int(state["info/updates"]) == 2 * 21 + 2 * 11


def test_seeds_differ_and_their_folders_look_like_single_runs(uninterrupted: list[Path], tmp_path: Path) -> None:
    (alone,) = training.train(native(tmp_path, seeds=(2,))).runs
    assert {path.name for path in alone.iterdir()} == {path.name for path in uninterrupted[1].iterdir()}
    assert [row.keys() for row in rows_of(alone)] == [row.keys() for row in rows_of(uninterrupted[1])]
    assert rows_of(uninterrupted[0])[-1]["eval/return"] != rows_of(uninterrupted[1])[-1]["eval/return"]


def test_what_it_cannot_do_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"eval\.num_envs = 3: must equal eval\.episodes = 5"):
        training.train(native(tmp_path, eval={"episodes": 5, "num_envs": 3}))
    with pytest.raises(ConfigError, match=r"replay\.placement = 'host': must be auto or device"):
        training.train(native(tmp_path, replay={"placement": "host"}))
    config = tiny(tmp_path, task="G1JoystickFlatTerrain", env={"num_envs": 64}, learning_starts=1000,
                  replay={"capacity": 10_000}, total_steps=10_000)  # fmt: skip
    with pytest.raises(
        UserError, match=r"expects a GPU, .*: install 'warpsac\[playground,warp,cuda\]'.*--env\.num-envs 8"
    ):
        training.train(config)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_keeps_failing_stops_training_with_a_good_checkpoint(tmp_path: Path) -> None:
    config = native(tmp_path, task="probe-native-faulty", env={"max_faults": 1}, eval={"every": 0})
    with pytest.raises(TrainingStopped, match=r"failed 1 times in a row \(env\.max_faults = 1\).*resume with"):
        training.train(config)
    (run,) = tmp_path.iterdir()
    assert int(state_of(run)["info/interaction"]) == 42  # the stretch that holds step 40
    assert training.train(native(tmp_path, task="probe-native-faulty", eval={"every": 0})).finished
