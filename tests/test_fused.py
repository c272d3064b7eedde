"""Simulator and learner in one program: same law, same numbers as the parts, seed by seed."""

from __future__ import annotations

import dataclasses
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from warpsac.training.native import reset_keys

import quick
from warpsac.agents.sac import algorithm as interaction
from warpsac.config.schema import Config, EnvConfig, LearnerConfig, ReplayConfig
from warpsac.envs.contract import SimulatorFailed
from warpsac.envs.probes import jax as jax_probe
from warpsac.replay.ring import indices, random_words
from warpsac.training.fused import FusedEngine

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


def make_engine(config: Config = CONFIG, seeds: tuple[int, ...] = (1,), evaluation_envs: int = 6) -> FusedEngine:
    config = dataclasses.replace(config, seeds=seeds)
    env = jax_probe.make(config.task, config.env.num_envs, config.env)
    evaluation_env = jax_probe.make(config.task, evaluation_envs, config.env)
    return FusedEngine(interaction.make_setup(config, env.spec), seeds, env, evaluation_env)


def leaves(engine: FusedEngine, seed: int) -> dict[str, np.ndarray]:
    """All state of the seed at that position, by name."""
    groups = engine.snapshots(with_replay=True)[seed]
    return {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}


def assert_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_a_stretch_equals_its_parts_bit_for_bit() -> None:
    whole, parts = make_engine(), make_engine()
    whole.advance(0, 10, "collect")
    whole.advance(10, 7, "learn")
    for start, count, mode in ((0, 4, "collect"), (4, 6, "collect"), (10, 1, "learn"), (11, 6, "learn")):
        parts.advance(start, count, mode)
    assert whole.updates == parts.updates == 14
    assert_equal(leaves(whole, 0), leaves(parts, 0))


@pytest.mark.parametrize("updates_per_step", [1, 2])
def test_the_policy_delay_goes_on_across_interactions(updates_per_step: int) -> None:
    """The actor learns at every second update, wherever a call begins."""
    engine = make_engine(dataclasses.replace(CONFIG, updates_per_step=updates_per_step))
    engine.advance(0, 10, "collect")
    done = 10
    for count in (1, 2, 3):
        before = engine.updates
        engine.advance(done, count, "learn")
        done += count
        turns = sum(index % 2 == 0 for index in range(before, engine.updates))
        assert engine.updates - before == count * updates_per_step
        row = engine.sums
        assert float(row.counts["loss/critic"][0]) == engine.updates
        assert turns == sum(index % 2 == 0 for index in range(engine.updates)) - sum(
            index % 2 == 0 for index in range(before)
        )
        assert float(row.counts["loss/actor"][0]) == sum(index % 2 == 0 for index in range(engine.updates))
    assert int(engine.learner.updates[0]) == engine.updates


def test_it_equals_the_parts_called_one_by_one() -> None:
    """The same functions, called in the specified order: act, step, store, learn."""
    engine, setup = make_engine(), make_engine().setup
    engine.advance(0, 10, "collect")
    env, keys = engine.env, engine.keys
    # Copies: the engine donates its arrays.
    state = jax.tree.map(jnp.copy, (engine.env_state, engine.obs, engine.learner, engine.exploration, engine.ring))
    env_state, obs, learner, exploration, ring = state
    scale, sums = jax.tree.map(jnp.copy, (engine.scale, engine.sums))
    engine.advance(10, 3, "learn")
    act, store = quick.jit(partial(interaction.act, setup)), quick.jit(partial(interaction.store, setup))
    sample, learn = quick.jit(partial(interaction.sample, setup)), quick.jit(partial(interaction.learn, setup, phase=0))
    step_env = quick.jit(interaction.over_seeds(env.step, 1))
    for t in range(10, 13):
        action, exploration = act(learner.policy, exploration, obs, keys, jnp.int32(t))
        env_state, step = step_env(env_state, action)
        obs = step.obs
        ring, scale = store(ring, scale, action, step._replace(success=None), None)
        learner, sums = learn(learner, sample(ring, keys, learner.updates), scale, sums, keys)
    np.testing.assert_array_equal(engine.ring.end, ring.end)
    for mine, other in zip(jax.tree.leaves((engine.learner, engine.obs)), jax.tree.leaves((learner, obs))):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_a_seed_in_company_is_the_seed_alone() -> None:
    company, alone = make_engine(seeds=(1, 2, 3)), make_engine(seeds=(2,))
    for engine in (company, alone):
        engine.advance(0, 10, "collect")
    np.testing.assert_array_equal(company.ring.obs[:, 1], alone.ring.obs[:, 0])
    for engine in (company, alone):
        engine.advance(10, 1, "learn")
    # Batched matrix products may round the policy's mean differently in the last bit.
    np.testing.assert_allclose(company.ring.action[:, 1], alone.ring.action[:, 0], atol=1e-6)

    def drawn(engine: FusedEngine) -> tuple[np.ndarray, np.ndarray]:
        setup = engine.setup
        keys = interaction.sample_keys(engine.keys, engine.learner.updates)
        words = random_words(keys, setup.law, setup.batch_size)
        age, env = indices(engine.ring, setup.ring, setup.law, words)
        return np.asarray(age), np.asarray(env)

    for mine, other in zip(drawn(company), drawn(alone)):
        np.testing.assert_array_equal(mine[1], other[0])
    for engine in (company, alone):
        engine.advance(11, 9, "learn")
    assert company.updates == alone.updates == 20
    for mine, other in zip(jax.tree.leaves(company.learner), jax.tree.leaves(alone.learner)):
        np.testing.assert_allclose(mine[1], other[0], atol=1e-5, rtol=1e-5)
    assert not np.allclose(company.learner.actor.vectors[0], company.learner.actor.vectors[1])


