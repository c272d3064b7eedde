"""Step environments with reproducible random actions, and compare what came back."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpsac.envs.contract import HostEnv, HostStep


def step(env: HostEnv, action: Any) -> HostStep:
    env.send(np.asarray(action, np.float32))
    return env.recv()


def roll(env: HostEnv, steps: int, seed: int = 0) -> list[HostStep]:
    rng, shape = np.random.default_rng(seed), (env.spec.num_envs, env.spec.action_dim)
    return [step(env, rng.uniform(-1, 1, shape)) for _ in range(steps)]


def assert_same_steps(one: list[HostStep], other: list[HostStep]) -> None:
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a.result, b.result, strict=True):
            assert (x is None and y is None) or x.tobytes() == y.tobytes()


def assert_goes_on_exactly(env: HostEnv, other: HostEnv) -> None:
    """A state taken within an episode, put into environments that were elsewhere; 50 steps with a reset among them."""
    env.reset(3)
    roll(env, 25)
    state = env.get_state()
    assert state is not None
    expected = roll(env, 50, seed=1)
    assert any((s.result.terminated | s.result.truncated).any() for s in expected)
    other.reset(9)
    roll(other, 11, seed=2)
    other.set_state(state)
    assert_same_steps(expected, roll(other, 50, seed=1))
