"""Pessimism that follows the returns really seen: `learner.pessimism = calibrated`, `replay.windows`."""

from __future__ import annotations

import dataclasses
import functools
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
from warpsac.agents.networks import critic_apply
from warpsac.agents.sac import calibration, losses
from warpsac.agents.sac import learner as sac
from warpsac.agents.sac.calibration import Calibration
from warpsac.errors import UserError
from warpsac.replay import ring, windows
from warpsac.replay.host import HostRing
from warpsac.replay.ring import RingSpec
from warpsac.replay.windows import Windows
from warpsac.training import start
from warpsac.types import StepResult

ON: dict[str, Any] = {"learner": {"pessimism": "calibrated"}}
ARMS = ("warpsac-a", "warpsac-norm-off,pessimism=calibrated", "warpsac-l")
SPEC = RingSpec(capacity=60, num_envs=3, num_seeds=2, obs_dim=2, action_dim=1, n_step=2, final_slots=60, voids=True)


# Call by call, what is within a step would be compiled again each time.
add: Any = quick.jit(ring.add, static_argnames="spec")
newest: Any = quick.jit(windows.newest, static_argnames=("spec", "length", "most"))


# --- windows, against episodes followed step by step


@functools.cache
def lived(count: int, spec: RingSpec = SPEC) -> tuple[Any, HostRing, list[dict[str, np.ndarray]]]:
    """A ring on the device and on the host after so many steps, and what was done in each: a log of dicts."""
    rng, shape = np.random.default_rng(4), (spec.num_seeds, spec.num_envs)
    obs = rng.normal(size=(*shape, spec.obs_dim)).astype(np.float32)
    device, host, log = ring.init(spec, jnp.asarray(obs)), HostRing.init(spec, obs), []
    for _ in range(count):
        action = rng.uniform(-1, 1, (*shape, spec.action_dim)).astype(np.float32)
        reward = rng.normal(size=shape).astype(np.float32)
        ended, terminated, faulty = rng.random(shape) < 0.12, rng.random(shape) < 0.5, rng.random(shape) < 0.03
        following, final = rng.normal(size=(2, *obs.shape)).astype(np.float32)
        step = StepResult(
            following, reward, ended & terminated & ~faulty, ended & ~terminated & ~faulty, final, faulty=faulty
        )
        device = add(device, spec, action, step)
        host.add(action, step)
        log.append({"obs": obs, "action": action, "reward": reward, "terminated": step.terminated,
                    "truncated": step.truncated, "faulty": faulty})  # fmt: skip
        obs = following
    return device, host, log


def plain_window(log: list[dict[str, np.ndarray]], length: int, seed: int, env: int) -> dict[str, Any] | None:
    """The newest window of an environment, read off the log; None if there is none."""
    first = len(log) - (length + 1)
    one = [{name: array[seed, env] for name, array in step.items()} for step in log[max(first, 0) :]]
    if first < 0 or one[0]["faulty"]:
        return None
    rewards: list[float] = []
    for j in range(length):
        cut_after = one[j]["truncated"] or one[j + 1]["faulty"]  # a void step closes the episode before it
        if one[j]["terminated"]:
            return {"rewards": [*rewards, one[j]["reward"]], "end": None, "start": one[0]}
        if cut_after:
            return {"rewards": rewards, "end": one[j], "start": one[0]} if j else None
        rewards.append(one[j]["reward"])
    return {"rewards": rewards, "end": one[length], "start": one[0]}


@pytest.mark.parametrize("count", [3, 7, 23, 61, 64])
@pytest.mark.parametrize("length", [1, 5])
def test_windows_are_what_happened(count: int, length: int) -> None:
    device, host, log = lived(count)
    found = windows.newest(host.state, SPEC, length, 100, xp=np)
    on_device = newest(device, SPEC, length, 100)
    for one, other in zip(found, on_device, strict=True):
        np.testing.assert_array_equal(one, other)
    for seed in range(2):
        for env in range(3):
            expected = plain_window(log, length, seed, env)
            assert found.valid[seed, env] == (expected is not None)
            if expected is None:
                continue
            steps = found.steps[seed, env]
            np.testing.assert_array_equal(found.reward[seed, env, :steps], expected["rewards"])
            np.testing.assert_array_equal(found.obs[seed, env, 0], expected["start"]["obs"])
            np.testing.assert_array_equal(found.action[seed, env, 0], expected["start"]["action"])
            assert found.terminated[seed, env] == (expected["end"] is None)
            if expected["end"] is not None:
                np.testing.assert_array_equal(found.obs[seed, env, 1], expected["end"]["obs"])
                np.testing.assert_array_equal(found.action[seed, env, 1], expected["end"]["action"])


