"""Edges that a user runs into: episodes that never end or always break, runs extended and interrupted again,
policies on other environments, containers with a memory limit."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from runs import OwnPoint, assert_same_run, tiny
from warpsac import cli
from warpsac.config import loading
from warpsac.config.schema import Config, EnvConfig
from warpsac.envs import registry
from warpsac.envs.contract import SimulatorFailed
from warpsac.errors import ConfigError, TrainingStopped, UserError
from warpsac.runs import run_folder
from warpsac.training import evaluate, start
from warpsac.training.devices import free_host_bytes
from warpsac.training.policy import load_policy, require_fit
from warpsac.training.stepped import SteppedDriver
from warpsac.watch import play


class BreaksEveryEpisode(OwnPoint):
    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.steps == 3:
            raise RuntimeError("the simulator broke")
        return super().step(action)


class SucceedsAtTheEnd(OwnPoint):
    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, _, _, _ = super().step(action)
        last = self.steps == 4
        return obs, reward, last, False, {"is_success": True} if last else {}


class WideActions(OwnPoint):
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)


gymnasium.register("Breaks-v0", BreaksEveryEpisode, max_episode_steps=25)
gymnasium.register("NoLimit-v0", OwnPoint)
gymnasium.register("LateSuccess-v0", SucceedsAtTheEnd, max_episode_steps=25)
gymnasium.register("Wide-v0", WideActions, max_episode_steps=25)


def zero(obs: np.ndarray) -> np.ndarray:
    return np.zeros((len(obs), 2), np.float32)


def test_an_environment_that_breaks_in_every_episode_ends_its_evaluation() -> None:
    env = registry.make("Breaks-v0", 2)
    with pytest.raises(SimulatorFailed) as failed:
        evaluate.run_episodes(env, zero, 3, seed=0, max_broken=4)
    assert "failed in 4 evaluation episodes in a row (env.max_faults = 4)" in str(failed.value)
    assert "; last fault: RuntimeError: the simulator broke at test_edges.py:" in str(failed.value)


def test_training_on_it_stops_with_a_clear_line(tmp_path: Path) -> None:
    with pytest.raises(TrainingStopped, match=r"last fault: .* broke at test_edges.py:\d+; saved, resume with: "):
        start.train(tiny(tmp_path, task="Breaks-v0"))


def test_an_endless_episode_ends_its_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "LONGEST_EPISODE", 60)
    with pytest.raises(SimulatorFailed, match=r"not ended after 60 steps; give episodes a limit with --env\.episode"):
        evaluate.run_episodes(registry.make("NoLimit-v0", 1), zero, 1, seed=0)
    limited = registry.make("NoLimit-v0", 1, EnvConfig(episode_limit=7))
    assert limited.spec.episode_limit == 7
    assert [episode.length for episode in evaluate.run_episodes(limited, zero, 2, seed=0)] == [7, 7]


def test_a_success_that_is_reported_only_at_the_end_is_found() -> None:
    env = registry.make("LateSuccess-v0", 1)
    assert env.spec.has_success
    assert [episode.success for episode in evaluate.run_episodes(env, zero, 2, seed=0)] == [True, True]


def test_a_run_extended_and_interrupted_continues_to_its_new_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = start.train(tiny(tmp_path / "whole")).runs[0]
    (run,) = start.train(tiny(tmp_path / "parts", stop_at=90)).runs
    interact = SteppedDriver.interact

    def interrupted(self: SteppedDriver) -> None:
        if self.state.counters.interaction == 50:
            os.kill(os.getpid(), signal.SIGINT)
        interact(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SteppedDriver, "interact", interrupted)
        assert start.resume([run], stop_at=270).signal == signal.SIGINT
    assert run_folder.open_run(run).config.stop_at == 270
    assert [entry["stop_at"] for entry in run_folder.open_run(run).meta["resumes"]] == [270]
    assert start.resume([run]).finished  # the printed command: no --stop-at
    assert_same_run(run, whole, extra_evaluations=(90,))
    with pytest.raises(ConfigError, match="stop_at = 30: the run is already at step 270"):
        start.resume([run], stop_at=30)
    with pytest.raises(
        ConfigError, match="271: must be at most total_steps = 270, where the schedule ends; raise it, or"
    ):
        start.resume([run], stop_at=271)
    with pytest.raises(UserError, match=r": named twice$"):
        start.resume([run, run])
    capsys.readouterr()
    assert start.resume([run]).finished
    assert "finished at step 270: nothing is left to train; --total-steps prolongs it" in capsys.readouterr().out


def test_a_policy_is_not_evaluated_on_another_environment(tmp_path: Path) -> None:
    (run,) = start.train(tiny(tmp_path, stop_at=90, eval={"every": 0})).runs
    policy = load_policy(run)
    require_fit(policy, registry.make("probe-point", 1).spec)
    with pytest.raises(UserError, match="probe-action: obs_dim is 1, but the policy was trained with 4"):
        require_fit(policy, registry.make("probe-action", 1).spec)
    saved = run_folder.open_run(run).config
    (run / "config.json").write_text(loading.to_json(dataclasses.replace(saved, task="probe-action")))
    assert cli.main(["eval", str(run)]) == 2


def test_settings_of_the_run_reach_its_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = start.train(tiny(tmp_path, task="Wide-v0", env={"action_limit": 2.0}, stop_at=90)).runs
    assert cli.main(["eval", str(run), "--episodes", "2"]) == 0
    assert cli.main(["play", str(run)]) == 2  # it cannot be drawn, but its actions have bounds
    assert "no bounds" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["eval", "play"])
def test_a_negative_seed(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, str(tmp_path), "--seed", "-4"]) == 2
    assert "seed = -4: must lie in 0..2147483647" in capsys.readouterr().err


def test_a_run_that_would_never_learn_is_refused() -> None:
    with pytest.raises(ConfigError, match="total_steps = 5000: must be above learning_starts = 10000"):
        loading.validate(Config(total_steps=5000))


def test_check_env_names_the_command_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-env", "Wide-v0"]) == 1
    assert "give them with --env.action-limit" in capsys.readouterr().out
    assert cli.main(["check-env", "Wide-v0", "--env.action-limit", "2"]) == 0
    assert "fits: warpsac train Wide-v0 --env.action-limit 2" in capsys.readouterr().out


def test_a_misspelled_id_of_a_module_keeps_its_module() -> None:
    with pytest.raises(UserError, match="did you mean runs:Forgetful-v0"):
        registry.lookup("runs:Forgetfull-v0")


def test_free_memory_respects_a_containers_limit(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    assert free_host_bytes(meminfo, tmp_path) == 8_000_000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert free_host_bytes(meminfo, tmp_path) == 8_000_000 * 1024
    (tmp_path / "memory.max").write_text("3000\n")
    assert free_host_bytes(meminfo, tmp_path) == 2000


def test_a_saved_config_runs_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = start.train(tiny(tmp_path, stop_at=90)).runs[0]
    saved = str(first / "config.json")
    asked, reason = cli.train_config(["--config", saved, "--replay.batch-size", "8", "--seeds", "3"])
    assert (asked.task, asked.stop_at, asked.replay.batch_size, asked.seeds) == ("probe-point", 90, 8, (3,))
    out = f"out = {str(tmp_path)!r}: only {saved} names it, so runs is used; --out chooses another"
    assert reason.splitlines() == [f"variant warpsac-l: as in {saved}", out]
    assert cli.main(["train", f"--config={saved}", "--out", str(tmp_path / "again")]) == 0
    assert_same_run(first, tmp_path / "again" / first.name)
    assert cli.main(["train", "--config", str(tmp_path / "none.json")]) == 2
    assert "none.json: no such file or directory" in capsys.readouterr().err


@pytest.mark.mujoco
@pytest.mark.parametrize("agent", ["zero", "random"])
def test_a_task_can_be_watched_before_training(agent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if play.find_gl() is None:
        pytest.skip("no way to draw here")
    out = tmp_path / "a.mp4"
    options = ["--agent", agent, "--steps", "5", "--out", str(out)]
    assert cli.main(["play", "InvertedPendulum-v5", *options]) == 0
    assert out.stat().st_size > 1000
    assert f"video: {out} (5 steps, " in capsys.readouterr().out
    assert cli.main(["play", "InvertedPendulim-v5", *options]) == 2
