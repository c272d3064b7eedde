"""Simulator and learner in one program: same law, same numbers as the parts, seed by seed."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quick
from common import fused_driver
from warpsac.agents.algorithm import over_seeds
from warpsac.agents.sac.algorithm import Sac
from warpsac.config.schema import Config, EnvConfig, LearnerConfig, ReplayConfig
from warpsac.envs.contract import SimulatorFailed
from warpsac.envs.probes import jax as jax_probe
from warpsac.envs.registry import lookup
from warpsac.replay.ring import Ring, indices, random_words
from warpsac.training.evaluate import evaluation_seed
from warpsac.training.fused import FusedDriver

CONFIG = Config(
    task="probe-native",
    total_steps=4000,
    learning_starts=40,
    updates_per_step=2,
    env=EnvConfig(num_envs=4),
    replay=ReplayConfig(capacity=400, batch_size=16, n_step=2, decay_steps=50),
    learner=LearnerConfig(
        gamma=0.9, actor_width=16, critic_width=16, actor_blocks=1, critic_blocks=1, expansion=2, atoms=21
    ),
)


def make_driver(config: Config = CONFIG, seeds: tuple[int, ...] = (1,), evaluation_envs: int = 6) -> FusedDriver:
    """It only collects until `first_learning`, which is interaction 9, and learns in every later stretch."""
    config = dataclasses.replace(config, seeds=seeds)
    env = jax_probe.make(lookup(config.task), config.env.num_envs, config.env)
    return fused_driver(config, env, jax_probe.make(lookup(config.task), evaluation_envs, config.env))


def leaves(driver: FusedDriver, seed: int) -> dict[str, np.ndarray]:
    """All state of the seed at that position, by name."""
    groups = driver.snapshot(with_memory=True, with_simulator=True)[seed]
    return {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}


def assert_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_a_stretch_equals_its_parts_bit_for_bit() -> None:
    whole, parts = make_driver(), make_driver()
    for count in (10, 7):
        whole.advance(count)
    for count in (4, 6, 1, 6):
        parts.advance(count)
    assert whole.state.counters == parts.state.counters
    assert (whole.state.counters.interaction, whole.state.counters.updates) == (17, 14)
    assert_equal(leaves(whole, 0), leaves(parts, 0))


@pytest.mark.parametrize("updates_per_step", [1, 2])
def test_the_policy_delay_goes_on_across_interactions(updates_per_step: int) -> None:
    """The actor learns at every second update, wherever a call begins."""
    driver = make_driver(dataclasses.replace(CONFIG, updates_per_step=updates_per_step))
    driver.advance(10)
    for count in (1, 2, 3):
        before = driver.state.counters.updates
        driver.advance(count)
        updates, counts = driver.state.counters.updates, driver.state.agent.sums.named()["counts"]
        turns = sum(index % 2 == 0 for index in range(before, updates))
        assert updates - before == count * updates_per_step
        assert float(counts["loss/critic"][0]) == updates
        assert turns == sum(index % 2 == 0 for index in range(updates)) - sum(index % 2 == 0 for index in range(before))
        assert float(counts["loss/actor"][0]) == sum(index % 2 == 0 for index in range(updates))
    assert int(driver.state.agent.learner.updates[0]) == driver.state.counters.updates


def test_it_equals_the_parts_called_one_by_one() -> None:
    """The same functions, called in the specified order: act, step, remember, learn."""
    driver = make_driver()
    driver.advance(10)
    algorithm, env, keys = driver.algorithm, driver.env, driver.keys
    # Copies: the driver donates its arrays.
    simulator, obs, agent, _, _ = jax.tree.map(jnp.copy, driver.state)
    learner, exploration, ring, scale, sums = agent
    driver.advance(3)
    act, remember, sample = map(quick.jit, (algorithm.act, algorithm.remember, algorithm.sample))
    learn, step_env = quick.jit(partial(algorithm.learn, phase=0)), quick.jit(over_seeds(env.step, 1))
    for t in range(10, 13):
        action, exploration = act(learner.policy, exploration, scale, obs, keys, jnp.int32(t))
        simulator, step = step_env(simulator, algorithm.to_simulator(action))
        result = step._replace(success=None)
        ring, scale = remember(ring, scale, obs, action, result, None, jnp.int32(t))
        obs = step.obs
        learner, scale, sums = learn(learner, scale, sums, sample(ring, obs, keys, learner.updates), keys)
    state = driver.state
    np.testing.assert_array_equal(state.agent.memory.end, ring.end)
    for mine, other in zip(jax.tree.leaves((state.agent.learner, state.obs)), jax.tree.leaves((learner, obs))):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_a_seed_in_company_is_the_seed_alone() -> None:
    company, alone = make_driver(seeds=(1, 2, 3)), make_driver(seeds=(2,))

    def rings() -> tuple[Ring, Ring]:
        return company.state.agent.memory, alone.state.agent.memory

    for driver in (company, alone):
        driver.advance(10)
    mine, other = rings()
    np.testing.assert_array_equal(mine.obs[:, 1], other.obs[:, 0])
    for driver in (company, alone):
        driver.advance(1)
    mine, other = rings()
    # Batched matrix products may round the policy's mean differently in the last bit.
    np.testing.assert_allclose(mine.action[:, 1], other.action[:, 0], atol=1e-6)

    def drawn(driver: FusedDriver) -> tuple[np.ndarray, np.ndarray]:
        algorithm, agent = driver.algorithm, driver.state.agent
        assert isinstance(algorithm, Sac)
        keys = algorithm.sample_keys(driver.keys, agent.learner.updates)

        @quick.jit
        def draw(memory: Ring, keys: Any) -> Any:
            words = random_words(keys, algorithm.law, algorithm.batch_size)
            return indices(memory, algorithm.ring, algorithm.law, words)

        age, env = draw(agent.memory, keys)
        return np.asarray(age), np.asarray(env)

    for ours, theirs in zip(drawn(company), drawn(alone)):
        np.testing.assert_array_equal(ours[1], theirs[0])
    for driver in (company, alone):
        driver.advance(9)
    assert company.state.counters.updates == alone.state.counters.updates == 20
    learners = company.state.agent.learner, alone.state.agent.learner
    for ours, theirs in zip(*map(jax.tree.leaves, learners)):
        np.testing.assert_allclose(ours[1], theirs[0], atol=1e-5, rtol=1e-5)
    assert not np.allclose(learners[0].actor.vectors[0], learners[0].actor.vectors[1])


def test_a_restored_driver_continues_bit_for_bit() -> None:
    whole, second = (make_driver(seeds=(4, 5)) for _ in range(2))
    for count in (10, 5):
        whole.advance(count)
    second.restore(whole.snapshot(with_memory=True, with_simulator=True), whole.state.counters, "test")
    for driver in (whole, second):
        driver.advance(9)
    for s in range(2):
        assert_equal(leaves(whole, s), leaves(second, s))


def test_faulty_steps_are_counted_and_never_learned_from() -> None:
    driver = make_driver(dataclasses.replace(CONFIG, task="probe-native-faulty"))
    driver.advance(50)
    assert driver.state.counters.updates == 0
    driver.advance(50)
    assert driver.state.counters.updates == 100
    assert driver.rows()[0]["faults/count"] == 2  # steps 40 and 80 of environment 0
    for name, array in leaves(driver, 0).items():
        if array.dtype.kind == "f":
            assert np.isfinite(array).all(), name
    end = np.asarray(driver.state.agent.memory.end)[:, 0, 0]
    assert (end == -(2**31)).sum() == 2
    assert (end[[38, 78]] > 0).all()  # the steps before them close their episodes as truncated
    assert driver.state.agent.learner.first_bad.tolist() == [-1]


def test_training_episodes_are_summed_on_the_device() -> None:
    driver = make_driver()
    driver.advance(60)
    row, ring = driver.rows()[0], driver.state.agent.memory
    rewards, end = np.asarray(ring.reward)[:60, 0], np.asarray(ring.end)[:60, 0]
    totals, lengths = [], []
    for env in range(4):
        begin = 0
        for last in np.flatnonzero(end[:, env]):
            totals.append(rewards[begin : last + 1, env].sum())
            lengths.append(last + 1 - begin)
            begin = last + 1
    np.testing.assert_allclose(row["episode/return"], np.mean(totals), rtol=1e-5)
    np.testing.assert_allclose(row["episode/length"], np.mean(lengths), rtol=1e-6)
    assert 0 <= row["episode/success"] <= 1
    assert "episode/return" not in driver.rows()[0]  # nothing ended since


def test_evaluation_runs_the_first_episode_of_each_environment() -> None:
    driver = make_driver(seeds=(1, 2), evaluation_envs=5)
    found = driver.evaluate(0, lambda: None)
    assert [len(episodes) for episodes in found] == [5, 5]
    policy = jax.tree.map(lambda leaf: leaf[0], driver.state.agent.learner.policy)
    best_action = jax.jit(driver.algorithm.actor.best_action)
    env = driver.evaluation_env
    state, obs = env.reset(jax.random.key(np.uint32(evaluation_seed(1, 0))))
    totals, alive = np.zeros(5), np.ones(5, bool)
    while alive.any():
        state, step = env.step(state, best_action(policy, obs))
        totals += np.where(alive, step.reward, 0)
        alive &= ~np.asarray(step.terminated | step.truncated)
        obs = step.obs
    np.testing.assert_allclose([episode.total for episode in found[0]], totals, rtol=1e-4)


def test_no_copy_of_the_ring_and_one_trace() -> None:
    config = dataclasses.replace(CONFIG, replay=dataclasses.replace(CONFIG.replay, capacity=40_000))
    driver = make_driver(config)
    for count in (10, 3, 1, 30):
        driver.advance(count)
    assert driver.traces() == {"collect": 1, "learn": 1}
    compiled, ring = driver.lower(learning=True).compile(), driver.state.agent.memory
    ring_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(ring))
    assert compiled.memory_analysis().temp_size_in_bytes < ring_bytes / 4
    for field in (ring.obs, ring.action, ring.reward):  # ends have the shape of rewards
        shape = ",".join(map(str, field.shape))
        assert not re.search(rf"\w+\[{shape}\]\S* copy\(", compiled.as_text())


def test_the_simulators_step_is_traced_once_for_all_programs_of_a_run() -> None:
    """Collecting, learning, and learning of another phase; it takes seconds for a robot."""
    config = dataclasses.replace(CONFIG, updates_per_step=1)
    env = jax_probe.make(lookup(config.task), config.env.num_envs, config.env)
    traced, step = [], env.step
    env.step = lambda state, action: traced.append(action) or step(state, action)  # type: ignore[method-assign]
    driver = fused_driver(config, env, jax_probe.make(lookup(config.task), 6, config.env))
    for count in (10, 2, 1):
        driver.advance(count)
    assert driver.traces() == {"collect": 1, "learn": 2}
    assert len(traced) == 1


def test_an_environment_that_breaks_in_every_episode_ends_its_evaluation() -> None:
    driver = make_driver(dataclasses.replace(CONFIG, task="probe-native-broken"), evaluation_envs=3)
    with pytest.raises(SimulatorFailed, match=r"environment 0 failed in 10 evaluation episodes in a row"):
        driver.evaluate(0, lambda: None)