def test_windows_begin_after_the_warm_up_and_within_replay() -> None:
    _, host, _ = lived(30)
    assert windows.newest(host.state, SPEC, 4, 9, since=25, xp=np).valid.any()
    assert not windows.newest(host.state, SPEC, 4, 9, since=26, xp=np).valid.any()
    gone = host.state._replace(oldest=np.array([26, 0], np.int32))
    assert windows.newest(gone, SPEC, 4, 9, xp=np).valid.any(1).tolist() == [False, True]


def test_of_many_environments_others_are_looked_at_in_turn() -> None:
    spec = dataclasses.replace(SPEC, num_envs=7, capacity=140)
    seen = set()
    for count in range(20, 27):
        _, host, log = lived(count, spec)
        found = windows.newest(host.state, spec, 2, 3, xp=np)
        assert found.obs.shape == (2, 3, 2, 2)
        for env in np.flatnonzero(found.valid[0]):
            (where,) = np.flatnonzero((log[count - 3]["obs"][0] == found.obs[0, env, 0]).all(-1))
            seen.add(int(where))
    assert seen == set(range(7))


# --- the law, by hand


def test_what_was_seen_by_hand() -> None:
    """gamma 1/2, reward scale 2, bonus 0.1; one window goes on, one terminated, one was cut after two steps."""
    reward = jnp.asarray([[1.0, 2.0, 3.0], [1.0, 2.0, 9.0], [1.0, 2.0, 9.0]])
    filled = Windows(
        obs=None, action=None, reward=reward, steps=jnp.asarray([3, 2, 2]),
        terminated=jnp.asarray([False, True, False]), valid=None,
    )  # fmt: skip
    found = calibration.seen(filled, jnp.asarray([8.0, 8.0, 8.0]), 0.5, jnp.float32(2.0), jnp.float32(0.1))
    np.testing.assert_allclose(
        found,
        [
            2 * (1 + 2 / 2 + 3 / 4) + 0.1 * (1 / 2 + 1 / 4 + 1 / 8) + 8 / 8,
            2 * (1 + 2 / 2) + 0.1 * (1 / 2),
            2 * (1 + 2 / 2) + 0.1 * (1 / 2 + 1 / 4) + 8 / 4,
        ],
        rtol=1e-6,
    )


def test_what_a_fixed_point_of_the_critic_predicts_is_what_was_seen() -> None:
    """Soft values of a chain with constant reward and entropy: Q = r + gamma (bonus + Q); every window has no error."""
    gamma, r, bonus, length = 0.9, 0.3, -0.05, 6
    q = (r + gamma * bonus) / (1 - gamma)
    steps, ends = jnp.asarray([6, 2]), jnp.asarray([False, False])
    filled = Windows(None, None, jnp.full((2, length), r), steps, ends, None)
    found = calibration.seen(filled, jnp.full(2, q), gamma, jnp.float32(1.0), jnp.float32(bonus))
    np.testing.assert_allclose(found, q, rtol=1e-5)


def test_pessimism_by_hand() -> None:
    """U = 1000: w = 1 / (0.01 * 1000) = 0.1, and p moves by 50 / 1000 of e / sqrt(v)."""
    state = Calibration(*map(jnp.float32, (0.5, 0.2, 0.5, -1.0)))
    after = calibration.adapted(state, jnp.float32(1.2), jnp.float32(2.5), jnp.float32(3), 1000)
    assert float(after.error) == pytest.approx(0.2 + 0.1 * 1.0)
    assert float(after.square) == pytest.approx(0.5 + 0.1 * 2.0)
    assert float(after.degree) == pytest.approx(0.5 + 0.05 * 0.3 / np.sqrt(0.7))
    for one, other in zip(calibration.adapted(state, *map(jnp.float32, (9, 9, 0)), 1000), state, strict=True):
        assert float(one) == float(other)  # no windows, no change
    top = calibration.adapted(state._replace(degree=jnp.float32(0.99)), *map(jnp.float32, (3, 9, 1)), 100)
    assert float(top.degree) == 1


def test_little_evidence_moves_little() -> None:
    first = calibration.adapted(calibration.initial(0.0), *map(jnp.float32, (-2, 4, 1)), 10_000)
    # All error is bias, but only a hundredth of what will be remembered was seen: e / sqrt(v) = -sqrt(1 / 100).
    assert float(first.degree) == pytest.approx(1 - 50 / 10_000 * 0.1, abs=1e-6)


