"""Toy tasks with known values, for tests and for trying things out without a simulator.

probe-constant   one step, reward 1:                     Q = 1
probe-delay      two steps, reward 1 after the second:   Q(first) = gamma, Q(second) = 1
probe-truncated  reward 1 for ever, truncated at 5:      Q = 1 / (1 - gamma), bootstrapped through
probe-action     one step, reward 1 - (a - 0.5)^2:       best action 0.5, Q(a) = reward
probe-point      a point driven to the origin by its acceleration, random start, 25 steps
probe-faulty     probe-point that raises, or returns NaN, at chosen steps (see `FaultPlan`)
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from warpsac.config.schema import EnvConfig
from warpsac.envs.contract import EnvSpec
from warpsac.envs.host.vector import InProcessEnvs, Recipe, pack_random, unpack_random
from warpsac.envs.names import Target
from warpsac.types import ObsViews

Stepped = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


class Probe(gymnasium.Env):
    """Shared bookkeeping: a step counter, and a state of plain numbers."""

    obs_dim = 1
    limit = 1
    has_success = False
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.obs_dim,), np.float32)
        self.steps = 0
        self.position = np.zeros(self.obs_dim)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.position = self.start()
        return self.observation(), {}

    def start(self) -> np.ndarray:
        return np.zeros(self.obs_dim)

    def observation(self) -> np.ndarray:
        return self.position.astype(np.float32)

    def get_state(self) -> dict[str, np.ndarray]:
        random = pack_random(self.np_random.bit_generator.state)
        return {"steps": np.asarray(self.steps), "position": self.position.copy(), "random": random}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.steps, self.position = int(state["steps"]), np.array(state["position"])
        self.np_random.bit_generator.state = unpack_random(state["random"])


class Constant(Probe):
    def step(self, action: np.ndarray) -> Stepped:
        return self.observation(), 1.0, True, False, {}


class Delay(Probe):
    limit = 2

    def observation(self) -> np.ndarray:
        return np.array([float(self.steps)], np.float32)

    def step(self, action: np.ndarray) -> Stepped:
        self.steps += 1
        last = self.steps == 2
        return self.observation(), float(last), last, False, {}


class Truncated(Probe):
    limit = 5

    def step(self, action: np.ndarray) -> Stepped:
        self.steps += 1
        return self.observation(), 1.0, False, self.steps == self.limit, {}


class Action(Probe):
    def step(self, action: np.ndarray) -> Stepped:
        return self.observation(), 1.0 - (float(action[0]) - 0.5) ** 2, True, False, {}


class Point(Probe):
    obs_dim = 4
    limit = 25
    has_success = True
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)

    def start(self) -> np.ndarray:
        return np.concatenate([self.np_random.uniform(-1, 1, 2), np.zeros(2)])

    def step(self, action: np.ndarray) -> Stepped:
        self.steps += 1
        velocity = 0.8 * self.position[2:] + 0.1 * np.asarray(action, float)
        velocity += self.np_random.normal(0, 0.01, 2)
        self.position = np.concatenate([self.position[:2] + 0.3 * velocity, velocity])
        distance = float(np.linalg.norm(self.position[:2]))
        lost = distance > 3
        reward = -distance - (10.0 if lost else 0.0)
        return self.observation(), reward, lost, self.steps == self.limit, {"success": distance < 0.1}


@dataclass
class FaultPlan:
    """What goes wrong when: step numbers count over all `probe-faulty` environments of the process."""

    raise_at: frozenset[int] = frozenset()
    nan_obs_at: frozenset[int] = frozenset()
    infinite_reward_at: frozenset[int] = frozenset()
    always_after: int | None = None
    steps: int = 0


FAULTS = FaultPlan()


class Faulty(Point):
    def step(self, action: np.ndarray) -> Stepped:
        FAULTS.steps += 1
        now = FAULTS.steps
        obs, reward, terminated, truncated, info = super().step(action)
        if now in FAULTS.raise_at or (FAULTS.always_after is not None and now > FAULTS.always_after):
            raise RuntimeError(f"the simulator broke at step {now}")
        if now in FAULTS.nan_obs_at:
            obs = obs * np.nan
        if now in FAULTS.infinite_reward_at:
            reward = float("inf")
        return obs, reward, terminated, truncated, info


TASKS: dict[str, type[Probe]] = {
    "probe-constant": Constant,
    "probe-delay": Delay,
    "probe-truncated": Truncated,
    "probe-action": Action,
    "probe-point": Point,
    "probe-faulty": Faulty,
}


def make(target: Target, num_envs: int, config: EnvConfig, render: bool = False) -> InProcessEnvs:
    name = target.name
    kind = TASKS[name]
    low, high = kind.action_space.low, kind.action_space.high
    spec = EnvSpec(
        task=name,
        family="probe",
        num_envs=num_envs,
        views=ObsViews(kind.obs_dim, kind.obs_dim),
        action_dim=low.size,
        action_low=tuple(low.tolist()),
        action_high=tuple(high.tolist()),
        episode_limit=kind.limit,
        has_success=kind.has_success,
        restorable=True,
    )
    success_of = operator.itemgetter("success") if kind.has_success else None
    return InProcessEnvs(Recipe(spec, kind, config.max_faults, success_of))
