"""A user's own environments on torch tensors: the contract, its mistakes, a whole run from training to evaluation."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import warpsac
from warpsac.cli import main
from warpsac.config.schema import EnvConfig
from warpsac.envs import modules, registry
from warpsac.envs.names import bring
from warpsac.errors import UserError

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL: dict[str, Any] = {
    "profile": "demo", "total_steps": 64, "learning_starts": 32, "replay": {"batch_size": 8, "capacity": 1000},
    "learner": {"actor_width": 8, "critic_width": 8}, "eval": {"every": 0, "episodes": 3, "num_envs": 3},
}  # fmt: skip


@pytest.fixture(scope="module")
def carts() -> Any:
    spec = importlib.util.spec_from_file_location("own_torch_env", EXAMPLES / "own_torch_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["own_torch_env"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["own_torch_env"]


def test_named_groups_make_an_asymmetric_task(carts: Any) -> None:
    env = registry.make_torch(registry.lookup(bring(carts.Carts)), 3)
    spec = env.spec
    assert (spec.views.obs_dim, spec.views.actor_dim, spec.views.critic_start) == (5, 2, 2)
    assert spec.terms == (("to_goal", 1), ("velocity", 1))
    assert (spec.has_success, spec.episode_limit, spec.control_hz, spec.family) == (True, 50, 20.0, "torch")
    obs = np.asarray(env.reset(4))
    np.testing.assert_allclose(obs[:, 0], obs[:, 2])  # the critic sees the place as well
    np.testing.assert_array_equal(obs, np.asarray(env.reset(4)))


def test_episodes_are_truncated_at_the_limit_with_their_last_observation(carts: Any) -> None:
    env = registry.make_torch(registry.lookup(bring(carts.Carts)), 2, EnvConfig(episode_limit=3))
    env.reset(0)
    for count in range(1, 7):
        env.send(torch.zeros(2, 1))
        step = env.recv().result
        assert np.asarray(step.truncated).all() == (count % 3 == 0)
        if count % 3 == 0:  # nothing moves without a push
            assert (np.asarray(step.final_obs)[:, 0] != np.asarray(step.obs)[:, 0]).all()


def test_keyword_arguments_are_the_tasks_config(carts: Any) -> None:
    target = registry.lookup(bring(carts.Carts), overrides={"push": 8.0})
    assert registry.make_torch(target, 2)._made.push == 8.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": lambda self, action: torch.zeros(2)}, "step() must return obs, reward, terminated, truncated, info"),
        ({"num_envs": property(lambda self: 1, lambda self, _: None)}, "made 1 environment instead of 2"),
        ({"reset": None}, "has no reset; the contract is in docs/own-tasks.md"),
        ({"observe": lambda self: {"policy": {"to_goal": self.place, "velocity": self.velocity},
                                   "critic": self.place}}, "observations have 3 numbers, not 5"),
        ({"reset": lambda self, seed: {"policy": {"to_goal": torch.zeros(2, 8, 8, 3), "velocity": self.velocity},
                                       "critic": self.place}}, "observation looks like an image (float32 [8, 8, 3])"),
    ],
)  # fmt: skip
def test_what_breaks_the_contract_is_said_in_a_line(carts: Any, change: dict[str, Any], message: str) -> None:
    broken = type("Broken", (carts.Carts,), change)
    target = registry.lookup(bring(broken, "own_torch_env:Broken"), "torch")
    with pytest.raises(UserError) as caught:
        registry.make_torch(target, 2)
    assert message in str(caught.value)


def test_an_object_cannot_be_shared(carts: Any) -> None:
    with pytest.raises(UserError, match="hand over the class, or a function"):
        bring(carts.Carts(2, "cpu"))


def test_trained_from_python_and_evaluated_from_the_shell(
    carts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = warpsac.train(env=carts.Carts, num_envs=2, out=str(tmp_path), **SMALL)
    (run,) = outcome.runs
    assert json.loads((run / "config.json").read_text())["task"] == "own_torch_env:Carts"
    meta = json.loads((run / "meta.json").read_text())
    assert meta["task_source"]["module"] == "own_torch_env"
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(modules, "_named", set())
    capsys.readouterr()
    assert main(["eval", str(run), "--json", "--module", "own_torch_env:Carts"]) == 0
    assert json.loads(capsys.readouterr().out)["eval/episodes"] == 3