def test_windows_are_long_enough_for_the_discount() -> None:
    assert calibration.window_length(0.99, 10_000) == 299
    assert calibration.window_length(0.97, 10_000) == 99
    assert calibration.window_length(0.97, 53) == 51
    assert calibration.window_length(0.0, 53) == 1


# --- a learner


AGENT = tiny_agent("warpsac-l", pessimism="calibrated")


def with_windows(agent: sac.SacActor, seed: int = 0, length: int = 8, reward: float | None = None) -> Any:
    rng, batch = np.random.default_rng(seed), random_batch(agent, seed=seed)
    obs = rng.normal(size=(5, 2, batch.obs.shape[-1])).astype(np.float32)
    rewards = rng.normal(size=(5, length)) if reward is None else np.full((5, length), reward)
    steps = np.array([length, 3, 1, length, 5], np.int32)
    ended, valid = np.array([0, 1, 0, 0, 0], bool), np.array([1, 1, 1, 1, 0], bool)
    action = rng.uniform(-1, 1, (5, 2, agent.action_dim)).astype(np.float32)
    filled = Windows(obs, action, rewards.astype(np.float32), steps, ended, valid)
    return batch._replace(windows=jax.tree.map(jnp.asarray, filled))


update: Any = quick.jit(sac.update, static_argnames=("agent", "actor_turn"))


def test_an_update_measures_its_critics_as_the_slow_twin_does() -> None:
    agent, scale = AGENT, 0.7
    learner = sac.init_learner(agent, 3)
    learner = learner._replace(calibration=learner.calibration._replace(degree=jnp.float32(0.4)))
    batch = with_windows(agent)
    after, metrics = update(agent, learner, batch, jnp.float32(scale), jax.random.key(1), True)
    assert float(metrics["learner/pessimism"]) == pytest.approx(0.4)
    assert float(after.calibration.entropy) == float(metrics["policy/entropy"])

    support = losses.value_support(agent.config.atoms, agent.config.value_limit)
    gamma, w = agent.config.gamma, batch.windows
    bonus = float(jnp.exp(after.log_alpha) * metrics["policy/entropy"])
    errors = []
    for i in range(4):  # the fifth is not valid
        said = []
        for end in range(2):
            seen = agent.views.critic(w.obs[i, end][None]), w.action[i, end][None]
            logits, _ = critic_apply(after.critic, *seen, after.critic_moments, agent.number)
            said.append(float(losses.expected_value(logits, support).mean()))
        total, discount = 0.0, 1.0
        for j in range(int(w.steps[i])):
            total += discount * (scale * float(w.reward[i, j]) + (bonus if j > 0 else 0.0))
            discount *= gamma
        if not w.terminated[i]:
            total += discount * (bonus + said[1])
        errors.append(said[0] - total)
    weight = min(1.0, 1 / (0.01 * agent.horizon_updates))
    mean, square = weight * np.mean(errors), weight * np.mean(np.square(errors))
    assert float(after.calibration.error) == pytest.approx(mean, rel=1e-4)
    assert float(after.calibration.square) == pytest.approx(square, rel=1e-4)
    degree = np.clip(0.4 + 50 / agent.horizon_updates * mean / np.sqrt(square), 0, 1)
    assert float(after.calibration.degree) == pytest.approx(degree, rel=1e-4)


@pytest.mark.parametrize(("reward", "goal"), [(-3.0, 1.0), (3.0, 0.0)])
def test_pessimism_rises_where_critics_promise_too_much(reward: float, goal: float) -> None:
    """Returns far below all that the critics say: p goes to 1. Returns above: to 0."""
    agent = dataclasses.replace(AGENT, horizon_updates=200)
    learner = sac.init_learner(agent, 3)
    learner = learner._replace(calibration=learner.calibration._replace(degree=jnp.float32(0.5)))
    batch, degrees = with_windows(agent, reward=reward), []
    for i in range(12):
        learner, _ = update(agent, learner, batch, jnp.float32(1.0), jax.random.key(i), i % 2 == 0)
        degrees.append(float(learner.calibration.degree))
    assert degrees[-1] == goal
    assert (np.diff(degrees) * (1 if goal else -1) >= 0).all()


