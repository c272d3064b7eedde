"""ManiSkill with one environment on the CPU, where Vulkan can be had. `make test-maniskill` runs these."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from runs import rows_of, state_of, tiny, tiny_ppo
from warpsac.config.schema import EnvConfig
from warpsac.deploy.export import RECORDED, recorded_observations
from warpsac.envs import registry, tasks
from warpsac.errors import ConfigError, UserError
from warpsac.runs import run_folder
from warpsac.training import start as training
from warpsac.training.policy import load_policy

pytest.importorskip("mani_skill", reason="needs ManiSkill: make test-maniskill")
from warpsac.envs.torch import maniskill

# ManiSkill and what it imports warn about themselves.
pytestmark = pytest.mark.filterwarnings("default")

TABLE = [task for task in tasks.benchmark_tasks() if task.family == "maniskill"]
LIMITS = {"RollBall-v1": 80, "PegInsertionSide-v1": 100, "UnitreeG1TransportBox-v1": 100}  # others: 50
DOWNLOADED = ("PickSingleYCB-v1",)  # its objects come from a network


@pytest.fixture(scope="module", autouse=True)
def _vulkan() -> None:
    try:
        registry.make_torch("PullCube-v1", 1).close()
    except UserError as error:
        if "needs Vulkan" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("task", TABLE, ids=lambda task: task.name)
def test_sizes_are_those_of_the_table(task: tasks.Task) -> None:
    try:
        made = registry.make_torch(task.name, 1)
    except UserError as error:
        if task.name in DOWNLOADED and "its assets cannot be fetched here" in str(error):
            pytest.skip(str(error))
        raise
    spec = made.spec
    assert (spec.views.actor_dim, spec.views.critic_dim) == (task.actor_obs_dim, task.critic_obs_dim)
    assert (spec.action_dim, spec.episode_limit) == (task.action_dim, LIMITS.get(task.name, 50))
    assert made.reset(1).shape == (1, task.critic_obs_dim)
    made.close()


def test_episodes_run_to_their_limit_and_keep_their_last_observation() -> None:
    made = registry.make_torch("PullCube-v1", 1, EnvConfig(episode_limit=7))
    first = np.asarray(made.reset(3))
    kept = []
    for _ in range(15):
        made.send(jnp.full((1, 8), 0.5, jnp.float32))
        kept.append(made.recv().result)
    assert [int(np.asarray(step.truncated)[0]) for step in kept] == ([0] * 6 + [1]) * 2 + [0]
    assert not any(np.asarray(step.terminated).any() or np.asarray(step.faulty).any() for step in kept)
    rewards = np.array([np.asarray(step.reward)[0] for step in kept])
    assert ((rewards >= 0) & (rewards <= 1)).all()  # normalised
    last, fresh = np.asarray(kept[6].final_obs), np.asarray(kept[6].obs)
    speed = slice(9, 16)  # of the arm's seven joints, after the nine positions: an episode starts at rest
    assert (last[0, speed] != 0).all()
    assert (first[0, speed] == 0).all()
    assert (fresh[0, speed] == 0).all()
    made.reset(3)
    made.send(jnp.full((1, 8), 0.5, jnp.float32))
    assert np.array_equal(np.asarray(made.recv().result.obs), np.asarray(kept[0].obs))  # same seed, same episode
    made.close()


def test_it_trains(tmp_path: Path) -> None:
    config = tiny(
        tmp_path, task="PullCube-v1", env={"num_envs": 1, "episode_limit": 20}, total_steps=300, learning_starts=50,
        eval={"every": 0, "episodes": 2, "num_envs": 1}, checkpoint={"every": 0},
    )  # fmt: skip
    (run,) = training.train(config).runs
    row = rows_of(run)[-1]
    assert (row["step"], row["eval/length"], row["eval/episodes"]) == (300, 20, 2)
    assert row["eval/success"] in (0.0, 0.5, 1.0)
    assert row["eval/score"] == row["eval/success"]
    assert int(state_of(run)["info/updates"]) == 300 - 50
    # Exported it would be held against observations of the one environment that a CPU can simulate.
    policy = load_policy(run)
    obs, source = recorded_observations(run_folder.open_run(run), policy, None, policy)
    assert (obs.shape, source) == ((RECORDED, policy.actor.views.actor_dim), "recorded on PullCube-v1")


def test_ppo_trains(tmp_path: Path) -> None:
    config = tiny_ppo(
        tmp_path, task="PullCube-v1", total_steps=240, env={"num_envs": 1, "episode_limit": 20},
        ppo={"rollout_steps": 30}, eval={"every": 120, "episodes": 2, "num_envs": 1}, checkpoint={"every": 0},
        log={"every": 60},
    )  # fmt: skip
    (run,) = training.train(config).runs
    rows = rows_of(run)
    evaluated = [row for row in rows if row["kind"] == "eval"]
    assert [(row["step"], row["eval/length"]) for row in evaluated] == [(0, 20), (120, 20), (240, 20)]
    learned = [row for row in rows if row["kind"] == "train"]
    assert all(np.isfinite(row["loss/critic"]) and row["episode/length"] == 20 for row in learned)
    assert int(state_of(run)["info/updates"]) == 8 * 2 * 3


def test_what_a_cpu_cannot_do_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"simulates one environment on a CPU, not 2: --env\.num-envs 1"):
        registry.make_torch("PullCube-v1", 2)
    config = tiny(tmp_path, task="PullCube-v1", env={"num_envs": 1}, eval={"episodes": 2, "num_envs": 2})
    with pytest.raises(ConfigError, match=r"eval\.num_envs = 2: must be at most 1"):
        training.train(config)
    assert list(tmp_path.iterdir()) == []


def test_remedies() -> None:
    assert "apt-get install libvulkan1" in maniskill._remedy("RuntimeError: vk::createInstanceUnique: failed")
    assert "MS_ASSET_DIR" in maniskill._remedy("FileNotFoundError: No such file or directory: 'info_pick_v0.json'")
    assert maniskill._remedy("ValueError: something else") == "cannot be made: ValueError: something else"