def test_a_restored_engine_goes_on_bit_for_bit() -> None:
    whole, first, second = (make_engine(seeds=(4, 5)) for _ in range(3))
    for engine in (whole, first):
        engine.advance(0, 10, "collect")
        engine.advance(10, 5, "learn")
    second.restore(first.snapshots(with_replay=True), first.updates, "test")
    for engine in (whole, second):
        engine.advance(15, 9, "learn")
    for s in range(2):
        assert_equal(leaves(whole, s), leaves(second, s))


def test_faulty_steps_are_counted_and_never_learned_from() -> None:
    engine = make_engine(dataclasses.replace(CONFIG, task="probe-native-faulty"))
    engine.advance(0, 50, "collect")
    engine.advance(50, 50, "learn")
    assert engine.read_episodes()[0]["faults/count"] == 2  # steps 40 and 80 of environment 0
    for name, array in leaves(engine, 0).items():
        if array.dtype.kind == "f":
            assert np.isfinite(array).all(), name
    end = np.asarray(engine.ring.end)[:, 0, 0]
    assert (end == -(2**31)).sum() == 2
    assert (end[[38, 78]] > 0).all()  # the steps before them close their episodes as truncated
    assert engine.first_bad_updates() == [-1]


def test_training_episodes_are_summed_on_the_device() -> None:
    engine = make_engine()
    engine.advance(0, 60, "collect")
    row = engine.read_episodes()[0]
    rewards, end = np.asarray(engine.ring.reward)[:60, 0], np.asarray(engine.ring.end)[:60, 0]
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
    assert "episode/return" not in engine.read_episodes()[0]  # nothing ended since


def test_evaluation_runs_the_first_episode_of_each_environment() -> None:
    engine = make_engine(seeds=(1, 2), evaluation_envs=5)
    found = engine.evaluate(reset_keys((7, 8)))
    assert [len(episodes) for episodes in found] == [5, 5]
    policy = engine.best_policy()
    env = engine.evaluation_env
    state, obs = env.reset(reset_keys((7, 8))[0])
    totals, alive = np.zeros(5), np.ones(5, bool)
    while alive.any():
        state, step = env.step(state, policy(np.stack([obs, obs]))[0])
        totals += np.where(alive, step.reward, 0)
        alive &= ~np.asarray(step.terminated | step.truncated)
        obs = step.obs
    np.testing.assert_allclose([episode.total for episode in found[0]], totals, rtol=1e-4)


def test_no_copy_of_the_ring_and_one_trace() -> None:
    config = dataclasses.replace(CONFIG, replay=dataclasses.replace(CONFIG.replay, capacity=40_000))
    engine = make_engine(config)
    engine.advance(0, 10, "collect")
    for start, count in ((10, 3), (13, 1), (14, 30)):
        engine.advance(start, count, "learn")
    assert engine.traces() == {"collect": 1, "learn": 1}
    compiled = engine.lower("learn").compile()
    ring_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(engine.ring))
    assert compiled.memory_analysis().temp_size_in_bytes < ring_bytes / 4
    shape = ",".join(map(str, engine.ring.obs.shape))
    assert not re.search(rf"f32\[{shape}\]\S* copy\(", compiled.as_text())


def test_an_environment_that_breaks_in_every_episode_ends_its_evaluation() -> None:
    engine = make_engine(dataclasses.replace(CONFIG, task="probe-native-broken"), evaluation_envs=3)
    with pytest.raises(SimulatorFailed, match=r"environment 0 failed in 10 evaluation episodes in a row"):
        engine.evaluate(reset_keys((7,)))