def test_the_degree_reached_is_the_one_that_is_learned_with() -> None:
    """One update of a calibrated learner at p is that of a plain learner with this p."""
    learner, batch = sac.init_learner(AGENT, 3), with_windows(AGENT)
    plain = dataclasses.replace(AGENT, config=dataclasses.replace(AGENT.config, pessimism=0.25))
    calibrated = learner._replace(calibration=learner.calibration._replace(degree=jnp.float32(0.25)))
    scale, key = jnp.float32(1.0), jax.random.key(2)
    after, _ = update(AGENT, calibrated, batch, scale, key, True)
    expected, _ = update(plain, learner._replace(calibration=None), batch, scale, key, True)
    for one, other in zip(jax.tree.leaves(after._replace(calibration=None)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_an_arm_is_measured_by_its_own_windows() -> None:
    algorithm = portfolio_of(ARMS)
    assert algorithm.ring.owners
    assert algorithm.axes.calibrated.tolist() == [False, True, False]
    spec, rng = algorithm.ring, np.random.default_rng(0)
    obs = rng.normal(size=(1, 3, 3)).astype(np.float32)
    device, host = algorithm.init_memory(obs), HostRing.init(spec, obs)
    no, owner = np.zeros((1, 3), bool), np.array([[2, 1, 0]], np.int32)
    for t in range(80):
        step = StepResult(obs + t, np.full((1, 3), t, np.float32), no, no, obs)
        action = rng.uniform(-1, 1, (1, 3, 2)).astype(np.float32)
        device = add(device, spec, action, step, owner)
        host.add(action, step, owner)
    keys = algorithm.sample_keys(algorithm.streams([1]), np.int32(0))
    drawn, on_host = quick.jit(algorithm.draw)(device, keys), algorithm.draw_on_host(host, keys)
    for one, other in zip(jax.tree.leaves(drawn), jax.tree.leaves(on_host), strict=True):
        np.testing.assert_array_equal(one, other)
    assert drawn.windows.valid[0].tolist() == [[False, False, True], [False, True, False], [True, False, False]]


# --- whole runs


def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path: Path) -> None:
    on: dict[str, Any] = ON | {"seeds": (1, 2), "replay": {"final_slots": 60}}
    whole = start.train(tiny(tmp_path / "whole", **on))
    half = start.train(tiny(tmp_path / "half", stop_at=240, **on))
    resumed = start.resume(half.runs, stop_at=270)
    for one, other in zip(whole.runs, resumed.runs, strict=True):
        assert_same_run(one, other)
        rows = [row for row in rows_of(one) if "learner/pessimism" in row]
        assert rows[0]["learner/pessimism"] == 1
        assert 0 <= state_of(one)["learner/calibration/degree"] <= 1
        assert state_of(one)["learner/calibration/square"] > 0


def test_arms_of_a_resumed_run(tmp_path: Path) -> None:
    auto = {"auto": {"arms": ARMS, "own_share": 0.5}, "replay": {"final_slots": 60}}
    whole = start.train(tiny_auto(tmp_path / "whole", **auto)).runs[0]
    half = start.train(tiny_auto(tmp_path / "half", stop_at=240, **auto))
    assert_same_run(whole, start.resume(half.runs, stop_at=270).runs[0])
    chosen = [row for row in rows_of(whole) if "loss/critic" in row]
    assert all(("learner/pessimism" in row) == (row["auto/choice"] == 1) for row in chosen)


def test_where_replay_lives_changes_nothing(tmp_path: Path) -> None:
    runs = [
        start.train(tiny(tmp_path / where, replay={"placement": where, "final_slots": 60}, **ON)).runs[0]
        for where in ("device", "host")
    ]
    assert_same_run(*runs)
    assert state_of(runs[0])["learner/calibration/square"] > 0


def test_nothing_is_there_unless_asked_for(tmp_path: Path) -> None:
    run = start.train(tiny(tmp_path, total_steps=90, eval={"every": 0})).runs[0]
    assert not [name for name in state_of(run) if "calibration" in name or "owner" in name]
    assert not [row for row in rows_of(run) if "learner/pessimism" in row]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"learner": {"pessimism": "calibrated", "critics": 1}}, "learner.pessimism.*needs learner.critics = 2"),
        ({"learner": {"pessimism": 2.0}}, "learner.pessimism = 2.0: must be calibrated or lie in 0..1"),
        ({"learner": {"pessimism": "by returns"}}, "must be of type float or calibrated"),
        ({"variant": "auto", "auto": {"arms": ARMS}, **ON}, "learner.pessimism.*setting of each arm"),
        (
            {"variant": "auto", "auto": {"arms": ("warpsac-l", "warpsac-a,pessimism=calibrated")}},
            "pessimism=calibrated needs two critics",
        ),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=line):
        tiny(tmp_path, **changes)
