"""IsaacLab 3 without Isaac Sim, on the CPU. `make test-isaaclab` runs these, with Python 3.12.

It exists once in a process, so each of these runs in one of its own; Cartpole's two files are the tests' own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import isaac_assets
from warpsac.envs import tasks

pytest.importorskip("isaaclab", reason="needs IsaacLab: make test-isaaclab")
from warpsac.envs.torch.isaaclab import find_id

HEAD = """
import json
import jax.numpy as jnp
import numpy as np
from warpsac.config.schema import EnvConfig
from warpsac.envs import registry
from warpsac.training import start as training
"""
STEP = """
made = registry.make_torch({task!r}, 4, EnvConfig(episode_limit=12))
made.reset(3)
kept = []
for _ in range(30):
    made.send(jnp.full((4, 1), 0.9, jnp.float32))
    kept.append(made.recv().result)
spec = made.spec
at_end = kept[11]
print("RESULT", json.dumps({{
    "sizes": [spec.views.actor_dim, spec.views.critic_dim, spec.action_dim, spec.episode_limit],
    "single": spec.single,
    "truncated": [int(np.asarray(step.truncated).sum()) for step in kept],
    "faulty": sum(int(np.asarray(step.faulty).sum()) for step in kept),
    "moved_at_end": np.abs(np.asarray(at_end.final_obs) - np.asarray(kept[10].obs)).max().item(),
    "jump_at_reset": np.abs(np.asarray(at_end.obs) - np.asarray(at_end.final_obs)).max().item(),
}}))
"""
TRAIN = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from runs import rows_of, state_of, tiny
config = tiny(Path({out!r}), task="Isaac-Cartpole", env={{"num_envs": 4, "episode_limit": 15}}, total_steps=400,
              learning_starts=80, eval={{"every": 200, "episodes": 4, "num_envs": 4}}, checkpoint={{"every": 0}},
              replay={{"capacity": 800}})
(run,) = training.train(config).runs
state, rows = state_of(run), rows_of(run)
print("RESULT", json.dumps({{
    "evaluations": [[row["step"], row["eval/length"]] for row in rows if row["kind"] == "eval"],
    "updates": int(state["info/updates"]),
    "cut": [int((state["replay/end"][t] > 0).sum()) for t in (14, 29, 44, 49, 50)],
}}))
"""

TRAIN_PPO = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from runs import rows_of, state_of, tiny_ppo
config = tiny_ppo(Path({out!r}), task="Isaac-Cartpole", env={{"num_envs": 4, "episode_limit": 15}}, total_steps=320,
                  ppo={{"rollout_steps": 20, "minibatches": 4}}, log={{"every": 20}},
                  eval={{"every": 160, "episodes": 4, "num_envs": 4}}, checkpoint={{"every": 0}})
(run,) = training.train(config).runs
state, rows = state_of(run), rows_of(run)
print("RESULT", json.dumps({{
    "evaluations": [[row["step"], row["eval/length"]] for row in rows if row["kind"] == "eval"],
    "lengths": [[row["step"], row["episode/length"]] for row in rows if row["kind"] == "train"],
    "updates": int(state["info/updates"]),
    "returns_begin_anew": bool(state["interaction/scale/ended"].all()),
}}))
"""


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("assets")
    isaac_assets.write(root)
    return root


def run(code: str, assets: Path | str) -> dict[str, Any]:
    environment = os.environ | {"ISAACSIM_ASSET_ROOT": str(assets)}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code], capture_output=True, text=True, timeout=900, env=environment
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, done.stderr[-3000:]
    return json.loads(results[-1].removeprefix("RESULT "))


@pytest.mark.parametrize("task", ["Isaac-Cartpole", "Isaac-Cartpole-Direct-v0"])
def test_steps_and_last_observations(task: str, assets: Path) -> None:
    found = run(STEP.format(task=task), assets)
    assert found["sizes"] == [4, 4, 1, 12]
    assert found["single"]
    assert [t for t, count in enumerate(found["truncated"]) if count == 4] == [11, 23]
    assert found["faulty"] == 0
    # The last observation continues the one before; the first of the next episode does not.
    assert found["moved_at_end"] < found["jump_at_reset"]


def test_it_trains_and_judging_is_an_episode_boundary(assets: Path, tmp_path: Path) -> None:
    code = TRAIN.format(tests=str(Path(__file__).parent), out=str(tmp_path))
    found = run(code, assets)
    assert found["evaluations"] == [[0, 15], [200, 15], [400, 15]]
    assert found["updates"] == 100 - 20
    # Ends of the first three episodes, the cut by the evaluation after 50 interactions, and a step that continues.
    assert found["cut"] == [4, 4, 4, 4, 0]


def test_ppo_trains_and_is_evaluated_between_rollouts(assets: Path, tmp_path: Path) -> None:
    """Four rollouts of 20 steps, evaluated after every second one."""
    code = TRAIN_PPO.format(tests=str(Path(__file__).parent), out=str(tmp_path))
    found = run(code, assets)
    assert found["evaluations"] == [[0, 15], [160, 15], [320, 15]]
    assert found["lengths"] == [[80, 15], [160, 15], [240, 15], [320, 15]]
    assert found["updates"] == 4 * 2 * 4
    assert found["returns_begin_anew"]


@pytest.mark.parametrize(
    ("task", "way_out"),
    [
        ("Isaac-Cartpole", "name their folder with ISAACSIM_ASSET_ROOT"),
        ("Isaac-Lift-Cube-Franka-v0", "needs Isaac Sim, which is not installed"),
    ],
)
def test_what_a_task_needs_and_is_not_there(task: str, way_out: str, tmp_path: Path) -> None:
    code = """
try:
    registry.make_torch({task!r}, 4)
except Exception as error:
    print("RESULT", json.dumps({{"kind": type(error).__name__, "text": str(error)}}))
"""
    found = run(code.format(task=task), tmp_path / "nothing")
    assert found["kind"] == "UserError"
    assert way_out in found["text"]


def test_every_task_of_the_table_is_found_under_either_name(assets: Path) -> None:
    code = """
import gymnasium, isaaclab_tasks
print("RESULT", json.dumps([name for name in gymnasium.registry if name.startswith("Isaac")]))
"""
    ids: Any = run(code, assets)
    table = [task.name for task in tasks.benchmark_tasks() if task.family == "isaaclab"]
    assert len(table) == 12
    found = {name: find_id(name, ids) for name in table}
    assert len(set(found.values())) == 12
    assert found["Isaac-Velocity-Flat-G1-v0"] == "Isaac-Velocity-Flat-G1"
    assert found["Isaac-Repose-Cube-Shadow-Direct-v0"] == "Isaac-Reorient-Cube-Shadow-Direct"
    assert found["Isaac-Velocity-Rough-Anymal-C-v0"] == "IsaacContrib-Velocity-Rough-AnymalC"
    older = [*table, "Isaac-Cartpole-v0"]  # as version 2 registers them
    assert all(find_id(name.removesuffix("-v0"), older) == name for name in table)
