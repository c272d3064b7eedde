"""Minibatches of which a part is the learner's own steps: `auto.own_share`, `replay.own`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quick
from runs import assert_same_run, state_of, tiny
from test_auto import THREE, portfolio_of, tiny_auto
from warpsac.agents.sac.portfolio import Portfolio
from warpsac.errors import UserError
from warpsac.replay import own, ring
from warpsac.replay.age import AgeLaw, weights
from warpsac.replay.host import HostRing
from warpsac.replay.own import TRIES, Own
from warpsac.replay.ring import RingSpec
from warpsac.training import start
from warpsac.types import StepResult

HALF: dict[str, Any] = {"auto": {"arms": THREE, "own_share": 0.5}}

# Call by call, what is within a step would be compiled again each time.
add: Any = quick.jit(ring.add, static_argnames="spec")


def filled(spec: RingSpec, count: int, arms: int = 3, device: bool = False) -> HostRing:
    """A ring after `count` steps of random episodes, in each of which one of the arms acts."""
    rng, shape = np.random.default_rng(1), (spec.num_seeds, spec.num_envs)
    made: Any = HostRing.init(spec, rng.normal(size=(*shape, spec.obs_dim)))
    state, owner = jax.tree.map(jnp.asarray, made.state), rng.integers(0, arms, shape).astype(np.int32)
    for _ in range(count):
        obs, final = rng.normal(size=(2, *shape, spec.obs_dim)).astype(np.float32)
        ended, terminated = rng.random((2, *shape)) < 0.2
        reward = rng.normal(size=shape).astype(np.float32)
        step = StepResult(obs, reward, ended & terminated, ended & ~terminated, final)
        action = rng.uniform(-1, 1, (*shape, spec.action_dim)).astype(np.float32)
        made.add(action, step, owner)
        if device:
            state = add(state, spec, action, step, owner)
        owner = np.where(ended, rng.integers(0, arms, shape), owner).astype(np.int32)
    if device:
        for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(made.state), strict=True):
            np.testing.assert_array_equal(one, other)
    return made


SPEC = RingSpec(capacity=60, num_envs=3, num_seeds=2, obs_dim=2, action_dim=1, n_step=2, final_slots=60, owners=True)


def owner_at(made: HostRing, age: int, seed: int, env: int) -> int:
    """Step by step: age 0 is the newest step whose n-step window is complete."""
    state, spec = made.state, made.spec
    assert state.owner is not None
    return int(state.owner[(int(state.count) - spec.n_step - age) % spec.rows, seed, env])


# --- who acted


@pytest.mark.parametrize("count", [9, 50])
def test_the_ring_knows_who_acted(count: int) -> None:
    made = filled(SPEC, count, device=True)
    ages = int(made.available_ages()[0])
    age, env = (grid.reshape(1, -1).repeat(2, 0) for grid in np.meshgrid(np.arange(ages), np.arange(3)))
    for k in range(3):
        found = ring.acted_by(made.state, SPEC, age, env, k, np)
        for seed in range(2):
            for a, e, mine in zip(age[seed], env[seed], found[seed], strict=True):
                assert mine == (owner_at(made, a, seed, e) == k)


def test_a_ring_without_owners_is_as_it_was() -> None:
    spec = RingSpec(capacity=60, num_envs=3, obs_dim=2, action_dim=1)
    assert spec.arrays.owner is None
    assert len(jax.tree.leaves(ring.init(spec, np.zeros((1, 3, 2))))) == 9


# --- which rows


def test_own_rows_are_spread_over_the_minibatch() -> None:
    # Rows 0 to 2 are of all learners, 3 to 5 own ones.
    assert own.order(6, 3).tolist() == [0, 3, 1, 4, 2, 5]
    assert own.order(5, 0).tolist() == [0, 1, 2, 3, 4]
    assert own.order(4, 4).tolist() == [0, 1, 2, 3]
    assert own.order(7, 2).tolist() == [0, 1, 2, 5, 3, 4, 6]


def plain_rows(
    made: HostRing, drawn: tuple[np.ndarray, np.ndarray], size: int, mine: Own
) -> list[list[tuple[int, int]]]:
    """The docstring's words, row by row."""
    found = []
    for seed in range(made.spec.num_seeds):
        pairs = [(int(a), int(e)) for a, e in zip(drawn[0][seed], drawn[1][seed], strict=True)]
        rest, tries = pairs[: size - mine.rows], pairs[size - mine.rows :]
        picked = []
        for row in range(mine.rows):
            of_row = tries[row * TRIES : (row + 1) * TRIES]
            hits = [pair for pair in of_row if owner_at(made, pair[0], seed, pair[1]) == mine.learner]
            picked.append(hits[0] if hits else of_row[-1])
        both = [*rest, *picked]
        found.append([both[place] for place in own.order(size, mine.rows)])
    return found


