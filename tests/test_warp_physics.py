"""MuJoCo-Warp as a task's physics: the same contract, and the same motion as MJX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warpsac.agents.sac.algorithm import over_seeds
from warpsac.config.schema import EnvConfig
from warpsac.envs import warp_kernels
from warpsac.envs.registry import lookup

pytest.importorskip("warp")
import warp_launches

playground = pytest.importorskip("warpsac.envs.jax.playground")
pytest.importorskip("mujoco_playground")

STEPS = 6


@pytest.fixture(scope="module")
def warp_env() -> Any:
    return playground.make(lookup("CartpoleBalance"), 3, EnvConfig(num_envs=3, impl="warp"))


def rollout(env: Any, key: jax.Array, action: jax.Array) -> Any:
    """Observations [STEPS + 1, N, D] and rewards under the same actions at every step."""
    state, first = env.reset(key)

    def step(state: Any, _: None) -> Any:
        state, result = env.step(state, action)
        return state, (result.obs, result.reward)

    _, (obs, reward) = jax.lax.scan(step, state, length=STEPS)
    return jnp.concatenate([first[None], obs]), reward


def test_working_memory_shared_by_all_environments_is_not_part_of_the_state(warp_env: Any) -> None:
    physics = warp_env._physics
    assert physics.shared
    state, _ = jax.eval_shape(warp_env.reset, jax.random.key(0))
    assert all(leaf.shape[:1] == (3,) for leaf in jax.tree.leaves(state))
    assert len(state.simulator.data) + len(physics.shared) == physics.structure.num_leaves


def test_kernels_that_cannot_be_foreseen_are_compiled_where_they_are_launched() -> None:
    warp_kernels.load_in_time(lambda: 1 / 0)()  # type: ignore[arg-type,return-value]


def test_warp_moves_like_mjx_with_the_kernels_foreseen_and_seeds_side_by_side_like_alone(
    warp_env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = warp_launches.watched(monkeypatch)
    mjx_env = playground.make(lookup("CartpoleBalance"), 3, EnvConfig(num_envs=3, impl="jax"))
    assert (warp_env.impl, mjx_env.impl) == ("warp", "jax")
    keys = jax.random.split(jax.random.key(3), 2)
    action = jnp.array([[[-1.0], [0.2], [1.0]], [[0.5], [0.0], [-0.3]]])

    together = jax.jit(over_seeds(lambda key, action: rollout(warp_env, key, action), 2))(keys, action)
    alone = jax.jit(lambda key, action: rollout(warp_env, key, action))
    mjx = jax.jit(lambda key, action: rollout(mjx_env, key, action))
    for seed in range(2):
        obs, reward = alone(keys[seed], action[seed])
        np.testing.assert_allclose(together[0][seed], obs, atol=1e-6)
        np.testing.assert_allclose(together[1][seed], reward, atol=1e-6)
        expected_obs, expected_reward = mjx(keys[seed], action[seed])
        np.testing.assert_allclose(obs, expected_obs, atol=2e-4)
        np.testing.assert_allclose(reward, expected_reward, atol=2e-4)
    assert not np.allclose(obs[0], obs[-1], atol=1e-2)  # they did move

    foreseen = warp_kernels.of_playground(warp_env._env.unwrapped, "cpu")
    assert {(module.name, size) for module, size in foreseen} == launched | {("mujoco.mjx.warp.ffi", 256)}
    assert all(module.execs for module, _ in foreseen)  # they are loaded
