"""Tiny runs on toy tasks, and how to compare what they leave behind."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np

from warpsac.config.loading import override
from warpsac.config.profiles import resolve
from warpsac.config.schema import Config
from warpsac.envs.probes import host as probe
from warpsac.runs import checkpoint, rowfiles, run_folder

TINY: dict[str, Any] = {
    "task": "probe-point",
    "total_steps": 270,
    "learning_starts": 60,
    "env": {"num_envs": 3, "workers": 0},
    "replay": {"capacity": 150, "batch_size": 16, "n_step": 3, "decay_steps": 40},
    "learner": {
        "actor_width": 8, "critic_width": 8, "actor_blocks": 1, "critic_blocks": 1, "expansion": 2, "atoms": 21,
    },
    "eval": {"every": 120, "episodes": 2, "num_envs": 2},
    "checkpoint": {"every": 75},
    "log": {"every": 7, "tensorboard": False},
}  # fmt: skip
WARMUP = 20  # interactions before learning, of TINY


def tiny(out: Path, **changes: Any) -> Config:
    """A run of 90 interactions that takes a second: warm-up until 20, rows every 7, ring full at 50."""
    return override(override(Config(), TINY), {"out": str(out), **changes})


TINY_PPO: dict[str, Any] = {
    "task": "probe-point",
    "total_steps": 12 * 5 * 3,
    "env": {"num_envs": 3, "workers": 0},
    "ppo": {"rollout_steps": 5, "epochs": 2, "minibatches": 3, "actor_hidden": (8,), "critic_hidden": (8,)},
    "eval": {"every": 60, "episodes": 2, "num_envs": 2},
    "checkpoint": {"every": 45},
    "log": {"every": 10, "tensorboard": False},
}


# Enough for PPO to drive the point of probe-point home, which a policy at its start does not.
POINT_HOME: dict[str, Any] = {
    "total_steps": 20_480,
    "env": {"num_envs": 8},
    "ppo": {"rollout_steps": 64, "epochs": 10, "minibatches": 8, "actor_hidden": (32,), "critic_hidden": (32,)},
    "eval": {"every": 20_480, "episodes": 8, "num_envs": 8},
    "checkpoint": {"every": 0},
    "log": {"every": 2560},
}


def tiny_ppo(out: Path, **changes: Any) -> Config:
    """12 iterations of 5 interactions with 3 environments: rows every second one."""
    base, _ = resolve("probe-point", algo="ppo", profile="cpu")
    return override(override(base, TINY_PPO), {"out": str(out), **changes})


def untied() -> contextlib.AbstractContextManager[Any]:
    """Checkpoints made within say nothing of settings and rows, as those of earlier versions: what these are may be
    changed afterwards, as somebody would who makes up a run folder."""
    return mock.patch.object(run_folder.RunFolder, "record", return_value={})


def state_of(run: Path) -> dict[str, np.ndarray]:
    """All state of the newest checkpoint, as group/name -> array; wall-clock time is left out."""
    found = checkpoint.newest_good(run_folder.open_run(run).checkpoints)
    assert found is not None
    state = {f"{group}/{name}": array for group, arrays in found.arrays.items() for name, array in arrays.items()}
    for name, value in found.info.items():
        if name not in ("seconds", "env_spec"):
            state[f"info/{name}"] = np.asarray(-1 if value is None else value)
    return state


def rows_of(run: Path, without_evaluations_at: Sequence[int] = ()) -> list[dict[str, Any]]:
    """The reproducible part of all rows."""
    rows = [rowfiles.reproducible(row) for row in rowfiles.read_metrics(run)]
    return [row for row in rows if not (row["kind"] == "eval" and row["step"] in without_evaluations_at)]


def assert_same_state(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    different = [
        name
        for name in one
        if one[name].dtype != other[name].dtype
        or one[name].shape != other[name].shape
        or one[name].tobytes() != other[name].tobytes()
    ]
    assert different == []


def assert_same_run(one: Path, other: Path, extra_evaluations: Sequence[int] = ()) -> None:
    """Equal state and equal rows; `extra_evaluations` were made by one of them only, where it stopped."""
    assert rows_of(one, extra_evaluations) == rows_of(other, extra_evaluations)
    assert_same_state(state_of(one), state_of(other))


class ForgetfulPoint(probe.Point):
    """probe-point as a user's own environment, without a way to save its state."""

    get_state = None  # type: ignore[assignment]
    set_state = None  # type: ignore[assignment]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, False, info


class OwnPoint(ForgetfulPoint):
    """The same with a state of its own: what gymnasium keeps for it (limit, random numbers) is left out."""

    def get_state(self) -> dict[str, np.ndarray]:
        return {"position": self.position, "steps": np.asarray(self.steps)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.position, self.steps = np.array(state["position"]), int(state["steps"])


gymnasium.register("Forgetful-v0", ForgetfulPoint, max_episode_steps=25)
gymnasium.register("Own-v0", OwnPoint, max_episode_steps=25)
