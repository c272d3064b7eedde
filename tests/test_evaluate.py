"""Evaluation: exactly the episodes asked for, none preferred, and what is reported of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from warpsac.envs import registry
from warpsac.envs.contract import EnvSpec, HostStep
from warpsac.envs.tasks import Task, find
from warpsac.runs import rowfiles
from warpsac.training import evaluate
from warpsac.training.episodes import Episode, HostEpisodes, summary
from warpsac.training.loop import Outcome
from warpsac.training.terminal import Interrupted
from warpsac.types import ObsViews, StepResult


class Lengths(gymnasium.Env):
    """Episodes of lengths that cycle through a list, all reward 1; observation: which environment it is."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    made = 0

    def __init__(self) -> None:
        self.number, Lengths.made = Lengths.made, Lengths.made + 1
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.episode = 0 if seed is not None else self.episode + 1
        self.left = (2, 30, 5)[self.number] + self.episode
        return np.array([self.number], np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.array([self.number], np.float32), 1.0, self.left == 0, False, {}


gymnasium.register("Lengths-v0", Lengths)


def no_action(obs: np.ndarray) -> np.ndarray:
    return np.zeros((len(obs), 1), np.float32)


def test_the_last_evaluation_of_each_run_of_an_outcome(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    rows = rowfiles.RowFiles(first)
    for step, mean in ((0, 1.0), (90, 2.5)):
        measured = {"eval/return": mean, "eval/return_std": 0.5, "eval/length": 7.0, "eval/episodes": 2}
        rows.append({"step": step, "kind": "eval", "time/seconds": 1.0 + step} | measured | {"eval/error": 0.25})
    rows.close()
    last, none = Outcome([first, second], "finished").evaluations
    assert last == evaluate.Evaluation(90, 2, 2.5, 0.5, 7.0, metrics={"error": 0.25})
    assert none is None


@pytest.mark.parametrize(
    ("episodes", "expected"),
    [
        (3, {0: [2], 1: [30], 2: [5]}),  # one each: the long one is waited for
        (5, {0: [2, 3], 1: [30, 31], 2: [5]}),
        (1, {0: [2], 1: [], 2: []}),
        (7, {0: [2, 3, 4], 1: [30, 31], 2: [5, 6]}),
    ],
)
def test_short_episodes_do_not_displace_long_ones(episodes: int, expected: dict[int, list[int]]) -> None:
    Lengths.made = 0
    env = registry.make("Lengths-v0", 3)
    found = evaluate.run_episodes(env, no_action, episodes, seed=1)
    assert len(found) == episodes
    lengths: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for episode in found:
        lengths[episode.env].append(episode.length)
        assert episode.total == episode.length
        assert episode.success is None
    assert lengths == expected


def test_the_same_seed_gives_the_same_result() -> None:
    env = registry.make("probe-point", 3)

    def home(obs: np.ndarray) -> np.ndarray:
        return np.clip(-obs[:, :2] - 2 * obs[:, 2:], -1, 1)

    first, again, other = (evaluate.run_episodes(env, home, 7, seed) for seed in (5, 5, 6))
    assert first == again != other
    assert all(episode.length == 25 for episode in first)
    assert all(episode.success is not None for episode in first)


def test_it_can_be_given_up() -> None:
    steps: list[int] = []

    def on_step() -> None:
        steps.append(1)
        if len(steps) == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        evaluate.run_episodes(registry.make("probe-point", 2), lambda obs: np.zeros((2, 2)), 2, 0, on_step)
    assert len(steps) == 4


def test_an_episode_that_a_fault_broke_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from warpsac.envs.probes import host as probe

    monkeypatch.setattr(probe, "FAULTS", probe.FaultPlan(raise_at=frozenset({10})))
    (episode,) = evaluate.run_episodes(registry.make("probe-faulty", 1), lambda obs: np.zeros((1, 2)), 1, 0)
    assert episode.length == 25
    assert probe.FAULTS.steps == 9 + 1 + 25


def test_evaluation_seeds_are_all_different() -> None:
    seeds = {evaluate.evaluation_seed(seed, step) for seed in range(5) for step in range(0, 10_000, 100)}
    assert len(seeds) == 500


# --- what is reported


def test_the_row_of_an_evaluation_by_hand() -> None:
    episodes = [Episode(0, 10.0, 4, True), Episode(1, 20.0, 8, False), Episode(0, 60.0, 9, True)]
    task = Task("t", "mujoco", "limited", 1, 1, 1, random_score=10.0, normalize_score=50.0, metric="return")
    assert evaluate.result_row(episodes, task) == {
        "eval/return": 30.0,
        "eval/length": 7.0,
        "eval/success": pytest.approx(2 / 3),
        "eval/return_std": pytest.approx(np.sqrt((400 + 100 + 900) / 3)),
        "eval/episodes": 3,
        "eval/score": 0.5,
    }
    by_success = Task("t", "maniskill", "abundant", 1, 1, 1, random_score=0.0, normalize_score=100.0, metric="success")
    assert evaluate.result_row(episodes, by_success)["eval/score"] == pytest.approx(2 / 3)


def test_success_and_score_are_absent_where_there_are_none() -> None:
    episodes = [Episode(0, 10.0, 4, None)]
    assert evaluate.result_row(episodes, None).keys() == {
        "eval/return", "eval/length", "eval/return_std", "eval/episodes",
    }  # fmt: skip
    unknown = Task("t", "dmc", "limited", 1, 1, 1, random_score=None, normalize_score=None, metric="return")
    assert "eval/score" not in evaluate.result_row(episodes, unknown)
    by_success = Task("t", "maniskill", "abundant", 1, 1, 1, random_score=0.0, normalize_score=100.0, metric="success")
    assert "eval/score" not in evaluate.result_row(episodes, by_success)
    assert summary([], "episode") == {}


def test_scores_of_a_benchmark_task() -> None:
    task = find("HalfCheetah-v4")
    assert task is not None
    assert task.score(task.random_score or 0.0, None) == 0.0
    assert task.score(task.normalize_score or 0.0, None) == 1.0


# --- episodes from steps


def steps_of(reward: list[float], ended: list[bool], success: list[bool] | None = None) -> StepResult:
    """A step [1, N] of one seed."""
    end = np.array([ended])
    obs = np.zeros((1, len(reward), 1), np.float32)
    won = None if success is None else np.array([success])
    return StepResult(obs, np.array([reward], np.float32), end, np.zeros_like(end), obs, won)


def test_returns_lengths_and_successes_by_hand() -> None:
    episodes = HostEpisodes.none(1, 2)
    episodes.observe(steps_of([1, 10], [False, False], [True, False]), None)
    assert episodes.ended == [[]]
    episodes.observe(steps_of([2, 20], [True, False], [False, False]), None)
    assert episodes.ended == [[Episode(0, 3.0, 2, True)]]
    episodes.observe(steps_of([4, 30], [True, True], [False, False]), None)
    assert episodes.ended == [[Episode(0, 3.0, 2, True), Episode(0, 4.0, 1, False), Episode(1, 60.0, 3, False)]]


def test_each_seed_has_its_own_episodes() -> None:
    episodes = HostEpisodes.none(2, 2)
    steps = [steps_of([1, 10], [False, True], [True, False]), steps_of([2, 20], [True, False], [False, False])]
    both = StepResult(*(None if a is None else np.concatenate([a, b]) for a, b in zip(*steps, strict=True)))
    episodes.observe(both, np.array([[False, False], [True, False]]), np.array([0, 4]))
    assert episodes.ended == [[Episode(1, 10.0, 1, False)], [Episode(0, 2.0, 1, False)]]
    assert episodes.length.tolist() == [[1, 0], [0, 1]]
    one, other = episodes.take_rows()
    assert one == {"episode/return": 10.0, "episode/length": 1.0, "episode/success": 0.0, "faults/count": 0}
    assert other == {"episode/return": 2.0, "episode/length": 1.0, "episode/success": 0.0, "faults/count": 4}


def test_the_training_episodes_survive_a_checkpoint() -> None:
    episodes = HostEpisodes.none(1, 2)
    episodes.observe(steps_of([1, 10], [True, False]), None, 0)
    episodes.observe(steps_of([2, 20], [False, False]), np.array([[False, True]]), 3)  # environment 1 was restarted
    again = HostEpisodes.joined([episodes.of_seed(0)])
    for one in (episodes, again):
        one.observe(steps_of([4, 40], [False, True]), None, 0)
        assert one.take_rows() == [{"episode/return": (1 + 60) / 2, "episode/length": 1.5, "faults/count": 3}]
        assert one.take_rows() == [{"faults/count": 3}]
        one.forget(np.ones((1, 2), bool))
        one.observe(steps_of([8, 80], [True, False]), None, 0)
        assert one.take_rows() == [{"episode/return": 8.0, "episode/length": 1.0, "faults/count": 3}]


class Measuring:
    """Two environments that measure a number in every step: 1, 2, 3, ... and ten times that; lengths 2 and 3."""

    def __init__(self) -> None:
        self.spec = EnvSpec("measuring", "probe", 2, ObsViews(1, 1), 1, (-1.0,), (1.0,), None)

    def reset(self, seed: int) -> np.ndarray:
        self.steps = 0
        return np.zeros((2, 1), np.float32)

    def send(self, action: np.ndarray) -> None: ...

    def recv(self) -> HostStep:
        self.steps += 1
        ended, obs = np.array([self.steps % 2 == 0, self.steps % 3 == 0]), np.zeros((2, 1), np.float32)
        result = StepResult(obs, np.ones(2, np.float32), ended, np.zeros(2, bool), obs)
        return HostStep(result, None, 0, metrics={"error_height": np.array([1.0, 10.0]) * self.steps})


def test_what_a_simulator_measures_is_averaged_over_steps_then_episodes(tmp_path: Path) -> None:
    env: Any = Measuring()
    found = evaluate.run_episodes(env, no_action, 3, seed=1)
    assert [(e.env, e.length, e.metrics) for e in found] == [
        (0, 2, {"error_height": 1.5}), (1, 3, {"error_height": 20.0}), (0, 2, {"error_height": 3.5}),
    ]  # fmt: skip
    row = evaluate.result_row(found, None)
    assert row["eval/error_height"] == pytest.approx(25 / 3)
    files = rowfiles.RowFiles(tmp_path)
    files.append({"kind": "eval", "step": 7} | row)
    files.close()
    (tmp_path / rowfiles.METRICS).unlink()
    (read,) = rowfiles.read_evaluations(tmp_path)
    assert (read["step"], read["error_height"]) == (7, pytest.approx(25 / 3))
    files.set_aside_after(7)  # a folder that was copied without its rows gets them from the table
    (again,) = rowfiles.read_metrics(tmp_path)
    assert again["eval/error_height"] == read["error_height"]
