"""`warpsac check-env`: what it says about each kind of environment, and about each way to break the contract."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import own_gym
from own_gym import Mode, NamedPoint, VectorPoint, box
from warpsac import cli
from warpsac.config.schema import EnvConfig
from warpsac.envs.check import Finding, check_env
from warpsac.envs.host.single import about
from warpsac.envs.names import bring
from warpsac.errors import UserError


def found(factory: Any, text: str, **settings: Any) -> Finding:
    findings = check_env(bring(factory), EnvConfig(**settings))
    assert all("\n" not in finding.text for finding in findings)
    matches = [finding for finding in findings if text in finding.text]
    assert len(matches) == 1, findings
    return matches[0]


class Own(gymnasium.Env):
    """What a user may write; class attributes make it odd."""

    observation_space: Any = box(2)
    action_space: Any = spaces.Box(-1, 1, (1,), np.float32)
    gives: Any = np.zeros(2, np.float32)
    ends: Any = False
    tells: Any = {}  # noqa: RUF012

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.gives, {}

    def step(self, action: np.ndarray) -> Any:
        return self.gives, 0.0, self.ends, False, self.tells


def own(**attributes: Any) -> type[Own]:
    return type("Odd", (Own,), attributes)


def test_a_single_environment_with_names() -> None:
    assert found(own_gym.GroupedPoint, "velocity 2, position 2").text == (
        "the actor's observation, by name and in order: velocity 2, position 2"
    )
    assert (
        found(own_gym.GroupedPoint, "asymmetric").text == "asymmetric: the actor sees 4 numbers, the critic 3 numbers"
    )
    assert found(own_gym.GroupedPoint, "success").text == "success: info['success']"
    assert found(Own, "action: ").text == "action: 1 number in [-1, 1], rescaled from [-1, 1]"


@pytest.mark.parametrize(
    ("settings", "tells", "level", "text"),
    [
        ({}, {"is_success": True, "success": False}, "ok", "success: info['is_success']"),
        ({}, {}, "ok", "no is_success or success; --env.success-key names another"),
        ({"success_key": "home"}, {"home": True}, "ok", "success: info['home'], as env.success_key says"),
        ({"success_key": "hom"}, {"home": True}, "note", "env.success_key = 'hom' was not seen in info; it has home"),
    ],
)
def test_which_success_key_was_found(settings: dict[str, Any], tells: Any, level: str, text: str) -> None:
    assert found(own(tells=tells), text, **settings).level == level


def leave(self: Any, action: Any) -> None:
    sys.exit("enough")


@pytest.mark.parametrize(
    ("attributes", "level", "text"),
    [
        ({"observation_space": box(0), "gives": np.zeros(0)}, "problem", "observation has no numbers"),
        ({"action_space": spaces.Box(-1, 1, (0,), np.float32)}, "problem", "action space has no numbers"),
        ({"observation_space": spaces.Dict({"eye": box(8, 8, 3)})}, "problem", "'eye' looks like an image"),
        ({"observation_space": spaces.Box(0, 255, (9, 9), np.uint8)}, "problem", "image (uint8 [9, 9])"),
        ({"observation_space": spaces.Box(0, 255, (64, 64, 3), np.uint8)}, "problem", "image (uint8 [64, 64, 3])"),
        ({"observation_space": spaces.Box(0, 1, (64, 64, 3), np.float32)}, "problem", "image (float32 [64, 64, 3])"),
        (
            {"observation_space": spaces.Box(0, 255, (4, 64, 64, 3), np.uint8)},
            "problem",
            "image (uint8 [4, 64, 64, 3])",
        ),
        ({"observation_space": spaces.Box(0, 255, (12288,), np.uint8)}, "problem", "image (uint8 [12288])"),
        ({"observation_space": spaces.Box(0, 255, (12288,), np.float32)}, "problem", "image (float32 [12288])"),
        ({"observation_space": spaces.Dict({"x": spaces.Sequence(box(1))})}, "problem", "no fixed size"),
        ({"observation_space": spaces.Dict({"x": box(2)}), "gives": {"y": 1}}, "problem", "has no 'x'; it has y"),
        ({"observation_space": spaces.Dict({"x": box(3)}), "gives": {"x": [1, 2]}}, "problem", "'x' has shape (2,)"),
        ({"observation_space": spaces.Box(0, 9, (2,), np.int64)}, "note", "observation is int64: the networks see"),
        (
            {
                "observation_space": spaces.Dict(
                    {"x": box(1), "level": spaces.Box(0, 9, (1,), np.int8), "mode": spaces.Discrete(3)}
                ),
                "gives": {"x": [0.0], "level": [0], "mode": 1},
            },
            "note",
            "'level' is int8: the networks see int8 as plain numbers",
        ),
        ({"observation_space": spaces.Box(0, 9, (2,), np.float64)}, "ok", "are float64: stored as float32"),
        ({"ends": None}, "problem", "terminated is NoneType None, not True or False"),
        ({"tells": None}, "problem", "info is NoneType, not a dict"),
        ({"reset": lambda self: None}, "problem", "unexpected keyword argument 'seed'"),
        ({"reset": lambda self, seed=None: np.zeros(2)}, "problem", "observations have shape ()"),
        ({"step": leave}, "problem", "stepping it ends the program (SystemExit: enough)"),
    ],
)
def test_each_way_to_break_the_contract_is_a_line(attributes: dict[str, Any], level: str, text: str) -> None:
    assert found(own(**attributes), text).level == level


def test_what_its_code_prints_or_changes_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loud.py").write_text(
        "import os, test_check_env\n"
        "class Loud(test_check_env.Own):\n"
        "    def step(self, action):\n"
        "        print('loud'); os.chdir('/')\n"
        "        return super().step(action)\n"
        "class Quits(test_check_env.Own):\n"
        "    def step(self, action):\n"
        "        raise SystemExit(0)\n"
    )
    assert cli.main(["check-env", "loud:Loud"]) == 0
    out = capsys.readouterr().out
    assert "loud\n" not in out
    assert "loud:Loud fits: warpsac train loud:Loud" in out
    assert Path(os.getcwd()) == tmp_path
    assert cli.main(["check-env", "loud:Quits"]) == 1
    assert "loud:Quits does not fit yet" in capsys.readouterr().out
    assert cli.main(["check-env", "loud:Nothing"]) == 2
    # What check-env finds, training refuses before it makes a folder.
    assert cli.main(["train", "loud:Quits", "--out", str(tmp_path / "runs")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "warpsac: loud:Quits: stepping it raises SystemExit: 0 at loud.py:8"
    assert not (tmp_path / "runs").exists()


# --- VectorEnvs


@pytest.mark.parametrize(
    ("factory", "level", "text"),
    [
        (own_gym.make_vector, "ok", "autoreset mode NextStep: the step after each end starts the next episode"),
        (
            own_gym.make_same_step,
            "ok",
            "SameStep: the last observation of an episode is info['final_obs']",
        ),
        (own_gym.make_disabled, "ok", "autoreset mode Disabled: ended episodes are reset by"),
        (own_gym.make_sync, "ok", "autoreset mode NextStep: ended episodes are reset by"),
        (own_gym.make_blind, "note", "autoreset mode SameStep: no info['final_obs'] at the end of an episode"),
    ],
)
def test_what_is_done_about_the_ends_of_episodes(factory: Any, level: str, text: str) -> None:
    assert found(factory, text).level == level
    assert found(factory, "the same seed gives the same episodes").level == "ok"
    assert found(factory, "success: info['success']").level == "ok"


class Liar(VectorPoint):
    """Says NextStep, and resets in the same step."""

    def __init__(self, num_envs: int):
        super().__init__(num_envs, Mode.SAME_STEP)
        self.metadata = {"autoreset_mode": Mode.NEXT_STEP}


class ResetsAll(VectorPoint):
    def __init__(self, num_envs: int):
        super().__init__(num_envs, Mode.DISABLED)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


class NotFinite(VectorPoint):
    def step(self, actions: np.ndarray) -> Any:
        obs, reward, *rest = super().step(actions)
        return obs, np.where(np.arange(self.num_envs) == self.points[0].steps % 9, np.nan, reward), *rest


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (Liar, "the step after an episode's end has a reward, so it is a real one"),
        (ResetsAll, "changes environments that are not in the mask"),
        (NotFinite, "not finite"),
        (lambda: VectorPoint(5), "its VectorEnv has 5 environments, not 2"),
    ],
)
def test_each_way_a_vector_env_breaks_the_contract(factory: Any, text: str) -> None:
    assert found(factory, text).level == "problem"


def test_resume_of_a_vector_env() -> None:
    assert found(own_gym.make_vector, "its state can be saved: resume is exact").level == "ok"
    assert found(own_gym.make_sync, "its state cannot be saved").level == "note"


# --- others


def test_built_in_tasks_and_slow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [finding.text for finding in check_env("probe-point")]
    assert "observation: 4 numbers" in texts
    assert "episodes are truncated after 25 steps" in texts
    assert "its state can be saved: resume is exact" in texts
    *_, last = check_env("probe-native")
    assert last == Finding("note", "not stepped: a task of the simulator's own, which may take minutes to compile")
    monkeypatch.setattr("warpsac.envs.findings.PATIENCE", 0.0)
    assert found(NamedPoint, "2 random steps at").level == "ok"


class Slow(Own):
    """A second for each of the first three steps, as one that compiles; then two milliseconds. It sets the clock."""

    now, steps = 0.0, 0

    def step(self, action: np.ndarray) -> Any:
        Slow.steps += 1
        Slow.now += 1.0 if Slow.steps <= 3 else 0.002
        return super().step(action)


def test_the_time_of_a_step_is_that_of_a_warm_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpsac.envs.findings.time.perf_counter", lambda: Slow.now)
    single = found(Slow, "random steps at").text
    Slow.steps = 0
    vector = found(lambda num_envs: gymnasium.vector.SyncVectorEnv([Slow] * num_envs), "random steps of 2").text
    assert single == "200 random steps at 2.0 milliseconds each"
    assert vector == "200 random steps of 2 environments at 4.0 milliseconds each"


TORCH_LINES = [
    ("probe-torch", "ok", "ended episodes are reset by restart()"),
    ("probe-torch", "ok", "each step returns the same memory"),
    ("probe-torch-critic", "ok", "asymmetric: the actor sees 4 numbers, the critic 6 numbers"),
    ("probe-torch-self-reset", "ok", "reports their last observations (final_obs)"),
    ("probe-torch-blind", "note", "does not report the last observation"),
    ("probe-torch-faulty", "problem", "not finite"),
]


@pytest.mark.parametrize(("task", "level", "text"), TORCH_LINES)
def test_environments_on_torch_tensors(task: str, level: str, text: str) -> None:
    pytest.importorskip("torch")
    (match,) = [finding for finding in check_env(task) if text in finding.text]
    assert match.level == level


def test_each_way_a_torch_environment_breaks_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from warpsac.envs.probes.torch import TorchPoint

    def problem() -> str:
        (one,) = [finding.text for finding in check_env("probe-torch") if finding.level == "problem"]
        return one

    step = TorchPoint.step
    for changes, expected in (
        ({"obs": torch.zeros(2, 3)}, "obs has shape (2, 3), not (2, 4)"),
        ({"reward": np.zeros(2)}, "reward is ndarray, not a torch tensor"),
        ({"terminated": torch.zeros(2)}, "terminated is float32; it must be bool"),
        ({"obs": torch.zeros(2, 4, device="meta")}, "obs is on meta, not on cpu, where the learner is"),
    ):
        monkeypatch.setattr(TorchPoint, "step", lambda self, action, new=changes: step(self, action)._replace(**new))
        assert problem() == expected
    monkeypatch.setattr(TorchPoint, "step", lambda self, action: 1 / 0)
    assert problem() == "stepping it raises ZeroDivisionError: division by zero"


def test_a_user_error_names_the_task() -> None:
    with pytest.raises(UserError, match=r"^Mine: is odd$"), about("Mine"):
        raise UserError("is odd")