@pytest.mark.parametrize("decay", [12, 0, -12])
def test_rows_are_as_the_slow_twin_draws_them(decay: int) -> None:
    made, size, law = filled(SPEC, 40), 14, AgeLaw.of(decay, 0.1)
    mine = Own(7, 1)
    assert mine.draws(size) == 7 + 7 * TRIES
    keys = jnp.stack([jax.random.key(3), jax.random.key(4)])
    words = np.asarray(ring.random_words(keys, law, mine.draws(size)))
    expected = plain_rows(made, ring.indices(made.state, SPEC, law, words, xp=np), size, mine)
    state = jax.tree.map(jnp.asarray, made.state)
    for found in (
        own.indices(made.state, SPEC, law, words, "exact", mine, np),
        jax.jit(lambda words: own.indices(state, SPEC, law, words, "exact", mine))(words),
    ):
        assert [list(zip(*map(np.ndarray.tolist, map(np.asarray, pair)))) for pair in zip(*found)] == expected


@pytest.mark.parametrize("decay", [12, 0, -12])
def test_own_steps_are_drawn_by_the_age_law(decay: int) -> None:
    """P(A, n) = w(A) / sum of w over own steps; counted over 60,000 draws."""
    made, law, size, k = filled(SPEC, 70), AgeLaw.of(decay, 0.1), 30_000, 2
    keys = jnp.stack([jax.random.key(5), jax.random.key(6)])
    mine = Own(size, k)
    words = np.asarray(ring.random_words(keys, law, mine.draws(size)))
    age, env = own.indices(made.state, SPEC, law, words, "exact", mine, np)
    ages = int(made.available_ages()[0])
    for seed in range(2):
        owned = np.array([[owner_at(made, a, seed, e) == k for e in range(3)] for a in range(ages)])
        share = (weights(law, np.arange(ages))[:, None] * owned).sum() / (3 * weights(law, np.arange(ages)).sum())
        assert 0.15 < share < 0.6
        missed = (1 - share) ** TRIES  # then the last try is taken, which is of another learner
        expected = (1 - missed) * weights(law, np.arange(ages))[:, None] * owned
        expected = expected / expected.sum() * (1 - missed)
        counts = np.zeros((ages, 3))
        np.add.at(counts, (age[seed], env[seed]), 1)
        assert counts[~owned].sum() == pytest.approx(size * missed, abs=4 * np.sqrt(size * missed) + 1)
        error = (counts - size * expected)[owned] / np.sqrt(size * expected[owned])
        assert np.abs(error).max() < 4.5
        assert np.square(error).mean() == pytest.approx(1, abs=0.5)


def test_a_learner_that_has_no_steps_draws_from_all() -> None:
    made, law, mine = filled(SPEC, 30, arms=2), AgeLaw.of(0, 0.1), Own(6, 2)
    words = np.asarray(ring.random_words(jnp.stack([jax.random.key(1)] * 2), law, mine.draws(6)))
    age, env = own.indices(made.state, SPEC, law, words, "exact", mine, np)
    every = ring.indices(made.state, SPEC, law, words, xp=np)
    np.testing.assert_array_equal(age, every[0][:, TRIES - 1 :: TRIES])
    np.testing.assert_array_equal(env, every[1][:, TRIES - 1 :: TRIES])


