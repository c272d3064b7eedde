"""Torch simulators on two processes: each steps its share of the environments, one learner program over both."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: make test-mjlab")

from runs import rows_of, state_of
from test_processes import SETTINGS, Pair
from warpsac.training import start

RUN = "{task}-warpsac-l-seed1"


def words(task: str, out: Path) -> list[str]:
    return [task, *SETTINGS[1:], "--out", str(out)]


@pytest.mark.parametrize("task", ["probe-torch", "probe-torch-single"])
def test_trained_resumed_and_taken_to_one_process(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / RUN.format(task=task)
    ended = Pair(words(task, tmp_path)).ended()
    assert [one.code for one in ended] == [0, 0], ended
    state = state_of(run)
    obs = state["replay/obs"]
    assert obs.shape[:2] == (33, 8)
    assert len(np.unique(obs[0], axis=0)) == 8  # each process has other environments
    assert state["replay/final_count"].shape == (2,)
    assert [row["step"] for row in rows_of(run) if row["kind"] == "train"] == [64, 128, 192, 256]

    ended = Pair(["--resume", str(run), "--total-steps", "320"]).ended()
    assert [one.code for one in ended] == [0, 0], ended
    assert "a torch simulator's state cannot be saved" in ended[0].output
    state = state_of(run)
    np.testing.assert_array_equal(state["replay/obs"][:32], obs[:32])

    assert start.resume([run], devices=1, total_steps=384).finished
    capsys.readouterr()
    after = state_of(run)
    assert after["replay/final_count"].shape == ()
    np.testing.assert_array_equal(after["replay/obs"][:40], state["replay/obs"][:40])


@pytest.mark.skipif(importlib.util.find_spec("mjlab") is None, reason="needs mjlab: make test-mjlab")
def test_mjlab_on_two_processes(tmp_path: Path) -> None:
    """Each steps four of the eight environments; the networks are the same in both, as the saved run resumes."""
    task = "Mjlab-Cartpole-Balance"
    run = tmp_path / RUN.format(task=task)
    short = ["--task-config.episode_length_s", "0.4", "--profile", "demo", "--checkpoint.every", "0"]
    ended = Pair([*words(task, tmp_path), *short, "--stop-at", "128"]).ended()
    assert [one.code for one in ended] == [0, 0], ended
    obs = state_of(run)["replay/obs"]
    assert obs.shape[1] == 8
    assert len(np.unique(obs[0], axis=0)) == 8  # no environment stands in both processes
    ended = Pair(["--resume", str(run), "--stop-at", "192"]).ended()
    assert [one.code for one in ended] == [0, 0], ended
    state = state_of(run)
    np.testing.assert_array_equal(state["replay/obs"][:16], obs[:16])
    losses = [row["loss/critic"] for row in rows_of(run) if "loss/critic" in row]
    assert losses
    assert np.isfinite(losses).all()
