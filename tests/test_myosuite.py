"""MyoSuite: the benchmark's names, limits and success, and states that are put back exactly."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from stepping import assert_goes_on_exactly, roll, step
from warpsac.config.schema import EnvConfig
from warpsac.envs import contract, registry, tasks
from warpsac.errors import UserError
from warpsac.training.episodes import HostEpisodes
from warpsac.watch import play

pytest.importorskip("myosuite")
from warpsac.envs.host import myosuite

pytestmark = pytest.mark.myosuite
NAMES = [task.name for task in tasks.benchmark_tasks() if task.family == "myosuite"]
LIMITS = {"reach": 100, "pose": 100, "obj-hold": 75, "key-turn": 200, "pen-twirl": 50}


def test_every_benchmark_name_has_an_id() -> None:
    assert list(myosuite.BENCHMARK) == NAMES
    for name, env_id in myosuite.BENCHMARK.items():
        assert env_id.endswith("Random-v0" if name.endswith("-hard") else "Fixed-v0")
        assert registry.lookup(env_id) == registry.Target(env_id, "myosuite", None)
        assert registry.lookup(env_id).regime == "limited"


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_state_continues_exactly(name: str) -> None:
    config = EnvConfig(episode_limit=40)
    assert_goes_on_exactly(registry.make(name, 1, config), registry.make(name, 1, config))


@pytest.mark.parametrize("name", NAMES[::2])
def test_limits_and_success(name: str) -> None:
    env = registry.make(name, 1)
    assert env.spec.episode_limit == LIMITS[name.removeprefix("myo-")]
    assert (env.spec.has_success, env.spec.restorable) == (True, True)
    assert {"myosuite", "mujoco"} <= env.spec.versions.keys()
    assert env.spec.action_low == (-1.0,) * 39
    assert sum(size for _, size in env.spec.terms) == env.spec.views.actor_dim
    env.close()


def test_parts_of_the_observation_by_name() -> None:
    """In their order: angles come first, fingertips in the middle, muscles last."""
    env = registry.make("myo-reach", 1)
    assert env.spec.terms == (("qpos", 23), ("qvel", 23), ("tip_pos", 15), ("reach_err", 15), ("act", 39))
    (obs,) = env.reset(0)
    assert isinstance(env, contract.HasScene)
    scene = env.scene()
    assert scene is not None
    tips = [scene.data.site(f"{finger}tip_r").xpos for finger in ("TH", "IF", "MF", "RF", "LF")]
    np.testing.assert_allclose(obs[:23], scene.data.qpos[:23], atol=1e-6)
    np.testing.assert_allclose(obs[46:61], np.concatenate(tips), atol=1e-6)
    np.testing.assert_allclose(obs[-39:], scene.data.act, atol=1e-6)
    env.close()


def test_the_published_reach_task_is_stricter_than_version_three() -> None:
    assert myosuite.build_single("myo-reach-hard").unwrapped.far_th == 0.034
    assert myosuite.build_single("myoHandReachRandom-v0").unwrapped.far_th == 0.075


def test_success_is_what_the_task_calls_solved_at_any_step() -> None:
    """A key turned by hand beyond its goal (pi) and back again: the episode counts as a success."""
    env: Any = registry.make("myo-key-turn", 1, EnvConfig(episode_limit=3))
    env.reset(0)
    data, tracker, flags = env._envs[0].unwrapped.data, HostEpisodes.none(1, 1), []
    for angle in (0.0, 4.0, 0.0):
        data.qpos[-1] = angle
        result = step(env, np.zeros((1, 39))).result
        flags.append(bool(result.success[0]))
        tracker.observe(jax.tree.map(lambda x: x[None], result), None)
    assert flags == [False, True, False]
    assert [episode.success for episode in tracker.ended[0]] == [True]


def test_tasks_with_a_longer_memory_are_not_taken_for_restorable() -> None:
    env = registry.make("myoFatiElbowPose1D6MRandom-v0", 1)
    assert not env.spec.restorable
    assert env.get_state() is None
    env.reset(0)
    roll(env, 2)


def test_names() -> None:
    myosuite.build_single("motorFingerPoseFixed-v0")
    known = {name for name, spec in gymnasium.registry.items() if "myosuite" in str(spec.entry_point)}
    assert set(tasks.suite_names("myosuite")) == known
    with pytest.raises(UserError, match="the installed myosuite has no task myoNothing-v0"):
        myosuite.build_single("myoNothing-v0")


def test_builders_travel_to_other_processes() -> None:
    env: Any = registry.make("myo-pose-hard", 1)
    again = pickle.loads(pickle.dumps((env.recipe.build, env.recipe.success_of)))
    assert again[0]().spec.id == "myoHandPoseRandom-v0"
    assert again[1]({"solved": True})


def test_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    gl = play.find_gl()
    if gl is None:
        pytest.skip("MuJoCo cannot draw on this machine")
    monkeypatch.setenv("MUJOCO_GL", gl)
    env = registry.make("myo-reach", 1, render=True)
    env.reset(0)
    assert env.render().shape == (480, 640, 3)
    assert np.ptp(env.render()) > 50
    env.close()