# --- portfolios


def test_a_portfolio_draws_the_same_from_host_and_device() -> None:
    algorithm = portfolio_of(("warpsac-l", "flashsac", "warpsac-l,decay_steps=-20"), own_share=0.5)
    assert isinstance(algorithm, Portfolio)
    assert algorithm.ring.owners
    made = filled(algorithm.ring, 45)
    keys = algorithm.sample_keys(algorithm.streams([4]), np.int32(7))
    on_device = jax.tree.map(jnp.asarray, made.state)
    drawn, on_host = jax.jit(algorithm.draw)(on_device, keys), algorithm.draw_on_host(made, keys)
    for one, other in zip(jax.tree.leaves(drawn), jax.tree.leaves(on_host), strict=True):
        np.testing.assert_array_equal(one, other)
    again = algorithm.batch_of(made.state, algorithm.streams([4]), 7, 0, 8, 45)
    for k in range(3):
        np.testing.assert_array_equal(again[f"arm{k}/obs"], on_host.obs[0, k])
        mine = [owner_at(made, a, 0, e) == k for a, e in zip(again[f"arm{k}/age"], again[f"arm{k}/env"], strict=True)]
        assert np.mean(mine[1::2]) == 1  # every second row of 16


def test_without_own_steps_nothing_is_different() -> None:
    assert not portfolio_of().ring.owners
    assert portfolio_of() == portfolio_of(own_share=0.0)


def test_who_acted_is_kept_before_rewards_decide_who_is_next() -> None:
    algorithm = portfolio_of(own_share=0.5)
    obs = np.zeros((1, 3, 3), np.float32)
    state = algorithm.init([1], algorithm.init_memory(obs))
    scale = state.scale._replace(owner=jnp.asarray([[2, 1, 0]], jnp.int32))
    ended = np.ones((1, 3), bool)
    step = StepResult(obs, np.ones((1, 3), np.float32), ended & False, ended, obs)
    memory, after = quick.jit(algorithm.remember)(
        state.memory, scale, obs, np.zeros((1, 3, 2)), step, None, np.int32(0)
    )
    assert memory.owner[0].tolist() == [[2, 1, 0]]
    assert after.owner.tolist() != [[2, 1, 0]]


# --- whole runs


@pytest.mark.parametrize("changes", [{"seeds": (1, 2)}, {"env": {"num_envs": 1}}])
def test_a_resumed_run_equals_one_that_was_not_interrupted(changes: dict[str, Any], tmp_path: Path) -> None:
    """The same in a fused program, with the other alternatives: tests/test_devices.py."""
    whole = start.train(tiny_auto(tmp_path / "whole", **HALF | changes))
    half = start.train(tiny_auto(tmp_path / "half", stop_at=120, **HALF | changes))
    resumed = start.resume(half.runs, stop_at=270)
    for one, other in zip(whole.runs, resumed.runs, strict=True):
        assert_same_run(one, other)
        assert set(np.unique(state_of(one)["replay/owner"])) == {0, 1, 2}


def test_where_replay_lives_changes_nothing(tmp_path: Path) -> None:
    runs = [
        start.train(tiny_auto(tmp_path / where, replay={"placement": where, "batch_size": 8}, **HALF)).runs[0]
        for where in ("device", "host")
    ]
    assert_same_run(*runs)


def test_only_a_portfolio_has_own_steps(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"auto\.own_share = 0\.5: has no effect with variant warpsac-l"):
        tiny(tmp_path, auto={"own_share": 0.5})
    with pytest.raises(UserError, match=r"auto\.own_share = 1\.5: must lie in 0\.\.1"):
        tiny_auto(tmp_path, auto={"arms": THREE, "own_share": 1.5})
