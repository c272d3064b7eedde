"""Gymnasium environments as a user may write them: probe-point with named observations, alone and as a VectorEnv."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from warpsac.envs.host.vector import reset_seed
from warpsac.envs.probes.host import Point

Mode = gymnasium.vector.AutoresetMode
LIMIT = 25


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


class NamedPoint(Point):
    """Position and velocity by name; the order is that of the pairs, not of the alphabet."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain
        self.observation_space = spaces.Dict([("velocity", box(2)), ("position", box(1, 2))])

    def reset(self, **arguments: Any) -> Any:
        obs, info = super().reset(**arguments)
        return self.named(obs), info

    def step(self, action: np.ndarray) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return (
            self.named(obs),
            self.gain * reward,
            terminated,
            truncated,
            info | {"home": bool(np.abs(obs).max() < 0.5)},
        )

    def named(self, obs: np.ndarray) -> dict[str, Any]:
        return {"velocity": obs[2:], "position": obs[None, :2]}


class GroupedPoint(NamedPoint):
    """The critic also sees the squared position."""

    def __init__(self) -> None:
        super().__init__()
        policy = spaces.Dict([("velocity", box(2)), ("position", box(1, 2))])
        self.observation_space = spaces.Dict({"policy": policy, "critic": box(3)})

    def named(self, obs: np.ndarray) -> dict[str, Any]:
        seen = super().named(obs)
        return {"policy": seen, "critic": np.append(obs[:2] ** 2, 1.0).astype(np.float32)}


class VectorPoint(gymnasium.vector.VectorEnv):
    """N of probe-point in one object, whose results are buffers that the next step overwrites."""

    single_action_space = Point.action_space
    single_observation_space: Any = box(4)

    def __init__(self, num_envs: int = 2, mode: Mode = Mode.NEXT_STEP, tells_last: bool = True) -> None:
        self.num_envs, self.mode, self.tells_last = num_envs, mode, tells_last
        self.metadata = {"autoreset_mode": mode}
        self.points = [Point() for _ in range(num_envs)]
        self.obs = np.zeros((num_envs, 4), np.float32)
        self.over = np.zeros(num_envs, bool)
        self.broken = np.zeros(num_envs, bool)  # gives NaN until it is reset

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        for i in np.flatnonzero(mask):
            own = None if seed is None else reset_seed(seed, int(i))
            self.obs[i], _ = self.points[i].reset(seed=own)
        self.over[mask], self.broken[mask] = False, False
        return self.obs, {}

    def step(self, actions: np.ndarray) -> Any:
        reward, (terminated, truncated) = np.zeros(self.num_envs), np.zeros((2, self.num_envs), bool)
        solved, last = np.zeros(self.num_envs, bool), np.full(self.num_envs, None, object)
        for i, point in enumerate(self.points):
            if self.over[i]:
                self.obs[i], _ = point.reset()
                continue
            self.obs[i], reward[i], terminated[i], truncated[i], info = point.step(actions[i])
            solved[i] = info["success"]
            if self.broken[i]:
                self.obs[i] = np.nan
            if self.mode is Mode.SAME_STEP and (terminated[i] or truncated[i]):
                last[i] = self.obs[i].copy()
                self.obs[i], _ = point.reset()
        over = terminated | truncated
        self.over = over if self.mode is Mode.NEXT_STEP else np.zeros_like(over)
        info = {"success": solved}
        if self.mode is Mode.SAME_STEP and over.any() and self.tells_last:
            info |= {"final_obs": last, "_final_obs": over, "final_info": {"success": solved, "_success": over}}
        return self.obs, reward, terminated, truncated, info

    def get_state(self) -> dict[str, np.ndarray]:
        states = [point.get_state() for point in self.points]
        own = {f"{name}{i}": value for i, state in enumerate(states) for name, value in state.items()}
        return own | {"obs": self.obs, "over": self.over}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.obs[:], self.over[:] = state["obs"], state["over"]
        for i, point in enumerate(self.points):
            point.set_state({name: state[f"{name}{i}"] for name in ("steps", "position", "random")})

    def render(self) -> Any:
        return tuple(np.full((2, 2, 3), i, np.uint8) for i in range(self.num_envs))


def make_vector(num_envs: int) -> VectorPoint:
    return VectorPoint(num_envs)


def make_same_step(num_envs: int) -> VectorPoint:
    return VectorPoint(num_envs, Mode.SAME_STEP)


def make_disabled(num_envs: int) -> VectorPoint:
    return VectorPoint(num_envs, Mode.DISABLED)


def make_blind(num_envs: int) -> VectorPoint:
    return VectorPoint(num_envs, Mode.SAME_STEP, tells_last=False)


def make_sync(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.vector.SyncVectorEnv([NamedPoint] * num_envs)
