"""The DeepMind Control Suite against the suite itself: observations, ends, bounds, states."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepping import assert_goes_on_exactly, assert_same_steps, roll, step
from warpsac.config.schema import EnvConfig
from warpsac.envs import registry, tasks
from warpsac.envs.host.vector import reset_seed
from warpsac.errors import UserError
from warpsac.watch import play

pytest.importorskip("dm_control")
from warpsac.envs.host import dmc

pytestmark = pytest.mark.dmc


@pytest.mark.parametrize("name", ["humanoid-walk", "reacher-easy"])
def test_steps_are_those_of_the_suite(name: str) -> None:
    """Observations joined in the suite's own order, raw rewards, and the same random numbers from the same seed."""
    suite = dmc._import_suite()
    plain = suite.load(*name.split("-"), task_kwargs={"random": reset_seed(5, 0)})
    env = registry.make(name, 1)

    def flat(observation: Any) -> np.ndarray:
        return np.concatenate([np.atleast_1d(part).reshape(-1) for part in observation.values()]).astype(np.float32)

    np.testing.assert_array_equal(env.reset(5)[0], flat(plain.reset().observation))
    for action in np.random.default_rng(0).uniform(-1, 1, (30, env.spec.action_dim)).astype(np.float32):
        ours, theirs = step(env, action[None]).result, plain.step(action)
        np.testing.assert_array_equal(ours.obs[0], flat(theirs.observation))
        assert ours.reward[0] == np.float32(theirs.reward)
    assert env.spec.terms == tuple((name, np.size(part)) for name, part in theirs.observation.items())
    env.close()


def test_an_episode_is_truncated_at_the_suites_limit_and_restarted() -> None:
    env = registry.make("cartpole-swingup", 1)
    assert (env.spec.episode_limit, env.spec.control_hz) == (1000, 100)
    env.reset(0)
    steps = roll(env, 1001)
    ends = [i for i, s in enumerate(steps) if (s.result.truncated | s.result.terminated)[0]]
    assert ends == [999]
    last, next_one = steps[999].result, steps[1000].result
    assert last.truncated[0]
    assert not last.terminated[0]
    assert not np.array_equal(last.final_obs, last.obs)
    assert np.isfinite(next_one.obs).all()


def test_an_episode_that_its_task_ends_is_terminated() -> None:
    """The linear-quadratic task ends, with discount 0, where its state is zero; it has no bounds and no limit."""
    with pytest.raises(UserError, match=r"lqr-lqr_2_1: action space has no bounds; give them with --env\.action"):
        registry.make("lqr-lqr_2_1", 1)
    env: Any = registry.make("lqr-lqr_2_1", 1, EnvConfig(action_limit=2.0))
    assert (env.spec.episode_limit, env.spec.action_low) == (None, (-2.0,))
    env.reset(0)
    assert not step(env, [[0.0]]).result.terminated[0]
    physics = env._envs[0]._env.physics
    physics.data.qpos[:] = physics.data.qvel[:] = 0.0
    physics.forward()
    result = step(env, [[0.0]]).result
    assert (result.terminated[0], result.truncated[0]) == (True, False)


def test_actions_reach_the_suite_in_its_own_range() -> None:
    env: Any = registry.make("quadruped-walk", 1)
    bounds = env._envs[0]._env.action_spec()
    env.reset(0)
    for action, expected in ((1.0, bounds.maximum), (-1.0, bounds.minimum)):
        step(env, np.full((1, 12), action))
        np.testing.assert_allclose(env._envs[0]._env.physics.data.ctrl, expected, rtol=1e-6)
    assert not np.array_equal(bounds.maximum, np.ones(12))


# Targets in the model (reacher), a random tendon (point_mass), actuator states and sensors (dog).
@pytest.mark.parametrize("name", ["humanoid-run", "dog-trot", "reacher-easy", "point_mass-hard", "cheetah-run"])
def test_a_restored_state_continues_exactly(name: str) -> None:
    config = EnvConfig(episode_limit=40)
    assert_goes_on_exactly(registry.make(name, 2, config), registry.make(name, 2, config))


def test_the_same_seed_gives_the_same_episodes_and_builders_travel_to_other_processes() -> None:
    env: Any = registry.make("finger-turn_easy", 2, EnvConfig(episode_limit=20))
    first = env.reset(4)
    assert not np.array_equal(first[0], first[1])
    steps = roll(env, 50)
    build = pickle.loads(pickle.dumps(env.recipe.build))
    env._envs = [build() for _ in range(2)]
    np.testing.assert_array_equal(env.reset(4), first)
    assert_same_steps(steps, roll(env, 50))


def test_names() -> None:
    suite = dmc._import_suite()
    assert set(tasks.suite_names("dmc")) == {f"{domain}-{task}" for domain, task in suite.ALL_TASKS}
    with pytest.raises(UserError, match="cheetah-fly: the installed dm_control has no such task"):
        dmc.build_single("cheetah-fly")


def test_a_task_that_needs_graphics_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with pytest.raises(UserError, match="quadruped-escape: its terrain needs OpenGL; set MUJOCO_GL=egl"):
        registry.make("quadruped-escape", 1)


def test_a_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gl = play.find_gl()
    if gl is None:
        pytest.skip("MuJoCo cannot draw on this machine")
    monkeypatch.setenv("MUJOCO_GL", gl)
    env: Any = registry.make("humanoid-walk", 1, render=True)
    env.reset(0)
    image = env.render()
    assert image.shape == (480, 640, 3)
    assert np.ptp(image) > 50  # something is there to see
    env.close()
