"""Norms that may grow up to a cap, which follows the effective learning rate: `learner.norm_cap`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quick
from runs import assert_same_run, rows_of, state_of, tiny
from test_auto import portfolio_of, tiny_auto
from test_sac import random_batch, tiny_agent
from warpsac.agents.networks import Network, project, vector_sizes
from warpsac.agents.sac import learner as sac
from warpsac.agents.sac import norm_cap
from warpsac.errors import UserError
from warpsac.training import start

ARMS = ("warpsac-a", "warpsac-l,norm_cap=3", "warpsac-l")
AGENT = tiny_agent("warpsac-l", norm_cap=3.0)

update: Any = quick.jit(sac.update, static_argnames=("agent", "actor_turn"))


def norms_of(network: Network) -> list[np.ndarray]:
    """Of every output unit, and of every BatchNorm and RMSNorm relative to sqrt(d)."""
    found = [np.linalg.norm(kernel, axis=-2).ravel() for kernel in network.kernels]
    sizes = vector_sizes(network)
    vectors = np.split(np.asarray(network.vectors), np.cumsum(sizes)[:-1], axis=-1)[:-1]
    for i in range(0, len(vectors), 2):
        joint = np.concatenate(vectors[i : i + 2], axis=-1)
        found.append(np.linalg.norm(joint, axis=-1).ravel() / np.sqrt(sizes[i]))
    return found


def scaled(network: Network, factor: float) -> Network:
    return jax.tree.map(lambda leaf: factor * leaf, network)


@pytest.mark.parametrize("name", ["actor", "critic"])
def test_norms_are_brought_between_one_and_the_cap(name: str) -> None:
    network = project(getattr(sac.init_learner(AGENT, 2), name))
    for factor, expected in ((0.5, 1.0), (1.0, 1.0), (1.7, 1.7), (9.0, 2.5)):
        found = norms_of(project(scaled(network, factor), jnp.float32(2.5)))
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-5)
    short = scaled(network, 0.3)
    for one, other in zip(jax.tree.leaves(project(short, jnp.float32(1.0))), jax.tree.leaves(project(short))):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_the_cap_by_hand() -> None:
    """f = clip(C sqrt(rate / rate_0 * u), 1, C)."""
    for rate, size, expected in (
        (4e-4, 1.0, 4.0),
        (4e-4, 0.25, 2.0),
        (1e-4, 0.25, 1.0),
        (1e-4, 0.01, 1.0),
        (4e-4, 2, 4),
    ):
        found = norm_cap.cap(4.0, jnp.float32(rate), 4e-4, jnp.float32(size))
        assert float(found) == pytest.approx(expected)
    assert float(norm_cap.cap(1.0, jnp.float32(4e-4), 4e-4, jnp.float32(1))) == 1  # projection as it is


def test_step_sizes_by_hand() -> None:
    before = Network((jnp.asarray([[1.0, 2.0]]), jnp.asarray([[3.0], [4.0]])), jnp.zeros(3))
    after = Network((jnp.asarray([[0.9, 2.2]]), jnp.asarray([[3.0], [4.1]])), jnp.ones(3))
    expected = np.sqrt((1**2 + 2**2 + 0**2 + 1**2) / 4)
    assert float(norm_cap.step_size(before, after, jnp.float32(0.1))) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("turn", [True, False])
def test_an_update_is_that_of_the_slow_twin(turn: bool) -> None:
    """The plain learner's step, without projection, then norms cut by hand."""
    learner, batch = sac.init_learner(AGENT, 2), random_batch(AGENT)
    learner = learner._replace(updates=jnp.asarray(10 if turn else 11, jnp.int32))
    free = dataclasses.replace(AGENT, config=dataclasses.replace(AGENT.config, norm_cap=1.0, projection=False))
    scale, key = jnp.float32(1.0), jax.random.key(2)
    after, metrics = update(AGENT, learner, batch, scale, key, turn)
    # The critic's targets depend on the actor after its own update: compare that one first.
    name = "actor" if turn else "critic"
    stepped, _ = update(free, learner._replace(step_sizes=None), batch, scale, key, turn)
    config = AGENT.config
    rate = float(sac._rate(AGENT, learner.updates // (config.policy_delay if turn else 1)))
    before, raw = getattr(learner, name), getattr(stepped, name)
    steps = np.concatenate(
        [
            (np.asarray(b, float) - np.asarray(a, float)).ravel()
            for b, a in zip(before.kernels, raw.kernels, strict=True)
        ]
    )
    size = 1 + config.tau * (np.sqrt(np.square(steps / rate).mean()) - 1)
    cap = np.clip(3 * np.sqrt(rate / config.learning_rate * size), 1, 3)
    assert float(getattr(after.step_sizes, name)) == pytest.approx(size, rel=1e-4)
    assert float(metrics[f"learner/norm_cap_{name}"]) == pytest.approx(cap, rel=1e-4)
    for kernel, mine in zip(raw.kernels, getattr(after, name).kernels, strict=True):
        norm = np.linalg.norm(kernel, axis=-2, keepdims=True)
        np.testing.assert_allclose(mine, kernel / norm * np.clip(norm, 1, cap), rtol=1e-5, atol=1e-6)


def test_the_cap_is_tightened_as_the_learning_rate_falls() -> None:
    agent = dataclasses.replace(
        AGENT, horizon_updates=60, config=dataclasses.replace(AGENT.config, final_learning_rate=1e-6)
    )
    learner, caps = sac.init_learner(agent, 2), []
    for i in range(60):
        learner, metrics = update(
            agent, learner, random_batch(agent, seed=i), jnp.float32(1), jax.random.key(i), i % 2 == 0
        )
        caps.append(float(metrics["learner/norm_cap_critic"]))
        largest = max(norms.max() for norms in norms_of(learner.critic))
        assert min(norms.min() for norms in norms_of(learner.critic)) >= 1 - 1e-4
        assert largest <= caps[-1] * (1 + 1e-4)
    assert caps[0] > 2.5
    assert caps[-1] < 1.2
    assert caps[50] < caps[25] < caps[5]


def test_weights_grow_under_a_cap_and_not_under_projection() -> None:
    plain = dataclasses.replace(AGENT, config=dataclasses.replace(AGENT.config, norm_cap=1.0))
    for agent, grown in ((AGENT, True), (plain, False)):
        learner = sac.init_learner(agent, 2)
        for i in range(12):
            learner, _ = update(agent, learner, random_batch(agent), jnp.float32(1), jax.random.key(i), i % 2 == 0)
        assert (max(norms.max() for norms in norms_of(learner.critic)) > 1.01) == grown


def test_each_arm_has_its_own_cap() -> None:
    algorithm = portfolio_of(ARMS)
    assert np.asarray(algorithm.axes.norm_cap).tolist() == [1, 3, 1]
    assert portfolio_of().init([1], None).learner.arms.step_sizes is None  # type: ignore[arg-type]
    learner = jax.tree.map(lambda leaf: leaf[0], algorithm.init([1], None).learner)  # type: ignore[arg-type]
    one = quick.jit(algorithm.update_one, static_argnames="actor_turn")
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), random_batch(algorithm.actor))
    for i in range(6):
        learner, _ = one(learner, batch, jnp.float32(1), jax.random.key(i), actor_turn=i % 2 == 0)
    norms = [max(n.max() for n in norms_of(jax.tree.map(lambda x, k=k: x[k], learner.arms.critic))) for k in range(3)]
    assert norms[1] > 1.001
    assert norms[2] == pytest.approx(1, abs=1e-5)


