"""Numbers and environments that cannot work: each is said in one line, before time is spent on it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from runs import OwnPoint, tiny, tiny_ppo
from warpsac import cli
from warpsac.config.loading import check_ranges, override
from warpsac.config.schema import Config
from warpsac.envs.observations import layout_of
from warpsac.errors import NotNow, TrainingStopped, UserError, shortened
from warpsac.runs import rowfiles
from warpsac.training import start
from warpsac.types import LARGEST_OBS, LARGEST_REWARD


def line_of(capsys: pytest.CaptureFixture[str], words: list[str], code: int = 2) -> str:
    """The one line that a command ends with."""
    assert cli.main(words) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) < 300
    return line


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("total-steps", "1e308", "must be at most 1000000000000000"),
        ("total-steps", "1e400", "1e400 is not a whole number"),
        ("total-steps", "9" * 5000, "is not a whole number"),
        ("replay.batch-size", "1e15", "must be at most 2147483647"),
        ("replay.batch-size", "2e9", "training needs at least"),
        ("learner.actor-width", "1e10", "must be at most 2147483647"),
        ("learner.actor-width", "1e6", "learner.actor_width = 1000000: training needs at least"),
        ("learner.critic-width", "1e6", "learner.critic_width = 1000000: training needs at least"),
        ("learner.expansion", "1e9", "learner.expansion = 1000000000: training needs at least"),
        ("learner.atoms", "1e9", "learner.atoms = 1000000000: training needs at least"),
        ("updates-per-step", "1e9", "updates_per_step = 1000000000: training needs at least"),
        ("learner.policy-delay", "1e9", "must be at most 64"),
        ("learner.noise-repeat", "1e9", "must be at most 100000"),
        ("env.num-envs", "1e9", "env.num_envs = 1000000000: must be at most 1048576"),
        ("learning-starts", "1e20", "learning_starts = 100000000000000000000: must be at most"),
    ],
)
def test_a_size_beyond_all_memory_is_refused_before_anything_is_made(
    option: str, value: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "probe-point", "--out", str(tmp_path / "runs"), f"--{option}", value]
    assert said in line_of(capsys, words)
    assert not (tmp_path / "runs").exists()


def test_needs_are_what_training_keeps() -> None:
    """Of a network that fills a GB: its own arrays, counted, are less than is asked for, but more than half of it."""
    for config in (tiny(Path(), learner={"critic_width": 64}), tiny_ppo(Path(), ppo={"critic_hidden": (64, 64)})):
        from warpsac.envs import registry

        algorithm = start.make_algorithm(config, registry.make("probe-point", 3).spec)
        learner = algorithm.init((1,), None).learner  # type: ignore[arg-type]
        kept = sum(array.nbytes for array in jax.tree.leaves(learner))
        networks = sum(size for name, size in algorithm.needs.items() if "width" in name or "hidden" in name)
        assert 0.5 * kept < networks < 1.5 * kept


def test_a_rollout_that_fits_nowhere(tmp_path: Path) -> None:
    config = tiny_ppo(tmp_path, total_steps=10**15, ppo={"rollout_steps": 3 * 10**8})
    with pytest.raises(NotNow, match=r"ppo\.rollout_steps = 300000000: training needs at least .* GB of memory"):
        start.train(config)


def test_at_most_a_thousand_seeds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["train", "probe-point", "--out", str(tmp_path), "--seeds", *map(str, range(200_000))]
    assert "must name at most 1000 seeds" in line_of(capsys, words)


def test_check_env_has_the_ranges_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert "env.num_envs = 0: must be at least 1" in line_of(
        capsys, ["check-env", "probe-point", "--env.num-envs", "0"]
    )
    assert "must be at most 1048576" in line_of(capsys, ["check-env", "probe-point", "--env.num-envs", "1e12"])


def test_what_a_message_quotes_is_short() -> None:
    assert shortened("x" * 120) == "x" * 120
    assert shortened("a" * 100 + "b" * 100) == "a" * 60 + "..." + "b" * 60
    check_ranges(override(Config(), {"total_steps": 10**15}))


# --- environments


def test_a_vector_without_numbers() -> None:
    """Of a JAX or torch environment; those of gymnasium are in test_check_env."""
    with pytest.raises(UserError, match=r"^observation has no numbers$"):
        layout_of(0)


class Hostile(OwnPoint):
    """Does what `how` says from the 40th step on."""

    how = ""
    steps_made = 0

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        Hostile.steps_made += 1
        if Hostile.steps_made >= 40:
            if Hostile.how == "exit":
                sys.exit(0)
            obs = obs * np.float64(1e20) if Hostile.how == "large" else obs
            reward = 1e13 if Hostile.how == "paid" else reward
            if Hostile.how == "elsewhere":
                os.chdir("/")
        return obs, reward, terminated, truncated, info


gymnasium.register("Hostile-v0", Hostile, max_episode_steps=25)


@pytest.fixture(autouse=True)
def _from_the_start() -> None:
    Hostile.how, Hostile.steps_made = "", 0


@pytest.mark.parametrize(
    ("how", "fault"),
    [
        ("exit", r"SystemExit: 0 at test_bad_numbers.py:\d+"),
        ("large", r"FloatingPointError: observation has -?\d.*e\+\d\d, beyond 1e\+15"),
        ("paid", r"FloatingPointError: reward is 10000000000000.0, beyond 1e\+12"),
    ],
)
def test_an_environment_that_goes_wrong_for_good_stops_training_with_a_checkpoint(
    how: str, fault: str, tmp_path: Path
) -> None:
    Hostile.how = how
    config = tiny(tmp_path, task="Hostile-v0", env={"num_envs": 1, "max_faults": 3}, eval={"every": 0})
    with pytest.raises(TrainingStopped, match=rf"failed 3 times in a row .*; last fault: {fault}; saved, resume with"):
        start.train(config)
    (run,) = tmp_path.iterdir()
    assert "failed 3 times" in (run / "failure.txt").read_text()
    assert LARGEST_REWARD < 1e13 < LARGEST_OBS < 1e20


def test_relative_paths_do_not_follow_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hostile.how = "elsewhere"
    monkeypatch.chdir(tmp_path)
    config = tiny(Path("runs"), task="Hostile-v0", env={"num_envs": 1}, stop_at=54)
    (run,) = start.train(config).runs
    assert not run.is_absolute()
    assert Path.cwd() == tmp_path
    assert rowfiles.read_metrics(tmp_path / run)[-1]["step"] == 54


def test_an_exit_outside_a_step_is_no_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def end(*_: object) -> None:
        sys.exit(0)

    monkeypatch.setattr("warpsac.training.loop.Loop.run", end)
    with pytest.raises(TrainingStopped, match=r"code of the task ended the program \(SystemExit: 0\)"):
        start.train(tiny(tmp_path))


def test_an_exit_while_evaluating_is_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("warpsac.training.eval_command.command", lambda asked: sys.exit(0))
    assert "code of the task ended the program (SystemExit: 0)" in line_of(capsys, ["eval", str(tmp_path)], code=1)


def test_memory_that_runs_out_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(error: Exception) -> None:
        def run(*_: object) -> None:
            raise error

        monkeypatch.setattr("warpsac.training.loop.Loop.run", run)

    fail(MemoryError("Unable to allocate 298. GiB"))
    words = ["train", "probe-point", "--out", str(tmp_path), "--log.no-tensorboard"]
    said = "out of memory (MemoryError: Unable to allocate 298. GiB); smaller settings may fit"
    assert line_of(capsys, words, code=1) == f"warpsac: {said}"
    fail(jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating 11559611036032 bytes."))
    assert "out of memory (JaxRuntimeError: INTERNAL: Out of memory allocating" in line_of(capsys, words, code=1)