def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path: Path) -> None:
    on: dict[str, Any] = {"learner": {"norm_cap": 3.0}, "seeds": (1, 2)}
    whole = start.train(tiny(tmp_path / "whole", **on))
    half = start.train(tiny(tmp_path / "half", stop_at=120, **on))
    resumed = start.resume(half.runs, stop_at=270)
    for one, other in zip(whole.runs, resumed.runs, strict=True):
        assert_same_run(one, other)
        assert state_of(one)["learner/step_sizes/critic"] < 1
        assert all(1 <= row["learner/norm_cap_critic"] <= 3 for row in rows_of(one) if "loss/critic" in row)


def test_nothing_is_there_unless_asked_for() -> None:
    assert sac.init_learner(tiny_agent("warpsac-l"), 1).step_sizes is None
    assert tiny_agent("warpsac-l", norm_cap=1.0) == tiny_agent("warpsac-l")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"learner": {"norm_cap": 2.0, "projection": False}}, "learner.norm_cap = 2.0: has no effect without"),
        ({"learner": {"norm_cap": 0.5}}, "learner.norm_cap = 0.5: must be at least 1"),
        ({"variant": "auto", "auto": {"arms": ARMS}, "learner": {"norm_cap": 2.0}}, "norm_cap.*setting of each arm"),
        ({"variant": "auto", "auto": {"arms": ("warpsac-l", "warpsac-a,norm_cap=2")}}, "norm_cap needs projection=on"),
        ({"variant": "auto", "auto": {"arms": ("warpsac-l", "warpsac-l,norm_cap=x")}}, "a number of at least 1"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=line):
        (tiny_auto if "variant" in changes else tiny)(tmp_path, **changes)
